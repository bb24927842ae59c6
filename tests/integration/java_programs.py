"""Small Java programs of the tests (`java/`), compiled against the broker's own jars when first asked for.

All of them at once, because a start of the compiler takes as long as ten programs.
"""

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from embedded_kafka import jars
from embedded_kafka.jars import QUICK_START
from testkit.built_programs import built
from testkit.packages import require_package

_SOURCES = Path(__file__).parent / "java"
_QUICK = [f"-J{option}" for option in QUICK_START]


def run_java(name: str, arguments: Sequence[str], *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run one of the programs to its end.

    Args:
        name: of the class and its file.
        arguments: its command line.
        timeout_s: after this it is killed.
    """
    command = java_program(name, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def java_program(
    name: str,
    arguments: Sequence[str],
    *,
    log_level: str = "WARN",
    more_jars: str = "",
    version: str = jars.KAFKA_VERSION,
) -> list[str]:
    """The command line of one of the programs, for callers that run it beside something else.

    Args:
        name: of the class and its file.
        arguments: its command line.
        log_level: see `jars.java_command`.
        more_jars: class path of Kafka Streams, for a program in `java/streams/`.
        version: of Kafka's jars.
    """
    javac = require_package("default-jdk-headless", "javac")
    install = jars.installed(version)
    command = jars.java_command(install, name, arguments, log_level=log_level)
    at = command.index("-cp") + 1
    # At the end, since the class data archive is made for the jars as the first part of the path.
    sources = _SOURCES / "streams" if more_jars else _SOURCES
    command[at] += f":{_compiled(javac, sources, f'{install.class_path()}:{more_jars}')}:{more_jars}"
    return command


@cache
def _compiled(javac: str, sources: Path, class_path: str) -> str:
    """The folder with the classes of all programs in a folder."""
    programs = sorted(sources.glob("*.java"))

    def build(folder: Path) -> None:
        command = [javac, *_QUICK, "-proc:none", "-d", folder, "-cp", class_path, *programs]
        subprocess.run(command, check=True, timeout=300)

    version = subprocess.check_output([javac, *_QUICK, "-version"], text=True)
    return str(built(sources.name, programs, version + class_path, build))
