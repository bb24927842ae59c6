"""Usage lines as columns, columns as raw files, and raw rows of a client joined into one."""

import datetime
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ingest import collector
from pipeline.ingest.collector import Collector, Skip
from pipeline.ingest.lines import Torn
from pipeline.ingest.writer import _days
from pipeline.maintenance.compaction import compact_buckets
from pipeline.storage.bucket_groups import groups_of
from pipeline.storage.files import parquet_writer
from pipeline.storage.joining import ORDER, join_chunks
from pipeline.storage.layout import EVENTS, FINE_BUCKETS, KEY, LINES, SERIES, bucket_of
from pipeline.storage.raw_table import write_raw_files
from pipeline.storage.schemas import RAW_SCHEMA
from pipeline.storage.tables import DataFile
from testkit.pipeline.usage_lines import BOOT, DAY, content, event, line, row

DATE = datetime.date(2026, 9, 28)


# -- lines as columns --------------------------------------------------------------------------------------------
def collected(*lines: bytes, skip: Skip = frozenset()) -> dict[str, list[dict[str, Any]]]:
    """Raw rows by kind."""
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "events": [], "lines": [], "torn": []}
    for batch in Collector(skip).file("f", content(*lines)):
        assert batch.schema == RAW_SCHEMA
        for each in batch.to_pylist():
            found[each["kind"]].append(each)
    return found


def test_rows_of_a_client_are_one_raw_row_with_every_position_in_its_column() -> None:
    (a, b) = collected(line(0, row("a", 10), row("b", 1)), line(1), line(2, row("a", 30, flags=1)))["rows"]
    assert (a["client_id"], a["seq"], a["t"], a["offered"], a["censored"]) == (
        "a", [0, 2], [0, 2], [10, 30], [False, True],
    )  # fmt: skip
    assert (b["client_id"], b["seq"], b["bytes_in"]) == ("b", [0], [1])
    assert (a["gw"], a["boot"], a["first_seq"], a["date"]) == ("a", BOOT, 0, DATE)
    values: dict[str, Any] = {
        "requests": 1, "bytes_in": 2, "bytes_out": 3, "offered": 4.5, "admitted": 5.5, "max_units": 6.5,
        "rejected": 7, "rejected_units": 8.5, "delayed": 9, "throttle_ms": 10, "muted_ms": 11,
        "quota": 12.5, "level_end": -13.5,
    }  # fmt: skip
    (found,) = collected(line(5, row(**values)), line(6, row(**values | {"quota": None, "level_end": None})))["rows"]
    assert {name: found[name][0] for name in values} == values
    assert found["quota"] == [12.5, None]
    assert found["level_end"] == [-13.5, None]
    assert {found[name] for name in ("listener", "user", "api")} == {"plain", "alice", "produce"}
    assert found["node"] == 1


def test_events_keep_their_millisecond_and_lines_are_kept_also_when_nothing_happened() -> None:
    one = event(offset_ms=250, units=7, strict=False, admitted=False, throttle_ms=90, correlation_id=8, attempt=2)
    others = (event(api="delete_topics"), event(api="new"))
    last = line(86_399, events=(event(offset_ms=1_004),))  # stays in its day
    (found,) = collected(line(3, events=(one, *others)), last)["events"]
    assert found["e_ms"] == [3250, 3000, 3000, 86_399_999]
    assert found["e_kind"] == [0, 2, -1, 0]
    assert [found[name][0] for name in list(EVENTS)[2:]] == [7, False, False, 90, 8, 2]
    assert (found["api"], found["node"]) == ("mutation", -1)
    last = line(1, row(), dropped_rows=3, dropped_events=4, dur_ms=1003, jump_ms=-7, algo="rate", scope="fleet:x")
    (found,) = collected(line(0), last)["lines"]
    expected: list[list[Any]] = [[0, 1], [0, 1], [DAY, DAY + 1], [1000, 1003], [0, 1], [0, 3], [0, 4]]
    expected += [["", "fleet:x"], ["token_bucket", "rate"], [0, -7]]
    assert [found[name] for name in LINES] == expected


