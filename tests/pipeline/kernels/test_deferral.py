"""The closed form against the bucket; more quota never throttles more; the need that is found with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels.deferral import PRECISION, debts, deferred, required_rates
from pipeline.replay.kernels.ragged import Ragged
from pipeline.replay.kernels.token_bucket import permissive_token_bucket
from tests.pipeline.kernels import scalar

# Seconds, whole units and rates: all numbers of both ways are exact then.
whole = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 1000)), min_size=1, max_size=40)


def seconds(records: list[tuple[int, int]]) -> Ragged:
    at_s = np.cumsum([gap for gap, _ in records])
    units = np.array([units for _, units in records], np.float64)
    return Ragged.build(np.array([0, len(records)]), at_s * 1000, units)


@given(whole, st.lists(st.integers(1, 500).map(float), min_size=1, max_size=5))
def test_the_closed_form_defers_exactly_what_the_bucket_lacks(
    records: list[tuple[int, int]], rates: list[float]
) -> None:
    ragged = seconds(records)
    exact = permissive_token_bucket(ragged, np.array(rates)).throttled_units
    assert deferred(ragged, np.array(rates)).throttled_units.tolist() == exact.tolist()


@given(scalar.clients, scalar.candidates)
def test_the_closed_form_is_the_bucket_to_nine_digits(clients: list[scalar.Series], rates: list[float]) -> None:
    ragged = scalar.ragged(clients)
    exact = permissive_token_bucket(ragged, np.array(rates)).throttled_units
    scale = ragged.total_units()[:, None] + np.array(rates) * 1e3
    np.testing.assert_array_less(
        np.abs(deferred(ragged, np.array(rates)).throttled_units - exact), 1e-9 * scale + 1e-12
    )


@given(whole, st.lists(st.integers(1, 3000).map(float), min_size=2, max_size=40))
def test_more_quota_never_makes_more_wait(records: list[tuple[int, int]], rates: list[float]) -> None:
    shares = deferred(seconds(records), np.array(sorted(rates))).throttled_units[0]
    assert np.all(np.diff(shares) <= 0)


@given(whole, st.sampled_from([0.0, 0.01, 0.2]))
def test_a_need_suffices_and_a_little_less_does_not(records: list[tuple[int, int]], target: float) -> None:
    ragged = seconds(records)
    allowed = target * ragged.total_units()[0]
    need = required_rates(ragged, target)[0]
    assert deferred(ragged, np.array([need])).throttled_units[0, 0] <= allowed
    assert deferred(ragged, np.array([need * (1 - 2 * PRECISION)])).throttled_units[0, 0] > allowed


def test_one_pass_answers_every_burst_and_no_records_need_nothing() -> None:
    ragged = seconds([(0, 100), (1, 50), (10, 300)])
    curve = debts(ragged.t_ms, ragged.units, 20.0)
    for burst_s in (1.0, 5.0, 11.0):
        over = np.minimum(np.maximum(curve - 20.0 * burst_s, 0), ragged.units).sum()
        assert over == deferred(ragged, np.array([20.0]), burst_s=burst_s).throttled_units[0, 0]
    assert required_rates(scalar.ragged([[], [(0, 5.0)]]), 0.0).tolist()[0] == 0


@pytest.mark.parametrize(("target", "burst_s"), [(1.0, 11.0), (-0.1, 11.0), (0.01, 0.0), (0.01, np.inf)])
def test_a_target_or_burst_out_of_range_is_refused(target: float, burst_s: float) -> None:
    with pytest.raises(ValueError, match=r"target|burst"):
        required_rates(seconds([(0, 1)]), target, burst_s=burst_s)
