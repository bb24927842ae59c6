"""A damaged request or answer about quotas and limits gives a value or a `ProtocolError`, never anything else."""

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import Api, ApiKey, describe
from protocol.client_quota_messages import (
    AlterResult,
    encode_alter_answer,
    only_validating,
    parse_alter,
    parse_describe,
    read_alter_outcome,
    read_describe_outcome,
)
from protocol.describe_configs import ShownConfig, asked_broker_configs, edit_broker_configs
from protocol.errors import ProtocolError
from protocol.steps import finish
from testkit import wire
from tests.fuzz.test_protocol_junk import edited, edits

VERSIONS = (0, 1)
ENTRIES = [
    {
        "entity": [{"entity_type": "user", "entity_name": None}, {"entity_type": "client-id", "entity_name": "c"}],
        "ops": [{"key": "producer_byte_rate", "value": 5.0, "remove": False}],
    }
] * 2
COMPONENTS = [{"entity_type": "user", "match_type": 0, "match": "u"}] * 2


def requests() -> list[tuple[Any, Api, bytes]]:
    """Each parser with a frame it can read."""
    found: list[tuple[Any, Api, bytes]] = []
    for version in VERSIONS:
        alter = describe(ApiKey.ALTER_CLIENT_QUOTAS, version)
        ask = describe(ApiKey.DESCRIBE_CLIENT_QUOTAS, version)
        altering = wire.request("AlterClientQuotas", version, entries=ENTRIES, validate_only=True)
        asking = wire.request("DescribeClientQuotas", version, components=COMPONENTS, strict=False)
        answer = finish(encode_alter_answer(1, [AlterResult({"user": "u", "ip": None}, 31, "no")], alter))
        described = wire.populated("DescribeClientQuotas", version)
        found += [
            (parse_and_send_on, alter, altering),
            (parse_describe, ask, asking),
            (read_alter_outcome, alter, answer),
            (read_describe_outcome, ask, wire.response("DescribeClientQuotas", version, **described)),
        ]
    for version in range(1, 5):
        configs = describe(ApiKey.DESCRIBE_CONFIGS, version)
        wanted = [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["a", "b"]}]
        result = {**wire.populated("DescribeConfigs", version)["results"][0], "resource_type": 4, "error_code": 0}
        found += [
            (
                lambda f, a: finish(asked_broker_configs(f, a)),
                configs,
                wire.request("DescribeConfigs", version, resources=wanted),
            ),
            (tell_our_own, configs, wire.response("DescribeConfigs", version, results=[result])),
        ]
    return found


def tell_our_own(frame: bytes, api: Api) -> None:
    """With one setting of the gateway's own in the place of the broker's."""
    ours = {"max.connections": ShownConfig("5", 2, 3)}
    told = finish(edit_broker_configs(frame, api, (), lambda _broker: ours, ours.keys()))
    assert int.from_bytes(told[:4], "big") == len(told) - 4


def parse_and_send_on(frame: bytes, api: Api) -> None:
    parsed = finish(parse_alter(frame, api))
    assert len(only_validating(frame, parsed)) == len(frame)
    # What was read can be written, however odd.
    finish(encode_alter_answer(1, [AlterResult(entry.entity, 42, "no") for entry in parsed.entries], api))


def test_a39_every_valid_quota_frame_gives_a_value() -> None:
    for parse, api, frame in requests():
        parse(frame, api)


@given(which=st.sampled_from(requests()), changes=edits)
def test_a39_a_damaged_quota_frame_gives_a_value_or_a_protocol_error(which: Any, changes: Any) -> None:
    parse, api, frame = which
    with suppress(ProtocolError):
        parse(edited(frame, changes), api)
