"""Stand-ins of a second's requests: as many as are known, none larger than the largest, and the sum kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels.ragged import Pace, Ragged
from pipeline.replay.kernels.split import EARLIEST_MS, MOST, MOST_CONNECTIONS, MOST_MUTED, split_seconds

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


def muted(*seconds: tuple[int, int, int]) -> tuple[Ragged, Pace]:
    """One client: second, requests of one unit each, ms in which it was muted."""
    told = np.array(seconds, np.int64)
    ones = np.ones(len(told))
    split = split_seconds(np.array([0, len(told)]), told[:, 0], told[:, 1] * 1.0, told[:, 1], ones, told[:, 2])
    assert split.pace is not None
    return split, split.pace


def test_mutes_are_placed_in_their_seconds_and_demand_before_them() -> None:
    _, pace = muted((6, 2, 600))
    assert pace.early_ms.tolist() == [6_100, 6_300]
    assert pace.think_ms.tolist() == [0, 200]
    _, pace = muted((6, 1, 600), (8, 1, 600))
    assert pace.early_ms.tolist() == [6_200, 8_200]
    _, pace = muted((6, 2, 600), (7, 0, 1_000), (8, 4, 200), (9, 1, 0), (10, 1, 0))
    assert pace.early_ms.tolist() == [6_100, 6_300, *[6_300] * 4, 9_000, 10_500]
    assert pace.think_ms.tolist() == [0, 200, 100, 200, 200, 200, 500, 0]
    # When they came is not reported: they were wanted before, under any quota.
    assert (pace.quota[:-1] == 0).all()
    _, pace = muted(*((second, 1, 900) for second in range(100, 240)))
    came_ms = np.arange(100, 240) * 1_000
    assert pace.early_ms[0] == 100_050
    assert (came_ms - pace.early_ms).max() == EARLIEST_MS
    assert muted((6, 500, 0))[0].lengths.tolist() == [MOST]
    assert muted((6, 500, 1))[0].lengths.tolist() == [MOST_MUTED]


def told(*seconds: tuple[int, int, int, int, int]) -> tuple[list[int], Pace]:
    """The same with connections and when the first request came; when the records come, and the rest."""
    given = np.array(seconds, np.int64)
    ones = np.ones(len(given))
    split = split_seconds(
        np.array([0, len(given)]), given[:, 0], given[:, 1] * 1.0, given[:, 1], ones, given[:, 2],
        ones * 7.0, given[:, 3], given[:, 4],
    )  # fmt: skip
    assert split.pace is not None
    return split.t_ms.tolist(), split.pace


def test_requests_come_from_the_first_of_their_second_on() -> None:
    came_ms, pace = told((6, 4, 0, 1, 200))
    assert came_ms == pace.early_ms.tolist() == [6_200, 6_400, 6_600, 6_800]
    assert pace.quota.tolist() == [7.0] * 4
    # The first of a second with a mute came before it; then one as the mute ended, not wanted after that one; then
    # one that came long after a mute had ended, not wanted before. Under a larger quota any may have been.
    came_ms, pace = told((6, 1, 600, 1, 300), (7, 1, 400, 1, 400), (8, 1, 100, 1, 700))
    assert came_ms == [6_300, 6_400, 8_700]
    assert pace.early_ms.tolist() == [6_300, 6_300, 6_300]
    # Of several connections another may have been the muted one.
    came_ms, _ = told((6, 1, 600, 1, 300), (7, 1, 400, 2, 400))
    assert came_ms == [6_300, 7_400]


def test_connections_of_tens_of_seconds_take_turns_together() -> None:
    spans = ((0, 1), (8, 3), (19, 1), (20, 1), (30, 1), (55, 99))
    _, pace = told(*((second, 1, 0, connections, 0) for second, connections in spans))
    assert pace.connections.tolist() == [3, 3, 3, 1, 1, MOST_CONNECTIONS]


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
