"""What is deleted and what stays: in tables whose states and files say it, without Spark."""

import datetime
import os
import shutil
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.cli import main
from pipeline.client_tables.tables import client_use_table, clients_table
from pipeline.client_tables.timelines import SUMMARY
from pipeline.errors import Exit, JobError
from pipeline.jobs import prune
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.keep import Keep
from pipeline.maintenance.pruning import Due, delete
from pipeline.maintenance.status import status
from pipeline.storage import tables
from pipeline.storage.compacted_days import CompactedState, compacted_table, published_days
from pipeline.storage.coverage import day_number
from pipeline.storage.layout import CompactedDay
from pipeline.storage.offset_index import DAY_S, Entry, OffsetIndex, Run
from pipeline.storage.partitioned_files import PartitionedFiles
from pipeline.storage.raw_table import RawDay, RawState, raw_table
from pipeline.storage.schemas import COMPACTED_SCHEMA, RAW_SCHEMA
from pipeline.storage.tables import Snapshot, Table
from testkit.pipeline.client_days import client_table, publish_made
from testkit.pipeline.usage_lines import LONG_AFTER

TODAY = datetime.date(2026, 11, 30)
OLD, RECENT, YOUNG = "2026-11-01", "2026-11-22", "2026-11-23"
AHEAD = "2126-01-01"


class Folder:
    """A pipeline's folder with a row for whatever is said to be in it."""

    def __init__(self, out: str, clock: pytest.MonkeyPatch) -> None:
        self.out = out
        self._clock = clock

    def batch(self, *days: str, torn: bool = False, at: str = "2026-11-29") -> None:
        """An ingested batch with a line of each of these days."""
        self.at(at)
        table = raw_table(self.out)
        before = table.prepared()
        state = RawState.from_json(before.state)
        says: dict[str, Any] = {"algorithms": {"a": ("rate",)}, "scopes": {"a": (1, state.batches, "gateway")}}
        one = RawDay(1, 1, last_batch=state.batches, **says)
        after = RawState(
            state.batches + 1,
            index=state.index.add([Entry(Run("a", 1), state.batches, 1)])[0] if days else OffsetIndex(),
            days={**state.days, **{day: state.days.get(day, RawDay()) + one for day in days}},
        )
        files = _files(table, before, RAW_SCHEMA, [*days, *([None] if torn else [])])
        table.commit(before, add=files, state=after.to_json())

    def compacted(self, day: str, last_batch: int = 0) -> None:
        """A day compacted from all batches up to this one."""
        raw = raw_table(self.out).read()
        read = RawState.from_json(raw.state).days.get(day, RawDay())
        lines = read.lines if read.last_batch == last_batch else 1
        table = compacted_table(self.out)
        before = table.prepared()
        state = CompactedState.from_json(before.state)
        about = CompactedDay(
            day, uuid.uuid4().hex, rows=1, keys=1, raw=raw.identifier, last_batch=last_batch, lines=lines, buckets=32
        )
        after = CompactedState({**state.days, day: about}, state.pruned)
        files = _files(table, before, COMPACTED_SCHEMA, [day])
        table.commit(before, add=files, remove=before.of(date=day), state=after.to_json())

    def at(self, day: str) -> None:
        """Sets the clock to noon of a day."""
        noon = datetime.datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()
        self._clock.setattr(tables.time, "time", lambda: noon)
        self._clock.setattr(prune.time, "time", lambda: noon)

    @property
    def raw(self) -> list[str | None]:
        """Days with raw rows, and None for lines that could not be read; each file once."""
        return sorted((file.partition["date"] for file in raw_table(self.out).read().files), key=str)

    @property
    def days(self) -> list[str]:
        """Compacted days, whose rows are there."""
        table = compacted_table(self.out)
        files = table.read().files
        days = [day.date for day in published_days(self.out)]
        assert days == sorted({str(file.partition["date"]) for file in files})
        if files:
            assert DeltaTable(table._uri).to_pyarrow_table(columns=["date"]).num_rows == len(files) + 1
        return days

    def prune(self, **keep: int) -> Due:
        """Delete what is due."""
        made = clients_table(self.out), client_use_table(self.out)
        return delete(self.out, Keep(**keep), today=TODAY, made=made)


