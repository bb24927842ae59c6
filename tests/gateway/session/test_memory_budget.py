"""What connections hold back together: counted, bounded, and never so that nothing can end."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from gateway.observability.events import CloseCause, Side
from gateway.session.memory_budget import LARGE_BYTES, PATIENCE_MS, SMALL_BYTES, MemoryBudget
from gateway.session.mute import MuteReason
from gateway.session.session import MAX_LOCAL_REPLY_BYTES
from quotas.entities import QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import GatewayCore, session_settings
from testkit.frames import fetch, heartbeat, heartbeat_reply, produce, produce_to
from testkit.quota_frames import alter, describe, entry

MIB = 1024 * 1024
METADATA = 3


def large_metadata(size: int) -> bytes:
    """A request that is collected, with a tag that makes it so large."""
    return wire.framed(wire.head(METADATA, 1, flexible=False) + pack(">i", 0) + bytes(size))


def several(count: int, **settings: int) -> list[Conversation]:
    core = GatewayCore(settings=session_settings(**settings))
    first = Conversation(core=core)
    return [first, *(first.another() for _ in range(count - 1))]


def test_k17_connections_that_collect_wait_for_each_other_and_all_end() -> None:
    conversations = several(4, queued_max_request_bytes=3 * MIB)
    budget = conversations[0].core.memory
    frame = large_metadata(2 * MIB)
    half = len(frame) // 2
    for c in conversations:
        c.client_sends(frame[:half])
    assert budget.used_bytes <= 4 * MIB + SMALL_BYTES
    for c in conversations:
        c.client_sends(frame[half:], piece_bytes=100_000)
    # Each of them gets its turn, as the one before it has ended.
    for c in conversations:
        c.upstream_sees(frame)
    assert (budget.used_bytes, budget.waiting) == (0, 0)


def of_a_topic_used_up(budget_bytes: int) -> Conversation:
    """A client of a gateway whose quota of the topic `t` is used up."""
    c = Conversation(settings=session_settings(queued_max_request_bytes=budget_bytes))
    c.core.limits.set(QuotaEntity(topic="t"), QuotaKey.PRODUCER_BYTE_RATE, 1_000)
    return c.client_sends(produce_to(t=500_000))


def test_k17_requests_kept_whole_for_a_used_up_topic_fill_no_memory_above_the_budget() -> None:
    c = of_a_topic_used_up(8 * MIB)
    budget = c.core.memory
    frame = produce_to(other=3 * MIB, t=30_000)
    others = [c.another() for _ in range(20)]
    for other in others:
        for at in range(0, len(frame), 200_000):
            if other.closed_by is None:
                other.client_sends(frame[at : at + 200_000])
        assert budget.used_bytes <= 8 * MIB + len(frame)
        if other.closed_by is not None:
            other.session.ended(now_ms=c.clock.now_ms)
    causes = [other.closed_by for other in others]
    assert causes[:2] == [None, None]
    assert set(causes[2:]) == {CloseCause.MEMORY_FULL}
    assert not budget.full
    for other in others[:2]:
        other.still_muted().after(600_000).upstream_sees(frame)
    assert (budget.used_bytes, budget.waiting) == (0, 0)


def test_k17_a_request_that_waits_for_its_quota_gives_its_memory_to_one_that_does_not() -> None:
    c = of_a_topic_used_up(4 * MIB)
    kept = c.another().client_sends(produce_to(other=3 * MIB, t=30_000)).still_muted()
    foremost, waits = c.another(), c.another()
    frame = large_metadata(2 * MIB)
    foremost.client_sends(frame[: 3 * MIB // 2])
    waits.client_sends(frame[:MIB])
    assert c.core.memory.waiting == 1
    for _ in range(3):
        c.core.clock.advance_to(c.clock.now_ms + PATIENCE_MS)
        waits.session.on_timer(now_ms=c.clock.now_ms)
    assert kept.session.close_cause is CloseCause.MEMORY_FULL


def test_k17_as_many_requests_give_way_as_are_needed_and_small_ones_behind_a_mute_none() -> None:
    c = of_a_topic_used_up(4 * MIB)
    kept = [c.another().client_sends(produce_to(other=3 * MIB // 2, t=30_000)) for _ in range(2)]
    small = produce_to(t=1_000)
    pipelined = c.another().client_sends(small).still_muted().push(small * 300)
    foremost, waits = c.another(), c.another()
    foremost.client_sends(large_metadata(2 * MIB)[:MIB])
    waits.client_sends(large_metadata(2 * MIB)[:MIB])
    assert c.core.memory.waiting == 1
    for _ in range(2):
        c.core.clock.advance_to(c.clock.now_ms + PATIENCE_MS)
        waits.session.on_timer(now_ms=c.clock.now_ms)
    assert [each.session.close_cause for each in kept].count(CloseCause.MEMORY_FULL) == 1
    assert len(small * 300) > LARGE_BYTES
    assert pipelined.session.close_cause is None


def test_k17_small_requests_do_not_wait_for_large_ones() -> None:
    large, small = several(2, queued_max_request_bytes=MIB)
    frame = large_metadata(2 * MIB)
    large.client_sends(frame[: MIB + SMALL_BYTES])
    assert large.core.memory.full
    one = large_metadata(1_000)
    small.client_sends(one, piece_bytes=300).upstream_sees(one)
    large.client_sends(frame[MIB + SMALL_BYTES :]).upstream_sees(frame)


def test_k17_a_connection_that_ends_gives_back_what_it_held() -> None:
    first, second, third = several(3, queued_max_request_bytes=MIB)
    frame = large_metadata(2 * MIB)
    first.client_sends(frame[: MIB + SMALL_BYTES]).reading()  # one above the limit may continue
    second.client_sends(frame[:100_000]).still_muted()
    third.client_sends(frame[:200_000]).still_muted()
    second.session.ended(now_ms=0)
    third.still_muted()
    first.session.ended(now_ms=0)
    third.reading()
    third.session.ended(now_ms=0)
    assert (first.core.memory.used_bytes, first.core.memory.waiting) == (0, 0)


def test_k17_an_answer_that_is_collected_waits_at_the_broker_when_the_budget_is_used_up() -> None:
    holder, other = several(2, queued_max_request_bytes=MIB)
    frame = large_metadata(2 * MIB)
    holder.client_sends(frame[: MIB + SMALL_BYTES])
    other.client_sends(wire.request("Metadata", 1, correlation_id=1, topics=[]))
    answer = wire.response("Metadata", 1, correlation_id=1, brokers=[], controller_id=1, topics=[])
    answer = pack(">i", len(answer) - 4 + 2 * MIB) + answer[4:] + bytes(2 * MIB)
    other.upstream_answers(answer[:100_000])
    assert other.session.holds_upstream
    holder.client_sends(frame[MIB + SMALL_BYTES :])
    assert not other.session.holds_upstream
    other.upstream_answers(answer[100_000:]).reading()
    assert other.core.memory.used_bytes == 0


def refused(size: int) -> bytes:
    """A request of that size which is answered here, with as much as it says itself."""
    name = "n" * 30_000
    return alter(*(entry({"no such type": f"{at}{name}"}, producer_byte_rate=1.0) for at in range(size // 30_000)))


def test_k17_replies_of_our_own_behind_a_slow_one_mute_the_client() -> None:
    c = Conversation().client_sends(fetch(1))
    sent = 0
    while c.session.reading_client:
        c.client_sends(refused(300_000))
        sent += 1
        assert sent < 20, "never muted"
    assert c.session.muted & MuteReason.REPLIES_FULL
    assert c.session.responses.local_bytes <= MAX_LOCAL_REPLY_BYTES + 700_000
    assert c.core.memory.used_bytes >= MAX_LOCAL_REPLY_BYTES
    c.upstream_answers(wire.response("Fetch", 4, correlation_id=1, responses=[])).reading()
    assert c.core.memory.used_bytes == 0


def test_what_is_held_behind_a_mute_is_counted() -> None:
    c = Conversation().throttle(1_000)
    c.push(heartbeat(1) * 10)
    assert c.core.memory.used_bytes == len(heartbeat(1)) * 10
    c.at(1_000).reading()
    assert c.core.memory.used_bytes == 0


def announcing(sent_bytes: int, *, size: int, client_id: str = "rude") -> bytes:
    """The first bytes of a Produce that announces more."""
    frame = produce(1, size=sent_bytes, client_id=client_id)
    return pack(">i", size) + frame[4:sent_bytes]


def test_m02_stalled_uploads_keep_no_shorter_request_waiting() -> None:
    rude = several(10, queued_max_request_bytes=32 * MIB)
    for c in rude:
        c.client_sends(announcing(4 * MIB, size=100 * MIB), piece_bytes=SMALL_BYTES)
    assert rude[0].core.memory.full
    honest, frame = rude[0].another(), produce(7, size=300_000)
    honest.client_sends(frame, piece_bytes=100_000).upstream_sees(frame)


def test_m02_uploads_that_stall_just_before_their_end_give_way_to_one_that_waits() -> None:
    rude = several(10, queued_max_request_bytes=32 * MIB, announced_max_request_bytes=1)
    for c in rude:
        c.client_sends(announcing(4 * MIB, size=4 * MIB + 2_000), piece_bytes=SMALL_BYTES)
    honest, frame = rude[0].another(), produce(7, size=300_000)
    honest.client_sends(frame, piece_bytes=100_000).still_muted()
    for _ in range(2):
        for c in rude:
            if c.closed_by is None and c.session.reading_client:
                c.client_sends(b"r" * 100)
        honest.after(PATIENCE_MS)
    assert {c.closed_by for c in rude} == {None, CloseCause.FRAME_TIMEOUT}
    for c in rude:
        if c.closed_by is not None:
            c.session.ended(now_ms=0)
    honest.upstream_sees(frame)


def test_m02_answers_that_come_meanwhile_are_no_upload() -> None:
    alone, rude = several(2, queued_max_request_bytes=MIB, announced_max_request_bytes=1)
    alone.client_sends(announcing(SMALL_BYTES, size=MIB))
    rude.client_sends(fetch(9), announcing(2 * MIB, size=2 * MIB + 2_000))
    honest, frame = rude.another(), produce(7, size=300_000)
    honest.client_sends(frame[:100_000]).still_muted()
    rude.upstream_answers(pack(">ii", 100 * MIB, 9))
    for _ in range(2):
        rude.upstream_answers(bytes(MIB))
        honest.after(PATIENCE_MS)
    rude.closed(CloseCause.FRAME_TIMEOUT).session.ended(now_ms=0)
    honest.client_sends(frame[100_000:], piece_bytes=100_000).upstream_sees(frame)


def test_m02_what_waits_behind_a_throttle_takes_no_place_above_the_budget() -> None:
    alone, rude, last = several(3, queued_max_request_bytes=MIB, announced_max_request_bytes=1)
    alone.client_sends(announcing(SMALL_BYTES, size=MIB))
    rude.client_sends(announcing(MIB, size=4 * MIB), piece_bytes=SMALL_BYTES)
    first = large_metadata(100_000)
    last.client_sends(first[:90_000])
    last.session.throttling.most_in_flight = 1
    last.push(first[90_000:] + large_metadata(10) * 5_000)
    assert last.session.accounted_bytes > SMALL_BYTES
    honest, frame = rude.another(), produce(7, size=300_000)
    honest.client_sends(frame, piece_bytes=100_000).upstream_sees(frame)


def test_m02_the_one_above_the_budget_gives_way_when_it_is_throttled() -> None:
    alone, rude, last = several(3, queued_max_request_bytes=MIB, announced_max_request_bytes=1)
    alone.client_sends(announcing(SMALL_BYTES, size=MIB))
    rude.client_sends(announcing(MIB - SMALL_BYTES, size=4 * MIB), piece_bytes=SMALL_BYTES)
    last.client_sends(announcing(SMALL_BYTES + 1, size=2 * SMALL_BYTES)).throttle(3_600_000)
    honest, frame = rude.another(), produce(7, size=300_000)
    honest.client_sends(frame[:100_000]).still_muted()
    honest.after(2 * PATIENCE_MS)
    last.closed(CloseCause.FRAME_TIMEOUT).session.ended(now_ms=0)
    honest.client_sends(frame[100_000:], piece_bytes=100_000).upstream_sees(frame)


def test_m02_who_does_not_take_its_answers_gives_way_to_one_that_waits() -> None:
    alone, rude, honest = several(3, queued_max_request_bytes=MIB, announced_max_request_bytes=1)
    alone.client_sends(announcing(SMALL_BYTES, size=MIB))
    rude.step(lambda _now_ms: rude.session.unsent(Side.CLIENT, MIB))
    waiting = rude.another().client_sends(announcing(SMALL_BYTES + 1, size=MIB)).reading()
    frame = produce(7, size=2 * MIB)
    honest.client_sends(frame[:100_000]).still_muted()
    honest.after(2 * PATIENCE_MS)
    rude.closed(CloseCause.WRITE_TIMEOUT).session.ended(now_ms=0)
    waiting.closed(CloseCause.FRAME_TIMEOUT).session.ended(now_ms=0)
    honest.client_sends(frame[100_000:], piece_bytes=100_000).upstream_sees(frame)


def test_who_sends_fast_enough_keeps_its_place() -> None:
    alone, first, other = several(3, queued_max_request_bytes=MIB, announced_max_request_bytes=1)
    alone.client_sends(announcing(SMALL_BYTES, size=MIB))  # takes the bound, so all others are collected
    second = PATIENCE_MS // 1000 * session_settings().min_frame_bytes_per_s
    first.client_sends(announcing(2 * MIB, size=3 * MIB), piece_bytes=SMALL_BYTES)
    other.client_sends(announcing(SMALL_BYTES + 1, size=4 * MIB)).still_muted()
    for _ in range(4):
        other.after(PATIENCE_MS)
        first.client_sends(b"r" * second).alive()
    other.after(PATIENCE_MS)
    other.after(PATIENCE_MS)
    first.closed(CloseCause.FRAME_TIMEOUT).session.ended(now_ms=0)
    other.reading()


class _Holder:
    accounted_bytes = 0
    moved_bytes = 0, 0

    def __init__(self, missing_bytes: int) -> None:
        self.freed = 0
        self.missing_bytes = missing_bytes

    def give_way(self, sent_bytes: int, taken_bytes: int, elapsed_ms: int, *, foremost: bool) -> None:
        raise AssertionError

    def memory_freed(self) -> None:
        self.freed += 1


def test_the_one_that_misses_the_least_goes_on_first() -> None:
    budget = MemoryBudget(MIB)
    holders: list[Any] = [_Holder(missing) for missing in (20, 40, 30, 20)]
    for holder in holders:
        budget.account(holder, MIB)
    assert [budget.must_wait(holder, MIB) for holder in holders] == [False, True, True, True]
    budget.account(holders[0], 0)
    assert [holder.freed for holder in holders] == [0, 0, 0, 1]
    shorter: Any = _Holder(19)
    budget.account(shorter, MIB)
    assert not budget.must_wait(shorter, MIB)
    budget.leave(shorter)
    budget.leave(holders[3])
    assert [holder.freed for holder in holders] == [0, 0, 1, 1]


# -- long work -----------------------------------------------------------------------------------------------


def test_replies_behind_one_that_takes_steps_keep_their_order() -> None:
    c = Conversation()
    wanted = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
    config = {"name": "a", "value": "b", "config_source": 1, "synonyms": []}
    result = {"error_code": 0, "resource_type": 4, "resource_name": "1", "configs": [config] * 5_000}
    answer = wire.response("DescribeConfigs", 1, correlation_id=1, results=[result])
    c.hold_steps = True
    c.client_sends(wire.request("DescribeConfigs", 1, correlation_id=1, resources=wanted), heartbeat(2))
    c.upstream_answers(answer + heartbeat_reply(2)).client_sees().still_muted()
    assert c.session.holds_upstream
    c.hold_steps = False
    c.step(lambda now_ms: None).client_sees(answer, heartbeat_reply(2)).reading()
    assert not c.session.holds_upstream


@pytest.mark.parametrize("leaves", [False, True])
def test_k18_work_in_steps_is_charged_to_its_client(leaves: bool) -> None:
    c = Conversation(request_percentage=1)
    for at in range(2_500):
        c.core.limits.set(QuotaEntity(user=f"user-{at}"), QuotaKey.PRODUCER_BYTE_RATE, 5.0)
    meter = c.session.meter
    assert meter is not None
    c.hold_steps = True
    c.client_sends(heartbeat(1))  # from here on requests are timed
    c.upstream_answers(heartbeat_reply(1)).take_client()
    c.client_sends(describe(("user", 2, None)))
    while len(c.session.steps) and not leaves:
        meter.event_ns = 1
        c.step(lambda now_ms: c.session.take_step(now_ms=now_ms))
        meter.spend(100_000_001)  # 100 ms of CPU time for each step
    if leaves:
        meter.event_ns = 1
        meter.spend(5_000_000_001)
        c.session.ended(now_ms=c.clock.now_ms)
    ((_, load),) = c.core.client_quotas.request_time.loads(now_ms=c.clock.now_ms)
    assert load > 1, "more than the quota"
    if not leaves:
        c.still_muted()


def test_a_walk_whose_turn_has_no_time_left_waits_for_a_later_one() -> None:
    c = Conversation()
    c.session.begins_now = lambda _frame_bytes: False
    wanted = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
    asked = wire.request("DescribeConfigs", 1, correlation_id=1, resources=wanted)
    answer = wire.response("DescribeConfigs", 1, correlation_id=1, results=[])
    c.hold_steps = True
    c.client_sends(asked, heartbeat(2)).upstream_sees().still_muted()
    c.hold_steps = False
    c.step(lambda now_ms: None).upstream_sees(asked, heartbeat(2)).reading()
    c.hold_steps = True
    c.upstream_answers(answer + heartbeat_reply(2)).client_sees().still_muted()
    c.hold_steps = False
    c.step(lambda now_ms: None).client_sees(answer, heartbeat_reply(2)).reading()
