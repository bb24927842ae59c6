"""DescribeClientQuotas and AlterClientQuotas on one connection: answers, their order, failures."""

from typing import Any

import pytest

from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from quotas.entities import QuotaEntity, QuotaKey, cut_name
from quotas.layered_quotas import Owner, QuotaChange
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.frames import heartbeat, heartbeat_reply, produce
from testkit.quota_frames import alter, answers, describe, entry, make_durable

RATE = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")
each_version = pytest.mark.parametrize("version", [0, 1])


@each_version
def test_an_alteration_is_answered_when_it_is_durable_and_in_force(version: int) -> None:
    c = Conversation()
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0), version=version)).client_sees()
    assert c.core.limits.get(ALICE, RATE) is None
    ((alteration, _),) = c.core.desk.waiting
    assert alteration.changes == (QuotaChange(ALICE, RATE, 5.0, Owner.API),)
    assert (alteration.by, alteration.via) == ("ANONYMOUS", "listener tests, 192.0.2.1:40000")
    make_durable(c)
    assert answers(c, version) == [(0, None)]
    assert c.core.limits.get(ALICE, RATE) == 5.0
    assert c.core.desk.audit.lines == [("changed", "ANONYMOUS", "user=alice", "producer_byte_rate", None, 5.0)]
    c.upstream_sees().reading()


@each_version
def test_what_was_set_is_listed(version: int) -> None:
    c = Conversation()
    c.core.limits.set(QuotaEntity(user="alice", client_id="app"), QuotaKey.REQUEST_PERCENTAGE, 2.5)
    c.client_sends(describe(("user", 0, "alice"), version=version)).upstream_sees()
    body = wire.decode_response("DescribeClientQuotas", version, c.take_client())
    assert (body.error_code, body.error_message) == (0, "")
    (found,) = body.entries
    assert [(part.entity_type, part.entity_name) for part in found.entity] == [
        ("client-id", "app"),
        ("user", "alice"),
    ]
    assert [(value.key, value.value) for value in found.values] == [("request_percentage", 2.5)]


@each_version
def test_a_topic_is_an_entity_that_clients_can_set_and_list(version: int) -> None:
    c = Conversation()
    names = {"topic": "orders", "user": "alice"}
    c.client_sends(alter(entry(names, producer_byte_rate=5.0), version=version))
    make_durable(c)
    assert answers(c, version) == [(0, None)]
    c.client_sends(describe(("topic", 0, "orders"), version=version))
    (found,) = wire.decode_response("DescribeClientQuotas", version, c.take_client()).entries
    assert {part.entity_type: part.entity_name for part in found.entity} == names
    c.client_sends(describe(("user", 0, "alice"), strict=True, version=version))
    assert wire.decode_response("DescribeClientQuotas", version, c.take_client()).entries == []
    c.client_sends(alter(entry({"topic": "orders"}, request_percentage=5.0), version=version))
    assert [code for code, _ in answers(c, version)] == [42]


@pytest.mark.parametrize(
    ("components", "code"),
    [([("user", 3, None)], 42), ([("other", 0, "x")], 35), ([("ip", 2, None), ("user", 2, None)], 42)],
)
def test_a_filter_without_sense_is_refused(components: Any, code: int) -> None:
    c = Conversation().client_sends(describe(*components))
    body = wire.decode_response("DescribeClientQuotas", 1, c.take_client())
    assert (body.error_code, body.entries) == (code, None)
    assert body.error_message


def test_a_long_list_is_put_together_in_steps_and_is_that_of_its_beginning() -> None:
    c = Conversation()
    names = {f"user-{at}" for at in range(2_500)}
    for name in names:
        c.core.limits.set(QuotaEntity(user=name), RATE, 5.0)
    c.hold_steps = True
    c.client_sends(describe(("user", 2, None)), heartbeat(9)).client_sees().upstream_sees().still_muted()
    c.step(lambda now_ms: c.session.take_step(now_ms=now_ms))
    c.core.limits.remove(QuotaEntity(user="user-0"), RATE)
    c.core.limits.set(QuotaEntity(user="new"), RATE, 5.0)
    steps = 0
    while c.session.steps:
        steps += 1
        c.step(lambda now_ms: c.session.take_step(now_ms=now_ms))
    assert steps > 10
    reply = c.take_client()
    found = wire.decode_response("DescribeClientQuotas", 1, reply).entries
    assert {part.entity_name for entry in found for part in entry.entity} == names
    c.upstream_sees(heartbeat(9))


def test_one_entity_named_in_full_is_answered_at_once_however_many_there_are() -> None:
    c = Conversation()
    for at in range(2_500):
        c.core.limits.set(QuotaEntity(user=f"user-{at}"), RATE, 5.0)
    c.hold_steps = True
    c.client_sends(describe(("user", 0, "user-7"), strict=True))
    (found,) = wire.decode_response("DescribeClientQuotas", 1, c.take_client()).entries
    assert [value.value for value in found.values] == [5.0]


def test_requests_behind_an_alteration_wait_for_it_and_replies_keep_their_order() -> None:
    c = Conversation()
    altering = alter(entry({"user": "alice"}, producer_byte_rate=5.0), correlation_id=2)
    c.client_sends(heartbeat(1), altering, heartbeat(3)).upstream_sees(heartbeat(1)).still_muted()
    make_durable(c)
    c.client_sees().upstream_sees(heartbeat(3))
    c.upstream_answers(heartbeat_reply(1))
    assert c.take_client().startswith(heartbeat_reply(1))
    c.upstream_answers(heartbeat_reply(3)).client_sees(heartbeat_reply(3))


