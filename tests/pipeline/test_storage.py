"""Which days and batches count, and the small files beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import JobError
from pipeline.storage.layout import (
    BUCKETS,
    MANIFEST,
    bucket_of,
    committed_batches,
    compacted_dir,
    published_days,
    raw_dir,
)
from pipeline.storage.store import HadoopStore, LocalStore, Store, held, is_local, store_of


def publish(out: str, date: str, run: int) -> None:
    folder = Path(compacted_dir(out, date), f"run={run:06d}")
    folder.mkdir(parents=True)
    manifest = {"date": date, "rows": run, "keys": 1, "completeness": 1.0, "batches": [0]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_the_newest_run_of_each_day_counts_and_days_in_the_making_do_not(tmp_path: Path) -> None:
    out = str(tmp_path)
    for run in (9, 10):
        publish(out, "2026-09-28", run)
    publish(out, "2026-09-30", 1)
    Path(compacted_dir(out, "2026-09-30"), ".run=000002.part").mkdir()
    Path(compacted_dir(out, "2026-10-01"), "run=000001").mkdir(parents=True)
    assert [(day.date, day.run, day.rows) for day in published_days(out)] == [
        ("2026-09-28", 10, 10),
        ("2026-09-30", 1, 1),
    ]
    # Days compacted by an older release do not say how they are ordered.
    assert [day.buckets for day in published_days(out)] == [0, 0]
    assert [day.date for day in published_days(out, first="2026-09-29")] == ["2026-09-30"]
    assert [day.date for day in published_days(out, last="2026-09-29")] == ["2026-09-28"]
    assert published_days(str(tmp_path / "nowhere")) == []


def test_batches_without_a_manifest_do_not_count(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        Path(raw_dir(str(tmp_path), number)).mkdir(parents=True)
    for number in (2, 0):
        Path(raw_dir(str(tmp_path), number), MANIFEST).write_text(json.dumps({"rows": number}))
    (tmp_path / "raw" / ".batch=000000000003.x").mkdir()
    assert [(batch.number, batch.manifest["rows"]) for batch in committed_batches(str(tmp_path))] == [
        (0, 0),
        (2, 2),
    ]


def test_a_keys_bucket_never_changes() -> None:
    # Raw and compacted files of an older release are searched by it.
    assert (bucket_of("user", "client", "produce"), BUCKETS) == (30, 32)
    assert {bucket_of("u", f"c{number}", "fetch") for number in range(2_000)} == set(range(BUCKETS))


def use(store: Store, root: str) -> None:
    """What the jobs do with a store."""
    assert store.read(f"{root}/none") is None
    assert store.names(f"{root}/none") == []
    store.write(f"{root}/a/one", b"1")
    store.write(f"{root}/a/one", b"two")
    assert store.read(f"{root}/a/one") == b"two"
    store.write(f"{root}/a/other", b"")
    assert [name for name in store.names(f"{root}/a") if not name.startswith(".")] == ["one", "other"]
    store.rename(f"{root}/a", f"{root}/deep/b")
    assert store.read(f"{root}/deep/b/one") == b"two"
    assert "a" not in store.names(root)
    store.delete(f"{root}/deep/b/one")
    assert store.read(f"{root}/deep/b/one") is None
    store.delete(f"{root}/deep")
    store.delete(f"{root}/deep")
    assert "deep" not in store.names(root)


def test_this_machine_can_do_what_the_jobs_ask(tmp_path: Path) -> None:
    use(LocalStore(), str(tmp_path))
    use(LocalStore(), f"file://{tmp_path}")


@pytest.mark.spark
def test_hadoops_client_can_do_what_the_jobs_ask(spark: Any, tmp_path: Path) -> None:
    use(HadoopStore(spark), f"file://{tmp_path}")


def test_a_file_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore()
    store.write(f"{tmp_path}/index", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write(f"{tmp_path}/index", b"new")
    assert store.read(f"{tmp_path}/index") == b"old"
    assert store.names(str(tmp_path)) == ["index"]


def test_only_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with held(f"{tmp_path}/lock"), pytest.raises(JobError, match="held by another"), held(f"{tmp_path}/lock"):
        pass
    with held(f"{tmp_path}/lock"):
        pass


def test_paths_with_a_scheme_are_hadoops() -> None:
    assert is_local("/data/out") and is_local("out") and is_local("file:///data")  # noqa: PT018
    assert not is_local("hdfs://name/out")
    assert isinstance(store_of("/data"), LocalStore)
    with pytest.raises(JobError, match="not on this machine"):
        store_of("s3a://bucket/out")
