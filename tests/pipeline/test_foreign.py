"""What other writers may do to the tables: move rows, and delete rows. Every operation is a real one of Delta's."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.cli import main
from pipeline.client_tables.making import make_missing
from pipeline.client_tables.tables import clients_table
from pipeline.errors import Exit, RefusedError
from pipeline.jobs import arguments
from pipeline.maintenance.status import status
from pipeline.report.report import make
from pipeline.storage.compacted_days import CompactedDays, CompactedState, compacted_table, published_days
from pipeline.storage.entity_days import ARRAYS
from pipeline.storage.raw_table import raw_table, read_raw_state
from pipeline.storage.tables import Conflict, Table
from testkit.pipeline.local_session import LocalSession, compact_all, contents, ingest_files, known, tables_of
from testkit.pipeline.usage_lines import BOOT, DAY, LONG_AFTER, event, line, place, row

DATE, NEXT = "2026-09-28", "2026-09-29"
TABLES = ("raw", "compacted", "clients", "client_use")


def lines_of(day: int, first: int, gw: str) -> list[bytes]:
    """Lines with clients of all kinds; a client uses two brokers."""
    made = []
    for seq in range(first, first + 3):
        rows = [
            row("app", 100 + seq, node=seq % 2),
            row("bob", 7 * seq, user="bob", api="fetch"),
            row("", 3, user="carol", api="request", node=-1),
            row("admin", 4, api="mutation", node=-1),
            row("10.0.0.7", 2, user="", api="connect", node=-1),
        ]
        number = day * 100 + seq
        made.append(
            line(
                number,
                *rows,
                events=(event("admin", seq), event("bob", user="bob")),
                gw=gw,
                ts=DAY + 86_400 * day + seq,
            )
        )
    return made


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two days of two gateways in several batches, and a line that can't be read."""
    root = tmp_path_factory.mktemp("template")
    for number, first in enumerate((0, 3)):
        files = [
            place(root / "in", f"usage-{gw}-{BOOT}-{number}{day}.jsonl.gz", *lines_of(day, first, gw), b'{"torn": bo')
            for gw in ("a", "b")
            for day in (0, 1)
        ]
        ingest_files(str(root / "out"), root / "checkpoint", *files)
    compact_all(str(root / "out"))
    return root