def _files(table: Table, before: Snapshot, schema: pa.Schema, days: list[str | None]) -> list[tables.DataFile]:
    parts = PartitionedFiles(table.folder, before.version + 1, ["date"], schema)
    for day in days:
        date = None if day is None else datetime.date.fromisoformat(day)
        row = {"date": pa.array([date], pa.date32())}
        columns = [row.get(column.name, pa.nulls(1, column.type)) for column in schema]
        parts.write((day,), pa.Table.from_arrays(columns, schema=schema), 1)
    return parts.end()


@pytest.fixture(params=["here", pytest.param("s3", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    root = str(tmp_path / "out") if request.param == "here" else request.getfixturevalue("bucket")
    return Folder(root, monkeypatch)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(str(tmp_path / "out"), monkeypatch)


def make_client_tables(out: str) -> None:
    """A row in each table of clients for each compacted day."""
    for day in published_days(out):
        rows = client_table([{"date": datetime.date.fromisoformat(day.date), "t": [1]}])
        publish_made(clients_table(out), day, {("gateway", "client_day"): rows})
        publish_made(client_use_table(out), day, {(): pa.Table.from_pylist([{"client_id": "c"}], schema=SUMMARY)})


def data_files(out: str) -> list[str]:
    return sorted(str(path) for path in Path(out).rglob("*.parquet") if path.parent.name.startswith("date="))


@pytest.mark.slow
def test_raw_rows_go_once_their_day_is_old_and_compacted_with_all_of_them(folder: Folder) -> None:
    folder.batch(OLD, RECENT)
    folder.batch(OLD, RECENT, YOUNG)
    folder.compacted(OLD, 1)
    folder.compacted(RECENT, 0)
    folder.compacted(YOUNG, 1)
    assert folder.prune(raw=7).kept == (RECENT,)
    assert folder.raw == [RECENT, RECENT, YOUNG]
    folder.compacted(RECENT, 1)
    assert folder.prune(raw=7).kept == ()
    assert folder.raw == [YOUNG]
    # What has been read is known for longer.
    state = RawState.from_json(raw_table(folder.out).read().state)
    assert (state.batches, state.index.lines(), state.days[OLD].gone, state.days[YOUNG].gone) == (2, 2, True, False)
    # What its gateways said of a day is with the compacted one; each commit writes what stays here.
    assert (state.days[OLD].scopes, state.days[OLD].algorithms) == ({}, {})
    assert (list(state.days[YOUNG].scopes), list(state.days[YOUNG].algorithms)) == (["a"], ["a"])


def test_their_files_are_gone_too(local: Folder) -> None:
    local.batch(OLD, YOUNG, torn=True)
    local.compacted(OLD)
    local.compacted(OLD)
    local.compacted(YOUNG)
    assert len(data_files(local.out)) == 6
    local.prune(raw=7, compacted=7)
    left = [Path(path).parent.name for path in data_files(local.out)]
    assert left == [f"date={YOUNG}", f"date={YOUNG}", "date=none"]


def test_lines_that_could_not_be_read_and_days_of_a_clock_set_wrong_go_when_they_are_old(folder: Folder) -> None:
    folder.batch(AHEAD, YOUNG, torn=True, at=OLD)
    folder.batch(YOUNG, torn=True, at=RECENT)
    folder.batch(YOUNG, torn=True, at=YOUNG)
    folder.compacted(YOUNG, 2)
    found = folder.prune(raw=7)
    assert (found.raw.keys(), found.kept) == ({AHEAD, None}, ())
    assert folder.raw == [YOUNG, YOUNG, YOUNG, None]
    # Should the day ever come, it is another one.
    assert AHEAD not in RawState.from_json(raw_table(folder.out).read().state).days


@pytest.mark.slow
def test_a_compacted_day_goes_when_it_is_old_and_its_late_lines_after_it(local: Folder) -> None:
    local.batch(OLD, "2026-10-25")
    local.batch(OLD)
    local.compacted(OLD, 0)
    local.compacted("2026-10-25", 0)
    local.compacted("2026-10-26")
    make_client_tables(local.out)
    made = [clients_table(local.out), client_use_table(local.out)]
    local.prune(compacted=35)
    assert local.days == ["2026-10-26", OLD]
    assert local.raw == [OLD, OLD]
    for table in made:
        assert table.read().state["days"].keys() == {"2026-10-26", OLD}
        assert {file.partition["date"] for file in table.read().files} == {"2026-10-26", OLD}
    assert local.prune(compacted=7).kept == (OLD,)
    assert (local.days, local.raw) == ([], [OLD, OLD])
    local.prune()
    assert local.raw == []


@pytest.mark.slow
def test_what_is_known_of_very_old_lines_goes_and_none_of_them_is_read_again(
    local: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two starts of a gateway on each of some days; the compacted days are gone, but for the last."""
    days = [(TODAY - datetime.timedelta(days=back)).isoformat() for back in (99, 98, 97, 96, 5)]
    for at, day in enumerate(days):
        local.batch(day, at=day)
        local.compacted(day, at)
    runs = {day: Run("a", 2 + at) for at, day in enumerate(days)}
    begins = {day: day_number(day) * DAY_S for day in days}
    table = raw_table(local.out)
    before = table.prepared()
    state = RawState.from_json(before.state)
    lines = [Entry(run, seq, begins[day] + seq) for day, run in runs.items() for seq in range(3)]
    table.commit(before, state=replace(state, index=OffsetIndex().add(lines)[0]).to_json())
    local.at(TODAY.isoformat())

    assert main(["prune", "--out", local.out, "--keep-index", "90"]) == Exit.DONE
    said = capsys.readouterr().out
    assert "what is known of lines from before 2026-09-01: 3 starts of gateways; such lines are not read" in said
    found = local.prune()
    assert (found.forgotten, found.runs) == ("2026-09-01", 3)
    state = RawState.from_json(raw_table(local.out).read().state)
    # The start before the newest says since when the gateway is expected.
    assert list(state.index.runs) == [runs[days[3]], runs[days[4]]]
    assert list(state.days) == [days[4]]
    assert CompactedState.from_json(compacted_table(local.out).read().state).pruned == {}
    again, duplicates = state.index.add(lines)
    assert (len(duplicates), again) == (len(lines), state.index)
    unknown = Run("new", 1)
    assert not state.index.holds(unknown, 0, day_number("2026-09-01") * DAY_S)
    assert state.index.holds(unknown, 0, day_number("2026-09-01") * DAY_S - 1)
    # A clock that was never set names no day: such lines are kept as before.
    assert not state.index.holds(unknown, 0, 5)
    version = raw_table(local.out).read().version
    assert local.prune().forgotten == ""
    assert raw_table(local.out).read().version == version


def test_lines_of_days_that_are_still_there_are_not_forgotten(local: Folder) -> None:
    local.batch("2026-08-01", at="2026-08-01")
    local.batch("2026-08-20", at="2026-08-20")
    local.compacted("2026-08-01", 0)
    found = local.prune()
    # The second was never compacted, so its rows wait for that.
    assert (found.forgotten, found.kept) == ("2026-08-20", ("2026-08-20",))
    assert RawState.from_json(raw_table(local.out).read().state).index.forgotten_s == day_number("2026-08-20") * DAY_S


@pytest.mark.slow
@pytest.mark.parametrize("old", [2, 4])
def test_the_log_of_old_versions_goes_and_all_later_ones_can_be_read(local: Folder, old: int) -> None:
    for day in (OLD, RECENT, YOUNG):
        local.batch(day)
    log = Path(local.out, "raw", "_delta_log")
    logged = sorted(log.glob("*.json"))
    assert len(logged) == 4
    # Not the clock of the test: delta-rs has its own.
    written = datetime.datetime.now(datetime.UTC).timestamp() - 8 * DAY_S
    for file in logged[:old]:
        os.utime(file, (written, written))
    before = raw_table(local.out).read()

    found = local.prune(raw=7)
    # The newest version stays, however old it is.
    first = min(old, 3)
    assert found.log == first
    table = raw_table(local.out)
    after = table.read()
    assert [file.exists() for file in logged] == [at >= first for at in range(4)]
    for version in range(first, after.version + 1):
        assert DeltaTable(table._uri, version=version).version() == version
    assert (after.files, after.state, after.foreign) == (before.files, before.state, None)
    assert DeltaTable(table._uri).to_pyarrow_table(columns=["date"]).num_rows == len(after.files) + 1
    # From then on delta-rs does the same by itself.
    assert after.handle.metadata().configuration["delta.logRetentionDuration"] == "interval 7 days"
    assert local.prune(raw=7).log == 0
    assert raw_table(local.out).read().version == after.version
    local.batch(YOUNG)
    assert raw_table(local.out).read().version == after.version + 1


def test_reports_go_when_they_are_old_and_plans_and_what_has_a_name_never(local: Folder) -> None:
    results = Path(local.out, "results")
    for name in (
        "report/run=20260831T120000Z",
        "report/run=20260901T120000Z",
        "sim/run=20260831T120000Z",
        "sim/run=wide",
        "plan/run=2026-08-31T120000Z",
    ):
        (results / name).mkdir(parents=True)
    local.prune(results=90)
    left = sorted(str(path.relative_to(results)) for path in results.glob("*/*"))
    assert left == ["plan/run=2026-08-31T120000Z", "report/run=20260901T120000Z", "sim/run=wide"]


@pytest.fixture(scope="module")
def old_day(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with an old day in all tables, and a line that could not be read."""
    root = tmp_path_factory.mktemp("old-day") / "out"
    with pytest.MonkeyPatch.context() as clock:
        folder = Folder(str(root), clock)
        folder.batch(OLD, torn=True, at=OLD)
        folder.compacted(OLD)
    make_client_tables(folder.out)
    return folder.out


@pytest.mark.slow
@pytest.mark.parametrize("step", ["sweep", "commit", "_write_state", "_delete"])
@pytest.mark.parametrize("after", range(4))
def test_killed_while_it_deletes_it_shows_nothing_half_and_the_next_run_does_the_rest(
    old_day: str, local: Folder, monkeypatch: pytest.MonkeyPatch, step: str, after: int
) -> None:
    shutil.copytree(old_day, local.out)
    local.at(OLD)
    real, left = getattr(Table, step), iter(range(after))

    def dying(table: Table, *arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(table, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Table, step, dying)
        with pytest.raises(KeyboardInterrupt):
            local.prune(compacted=7)
    for table in (raw_table(local.out), compacted_table(local.out), clients_table(local.out)):
        for file in table.read().files:
            assert Path(table.path(file)).exists()
    local.prune(compacted=7)
    assert (local.raw, local.days) == ([], [])
    assert clients_table(local.out).read().files == client_use_table(local.out).read().files == ()
    assert OLD in CompactedState.from_json(compacted_table(local.out).read().state).pruned
    assert data_files(local.out) == []


def test_a_full_disk_gets_room_by_what_was_replaced_before_anything_is_written(
    local: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.compacted(YOUNG)
    local.compacted(YOUNG)
    assert len(data_files(local.out)) == 2

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(28, "No space left on device")

    local.batch(OLD)
    local.compacted(OLD)
    with monkeypatch.context() as patched:
        patched.setattr(Table, "_write_state", full)
        with pytest.raises(JobError, match="No space"):
            local.prune()
    assert sum("compacted/" in path for path in data_files(local.out)) == 2
    local.prune()
    assert local.raw == []


@pytest.fixture
def old(local: Folder) -> Folder:
    """A folder with something to delete, at a known time."""
    local.batch(OLD, RECENT)
    local.compacted(OLD, 0)
    local.at(TODAY.isoformat())
    return local


@pytest.mark.slow
def test_without_yes_it_only_says_what_it_would_delete(old: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--out", old.out]) == 0
    said = capsys.readouterr().out
    assert f"1 raw day, {OLD}: 0.0 MB" in said
    assert f"kept: raw rows of {RECENT}, which is not compacted completely" in said
    assert "nothing was deleted: say --yes" in said
    assert old.raw == [OLD, RECENT]
    assert main(["prune", "--out", old.out, "--yes"]) == 0
    assert old.raw == [RECENT]
    assert main(["prune", "--out", old.out]) == Exit.NOTHING_TO_DO
    assert "nothing to delete" in capsys.readouterr().out


@pytest.mark.slow
def test_late_lines_of_a_day_that_is_gone_are_not_taken_for_the_day(
    local: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    local.batch(OLD)
    local.compacted(OLD)
    local.prune(raw=7)
    with pytest.raises(JobError, match=f"{OLD} was compacted from raw rows that have been pruned since"):
        compact(None, local.out, LONG_AFTER, date=OLD)
    local.batch(OLD)
    for days, fault in ((100, "compacted from raw rows that have been pruned"), (7, "compacted and has been pruned")):
        # Left as it is, so that other days can be compacted; the day asked for by name is an error.
        assert compact(None, local.out, LONG_AFTER) == {}
        assert f"left as it is: {OLD} was compacted from raw rows" in capsys.readouterr().err
        found = local.prune(compacted=days)
        assert found.kept == (OLD,)
        with pytest.raises(JobError, match=fault):
            compact(None, local.out, LONG_AFTER, date=OLD)
    (day,) = (day for day in status(local.out, LONG_AFTER)["days"] if day["date"] == OLD)
    assert (day["pruned"], day["compacted_rows"]) == (True, None)
    with pytest.raises(JobError, match=f"no lines of {YOUNG} have been read: there are {OLD}"):
        compact(None, local.out, LONG_AFTER, date=YOUNG)


def test_a_day_ahead_of_a_slow_clock_stays(local: Folder) -> None:
    soon = (TODAY + datetime.timedelta(20)).isoformat()
    local.batch(soon, at=OLD)
    local.prune()
    assert local.raw == [soon]


def test_raw_rows_of_another_table_are_not_taken_for_those_that_were_compacted(
    local: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    local.batch(OLD)
    local.batch(OLD)
    local.compacted(OLD, 1)
    # All of it again, but for a line.
    shutil.rmtree(f"{local.out}/raw")
    local.batch(YOUNG)
    local.batch(OLD)
    assert local.prune().kept == (OLD,)
    (day,) = (day for day in status(local.out, LONG_AFTER)["days"] if day["date"] == OLD)
    assert day["late"]
    local.compacted(YOUNG)
    assert compact(None, local.out, LONG_AFTER) == {}
    assert f"{OLD} was compacted from 2 lines, of which 1 are in the raw table now" in capsys.readouterr().err


def test_a_folder_that_was_moved_is_the_same(local: Folder) -> None:
    local.batch(OLD, YOUNG)
    local.compacted(OLD)
    shutil.move(local.out, f"{local.out}-moved")
    local.out = f"{local.out}-moved"
    assert local.days == [OLD]
    local.prune()
    assert local.raw == [YOUNG]
