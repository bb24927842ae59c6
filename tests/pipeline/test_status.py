from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.cli import main


def test_a_folder_without_anything_is_told_without_starting_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--out", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batches"], told["days"], told["gaps"]) == (0, [], [])


def test_a_folder_elsewhere_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--out", "hdfs://name/out"]) == 1
    assert "not on this machine" in capsys.readouterr().err
