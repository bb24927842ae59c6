"""The Go program of the tests (`go/`), built when first asked for and kept until its sources change."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from testkit.built_programs import built

_SOURCES = Path(__file__).parent / "go"
_PROGRAM = "share_consumer"
_LEAST = (1, 26)
"""What franz-go needs; Debian's package is older."""


@cache
def go_program() -> str:
    """The program that reads as a member of a share group; the calling test skips where Go is missing or too old."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    told = "" if go is None else subprocess.check_output([go, "version"], env=environment, text=True)
    version = re.search(r"go(\d+)\.(\d+)", told)
    if go is None or version is None or (int(version[1]), int(version[2])) < _LEAST:
        pytest.skip("no Go 1.26, which franz-go needs; install it from go.dev")

    def build(folder: Path) -> None:
        fetched = subprocess.run(
            [go, "mod", "download"], cwd=_SOURCES, env=environment, capture_output=True, text=True, check=False
        )
        if fetched.returncode:
            pytest.skip(f"Go can't fetch franz-go: {fetched.stderr.strip()[-200:]}")
        command = [go, "build", "-buildvcs=false", "-o", str(folder / _PROGRAM), "."]
        subprocess.run(command, cwd=_SOURCES, env=environment, check=True)

    return str(built(_PROGRAM, sorted(_SOURCES.iterdir()), told, build) / _PROGRAM)
