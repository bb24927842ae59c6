"""Slow brokers: the signal that clients can't forge, and the part of a capacity that is used then."""

import random
from collections.abc import Callable

import pytest

from quotas.overload import LEAST_FOR_ERRORS, LEAST_USABLE, BrokerTimes, Health, Overload
from testkit.cases import every_case

TARGET_MS = 500


def answered(times: BrokerTimes, client: str, *took_ms: int) -> None:
    """One request after the other, on connections of their own."""
    for each in took_ms:
        sample = times.send(client, None, idle=True, now_ms=0)
        assert sample is not None
        sample.answer(now_ms=each)


def test_a_client_counts_once_with_its_fastest_request() -> None:
    times = BrokerTimes()
    answered(times, "a", 900, 30, 800)
    answered(times, "b", 20)
    answered(times, "c", 40)
    assert times.close(now_ms=1_000)[:2] == (30, 3)
    assert times.close(now_ms=2_000)[:2] == (None, 0)


def test_of_two_clients_the_faster_one_counts_and_one_alone_says_nothing() -> None:
    times = BrokerTimes()
    for first, second in ((900, 30), (30, 900), (900, 800)):
        answered(times, "a", first)
        answered(times, "b", second)
        assert times.close(now_ms=1_000)[:2] == (min(first, second), 2)
    answered(times, "a", 900)
    assert times.close(now_ms=2_000)[:2] == (None, 1)


@every_case("seed", range(50))
def test_half_of_the_clients_can_not_make_brokers_look_slow(seed: int) -> None:
    rng = random.Random(seed)
    honest = rng.randint(1, 50)
    times = BrokerTimes()
    took = [rng.randint(1, 100) for _ in range(honest)]
    for at, each in enumerate(took):
        answered(times, f"honest-{at}", each)
    for at in range(rng.randint(1, honest)):
        # Each in its own way: late, never, and behind a request that is not measured.
        if rng.random() < 0.5:
            answered(times, f"liar-{at}", 60_000)
        else:
            times.send(f"liar-{at}", None, idle=rng.random() < 0.5, now_ms=0)
    median = times.close(now_ms=60_000).time_ms
    assert median is None or median <= max(took)


def test_a_request_behind_others_counts_from_the_answer_before_it() -> None:
    times = BrokerTimes()
    answered(times, "b", 10)
    answered(times, "c", 900)
    first = times.send("a", None, idle=False, now_ms=0)
    assert first is not None
    second = times.send("a", first, idle=False, now_ms=10)
    assert second is not None
    first.answer(now_ms=5_000)
    second.answer(now_ms=5_070)
    assert second._after is None  # so a connection keeps no chain of all its requests
    assert times.close(now_ms=6_000)[:2] == (70, 3)


def test_requests_without_an_answer_are_measured_until_their_connection_ends() -> None:
    times = BrokerTimes()
    samples = [times.send(name, None, idle=True, now_ms=0) for name in "abc"]
    assert times.close(now_ms=1_000)[:2] == (1_000, 3)
    assert times.close(now_ms=2_000)[:2] == (2_000, 3)
    for sample in samples:
        assert sample is not None
        sample.dropped = True
    assert times.close(now_ms=3_000)[:2] == (None, 0)
    assert times.close(now_ms=4_000)[:2] == (None, 0)


class Fixed:
    """A connection, by the oldest request on it."""

    def __init__(self) -> None:
        self.oldest: object | None = None


def test_brokers_that_answer_nothing_are_slow_after_two_windows() -> None:
    """All measured requests have their replies, and those behind them have none."""
    times = BrokerTimes()
    connections = [Fixed() for _ in range(3)]
    for name, connection in zip("abc", connections, strict=True):
        sample = times.send(name, None, idle=True, now_ms=0)
        assert sample is not None
        times.look_at(connection, name)
        sample.answer(now_ms=20)
        connection.oldest = object()
    assert times.close(now_ms=1_000)[:2] == (20, 3)
    assert times.close(now_ms=2_000)[:2] == (1_000, 3)
    connections[0].oldest = object()  # one that makes progress has no time, and the two others are most
    assert times.close(now_ms=3_000)[:2] == (2_000, 2)
    assert times.close(now_ms=4_000)[:2] == (3_000, 3)
    answered(times, "a", 30)  # another connection of the same client is answered
    assert times.close(now_ms=5_000)[:2] == (4_000, 3)
    for connection in connections:
        connection.oldest = None
    assert times.close(now_ms=6_000)[:2] == (None, 0)
    assert not times._clients


