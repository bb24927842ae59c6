"""The bucket's kernels decide as the gateway's bucket does, to the last bit."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given

from pipeline.replay.kernels.ragged import Ragged
from pipeline.replay.kernels.token_bucket import busiest_windows, permissive_token_bucket, strict_token_bucket
from quotas.mutation_meters import MutationAlgorithm
from tests.pipeline.kernels import scalar

BUCKET = MutationAlgorithm.TOKEN_BUCKET


@given(scalar.clients, scalar.candidates, scalar.windows)
def test_strict_buckets_refuse_what_the_gateway_refuses(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int]
) -> None:
    ragged = scalar.ragged(clients)
    num, ms = window
    outcome = strict_token_bucket(ragged, np.array(rates), window_num=num, window_ms=ms)
    totals = ragged.total_units()
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            told = scalar.strict(series, partial(_bucket, rate, num, ms))
            assert outcome.throttled[i, j] == told.throttled
            # Sums of units may be added up in another order; nothing refused is nothing, exactly.
            refused = totals[i] - told.units if told.throttled else 0.0
            assert outcome.throttled_units[i, j] == pytest.approx(refused, rel=0, abs=1e-12 * totals[i])


@given(scalar.clients, scalar.windows)
def test_the_busiest_window_spares_whom_the_gateway_does(
    clients: list[scalar.Series], window: tuple[int, int]
) -> None:
    ragged = scalar.ragged(clients)
    num, ms = window
    for i, most in enumerate(busiest_windows(ragged, num * ms).tolist()):
        times = [(t, units) for t, units in clients[i] if units > 0]
        expected = max(
            (sum(units for t, units in times if end - num * ms < t <= end) for end, _ in times), default=0.0
        )
        assert most == pytest.approx(expected)
        if most:
            rate = most / (num * ms / 1000) * (1 + 2e-6)
            assert scalar.strict(clients[i], partial(_bucket, rate, num, ms)).throttled == 0


@given(scalar.clients, scalar.windows)
def test_candidates_near_the_busiest_window_are_replayed(
    clients: list[scalar.Series], window: tuple[int, int]
) -> None:
    ragged = scalar.ragged(clients)
    num, ms = window
    edge = np.maximum(busiest_windows(ragged, num * ms) / (num * ms / 1000), 1e-3)
    candidates = edge[:, None] * np.array([0.2, 0.999, 1 - 1e-9, 1.0, 1 + 1e-9, 1.001, 5.0])
    outcome = strict_token_bucket(ragged, candidates, window_num=num, window_ms=ms)
    for i, series in enumerate(clients):
        for j, rate in enumerate(candidates[i].tolist()):
            told = scalar.strict(series, partial(_bucket, rate, num, ms))
            assert outcome.throttled[i, j] == told.throttled


@given(scalar.clients, scalar.candidates, scalar.windows)
def test_permissive_buckets_tell_the_same(
    clients: list[scalar.Series], rates: list[float], window: tuple[int, int]
) -> None:
    num, ms = window
    outcome = permissive_token_bucket(scalar.ragged(clients), np.array(rates), window_num=num, window_ms=ms)
    for i, series in enumerate(clients):
        for j, rate in enumerate(rates):
            told = scalar.permissive(series, partial(_bucket, rate, num, ms))
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.wait_ms[i, j] == told.wait_ms
            assert outcome.throttled_units[i, j] == told.units


def test_kip_599s_burst_waits_12_seconds_and_candidates_may_differ_from_client_to_client() -> None:
    burst = Ragged.build(np.array([0, 1]), np.array([5_000]), np.array([560.0]))
    outcome = permissive_token_bucket(burst, np.array([5.0]), window_num=100, window_ms=1_000)
    assert outcome.wait_ms.tolist() == [[12_000.0]]
    assert outcome.throttled_units.tolist() == [[60.0]]
    clients = [[(0, 100.0), (1, 100.0)], [(0, 100.0), (1, 100.0)]]
    outcome = strict_token_bucket(scalar.ragged(clients), np.array([[1.0, 1000.0], [1000.0, 1.0]]))
    assert outcome.throttled.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_many_clients_of_very_different_lengths_are_each_decided_alone() -> None:
    # More than a block, and more ranks than a byte counts.
    rng = np.random.default_rng(7)
    lengths = [0, 1, 700, *rng.integers(1, 90, 300).tolist(), 300, 300]
    clients = [
        [(int(t), float(n)) for t, n in zip(np.sort(rng.integers(0, 200_000, k)), rng.integers(1, 50, k))]
        for k in lengths
    ]
    rates = np.geomspace(0.5, 400, 150)
    ragged = scalar.ragged(clients)
    outcome = strict_token_bucket(ragged, rates)
    for i in (1, 2, 3, 100, 301, 302, 303):
        for j in (0, 40, 149):
            told = scalar.strict(clients[i], partial(_bucket, float(rates[j]), 11, 1000))
            assert outcome.throttled[i, j] == told.throttled
            assert outcome.throttled_units[i, j] == ragged.total_units()[i] - told.units
    assert not outcome.throttled[0].any()


@pytest.mark.parametrize("rates", [[0.0], [-1.0], [np.inf], [np.nan], [], [[1.0], [2.0]]])
def test_what_is_no_quota_is_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="candidate"):
        strict_token_bucket(scalar.ragged([[(0, 1.0)]]), np.array(rates))


def _bucket(rate: float, num: int, ms: int, now_ms: int) -> scalar.Meter:
    return scalar.meter(BUCKET, rate, now_ms, window_num=num, window_ms=ms)
