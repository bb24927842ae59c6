"""IncrementalAlterConfigs: taken apart, put together again in part, answered."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import Api, ApiKey, describe
from protocol.broker_configs import (
    BROKER,
    ResourceOps,
    ResourceResult,
    encode_configs_answer,
    parse_configs_request,
    read_configs_answer,
)
from protocol.errors import ProtocolError, TooManyElements
from protocol.primitives import MAX_ELEMENTS
from testkit import wire
from tests.fuzz.test_protocol_junk import edited, edits

NAME = "IncrementalAlterConfigs"
each_version = pytest.mark.parametrize("version", [0, 1])
RESOURCES: list[dict[str, Any]] = [
    {
        "resource_type": 4,
        "resource_name": "1",
        "configs": [
            {"name": "max.connections", "config_operation": 0, "value": "5"},
            {"name": "log.retention.ms", "config_operation": 1, "value": None},
        ],
    },
    {"resource_type": 2, "resource_name": "gr\u00fc\u00df", "configs": []},
]


def api(version: int) -> Api:
    return describe(ApiKey.INCREMENTAL_ALTER_CONFIGS, version)


def request(version: int, resources: Any = None, *, validate_only: bool = False) -> bytes:
    return wire.request(NAME, version, resources=resources or RESOURCES, validate_only=validate_only)


@each_version
def test_a_request_and_any_part_of_it_is_read_and_put_together_again(version: int) -> None:
    frame = request(version)
    parsed = parse_configs_request(frame, api(version))
    first, second = parsed.resources
    assert [(op.name, op.operation, op.value) for op in first.ops] == [
        ("max.connections", 0, "5"),
        ("log.retention.ms", 1, None),
    ]
    assert (first.resource_type, first.name, second.name, second.ops) == (BROKER, "1", "gr\u00fc\u00df", ())
    assert parsed.encode(parsed.resources, validate_only=False) == frame
    assert parsed.encode(parsed.resources, validate_only=True) == request(version, validate_only=True)
    parsed = parse_configs_request(request(version), api(version))
    part = ResourceOps(BROKER, "1", parsed.resources[0].ops[1:])
    body = wire.decode_request(NAME, version, parsed.encode([part], validate_only=False))
    (resource,) = body.resources
    assert [config.name for config in resource.configs] == ["log.retention.ms"]


@each_version
def test_an_answer_is_what_kafka_python_reads_and_we_too(version: int) -> None:
    results = [ResourceResult(4, "1", 42, "why"), ResourceResult(2, "t")]
    frame = encode_configs_answer(9, results, api(version), throttle_time_ms=7)
    body = wire.decode_response(NAME, version, frame)
    assert body.throttle_time_ms == 7
    assert [
        (each.error_code, each.error_message, each.resource_type, each.resource_name) for each in body.responses
    ] == [(42, "why", 4, "1"), (0, None, 2, "t")]
    assert read_configs_answer(frame, api(version)) == (7, results)


def test_a_request_of_too_many_settings_is_refused() -> None:
    config = {"name": "a", "config_operation": 0, "value": "b"}
    half = {"resource_type": 4, "resource_name": "", "configs": [config] * (MAX_ELEMENTS // 2 + 1)}
    with pytest.raises(TooManyElements):
        parse_configs_request(request(0, [half, half]), api(0))


@given(version=st.sampled_from([0, 1]), changes=edits)
def test_a39_a_damaged_request_or_answer_gives_a_value_or_protocol_error(version: int, changes: Any) -> None:
    with suppress(ProtocolError):
        parsed = parse_configs_request(edited(request(version), changes), api(version))
        parsed.encode(parsed.resources, validate_only=True)
    answer = encode_configs_answer(9, [ResourceResult(4, "1", 42, "why")], api(version))
    with suppress(ProtocolError):
        read_configs_answer(edited(answer, changes), api(version))
