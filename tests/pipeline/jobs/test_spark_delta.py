"""Spark's own Delta Lake maintains and deletes from the pipeline's tables: each operation a real one of its SQL.

What they come to is shown with another writer by `test_foreign.py`, each time.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.cli import main
from pipeline.errors import RefusedError
from pipeline.storage.raw_table import raw_table, read_raw_state
from testkit.pipeline.local_session import LocalSession, compact_all, contents, ingest_files, known, tables_of
from testkit.pipeline.searching import files_with
from testkit.pipeline.spark_delta import spark_delta
from testkit.pipeline.usage_lines import event, line, place, row

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

DATE = "2026-09-28"

Run = Callable[..., None]


@pytest.fixture(scope="module")
def run_sql() -> Iterator[Run]:
    """Runs statements."""
    with spark_delta() as run:
        yield run


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two clients in several files, and lines that can't be read."""
    root = tmp_path_factory.mktemp("template")
    for number in range(3):
        lines = [
            line(10 * number + at, row("app", 5 + at), row("bob", 7, user="bob", node=at), events=(event("bob"),))
            for at in range(4)
        ]
        file = place(root / "in", f"usage-a-1-{number}.jsonl.gz", *lines, b"torn")
        ingest_files(str(root / "out"), root / "checkpoint", file)
    compact_all(str(root / "out"))
    return root


@pytest.fixture
def out(template: Path, tmp_path: Path) -> str:
    """A copy of it, to be changed."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "out")


def on_each(out: str, names: tuple[str, ...], *statements: str) -> list[str]:
    """Statements with each of these tables in place of {}."""
    return [text.format(f"delta.`{out}/{name}`") for name in names for text in statements]


def test_m09_what_keeps_the_rows_is_accepted(out: str, run_sql: Run) -> None:
    before = contents(out), known(out)
    statements = on_each(
        out,
        ("raw", "client_use"),
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 60 days')",
        "COMMENT ON TABLE {} IS 'usage'",
        "OPTIMIZE {}",
        "OPTIMIZE {} ZORDER BY (user)",
        "VACUUM {}",
    )
    run_sql(*statements)
    assert [name for name, table in tables_of(out).items() if table.read().foreign] == ["raw", "client_use"]
    for table in tables_of(out).values():
        table.in_order()
        table.sweep()
    assert (contents(out), known(out)) == before
    # What the pipeline has written is a table for Spark again.
    run_sql(f"SELECT assert_true(count(*) = {len(before[0]['raw']) + 1}) FROM delta.`{out}/raw`")


def test_m09_what_is_deleted_counts_as_erased_and_erase_cleans_what_is_left(
    out: str, run_sql: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {name: [each for each in rows if "'bob'" not in each] for name, rows in contents(out).items()}
    statements = on_each(
        out,
        ("raw", "compacted"),
        "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "OPTIMIZE {}",
        "DELETE FROM {} WHERE client_id = 'bob' AND api = 'mutation'",
        "MERGE INTO {} t USING (SELECT 'bob' AS gone) s ON t.client_id = s.gone WHEN MATCHED THEN DELETE",
        "VACUUM {}",
    )
    run_sql(*statements)
    for name in ("raw", "compacted"):
        tables_of(out)[name].in_order()
        assert f"out/{name}: another writer has deleted rows (version" in capsys.readouterr().err
        assert contents(out)[name] == others[name]
    assert read_raw_state(out).days[DATE].erased == 12
    left = files_with(Path(out), "bob")
    assert any("_change_data" in each for each in left)
    assert any(each.endswith(".crc") for each in left)
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession())
    usage = str(Path(out).parent / "in")
    assert main(["erase", "--out", out, "--usage", usage, "--client-id", "bob", "--yes"]) == 0
    assert files_with(Path(out).parent, "bob") == []
    after = contents(out)
    assert (after["raw"], after["compacted"]) == (others["raw"], others["compacted"])
    run_sql(f"SELECT assert_true(count(*) = {len(after['raw']) + 1}) FROM delta.`{out}/raw`")


def test_rows_in_deletion_vectors_and_changed_rows_are_refused(out: str, run_sql: Run) -> None:
    others = [each for each in contents(out)["raw"] if "'bob'" not in each]
    table = f"delta.`{out}/raw`"
    run_sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        f"DELETE FROM {table} WHERE client_id = 'bob'",
    )
    with pytest.raises(RefusedError, match=r"deletion vectors, so they are still in their files.*REORG TABLE"):
        raw_table(out).read()
    run_sql(f"REORG TABLE {table} APPLY (PURGE)")
    raw_table(out).in_order()
    assert contents(out)["raw"] == others
    version = raw_table(out).read().version
    run_sql(f"UPDATE {table} SET gw = 'b' WHERE kind = 'rows'", f"OPTIMIZE {table}")
    with pytest.raises(
        RefusedError, match=rf"changed rows \(version {version + 1}, UPDATE\).*restore version {version}"
    ):
        raw_table(out).read()
    run_sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    raw_table(out).in_order()
    assert contents(out)["raw"] == others