def test_midnight_divides_and_skipped_lines_are_neither_rows_nor_lines() -> None:
    found = collected(line(86_399, row()), line(86_400, row()))
    assert [(str(each["date"]), each["t"]) for each in found["rows"]] == [
        ("2026-09-28", [86_399]),
        ("2026-09-29", [0]),
    ]
    assert len(found["lines"]) == 2
    # Of a newer gateway.
    assert [each["api"] for each in collected(line(0, row(api="share_fetch")))["rows"]] == ["share_fetch"]
    found = collected(line(0, row()), line(0, row()), skip=frozenset({("f", 1)}))
    assert found["rows"][0]["seq"] == found["lines"][0]["seq"] == [0]


@pytest.mark.parametrize("bad", [
    row(requests="many"), row(client_id=5), row(node=None), row(api=5), row(offered=None),
    row(requests=2**40), row(flags="x"), row(quota="none"), row(bytes_in=[1]),
    row(requests=-1), row(offered=-5), row(muted_ms=-1), row(quota=-1.5), row(flags=1.5), row(bytes_in=2**64 - 1),
    row(max_units=1e300), *([*row(), 1, 5, beside, 0] for beside in (
        [["group", "x"]], [{"a": 1}], [["group", "x", 1, None]], [["group", "x", 1, -7]], "text", 5,
    )), [*row(), 1, 5, None, -1],
])  # fmt: skip
def test_a_wrong_value_costs_its_line_and_no_other(bad: list[Any]) -> None:
    found = collected(line(0, row()), line(1, row(), bad), line(2, row()))
    assert [each["at"] for each in found["torn"]] == [1]
    assert found["torn"][0]["text"] == line(1, row(), bad)
    assert [each["seq"] for each in found["lines"]] == [[0], [2]]
    assert sum(len(each["t"]) for each in found["rows"]) == 2


@pytest.mark.parametrize("bad", [
    event(units="x"), event(user=None), event(offset_ms="x"), event(units=2**40), event(units=-1),
    event(units=5.7), event(throttle_ms=-1), event(attempt=-1), event(strict="yes"), event(offset_ms=0.5),
])  # fmt: skip
def test_a_wrong_value_in_an_event_costs_its_line(bad: list[Any]) -> None:
    found = collected(line(0, row(), events=(bad,)), line(1, row()))
    assert [each["at"] for each in found["torn"]] == [0]
    assert [each["seq"] for each in found["rows"]] == [[1]]


def test_what_a_gateway_may_write_below_0_in_fractions_or_far_away_is_read() -> None:
    # A connection that waited is admitted in a later second; a debt is below 0; request time has fractions.
    of_row: dict[str, Any] = {"offered": 0, "admitted": -0.5, "level_end": -3.5, "max_units": 0.25, "requests": 4.0}
    # Correlation ids wrap. A worker's event is far from the second if the wall clock was set meanwhile.
    of_event = event(units=5.0, correlation_id=-(2**31), offset_ms=-(2**35))
    found = collected(line(7, [*row(**of_row), 1, 5, None, 1e300], events=(of_event,)))
    assert found["torn"] == []
    assert {name: found["rows"][0][name] for name in of_row} == {name: [value] for name, value in of_row.items()}
    assert found["rows"][0]["in_force"] == [1e300]
    assert [found["events"][0][name] for name in ("e_units", "e_correlation_id", "e_ms")] == [[5], [-(2**31)], [0]]


def test_a_file_of_many_lines_is_gathered_in_pieces_without_losing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_ROWS_AT_ONCE", 3_000)
    lines = [line(seq, *(row(f"c{number}") for number in range(50))) for seq in range(300)]
    found = collected(*lines)
    assert sum(len(each["t"]) for each in found["rows"]) == 15_000
    assert 2 * 50 < len(found["rows"]) < 15_000 / 50
    assert [seq for each in found["lines"] for seq in each["seq"]] == list(range(300))


def test_lines_of_many_events_or_of_much_else_are_not_gathered_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_ROWS_AT_ONCE", 1_000)
    for text in (line(0, events=(event(),) * 500), line(0, topics=["x" * 1_000] * 130)):
        gathered = Collector()
        torn: list[Torn] = []
        flushed = [list(gathered._take(text, number, torn)) for number in range(2)]
        assert [bool(batches) for batches in flushed] == [False, True]


