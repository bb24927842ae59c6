"""Timelines fit together whatever they were made of, and the largest clients keep theirs."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.profile import PARTIAL, STEP_S, merge_profiles, profile_rows
from pipeline.report_series import BINS, STACKED, SUMMARY, Timeline, summarise
from quotas.usage_record import OTHER
from tests.support.packed_rows import packed_batch

series = st.dictionaries(st.integers(10_000, 200_000), st.integers(1, 9), max_size=30)


def timeline(of: dict[int, int]) -> Timeline:
    made = Timeline()
    steps = np.array(sorted(of), np.int64)
    made.add(steps, [float(of[step]) for step in steps.tolist()], np.ones(len(steps)))
    return made


def seconds(of: Timeline) -> dict[int, float]:
    return {int(at): value for at, value in zip(of.begins_s(), of.offered, strict=True) if value}


@given(st.lists(series, max_size=6))
def test_timelines_added_up_are_the_timeline_of_everything(parts: list[dict[int, int]]) -> None:
    whole, together = Timeline(), Timeline()
    sums: dict[int, int] = {}
    for part in parts:
        together.add_all(timeline(part))
        for step, value in part.items():
            sums[step] = sums.get(step, 0) + value
    whole = timeline(sums)
    assert len(whole.offered) <= BINS
    assert (together.level, seconds(together)) == (whole.level, seconds(whole))
    assert together.throttle_ms.sum() == sum(map(len, parts))
    # A bin holds what was used between its beginning and the next one's.
    for begin, used in seconds(whole).items():
        assert used == sum(n for step, n in sums.items() if begin <= step * STEP_S < begin + whole.width_s)
    if sums:
        assert (
            len(whole.offered) > BINS // 2
            or whole.level == 0
            or len(sums) < 3
            or max(sums) - min(sums) < 2 * BINS
        )


@given(series, series)
def test_a_part_is_shown_in_the_bins_of_the_whole(one: dict[int, int], other: dict[int, int]) -> None:
    part, whole = timeline(one), timeline(one)
    whole.add_all(timeline(other))
    shown = part.on(whole)
    assert shown.sum() == sum(one.values())
    assert (shown <= whole.offered).all()


def test_a_timeline_survives_its_row() -> None:
    made = timeline({5_000: 3, 9_000: 4})
    again = Timeline.from_dict(pa.Table.from_pylist([made.to_dict()], schema=SUMMARY).to_pylist()[0])
    assert (again.level, again.first, again.offered.tolist()) == (
        made.level,
        made.first,
        made.offered.tolist(),
    )


def test_of_equally_large_clients_the_first_by_name_keep_theirs_whoever_has_which() -> None:
    rows = [
        {"date": date(2026, 11, 21), "client_id": f"c{n:02d}", "t": [1], "offered": [5.0]} for n in range(30)
    ]
    rows.append({**rows[0], "client_id": OTHER, "offered": [1e9]})
    parts = []
    for mine in (rows[1::2], rows[::-2]):
        partial = pa.Table.from_batches(list(profile_rows(iter([packed_batch(*mine)]))), schema=PARTIAL)
        parts.append(merge_profiles(partial))
    found = pa.Table.from_batches(list(summarise(parts)), schema=SUMMARY).to_pylist()
    lines = {row["client_id"] for row in found if row["bins_level"] is not None}
    # Each worker keeps as many as are shown: the first of all are among them, and nobody of the rest as a whole.
    assert {f"c{n:02d}" for n in range(STACKED)} <= lines
    assert OTHER not in lines


def test_all_clients_are_told_in_numbers_and_only_the_largest_over_time() -> None:
    rows = [
        {"date": date(2026, 11, 21), "client_id": f"c{n}", "t": [1, 70_000], "offered": [float(n)] * 2}
        for n in range(20)
    ]
    partial = pa.Table.from_batches(list(profile_rows(iter([packed_batch(*rows)]))), schema=PARTIAL)
    found = pa.Table.from_batches(list(summarise([merge_profiles(partial)])), schema=SUMMARY).to_pylist()
    clients = [row for row in found if row["bins_level"] is None]
    assert sorted(row["offered"] for row in clients) == [2.0 * n for n in range(20)]
    lines = {row["client_id"]: row for row in found if row["bins_level"] is not None}
    assert sum(lines.pop(None)["bins_offered"]) == 2 * sum(range(20))
    assert sorted(lines) == sorted(f"c{n}" for n in range(20 - STACKED, 20))
    assert {sum(row["bins_offered"]) for row in lines.values()} == {2.0 * n for n in range(20 - STACKED, 20)}
    assert list(summarise([])) == []
