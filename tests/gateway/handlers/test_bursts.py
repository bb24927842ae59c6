"""A byte rate with a burst on a connection: what passes at once, and what the replies say."""

from __future__ import annotations

from gateway.session.client_quotas import ClientQuotas
from quotas.entities import QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore
from testkit.frames import produce, produce_reply


def bursting(rate: float, burst_s: float) -> Conversation:
    core = GatewayCore(producer_byte_rate=rate)
    core.set_quota(QuotaKey.PRODUCER_BYTE_BURST_SECONDS, burst_s)
    return Conversation(core=core)


def test_a_burst_passes_at_once_and_what_is_beyond_has_its_wait_in_the_reply() -> None:
    frame = produce(1, size=1_000)
    counted = len(frame) - 4
    c = bursting(counted, 2)
    for _ in range(2):
        c.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
        c.client_sees(produce_reply(1)).reading()
    c.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
    c.client_sees(wire.response("Produce", 9, correlation_id=1, responses=[], throttle_time_ms=1_000))
    (entry,) = c.core.journal.of("ANONYMOUS", "tests")
    assert entry.reading.tokens == -counted
    # A new connection finds the debt, and waits before its request is counted.
    other = c.another().client_sends(frame).upstream_sees()
    c.muted_until(1_000)
    other.at(2_000).upstream_sees(frame)


def test_the_burst_of_a_running_gateway_changes_at_once() -> None:
    frame = produce(1, size=1_000)
    c = bursting(len(frame) - 4, 1)
    c.client_sends(frame).upstream_answers(produce_reply(1)).take_client()
    c.core.set_quota(QuotaKey.PRODUCER_BYTE_BURST_SECONDS, 2)
    c.client_sends(frame).upstream_answers(produce_reply(1)).client_sees(produce_reply(1)).reading()
    quotas: ClientQuotas = c.core.client_quotas
    tracker = quotas.produce_tracker("ANONYMOUS", "tests", None, now_ms=c.clock.now_ms)
    assert tracker is not None
    assert tracker.tokens(now_ms=c.clock.now_ms) == 0
