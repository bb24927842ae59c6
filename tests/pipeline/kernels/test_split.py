"""Stand-ins of a second's requests: as many as are known, none larger than the largest, and the sum kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels.ragged import Ragged
from pipeline.replay.kernels.split import EARLIEST_MS, MOST, MOST_MUTED, split_seconds

# Requests of one second, each with its size.
some_seconds = st.lists(
    st.tuples(st.integers(0, 50), st.lists(st.integers(1, 1000), min_size=1, max_size=12)), min_size=1, max_size=12
).map(sorted)


@given(some_seconds)
def test_the_sum_the_count_and_the_largest_are_kept(told: list[tuple[int, list[int]]]) -> None:
    sizes = [sizes for _, sizes in told]
    split = split_seconds(
        np.array([0, len(told)]),
        np.array([second for second, _ in told]),
        np.array([float(sum(each)) for each in sizes]),
        np.array([len(each) for each in sizes]),
        np.array([float(max(each)) for each in sizes]),
    )
    assert split.units.sum() == pytest.approx(sum(map(sum, sizes)))
    assert split.total_weights()[0] == pytest.approx(sum(map(len, sizes)))
    assert len(split.units) == sum(min(MOST, len(each)) for each in sizes)
    assert np.all(np.diff(split.t_ms) >= 0)
    if len({second for second, _ in told}) == len(told):
        for second, each in told:
            within = split.units[split.t_ms // 1000 == second]
            assert within.max() >= max(each) - 1e-9 or len(each) > MOST
            assert within.sum() == pytest.approx(sum(each))


def test_few_requests_come_back_as_they_were_also_of_a_second_told_twice() -> None:
    split = split_seconds(np.array([0, 1]), np.array([6]), np.array([10.0]), np.array([3]), np.array([8.0]))
    assert sorted(split.units.tolist()) == [1.0, 1.0, 8.0]
    assert split.t_ms.tolist() == [6_166, 6_500, 6_833]
    assert split.weights.tolist() == [1.0, 1.0, 1.0]
    two = np.array([5, 5])
    split = split_seconds(np.array([0, 2]), two, np.array([4.0, 2.0]), np.array([2, 2]), np.array([2.0, 1.0]))
    assert split.t_ms.tolist() == [5_250, 5_750, 5_750, 5_750]
    assert split.total_units().tolist() == [6.0]


def muted(*seconds: tuple[int, int, int]) -> Ragged:
    """One client: second, requests of one unit each, ms in which it was muted."""
    told = np.array(seconds, np.int64)
    ones = np.ones(len(told))
    return split_seconds(np.array([0, len(told)]), told[:, 0], told[:, 1] * 1.0, told[:, 1], ones, told[:, 2])


def test_mutes_are_placed_in_their_seconds_and_demand_before_them() -> None:
    split = muted((6, 2, 600))
    assert split.t_ms.tolist() == [6_100, 6_300]
    assert split.think_ms is not None
    assert split.think_ms.tolist() == [0, 200]
    split = muted((6, 1, 600), (8, 1, 600))
    assert split.t_ms.tolist() == [6_200, 8_200]
    split = muted((6, 2, 600), (7, 0, 1_000), (8, 4, 200), (9, 1, 0), (10, 1, 0))
    assert split.t_ms.tolist() == [6_100, 6_300, *[6_300] * 4, 9_000, 10_500]
    assert split.think_ms is not None
    assert split.think_ms.tolist() == [0, 200, 100, 200, 200, 200, 500, 0]
    split = muted(*((second, 1, 900) for second in range(100, 140)))
    came_ms = np.arange(100, 140) * 1_000
    assert split.t_ms[0] == 100_050
    assert (came_ms - split.t_ms).max() == EARLIEST_MS
    assert muted((6, 500, 0)).lengths.tolist() == [MOST]
    assert muted((6, 500, 1)).lengths.tolist() == [MOST_MUTED]


def test_each_client_is_split_and_muted_by_itself() -> None:
    split = split_seconds(
        np.array([0, 1, 1, 2]), np.array([9, 0]), np.array([4.0, 6.0]), np.array([2, 9]), np.array([2.0, 1.0])
    )
    assert split.lengths.tolist() == [2, 0, MOST]
    assert split.total_weights().tolist() == [2.0, 0.0, 9.0]
    split = split_seconds(
        np.array([0, 1, 2]), np.array([6, 7]), np.ones(2), np.ones(2), np.ones(2), np.array([1_000, 0])
    )
    assert split.t_ms.tolist() == [6_000, 7_500]
