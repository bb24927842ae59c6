"""Each source has a checkpoint of its own; checkpoints of earlier releases stay in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.errors import ArgumentError, Exit
from pipeline.ingest.checkpoints import checkpoint_of
from pipeline.storage.raw_table import read_raw_state
from testkit.pipeline.usage_lines import line, place, row
from tests.pipeline.conftest import Session

KAFKA = "__sluice_usage@kafka-1:9092"


def _note(checkpoint: Path, known: dict[str, object]) -> None:
    notes = checkpoint / "sources/0"
    notes.mkdir(parents=True)
    (notes / "0").write_text(f"v1\n{json.dumps(known)}\n")


def _file(folder: Path) -> dict[str, object]:
    return {"path": f"{(folder / 'usage%20a.jsonl').as_uri()}", "timestamp": 1, "batchId": 0}


def test_each_source_has_one_of_its_own(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    sources = [("files", str(tmp_path / "one/usage")), ("files", str(tmp_path / "two/usage")), ("kafka", KAFKA)]
    found = [checkpoint_of(out, None, *source) for source in sources]
    assert len(set(found)) == 3
    assert all(each.startswith(f"{out}/checkpoints/") for each in found)
    assert checkpoint_of(out, None, "files", str(tmp_path / "one/usage")) == found[0]
    assert Path(found[0]).name.startswith("files-usage-")


def test_that_of_an_earlier_release_stays_that_of_its_source(tmp_path: Path) -> None:
    of_files, of_topic = tmp_path / "files", tmp_path / "topic"
    _note(of_files / "checkpoint", _file(tmp_path / "usage 1"))
    assert checkpoint_of(str(of_files), None, "files", str(tmp_path / "usage 1")) == f"{of_files}/checkpoint"
    assert checkpoint_of(str(of_files), None, "files", str(tmp_path / "usage*")) == f"{of_files}/checkpoint"
    for other in (("files", str(tmp_path / "usage 2")), ("kafka", KAFKA)):
        assert checkpoint_of(str(of_files), None, *other) != f"{of_files}/checkpoint"
    _note(of_topic / "checkpoint", {"__sluice_usage": {"0": 0}})
    assert checkpoint_of(str(of_topic), None, "kafka", KAFKA) == f"{of_topic}/checkpoint"
    assert checkpoint_of(str(of_topic), None, "kafka", "other@kafka-1:9092") != f"{of_topic}/checkpoint"


def test_one_that_is_given_has_to_be_of_the_source_or_new(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    assert checkpoint_of("s3://bucket/out", str(notes), "files", "/usage1") == str(notes)
    _note(notes, _file(Path("/usage1")))
    assert checkpoint_of("s3://bucket/out", str(notes), "files", "/usage1") == str(notes)
    with pytest.raises(ArgumentError, match="belongs to another source than files:/usage2"):
        checkpoint_of("s3://bucket/out", str(notes), "files", "/usage2")


@pytest.mark.spark
def test_folders_of_two_gateways_go_into_one_table_beside_an_old_checkpoint(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.jobs.ingest.open_session", lambda *_, **__: Session(spark))
    out = tmp_path / "out"

    def ingest(folder: str, *more: str) -> int:
        return main(["ingest", "--from", f"files:{tmp_path / folder}", "--out", str(out), *more])

    place(tmp_path / "usage1", "usage-a-0.jsonl", line(0, row()), line(1, row()))
    place(tmp_path / "usage2", "usage-b-0.jsonl", line(0, row(), gw="b"))
    assert ingest("usage1", "--checkpoint", str(out / "checkpoint")) == Exit.DONE
    assert ingest("usage2", "--checkpoint", str(out / "checkpoint")) == Exit.WRONG_ARGUMENTS
    assert ingest("usage2") == Exit.DONE
    assert ingest("usage1") == Exit.NOTHING_TO_DO
    place(tmp_path / "usage1", "usage-a-2.jsonl", line(2, row()))
    assert ingest("usage1") == Exit.DONE
    state = read_raw_state(str(out))
    assert (state.lines, state.duplicates, len(state.checkpoints)) == (4, 0, 2)
    assert len(list((out / "checkpoints").iterdir())) == 1, "the first source has the old one"
