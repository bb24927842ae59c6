"""What a connection leaves behind when it ends, and what the next one serves of it."""

from gateway.session.throttle_state import CachedSensor, ThrottleState
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RateTracker
from testkit.core import session_settings

NOW_MS = 1_000_000


def counters() -> list[RateTracker]:
    """Of what a client produces, and of what it fetches."""
    limits = Limits()
    found = []
    for key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        limits.set(QuotaEntity("alice"), key, 1_000)
        found.append(ByteRateQuotas(limits, key, RateSettings()).tracker("alice", "app", now_ms=NOW_MS))
    return [each for each in found if each is not None]


def test_a_mute_is_left_to_the_counter_that_asked_for_the_longest_wait() -> None:
    produced, fetched = counters()
    state = ThrottleState(session_settings())
    for tracker, size in ((produced, 11_000), (fetched, 15_000)):
        state.extend(tracker.record(size, now_ms=NOW_MS), None, tracker, now_ms=NOW_MS)
    # What another quota asks for beyond that is not left to it.
    state.extend(60_000, None, None, now_ms=NOW_MS)
    state.leave()
    assert (produced.left_until_ms, fetched.left_until_ms) == (0, NOW_MS + 5_000)


def test_what_was_left_at_a_counter_holds_only_requests_that_it_counts() -> None:
    sensors = [CachedSensor("app", "alice", 1, tracker, None, b"") for tracker in counters()]
    _, fetched = sensors
    assert fetched.tracker is not None
    fetched.tracker.left_until_ms = NOW_MS + 5_000
    state = ThrottleState(session_settings())
    for each in sensors:
        state.inherit(each, None)
    assert [state.inherited_ms(each, now_ms=NOW_MS + 1_000) for each in sensors] == [0, 4_000]
    assert state.inherited_ms(fetched, now_ms=NOW_MS + 6_000) == 0
