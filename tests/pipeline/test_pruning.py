"""What is deleted and what stays, seen in folders whose tables are empty: their manifests say what is in them."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.errors import JobError
from pipeline.jobs import prune
from pipeline.maintenance import pruning
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.pruning import Keep, delete, due, is_pruned
from pipeline.maintenance.status import status
from pipeline.storage.layout import committed_batches, compacted_dir, published_days, raw_dir
from pipeline.storage.store import MANIFEST, LocalStore, held
from testkit.pipeline.usage_lines import LONG_AFTER

TODAY = datetime.date(2026, 11, 30)
OLD, RECENT, YOUNG = "2026-11-01", "2026-11-22", "2026-11-23"


class Folder:
    """A pipeline's folder with empty tables: what `prune` looks at is what their manifests say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = str(path)

    def batch(self, number: int, *days: str, index: bool = True) -> None:
        """An ingested batch with lines of these days."""
        one = {"lines": 1, "rows": 1, "dropped_rows": 0, "dropped_events": 0}
        manifest = {"dates": dict.fromkeys(days, one), "lines": len(days), "rows": len(days)}
        self._put(raw_dir(self.out, number), {**manifest, "torn": 0, "duplicates": 0})
        quarantine = self.path / f"quarantine/batch={number:012d}"
        quarantine.mkdir(parents=True)
        if index:
            (self.path / "ledger").mkdir(exist_ok=True)
            text = json.dumps({"source": "s", "runs": []})
            (self.path / f"ledger/v={number:012d}.json").write_text(text)

    def compacted(self, day: str, *batches: int, run: int = 1) -> None:
        """A day compacted from these batches."""
        manifest = {"rows": 1, "keys": 1, "completeness": 1.0, "batches": batches}
        self._put(f"{compacted_dir(self.out, day)}/run={run:06d}", manifest)

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


def test_a_batch_goes_with_its_quarantine_once_all_its_days_are_old_and_packed(folder: Folder) -> None:
    folder.batch(0, OLD)
    folder.batch(1, OLD, RECENT)
    folder.batch(2, RECENT, YOUNG)
    folder.compacted(OLD, 0, 1)
    folder.compacted(RECENT, 1, 2)
    folder.compacted(YOUNG, 2)
    assert folder.prune(raw=7) == {}
    assert folder.batches == [2]
    assert [path.name for path in (folder.path / "quarantine").iterdir()] == ["batch=000000000002"]
    assert not list((folder.path / "raw").glob(".*"))
    assert len(list((folder.path / "ledger").iterdir())) == 3


def test_a_batch_with_lines_of_a_day_that_is_not_packed_with_them_stays_however_old(folder: Folder) -> None:
    folder.batch(0, OLD, RECENT)
    folder.batch(1, RECENT)
    folder.batch(2, OLD)
    folder.compacted(OLD, 0)
    folder.compacted(RECENT, 1)
    assert folder.prune(compacted=100) == {OLD: (2,), RECENT: (0,)}
    assert folder.batches == [0, 2]


def test_a_batch_that_the_offset_index_does_not_have_yet_stays(folder: Folder) -> None:
    folder.batch(0, OLD)
    folder.batch(1, OLD, index=False)
    folder.compacted(OLD, 0, 1)
    folder.prune()
    assert folder.batches == [1]


def test_a_batch_without_lines_goes_with_the_one_read_after_it(folder: Folder) -> None:
    folder.batch(0)
    folder.batch(1, OLD)
    folder.batch(2)
    folder.compacted(OLD, 1)
    folder.prune()
    assert folder.batches == [2]


def test_a_day_of_a_clock_set_wrong_does_not_keep_a_batch(folder: Folder) -> None:
    # It is not compacted before its time.
    folder.batch(0, OLD, "2126-01-01")
    folder.compacted(OLD, 0)
    assert folder.prune() == {}
    assert (folder.batches, folder.days) == ([], [OLD])


