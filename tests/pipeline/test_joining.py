from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.columns import SCHEMA, Collector
from pipeline.joining import ORDER, join_chunks
from pipeline.layout import EVENTS, KEY, SERIES
from tests.pipeline.usage_lines import BOOT, content, event, line, row

NAMES = [*KEY, *ORDER, *SERIES, *EVENTS]


def chunks(*files: bytes) -> pa.Table:
    """Raw rows of some files as pack orders them."""
    batches = [batch for file in files for batch in Collector().file("f", file)]
    table = pa.Table.from_batches(batches, schema=SCHEMA)
    kinds = table.column("kind").to_pylist()
    table = table.filter(pa.array([kind in ("rows", "events") for kind in kinds], pa.bool_())).select(NAMES)
    return table.sort_by([(name, "ascending") for name in (*KEY, *ORDER)])


def joined(table: pa.Table, at_once: int = 1_000) -> list[dict[str, Any]]:
    return [told for batch in join_chunks(table.to_batches(at_once)) for told in batch.to_pylist()]


@given(
    st.lists(st.lists(st.sampled_from("abcd"), unique=True), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 7),
)
def test_however_a_day_is_cut_into_files_and_batches_each_client_gets_its_seconds_in_order(
    seconds: list[list[str]], lines_per_file: int, at_once: int
) -> None:
    lines = [line(seq, *(row(name, seq * 10) for name in names)) for seq, names in enumerate(seconds)]
    files = [
        content(*lines[begin : begin + lines_per_file]) for begin in range(0, len(lines), lines_per_file)
    ]
    packed = joined(chunks(*files), at_once)
    expected = {
        name: [seq for seq, names in enumerate(seconds) if name in names]
        for name in sorted({name for names in seconds for name in names})
    }
    assert {told["client_id"]: told["t"] for told in packed} == expected
    assert len(packed) == len(expected)
    for told in packed:
        assert told["offered"] == [seq * 10 for seq in told["t"]]
        assert {len(told[name]) for name in SERIES} == {len(told["t"])}
        assert {len(told[name]) for name in EVENTS} == {0}


def test_mutations_stand_beside_the_seconds_of_their_client() -> None:
    mutation = row(api="mutation", node=-1)
    file = content(line(0, mutation, events=(event(offset_ms=5), event(offset_ms=9))), line(1, mutation))
    (told,) = joined(chunks(file))
    assert (told["t"], told["e_ms"], told["e_units"]) == ([0, 1], [5, 9], [3, 3])


def test_mutations_without_a_row_of_their_second_are_kept() -> None:
    (told,) = joined(chunks(content(line(0, events=(event(),)))))
    assert (told["api"], told["node"], told["t"], told["e_ms"]) == ("mutation", -1, [], [0])


def test_after_a_restart_with_the_clock_set_back_time_does_not_fall() -> None:
    before = content(*(line(seq, row(units=seq)) for seq in range(10)))
    after = content(
        *(line(seq, row(units=100 + seq), boot=BOOT + 9_000, ts=line_ts(5 + seq)) for seq in range(10))
    )
    other = content(*(line(seq, row("z", units=seq)) for seq in range(3)))
    first, second = joined(chunks(before, after, other))
    assert first["t"] == sorted([*range(10), *range(5, 15)])
    assert first["offered"][4:8] == [4, 5, 100, 6]
    assert second["t"] == [0, 1, 2]


def line_ts(second: int) -> int:
    return BOOT // 1000 + 60 + second


def test_nothing_gives_nothing() -> None:
    assert joined(chunks(content())) == []