def test_g02_a_store_that_fails_is_told_with_error_56_and_nothing_has_changed() -> None:
    c = Conversation()
    c.client_sends(
        alter(
            entry({"user": "alice"}, producer_byte_rate=5.0),
            entry({"user": "bob"}, bad=1.0),
            entry({"user": "carol"}, producer_byte_rate=None),
        )
    )
    make_durable(c, "no space left on device")
    assert answers(c) == [(56, "no space left on device"), (42, "Invalid configuration key bad"), (0, None)]
    assert list(c.core.limits.items()) == []
    assert c.core.desk.audit.lines == []
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    make_durable(c)
    assert answers(c) == [(0, None)]


def test_g06_what_seems_to_change_nothing_is_left_to_a_shared_store(monkeypatch: pytest.MonkeyPatch) -> None:
    c = Conversation()
    monkeypatch.setattr(c.core.desk.admin, "shared", True)
    c.core.desk.quotas.apply([QuotaChange(ALICE, RATE, 5.0)])
    same = alter(entry({"user": "alice"}, producer_byte_rate=5.0), entry({"user": "bob"}, producer_byte_rate=None))
    c.client_sends(same).client_sees()
    ((alteration, _),) = c.core.desk.waiting
    assert alteration.changes == (
        QuotaChange(ALICE, RATE, 5.0, Owner.API),
        QuotaChange(QuotaEntity(user="bob"), RATE, None),
    )
    make_durable(c)
    assert answers(c) == [(0, None), (0, None)]
    # As far as is known here nothing was changed; when it was, the store says.
    assert c.core.desk.audit.lines == []
    c.client_sends(same)
    make_durable(c, "no broker")
    assert answers(c) == [(56, "no broker"), (56, "no broker")]


def test_g08_validate_only_gives_the_same_answers_and_changes_nothing() -> None:
    entries = [
        entry({"user": "alice"}, producer_byte_rate=5.0),
        entry({"user": "bob"}, bad=1.0),
        entry({"user": "alice"}, producer_byte_rate=6.0),
    ]
    c = Conversation().client_sends(alter(*entries, validate_only=True))
    assert c.core.desk.waiting == []
    only_validated = answers(c)
    assert list(c.core.limits.items()) == []
    c.client_sends(alter(*entries))
    make_durable(c)
    assert answers(c) == only_validated
    assert only_validated == [
        (42, "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"),
        (42, "Invalid configuration key bad"),
    ]


def test_a_request_that_changes_nothing_is_answered_at_once() -> None:
    assert answers(Conversation().client_sends(alter())) == []


def test_g11_a_host_name_is_refused_and_not_looked_up() -> None:
    c = Conversation().client_sends(alter(entry({"ip": "localhost"}, connection_creation_rate=5.0)))
    assert answers(c) == [(42, "localhost is a host name, which is not looked up here; give its address.")]
    c.upstream_sees()


@pytest.mark.parametrize("name", ["<default>", "100%", "gr\u00fc\u00df \U0001f600", "x" * 256, ' "quoted", \\'])
def test_g17_odd_names_are_stored_and_returned_unchanged(name: str) -> None:
    c = Conversation()
    c.client_sends(alter(entry({"user": name, "client-id": name}, producer_byte_rate=5.0)))
    make_durable(c)
    assert answers(c) == [(0, None)]
    c.client_sends(describe(("user", 0, name), ("client-id", 0, name), strict=True))
    (found,) = wire.decode_response("DescribeClientQuotas", 1, c.take_client()).entries
    assert {part.entity_name for part in found.entity} == {name}


def test_k07_a_long_client_id_is_known_by_its_beginning_and_a_digest_wherever_it_is_named() -> None:
    c, name = Conversation(), "x" * 10_240
    c.client_sends(alter(entry({"client-id": name}, producer_byte_rate=100.0)))
    make_durable(c)
    c.client_sends(describe(("client-id", 0, name), strict=True))
    _, answered = frames_of(c.take_client())
    (found,) = wire.decode_response("DescribeClientQuotas", 1, answered).entries
    (part,) = found.entity
    assert part.entity_name == cut_name(name)
    assert len(cut_name(name)) == 256
    # The client of that id is counted by it.
    c.client_sends(produce(7, size=2_000, client_id=name)).still_muted()


# -- the end of connections ----------------------------------------------------------------------------------
def test_g16_an_alteration_under_way_outlives_its_client_and_a_drain_and_is_no_idleness() -> None:
    c = Conversation().client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    c.session.close(CloseCause.CLIENT_CLOSED)
    make_durable(c)
    assert c.core.limits.get(ALICE, RATE) == 5.0
    assert c.core.desk.audit.lines[0][0] == "changed"
    c = Conversation().client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    c.session.drain()
    assert not c.session.drained
    make_durable(c)
    assert c.session.drained
    assert answers(c) == [(0, None)]
    c = Conversation().client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)))
    c.at(3_600_000).alive().still_muted()


# -- the request quota ---------------------------------------------------------------------------------------
def test_answers_of_the_gateway_carry_the_request_quotas_throttle_time() -> None:
    c = Conversation(request_percentage=1.0)
    for request, name in (
        (describe(), "DescribeClientQuotas"),
        (alter(entry({"user": "alice"}, producer_byte_rate=5.0)), "AlterClientQuotas"),
    ):
        c.client_sends(request)
        assert c.session.meter is not None
        c.session.meter.busy_ns += 300_000_000
        if name == "DescribeClientQuotas":
            c.take_client()
            c.client_sends(request)
        else:
            make_durable(c)
        body = wire.decode_response(name, 1, c.take_client())
        assert body.throttle_time_ms == 1_000
        assert c.session.muted & MuteReason.THROTTLED
        c.after(20_000).reading()
