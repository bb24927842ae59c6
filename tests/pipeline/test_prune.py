from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline import prune
from pipeline.cli import main
from pipeline.errors import JobError
from pipeline.layout import MANIFEST, committed_batches, packed_dir, published_days, raw_dir
from pipeline.pack import pack
from pipeline.prune import Keep, delete, due, is_pruned
from pipeline.status import status
from pipeline.store import LocalStore, held
from tests.pipeline.conftest import Ingest
from tests.pipeline.usage_lines import DAY, line, place, row

TODAY = datetime.date(2026, 11, 30)
OLD, RECENT, YOUNG = "2026-11-01", "2026-11-22", "2026-11-23"


class Folder:
    """A pipeline's folder with empty tables: what `prune` looks at is what their manifests say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = str(path)

    def batch(self, number: int, *days: str, ledger: bool = True) -> None:
        """An ingested batch with lines of these days."""
        one = {"lines": 1, "rows": 1, "dropped_rows": 0, "dropped_events": 0}
        told = {"dates": dict.fromkeys(days, one), "lines": len(days), "rows": len(days)}
        self._put(raw_dir(self.out, number), {**told, "torn": 0, "duplicates": 0})
        quarantine = self.path / f"quarantine/batch={number:012d}"
        quarantine.mkdir(parents=True)
        if ledger:
            (self.path / "ledger").mkdir(exist_ok=True)
            text = json.dumps({"source": "s", "runs": []})
            (self.path / f"ledger/v={number:012d}.json").write_text(text)

    def packed(self, day: str, *batches: int, run: int = 1) -> None:
        """A day packed from these batches."""
        told = {"rows": 1, "keys": 1, "completeness": 1.0, "batches": batches}
        self._put(f"{packed_dir(self.out, day)}/run={run:06d}", told)

    def _put(self, folder: str, manifest: dict[str, Any]) -> None:
        Path(folder).mkdir(parents=True)
        (Path(folder) / MANIFEST).write_text(json.dumps(manifest))
        (Path(folder) / "part.parquet").write_bytes(b"rows")

    @property
    def batches(self) -> list[int]:
        """What is there."""
        return [each.number for each in committed_batches(self.out)]

    @property
    def days(self) -> list[str]:
        """What is there."""
        return [each.date for each in published_days(self.out)]

    def prune(self, **keep: int) -> dict[str, tuple[int, ...]]:
        """Delete what is due; what was kept though it is old."""
        found = due(self.out, Keep(**keep), today=TODAY)
        delete(self.out, found)
        return found.kept


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_batch_goes_with_its_quarantine_once_its_youngest_day_is_old_and_all_its_days_are_packed(
    folder: Folder,
) -> None:
    folder.batch(0, OLD)
    folder.batch(1, OLD, RECENT)
    folder.batch(2, RECENT, YOUNG)
    folder.packed(OLD, 0, 1)
    folder.packed(RECENT, 1, 2)
    folder.packed(YOUNG, 2)
    assert folder.prune(raw=7) == {}
    assert folder.batches == [2]
    assert [path.name for path in (folder.path / "quarantine").iterdir()] == ["batch=000000000002"]
    assert not list((folder.path / "raw").glob(".*"))
    assert len(list((folder.path / "ledger").iterdir())) == 3


def test_a_batch_with_lines_of_a_day_that_is_not_packed_with_them_stays_however_old(folder: Folder) -> None:
    folder.batch(0, OLD, RECENT)
    folder.batch(1, RECENT)
    folder.batch(2, OLD)
    folder.packed(OLD, 0)
    folder.packed(RECENT, 1)
    assert folder.prune(packed=100) == {OLD: (2,), RECENT: (0,)}
    assert folder.batches == [0, 2]


def test_a_batch_that_the_ledger_does_not_tell_of_yet_stays(folder: Folder) -> None:
    folder.batch(0, OLD)
    folder.batch(1, OLD, ledger=False)
    folder.packed(OLD, 0, 1)
    folder.prune()
    assert folder.batches == [1]


def test_a_batch_without_lines_goes_with_the_one_read_after_it(folder: Folder) -> None:
    folder.batch(0)
    folder.batch(1, OLD)
    folder.batch(2)
    folder.packed(OLD, 1)
    folder.prune()
    assert folder.batches == [2]


def test_a_day_of_a_clock_set_wrong_does_not_keep_a_batch_once_it_is_packed(folder: Folder) -> None:
    folder.batch(0, OLD, "2126-01-01")
    folder.packed(OLD, 0)
    assert folder.prune() == {"2126-01-01": (0,)}
    folder.packed("2126-01-01", 0)
    assert folder.prune() == {}
    assert (folder.batches, folder.days) == ([], [OLD, "2126-01-01"])


def test_a_packed_day_goes_when_it_is_old_and_its_late_lines_after_it(folder: Folder) -> None:
    for number in (0, 1):
        folder.batch(number, OLD)
    folder.packed(OLD, 0)
    folder.packed("2026-10-25", 0)
    folder.packed("2026-10-26")
    folder.prune(packed=35)
    assert folder.days == ["2026-10-26", OLD]
    assert is_pruned(LocalStore(), folder.out, "2026-10-25")
    folder.prune(packed=7)
    assert (folder.days, folder.batches) == ([], [1])
    folder.prune()
    assert folder.batches == []


def test_an_older_run_that_a_killed_pack_has_left_does_not_come_back_as_the_day(folder: Folder) -> None:
    folder.packed("2026-10-25", 0, run=1)
    folder.packed("2026-10-25", 0, 1, run=2)
    folder.prune(packed=35)
    assert folder.days == []
    assert [path.name for path in (folder.path / "packed/date=2026-10-25").iterdir()] == ["_pruned.json"]


def test_reports_go_when_they_are_old_and_plans_and_what_has_a_name_never(folder: Folder) -> None:
    for name in (
        "report/run=20260831T120000Z",
        "report/run=20260901T120000Z",
        "sim/run=20260831T120000Z",
        "sim/run=wide",
        "plan/run=2026-08-31T120000Z",
    ):
        (folder.path / "results" / name).mkdir(parents=True)
    folder.prune(results=90)
    left = sorted(str(path.relative_to(folder.path / "results")) for path in folder.path.glob("results/*/*"))
    assert left == ["plan/run=2026-08-31T120000Z", "report/run=20260901T120000Z", "sim/run=wide"]


class Killed(LocalStore):
    """Dies at one of its calls, in the middle of a folder when it deletes."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _dies(self) -> bool:
        self._left -= 1
        return self._left < 0

    def delete(self, path: str) -> None:
        if self._dies():
            for file in Path(path).glob("*.parquet"):
                file.unlink()
            raise KeyboardInterrupt
        super().delete(path)

    def rename(self, path: str, to: str) -> None:
        if self._dies():
            raise KeyboardInterrupt
        super().rename(path, to)

    def write(self, path: str, content: bytes) -> None:
        if self._dies():
            raise KeyboardInterrupt
        super().write(path, content)


