from __future__ import annotations

from types import SimpleNamespace

import pytest

from pipeline import cli
from pipeline.errors import JobError


def test_a_job_that_refuses_ends_with_one_and_its_reason_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> int:
        raise JobError("the day is not complete")

    job = SimpleNamespace(add_arguments=lambda parser: None, run=refuse)
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=lambda name: job))
    assert cli.main(["pack"]) == 1
    assert capsys.readouterr().err == "sluice-pipeline pack: the day is not complete\n"
