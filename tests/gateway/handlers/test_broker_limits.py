"""Altering and describing configs of brokers: connection limits are the gateway's, the rest is the broker's."""

from typing import Any

import pytest

from config.sections.quota_admin import Authorize
from testkit import wire
from testkit.broker_limits import ScriptedLimits
from testkit.conversation import Conversation
from testkit.frames import heartbeat

ALTER, DESCRIBE = "IncrementalAlterConfigs", "DescribeConfigs"
RATE, PER_IP = "max.connection.creation.rate", "max.connections.per.ip"
RETENTION = ("log.retention.ms", 0, "5")
each_version = pytest.mark.parametrize("version", [0, 1])


def resource(name: str, *ops: tuple[str, int, str | None], kind: int = 4) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in ops]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def alter(*resources: dict[str, Any], version: int = 1, validate_only: bool = False) -> bytes:
    return wire.request(ALTER, version, correlation_id=5, resources=list(resources), validate_only=validate_only)


def broker_says(c: Conversation, *results: tuple[str, int], version: int = 1) -> Conversation:
    """The broker's answer, each resource with a code."""
    rows = [
        {"error_code": code, "error_message": "broker's" if code else None, "resource_type": 4, "resource_name": name}
        for name, code in results
    ]
    return c.upstream_answers(wire.response(ALTER, version, correlation_id=5, throttle_time_ms=3, responses=rows))


def answers(c: Conversation, version: int = 1) -> list[tuple[str, int, str | None]]:
    body = wire.decode_response(ALTER, version, c.take_client())
    return [(each.resource_name, each.error_code, each.error_message) for each in body.responses]


def asked(c: Conversation, version: int = 1) -> list[tuple[str, list[str]]]:
    """What the broker is asked for: resource, settings."""
    body = wire.decode_request(ALTER, version, c.take_upstream())
    return [(each.resource_name, [config.name for config in each.configs]) for each in body.resources]


def started(**settings: Any) -> tuple[Conversation, ScriptedLimits]:
    board = ScriptedLimits()
    return Conversation(board=board, **settings), board


def finish(c: Conversation, *, now_ms: int, failure: str | None = None) -> None:
    """The change is durable and in force, or is not made."""
    asked_for = c.core.desk.finish(now_ms=now_ms, failure=failure)
    assert (asked_for.by, asked_for.via.partition(",")[0]) == ("ANONYMOUS", "listener tests")


@each_version
def test_a_limit_is_set_here_and_answered_when_it_is_kept(version: int) -> None:
    c, board = started()
    c.client_sends(alter(resource("1", (RATE, 0, "7")), version=version)).client_sees().upstream_sees()
    c.step(lambda now_ms: finish(c, now_ms=now_ms))
    assert answers(c, version) == [("1", 0, None)]
    assert board.in_force.max_connection_creation_rate == 7
    assert c.core.desk.audit.lines == [("changed", "ANONYMOUS", "brokers", RATE, None, "7")]


@each_version
def test_settings_of_both_kinds_are_split_and_answered_together(version: int) -> None:
    c, board = started()
    c.client_sends(
        alter(
            resource("1", (RATE, 0, "7"), RETENTION),
            resource("topic", RETENTION, kind=2),
            resource("", (PER_IP, 0, "9")),
            version=version,
        ),
        heartbeat(6),
    )
    assert asked(c, version) == [("1", ["log.retention.ms"]), ("topic", ["log.retention.ms"])]
    rows = [
        {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "topic"},
        {"error_code": 0, "error_message": None, "resource_type": 4, "resource_name": "1"},
    ]
    c.upstream_answers(wire.response(ALTER, version, correlation_id=5, responses=rows)).client_sees()
    assert board.limits.values == {}
    c.step(lambda now_ms: finish(c, now_ms=now_ms))
    assert answers(c, version) == [("1", 0, None), ("topic", 0, None), ("", 0, None)]
    assert board.limits.values == {RATE: "7", PER_IP: "9"}
    c.upstream_sees(heartbeat(6))


def test_what_is_refused_or_only_validated_changes_nothing() -> None:
    c, board = started()
    c.client_sends(alter(resource("1", (RATE, 0, "7"), RETENTION), resource("2", (PER_IP, 0, "9"))))
    broker_says(c, ("1", 42))
    c.step(lambda now_ms: finish(c, now_ms=now_ms))
    assert answers(c) == [("1", 42, "broker's"), ("2", 0, None)]
    assert board.limits.values == {PER_IP: "9"}
    c, _ = started()
    c.client_sends(alter(resource("1", (RATE, 0, "7")), validate_only=True))
    assert answers(c) == [("1", 0, None)]
    c.client_sends(alter(resource("1", (RATE, 0, "0")), validate_only=True))
    ((_, code, _),) = answers(c)
    assert code == 42
    assert c.core.desk.waiting == []
    c, board = started()
    c.client_sends(alter(resource("1", (RATE, 0, "7"))))
    c.step(lambda now_ms: finish(c, now_ms=now_ms, failure="no space"))
    assert answers(c) == [("1", 56, "no space")]
    assert board.limits.values == {}