def test_names_are_kept_letter_by_letter_and_messages_of_a_topic_are_read_alike() -> None:
    name = '{"\\u0000":"\\"}\n\x00‮ünïcode🙂'
    (found,) = collected(line(0, row(name, user=name)))["rows"]
    assert found["client_id"] == found["user"] == name
    batches = Collector().messages("topic-3", [(70, line(0, row())), (71, b"junk"), (73, line(1, row()))])
    found = {each["kind"]: each for batch in batches for each in batch.to_pylist()}
    assert found.keys() == {"rows", "lines", "torn"}
    assert (found["lines"]["source"], found["lines"]["position"]) == ("topic-3", [70, 73])
    assert [found["torn"][name] for name in ("source", "at", "text")] == ["topic-3", 71, b"junk"]


# -- raw rows joined ---------------------------------------------------------------------------------------------
def chunks(*files: bytes) -> pa.Table:
    """Raw rows of some files in the order in which they are joined."""
    batches = [batch for file in files for batch in Collector().file("f", file)]
    table = pa.Table.from_batches(batches, schema=RAW_SCHEMA)
    kinds = table.column("kind").to_pylist()
    table = table.filter(pa.array([kind in ("rows", "events") for kind in kinds], pa.bool_()))
    columns = table.select([*KEY, *ORDER, *SERIES, *EVENTS])
    return columns.sort_by([(name, "ascending") for name in (*KEY, *ORDER)])


def joined(table: pa.Table, at_once: int = 1_000) -> list[dict[str, Any]]:
    return [each for batch in join_chunks(table.to_batches(at_once)) for each in batch.to_pylist()]


@pytest.mark.slow
@given(
    st.lists(st.lists(st.sampled_from("abcd"), unique=True), min_size=1, max_size=15),
    st.integers(1, 9),
    st.integers(1, 7),
)
def test_however_a_day_is_cut_into_files_and_batches_each_client_gets_its_seconds_in_order(
    seconds: list[list[str]], lines_per_file: int, at_once: int
) -> None:
    lines = [line(seq, *(row(name, seq * 10) for name in names)) for seq, names in enumerate(seconds)]
    files = [content(*lines[begin : begin + lines_per_file]) for begin in range(0, len(lines), lines_per_file)]
    found = joined(chunks(*files), at_once)
    expected = {
        name: [seq for seq, names in enumerate(seconds) if name in names]
        for name in sorted({name for names in seconds for name in names})
    }
    assert {each["client_id"]: each["t"] for each in found} == expected
    assert len(found) == len(expected)
    for each in found:
        assert each["offered"] == [seq * 10 for seq in each["t"]]
        assert {len(each[name]) for name in SERIES} == {len(each["t"])}
        assert {len(each[name]) for name in EVENTS} == {0}


def test_seconds_of_a_client_stand_beside_its_mutations_and_do_not_fall() -> None:
    mutation = row(api="mutation", node=-1)
    two = line(0, mutation, events=(event(offset_ms=5), event(offset_ms=9)))
    (found,) = joined(chunks(content(two, line(1, mutation))))
    assert (found["t"], found["e_ms"], found["e_units"]) == ([0, 1], [5, 9], [3, 3])
    (alone,) = joined(chunks(content(line(0, events=(event(),)))))
    assert (alone["api"], alone["node"], alone["t"], alone["e_ms"]) == ("mutation", -1, [], [0])
    before = content(*(line(seq, row(units=seq)) for seq in range(10)))
    after = content(*(line(seq, row(units=100 + seq), boot=BOOT + 9_000, ts=DAY + 5 + seq) for seq in range(10)))
    other = content(*(line(seq, row("z", units=seq)) for seq in range(3)))
    first, second = joined(chunks(before, after, other))
    assert first["t"] == sorted([*range(10), *range(5, 15)])
    assert first["offered"][4:8] == [4, 5, 100, 6]
    assert second["t"] == [0, 1, 2]


# -- raw files ---------------------------------------------------------------------------------------------------
def write(folder: Path, *lines: bytes) -> tuple[list[dict[str, Any]], list[DataFile]]:
    """Writes raw files; the heads of lines and the files, which the driver gets."""
    return sorted_out(write_raw_files(Collector().file("f", content(*lines)), str(folder), 7))


def sorted_out(answers: Iterable[pa.RecordBatch | DataFile]) -> tuple[list[dict[str, Any]], list[DataFile]]:
    heads: list[dict[str, Any]] = []
    files = []
    for answer in answers:
        if isinstance(answer, DataFile):
            files.append(answer)
        else:
            heads += answer.to_pylist()
    return heads, files


