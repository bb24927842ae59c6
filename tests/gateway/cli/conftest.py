"""The command line in the test's own process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, output and errors of ``sluice``."""

    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = main([str(word) for word in argv])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test writes its configuration."""
    return tmp_path / "sluice.toml"
