"""Counters whose limits are divided anew each second, with clients that send as their waits allow."""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.lending import Brake, Cut, CutBy
from quotas.lent_rates import Lender
from quotas.limits import Enforcement, Limits
from quotas.rate_quotas import ByteRateQuotas, CounterState, RateSettings
from testkit.cases import seeds

PRODUCE, GUARANTEE = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_GUARANTEE
MB = 1_000_000
REQUEST = 20_000
START_MS = 7_300_000
STEP_MS = 10

Load = Callable[[float], float]
"""The bytes per second that a user offers at a time in seconds since the start."""


class World:
    """One gateway, with users who produce requests of one size."""

    def __init__(self, capacity: float = 100 * MB) -> None:
        self.request = max(REQUEST, int(capacity / 500))
        self.limits = Limits()
        self.quotas = ByteRateQuotas(self.limits, PRODUCE, RateSettings())
        self.lender = Lender(self.limits, PRODUCE, capacity, now_ms=START_MS)
        self.quotas.lend(self.lender, now_ms=START_MS)
        self.limits.set_divided({PRODUCE})

    def user(self, name: str, ceiling: float = 100 * MB, **more: float) -> None:
        """Sets the quotas of a user."""
        self.limits.set(QuotaEntity(user=name), PRODUCE, ceiling)
        for key, value in more.items():
            self.limits.set(QuotaEntity(user=name), QuotaKey(key), value)

    def run(
        self, loads: Mapping[str, Load], seconds: int, events: Mapping[int, Callable[[], None]] | None = None
    ) -> dict[str, list[float]]:
        """What each user passes in each second; a user sends when it has something and does not wait.

        Args:
            loads: by user.
            seconds: how long.
            events: by second, what happens then.
        """
        passed: dict[str, list[float]] = defaultdict(lambda: [0.0] * seconds)
        backlog = dict.fromkeys(loads, 0.0)
        until_ms = dict.fromkeys(loads, 0)
        request = self.request
        for now_ms in range(START_MS, START_MS + seconds * 1000, STEP_MS):
            at_s = (now_ms - START_MS) / 1000
            if now_ms % 1000 == 0:
                (events or {}).get(int(at_s), lambda: None)()
                list(self.quotas.divide(now_ms=now_ms))
            for user, load in loads.items():
                offered = load(at_s)
                if not offered and backlog[user] < request:
                    continue
                # What cannot be sent for a second is given up: a client has bounded buffers.
                backlog[user] = min(backlog[user] + offered * STEP_MS / 1000, offered + request)
                while backlog[user] >= request and now_ms >= until_ms[user]:
                    tracker = self.quotas.tracker(user, "", now_ms=now_ms)
                    assert tracker is not None
                    beside = self.quotas.shared_by_new(tracker, now_ms=now_ms)
                    if now_ms < tracker.blocked_until_ms:
                        until_ms[user] = math.ceil(tracker.blocked_until_ms)
                        break
                    if wait_ms := max((each.wait_ms(user, request, now_ms=now_ms) for each in beside), default=0):
                        until_ms[user] = now_ms + wait_ms
                        break
                    for each in beside:
                        each.record(request, now_ms=now_ms)
                    until_ms[user] = now_ms + tracker.record(request, now_ms=now_ms)
                    backlog[user] -= request
                    passed[user][int(at_s)] += request
        return passed


def always(mb: float) -> Load:
    return lambda _at_s: mb * MB


def within(first_s: float, last_s: float, mb: float = 30) -> Load:
    return lambda at_s: mb * MB * (first_s <= at_s < last_s)


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def test_what_is_not_used_is_lent_and_nothing_is_left() -> None:
    world = World()
    world.user("idle", producer_byte_guarantee=60 * MB)
    world.user("hungry", producer_byte_guarantee=20 * MB)
    passed = world.run({"idle": always(10), "hungry": always(300)}, 40)
    assert mean(passed["idle"][20:]) == pytest.approx(10 * MB, rel=0.02)
    assert mean(passed["hungry"][20:]) + mean(passed["idle"][20:]) == pytest.approx(100 * MB, rel=0.05)


@pytest.mark.parametrize("part", [0.1, 0.3, 0.37])
def test_a_client_that_never_waits_keeps_nothing_that_it_does_not_use(part: float) -> None:
    """Its bucket holds a request at most divisions, and still it wants no more than it uses."""
    world = World(MB)
    world.user("steady", MB, producer_byte_guarantee=0.3 * MB)
    world.user("greedy", MB, weight=2.0)
    world.user("other", MB)
    passed = world.run({"steady": always(part), "greedy": always(2), "other": always(2)}, 40)
    assert mean(passed["steady"][10:]) == pytest.approx(part * MB, rel=0.02)
    assert mean(passed["greedy"][10:]) + mean(passed["other"][10:]) >= (0.97 - part) * MB