def failed(times: BrokerTimes, client: str, *short: bool) -> None:
    """One answer after the other: whether brokers could not store the request."""
    for each in short:
        sample = times.send(client, None, idle=True, now_ms=0)
        assert sample is not None
        sample.answer(now_ms=20)
        sample.short = each


def test_a_client_counts_once_with_its_part_of_failed_answers() -> None:
    times = BrokerTimes()
    failed(times, "a", True, True, True, True)
    failed(times, "b", True, False, False, False)
    failed(times, "c", False)
    assert times.close(now_ms=1_000).errors == 0.25
    failed(times, "a", True)
    assert times.close(now_ms=2_000).errors is None


def test_an_answer_that_says_of_missing_replicas_is_no_time_of_a_broker() -> None:
    times = BrokerTimes()
    for client in "abc":
        failed(times, client, True)
        answered(times, client, 900)
    assert times.close(now_ms=1_000) == Health(900, 3, 0.5)
    for client in "abc":
        failed(times, client, True)
        times.send(client, None, idle=True, now_ms=1_000)
    assert times.close(now_ms=9_000) == Health(None, 0, 1.0)


def test_requests_pile_up_when_those_of_most_clients_meet_more_than_before() -> None:
    times = BrokerTimes()

    def window(*ahead: tuple[int, ...]) -> bool:
        for client, each in enumerate(ahead):
            for found in each:
                times.send(client, None, idle=False, ahead=found, now_ms=0)
        return times.close(now_ms=0).growing

    assert not window((0, 4), (0,), (0,))  # there is nothing to compare with
    assert not window((0, 9), (1, 9), (0, 9))  # the shortest of each client counts
    assert window((1, 5), (1, 9), (2, 2))
    assert not window((1,), (2,), (2,))
    assert not window((9,))
    assert not window((99,), (99,), (99,))  # two sent nothing in the window before


@every_case("seed", range(50))
def test_half_of_the_clients_can_not_make_brokers_look_short(seed: int) -> None:
    """Answers that fail and requests that pile up at the others' own bidding are no signal."""
    rng = random.Random(seed)
    honest = rng.randint(1, 50)
    liars = rng.randint(1, honest)
    overload = Overload(TARGET_MS, enforce=True)
    for ahead_of_liars in range(20):
        worst = 0.0
        for at in range(honest):
            fails = [rng.random() < seed / 500 for _ in range(3)]
            failed(overload.times, f"honest-{at}", *fails)
            worst = max(worst, sum(fails) / 3)
        for at in range(liars):
            for _ in range(4):
                sample = overload.times.send(f"liar-{at}", None, idle=False, ahead=ahead_of_liars, now_ms=0)
                assert sample is not None
                sample.answer(now_ms=20)
                sample.short = True
        overload.follow(overload.times.close(now_ms=20), rng.random())
        assert not overload.health.growing
        assert overload.health.errors is not None
        assert overload.health.errors <= worst
    if not seed:
        assert overload.usable == 1


def test_a_client_has_a_bounded_number_of_samples() -> None:
    times = BrokerTimes()
    assert sum(times.send("a", None, idle=True, now_ms=0) is not None for _ in range(1_000)) == 4


def run(
    overload: Overload,
    carried: Callable[[int], float],
    offered: Callable[[int], float],
    windows: int,
    noise: float = 0,
    failing: tuple[float, float] | None = None,
) -> list[float]:
    """What passes in each window; brokers queue what they can't do, and clients wait for at most a second of it.

    Each client finds a fifth of a second's queue ahead as one request. With `failing`, a queue of so many seconds is
    the shortest and the longest between which more and more answers fail; there are nine clients with four of them.
    """
    rng = random.Random(windows)
    queued, ahead, passed = 0.0, 0, []
    for at in range(windows):
        carries = carried(at)
        passed.append(min(offered(at), overload.usable, 2 * carries - queued))
        before, queued = queued, max(0.0, queued + passed[-1] - carries)
        ahead_before, ahead = ahead, int(5 * min(before, queued) / carries)
        errors = None
        if failing is not None:
            first, last = failing
            part = (queued / carries - first) / (last - first)
            errors = sorted(sum(rng.random() < part for _ in range(4)) / 4 for _ in range(9))[4]
        time_ms = (20 + 1000 * queued / carries) * rng.uniform(1 - noise, 1 + noise)
        overload.follow(Health(time_ms, 9, errors, ahead > ahead_before), passed[-1])
    return passed