def test_a_packed_day_goes_when_it_is_old_and_its_late_lines_after_it(folder: Folder) -> None:
    for number in (0, 1):
        folder.batch(number, OLD)
    folder.compacted(OLD, 0)
    folder.compacted("2026-10-25", 0)
    folder.compacted("2026-10-26")
    folder.prune(compacted=35)
    assert folder.days == ["2026-10-26", OLD]
    assert is_pruned(LocalStore(), folder.out, "2026-10-25")
    folder.prune(compacted=7)
    assert (folder.days, folder.batches) == ([], [1])
    folder.prune()
    assert folder.batches == []


def test_an_older_run_that_a_killed_pack_has_left_does_not_come_back_as_the_day(folder: Folder) -> None:
    folder.compacted("2026-10-25", 0, run=1)
    folder.compacted("2026-10-25", 0, 1, run=2)
    folder.prune(compacted=35)
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

    def move(self, path: str, to: str) -> None:
        if self._dies():
            raise KeyboardInterrupt
        super().move(path, to)

    def write(self, path: str, content: bytes) -> None:
        if self._dies():
            raise KeyboardInterrupt
        super().write(path, content)


@pytest.mark.parametrize("at", range(6))
def test_killed_while_it_deletes_it_shows_nothing_half_and_the_next_run_does_the_rest(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    folder.batch(0, OLD)
    folder.compacted(OLD, 0)
    with monkeypatch.context() as patched:
        patched.setattr(pruning, "store_of", lambda _: Killed(at))
        with pytest.raises(KeyboardInterrupt):
            delete(folder.out, due(folder.out, Keep(compacted=7), today=TODAY))
    for each in (*committed_batches(folder.out), *published_days(folder.out)):
        assert (Path(each.path) / "part.parquet").exists()
    folder.prune(compacted=7)
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
    folder.compacted(OLD, 0)
    return folder


def test_without_yes_it_only_says_what_it_would_delete(old: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--out", old.out]) == 0
    said = capsys.readouterr().out
    assert "1 raw batches, 0: " in said
    assert f"kept: 1 raw batches (1) have lines of {RECENT}, which is not compacted with them" in said
    assert "nothing was deleted: say --yes" in said
    assert old.batches == [0, 1]
    assert main(["prune", "--out", old.out, "--yes"]) == 0
    assert old.batches == [1]
    assert main(["prune", "--out", old.out]) == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_it_deletes_nothing_while_a_day_is_being_packed(old: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with held(f"{old.out}/.pack.lock"):
        assert main(["prune", "--out", old.out, "--yes"]) == 1
    assert "held by another process" in capsys.readouterr().err
    assert old.batches == [0, 1]


def test_late_lines_of_a_day_that_is_gone_are_not_taken_for_the_day(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.batch(0, OLD)
    folder.compacted(OLD, 0)
    folder.prune(raw=7)
    with pytest.raises(JobError, match=f"all raw batches of {OLD} are gone"):
        compact(None, folder.out, LONG_AFTER, date=OLD)
    folder.batch(1, OLD)
    for days, fault in ((100, "compacted from raw batches that are gone"), (7, "compacted and has been pruned")):
        folder.prune(compacted=days)
        # Left as it is, so that other days can be compacted; the day asked for by name is an error.
        assert compact(None, folder.out, LONG_AFTER) == {}
        assert f"left as it is: {OLD} was {fault}" in capsys.readouterr().err
        with pytest.raises(JobError, match=fault):
            compact(None, folder.out, LONG_AFTER, date=OLD)
    assert [(day["pruned"], day["compacted_rows"]) for day in status(folder.out, LONG_AFTER)["days"]] == [
        (True, None)
    ]
    with pytest.raises(JobError, match=f"no lines of {YOUNG} have been read: there are {OLD}"):
        compact(None, folder.out, LONG_AFTER, date=YOUNG)