def test_a_lender_has_its_guarantee_back_at_once() -> None:
    """In each 10 seconds from the moment when it wants it; the borrower follows within two."""
    world = World()
    world.user("lender", producer_byte_guarantee=60 * MB)
    world.user("borrower", producer_byte_guarantee=20 * MB)
    passed = world.run({"lender": lambda at_s: 60 * MB * (at_s >= 20), "borrower": always(300)}, 60)
    for at in range(20, 50):
        assert mean(passed["lender"][at : at + 10]) >= 0.98 * 60 * MB
        assert mean(passed["borrower"][at : at + 10]) >= 0.98 * 20 * MB
    for at in range(22, 60):
        assert passed["lender"][at] + passed["borrower"][at] <= 1.1 * 100 * MB


def test_equals_get_equal_parts() -> None:
    """Jain's index of ten, whatever they offer beyond it."""
    world = World()
    for at in range(10):
        world.user(f"user-{at}")
    passed = world.run({f"user-{at}": always(20 + 10 * at) for at in range(10)}, 40)
    shares = [mean(values[10:]) for values in passed.values()]
    index = math.fsum(shares) ** 2 / (len(shares) * math.fsum(share**2 for share in shares))
    assert index >= 0.98
    assert 0.95 * 100 * MB <= math.fsum(shares) <= 1.02 * 100 * MB


def test_clients_that_nothing_is_set_for_share_what_is_left() -> None:
    world = World()
    world.user("guaranteed", producer_byte_guarantee=80 * MB)
    passed = world.run({"guaranteed": always(300), "unknown": always(300)}, 40)
    assert mean(passed["guaranteed"][10:]) >= 0.98 * 80 * MB
    assert math.fsum(mean(values[10:]) for values in passed.values()) <= 1.02 * 100 * MB


def test_a_new_client_never_has_more_than_the_capacity() -> None:
    world = World()
    tracker = world.quotas.tracker("new", "", now_ms=START_MS)
    assert tracker is not None
    assert tracker.match.limit == 100 * MB


def test_without_a_capacity_limits_are_those_that_are_set() -> None:
    world = World()
    world.user("alice", ceiling=5 * MB, producer_byte_guarantee=MB)
    world.quotas.lend(None, now_ms=START_MS)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    assert (tracker.match.limit, tracker.match.lent) == (5 * MB, None)


def test_what_is_only_observed_is_lent_and_never_waits() -> None:
    """Also a client without a quota, which no entity says that of."""
    world = World(capacity=MB)
    world.limits.set_mode(Enforcement.OBSERVE)
    passed = world.run({"unknown": always(5)}, 5)
    assert mean(passed["unknown"]) == pytest.approx(5 * MB, rel=0.02)


def test_a_division_that_is_observed_changes_no_limit() -> None:
    world = World(capacity=MB)
    world.lender.observe = True
    world.user("alice", ceiling=50 * MB, producer_byte_guarantee=MB)
    passed = world.run({"alice": always(5)}, 5)
    assert mean(passed["alice"]) == pytest.approx(5 * MB, rel=0.02)
    assert world.lender.last is not None
    assert world.lender.last.lent == pytest.approx(4 * MB, rel=0.05)
    assert not world.lender.last.shed  # no broker is slow


def test_switched_off_nothing_is_counted() -> None:
    world = World()
    world.limits.set_mode(Enforcement.OFF)
    assert world.quotas.tracker("alice", "", now_ms=START_MS) is None


