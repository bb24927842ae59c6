"""Byte rates that are counted by a bucket: what passes, how long clients wait, and what other levels have to say."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import BURST_KEYS, DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import MOST_BURST_SECONDS, Enforcement, Limits, validate
from quotas.rate_quotas import ByteRateQuotas, CounterState, RateSettings, RateTracker
from quotas.resolution import resolve

KEY = QuotaKey.PRODUCER_BYTE_RATE
BURST = BURST_KEYS[KEY]
SETTINGS = RateSettings()
ALICE = QuotaEntity("alice")
START_MS = 1_000_000


def bursting(rate: float, burst_s: float) -> tuple[Limits, RateTracker]:
    limits = Limits()
    limits.set(ALICE, KEY, rate)
    limits.set(ALICE, BURST, burst_s)
    return limits, counter(ByteRateQuotas(limits, KEY, SETTINGS), START_MS)


def counter(quotas: ByteRateQuotas, now_ms: int, user: str = "alice") -> RateTracker:
    tracker = quotas.tracker(user, "app", now_ms=now_ms)
    assert tracker is not None
    return tracker


steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 50), st.integers(0, 5_000), st.integers(0, 10**8)),  # silence, ms
        st.integers(1, 5_000),  # size
        st.integers(0, 3),  # connection
    ),
    min_size=1,
    max_size=80,
)


@given(st.integers(1, 5_000), st.sampled_from([0.05, 0.5, 1.0, 7.5, 60.0]), steps)
def test_whatever_clients_do_no_more_than_rate_and_burst_passes_in_any_time(
    rate: int, burst_s: float, moves: list[tuple[int, int, int]]
) -> None:
    """Clients that sleep to collect credit, and those that ask on many connections, get burst + rate x time."""
    _, tracker = bursting(rate, burst_s)
    now_ms = START_MS
    passed: list[tuple[int, int]] = []
    for silence_ms, size, connection in moves:
        now_ms += silence_ms
        # The client may ask earlier than it should; a request that waits is tried again at its time.
        while (wait_ms := tracker.wait_ms(connection, float(size), now_ms=now_ms)) > 0:
            now_ms += wait_ms
        tracker.record(size, connection, now_ms=now_ms)
        passed.append((now_ms, size))
    for first in range(len(passed)):
        since_ms, total = passed[first][0], 0
        for at_ms, size in passed[first:]:
            # What passed before this one, which may be the one request that goes beyond.
            assert total <= Fraction(rate * (at_ms - since_ms), 1000) + Fraction(rate) * Fraction(burst_s) + 1
            total += size


@given(st.integers(1, 5_000), st.sampled_from([0.5, 2.0, 30.0]), steps)
def test_the_wait_is_what_the_bucket_is_over_divided_by_the_rate(
    rate: int, burst_s: float, moves: list[tuple[int, int, int]]
) -> None:
    _, tracker = bursting(rate, burst_s)
    now_ms = START_MS
    fill = Fraction(0)
    for silence_ms, size, _ in moves:
        now_ms += silence_ms
        fill = max(Fraction(0), fill - Fraction(rate * silence_ms, 1000)) + size
        over = fill - Fraction(rate) * Fraction(burst_s)
        wanted_ms = max(Fraction(0), over / rate * 1000)
        assert tracker.record(size, now_ms=now_ms) == pytest.approx(math.ceil(wanted_ms), abs=1, rel=1e-9)


def test_a_client_that_was_silent_for_a_day_has_one_burst() -> None:
    _, tracker = bursting(1_000, 3)
    day_ms = START_MS + 86_400_000
    assert [tracker.record(1_000, now_ms=day_ms) for _ in range(4)] == [0, 0, 0, 1_000]


def test_kafkas_window_does_not_matter_where_there_is_a_bucket() -> None:
    _, tracker = bursting(1_000, 60)
    # Kafka's window passes ten seconds' worth.
    assert tracker.record(60_000, now_ms=START_MS) == 0
    assert tracker.record(1, now_ms=START_MS) == 1


def test_metrics_have_what_is_left_in_the_bucket_of_each_client_and_of_no_sum() -> None:
    limits, _ = bursting(1_000, 3)
    quotas = ByteRateQuotas(limits, KEY, RateSettings(max_trackers=1))
    counter(quotas, START_MS).record(500, now_ms=START_MS)
    assert counter(quotas, START_MS, "bob").shared
    assert [(row.other, row.tokens) for row in quotas.snapshot(now_ms=START_MS)] == [(False, 2_500), (True, None)]


def test_without_a_burst_nothing_is_different() -> None:
    limits = Limits()
    limits.set(ALICE, KEY, 1_000)
    tracker = counter(ByteRateQuotas(limits, KEY, SETTINGS), START_MS)
    assert resolve(limits, KEY, "alice", "app").burst_s is None
    assert tracker.record(10_000, now_ms=START_MS) == 0
    assert tracker.record(1_000, now_ms=START_MS) == 1_000
    assert tracker.tokens(now_ms=START_MS) is None


def test_the_burst_of_another_level_does_not_count() -> None:
    limits = Limits()
    limits.set(ALICE, KEY, 1_000)
    limits.set(QuotaEntity(DEFAULT), BURST, 5)
    limits.set(QuotaEntity(client_id="app"), BURST, 5)
    assert resolve(limits, KEY, "alice", "app").burst_s is None
    limits.set(ALICE, BURST, 2)
    assert resolve(limits, KEY, "alice", "app").burst_s == 2


def test_a_burst_without_a_rate_limits_nothing() -> None:
    limits = Limits()
    limits.set(ALICE, BURST, 5)
    assert ByteRateQuotas(limits, KEY, SETTINGS).tracker("alice", "app", now_ms=START_MS) is None
    assert resolve(limits, KEY, "alice", "app").limit is None


def test_the_burst_follows_the_producers_or_the_consumers_rate_alone() -> None:
    limits = Limits()
    for key in BURST_KEYS:
        limits.set(ALICE, key, 1_000)
    limits.set(ALICE, BURST, 5)
    assert resolve(limits, QuotaKey.CONSUMER_BYTE_RATE, "alice", "app").burst_s is None


def test_what_is_observed_is_counted_and_makes_no_client_wait() -> None:
    limits, _ = bursting(1_000, 2)
    limits.set_observed([ALICE])
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    tracker = counter(quotas, START_MS)
    assert [tracker.record(1_000, 1, now_ms=START_MS) for _ in range(10)] == [0] * 10
    assert tracker.throttles.would_throttle_total == 8
    assert tracker.wait_ms(1, 1.0, now_ms=START_MS) == 0
    assert tracker.empties(1, now_ms=START_MS) == 0
    assert tracker.max_in_window() is None
    # A second later one second's worth passes again: the excess is forgotten.
    tracker.record(1_000, 1, now_ms=START_MS + 1_000)
    assert tracker.throttles.would_throttle_total == 8


def test_enforcing_what_was_observed_makes_no_client_wait_for_the_time_before() -> None:
    limits, _ = bursting(1_000, 2)
    limits.set_mode(Enforcement.OBSERVE)
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    tracker = counter(quotas, START_MS)
    for _ in range(50):
        tracker.record(10_000, now_ms=START_MS)
    limits.set_mode(Enforcement.ENFORCE)
    tracker = counter(quotas, START_MS)
    assert tracker.wait_ms(1, 1.0, now_ms=START_MS) == 0
    assert tracker.record(500, now_ms=START_MS) == 500


def test_a_burst_that_is_set_later_asks_for_no_more_than_itself() -> None:
    limits = Limits()
    limits.set(ALICE, KEY, 1_000)
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    counter(quotas, START_MS).record(9_000, now_ms=START_MS)
    limits.set(ALICE, BURST, 2)
    tracker = counter(quotas, START_MS)
    assert tracker.tokens(now_ms=START_MS) == 0
    assert tracker.record(100, now_ms=START_MS) == 100


@pytest.mark.parametrize("burst_s", [1.0, 2.0, 5.0])
def test_a_debt_is_a_debt_in_a_smaller_or_larger_bucket(burst_s: float) -> None:
    limits, _ = bursting(1_000, 2)
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    counter(quotas, START_MS).record(3_000, now_ms=START_MS)  # one second of debt
    limits.set(ALICE, BURST, burst_s)
    # A larger bucket has room for what was one.
    assert counter(quotas, START_MS).tokens(now_ms=START_MS) == max(-1_000, 1_000 * burst_s - 3_000)


def test_removing_the_burst_brings_kafkas_window_back() -> None:
    limits, _ = bursting(1_000, 1)
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    counter(quotas, START_MS).record(1_000, now_ms=START_MS)
    limits.remove(ALICE, BURST)
    tracker = counter(quotas, START_MS)
    assert tracker.record(9_000, now_ms=START_MS) == 0
    assert tracker.record(1_000, now_ms=START_MS) == 1_000


def test_clients_without_a_counter_share_one_only_with_those_of_the_same_burst() -> None:
    """Else a look of each would put its own burst in force, and the smaller one forgive what it has no room for."""
    limits = Limits()
    for client_id, burst_s in (("a", 1.0), ("b", 20.0)):
        limits.set(QuotaEntity(client_id=client_id), KEY, 1_000)
        limits.set(QuotaEntity(client_id=client_id), BURST, burst_s)
    limits.set(QuotaEntity(client_id=DEFAULT), KEY, 10)
    quotas = ByteRateQuotas(limits, KEY, RateSettings(max_trackers=1))
    for name in ("x", "y"):
        full = quotas.tracker("mallory", name, now_ms=START_MS)
        assert full is not None
        full.record(1, now_ms=START_MS)
    found = [quotas.tracker("mallory", name, now_ms=START_MS) for name in ("a", "b")]
    assert all(each is not None and each.shared for each in found)
    assert found[0] is not found[1]


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 3_000)), min_size=1, max_size=20))
def test_the_process_that_takes_over_stands_where_the_earlier_one_stood(moves: list[tuple[int, int]]) -> None:
    _, before = bursting(1_000, 3)
    now_ms = START_MS
    for silence_ms, size in moves:
        now_ms += silence_ms
        before.record(size, now_ms=now_ms)
    _, after = bursting(1_000, 3)
    after.take_over(before.state(now_ms=now_ms), now_ms=now_ms)
    assert after.tokens(now_ms=now_ms) == pytest.approx(before.tokens(now_ms=now_ms), abs=1e-6)
    assert after.record(10, now_ms=now_ms) == pytest.approx(before.record(10, now_ms=now_ms), abs=1)


def test_a_gateway_with_a_share_of_the_limit_has_that_share_of_the_bucket() -> None:
    limits, _ = bursting(1_000, 4)
    quotas = ByteRateQuotas(limits, KEY, SETTINGS)
    counter(quotas, START_MS).record(2_000, now_ms=START_MS)
    limits.set_share(0.25)
    tracker = counter(quotas, START_MS)
    assert tracker.tokens(now_ms=START_MS) == pytest.approx(500)
    assert tracker.record(600, now_ms=START_MS) == 400
    limits.set_share(1.0)
    # All of it counts again.
    assert counter(quotas, START_MS).tokens(now_ms=START_MS) == pytest.approx(4_000 - 2_000 - 600)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400), st.integers(1, 900)), min_size=1, max_size=60))
def test_members_of_a_fleet_pass_together_what_one_gateway_would(moves: list[tuple[int, int, int]]) -> None:
    """With messages that arrive at once: the bucket is one, wherever a client connects."""
    members = [bursting(1_000, 2)[1] for _ in range(4)]
    now_ms = START_MS
    passed: list[tuple[int, int]] = []
    for at, silence_ms, size in moves:
        now_ms += silence_ms
        while (wait_ms := members[at].wait_ms(at, float(size), now_ms=now_ms)) > 0:
            now_ms += wait_ms
        members[at].record(size, at, now_ms=now_ms)
        passed.append((now_ms, size))
        for other in members:
            if other is not members[at]:
                other.record_others(size, now_ms=now_ms)
    totals = list(itertools.accumulate(size for _, size in passed))
    for (at_ms, size), total in zip(passed, totals, strict=True):
        assert total - size <= at_ms - START_MS + 2_000 + 1


def test_how_long_a_burst_may_be() -> None:
    assert validate(ALICE, BURST, MOST_BURST_SECONDS) is None
    assert validate(ALICE, BURST, 0.05) is None
    assert validate(ALICE, BURST, 2 * MOST_BURST_SECONDS) == f"Quota {BURST} must be at most 86400"
    assert validate(ALICE, BURST, 0) == f"Quota {BURST} must be greater than 0"
    assert validate(QuotaEntity(topic="t"), BURST, 5) == f"Invalid configuration key {BURST}"


def test_nobody_waits_at_a_bucket_that_is_only_observed() -> None:
    """Also those that had a place when it was enforced, and newcomers."""
    limits = Limits()
    entity = QuotaEntity(user="alice")
    limits.set(entity, QuotaKey.PRODUCER_BYTE_RATE, 10)
    limits.set(entity, QuotaKey.PRODUCER_BYTE_BURST_SECONDS, 1)
    quotas = ByteRateQuotas(limits, QuotaKey.PRODUCER_BYTE_RATE, RateSettings())
    tracker = quotas.tracker("alice", "", now_ms=0)
    assert tracker is not None
    one, other = object(), object()
    tracker.record(4_000, one, now_ms=0)
    assert tracker.wait_ms(one, 10, now_ms=1) > 0
    limits.set_mode(Enforcement.OBSERVE)
    tracker = quotas.tracker("alice", "", now_ms=2)
    assert tracker is not None
    assert (tracker.wait_ms(one, 10, now_ms=2), tracker.wait_ms(other, 10, now_ms=2)) == (0, 0)


@pytest.mark.parametrize(
    ("before_s", "after_s", "of_older_version"),
    [
        (None, 3.0, False),
        (None, 3.0, True),  # it knows no bursts
        (10.0, 3.0, False),
        (3.0, 10.0, False),
        (3.0, None, False),
        (3.0, 3.0, False),
    ],
)
@pytest.mark.parametrize("used", [900.0, 5_000.0])
def test_a_burst_that_is_another_in_the_next_process_is_as_one_that_was_changed(
    before_s: float | None, after_s: float | None, used: float, of_older_version: bool
) -> None:
    """A client within its quota does not wait, and a debt is no smaller."""

    def tracker_of(burst_s: float | None) -> tuple[Limits, ByteRateQuotas, RateTracker]:
        limits = Limits()
        limits.set(ALICE, KEY, 100.0)
        if burst_s is not None:
            limits.set(ALICE, BURST, burst_s)
        quotas = ByteRateQuotas(limits, KEY, SETTINGS)
        return limits, quotas, counter(quotas, START_MS)

    limits, quotas, old = tracker_of(before_s)
    old.record(used, now_ms=START_MS)
    state = old.state(now_ms=START_MS)
    if of_older_version:
        state = CounterState(*state[:5])
    *_, new = tracker_of(after_s)
    new.take_over(state, now_ms=START_MS)
    if after_s is None:
        limits.remove(ALICE, BURST)
    else:
        limits.set(ALICE, BURST, after_s)
    assert counter(quotas, START_MS) is old
    assert new.blocked_until_ms == pytest.approx(old.blocked_until_ms)
    assert new.tokens(now_ms=START_MS) == old.tokens(now_ms=START_MS)