@pytest.mark.parametrize("noise", [0, 0.05, 0.1])
@every_case("seed", range(30))
def test_a_step_in_load_settles_within_ten_windows(seed: int, noise: float) -> None:
    """Afterwards at most a tenth too much passes in any window, and hardly less than brokers carry."""
    rng = random.Random(seed)
    carries, times = rng.uniform(0.1, 0.9), rng.uniform(1.2, 5)
    overload = Overload(TARGET_MS, enforce=True)
    slow_at = None
    passed = []
    for at, each in enumerate(
        run(overload, lambda _: carries, lambda at: carries * (0.6 if at < 10 else times), 150, noise)
    ):
        passed.append(each / carries)
        if slow_at is None and at > 10 and each < passed[-2]:
            slow_at = at
    assert slow_at is not None
    settled = passed[slow_at + 10 :]
    assert max(settled) <= 1.1
    assert min(settled) >= 0.8
    assert sum(settled) / len(settled) == pytest.approx(1, abs=0.015)


@pytest.mark.parametrize("noise", [0, 0.1])
@pytest.mark.parametrize("target_ms", [TARGET_MS, 2 * TARGET_MS])
@every_case("seed", range(30))
def test_a_step_in_load_settles_also_where_answers_fail_first(seed: int, target_ms: int, noise: float) -> None:
    """Requests fail at random, and only a few of each client are seen: the mean is lower, and the bound the same."""
    rng = random.Random(seed)
    carries, times = rng.uniform(0.6, 0.9), rng.uniform(1.2, 2)
    overload = Overload(target_ms, enforce=True)
    offered = run(
        overload, lambda _: carries, lambda at: carries * (0.6 if at < 10 else times), 150, noise, (0.3, 0.8)
    )
    passed = [each / carries for each in offered]
    slow_at = next(at for at in range(11, len(passed)) if passed[at] < passed[at - 1])
    settled = passed[slow_at + 10 :]
    assert max(settled) <= 1.1
    assert min(settled) >= 0.7
    assert 0.9 <= sum(settled) / len(settled) <= 1.015


def test_errors_alone_leave_half_of_the_capacity_and_all_of_it_when_they_end() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    for _ in range(50):
        overload.follow(Health(20, 9, 1.0), overload.usable)
        assert overload.slow
    assert overload.usable == LEAST_FOR_ERRORS
    for _ in range(50):
        overload.follow(Health(20, 9, overload.target_errors), overload.usable)
    assert overload.usable == LEAST_FOR_ERRORS  # at the target: neither less nor more
    for _ in range(150):
        overload.follow(Health(20, 9, 0.0), overload.usable)
    assert (overload.usable, overload.slow) == (1.0, False)


def test_errors_take_nothing_more_where_brokers_were_so_slow_that_less_is_left() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    for _ in range(50):
        overload.step(30_000, overload.usable)
    overload.follow(Health(20, 9, 1.0), overload.usable)
    assert overload.usable == LEAST_USABLE


def test_the_part_does_not_grow_while_requests_pile_up() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    overload.step(1_000, 1.0)
    taken = overload.usable
    overload.follow(Health(20, 9, 0.0, growing=True), taken)
    assert overload.usable == taken < 1
    overload.follow(Health(20, 9, 0.0), taken)
    assert overload.usable > taken


