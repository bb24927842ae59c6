"""Which days and batches count, which lines have been read, and the small files beside the tables."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import JobError
from pipeline.storage.layout import BUCKETS, bucket_of, committed_batches, compacted_dir, published_days, raw_dir
from pipeline.storage.offset_index import Entry, Gap, Interval, OffsetIndex, Run
from pipeline.storage.store import MANIFEST, HadoopStore, LocalStore, Store, held, is_local, store_of


def publish(out: str, date: str, run: int) -> None:
    folder = Path(compacted_dir(out, date), f"run={run:06d}")
    folder.mkdir(parents=True)
    manifest = {"date": date, "rows": run, "keys": 1, "completeness": 1.0, "batches": [0]}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_the_newest_run_of_each_day_and_batches_with_a_manifest_count(tmp_path: Path) -> None:
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
    for number in (2, 0, 1):
        Path(raw_dir(str(tmp_path), number)).mkdir(parents=True)
    for number in (2, 0):
        Path(raw_dir(str(tmp_path), number), MANIFEST).write_text(json.dumps({"rows": number}))
    (tmp_path / "raw" / ".batch=000000000003.x").mkdir()
    assert [(batch.number, batch.manifest["rows"]) for batch in committed_batches(str(tmp_path))] == [(0, 0), (2, 2)]


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
    store.move(f"{root}/a", f"{root}/deep/b")
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
def test_hadoops_client_can_do_what_the_jobs_ask(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(HadoopStore(spark), f"file://{tmp_path}")
    monkeypatch.setattr("pipeline.storage.store._REPLACING", frozenset())  # as on an object store
    use(HadoopStore(spark), f"file://{tmp_path}")


class DyingFiles:
    """A file system of Hadoop's client that moves so many files and is killed then."""

    def __init__(self, files: Any, moves: int) -> None:
        self._files = files
        self._left = moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def rename(self, path: Any, to: Any) -> bool:
        if not self._left:
            raise KeyboardInterrupt
        self._left -= 1
        return bool(self._files.rename(path, to))


@pytest.mark.spark
def test_a_folder_that_is_published_file_by_file_counts_once_it_is_whole(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, root = HadoopStore(spark), f"file://{tmp_path}"
    parts = ["a.parquet", "scope=broker/table=use/z.parquet", "z.parquet"]
    whole = []
    for moves in range(len(parts) + 2):
        for name in (MANIFEST, *parts):
            store.write(f"{root}/.part/{name}", name.encode())
        with monkeypatch.context() as patch:
            at, dying = store._at, DyingFiles(store._at(root)[0], moves)
            patch.setattr(store, "_at", lambda path, at=at, dying=dying: (dying, at(path)[1]))
            try:
                store.move(f"{root}/.part", f"{root}/run")
            except KeyboardInterrupt:
                assert moves <= len(parts)
        if store.read(f"{root}/run/{MANIFEST}") is not None:
            whole.append(moves)
            assert [store.read(f"{root}/run/{name}") for name in parts] == [name.encode() for name in parts]
            with pytest.raises(JobError, match="is there already"):
                store.move(f"{root}/.part", f"{root}/run")
        store.delete(f"{root}/run")
        store.delete(f"{root}/.part")
    assert whole == [len(parts) + 1]


def test_file_that_cannot_be_written_leaves_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore()
    store.write(f"{tmp_path}/index", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write(f"{tmp_path}/index", b"new")
    assert store.read(f"{tmp_path}/index") == b"old"
    assert store.names(str(tmp_path)) == ["index"]


def test_only_one_process_writes_at_a_time_and_paths_with_a_scheme_are_hadoops(tmp_path: Path) -> None:
    with held(f"{tmp_path}/lock"), pytest.raises(JobError, match="held by another"), held(f"{tmp_path}/lock"):
        pass
    with held(f"{tmp_path}/lock"):
        pass
    assert is_local("/data/out") and is_local("out") and is_local("file:///data")  # noqa: PT018
    assert not is_local("hdfs://name/out")
    assert isinstance(store_of("/data"), LocalStore)
    with pytest.raises(JobError, match="not on this machine"):
        store_of("s3a://bucket/out")


# -- the offset index ------------------------------------------------------------------------------------------------
RUN = Run("a", 1_790_000_000_000)
START = RUN.boot // 1000


def entries(*seqs: int, run: Run = RUN) -> list[Entry]:
    return [Entry(run, seq, run.boot // 1000 + 1 + seq) for seq in seqs]


LINES = st.lists(
    st.builds(
        lambda gw, boot, seq: Entry(Run(gw, boot), seq, boot // 1000 + 1 + seq),
        st.sampled_from(["a", "b"]),
        st.sampled_from([RUN.boot, RUN.boot + 5_000]),
        st.integers(0, 30),
    ),
    max_size=60,
)


def read(lines: list[Entry], batch: int) -> tuple[OffsetIndex, int]:
    index, duplicates = OffsetIndex(), 0
    for begin in range(0, len(lines), batch):
        index, repeated = index.add(lines[begin : begin + batch])
        duplicates += len(repeated)
    return index, duplicates


@given(LINES, st.randoms(use_true_random=False), st.integers(1, 70), st.integers(1, 70))
def test_any_order_and_repetition_end_in_the_same_index(
    lines: list[Entry], chance: object, batch: int, other: int
) -> None:
    again = lines + lines[::2]
    chance.shuffle(again)  # type: ignore[attr-defined]
    index, duplicates = read(lines, batch)
    shuffled, more_duplicates = read(again, other)
    assert shuffled == index
    assert index.lines() == len(set(lines)) == len(lines) - duplicates == len(again) - more_duplicates


@given(LINES)
def test_lines_and_gaps_are_all_numbers_up_to_the_last_one(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    last = {run: max(seq for owner, seq, _ in lines if owner == run) for run, _, _ in lines}
    missing = {(gap.gw, gap.boot, seq) for gap in index.gaps() for seq in range(gap.first, gap.last + 1)}
    there = {(*run, seq) for run, seq, _ in lines}
    assert missing | there == {(*run, seq) for run, end in last.items() for seq in range(end + 1)}
    assert not missing & there


@given(LINES)
def test_an_index_comes_back_from_json_as_it_was(lines: list[Entry]) -> None:
    index, _ = OffsetIndex().add(lines)
    assert OffsetIndex.from_json(index.to_json()) == index


def test_neighbours_join_and_a_gap_names_its_lines_and_the_seconds_around_it() -> None:
    index, duplicates = OffsetIndex().add(entries(3, 1, 2, 2))
    assert duplicates == [3]
    assert index.runs == {RUN: (Interval(1, 3, START + 2, START + 4),)}
    index, duplicates = index.add(entries(0, 1))
    assert duplicates == [1]
    assert index.runs == {RUN: (Interval(0, 3, START + 1, START + 4),)}
    index, _ = OffsetIndex().add(entries(2, 3, 7))
    assert list(index.gaps()) == [
        Gap("a", RUN.boot, 0, 1, START, START + 3),
        Gap("a", RUN.boot, 4, 6, START + 4, START + 8),
    ]