@pytest.mark.parametrize("at", range(6))
def test_killed_while_it_deletes_it_shows_nothing_half_and_the_next_run_does_the_rest(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    folder.batch(0, OLD)
    folder.packed(OLD, 0)
    with monkeypatch.context() as patched:
        patched.setattr(prune, "store_of", lambda _: Killed(at))
        with pytest.raises(KeyboardInterrupt):
            delete(folder.out, due(folder.out, Keep(packed=7), today=TODAY))
    for each in (*committed_batches(folder.out), *published_days(folder.out)):
        assert (Path(each.path) / "part.parquet").exists()
    folder.prune(packed=7)
    assert (folder.batches, folder.days) == ([], [])
    assert is_pruned(LocalStore(), folder.out, OLD)
    assert not list(folder.path.rglob(".*.gone"))
    assert not list((folder.path / "quarantine").iterdir())


@pytest.fixture
def old(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder with something to delete, at a known time."""
    noon = datetime.datetime.combine(TODAY, datetime.time(12), datetime.UTC)
    monkeypatch.setattr(prune.time, "time", noon.timestamp)
    folder.batch(0, OLD)
    folder.batch(1, RECENT)
    folder.packed(OLD, 0)
    return folder


def test_without_yes_it_only_says_what_it_would_delete(
    old: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", "--out", old.out]) == 0
    told = capsys.readouterr().out
    assert "1 raw batches, 0: " in told
    assert f"kept: 1 raw batches (1) have lines of {RECENT}, which is not packed with them" in told
    assert "nothing was deleted: say --yes" in told
    assert old.batches == [0, 1]
    assert main(["prune", "--out", old.out, "--yes"]) == 0
    with pytest.raises(JobError, match=f"all raw batches of {OLD} are gone"):
        pack(None, old.out, date=OLD)
    assert old.batches == [1]
    assert main(["prune", "--out", old.out]) == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_it_deletes_nothing_while_a_day_is_being_packed(
    old: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    with held(f"{old.out}/.pack.lock"):
        assert main(["prune", "--out", old.out, "--yes"]) == 1
    assert "held by another process" in capsys.readouterr().err
    assert old.batches == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--out", "hdfs://a/out"], "not on this machine"), (["--out", "x", "--keep-raw", "0"], "--keep-raw")],
)
def test_what_it_can_not_do_is_told(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prune", *arguments]) == 1
    assert named in capsys.readouterr().err


@pytest.mark.spark
def test_late_lines_of_a_day_that_was_deleted_are_not_taken_for_the_day(
    spark: Any, tmp_path: Path, ingest: Ingest, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    place(tmp_path / "in", "1.jsonl.gz", *(line(seq, row()) for seq in range(50)))
    ingest()
    pack(spark, out)
    delete(out, due(out, Keep(), today=TODAY))
    (day,) = status(out)["days"]
    assert (list(committed_batches(out)), published_days(out), day["pruned"]) == ([], [], True)
    place(tmp_path / "in", "2.jsonl.gz", line(50, row()), line(51, row(), ts=DAY + 86_400))
    place(tmp_path / "in", "again.jsonl.gz", *(line(seq, row()) for seq in range(50)))
    ingest()
    assert status(out)["duplicates"] == 50
    assert list(pack(spark, out)) == ["2026-09-29"]
    assert "2026-09-28 was packed and has been pruned" in capsys.readouterr().err
    with pytest.raises(JobError, match="2026-09-28 was packed and has been pruned"):
        pack(spark, out, date="2026-09-28")
