from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.layout import (
    BUCKETS,
    KEY,
    MANIFEST,
    PACKED,
    bucket_of,
    committed_batches,
    packed_dir,
    published_days,
    raw_dir,
    read_packed,
)


def publish(out: str, date: str, run: int, **told: Any) -> None:
    folder = Path(packed_dir(out, date), f"run={run:06d}")
    folder.mkdir(parents=True)
    manifest = {"date": date, "rows": run, "keys": 1, "completeness": 1.0, "batches": [0]} | told
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_the_newest_run_of_each_day_counts_and_days_in_the_making_do_not(tmp_path: Path) -> None:
    out = str(tmp_path)
    for run in (9, 10):
        publish(out, "2026-09-28", run)
    publish(out, "2026-09-30", 1)
    Path(packed_dir(out, "2026-09-30"), ".run=000002.part").mkdir()
    Path(packed_dir(out, "2026-10-01"), "run=000001").mkdir(parents=True)
    assert [(day.date, day.run, day.rows) for day in published_days(out)] == [
        ("2026-09-28", 10, 10),
        ("2026-09-30", 1, 1),
    ]
    # Days packed by an older release do not say how they are ordered.
    assert [day.buckets for day in published_days(out)] == [0, 0]
    assert [day.date for day in published_days(out, first="2026-09-29")] == ["2026-09-30"]
    assert [day.date for day in published_days(out, last="2026-09-29")] == ["2026-09-28"]
    assert published_days(str(tmp_path / "nowhere")) == []


def test_reading_days_that_are_not_there_is_told_before_spark_is_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run `sluice-pipeline pack` first"):
        read_packed(None, str(tmp_path), "2026-09-28")


def test_batches_without_a_manifest_do_not_count(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        Path(raw_dir(str(tmp_path), number)).mkdir(parents=True)
    for number in (2, 0):
        Path(raw_dir(str(tmp_path), number), MANIFEST).write_text(json.dumps({"rows": number}))
    (tmp_path / "raw" / ".batch=000000000003.x").mkdir()
    assert [(batch.number, batch.told["rows"]) for batch in committed_batches(str(tmp_path))] == [
        (0, 0),
        (2, 2),
    ]


def test_a_keys_bucket_never_changes() -> None:
    # Raw and packed files of an older release are searched by it.
    assert (bucket_of("user", "client", "produce"), BUCKETS) == (30, 32)
    assert {bucket_of("u", f"c{number}", "fetch") for number in range(2_000)} == set(range(BUCKETS))


def test_the_packed_table_begins_with_its_key() -> None:
    assert PACKED.startswith(", ".join(f"`{name}` {kind}" for name, kind in KEY.items()))