def test_inventing_names_gets_no_more_than_the_capacity() -> None:
    """A client that changes its id with each request: each name has a share, but all of them only the capacity."""
    world = World(capacity=10 * MB)
    world.limits.set(QuotaEntity(client_id=DEFAULT), PRODUCE, 10 * MB)
    passed = [0.0] * 20
    for now_ms in range(START_MS, START_MS + 20_000, STEP_MS):
        if now_ms % 1000 == 0:
            list(world.quotas.divide(now_ms=now_ms))
        at = (now_ms - START_MS) // STEP_MS
        tracker = world.quotas.tracker("mallory", f"id-{at % 50}", now_ms=now_ms)
        assert tracker is not None
        if now_ms >= tracker.blocked_until_ms:
            tracker.record(10 * MB * STEP_MS / 100, now_ms=now_ms)  # ten times the capacity
            passed[at * STEP_MS // 1000] += 10 * MB * STEP_MS / 100
    assert mean(passed[5:]) <= 1.1 * 10 * MB


def waves(draw: random.Random) -> dict[str, Load]:
    """Clients that are all new again after some seconds, and others that want a lot from time to time."""

    def at_times(from_s: float, mb: float) -> Load:
        return lambda at_s: (30 if at_s % 10 > from_s else mb) * MB

    every_s, each, mb = draw.choice((1, 2, 4, 7)), draw.randint(1, 12), draw.uniform(1, 20)
    loads = {
        f"wave-{begin_s}-{at}": within(begin_s + draw.random(), begin_s + every_s, mb)
        for begin_s in range(0, 20, every_s)
        for at in range(each)
    }
    for at in range(draw.randint(0, 10)):
        loads[f"small-{at}"] = at_times(draw.uniform(2, 9), draw.choice((0, 0.02, 0.1)))
    return loads


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_clients_that_are_new_or_come_back_together_pass_what_one_could(seed: int) -> None:
    """In any span of time the capacity for that time and two seconds, and one request of each."""
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    passed = world.run(waves(random.Random(seed)), 20)
    total = [math.fsum(each) for each in zip(*passed.values(), strict=True)]
    for begin in range(20):
        for end in range(begin + 1, 21):
            assert math.fsum(total[begin:end]) <= 2 * MB * (end - begin + 2) + REQUEST * len(passed)


def test_names_that_a_division_knows_keep_no_place_among_those_that_are_new() -> None:
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    places = []

    def look() -> None:
        assert world.quotas._new is not None
        queue = world.quotas._new.queue
        places.append(0 if queue is None else len(queue._places))

    loads = {f"{begin_s}-{at}": within(begin_s, begin_s + 1) for begin_s in range(10) for at in range(30)}
    world.run(loads, 10, dict.fromkeys(range(1, 10), look))
    assert 0 < max(places) <= 30


def test_six_names_that_are_new_every_four_seconds_are_no_way_around_a_capacity() -> None:
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    loads = {f"{begin_s}-{at}": within(begin_s, begin_s + 4) for begin_s in range(0, 20, 4) for at in range(6)}
    passed = world.run(loads, 20)
    total = [math.fsum(each) for each in zip(*passed.values(), strict=True)]
    assert mean(total[:5]) <= 1.25 * 2 * MB
    assert mean(total[5:]) <= 1.02 * 2 * MB


@pytest.mark.parametrize("late_s", [0.0, 0.25, 0.5, 0.75, 0.95])
def test_a_crowd_that_begins_at_once_exceeds_the_capacity_by_a_tenth_in_ten_seconds(late_s: float) -> None:
    """Whenever that is between two divisions: one with a guarantee, and four that share what is left."""
    world = World(capacity=4 * MB)
    world.user("orders", producer_byte_guarantee=2 * MB)
    world.user("search", producer_byte_guarantee=0.8 * MB, weight=3)
    crowd = {f"lab-{at}": within(8 + late_s, 30) for at in range(4)}
    for name in crowd:
        world.user(name, ceiling=1.2 * MB)
    passed = world.run({"orders": always(2), "search": within(8 + late_s, 30), **crowd}, 30)
    total = [math.fsum(each) for each in zip(*passed.values(), strict=True)]
    assert max(mean(total[at : at + 10]) for at in range(20)) <= 1.1 * 4 * MB


def test_a_guarantee_that_was_not_used_is_all_that_its_client_has_until_the_next_division() -> None:
    """What is left beside it is for other new clients."""
    world = World(capacity=4 * MB)
    world.user("guaranteed", producer_byte_guarantee=MB)
    tracker = world.quotas.tracker("guaranteed", "", now_ms=START_MS)
    assert tracker is not None
    assert tracker.match.limit == MB
    tracker.record(REQUEST, now_ms=START_MS)
    list(world.quotas.divide(now_ms=START_MS + 1_000))
    assert tracker.match.limit == 4 * MB


def test_a_guarantee_does_not_wait_for_new_clients() -> None:
    """Each second twenty names that are new want all of the capacity."""
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    world.user("guaranteed", ceiling=2 * MB, producer_byte_guarantee=MB)
    loads = {f"{begin_s}-{at}": within(begin_s, begin_s + 1) for begin_s in range(20) for at in range(20)}
    passed = world.run({**loads, "guaranteed": always(1)}, 20)
    for at in range(10):
        assert mean(passed["guaranteed"][at : at + 10]) >= 0.98 * MB


def test_a_guarantee_of_a_default_is_none_for_new_names() -> None:
    """As many clients have it as can be invented."""
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(client_id=DEFAULT), PRODUCE, 2 * MB)
    world.limits.set(QuotaEntity(client_id=DEFAULT), GUARANTEE, MB)
    world.limits.set(QuotaEntity(client_id="named"), PRODUCE, 2 * MB)
    world.limits.set(QuotaEntity(client_id="named"), GUARANTEE, MB)
    shared = {
        client_id: world.quotas.shared_by_new(world.quotas.tracker("", client_id, now_ms=START_MS), now_ms=START_MS)
        for client_id in ("invented", "other", "named")
    }
    assert shared["invented"] == shared["other"] != ()
    assert shared["named"] == ()


