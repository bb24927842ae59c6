"""Every model over every kind of meter decides as the gateway's own class, to the last bit."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels import models
from pipeline.replay.kernels.meters import MakeMeters, TokenBuckets
from pipeline.replay.kernels.ragged import Outcome, Pace, Ragged
from pipeline.replay.kernels.sampled_rate import SampledRates
from pipeline.replay.kernels.spread_rate import SpreadRates
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationQuotas, MutationSettings
from tests.pipeline.kernels import scalar

KINDS: dict[MutationAlgorithm, MakeMeters] = {
    MutationAlgorithm.TOKEN_BUCKET: TokenBuckets,
    MutationAlgorithm.RATE: SampledRates,
    MutationAlgorithm.SPREAD_RATE: SpreadRates,
}
kinds = st.sampled_from(sorted(KINDS))


def outcomes(
    outcome: Outcome, clients: list[scalar.Series], rates: list[float]
) -> Iterator[tuple[scalar.Series, float, float, float]]:
    """Each client under each quota: how many of its records were throttled, and the sum of the times reported."""
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            yield series, rate, outcome.throttled[i, j], outcome.wait_ms[i, j]


@given(scalar.clients, scalar.candidates, scalar.windows, kinds)
def test_strict_meters_refuse_what_the_gateway_refuses(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int], kind: MutationAlgorithm
) -> None:
    num, ms = window
    outcome = models.strict(scalar.ragged(clients), np.array(rates), KINDS[kind], window_num=num, window_ms=ms)
    for series, rate, throttled, wait_ms in outcomes(outcome, clients, rates):
        told = scalar.strict(series, partial(_meter, kind, rate, num, ms))
        assert (throttled, wait_ms) == (told.throttled, told.wait_ms)


@given(scalar.clients, scalar.candidates, scalar.windows)
def test_connections_are_held_as_the_gateway_holds_them(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int]
) -> None:
    num, ms = window
    outcome = models.connections(scalar.ragged(clients), np.array(rates), SampledRates, window_num=num, window_ms=ms)
    for series, rate, throttled, wait_ms in outcomes(outcome, clients, rates):
        told = scalar.connections(series, rate, window_num=num, window_ms=ms)
        assert (throttled, wait_ms) == (told.throttled, told.wait_ms)


@given(scalar.clients, scalar.candidates, scalar.windows, kinds)
def test_permissive_meters_tell_what_the_gateway_tells(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int], kind: MutationAlgorithm
) -> None:
    num, ms = window
    outcome = models.permissive(scalar.ragged(clients), np.array(rates), KINDS[kind], window_num=num, window_ms=ms)
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            # Asking for tokens first would reset samples that the gateway has not looked at yet.
            told = scalar.Told()
            if series:
                one = _meter(kind, rate, num, ms, series[0][0])
                for now_ms, units in series:
                    one.record(units, now_ms=now_ms)
                    wait_ms = one.throttle_time_ms(now_ms=now_ms)
                    told.throttled += wait_ms > 0
                    told.wait_ms += wait_ms
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.wait_ms[i, j] == told.wait_ms


@given(scalar.clients, scalar.candidates, scalar.windows)
def test_the_closed_loop_waits_as_a_client_of_the_gateways_byte_rate(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int]
) -> None:
    num, ms = window
    outcome = models.closed_loop(scalar.ragged(clients), np.array(rates), SampledRates, window_num=num, window_ms=ms)
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            told = scalar.byte_rate(series, rate, window_num=num, window_ms=ms)
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.wait_ms[i, j] == told.wait_ms
            assert outcome.late_ms[i, j] == told.late_ms
            assert outcome.throttled_units[i, j] == pytest.approx(told.units, rel=1e-12)


@given(scalar.clients, scalar.candidates, st.data())
def test_a_client_that_thinks_between_its_requests_is_silent_for_as_long_after_each_wait(
    clients: list[scalar.Series], rates: list[float], data: st.DataObject
) -> None:
    some = st.integers(0, 1_500)
    thinks_ms = [data.draw(st.lists(some, min_size=len(each), max_size=len(each))) for each in clients]
    outcome = models.closed_loop(scalar.ragged(clients, thinks_ms), np.array(rates), SampledRates)
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            told = scalar.byte_rate(series, rate, window_num=11, window_ms=1_000, thinks_ms=thinks_ms[i])
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.wait_ms[i, j] == told.wait_ms
            assert outcome.late_ms[i, j] == told.late_ms


@given(scalar.clients, scalar.candidates, scalar.windows, st.data())
def test_connections_take_turns_and_are_held_at_the_gateways_bound(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int], data: st.DataObject
) -> None:
    num, ms = window
    connections = [data.draw(st.integers(1, 4)) for _ in clients]
    ragged = scalar.ragged(clients, connections=connections)
    outcome = models.closed_loop(ragged, np.array(rates), SampledRates, window_num=num, window_ms=ms, bounded=True)
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            how = {"window_num": num, "window_ms": ms, "connections": connections[i]}
            told = scalar.byte_rate(series, rate, bounded=True, **how)
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.wait_ms[i, j] == told.wait_ms
            assert outcome.late_ms[i, j] == told.late_ms


def test_a_record_comes_earlier_under_a_larger_quota_only() -> None:
    # Wanted at once after a large one, and sent ten seconds later, as the quota of then let it.
    pace = Pace(np.zeros(2, int), np.array([0, 1]), np.full(2, 20.0), np.ones(2, int))
    ragged = Ragged.build(np.array([0, 2]), np.array([0, 10_000]), np.array([300.0, 1.0]), pace=pace)
    outcome = models.closed_loop(ragged, np.array([20.0, 25.0]), SampledRates)
    assert outcome.late_ms[0].tolist() == [0.0, 1_999.0]


def test_a_drafts_burst_a_cap_and_a_stand_in_are_told_as_computed_by_hand() -> None:
    # KIP-599: 5 a second over 100 windows of a second.
    burst = scalar.ragged([[(500, 560.0)]])
    outcome = models.permissive(burst, np.array([5.0]), SpreadRates, window_num=100)
    assert outcome.wait_ms.tolist() == [[12_000.0]]
    burst = scalar.ragged([[(0, 1000.0), (1, 1.0), (2, 1.0)]])
    free = models.closed_loop(burst, np.array([10.0]), SampledRates)
    capped = models.closed_loop(burst, np.array([10.0]), SampledRates, cap_ms=1_000)
    assert free.wait_ms[0, 0] > capped.wait_ms[0, 0] == 3_000
    assert capped.throttled[0, 0] == 3
    one = Ragged.build(np.array([0, 1]), np.array([0]), np.array([400.0]), np.array([40.0]))
    # Ten seconds of 20 a second pass at once: half of it. The time is reported once and not forty times.
    outcome = models.closed_loop(one, np.array([20.0, 100.0]), SampledRates)
    assert outcome.wait_ms.tolist() == [[10_000.0, 0.0]]
    assert outcome.throttled.tolist() == [[1 + 39 * 0.5, 0.0]]
    assert outcome.throttled_units[0, 0] == pytest.approx(400 * 20.5 / 40)


def _meter(kind: MutationAlgorithm, rate: float, num: int, ms: int, now_ms: int) -> scalar.Meter:
    return scalar.meter(kind, rate, now_ms, window_num=num, window_ms=ms)


@given(
    scalar.series(), scalar.quotas, st.lists(st.booleans(), min_size=40, max_size=40), st.sampled_from(sorted(KINDS))
)
def test_old_and_new_clients_in_one_counter_are_decided_as_the_gateway_decides_them(
    series: scalar.Series, rate: float, strictness: list[bool], kind: MutationAlgorithm
) -> None:
    limits = Limits()
    limits.set(QuotaEntity(user="a"), QuotaKey.CONTROLLER_MUTATION_RATE, rate)
    gateway = MutationQuotas(limits, MutationSettings(algorithm=kind))
    waits_ms = [
        gateway.charge("a", "", units, strict=strict, now_ms=now_ms).throttle_time_ms
        for (now_ms, units), strict in zip(series, strictness)
    ]
    ragged = Ragged.build(
        np.array([0, len(series)]),
        np.array([now_ms for now_ms, _ in series], np.int64),
        np.array([units for _, units in series]),
        np.array(strictness[: len(series)], np.float64),
    )
    outcome = models.recorded(ragged, np.array([rate]), KINDS[kind])
    assert outcome.wait_ms[0, 0] == sum(waits_ms)
    assert outcome.throttled[0, 0] == sum(wait_ms > 0 for wait_ms in waits_ms)
