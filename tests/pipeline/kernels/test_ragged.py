"""Series side by side: checked on the way in, taken apart by rank, and nothing lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.replay.kernels import ragged as module
from pipeline.replay.kernels.ragged import Ragged
from tests.pipeline.kernels import scalar


@given(st.lists(scalar.series(), min_size=1, max_size=30), st.integers(1, 64))
def test_rank_by_rank_every_record_comes_once_and_in_order(listed: list[scalar.Series], width: int) -> None:
    ragged = scalar.ragged(listed)
    seen: dict[int, scalar.Series] = {i: [] for i in range(len(listed))}
    for block in ragged.blocks(module.BLOCK // width):
        assert len(block.rows) <= width
        for begin, end in zip(block.starts, block.starts[1:]):
            for k, at in enumerate(range(begin, end)):
                row = seen[int(block.rows[k])]
                assert block.since_ms[at] == (block.t_ms[at] - row[-1][0] if row else 0)
                row.append((int(block.t_ms[at]), float(block.units[at])))
    assert list(seen.values()) == listed


def test_records_without_units_are_left_out_and_time_begins_again_with_each_series() -> None:
    ragged = scalar.ragged([[(0, 0.0), (1, 2.0)], [(0, 0.0)], [(0, 3.0), (5, 0.0)]])
    assert ragged.lengths.tolist() == [1, 0, 1]
    assert ragged.total_units().tolist() == [2.0, 0.0, 3.0]
    assert ragged.total_weights().tolist() == [1.0, 0.0, 1.0]
    assert len(scalar.ragged([[(5, 1.0)], [], [(1, 1.0)]])) == 3
    with pytest.raises(ValueError, match="time falls within a series, at record 1"):
        scalar.ragged([[(5, 1.0), (1, 1.0)]])


@pytest.mark.parametrize(("offsets", "units", "fault"), [
    ([0, 3], [1.0, 1.0], "offsets end at 3"), ([0, 2, 1, 2], [1.0, 1.0], "must not fall"),
    ([0, 2], [1.0, -1.0], "finite numbers >= 0"), ([0, 2], [1.0, np.nan], "finite numbers >= 0"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(offsets: list[int], units: list[float], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Ragged.build(np.array(offsets), np.zeros(len(units), np.int64), np.array(units))
