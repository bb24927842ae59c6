"""Slow brokers: the signal that clients can't forge, and the part of a capacity that is used then."""

import random
from collections.abc import Callable

import pytest

from quotas.overload import LEAST_USABLE, BrokerTimes, Overload

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
    assert times.close(now_ms=1_000) == (30, 3)
    assert times.close(now_ms=2_000) == (None, 0)


@pytest.mark.parametrize("seed", range(50))
def test_half_of_the_clients_can_not_make_brokers_look_slow(seed: int) -> None:
    rng = random.Random(seed)
    honest = rng.randint(2, 50)
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
    median, _ = times.close(now_ms=60_000)
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
    assert times.close(now_ms=6_000) == (70, 3)


def test_requests_without_an_answer_are_measured_until_their_connection_ends() -> None:
    times = BrokerTimes()
    samples = [times.send(name, None, idle=True, now_ms=0) for name in "abc"]
    assert times.close(now_ms=1_000) == (1_000, 3)
    assert times.close(now_ms=2_000) == (2_000, 3)
    for sample in samples:
        assert sample is not None
        sample.dropped = True
    assert times.close(now_ms=3_000) == (None, 0)
    assert times.close(now_ms=4_000) == (None, 0)


def test_a_client_has_a_bounded_number_of_samples() -> None:
    times = BrokerTimes()
    assert sum(times.send("a", None, idle=True, now_ms=0) is not None for _ in range(1_000)) == 4


def run(
    overload: Overload,
    carried: Callable[[int], float],
    offered: Callable[[int], float],
    windows: int,
    noise: float = 0,
) -> list[float]:
    """What passes in each window; brokers queue what they can't do, and clients wait for at most a second of it."""
    rng = random.Random(windows)
    queued, passed = 0.0, []
    for at in range(windows):
        carries = carried(at)
        passed.append(min(offered(at), overload.usable, 2 * carries - queued))
        queued = max(0.0, queued + passed[-1] - carries)
        overload.step((20 + 1000 * queued / carries) * rng.uniform(1 - noise, 1 + noise), passed[-1])
    return passed


@pytest.mark.parametrize("noise", [0, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(100))
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
