"""Lines in quarantine are read again, each exactly once, and what must not be read stays."""

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.ingest.lines import UNSIGNED
from pipeline.ingest.reprocessing import reprocess
from pipeline.ingest.writer import messages_to_rows
from pipeline.maintenance.compaction import compact
from pipeline.storage.offset_index import Run
from pipeline.storage.raw_table import RawState, raw_table, read_raw_state, write_raw_files
from testkit.pipeline.local_session import LocalSession, ingest_files
from testkit.pipeline.usage_lines import BOOT, DAY, LONG_AFTER, line, place, row
from tests.pipeline.conftest import rows_of


def unread(out: Path, monkeypatch: pytest.MonkeyPatch, *lines: bytes, name: str = "new.gz") -> None:
    """Ingests lines with a release that knows another version of the format."""
    with monkeypatch.context() as older:
        older.setattr("pipeline.ingest.lines.VERSION", 99)
        ingest_files(str(out), out.parent / f"checkpoint-{name}", place(out.parent / "in", name, *lines))


@pytest.mark.slow
def test_lines_of_a_newer_gateway_are_read_after_the_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    ingest_files(str(out), tmp_path / "checkpoint", place(tmp_path / "in", "old.gz", line(0, row()), line(1, row())))
    assert compact(LocalSession(), str(out), LONG_AFTER)["2026-09-28"].rows == 2
    unread(out, monkeypatch, line(2, row(), row("b")), b"junk", line(3, row()))
    state = read_raw_state(str(out))
    assert (state.lines, state.torn) == (2, 3)

    assert main(["reprocess", "--out", str(out)]) == Exit.DONE
    said = capsys.readouterr().out
    assert "2 lines with 3 rows read; 0 lines read before, 1 still not readable" in said
    assert "1 line: not JSON" in said
    assert "compact these days again: 2026-09-28" in said
    state = read_raw_state(str(out))
    assert (state.lines, state.rows, state.torn, list(state.index.gaps())) == (4, 5, 1, [])
    assert rows_of(out) == [("app", 0), ("app", 1), ("app", 2), ("app", 3), ("b", 2)]
    # The day got lines since it was compacted.
    assert compact(LocalSession(), str(out), LONG_AFTER)["2026-09-28"].rows == 5

    version = raw_table(str(out)).read().version
    assert main(["reprocess", "--out", str(out)]) == Exit.NOTHING_TO_DO
    assert raw_table(str(out)).read().version == version


@pytest.mark.slow
def test_the_same_lines_come_of_a_quarantine_as_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law: whatever lay in quarantine, in any order and with copies, each line counts once."""
    chance = random.Random(3)
    lines = [line(seq, *(row(f"c{name}", seq) for name in range(seq % 3))) for seq in range(40)]
    plain, out = tmp_path / "plain" / "out", tmp_path / "out"
    ingest_files(str(plain), tmp_path / "checkpoint", place(tmp_path / "in", "all.gz", *lines))
    for at in range(4):
        some = chance.sample(lines, 25)
        if at == 2:
            ingest_files(str(out), tmp_path / "checkpoint-2", place(tmp_path / "in", "2.gz", *some))
        else:
            unread(out, monkeypatch, *some, name=f"{at}.gz")
    done = reprocess(str(out))

    state = read_raw_state(str(out))
    index = state.index
    assert rows_of(out) == [each for each in rows_of(plain) if index.holds(Run("a", BOOT), each[1], DAY)]
    assert state.torn == 0
    assert state.lines == index.lines() == 25 + done.lines
    assert done.lines + done.repeated == 75


def test_a_line_that_was_not_signed_is_not_read_for_being_tried_again(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    table = raw_table(out)
    messages = pa.RecordBatch.from_pylist(
        [
            {"topic": "t", "partition": 0, "offset": at, "key": b"a", "value": line(at, row()), "headers": []}
            for at in range(3)
        ]
    )
    before = table.prepared()
    collect = partial(messages_to_rows, secrets=[b"x" * 32])
    written = list(write_raw_files(collect(iter([messages]), frozenset()), table.folder, before.version + 1))
    files = [each for each in written if not isinstance(each, pa.RecordBatch)]
    table.commit(before, add=files, state=RawState(torn=3).to_json())

    assert reprocess(out).left == {UNSIGNED: 3}
    assert read_raw_state(out) == RawState(torn=3)


def test_an_empty_folder_has_nothing_to_read_again_and_gets_no_table(tmp_path: Path) -> None:
    assert main(["reprocess", "--out", str(tmp_path / "out")]) == Exit.NOTHING_TO_DO
    assert not (tmp_path / "out").exists()
