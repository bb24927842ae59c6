"""Kafka's dynamic connection limits as limits of the gateway: which are taken, and what they come to."""

import pytest

from gateway.quota_admin.broker_limits import (
    CREATION_RATE,
    MAX_CONNECTIONS,
    PER_IP,
    PER_IP_OVERRIDES,
    LimitError,
    Values,
)
from protocol.broker_configs import ConfigOp
from protocol.error_codes import ErrorCode
from testkit.broker_limits import TEXT, ScriptedLimits

OF_LISTENER = f"listener.name.clients.{CREATION_RATE}"


def op(key: str, value: str | None, operation: int = 0) -> ConfigOp:
    return ConfigOp(key, operation, value, b"")


def set_to(board: ScriptedLimits, **values: str) -> None:
    board.limits.put_in_force({key.replace("_", "."): value for key, value in values.items()})


NO_INT = "Invalid value {} for configuration {key}: Not a number of type INT"
CONFIG_ERROR = (
    "Invalid value org.apache.kafka.common.config.ConfigException: Invalid "
    f"{CREATION_RATE} 0 for configuration Invalid dynamic configuration"
)
NOT_READ = "Error parsing configuration property '{key}': "


@pytest.mark.parametrize(("key", "value", "text"), [
    *((CREATION_RATE, value, NO_INT.replace("{}", value)) for value in ("abc", "2147483648", "1.5", "")),
    (CREATION_RATE, "9" * 5_000, NO_INT.replace("{}", "9" * 5_000)),  # more digits than Python reads
    (PER_IP_OVERRIDES, "," * 32_768, "{key} has 32768 characters, at most 32767"),
    (CREATION_RATE, "-1", "Invalid value -1 for configuration {key}: Value must be at least 0"),
    (CREATION_RATE, None, "Null value not supported for : {key}"),
    (CREATION_RATE, "0", CONFIG_ERROR), (OF_LISTENER, "0", CONFIG_ERROR),
    (PER_IP, "0", "requirement failed: max.connections.per.ip can be set to zero only if "
                  "max.connections.per.ip.overrides property is set."),
    (PER_IP_OVERRIDES, "a.host:5", NOT_READ + "a.host:5 is not ADDRESS:NUMBER"),
    (PER_IP_OVERRIDES, "10.0.0.1:x", NOT_READ + "10.0.0.1:x is not ADDRESS:NUMBER"),
    (PER_IP_OVERRIDES, "10.0.0.1:1_0", NOT_READ + "10.0.0.1:1_0 is not ADDRESS:NUMBER"),
    (PER_IP_OVERRIDES, "10.0.0.1:-1", NOT_READ + "10.0.0.1:-1"),
])  # fmt: skip
def test_values_that_kafka_refuses_are_refused_in_its_words(key: str, value: str | None, text: str) -> None:
    with pytest.raises(LimitError) as refused:
        ScriptedLimits().limits.planned("1", [op(key, value)], after={})
    assert (refused.value.code, str(refused.value)) == (42, text.replace("{key}", key))