def test_requests_that_are_wrong_here_are_not_sent_on_and_others_pass_where_limits_are_the_brokers() -> None:
    c, _ = started()
    c.client_sends(alter(resource("1", (RATE, 0, "x"), RETENTION), resource("2", RETENTION)))
    assert asked(c) == [("2", ["log.retention.ms"])]
    broker_says(c, ("2", 0))
    assert answers(c) == [
        ("1", 42, f"Invalid value x for configuration {RATE}: Not a number of type INT"),
        ("2", 0, None),
    ]
    assert c.core.desk.waiting == []
    request = alter(resource("1", (RATE, 0, "7")))
    Conversation(authorize=Authorize.DENY).client_sends(request).upstream_sees(request)


def test_without_a_right_nothing_of_ours_is_changed() -> None:
    c, _ = started(authorize=Authorize.DENY)
    c.client_sends(alter(resource("1", (RATE, 0, "7"), RETENTION), resource("2", RETENTION)))
    assert asked(c) == [("2", ["log.retention.ms"])]
    broker_says(c, ("2", 0))
    assert answers(c) == [("1", 31, "Cluster authorization failed."), ("2", 0, None)]
    assert c.core.desk.audit.lines == [("refused", "ANONYMOUS", "broker 1", RATE, None, "7")]
    assert c.core.desk.waiting == []
    c, _ = started(authorize=Authorize.ASK_CLUSTER)
    c.client_sends(alter(resource("1", (RATE, 0, "7"))))
    c.take_upstream()
    broker_says(c)
    assert answers(c) == [("1", 31, "Cluster authorization failed.")]
    assert c.core.desk.waiting == []


@pytest.mark.parametrize(("code", "may"), [(0, True), (42, False), (40, False), (31, False), (7, False)])
def test_the_cluster_is_asked_for_the_right_alone_and_only_yes_is_a_yes(code: int, may: bool) -> None:
    c, _ = started(authorize=Authorize.ASK_CLUSTER)
    c.client_sends(alter(resource("1", (RATE, 0, "7")), resource("2", RETENTION)))
    question = wire.decode_request(ALTER, 1, c.take_upstream())
    assert question.validate_only is True
    # Nothing of the client's own: a broker that finds fault with that says so before it asks who it is.
    assert [(each.resource_type, each.resource_name, list(each.configs)) for each in question.resources] == [
        (4, "", [])
    ]
    broker_says(c, ("", code))
    assert asked(c) == [("2", ["log.retention.ms"])]
    broker_says(c, ("2", 0))
    assert len(c.core.desk.waiting) == may
    if may:
        c.step(lambda now_ms: finish(c, now_ms=now_ms))
    assert answers(c) == [("1", 0, None) if may else ("1", code, "broker's"), ("2", 0, None)]


@pytest.mark.parametrize(
    "other",
    [
        resource("1", RETENTION),
        resource("topic", (RATE, 0, "7"), kind=2),
        resource("1", (f"listener.name.other.{RATE}", 0, "7")),
    ],
)
def test_requests_without_a_setting_of_ours_pass_as_they_are(other: dict[str, Any]) -> None:
    c, _ = started(authorize=Authorize.DENY)
    c.client_sends(alter(other)).upstream_sees(alter(other))


# -- sending -------------------------------------------------------------------------------------------------
def told(c: Conversation, version: int, name: str, keys: list[str] | None) -> dict[str, tuple[str | None, int]]:
    """What the client is answered about a broker that has limits of its own: value and source."""
    wanted = {"resource_type": 4, "resource_name": name, "configuration_keys": keys}
    c.client_sends(wire.request(DESCRIBE, version, resources=[wanted]))
    config = {"value": "1", "config_source": 4, "synonyms": []}
    configs = [{**config, "name": each} for each in (RATE, "num.io.threads")]
    result = {"error_code": 0, "resource_type": 4, "resource_name": name, "configs": configs}
    c.upstream_answers(wire.response(DESCRIBE, version, results=[result]))
    (read,) = wire.decode_response(DESCRIBE, version, c.take_client()).results
    return {each.name: (each.value, getattr(each, "config_source", 0)) for each in read.configs}


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_brokers_limits_are_told_as_the_gateways(version: int) -> None:
    c, board = started()
    board.limits.put_in_force({RATE: "7"})
    found = told(c, version, "1", None)
    assert found[RATE] == ("7", 2)
    assert found[PER_IP] == ("50", 4)
    assert found["num.io.threads"] == ("1", 4)
    assert told(c, version, "1", [RATE, "num.io.threads"]).keys() == {RATE, "num.io.threads"}
    assert told(c, version, "", None) == {RATE: ("7", 3), "num.io.threads": ("1", 4)}


def test_the_oldest_layout_tells_the_same_values() -> None:
    c, board = started()
    board.limits.put_in_force({RATE: "7"})
    found = told(c, 0, "1", None)
    assert (found[RATE][0], found[PER_IP][0], found["num.io.threads"][0]) == ("7", "50", "1")


def test_a_broker_that_tells_nothing_is_not_spoken_for() -> None:
    c, _ = started()
    c.client_sends(
        wire.request(DESCRIBE, 4, resources=[{"resource_type": 4, "resource_name": "1", "configuration_keys": None}])
    )
    result = {"error_code": 31, "error_message": "no", "resource_type": 4, "resource_name": "1", "configs": []}
    c.upstream_answers(wire.response(DESCRIBE, 4, results=[result]))
    (read,) = wire.decode_response(DESCRIBE, 4, c.take_client()).results
    assert (read.error_code, list(read.configs)) == (31, [])
