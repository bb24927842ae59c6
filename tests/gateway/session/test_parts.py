"""Messages that are relayed in pieces: their size is that of the pieces that have arrived."""

import pytest

from gateway.session.parts import ReplyParts, RequestParts, Watch
from gateway.usage.table import UsageTable
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RateTracker
from quotas.usage_record import UsageApi

NOW_MS = 1_000_000
SIZE = 300


def counter(client_id: str) -> RateTracker:
    """One byte takes a millisecond."""
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT), QuotaKey.CONSUMER_BYTE_RATE, 1_000)
    found = ByteRateQuotas(limits, QuotaKey.CONSUMER_BYTE_RATE, RateSettings()).tracker(
        "alice", client_id, now_ms=NOW_MS
    )
    assert found is not None
    return found


def relay(watch: Watch, came_bytes: int) -> None:
    """Pieces of at most 40 bytes, and then the end of the message or of its connection."""
    for at in range(0, came_bytes, 40):
        watch.take(bytes(SIZE), at, min(at + 40, came_bytes), now_ms=NOW_MS)
    watch.end(now_ms=NOW_MS)


@pytest.mark.parametrize("came_bytes", [0, 1, 120, SIZE - 1, SIZE])
def test_a_message_in_pieces_is_as_large_in_the_usage_records_as_what_came_of_it(came_bytes: int) -> None:
    usage, lasts = UsageTable(), list[tuple[int, int]]()
    request, reply = (usage.row("l", "alice", "app", api) for api in (UsageApi.PRODUCE, UsageApi.FETCH))
    request.count(50)
    relay(RequestParts(50 + SIZE, 50, request, (), None, lambda *last: lasts.append(last)), came_bytes)
    assert (request.offered, request.max_units) == (50 + came_bytes, 50 + came_bytes)
    assert bool(lasts) is (came_bytes == SIZE)
    reply.count(0)
    relay(ReplyParts(SIZE - 5, 5, reply, (), None, now_ms=NOW_MS), came_bytes)
    assert (reply.offered, reply.max_units) == (max(came_bytes - 5, 0), max(came_bytes - 5, 0))


@pytest.mark.parametrize("came_bytes", [0, 1, 120, SIZE - 1, SIZE])
def test_a_reply_that_is_cut_off_is_charged_as_one_of_the_size_of_what_came(came_bytes: int) -> None:
    cut_off, small = counter("cut off"), counter("small")
    cut_off.record(SIZE, now_ms=NOW_MS)
    relay(ReplyParts(SIZE, 0, None, (cut_off,), None, now_ms=NOW_MS), came_bytes)
    small.record(came_bytes, now_ms=NOW_MS)
    assert cut_off.blocked_until_ms == small.blocked_until_ms
    assert cut_off.rate(now_ms=NOW_MS) == small.rate(now_ms=NOW_MS)


def test_a_counter_stays_while_the_rest_of_a_request_is_under_way() -> None:
    """Also if it looks empty meanwhile and the table is full: the rest is charged to the client's counter."""
    limits = Limits()
    key = QuotaKey.PRODUCER_BYTE_RATE
    limits.set(QuotaEntity(user="slow"), key, 1_000.0)
    limits.set(QuotaEntity(user=DEFAULT, client_id=DEFAULT), key, 1_000.0)
    quotas = ByteRateQuotas(limits, key, RateSettings(max_trackers=10))
    now_ms = 1_000_000
    tracker = quotas.tracker("slow", "", now_ms=now_ms)
    assert tracker is not None
    tracker.record_part(1_000, now_ms=now_ms)
    request = RequestParts(101_000, 1_000, None, (tracker,), None, lambda last, now: tracker.record(last, now_ms=now))
    now_ms += 25_000

    def others() -> None:
        for number in range(100):
            other = quotas.tracker(f"u{number}", f"c{number}", now_ms=now_ms)
            assert other is not None
            other.record(500, now_ms=now_ms)

    others()
    assert quotas.tracker("slow", "", now_ms=now_ms) is tracker
    request.take(b"", 0, 100_000, now_ms=now_ms)
    request.end(now_ms=now_ms)
    assert tracker.blocked_until_ms > now_ms + 70_000
    others()
    assert quotas.tracker("slow", "", now_ms=now_ms) is tracker
    now_ms += 200_000
    assert tracker.forgettable(now_ms=now_ms)
