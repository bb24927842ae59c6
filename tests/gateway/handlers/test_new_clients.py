"""Clients that no division of a capacity knows yet: they share one counter for a second, beside their own."""

from __future__ import annotations

from typing import Final

import pytest

from quotas.combine import ThrottledBy
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.lending import Brake
from quotas.resolution import Rule
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import produce, produce_reply

PRODUCE: Final = QuotaKey.PRODUCER_BYTE_RATE
FETCH: Final = QuotaKey.CONSUMER_BYTE_RATE
GUARANTEES: Final = {PRODUCE: QuotaKey.PRODUCER_BYTE_GUARANTEE, FETCH: QuotaKey.CONSUMER_BYTE_GUARANTEE}
CAPACITY: Final = 10_000


def core_of(key: QuotaKey, *, observe: bool = False) -> GatewayCore:
    """A gateway with a capacity, and a guarantee for carol."""
    core = GatewayCore()
    core.limits.set(QuotaEntity(user=DEFAULT), key, 1_000_000)
    core.limits.set(QuotaEntity(user="carol"), key, 1_000_000)
    core.limits.set(QuotaEntity(user="carol"), GUARANTEES[key], 1_000)
    core.client_quotas.set_capacity({key: CAPACITY}, observe=observe, now_ms=core.clock.now_ms)
    return core


def divide(core: GatewayCore) -> None:
    list(core.client_quotas.divide(now_ms=core.clock.now_ms))


def fetch() -> bytes:
    return wire.request("Fetch", 12, correlation_id=1, max_wait_ms=500, min_bytes=1, max_bytes=1_000)


def fetched(size: int) -> bytes:
    partition = {"partition_index": 0, "high_watermark": 1, "aborted_transactions": None, "records": bytes(size)}
    return wire.response("Fetch", 12, correlation_id=1, responses=[{"topic": "t", "partitions": [partition]}])


@pytest.mark.parametrize("piece_bytes", [None, 1_000])
def test_what_a_new_client_has_produced_the_next_new_one_waits_for(piece_bytes: int | None) -> None:
    core = core_of(PRODUCE)
    alice, bob, carol = (Conversation(core=core, principal=user) for user in ("alice", "bob", "carol"))
    alice.client_sends(produce(1, size=CAPACITY // 5 + 5_000), piece_bytes=piece_bytes)
    frame = produce(1, size=10)
    bob.client_sends(frame).upstream_sees()
    (_, rule, wait_ms, by) = core.observer.throttles[-1]
    assert (rule, by) == (Rule.CAPACITY, ThrottledBy.PRODUCE)
    carol.client_sends(frame).upstream_sees(frame)
    bob.at(wait_ms - 1).upstream_sees()
    bob.at(wait_ms).upstream_sees(frame)


def test_a_wait_for_new_clients_ends_with_the_next_division() -> None:
    """Whatever one of them has sent: another one has a share of its own then."""
    core = core_of(PRODUCE)
    alice, bob = (Conversation(core=core, principal=user) for user in ("alice", "bob"))
    alice.client_sends(produce(1, size=100 * CAPACITY)).upstream_answers(produce_reply(1))
    frame = produce(1, size=10)
    bob.client_sends(frame).upstream_sees()
    (_, _, wait_ms, _) = core.observer.throttles[-1]
    assert wait_ms == 1_000
    core.clock.advance(1_000)
    divide(core)
    bob.at(1_000).upstream_sees(frame)
    sensor = bob.session.throttling.produce_sensor
    assert sensor is not None
    assert sensor.groups == ()


def test_a_young_client_shares_what_a_brake_leaves_to_its_tier_until_it_is_known() -> None:
    core = core_of(PRODUCE)
    core.limits.brakes = {2: Brake(1.0, core.clock.now_ms + 60_000, "ops", {PRODUCE: 1_000.0})}
    divide(core)
    core.clock.advance(1_000)
    divide(core)
    bob = Conversation(core=core, principal="bob")
    frame = produce(1, size=10)
    counts = []
    for _ in range(5):
        bob.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
        sensor = bob.session.throttling.produce_sensor
        assert sensor is not None
        counts.append(len(sensor.groups))
        core.clock.advance(1_000)
        divide(core)
    assert counts == [2, 1, 1, 1, 0]


def test_a_client_that_was_silent_is_new_again() -> None:
    core = core_of(PRODUCE)
    alice = Conversation(core=core, principal="alice")
    frame = produce(1, size=10)
    alice.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
    for _ in range(4):
        core.clock.advance(1_000)
        divide(core)
    bob = Conversation(core=core, principal="bob")
    bob.client_sends(produce(1, size=CAPACITY // 5 + 5_000)).upstream_answers(produce_reply(1))
    alice.client_sends(frame).upstream_sees()
    assert core.observer.throttles[-1][1] is Rule.CAPACITY


def test_what_a_new_client_has_fetched_the_next_new_one_waits_for() -> None:
    core = core_of(FETCH)
    alice, bob, carol, dave = (Conversation(core=core, principal=user) for user in ("alice", "bob", "carol", "dave"))
    for each in (alice, dave):
        each.client_sends(fetch()).upstream_sees(fetch())
    alice.upstream_answers(fetched(CAPACITY // 5 + 5_000))
    bob.client_sends(fetch()).upstream_sees()
    assert core.observer.throttles[-1][1] is Rule.CAPACITY
    carol.client_sends(fetch()).upstream_sees(fetch())
    # An answer that was under way is given empty, as with every counter.
    dave.upstream_answers(fetched(5_000))
    answer = wire.decode_response("Fetch", 12, dave.take_client())
    assert answer.throttle_time_ms > 0
    assert not answer.responses


def test_a_capacity_that_is_only_observed_holds_no_new_client() -> None:
    core = core_of(PRODUCE, observe=True)
    for user in ("alice", "bob"):
        frame = produce(1, size=50_000)
        Conversation(core=core, principal=user).client_sends(frame).upstream_sees(frame)
    assert core.observer.throttles == []
