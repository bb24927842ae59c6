"""DescribeConfigs: broker settings without the cluster's addresses, and settings of the gateway's own among them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from protocol.api_keys import Api, ApiKey, describe
from protocol.describe_configs import (
    ADDRESS_CONFIGS,
    MOST_ASKED,
    ShownConfig,
    asked_broker_configs,
    edit_broker_configs,
)
from protocol.errors import ProtocolError, TooManyElements
from protocol.steps import STEP_ELEMENTS, finish
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

UPSTREAM_HOSTS = ("127.77.0.1",)
BROKER, BROKER_LOGGER, TOPIC = 4, 8, 2


def mask_addresses(frame: bytes, api: Api, hosts: Iterable[str]) -> bytes:
    return finish(edit_broker_configs(frame, api, hosts))


def masked(
    version: int, results: list[dict[str, Any]], hosts: tuple[str, ...] = UPSTREAM_HOSTS
) -> tuple[bytes, bytes]:
    """(as the broker sent it, as the client gets it)."""
    frame = wire.response("DescribeConfigs", version, correlation_id=-77, results=results)
    return frame, mask_addresses(frame, describe(ApiKey.DESCRIBE_CONFIGS, version), hosts)


def results_of(
    version: int, *configs: tuple[str, str | None, str | None], kind: int = BROKER
) -> list[dict[str, Any]]:
    """One resource with (name, value, value of its one synonym)."""
    rows: list[dict[str, Any]] = []
    for name, value, synonym in configs:
        row: dict[str, Any] = {"name": name, "value": value, "read_only": True, "is_sensitive": False}
        if version >= 1:
            row |= {"config_source": 4, "synonyms": [{"name": name, "value": synonym, "source": 4}]}
        if version >= 3:
            row |= {"config_type": 2, "documentation": f"about {name}"}
        rows.append(row)
    return [{"error_code": 0, "error_message": "", "resource_type": kind, "resource_name": "1", "configs": rows}]


@every_case("version", range(5))
@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
def test_e19_addresses_become_null_and_nothing_else_changes(version: int, kind: int) -> None:
    address = "PLAINTEXT://10.0.0.1:9092"
    before = [("num.partitions", "1", "2")]
    after = [("num.partitions", "1", "2")]
    for name in [*sorted(ADDRESS_CONFIGS), "listener.name.external.advertised.listeners"]:
        before.append((name, address, address))
        after.append((name, None, None))  # type: ignore[arg-type]
    _, seen = masked(version, results_of(version, *before, kind=kind))
    expected, _ = masked(version, results_of(version, *after, kind=kind))
    assert seen == expected
    assert wire.correlation_id_of(seen) == -77


@every_case("version", range(5))
def test_e19_any_setting_that_holds_a_brokers_host_becomes_null(version: int) -> None:
    _, seen = masked(version, results_of(version, ("odd.setting", "at 127.77.0.1", None), ("a", "b", "127.77.0.1:1")))
    expected, _ = masked(version, results_of(version, ("odd.setting", None, None), ("a", "b", None)))
    assert seen == expected


@every_case("version", range(5))
def test_e19_answer_without_addresses_is_the_very_same_frame(version: int) -> None:
    rows = results_of(version, ("num.partitions", "1", "1"), ("listeners", None, None))
    frame, seen = masked(version, rows, hosts=("", *UPSTREAM_HOSTS))
    assert seen is frame


@pytest.mark.slow
@pytest.mark.parametrize("kind", [BROKER, TOPIC])
def test_a34_k05_megabytes_without_an_address_are_searched_in_steps_and_stay_as_they_are(kind: int) -> None:
    count = 10_000
    rows = results_of(3, *[("num.partitions", "1" * 200, "1" * 200)] * count, kind=kind)
    frame = wire.response("DescribeConfigs", 3, correlation_id=-77, results=rows)
    assert len(frame) > 4_000_000
    steps = edit_broker_configs(frame, describe(ApiKey.DESCRIBE_CONFIGS, 3), UPSTREAM_HOSTS)
    pauses = sum(1 for _ in steps)
    elements = 2 * count  # each with a synonym
    assert pauses >= elements // STEP_ELEMENTS
    assert mask_addresses(frame, describe(ApiKey.DESCRIBE_CONFIGS, 3), UPSTREAM_HOSTS) is frame


def test_e19_settings_of_topics_are_not_touched() -> None:
    frame, seen = masked(4, results_of(4, ("listeners", "127.77.0.1", None), kind=TOPIC))
    assert seen is frame


@every_case("version", range(1, 5))
def test_e19_no_address_is_left_in_a_recorded_answer(version: int) -> None:
    frame = golden("describe_configs", version)
    assert b"127.77.0.1" in frame
    for hosts in (UPSTREAM_HOSTS, ()):
        seen = mask_addresses(frame, describe(ApiKey.DESCRIBE_CONFIGS, version), hosts)
        assert b"127.77.0.1" not in seen
        (result,) = wire.decode_response("DescribeConfigs", version, seen).results
        assert {config.name for config in result.configs if config.value is not None} == {"num.partitions"}
        assert len(result.configs) == 4


@every_case("version", range(5))
def test_settings_of_our_own_replace_the_brokers(version: int) -> None:
    rows = results_of(version, ("max.connections", "9", "8"), ("num.partitions", "1", "2"))
    rows += results_of(version, ("max.connections", "9", "8"), kind=TOPIC)
    frame = wire.response("DescribeConfigs", version, results=rows)
    api = describe(ApiKey.DESCRIBE_CONFIGS, version)
    ours = {"max.connections": ShownConfig("5", 2, 3), "max.connections.per.ip": ShownConfig("6", 5, 3)}
    seen = finish(edit_broker_configs(frame, api, UPSTREAM_HOSTS, lambda _broker: ours, ours.keys()))
    broker, topic = wire.decode_response("DescribeConfigs", version, seen).results
    assert {config.name: config.value for config in broker.configs} == {
        "num.partitions": "1", "max.connections": "5", "max.connections.per.ip": "6",
    }  # fmt: skip
    assert [config.value for config in topic.configs] == ["9"]
    assert not broker.configs[-1].read_only
    if version >= 1:
        assert broker.configs[-1].config_source == 5
    else:
        assert broker.configs[-1].is_default


@every_case("version", range(5))
def test_a_request_tells_which_brokers_it_asks_for(version: int) -> None:
    def asked(*resources: tuple[int, str, list[str] | None]) -> Any:
        rows = [dict(zip(("resource_type", "resource_name", "configuration_keys"), each)) for each in resources]
        frame = wire.request("DescribeConfigs", version, resources=rows)
        return finish(asked_broker_configs(frame, describe(ApiKey.DESCRIBE_CONFIGS, version)))

    assert asked((TOPIC, "t", ["a", "b"]), (TOPIC, "u", None)) is None
    assert asked((TOPIC, "t", ["a"]), (BROKER, "1", ["a", "b"]), (BROKER, "2", None)) == {
        "1": {"a", "b"}, "2": None,
    }  # fmt: skip
    assert asked((BROKER_LOGGER, "1", None)) == {}


def test_k06_a_request_of_a_million_resources_is_refused_before_it_is_walked() -> None:
    api = describe(ApiKey.DESCRIBE_CONFIGS, 1)
    frame = wire.request("DescribeConfigs", 1, resources=[])
    many = frame[:-5] + (MOST_ASKED + 1).to_bytes(4, "big") + bytes(8) * MOST_ASKED
    with pytest.raises(TooManyElements):
        finish(asked_broker_configs(many, api))


@every_case(("resources", "keys"), [(10 * STEP_ELEMENTS, 0), (1, 10 * STEP_ELEMENTS), (50, STEP_ELEMENTS // 5 - 1)])
def test_k06_a_request_of_many_elements_is_walked_in_steps(resources: int, keys: int) -> None:
    names = [str(number) for number in range(keys)]
    rows = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": names}] * resources
    frame = wire.request("DescribeConfigs", 4, resources=rows)
    pauses = sum(1 for _ in asked_broker_configs(frame, describe(ApiKey.DESCRIBE_CONFIGS, 4)))
    assert 9 <= pauses <= 11


@every_case("version", [1, 4])
def test_a39_truncated_settings_are_never_a_foreign_exception(version: int) -> None:
    api = describe(ApiKey.DESCRIBE_CONFIGS, version)
    frame = golden("describe_configs", version)
    for end in range(len(frame) - 1):
        with suppress(ProtocolError):
            mask_addresses(frame[:end], api, UPSTREAM_HOSTS)