def test_a_new_counter_with_a_guarantee_is_looked_up_once_until_the_next_division() -> None:
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(client_id="named"), PRODUCE, 2 * MB)
    world.limits.set(QuotaEntity(client_id="named"), GUARANTEE, MB)
    now_ms = START_MS
    tracker = world.quotas.tracker("", "named", now_ms=now_ms)
    assert tracker is not None
    for turn in range(3):
        assert tracker.good_until_ms == now_ms
        assert world.quotas.shared_by_new(tracker, now_ms=now_ms) == ()
        assert tracker.good_until_ms == now_ms + 1_000
        tracker.record(1, now_ms=now_ms)
        # It came, so the division gives it a share; after one without any use it is new, or two where it used any.
        looked_up_again = []
        for _ in range(3):
            now_ms += 1_000
            list(world.quotas.divide(now_ms=now_ms))
            looked_up_again.append(tracker.good_until_ms != math.inf)
        assert looked_up_again == [False, turn == 0, True]


def test_a_capacity_that_goes_leaves_nothing_to_be_looked_up_again() -> None:
    world = World(capacity=MB)
    world.user("alice", ceiling=5 * MB)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    assert tracker.good_until_ms == START_MS
    assert world.quotas.shared_by_new(tracker, now_ms=START_MS) != ()
    world.quotas.lend(None, now_ms=START_MS)
    assert world.quotas.tracker("alice", "", now_ms=START_MS) is tracker
    assert world.quotas.shared_by_new(tracker, now_ms=START_MS) == ()
    assert tracker.good_until_ms == math.inf


def test_a_client_that_comes_back_and_has_to_wait_is_known_to_the_next_division() -> None:
    world = World(capacity=2 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)

    def is_new(now_ms: int) -> bool:
        tracker = world.quotas.tracker("alice", "", now_ms=now_ms)
        return world.quotas.shared_by_new(tracker, now_ms=now_ms) != ()

    assert is_new(START_MS)
    for at in (1, 2):  # nothing was used: the second one forgets it
        list(world.quotas.divide(now_ms=START_MS + at * 1_000))
    assert is_new(START_MS + 2_500)
    list(world.quotas.divide(now_ms=START_MS + 3_000))
    assert not is_new(START_MS + 3_500)


def test_a_client_without_a_quota_that_was_there_before_the_capacity_gets_its_limit_once_it_is_used() -> None:
    limits = Limits()
    quotas = ByteRateQuotas(limits, PRODUCE, RateSettings())
    limits.set(QuotaEntity(user="bob"), PRODUCE, MB)
    tracker = quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    assert tracker.match.limit is None
    quotas.lend(Lender(limits, PRODUCE, 10 * MB, now_ms=START_MS), now_ms=START_MS)
    list(quotas.divide(now_ms=START_MS + 1_000))
    tracker.record(REQUEST, now_ms=START_MS + 1_500)  # of an answer that was under way, say: it is not looked up
    list(quotas.divide(now_ms=START_MS + 2_000))
    assert tracker.match.limit == pytest.approx(10 * MB, rel=0.01)


@pytest.mark.parametrize(("part", "waiting"), [(0.4, 0), (0.6, 1)])
def test_a_client_whose_bucket_is_nearly_full_wants_more_than_it_used(part: float, waiting: int) -> None:
    world = World(capacity=MB)
    world.user("alice", ceiling=MB)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    list(world.quotas.divide(now_ms=START_MS + 1_000))
    tracker.record(part * MB, now_ms=START_MS + 2_000)
    list(world.quotas.divide(now_ms=START_MS + 2_000))
    assert world.lender.last is not None
    assert world.lender.last.waiting == waiting