@pytest.mark.parametrize(("operation", "code", "text"), [
    (2, ErrorCode.INVALID_CONFIG, f"Config value append is not allowed for config key: {CREATION_RATE}"),
    (3, ErrorCode.INVALID_CONFIG, f"Config value subtract is not allowed for config key: {CREATION_RATE}", ),
    (9, ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
])  # fmt: skip
def test_a_number_can_only_be_set_and_removed(operation: int, code: ErrorCode, text: str) -> None:
    with pytest.raises(LimitError) as refused:
        ScriptedLimits().limits.planned("", [op(CREATION_RATE, "5", operation)], after={})
    assert (refused.value.code, str(refused.value)) == (code, text)


def test_what_no_broker_takes_is_refused() -> None:
    limits = ScriptedLimits().limits
    with pytest.raises(LimitError, match="Error due to duplicate config keys"):
        limits.planned("1", [op(CREATION_RATE, "5"), op(CREATION_RATE, "6")], after={})
    with pytest.raises(LimitError, match="Node id must be an integer, but it is: x"):
        limits.planned("x", [op(CREATION_RATE, "5")], after={})
    with pytest.raises(LimitError, match="file descriptors"):
        ScriptedLimits().limits.planned("1", [op(MAX_CONNECTIONS, "100000")], after={})


def test_what_is_set_wins_over_the_file_and_the_largest_number_is_no_limit() -> None:
    board = ScriptedLimits()
    assert board.in_force.max_connections_per_ip == 50
    set_to(board, max_connections_per_ip="7", max_connection_creation_rate="9")
    assert board.in_force.max_connections_per_ip == 7
    assert board.in_force.max_connection_creation_rate == 9
    set_to(board)
    assert board.in_force.max_connections_per_ip == 50
    assert board.in_force.max_connection_creation_rate is None
    board = ScriptedLimits()
    set_to(board, max_connections_per_ip="2147483647")
    assert board.in_force.max_connections_per_ip is None


def test_a_listener_is_named_in_lower_case_and_only_ours_are() -> None:
    board = ScriptedLimits()
    assert OF_LISTENER in board.limits.keys
    assert f"listener.name.other.{CREATION_RATE}" not in board.limits.keys
    assert f"listener.name.clients.{PER_IP}" not in board.limits.keys
    board.limits.put_in_force({OF_LISTENER: "3"})
    assert board.in_force.listeners["Clients"].max_connection_creation_rate == 3
    assert board.in_force.max_connection_creation_rate is None


def test_changes_of_one_request_add_up_also_to_letting_in_only_the_overrides() -> None:
    board = ScriptedLimits()
    set_to(board, max_connections="20")
    changes = board.limits.planned("", [op(CREATION_RATE, " 5 ")], after={})
    changes = board.limits.planned("1", [op(MAX_CONNECTIONS, None, 1)], after=changes)
    assert changes == {CREATION_RATE: "5", MAX_CONNECTIONS: None}
    assert board.limits.merged(changes) == {CREATION_RATE: "5"}
    board = ScriptedLimits()
    both: Values = board.limits.merged(
        board.limits.planned("1", [op(PER_IP_OVERRIDES, "10.0.0.1:5,[::1]:6"), op(PER_IP, "0")], after={})
    )
    board.limits.put_in_force(both)
    assert board.in_force.max_connections_per_ip == 0
    assert board.in_force.max_connections_per_ip_overrides == {"10.0.0.1": 5, "::1": 6}


def test_overrides_without_which_no_address_could_connect_can_not_be_removed() -> None:
    board = ScriptedLimits()
    set_to(board, max_connections_per_ip="0", max_connections_per_ip_overrides="10.0.0.1:5")
    for removal in (op(PER_IP_OVERRIDES, None, 1), op(PER_IP_OVERRIDES, "")):
        with pytest.raises(LimitError, match="can be set to zero only if"):
            board.limits.planned("1", [removal], after={})
    in_file = ScriptedLimits(f'{TEXT}max_connections_per_ip_overrides = {{ "10.0.0.2" = 5 }}\n')
    in_file.limits.put_in_force(board.limits.values)
    changes = in_file.limits.planned("1", [op(PER_IP_OVERRIDES, None, 1)], after={})
    assert in_file.limits.merged(changes) == {PER_IP: "0"}


def test_a_broker_is_told_with_everything_and_all_brokers_with_what_was_set() -> None:
    board = ScriptedLimits()
    assert board.limits.shown("") == {}
    told = {key: (each.value, each.source) for key, each in board.limits.shown("1").items()}
    assert told[PER_IP] == ("50", 4)
    assert told[CREATION_RATE] == ("2147483647", 5)
    assert told[PER_IP_OVERRIDES] == ("", 5)
    assert told[MAX_CONNECTIONS][0] == str(board.in_force.max_connections)
    set_to(board, max_connections_per_ip="7")
    assert {key: (each.value, each.source) for key, each in board.limits.shown("").items()} == {PER_IP: ("7", 3)}
    assert board.limits.shown("2")[PER_IP].source == 2
