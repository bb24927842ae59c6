"""DescribeConfigs on a connection: brokers' addresses are reported as null (hazard E19)."""

from typing import Any

import pytest

from quotas.usage_record import SCOPE_SETTING
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import UPSTREAM_HOST
from testkit.golden import golden

BROKER, TOPIC = 4, 2
INSIDE = f"PLAINTEXT://{UPSTREAM_HOST}:9092"


def told(version: int, resource_type: int, **values: str | None) -> tuple[dict[str, Any], bytes]:
    """What the client is answered about these settings, and the reply's bytes."""
    configs: list[dict[str, Any]] = [
        {"name": name.replace("_", "."), "value": value, "synonyms": [], "config_source": 1}
        for name, value in values.items()
    ]
    result = {"error_code": 0, "resource_type": resource_type, "resource_name": "1", "configs": configs}
    asked = [{"resource_type": resource_type, "resource_name": "1", "configuration_keys": None}]
    c = Conversation().client_sends(wire.request("DescribeConfigs", version, resources=asked))
    c.upstream_answers(wire.response("DescribeConfigs", version, results=[result]))
    raw = c.take_client()
    (read,) = wire.decode_response("DescribeConfigs", version, raw).results
    return {config.name: config.value for config in read.configs}, raw


@pytest.mark.parametrize("version", range(5))
def test_e19_addresses_of_a_broker_are_null_in_every_version(version: int) -> None:
    settings, raw = told(version, BROKER, listeners=INSIDE, advertised_listeners=INSIDE, num_partitions="3")
    assert settings == {"listeners": None, "advertised.listeners": None, "num.partitions": "3"}
    assert UPSTREAM_HOST.encode() not in raw


def test_e19_any_other_setting_that_holds_a_brokers_address_is_null_too() -> None:
    settings, _ = told(4, BROKER, some_bridge=f"to {UPSTREAM_HOST}:9092 and on", log_dir="/var/lib/kafka")
    assert settings == {"some.bridge": None, "log.dir": "/var/lib/kafka"}


@pytest.mark.parametrize("version", range(5))
def test_the_scope_of_quotas_is_answered_to_who_asks_for_it_by_name(version: int) -> None:
    result = {"error_code": 0, "resource_type": BROKER, "resource_name": "1", "configs": []}

    def answered(names: list[str] | None, **refused: int) -> dict[str, str | None]:
        c = Conversation()
        c.core.context.scope = "fleet"
        asked = [{"resource_type": BROKER, "resource_name": "1", "configuration_keys": names}]
        c.client_sends(wire.request("DescribeConfigs", version, resources=asked))
        c.upstream_answers(wire.response("DescribeConfigs", version, results=[result | refused]))
        (read,) = wire.decode_response("DescribeConfigs", version, c.take_client()).results
        return {config.name: config.value for config in read.configs}

    assert answered(["listeners", SCOPE_SETTING]) == {SCOPE_SETTING: "fleet"}
    # Tools that list all settings see those of Kafka alone, and who may not read them nothing.
    assert answered(["listeners"]) == answered(None) == {}
    assert answered([SCOPE_SETTING], error_code=31) == {}


def test_settings_of_topics_are_the_clients_own() -> None:
    settings, _ = told(4, TOPIC, listeners="a topic may have a setting of this name")
    assert settings["listeners"] == "a topic may have a setting of this name"


@pytest.mark.parametrize("version", range(1, 5))
def test_e19_what_a_real_broker_tells_of_itself_holds_no_address(version: int) -> None:
    c = Conversation().client_sends(golden("describe_configs", version, "request"))
    c.upstream_answers(golden("describe_configs", version))
    assert b"127.77.0.1" in golden("describe_configs", version)
    assert b"127.77.0.1" not in c.take_client()