def test_members_of_a_fleet_divide_one_capacity() -> None:
    """Each hears within 100 ms what the other has recorded, and divides for itself."""
    members = [World(), World()]
    for world in members:
        for name in ("alice", "bob"):
            world.user(name, producer_byte_guarantee=30 * MB)
    seconds = 30
    passed = {name: [0.0] * seconds for name in ("alice", "bob")}
    told: dict[tuple[int, str], float] = defaultdict(float)
    until_ms: dict[tuple[int, str], float] = defaultdict(float)
    for now_ms in range(START_MS, START_MS + seconds * 1000, STEP_MS):
        if now_ms % 1000 == 0:
            for world in members:
                list(world.quotas.divide(now_ms=now_ms))
        for at, world in enumerate(members):
            for name, mb in (("alice", 200), ("bob", 20)):
                tracker = world.quotas.tracker(name, "", now_ms=now_ms)
                assert tracker is not None
                if now_ms >= max(until_ms[at, name], tracker.blocked_until_ms):
                    sent = mb / 2 * MB * STEP_MS / 1000
                    until_ms[at, name] = now_ms + tracker.record(sent, now_ms=now_ms)
                    told[at, name] += sent
                    passed[name][(now_ms - START_MS) // 1000] += sent
                if now_ms % 100 == 0:
                    other = members[1 - at].quotas.tracker(name, "", now_ms=now_ms)
                    assert other is not None
                    other.record_others(told.pop((at, name), 0.0), now_ms=now_ms)
    assert mean(passed["bob"][10:]) == pytest.approx(20 * MB, rel=0.02)
    assert mean(passed["alice"][10:]) == pytest.approx(80 * MB, rel=0.05)


def test_what_was_recorded_before_is_no_use_of_now() -> None:
    """A capacity that is set while clients are served: the first division knows only what it has seen."""
    limits = Limits()
    quotas = ByteRateQuotas(limits, PRODUCE, RateSettings())
    limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 10 * MB)
    for at in range(20):
        tracker = quotas.tracker(f"user-{at}", "", now_ms=START_MS)
        assert tracker is not None
        tracker.record(90 * MB, now_ms=START_MS)
    later_ms = START_MS + 1_800_000
    lender = Lender(limits, PRODUCE, 10 * MB, now_ms=later_ms)
    quotas.lend(lender, now_ms=later_ms)
    limits.set_divided({PRODUCE})
    list(quotas.divide(now_ms=later_ms + 1000))
    assert lender.last is not None
    assert (lender.last.lent, lender.last.waiting) == (0, 0)


def test_a_look_up_leaves_the_limit_of_a_client_that_uses_it() -> None:
    """Another client id of the user, or another user's quota, must not lower what the last division gave."""
    world = World(capacity=10 * MB)
    world.user("alice", ceiling=10 * MB)
    world.run({"alice": always(8)}, 5)
    now_ms = START_MS + 5_000
    tracker = world.quotas.tracker("alice", "", now_ms=now_ms)
    assert tracker is not None
    before = tracker.match.limit
    assert before is not None
    assert before >= 8 * MB
    world.user("bob", ceiling=MB)
    for client_id in ("", "invented"):
        assert world.quotas.tracker("alice", client_id, now_ms=now_ms) is tracker
        assert tracker.match.limit == before


@pytest.mark.parametrize(
    ("used", "limit", "blocked_ms"),
    [(600, 4_000, -400), (600, 250, -400), (11_000, 10_000, 1_000), (1_500, 4_000, 125), (1_500, 250, 2_000)],
)
def test_a_bucket_stays_full_to_the_same_part_and_a_debt_keeps_its_amount_when_the_limit_changes(
    used: int, limit: int, blocked_ms: int
) -> None:
    """The bucket holds 1,000 bytes, which is one second of the first limit."""
    world = World(capacity=10_000)
    world.user("alice", ceiling=10_000)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    tracker.bind(replace(tracker.match, limit=1_000), tracker.version, now_ms=START_MS)
    assert tracker.record(used, now_ms=START_MS) == max(0, used - 1_000)
    tracker.bind(replace(tracker.match, limit=limit), tracker.version, now_ms=START_MS)
    assert tracker.blocked_until_ms - START_MS == pytest.approx(blocked_ms, abs=1e-6)


def test_swings_of_the_limit_forgive_nothing_of_a_debt() -> None:
    """As by clients that are busy for a while and idle for a while, perhaps on purpose."""
    world = World(capacity=10_000)
    world.user("alice", ceiling=10_000)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    tracker.bind(replace(tracker.match, limit=1_000), tracker.version, now_ms=START_MS)
    tracker.record(101_000, now_ms=START_MS)
    for limit in [100, 1_000] * 5:
        tracker.bind(replace(tracker.match, limit=limit), tracker.version, now_ms=START_MS)
    assert tracker.blocked_until_ms - START_MS == pytest.approx(100_000)


def braked(world: World, part: float, *, first_s: int, seconds: int, tier: int = 3) -> Callable[[], None]:
    until_ms = START_MS + (first_s + seconds) * 1000

    def begin() -> None:
        before = world.limits.brakes.get(tier)
        use = world.lender.used_by(tier)
        assert use is not None
        used = {PRODUCE: use} if before is None else before.used
        world.limits.brakes = {tier: Brake(part, until_ms, "ops", used)}

    return begin


def test_a_brake_leaves_a_part_to_its_tier_and_the_rest_to_others_until_it_ends() -> None:
    world = World(10 * MB)
    world.user("web")
    world.user("logs", tier=3, producer_byte_guarantee=2 * MB)
    world.user("copy", tier=3, weight=3)
    loads = {"web": always(30), "logs": always(2), "copy": always(30)}
    events = {20: braked(world, 0.2, first_s=20, seconds=20), 30: braked(world, 0.2, first_s=20, seconds=20)}
    passed = world.run(loads, 60, events)

    def mean(user: str, first_s: int) -> float:
        return sum(passed[user][first_s : first_s + 10]) / 10 / MB

    before = mean("logs", 10) + mean("copy", 10)
    assert before == pytest.approx(8, rel=0.05)  # 2 guaranteed, and three parts of four of the rest
    for first_s in (22, 30):  # also after it was set again
        assert mean("logs", first_s) + mean("copy", first_s) == pytest.approx(0.2 * before, rel=0.1)
        assert mean("web", first_s) == pytest.approx(10 - 0.2 * before, rel=0.1)
    assert mean("logs", 45) + mean("copy", 45) == pytest.approx(before, rel=0.1)


