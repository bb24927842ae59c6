"""Hazards C18, G06, G08, G10, G13 of the quota API: hostile and hasty admins, on a clock."""

from typing import Any

import pytest

from config.sections.quota_admin import Authorize
from gateway.observability.events import CloseCause
from protocol.client_quota_messages import MAX_ENTRIES
from quotas.entities import QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.frames import create_topics, heartbeat, produce, produce_reply
from testkit.quota_frames import alter, answers, describe, entry, make_durable

RATE = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")


def test_g06_of_two_admins_the_one_whose_change_is_durable_last_has_the_say() -> None:
    one = Conversation()
    other = one.another()
    one.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0, consumer_byte_rate=1.0)))
    other.client_sends(
        alter(entry({"user": "alice"}, producer_byte_rate=6.0), entry({"user": "bob"}, producer_byte_rate=7.0))
    )
    for c in (one, other):
        make_durable(c)
        assert {code for code, _ in answers(c)} == {0}
    assert {(str(entity), str(key)): value for entity, key, value in one.core.limits.items()} == {
        ("user=alice", "producer_byte_rate"): 6.0,
        ("user=alice", "consumer_byte_rate"): 1.0,
        ("user=bob", "producer_byte_rate"): 7.0,
    }


def test_g06_alterations_sent_ahead_on_one_connection_are_made_one_after_the_other() -> None:
    c = Conversation()
    frames = [alter(entry({"user": "alice"}, producer_byte_rate=float(at)), correlation_id=at) for at in range(1, 51)]
    c.client_sends(*frames)
    for _ in frames:
        assert len(c.core.desk.waiting) == 1
        make_durable(c)
    assert c.core.limits.get(ALICE, RATE) == 50.0
    reply = wire.response(
        "AlterClientQuotas", 1, entries=[{"entity": [{"entity_type": "user", "entity_name": "alice"}]}]
    )
    assert len(c.take_client()) == len(reply) * 50


def test_g10_requests_too_long_or_not_allowed_change_nothing() -> None:
    c = Conversation().client_sends(alter(*[entry({"user": "u"}, producer_byte_rate=5.0)] * (MAX_ENTRIES + 1)))
    c.closed(CloseCause.TOO_MANY_ELEMENTS)
    assert c.core.desk.waiting == []
    c = Conversation(authorize=Authorize.DENY).client_sends(describe(("user", 2, None)))
    assert wire.decode_response("DescribeClientQuotas", 1, c.take_client()).error_code == 31


@pytest.mark.parametrize("cut", [20, 40])
def test_g10_a_request_cut_short_ends_the_connection(cut: int) -> None:
    frame = alter(entry({"user": "alice"}, producer_byte_rate=5.0))
    c = Conversation().client_sends(wire.framed(frame[4:cut]))
    c.closed(CloseCause.MALFORMED_FRAME)


def test_g13_without_the_brokers_yes_nothing_changes() -> None:
    c = Conversation(authorize=Authorize.ASK_CLUSTER)
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0)), heartbeat(2))
    assert c.take_upstream()
    c.at(3_600_000).alive().still_muted().client_sees().upstream_sees()
    assert c.core.desk.waiting == []
    c = Conversation(authorize=Authorize.ASK_CLUSTER)
    c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0), correlation_id=9))
    c.upstream_answers(wire.response("AlterClientQuotas", 1, correlation_id=8, entries=[]))
    c.closed(CloseCause.UPSTREAM_DESYNC)
    assert c.core.desk.waiting == []


def test_g13_rights_do_not_outlive_the_request_they_were_asked_for() -> None:
    c = Conversation(authorize=Authorize.ASK_CLUSTER)
    for code in (0, 31):
        c.client_sends(alter(entry({"user": "alice"}, producer_byte_rate=5.0 + code), correlation_id=9))
        c.take_upstream()
        row: dict[str, Any] = {"error_code": code, "error_message": None, "entity": []}
        c.upstream_answers(wire.response("AlterClientQuotas", 1, correlation_id=9, entries=[row]))
        if code == 0:
            make_durable(c)
        assert [told for told, _ in answers(c)] == [code]
    assert c.core.limits.get(ALICE, RATE) == 5.0


def admin_sets(admin: Conversation, value: float | None, key: QuotaKey) -> None:
    """The quota of anyone who did not authenticate."""
    admin.client_sends(alter(entry({"user": "ANONYMOUS"}, **{key.value: value})))
    make_durable(admin)
    assert answers(admin) == [(0, None)]


def test_c18_mute_and_debt_outlive_the_quota_that_made_them() -> None:
    c = Conversation()
    admin = c.another()
    admin_sets(admin, 1_000.0, RATE)
    for size in (5_000, 25_000):
        c.client_sends(produce(1, size=size)).upstream_answers(produce_reply(1))
    told_ms = wire.decode_response("Produce", 9, c.take_client()[-len(produce_reply(1)) :]).throttle_time_ms
    assert told_ms > 5_000
    for value in (1.0, 1e9, None):
        admin_sets(admin, value, RATE)
        c.still_muted()
    c.muted_until(told_ms)
    c = Conversation()
    admin = c.another()
    rate = QuotaKey.CONTROLLER_MUTATION_RATE
    admin_sets(admin, 1.0, rate)
    for correlation_id, name, partitions, code in ((1, "a", 30, 0), (2, "b", 1, 89)):
        c.client_sends(create_topics(correlation_id, (name, partitions), version=7))
        c.serve()
        (topic,) = wire.decode_response("CreateTopics", 7, c.take_client()).topics
        assert topic.error_code == code
        admin_sets(admin, None, rate)
        admin_sets(admin, 2.0, rate)
