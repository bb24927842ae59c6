from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from pipeline import cli
from pipeline.cli import JOBS, main


@pytest.mark.parametrize("job", JOBS)
def test_every_job_tells_its_arguments(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([job, "--help"]) == 0
    assert f"sluice-pipeline {job}" in capsys.readouterr().out


def test_no_job_or_an_unknown_one_is_told_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["guess"]) == 2
    told = capsys.readouterr().err
    assert all(job in told for job in JOBS)


def test_a_missing_package_is_told_with_the_command_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")

    monkeypatch.setattr(cli, "importlib", type("Importer", (), {"import_module": staticmethod(missing)}))
    assert main(["pack"]) == 1
    assert "pip install 'sluice[pipeline]'" in capsys.readouterr().err


def test_nothing_heavy_is_loaded_for_help() -> None:
    code = (
        "import sys; from pipeline.cli import main; main(['--help']); "
        "sys.exit(bool({'pyspark', 'numpy', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
    assert importlib.import_module("pipeline.cli") is cli