def test_a_brake_leaves_the_same_after_a_reload_of_the_capacity_and_in_a_new_process() -> None:
    world = World()
    world.user("web")
    world.user("copy", tier=3)

    def reload() -> None:
        world.lender = Lender(world.limits, PRODUCE, 110 * MB, now_ms=START_MS + 25_000)
        world.quotas.lend(world.lender, now_ms=START_MS + 25_000)

    events = {15: braked(world, 0.5, first_s=15, seconds=100), 25: reload}
    passed = world.run({"web": always(30), "copy": always(60)}, 40, events)
    assert sum(passed["copy"][28:]) / 12 == pytest.approx(30 * MB, rel=0.05)


@pytest.mark.parametrize("seed", seeds(8, 20))
def test_a_brake_bounds_its_tier_whatever_others_and_their_quotas_are(seed: int) -> None:
    draw = random.Random(seed)
    world = World(10 * MB)
    tiers = {}
    for at in range(draw.randrange(2, 8)):
        tiers[f"u{at}"] = draw.choice((0, 2, 3))
        more = {"producer_byte_guarantee": draw.choice((0.5, 1)) * MB} if draw.random() < 0.3 else {}
        world.user(f"u{at}", draw.choice((2, 5, 100)) * MB, tier=tiers[f"u{at}"], weight=draw.choice((1, 4)), **more)
    loads = {user: always(draw.choice((1, 3, 30))) for user in tiers}
    part = draw.choice((0.1, 0.5, 1.0))
    passed = world.run(loads, 40, {15: braked(world, part, first_s=15, seconds=100)})
    of_tier = [sum(passed[user][at] for user, tier in tiers.items() if tier == 3) for at in range(40)]
    used = sum(of_tier[5:15]) / 10
    # One second to divide anew, and a bucket of one second.
    assert sum(of_tier[17:]) <= max(part * used, 0.001 * 10 * MB) * 24 * 1.05 + len(tiers) * REQUEST


@pytest.mark.parametrize("seed", seeds(4, 12))
def test_new_names_and_names_that_come_back_pass_what_a_brake_leaves_to_their_tier(seed: int) -> None:
    """In any span of time the brake for that time and two seconds, and one request of each."""
    world = World(10 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), QuotaKey.TIER, 3)
    world.user("web", tier=1)
    most = random.Random(seed).choice((1, 2)) * MB
    world.limits.brakes = {3: Brake(1.0, START_MS + 100_000, "ops", {PRODUCE: most})}
    passed = world.run({**waves(random.Random(seed)), "web": always(2)}, 20)
    web = passed.pop("web")
    total = [math.fsum(each) for each in zip(*passed.values(), strict=True)]
    for begin in range(1, 20):  # the brake is in force from the first division on
        for end in range(begin + 1, 21):
            assert math.fsum(total[begin:end]) <= most * (end - begin + 2) + REQUEST * len(passed)
    assert mean(web[2:]) >= 0.95 * 2 * MB


@pytest.mark.slow
@pytest.mark.parametrize(("count", "life_s"), [(1, 1.0), (20, 1.0), (60, 2.5)])
def test_names_that_are_new_each_second_get_no_more_than_a_brake_leaves(count: int, life_s: float) -> None:
    """Sixty names of one request each would be more than the brake."""
    world = World(10 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    world.user("web", tier=1)
    world.limits.brakes = {2: Brake(1.0, START_MS + 12_000, "ops", {PRODUCE: MB})}
    loads = {f"{begin_s}-{at}": within(begin_s, begin_s + life_s) for begin_s in range(16) for at in range(count)}
    passed = world.run({**loads, "web": always(3)}, 16)
    web = passed.pop("web")
    total = [math.fsum(each) for each in zip(*passed.values(), strict=True)]
    assert mean(total[2:12]) <= 1.02 * MB
    assert mean(web[2:12]) >= 0.98 * 3 * MB
    assert mean(total[13:]) >= 2 * MB  # its end ends the counter that they share


def test_new_names_share_what_known_clients_of_a_braked_tier_do_not_use() -> None:
    world = World(10 * MB)
    world.limits.brakes = {2: Brake(1.0, START_MS + 100_000, "ops", {PRODUCE: MB})}
    world.run({"known": always(0.6)}, 8)
    assert world.lender.left_of_tiers[2].limit == pytest.approx(0.4 * MB, rel=0.05)


def test_names_that_live_for_less_than_a_division_count_as_use_of_their_tier() -> None:
    """A brake would leave a thousandth of the capacity to them otherwise."""
    world = World(10 * MB)
    world.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 100 * MB)
    loads = {f"{second}": within(second + 0.2, second + 0.7, 4) for second in range(12)}
    world.run(loads, 12)
    assert world.lender.used_by(2) == pytest.approx(2 * MB, rel=0.05)