@pytest.mark.parametrize("windows", [1, 2, 3, 10])
@pytest.mark.parametrize("used_first", [0.9, 0.4, 0.05])
def test_brokers_that_stalled_are_used_again_within_ten_windows(windows: int, used_first: float) -> None:
    """They took nothing meanwhile, and that is no measure of what they can take."""
    overload = Overload(TARGET_MS, enforce=True)
    overload.step(20, 0.9)
    for at in range(windows):
        overload.step(800 + 1_000 * at, 0.0 if at else used_first)
    assert overload.usable < 0.75
    for _ in range(10):
        overload.step(20, overload.usable)
    assert overload.usable > 0.85


def windows_until(overload: Overload, part: float) -> int:
    """How many windows with fast brokers pass until clients that want it may use a part of the capacity."""
    for at in range(200):
        if overload.usable >= part:
            return at
        overload.step(20, overload.usable)
    return 200


@pytest.mark.parametrize("windows", [1, 2, 3, 30])
@pytest.mark.parametrize("time_ms", [600, 1_000, 5_000])
@pytest.mark.parametrize("used", [0.0, 0.01, 0.04])
def test_slow_brokers_while_little_is_used_are_used_again_within_ten_windows(
    used: float, time_ms: int, windows: int
) -> None:
    """Most of the clients may lie while only they are there."""
    overload = Overload(TARGET_MS, enforce=True)
    for _ in range(windows):
        overload.step(time_ms, used)
    assert overload.usable == LEAST_USABLE
    assert windows_until(overload, 0.9) <= 10


@pytest.mark.parametrize("windows", [1, 2, 3, 10, 30])
@pytest.mark.parametrize("time_ms", [600, 1_000, 5_000])
@pytest.mark.parametrize("used", [0.1, 0.2, 0.3, 0.5])
def test_slow_brokers_that_get_fast_are_used_again_at_any_use(used: float, time_ms: int, windows: int) -> None:
    """That is slower: it looks like clients that had sent too much."""
    overload = Overload(TARGET_MS, enforce=True)
    overload.step(20, used)
    for _ in range(windows):
        overload.step(time_ms, min(used, overload.usable))
    assert overload.usable < used
    assert windows_until(overload, 0.9) <= 45


def test_the_part_grows_by_small_steps_while_clients_do_not_use_it() -> None:
    """Brokers prove nothing then: clients that come back would send all of it at once."""
    overload = Overload(TARGET_MS, enforce=True)
    for _ in range(30):
        overload.step(1_000, 0.04)
    for _ in range(20):
        overload.step(20, 0.04)
    assert 0.08 < overload.usable < 0.15
    assert windows_until(overload, 0.9) <= 10


@pytest.mark.parametrize("noise", [0, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(20))
def test_brokers_that_can_take_more_again_are_used(seed: int, noise: float) -> None:
    """For a few windows too much passes, as at the first step: nothing says where the bound is now.

    Growth is by 40 % at most, and by small steps when times have risen by a tenth of the target, 50 ms: by then a
    twentieth too much passes. So it is 1.05 x 1.4 and one small step, at most.
    """
    rng = random.Random(seed)
    less, more = rng.uniform(0.06, 0.3), rng.uniform(0.4, 0.9)
    overload = Overload(TARGET_MS, enforce=True)
    passed = run(overload, lambda at: less if at < 60 else more, lambda _: 1.0, 200, noise)
    assert max(passed[20:60]) <= 1.1 * less
    assert max(passed[60:102]) > 0.9 * more
    assert max(passed[60:]) <= 1.05 * 1.4 * 1.015 * more
    assert sum(each > 1.1 * more for each in passed[60:]) <= 5
    assert sum(passed[120:]) / 80 == pytest.approx(more, rel=0.015)


def test_all_of_the_capacity_can_be_used_again_when_brokers_are_fast() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    run(overload, lambda at: 0.2 if at < 50 else 2.0, lambda _: 1.0, 50)
    assert overload.usable < 0.3
    run(overload, lambda _: 2.0, lambda _: 1.0, 200)
    assert (overload.usable, overload.slow) == (1.0, False)


def test_brokers_that_stay_slow_leave_the_least() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    for _ in range(50):
        overload.step(30_000, overload.usable)
    assert overload.usable == LEAST_USABLE


def test_without_a_signal_nothing_is_lost() -> None:
    overload = Overload(TARGET_MS, enforce=True)
    overload.step(None, 1.0)
    assert (overload.usable, overload.slow) == (1.0, False)
