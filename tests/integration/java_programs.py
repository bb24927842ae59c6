"""Small Java programs of the tests (`java/`), compiled against the broker's own jars when first asked for."""

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from embedded_kafka import jars
from testkit.packages import require_package

_SOURCES = Path(__file__).parent / "java"


def run_java(name: str, arguments: Sequence[str], *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end.

    Args:
        name: of the class and its file.
        arguments: its command line.
        timeout_s: after this it is killed.
    """
    command = java_program(name, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def java_program(name: str, arguments: Sequence[str], *, log_level: str = "WARN") -> list[str]:
    """The command line of one of the programs, for callers that run it beside something else."""
    javac = require_package("default-jdk-headless", "javac")
    command = jars.java_command(jars.installed(), name, arguments, log_level=log_level)
    at = command.index("-cp") + 1
    # At the end, since the class data archive is made for the jars as the first part of the path.
    command[at] += f":{_compiled(javac, name)}"
    return command


@cache
def _compiled(javac: str, name: str) -> str:
    """The folder with the classes; it goes when the process ends."""
    folder = tempfile.mkdtemp(prefix="sluice-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [javac, "-d", folder, "-cp", jars.installed().class_path(), str(_SOURCES / f"{name}.java")]
    subprocess.run(command, check=True, timeout=60)
    return folder