@pytest.mark.parametrize("after_s", [0, 1, 2, 5])
def test_what_a_tier_uses_is_known_through_a_reload_of_the_capacity(after_s: int) -> None:
    """A brake would leave a thousandth of the capacity to it otherwise."""
    world = World(10 * MB)
    world.user("copy", tier=3)
    used = []

    def reload() -> None:
        world.quotas.lend(Lender(world.limits, PRODUCE, 20 * MB, now_ms=START_MS + 19_700), now_ms=START_MS + 19_700)
        world.limits.set_divided({PRODUCE})

    def ask() -> None:
        assert world.quotas.lender is not None
        used.append(world.quotas.lender.used_by(3))

    events = {20: reload, 20 + after_s: (lambda: (reload(), ask())[1]) if not after_s else ask}
    world.run({"copy": always(4)}, 28, events)
    assert used == [pytest.approx(4 * MB, rel=0.05)]


def test_of_the_first_division_it_is_not_known_what_a_tier_uses() -> None:
    """Of counters of the process before, say, it is not known when they recorded what they hold."""
    world = World(10 * MB)
    world.user("copy", tier=3)
    tracker = world.quotas.tracker("copy", "", now_ms=START_MS)
    assert tracker is not None
    tracker.take_over(CounterState([(START_MS - 9_000, START_MS, 10.0 * MB)]), now_ms=START_MS)
    list(world.quotas.divide(now_ms=START_MS + 1_000))
    assert world.lender.used_by(3) is None
    tracker.record(2 * MB, now_ms=START_MS + 1_500)
    list(world.quotas.divide(now_ms=START_MS + 2_000))
    assert world.lender.used_by(3) == 2 * MB


def overloaded(world: World, usable_part: float, *, sheds: bool = True) -> Callable[[], None]:
    def event() -> None:
        world.lender.usable_part, world.lender.sheds = usable_part, sheds

    return event


def test_slow_brokers_cost_the_lowest_tiers_first_and_never_guarantees_of_tier_0() -> None:
    world = World(10 * MB)
    world.user("orders", tier=0, producer_byte_guarantee=4 * MB)
    world.user("search", tier=1)
    world.user("lab", tier=3)
    loads = {"orders": always(30), "search": always(30), "lab": always(30)}
    passed = world.run(loads, 80, {20: overloaded(world, 0.85), 40: overloaded(world, 0.2), 60: overloaded(world, 1)})
    before, mild, hard, after = (
        {user: mean(passed[user][first_s : first_s + 15]) / MB for user in loads} for first_s in (5, 25, 45, 65)
    )
    assert before == pytest.approx({"orders": 6, "search": 2, "lab": 2}, rel=0.05)
    assert mild == pytest.approx({"orders": 6, "search": 2, "lab": 0.5}, rel=0.1)
    assert hard == pytest.approx({"orders": 4, "search": 0.1, "lab": 0.1}, rel=0.1)
    assert after == pytest.approx(before, rel=0.05)


def test_a_limit_says_which_cut_it_comes_from_while_that_is_what_limits() -> None:
    world = World(10 * MB)
    world.user("orders", tier=0)
    world.user("lab", tier=3)
    world.user("small", MB / 100, tier=3)
    seen: list[tuple[Cut | None, ...]] = []

    def look() -> None:
        trackers = [world.quotas.tracker(user, "", now_ms=START_MS + 60_000) for user in ("orders", "lab", "small")]
        seen.append(tuple(None if each is None else each.match.cut for each in trackers))

    def slow() -> None:
        overloaded(world, 0.8)()
        world.lender.slow_since_ms = START_MS + 40_000

    events = {
        19: look, 20: braked(world, 0.5, first_s=20, seconds=20), 39: look,
        41: slow, 59: look, 60: overloaded(world, 1), 79: look,
    }  # fmt: skip
    world.run({"orders": always(30), "lab": always(30), "small": always(1)}, 80, events)
    assert seen[0] == seen[3] == (None, None, None)
    brake = Cut(CutBy.BRAKE, 3, 0.5, until_ms=START_MS + 40_000, author="ops")
    assert seen[1] == (None, brake, None)  # the quota of the small one is less than its part
    of_orders, of_lab, of_small = seen[2]
    assert of_orders == Cut(CutBy.OVERLOAD, 0, 1.0, from_ms=START_MS + 40_000)  # it does not get what others lose
    assert of_lab is not None
    assert (of_lab.by, of_lab.tier, of_small) == (CutBy.OVERLOAD, 3, None)
    assert of_lab.part == pytest.approx(0.6, abs=0.01)