@pytest.fixture
def out(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of it, to be changed."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(arguments.time, "time", lambda: DAY + 5 * 86_400)
    return str(tmp_path / "out")


def handle(out: str, table: str) -> DeltaTable:
    return DeltaTable(f"{out}/{table}")


def optimize(out: str, table: str) -> None:
    handle(out, table).optimize.compact()


def z_order(out: str, table: str) -> None:
    handle(out, table).optimize.z_order(["node" if table != "client_use" else "user"])


def vacuum(out: str, table: str) -> None:
    optimize(out, table)
    handle(out, table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def checkpoint(out: str, table: str) -> None:
    handle(out, table).create_checkpoint()


def properties(out: str, table: str) -> None:
    handle(out, table).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
    handle(out, table).alter.set_table_description("usage")


def again(out: str, table: str) -> None:
    optimize(out, table)
    z_order(out, table)
    properties(out, table)
    optimize(out, table)
    checkpoint(out, table)


# Each operation is in one of them.
KEEPING = [vacuum, again]


def plan_of(out: str, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """The quotas that `recommend` makes."""
    plan = f"{out}/../plan.json"
    assert main(["recommend", "--out", out, "--history", "2", "--allow-gaps", "--plan", plan]) == 0
    capsys.readouterr()
    entries: list[Any] = json.loads(Path(plan).read_text())["entries"]
    return entries


def report_of(out: str) -> list[Any]:
    """The clients of `report`."""
    found = make(LocalSession(), out, LONG_AFTER)
    return [found.clients, found.totals()]


def entities_of(out: str) -> list[str]:
    """What every replay reads of the compacted days."""

    def work(batches: Any) -> Any:
        for batch in batches:
            texts = pa.array([repr(each) for each in batch.to_pylist()], pa.string())
            yield pa.RecordBatch.from_pydict({"text": texts})

    days = CompactedDays.of(LocalSession(), out)
    return sorted(days.map_entities(work, "text string", arrays=ARRAYS).toArrow().column("text").to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("operation", KEEPING)
def test_m09_what_keeps_the_rows_is_accepted_by_every_job(
    out: str, operation: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(out), known(out), entities_of(out), plan_of(out, capsys), report_of(out)
    for table in TABLES:
        operation(out, table)
    assert status(out, LONG_AFTER)["lines"] == 24
    assert (contents(out), known(out), entities_of(out), plan_of(out, capsys), report_of(out)) == before
    assert not any(file.foreign for name in TABLES[1:] for file in tables_of(out)[name].read().files)
    # Ingest continues, and compacting from the moved rows gives the same as from others.
    files = [place(Path(out, "../in"), "usage-c.jsonl.gz", *lines_of(1, 0, "c"))]
    ingest_files(out, Path(out, "../checkpoint"), *files)
    assert main(["prune", "--out", out, "--yes"]) == Exit.NOTHING_TO_DO
    compact_all(out)
    assert sum("'gw': 'c'" in text for text in contents(out, "compacted")["compacted"]) == 7
    assert [day.erased for day in published_days(out)] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("operation", KEEPING)
def test_days_are_compacted_from_rows_that_were_moved_as_from_others(
    out: str, operation: Callable[[str, str], None]
) -> None:
    before = contents(out), known(out)
    for name in TABLES[1:]:
        shutil.rmtree(f"{out}/{name}")
    operation(out, "raw")
    compact_all(out)
    assert (contents(out), known(out)) == before
    assert raw_table(out).sweep() > 0
    assert contents(out) == before[0]


def delete_one(out: str, table: str) -> None:
    handle(out, table).delete("client_id = 'bob'")


def merge_away(out: str, table: str) -> None:
    gone = pa.table({"name": ["bob"]})
    merge = handle(out, table).merge(gone, "s.name = t.client_id", source_alias="s", target_alias="t")
    merge.when_matched_delete().execute()


def delete_moved_and_vacuum(out: str, table: str) -> None:
    optimize(out, table)
    delete_one(out, table)
    z_order(out, table)
    handle(out, table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


DELETING = [delete_one, merge_away, delete_moved_and_vacuum]


@pytest.mark.slow
@pytest.mark.parametrize("operation", DELETING)
def test_m09_a_client_that_another_writer_has_deleted_counts_as_erased(
    out: str, operation: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(out)
    for table in TABLES:
        operation(out, table)
    main(["status", "--out", out])
    assert "raw: other writers moved or deleted rows (version" in capsys.readouterr().out
    compact_all(out)
    main(["status", "--out", out])
    shown, said = capsys.readouterr()
    assert f"{DATE}: 48 raw rows, 0.01% complete, 12 rows erased; compacted" in shown
    assert "out/raw: another writer has deleted rows (version" in said
    assert f"12 recorded seconds of {DATE}, 12 recorded seconds of {NEXT}. " in said
    assert "`sluice-pipeline erase`" in said
    assert "bob" not in said
    others = {name: [each for each in rows if "'bob'" not in each] for name, rows in before.items()}
    after = contents(out)
    assert after["raw"] == others["raw"]
    assert after["compacted"] == others["compacted"]
    assert [each for each in after["clients"] if "'total'" not in each] == [
        each for each in others["clients"] if "'total'" not in each
    ]
    state = read_raw_state(out)
    assert {date: (day.erased, day.lines) for date, day in state.days.items()} == {DATE: (12, 12), NEXT: (12, 12)}
    assert [day.erased for day in published_days(out)] == [12, 12]
    # It is said once. A day is compacted again from what is left.
    assert not [each for each in status(out, LONG_AFTER)["days"] if each["late"]]
    shutil.rmtree(f"{out}/compacted")
    compact_all(out)
    assert contents(out, "compacted")["compacted"] == others["compacted"]
    assert capsys.readouterr().err == ""
    assert "bob" not in json.dumps(plan_of(out, capsys)) + json.dumps(report_of(out))


@pytest.mark.slow
def test_a_day_that_another_writer_has_deleted_counts_as_pruned(out: str) -> None:
    for table in ("raw", "compacted"):
        handle(out, table).delete(f"date = '{DATE}'")
    compact_all(out)
    assert read_raw_state(out).days[DATE].gone
    assert [day.date for day in published_days(out)] == [NEXT]
    assert list(CompactedState.from_json(compacted_table(out).read().state).pruned) == [DATE]


def change(out: str, table: str) -> None:
    handle(out, table).update({"gw": "'b'"}, predicate="gw = 'a'")


def append(out: str, table: str) -> None:
    there = handle(out, table)
    from deltalake import write_deltalake

    rows = pa.table({"date": pa.array([DAY // 86_400], pa.int32()).cast(pa.date32()), "gw": ["a"]})
    write_deltalake(there, rows, mode="append", schema_mode="merge")


def add_by_merge(out: str, table: str) -> None:
    more = pa.table({"name": ["eve", "bob"]})
    merge = handle(out, table).merge(more, "s.name = t.client_id", source_alias="s", target_alias="t")
    merge.when_matched_delete().when_not_matched_insert({"client_id": "s.name"}).execute()


def delete_state(out: str, table: str) -> None:
    handle(out, table).delete("date is null")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "moved_before"), [(change, False), (append, True), (add_by_merge, False), (delete_state, True)]
)
def test_rows_that_another_writer_adds_or_changes_are_refused_until_the_version_before_is_restored(
    out: str, operation: Callable[[str, str], None], moved_before: bool
) -> None:
    before = contents(out), known(out)
    if moved_before:
        optimize(out, "raw")
    version = handle(out, "raw").version()
    operation(out, "raw")
    optimize(out, "raw")
    fault = "deleted the row with the column state" if operation is delete_state else "added or changed rows"
    for refused in (raw_table(out).read, raw_table(out).in_order, raw_table(out).prepared):
        with pytest.raises(RefusedError, match=fault) as raised:
            refused()
        assert "erase it again" in str(raised.value)
        assert operation is delete_state or f"restore version {version} " in str(raised.value)
    handle(out, "raw").restore(version)
    raw_table(out).in_order()
    assert (contents(out), known(out)) == before


@pytest.mark.slow
def test_a_version_that_was_restored_over_later_ones_of_the_pipeline_is_the_table(out: str) -> None:
    version = raw_table(out).read().version
    before = contents(out, "raw")
    optimize(out, "raw")
    delete_one(out, "raw")
    raw_table(out).in_order()
    handle(out, "raw").restore(version)
    assert raw_table(out).read().foreign is None
    assert contents(out, "raw") == before
    optimize(out, "raw")
    raw_table(out).in_order()
    assert contents(out, "raw") == before


@pytest.mark.slow
def test_where_the_log_does_not_reach_back_rows_are_counted(out: str) -> None:
    log = Path(out, "raw", "_delta_log")
    before = contents(out, "raw")

    def shorten() -> None:
        checkpoint(out, "raw")
        for path in sorted(log.glob("*.json"))[:-1]:
            path.unlink()

    optimize(out, "raw")
    properties(out, "raw")
    shorten()
    raw_table(out).in_order()
    assert contents(out, "raw") == before
    delete_one(out, "raw")
    properties(out, "raw")
    shorten()
    with pytest.raises(RefusedError, match="hold 48 and 12 rows, where 60 and 12 are known"):
        raw_table(out).in_order()
    optimize(out, "clients")
    properties(out, "clients")
    checkpoint(out, "clients")
    for path in sorted(Path(out, "clients", "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    with pytest.raises(RefusedError, match="Delete the folder, and let `sluice-pipeline compact` make it again"):
        clients_table(out).in_order()


@pytest.mark.slow
def test_two_that_write_moved_rows_anew_at_once_do_it_once(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(out, "raw")
    optimize(out, "raw")
    commit, other = Table.commit, []

    def beaten(table: Table, *arguments: Any, **options: Any) -> Any:
        if not other:
            other.append(1)
            raw_table(out).in_order()
        return commit(table, *arguments, **options)

    monkeypatch.setattr(Table, "commit", beaten)
    found = raw_table(out).in_order()
    assert found.foreign is None
    assert contents(out, "raw") == before

    def always(*arguments: Any, **options: Any) -> Any:
        raise Conflict("changed by another job")

    optimize(out, "raw")
    monkeypatch.setattr(Table, "commit", always)
    with pytest.raises(Conflict):
        raw_table(out).in_order()


@pytest.fixture(scope="module")
def moved(template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A copy whose rows another writer has moved, and what was there before."""
    root = tmp_path_factory.mktemp("moved") / "root"
    shutil.copytree(template, root)
    out = str(root / "out")
    before = contents(out), known(out)
    for table in TABLES:
        z_order(out, table)
    return root, before


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_write_state", "commit", "rows_of"])
@pytest.mark.parametrize("after", range(3))
def test_killed_while_it_writes_moved_rows_anew_the_next_job_does_it(
    moved: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: int
) -> None:
    root, before = moved
    shutil.copytree(root, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(arguments.time, "time", lambda: DAY + 5 * 86_400)
    out = str(tmp_path / "out")
    real, left = getattr(Table, step), iter(range(after))

    def dying(table: Table, *arguments: Any, **options: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(table, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Table, step, dying)
        with pytest.raises(KeyboardInterrupt):
            [table.in_order() for table in tables_of(out).values()]
    for table in tables_of(out).values():
        table.in_order()
        table.sweep()
    assert (contents(out), known(out)) == before
    assert make_missing(LocalSession(), out) == []
