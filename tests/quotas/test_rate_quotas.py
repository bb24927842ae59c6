from typing import Any

import pytest

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import RateQuotas, RateSettings, RateTracker
from quotas.resolution import Rule
from testkit.clock import FakeClock
from testkit.scenarios import scenarios

KEY = QuotaKey.PRODUCER_BYTE_RATE


class Setup:
    """Quotas of one key, and a clock."""

    def __init__(self, clock: FakeClock, quotas: dict[QuotaEntity, float], **settings: Any) -> None:
        self.clock = clock
        self.limits = Limits()
        for entity, value in quotas.items():
            self.limits.set(entity, KEY, value)
        self.quotas = RateQuotas(self.limits, KEY, RateSettings(**settings))

    def tracker(self, user: str, client_id: str, scope: int | None = None) -> RateTracker:
        tracker = self.quotas.tracker(user, client_id, scope=scope, now_ms=self.clock.now_ms)
        assert tracker is not None
        return tracker

    def record(self, user: str, client_id: str, value: float, scope: int | None = None) -> int:
        return self.tracker(user, client_id, scope).record(value, now_ms=self.clock.now_ms)


def _name(text: str | None) -> Name | None:
    return DEFAULT if text == "<default>" else text


@pytest.mark.parametrize("row", scenarios("cq"))
def test_scenario_client_quota(row: dict[str, Any], clock: FakeClock) -> None:
    setup = Setup(clock, {})
    for step in row["steps"]:
        if step[0] == "set":
            entity = QuotaEntity(_name(step[1]), _name(step[2]))
            if step[3] is None:
                setup.limits.remove(entity, KEY)
            else:
                setup.limits.set(entity, KEY, step[3])
            continue
        user, client_id, value, throttle_ms = step
        tracker = setup.quotas.tracker(user, client_id, now_ms=clock.now_ms)
        recorded = 0 if tracker is None else tracker.record(value, now_ms=clock.now_ms)
        assert recorded == throttle_ms


def test_without_any_quota_there_is_nothing_to_count_with(clock: FakeClock) -> None:
    setup = Setup(clock, {})
    assert setup.quotas.tracker("u", "c", now_ms=clock.now_ms) is None
    setup.limits.set(QuotaEntity("u"), KEY, 10)
    assert setup.record("u", "c", 100) == 0  # what went before was not counted


def test_clients_of_one_user_share_a_counter_and_pairs_do_not(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100, QuotaEntity(DEFAULT, DEFAULT): 100})
    assert setup.record("u", "a", 1_000) == 0
    assert setup.record("u", "b", 1_000) == 10_000
    assert setup.record("v", "a", 1_000) == 0
    assert setup.record("v", "b", 1_000) == 0


def test_a_changed_limit_applies_to_what_was_recorded_before(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 1_000})
    assert setup.record("u", "c", 10_000) == 0
    setup.limits.set(QuotaEntity("u"), KEY, 500)
    assert setup.record("u", "c", 0) == 10_000


def test_a_new_level_counts_from_zero(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("u", "c", 10_000) > 0
    setup.limits.set(QuotaEntity("u", "c"), KEY, 100)
    assert setup.record("u", "c", 1_000) == 0
    assert setup.record("u", "other", 0) > 0


def test_the_scope_keeps_brokers_apart(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("u", "c", 1_000, scope=1) == 0
    assert setup.record("u", "c", 1_000, scope=2) == 0
    assert setup.record("u", "c", 1_000, scope=1) == 10_000


def test_a_counter_is_looked_up_once_and_again_after_a_change(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    shared = setup.tracker("u", "a")
    assert setup.tracker("u", "a") is shared
    setup.limits.set(QuotaEntity("u", "a"), KEY, 5)
    # The other client of the user looks first: that must not keep this one on the old counter.
    assert setup.tracker("u", "b") is shared
    assert setup.tracker("u", "a") is not shared


def test_unrecord_gives_back_at_the_same_instant(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    tracker = setup.tracker("u", "c")
    tracker.record(500, now_ms=clock.now_ms)
    before = tracker.rate(now_ms=clock.now_ms)
    assert tracker.record(5_000, now_ms=clock.now_ms) > 0
    tracker.unrecord(5_000, now_ms=clock.now_ms)
    assert tracker.rate(now_ms=clock.now_ms) == before


def test_unchecked_records_weigh_on_the_next_one(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    tracker = setup.tracker("u", "c")
    tracker.record_unchecked(2_000, now_ms=clock.now_ms)
    assert tracker.throttle_time_ms(now_ms=clock.now_ms) == 10_000
    assert tracker.record(0, now_ms=clock.now_ms) == 10_000


def test_observe_mode_reports_and_delays_nobody(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100, QuotaEntity("v"): 100})
    setup.limits.set_observed([QuotaEntity("u")])
    assert setup.record("u", "c", 5_000) == 0
    assert setup.tracker("u", "c").max_in_window() is None
    assert setup.record("v", "c", 5_000) > 0
    rows = {row.user: row for row in setup.quotas.snapshot(now_ms=clock.now_ms)}
    assert (rows["u"].would_throttle_total, rows["v"].would_throttle_total) == (1, 0)
    assert rows["u"].utilisation == 5
    setup.limits.set_mode(Enforcement.OBSERVE)
    assert setup.record("v", "c", 5_000) == 0
    setup.limits.set_mode(Enforcement.ENFORCE)
    setup.limits.set_observed()
    assert setup.record("u", "c", 0) > 0


def test_an_unlimited_client_is_counted_and_never_waits(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    assert setup.record("someone", "c", 10**15) == 0
    (row,) = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert (row.user, row.limit, row.rule, row.utilisation) == ("someone", None, Rule.NONE, None)
    assert row.rate == 10**14


def test_snapshot_shows_a_changed_limit_before_the_next_event(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity("u"): 100})
    setup.record("u", "c", 500)
    setup.limits.set(QuotaEntity("u"), KEY, 200)
    (row,) = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert (row.limit, row.rate, row.utilisation, row.rule) == (200, 50, 0.25, Rule.USER)


def test_hazard_c24_a_flood_of_ids_shares_one_counter_and_totals_add_up(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity(client_id=DEFAULT): 100}, max_trackers=4)
    throttled = 0
    for i in range(50):
        throttle_ms = setup.record("u", f"id-{i}", 400)
        throttled += throttle_ms > 0
        setup.tracker("u", f"id-{i}").throttles.record(throttle_ms, now_ms=clock.now_ms)
    rows = setup.quotas.snapshot(now_ms=clock.now_ms)
    assert len(rows) == 5
    assert rows[-1].other
    assert throttled > 40
    assert sum(row.throttled_total for row in rows) == throttled
    # The flood is over: the samples leave, and a client finds a place of its own again.
    clock.advance(11_000)
    assert not setup.tracker("u", "id-49").shared
    for i in range(100, 120):
        setup.tracker("u", f"id-{i}")
    assert sum(row.throttled_total for row in setup.quotas.snapshot(now_ms=clock.now_ms)) == throttled


def test_a_counter_that_was_dropped_is_not_recorded_to(clock: FakeClock) -> None:
    setup = Setup(clock, {QuotaEntity(client_id=DEFAULT): 100}, max_trackers=1)
    setup.record("u", "a", 50)
    clock.advance(11_000)
    setup.record("u", "b", 50)  # takes the only place
    clock.advance(11_000)
    setup.record("u", "a", 50)
    rows = [row for row in setup.quotas.snapshot(now_ms=clock.now_ms) if not row.other]
    assert [(row.client_id, row.rate) for row in rows] == [("a", 5)]