def test_what_tiers_lend_borrow_and_lose_is_the_sum_of_their_clients() -> None:
    world = World(10 * MB)
    world.user("idle", tier=0, producer_byte_guarantee=4 * MB)
    world.user("orders", tier=0, producer_byte_guarantee=2 * MB)
    world.user("lab", tier=3)
    world.run({"idle": within(0, 5, 1), "orders": always(3), "lab": always(30)}, 30, {15: overloaded(world, 0.7)})
    last = world.lender.last
    assert last is not None
    assert last.tiers[0].lent == pytest.approx(4 * MB)
    assert last.tiers[0].borrowed == pytest.approx(1 * MB, rel=0.05)
    assert last.tiers[3].borrowed == pytest.approx(4 * MB, rel=0.05)
    assert (last.tiers[0].shed, last.tiers[1].shed, last.tiers[2].shed) == (0, 0, 0)
    assert last.tiers[3].shed == pytest.approx(3 * MB, rel=0.05)


def test_a_brake_and_slow_brokers_leave_the_lower_of_both_and_each_ends_by_itself() -> None:
    world = World(10 * MB)
    world.user("orders", tier=0, producer_byte_guarantee=4 * MB)
    world.user("lab", tier=3)
    events = {20: braked(world, 0.2, first_s=20, seconds=40), 40: overloaded(world, 0.85), 80: overloaded(world, 1)}
    passed = world.run({"orders": always(30), "lab": always(30)}, 100, events)
    before, brake, both, slow, after = (
        (mean(passed["orders"][first_s : first_s + 15]) / MB, mean(passed["lab"][first_s : first_s + 15]) / MB)
        for first_s in (5, 24, 44, 64, 84)
    )
    assert before == pytest.approx((7, 3), rel=0.05)
    assert brake == pytest.approx((9.4, 0.6), rel=0.05)
    # Tier 3 loses first, down to 5 % of what its brake leaves.
    assert both == pytest.approx((8.47, 0.03), rel=0.1)
    assert slow == pytest.approx((7, 1.5), rel=0.05)
    assert after == pytest.approx(before, rel=0.05)


def test_an_overload_that_is_only_observed_changes_no_limit() -> None:
    world = World(10 * MB)
    world.user("web", tier=1)
    world.user("lab", tier=3)
    loads = {"web": always(30), "lab": always(30)}
    passed = world.run(loads, 40, {20: overloaded(world, 0.6, sheds=False)})
    assert mean(passed["lab"][25:]) == pytest.approx(5 * MB, rel=0.05)
    assert world.lender.last is not None
    assert world.lender.last.shed == pytest.approx({3: 1 * MB}, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_tiers_that_change_all_the_time_let_no_more_pass_than_brokers_take(seed: int) -> None:
    rng = random.Random(seed)
    world = World(10 * MB)
    world.user("orders", tier=0, producer_byte_guarantee=2 * MB)
    users = [f"user-{at}" for at in range(4)]
    for user in users:
        world.user(user)

    def flip() -> None:
        overloaded(world, 0.6)()
        for user in users:
            world.limits.set(QuotaEntity(user=user), QuotaKey("tier"), rng.randrange(4))

    loads = dict.fromkeys(["orders", *users], always(30))
    passed = world.run(loads, 40, dict.fromkeys(range(5, 40), flip))
    assert mean([sum(each[at] for each in passed.values()) for at in range(10, 40)]) <= 1.1 * 6 * MB
    assert mean(passed["orders"][10:]) >= 0.98 * 2 * MB


def test_a_division_that_another_capacity_overtakes_leaves_nothing_to_new_counters() -> None:
    world = World(capacity=2 * MB)
    world.user("alice", ceiling=MB)
    tracker = world.quotas.tracker("alice", "", now_ms=START_MS)
    assert tracker is not None
    world.lender.usable_part, world.lender.sheds = 0.1, True
    for at in range(3):
        list(world.quotas.divide(now_ms=START_MS + at * 1_000))
        tracker.record(MB / 2, now_ms=START_MS + at * 1_000)
    now_ms = START_MS + 3_000
    before = world.quotas.divide(now_ms=now_ms)
    next(before)
    world.quotas.lend(Lender(world.limits, PRODUCE, MB, now_ms=now_ms), now_ms=now_ms)
    left = world.quotas.shared_by_new(tracker, now_ms=now_ms)
    list(before)
    assert len(world.lender.left_of_tiers) > 0
    assert world.quotas.shared_by_new(tracker, now_ms=now_ms) == left != ()
