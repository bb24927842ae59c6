import pytest

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RateTracker
from quotas.resolution import Match, TrackerKey, resolve
from quotas.set_aside import bind_alike
from testkit.clock import FakeClock

KEY = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity("alice")
LIMIT = 4_000
TWO_WINDOWS = 22 * LIMIT


class Member:
    """One of four with one limit."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.limits = Limits()
        self.limits.set(ALICE, KEY, LIMIT)
        self.quotas = ByteRateQuotas(self.limits, KEY, RateSettings())

    @property
    def tracker(self) -> RateTracker:
        found = self.quotas.tracker("alice", "c", now_ms=self.clock.now_ms)
        assert found is not None
        return found

    def record(self, value: float) -> int:
        return self.tracker.record(value, now_ms=self.clock.now_ms)

    @property
    def fill(self) -> float:
        return self.tracker.level(now_ms=self.clock.now_ms)[1]


def test_a_client_at_its_limit_stays_there_while_its_gateway_is_cut_off_and_when_it_is_back(clock: FakeClock) -> None:
    member = Member(clock)
    for _ in range(200):
        member.record(100)
        member.tracker.record_others(300, now_ms=clock.now_ms)
        clock.advance(100)
    member.limits.set_share(1 / 4)
    # All that the fleet used, measured against a fourth of the limit, was a wait of 33 s.
    for _ in range(80):
        assert member.record(100) <= 100
        clock.advance(100)
    assert member.record(5_000) > 3_000, "a fourth, and no more"
    clock.advance(5_000)
    # Back in touch: what others report is theirs until the whole limit is in force.
    member.tracker.record_others(13 * 3_000, now_ms=clock.now_ms)
    member.tracker.raise_to(0, 13 * 3_000, now_ms=clock.now_ms)
    assert member.record(100) <= 100
    member.limits.set_share(1)
    assert member.record(100) < 2_000
    total, _ = member.tracker.level(now_ms=clock.now_ms)
    assert total == 13 * 3_000 + 6 * 1_000 + 5_000 + 200


def test_what_a_gateway_let_through_is_not_forgiven_by_being_cut_off(clock: FakeClock) -> None:
    member = Member(clock)
    member.record(TWO_WINDOWS)
    for share in (1 / 2, 1 / 4, 1 / 2, 1, 1 / 4):
        member.limits.set_share(share)
        assert member.fill == pytest.approx(TWO_WINDOWS)
        assert member.tracker.reading(now_ms=clock.now_ms)[3] == 0, "neither more nor less blocked"
    clock.advance(6_000)
    member.record(1_000)
    assert member.fill == pytest.approx(TWO_WINDOWS - 6 * LIMIT + 1_000)
    member.tracker.record_others(5_000, now_ms=clock.now_ms)
    member.limits.set_share(1)
    assert member.fill == pytest.approx(TWO_WINDOWS - 6 * LIMIT + 6_000)
    clock.advance(60_000)
    assert member.fill == 0


def test_a_counter_that_begins_without_touch_counts_what_others_tell_once_it_is_back(clock: FakeClock) -> None:
    member = Member(clock)
    member.limits.set_share(1 / 4)
    assert member.record(100) == 0
    member.tracker.raise_to(30_000, 60_000, now_ms=clock.now_ms)
    member.tracker.raise_to(30_000, 60_000, now_ms=clock.now_ms)
    assert member.tracker.level(now_ms=clock.now_ms)[0] == 30_000
    assert not member.tracker.forgettable(now_ms=clock.advance(12_000))
    assert member.record(0) == 0
    # What is put aside empties by the rest of the limit, and the average by time.
    assert member.fill == pytest.approx(60_000 - 100 - 12 * LIMIT * 3 / 4)
    member.limits.remove(ALICE, KEY)
    member.limits.set(ALICE, KEY, LIMIT)
    member.limits.set_share(1)
    assert member.tracker.level(now_ms=clock.now_ms)[0] == 0


def test_a_process_that_takes_over_before_it_is_in_touch_asks_for_no_longer_waits(clock: FakeClock) -> None:
    before, after = Member(clock), Member(clock)
    before.record(TWO_WINDOWS + 4_000)
    after.limits.set_share(1 / 4)
    after.tracker.take_over(before.tracker.state(now_ms=clock.now_ms), now_ms=clock.now_ms)
    blocked_ms = [each.tracker.reading(now_ms=clock.now_ms)[3] for each in (before, after)]
    assert blocked_ms == [1_000, 1_000]
    assert after.fill == before.fill
    again = Member(clock)
    again.tracker.take_over(after.tracker.state(now_ms=clock.now_ms), now_ms=clock.now_ms)
    assert again.tracker.level(now_ms=clock.now_ms) == pytest.approx(before.tracker.level(now_ms=clock.now_ms))


def test_what_others_told_is_forgotten_while_touch_comes_and_goes(clock: FakeClock) -> None:
    member = Member(clock)
    for share in (1 / 4, 1):
        member.limits.set_share(share)
        for _ in range(600):
            assert member.record(95) == 0
            member.tracker.record_others(285, now_ms=clock.now_ms)
            clock.advance(100)
    assert member.tracker.level(now_ms=clock.now_ms)[0] < 12 * LIMIT


def test_what_others_told_lasts_no_longer_for_having_been_put_aside(clock: FakeClock) -> None:
    cut_off, in_touch = Member(clock), Member(clock)
    cut_off.limits.set_share(1 / 4)
    for _ in range(110):
        for each in (cut_off, in_touch):
            each.record(90)
            each.tracker.record_others(270, now_ms=clock.now_ms)
        clock.advance(100)
    cut_off.limits.set_share(1)
    for _ in range(24):
        levels = [each.tracker.level(now_ms=clock.now_ms)[0] for each in (cut_off, in_touch)]
        assert levels[0] == pytest.approx(levels[1], abs=LIMIT)
        clock.advance(500)
    assert levels == [0, 0]


def test_a_share_and_a_limit_that_change_to_the_same_product_put_nothing_aside(clock: FakeClock) -> None:
    member = Member(clock)
    member.limits.set_share(1 / 2)
    member.record(100)
    member.limits.set(ALICE, KEY, LIMIT / 2)
    member.limits.set_share(1)
    member.record(100)
    member.tracker.record_others(12 * LIMIT, now_ms=clock.now_ms)
    assert member.record(100) > 0
    member.limits.set_share(1 / 2)
    member.limits.set(ALICE, KEY, LIMIT)
    blocked_ms = member.tracker.reading(now_ms=clock.now_ms)[3]
    member.tracker.record_others(12 * LIMIT, now_ms=clock.now_ms)
    assert member.tracker.reading(now_ms=clock.now_ms)[3] == blocked_ms, "put aside"


def test_a_computed_wait_ends_when_the_quota_changes_and_stays_when_only_the_share_does(clock: FakeClock) -> None:
    member = Member(clock)
    until_ms = clock.now_ms + member.record(TWO_WINDOWS + 4_000)
    member.tracker.left_until_ms = until_ms  # of a connection that has closed
    for share in (1 / 4, 1 / 3, 1):
        member.limits.set_share(share)
        assert (member.tracker.owed_until_ms, member.tracker.left_until_ms) == (until_ms, until_ms)
    member.limits.set(ALICE, KEY, 2 * LIMIT)
    assert (member.tracker.owed_until_ms, member.tracker.left_until_ms) == (0, 0)


def test_an_observed_client_would_wait_no_longer_while_its_gateway_is_cut_off(clock: FakeClock) -> None:
    member = Member(clock)
    member.limits.set_observed({ALICE})
    for _ in range(200):
        member.record(90)
        member.tracker.record_others(270, now_ms=clock.now_ms)
        clock.advance(100)
    member.limits.set_share(1 / 4)
    member.record(90)
    member.limits.set_observed()
    for _ in range(50):
        assert member.record(90) == 0
        clock.advance(100)


def test_another_limit_empties_what_is_put_aside_at_its_own_rest(clock: FakeClock) -> None:
    member = Member(clock)
    member.limits.set_share(1 / 4)
    member.tracker.record_others(30_000, now_ms=clock.now_ms)
    member.limits.set(ALICE, KEY, LIMIT / 10)
    assert member.fill == 30_000
    clock.advance(10_000)
    assert member.fill == pytest.approx(30_000 - 10 * LIMIT / 10 * 3 / 4)


def test_a_counter_that_gives_its_place_up_takes_what_is_put_aside_along(clock: FakeClock) -> None:
    leaves, stays = Member(clock), Member(clock)
    for each in (leaves, stays):
        each.limits.set_share(1 / 4)
        each.tracker.record_others(30_000, now_ms=clock.now_ms)
    stays.tracker.absorb(leaves.tracker, now_ms=clock.now_ms)
    assert stays.fill == 60_000
    stays.limits.set_share(1)
    assert stays.tracker.level(now_ms=clock.now_ms) == (60_000, 60_000)


@pytest.mark.parametrize("algorithm", MutationAlgorithm)
def test_mutations_put_aside_follow_their_limit_and_leave_with_their_counter(
    algorithm: MutationAlgorithm, clock: FakeClock
) -> None:
    key, name = QuotaKey.CONTROLLER_MUTATION_RATE, TrackerKey("alice", "")
    limits = Limits()
    limits.set(ALICE, key, 4)
    limits.set_share(1 / 4)
    counters = []
    for _ in range(2):
        quotas = MutationQuotas(limits, MutationSettings(algorithm=algorithm))
        counter = quotas.counter_of(name, ("", ""), now_ms=clock.now_ms)
        assert counter is not None
        counter.record_others(300, now_ms=clock.now_ms)
        counters.append(counter)
    stays, leaves = counters
    stays.absorb(leaves, now_ms=clock.now_ms)
    assert stays.level(now_ms=clock.now_ms)[0] == 600
    limits.set(ALICE, key, 40)
    assert quotas.counter_of(name, ("", ""), now_ms=clock.now_ms) is leaves
    clock.advance(10_000)
    assert leaves.level(now_ms=clock.now_ms)[0] == pytest.approx(0), "300 by 30 a second"
    limits.remove(ALICE, key)
    quotas.counter_of(name, ("", ""), now_ms=clock.now_ms)
    assert leaves.forgettable(now_ms=clock.now_ms)


@pytest.mark.parametrize("algorithm", MutationAlgorithm)
def test_a_debt_of_mutations_lasts_no_longer_without_touch(algorithm: MutationAlgorithm, clock: FakeClock) -> None:
    key = QuotaKey.CONTROLLER_MUTATION_RATE
    limits = Limits()
    limits.set(ALICE, key, 5)
    quotas = MutationQuotas(limits, MutationSettings(algorithm=algorithm))
    quotas.charge("alice", "c", 65, strict=False, now_ms=clock.now_ms)
    own_ms = quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms)
    for share in (1 / 4, 1, 1 / 4):
        limits.set_share(share)
        assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == pytest.approx(own_ms, abs=1)
    counter = quotas.counter_of(TrackerKey("alice", ""), ("", ""), now_ms=clock.now_ms)
    assert counter is not None
    counter.record_others(10, now_ms=clock.now_ms)
    assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == pytest.approx(own_ms, abs=1)
    limits.set_share(1)
    assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == pytest.approx(own_ms + 2_000, abs=1)


@pytest.mark.parametrize("algorithm", MutationAlgorithm)
def test_mutations_that_were_put_aside_do_not_come_back_as_permits(
    algorithm: MutationAlgorithm, clock: FakeClock
) -> None:
    key = QuotaKey.CONTROLLER_MUTATION_RATE
    limits = Limits()
    limits.set(ALICE, key, 4)
    quotas = MutationQuotas(limits, MutationSettings(algorithm=algorithm))
    charged = quotas.charge("alice", "c", 40, strict=True, now_ms=clock.now_ms)
    clock.advance(8_000)
    quotas.charge("alice", "c", 4, strict=True, now_ms=clock.now_ms)
    limits.set_share(1 / 4)
    counter = quotas.counter_of(TrackerKey("alice", ""), ("", ""), now_ms=clock.now_ms)
    assert counter is not None
    tokens = counter.meter.tokens(now_ms=clock.now_ms)
    # What is forgotten meanwhile takes along no more than it brought.
    for _ in range(24):
        clock.advance(500)
        assert counter.meter.taken(now_ms=clock.now_ms) >= 0
        assert counter.meter.tokens(now_ms=clock.now_ms) >= tokens
    again = quotas.charge("alice", "c", 11, strict=True, now_ms=clock.now_ms)
    limits.set_share(1 / 8)
    counter = quotas.counter_of(TrackerKey("alice", ""), ("", ""), now_ms=clock.now_ms)
    assert counter is not None
    quotas.refund(again, now_ms=clock.now_ms)
    quotas.refund(charged, now_ms=clock.now_ms)
    assert counter.level(now_ms=clock.now_ms)[0] == pytest.approx(0)


def test_full_tables_forgive_nothing_while_the_share_changes(clock: FakeClock) -> None:
    member = Member(clock)
    for user in "alice", "bob":
        member.limits.set(QuotaEntity(user, DEFAULT), KEY, LIMIT)
    quotas = ByteRateQuotas(member.limits, KEY, RateSettings(max_trackers=4))

    def tracker(user: str, number: int) -> RateTracker:
        found = quotas.tracker(user, f"c{number}", now_ms=clock.now_ms)
        assert found is not None
        return found

    for number in range(4):
        tracker("alice", number).record(TWO_WINDOWS, now_ms=clock.now_ms)
    for number in range(2):  # these take the places of two, whose use a shared counter holds then
        tracker("bob", number).record(1, now_ms=clock.now_ms)
    quotas.expire(now_ms=clock.now_ms)
    assert tracker("alice", 0).level(now_ms=clock.now_ms)[1] == 2 * TWO_WINDOWS
    for share in 1 / 4, 1 / 2, 1:
        member.limits.set_share(share)
        clock.advance(1_000)
        quotas.expire(now_ms=clock.now_ms)
        assert tracker("alice", 0).level(now_ms=clock.now_ms)[1] >= 2 * TWO_WINDOWS - 3 * LIMIT


class Counter:
    """With a limit as of some version."""

    def __init__(self, limit: float | None, version: int) -> None:
        limits = Limits()
        if limit is not None:
            limits.set(ALICE, KEY, limit)
        self.match, self.version = resolve(limits, KEY, "alice", "c"), version

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        self.match, self.version = match, version


@pytest.mark.parametrize(
    ("one", "other", "limit"),
    [
        ((5, 1), (7, 2), 7),
        ((5, 2), (7, 1), 5),
        ((5, 1), (7, 1), 5),
        ((None, 2), (7, 1), 7),
        ((5, 1), (None, 2), None),
    ],
)
def test_two_counters_have_the_limit_of_the_one_looked_up_last_if_it_has_one(
    one: tuple[float | None, int], other: tuple[float | None, int], limit: float | None
) -> None:
    counters = Counter(*one), Counter(*other)
    bind_alike(*counters, now_ms=0)
    assert {each.match.limit for each in counters} == {limit}
    assert counters[0].version == counters[1].version


def test_mutations_have_the_same_permits_left_whether_a_share_shrinks_at_once_or_in_steps(clock: FakeClock) -> None:
    key = QuotaKey.CONTROLLER_MUTATION_RATE

    def tokens(*shares: float) -> list[float]:
        limits = Limits()
        limits.set(ALICE, key, 4)
        quotas = MutationQuotas(limits, MutationSettings())
        quotas.charge("alice", "c", 32, strict=True, now_ms=clock.now_ms)
        for share in shares:
            limits.set_share(share)
            counter = quotas.counter_of(TrackerKey("alice", ""), ("", ""), now_ms=clock.now_ms)
        assert counter is not None
        return [counter.meter.tokens(now_ms=clock.now_ms), *counter.level(now_ms=clock.now_ms)]

    assert tokens(1 / 2, 1 / 4) == tokens(1 / 4)
