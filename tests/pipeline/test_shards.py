from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.columns import Collector
from pipeline.layout import BUCKETS
from pipeline.shards import pack_shard, write_shard
from tests.pipeline.usage_lines import content, event, line, row

DATE = datetime.date(2026, 9, 28)
CLIENTS = 200


def write(folder: Path, *lines: bytes) -> list[dict[str, object]]:
    """What the driver is told."""
    folder.mkdir(parents=True, exist_ok=True)
    told = write_shard(Collector().file("f", content(*lines)), str(folder))
    return [one for batch in told for one in batch.to_pylist()]


def lines(first: int, count: int) -> list[bytes]:
    return [
        line(seq, *(row(f"c{number}") for number in range(CLIENTS))) for seq in range(first, first + count)
    ]


def test_the_driver_is_told_lines_tears_and_the_file_and_no_rows(tmp_path: Path) -> None:
    told = write(tmp_path, line(0, row(), events=(event(),)), b"junk", line(2, row()))
    assert [one["kind"] for one in told] == ["lines", "torn", "file"]
    assert [one["text"] for one in told] == [None] * 3
    (file,) = tmp_path.iterdir()
    assert told[-1]["source"] == file.name
    kinds = pq.read_table(file, columns=["kind"]).column("kind").to_pylist()
    assert sorted(kinds) == ["events", "lines", "rows", "torn"]


def test_nothing_to_write_makes_no_file(tmp_path: Path) -> None:
    assert write(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("parts", [1, 3, BUCKETS])
def test_parts_of_a_day_are_the_day_whatever_their_number(tmp_path: Path, parts: int) -> None:
    write(tmp_path / "0", *lines(0, 20))
    write(tmp_path / "1", *lines(20, 20), line(86_400, row("tomorrow")))
    out = tmp_path / "out"
    out.mkdir()
    paths = [str(tmp_path / "0"), str(tmp_path / "1")]
    done = [
        pack_shard(paths, DATE, (part * BUCKETS // parts, (part + 1) * BUCKETS // parts), str(out))
        for part in range(parts)
    ]
    assert sum(keys for _, keys, _ in done) == CLIENTS
    assert sum(elements for *_, elements in done) == CLIENTS * 40
    assert {file.name for file in out.iterdir()} == {name for name, *_ in done if name}
    packed = [one for name, *_ in done if name for one in pq.read_table(out / name).to_pylist()]
    assert sorted(one["client_id"] for one in packed) == sorted(f"c{number}" for number in range(CLIENTS))
    assert all(one["t"] == list(range(40)) for one in packed)


def test_a_task_reads_only_the_row_groups_of_its_buckets(tmp_path: Path) -> None:
    many = [line(0, *(row(f"c{number}") for number in range(20_000)))]
    write(tmp_path / "0", *many)
    (file,) = (tmp_path / "0").iterdir()
    with pq.ParquetFile(file) as read:
        at = read.schema_arrow.get_field_index("bucket")
        spans = [
            (statistics.min, statistics.max)
            for group in range(read.metadata.num_row_groups)
            if (statistics := read.metadata.row_group(group).column(at).statistics)
        ]
    assert len(spans) > 10
    assert sum(first <= 3 <= last for first, last in spans) <= 3