def test_a_clock_that_was_set_back_over_midnight_made_seconds_of_both_days_twice() -> None:
    head = ("a", BOOT, "f", 0, 0, DAY + 600, "2026-09-28", 1, 0, 0, "", -1_200_000)
    found = _days([head], 7, {"2026-09-26", "2026-09-27"})
    assert {day: (each.lines, each.set_back_ms, each.last_batch) for day, each in found.items()} == {
        "2026-09-28": (1, {"a": 1_200_000}, 7),
        "2026-09-27": (0, {"a": 1_200_000}, 7),
    }


def test_the_driver_gets_lines_tears_and_files_and_no_rows(tmp_path: Path) -> None:
    heads, files = write(tmp_path, line(0, row(), events=(event(),)), b"junk", line(2, row()))
    assert [each["kind"] for each in heads] == ["lines", "torn"]
    assert {each.partition["date"]: each.rows for each in files} == {"2026-09-28": 3, None: 1}
    for each in files:
        path = tmp_path / each.path
        assert path.name.startswith("00000000000000000007-")
        assert path.stat().st_size == each.bytes
    kinds = pq.read_table(tmp_path / files[0].path, columns=["kind"], partitioning=None)
    assert sorted(kinds.column("kind").to_pylist()) == ["events", "lines", "rows"]
    assert write(tmp_path / "nothing") == ([], [])
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_a_task_has_few_files_open_however_many_days_its_lines_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(seq, row(), ts=DAY + 86_400 * (seq % 80)) for seq in range(160)]
    descriptors = []

    def counted(*arguments: Any, **how: Any) -> Any:
        descriptors.append(len(os.listdir("/proc/self/fd")))
        return parquet_writer(*arguments, **how)

    monkeypatch.setattr("pipeline.storage.partitioned_files.parquet_writer", counted)
    before = len(os.listdir("/proc/self/fd"))
    heads, files = write(tmp_path, *lines)
    assert sum(len(each["seq"]) for each in heads) == 160
    assert len({each.partition["date"] for each in files}) == 80
    assert len(descriptors) >= 80
    assert max(descriptors) <= before + 20


@pytest.mark.slow
@pytest.mark.parametrize(("parts", "buckets"), [(1, 32), (5, 256), (7, FINE_BUCKETS)])
def test_parts_of_a_day_are_the_day_whatever_their_number(tmp_path: Path, parts: int, buckets: int) -> None:
    clients = [f"c{number}" for number in range(60)]
    lines = [line(seq, *map(row, clients)) for seq in range(10)]
    files = [*write(tmp_path, *lines[:5])[1], *write(tmp_path, *lines[5:], line(86_400, row("tomorrow")))[1]]
    raw = list(groups_of(f"{tmp_path}/{each.path}" for each in files if each.partition["date"] == "2026-09-28"))
    assert len(raw) == 2
    out = str(tmp_path / "out")
    done = [
        each
        for part in range(parts)
        for each in compact_buckets(
            raw, "2026-09-28", range(part * buckets // parts, (part + 1) * buckets // parts), buckets, out, 1
        )
    ]
    assert sum(each.file.rows for each in done) == 60
    assert sum(each.elements for each in done) == 60 * 10
    found = [each for one in done for each in pq.ParquetFile(f"{out}/{one.file.path}").read().to_pylist()]
    assert sorted(each["client_id"] for each in found) == sorted(clients)
    assert all(each["t"] == list(range(10)) for each in found)
    for each in found:
        assert each["bucket"] == bucket_of(each["user"], each["client_id"], each["api"]) * buckets // FINE_BUCKETS


def test_a_task_reads_only_the_row_groups_of_its_buckets(tmp_path: Path) -> None:
    _, (file,) = write(tmp_path, line(0, *(row(f"c{number}") for number in range(20_000))))
    with pq.ParquetFile(tmp_path / file.path) as read:
        at = read.schema_arrow.get_field_index("bucket")
        groups = [read.metadata.row_group(group).column(at) for group in range(read.metadata.num_row_groups)]
        spans = [(group.statistics.min, group.statistics.max) for group in groups]
    assert len(spans) > 10
    assert sum(first <= 96 <= last for first, last in spans) <= 3
