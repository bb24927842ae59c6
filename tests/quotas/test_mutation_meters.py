import pytest

from quotas.mutation_meters import MutationAlgorithm, meter_factory
from testkit.clock import FakeClock

ALL = list(MutationAlgorithm)


@pytest.mark.parametrize("algorithm", ALL)
def test_every_meter_starts_full_and_goes_into_debt(algorithm: MutationAlgorithm, clock: FakeClock) -> None:
    meter = meter_factory(algorithm, window_num=11, window_ms=1_000)(2.0, clock.now_ms)
    assert meter.full(now_ms=clock.now_ms)
    meter.record(30, now_ms=clock.now_ms)
    assert not meter.full(now_ms=clock.now_ms)
    tokens = meter.tokens(now_ms=clock.now_ms)
    assert tokens < 0
    assert meter.throttle_time_ms(now_ms=clock.now_ms) == pytest.approx(-tokens / 2 * 1000)


@pytest.mark.parametrize("algorithm", ALL)
def test_every_meter_takes_back_and_never_more_than_it_gave(algorithm: MutationAlgorithm, clock: FakeClock) -> None:
    meter = meter_factory(algorithm, window_num=11, window_ms=1_000)(2.0, clock.now_ms)
    tokens = meter.tokens(now_ms=clock.now_ms)
    meter.record(30, now_ms=clock.now_ms)
    meter.record(-30, now_ms=clock.now_ms)
    assert meter.full(now_ms=clock.now_ms)
    meter.record(-30, now_ms=clock.now_ms)
    assert meter.tokens(now_ms=clock.now_ms) == tokens


@pytest.mark.parametrize("algorithm", ALL)
def test_every_meter_is_full_again_after_an_idle_time(algorithm: MutationAlgorithm, clock: FakeClock) -> None:
    meter = meter_factory(algorithm, window_num=11, window_ms=1_000)(2.0, clock.now_ms)
    meter.record(22, now_ms=clock.now_ms)
    assert meter.full(now_ms=clock.advance(11_000))


@pytest.mark.parametrize(
    ("algorithm", "waits_ms"),
    [
        (MutationAlgorithm.TOKEN_BUCKET, [12_000, 0, 200]),
        (MutationAlgorithm.RATE, [13_000, 13_000, 13_000]),
        (MutationAlgorithm.SPREAD_RATE, [12_000, 0, 200]),
    ],
)
def test_the_kips_worked_example_tells_the_algorithms_apart(
    algorithm: MutationAlgorithm, waits_ms: list[int], clock: FakeClock
) -> None:
    # KIP-599: quota 5/s, 100 windows, 560 partitions at once; then one partition after the wait.
    meter = meter_factory(algorithm, window_num=100, window_ms=1_000)(5.0, clock.now_ms)
    meter.record(560, now_ms=clock.now_ms)
    waits = [meter.throttle_time_ms(now_ms=clock.now_ms)]
    clock.advance(12_000)
    waits.append(meter.throttle_time_ms(now_ms=clock.now_ms))
    if waits[-1] == 0:
        meter.record(1, now_ms=clock.now_ms)
    waits.append(meter.throttle_time_ms(now_ms=clock.now_ms))
    assert waits == waits_ms
