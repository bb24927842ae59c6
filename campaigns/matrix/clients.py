"""The client programs of the matrix: built when they are first needed, and kept in the cache folder.

A program gets the bootstrap address, its own topic, and names of steps. For each step it prints a line with its name,
then "ok", "lacks" (the client has no such feature) or "failed" and the reason. The step "produce" writes 20 records
into both partitions of the topic, and later steps read them. Topics with these suffixes exist too: `-target` for
transactions, `-counts-classic` and `-counts-streams` for the counts of Kafka Streams applications.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from campaigns.matrix.versions import JAVA_CLIENTS
from embedded_kafka import jars
from pinned_jars import program
from testkit.built_programs import built

STEPS: Final = (
    "admin",
    "produce",
    "consume",
    "classic",
    "consumer",
    "share",
    "streams-classic",
    "streams",
    "transactions",
    "quotas",
)
"""The steps in the order in which programs run them."""

_PROGRAMS: Final = Path(__file__).parent / "programs"
_BUILD_S: Final = 3_600
"""One of the builds compiles a C library, possibly on a busy machine."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client of the matrix.

    Attributes:
        name: as the page shows it, with its version.
        command: builds its program and returns the command line. `subprocess.CalledProcessError` and the errors of
            `pinned_jars` give the reason if it is not available.
    """

    name: str
    command: Callable[[], list[str]]


def java_client(of_version: str) -> Client:
    """The Java client of a version, with that version's own kafka-configs."""
    return Client(f"Java {of_version}", partial(_java, of_version))


def clients(broker_version: str) -> list[Client]:
    """All clients to try against a broker."""
    of_versions = sorted(
        {*JAVA_CLIENTS, broker_version}, key=lambda text: [int(part) for part in text.split(".")]
    )
    python = {"librdkafka": "confluent-kafka", "kafka-python": "kafka-python", "aiokafka": "aiokafka"}
    return [
        *(java_client(of_version) for of_version in of_versions),
        *(
            Client(
                f"{family} {_librdkafka() if family == 'librdkafka' else version(package)}",
                partial(_python, family),
            )
            for family, package in python.items()
        ),
        Client("librdkafka 1.9.2", _go_librdkafka),
        *(Client(f"{family} {of}", partial(_go, family)) for family, of in GO_CLIENTS.items()),
        *(
            Client(f"{package} {of}", partial(_node, family))
            for family, (package, of) in NODE_CLIENTS.items()
        ),
    ]


GO_CLIENTS: Final = {"franz-go": "1.22.3", "sarama": "1.61.1", "kafka-go": "0.4.51"}
"""The versions in `programs/go/go.mod`."""

NODE_CLIENTS: Final = {
    "kafkajs": ("kafkajs", "2.2.4"),
    "confluent": ("confluent-kafka-javascript", "1.10.1"),
}
"""The versions in `programs/node/*/package.json`."""


def _librdkafka() -> str:
    import confluent_kafka

    return str(confluent_kafka.libversion()[0])


def _java(of_version: str) -> list[str]:
    install = jars.installed(of_version)
    javac = program("javac", package="default-jdk-headless")
    streams = jars.streams_class_path(of_version)
    class_path = f"{install.class_path()}:{streams}"
    names = ["MatrixClient", "StreamsStep", *(["ShareStep"] if _has_share_consumer(of_version) else [])]
    sources = [_PROGRAMS / "java" / f"{name}.java" for name in names]

    def build(folder: Path) -> None:
        _run([javac, "-nowarn", "-d", str(folder), "-cp", class_path, *map(str, sources)])

    folder = built(f"matrix-java-{of_version}", sources, _told([javac, "-version"]) + class_path, build)
    command = jars.java_command(install, "MatrixClient", [], log_level="OFF")
    at = command.index("-cp") + 1
    # Appended, because the class data archive requires the jars as the first part of the path.
    command[at] += f":{folder}:{streams}"
    return command


def _has_share_consumer(of_version: str) -> bool:
    return int(of_version.split(".")[0]) >= 4


def _python(family: str) -> list[str]:
    return [sys.executable, "-m", "campaigns.matrix.python_client", family]


def _go(family: str) -> list[str]:
    return [str(go_program("go")), family]


def _go_librdkafka() -> list[str]:
    return [str(go_program("go_librdkafka"))]


@cache
def go_program(name: str) -> Path:
    """Build a Go program of this package; its path."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin") or program("go", package="golang")
    environment = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    sources = sorted((_PROGRAMS / name).iterdir())

    def build(folder: Path) -> None:
        # Built in a copy, because Go writes to go.sum.
        shutil.copytree(_PROGRAMS / name, folder / "source")
        _run(
            [go, "build", "-buildvcs=false", "-o", str(folder / "program"), "."],
            folder / "source",
            environment,
        )
        shutil.rmtree(folder / "source")

    return built(f"matrix-{name}", sources, _told([go, "version"], environment), build) / "program"


def _node(family: str) -> list[str]:
    node, npm = program("node", package="nodejs"), program("npm", package="npm")
    source, script = _PROGRAMS / "node" / family / "package.json", _PROGRAMS / "node" / "client.js"

    def build(folder: Path) -> None:
        shutil.copy(source, folder)
        _run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
        if family == "confluent":
            _build_binding(node, npm, folder / "node_modules" / "@confluentinc" / "kafka-javascript")

    folder = built(f"matrix-node-{family}", [source], _told([node, "--version"]), build)
    # Node searches for modules in the folder of the script.
    shutil.copy(script, folder)
    return [node, str(folder / "client.js"), family]


def _build_binding(node: str, npm: str, package: Path) -> None:
    """Compile the binding with this machine's libraries. Its own install step would download a binary."""
    gyp = Path(npm).resolve().parents[1] / "node_modules" / "node-gyp" / "bin" / "node-gyp.js"
    # The build starts all compilers at once (`make -j`). This wrapper limits it to two.
    wrapper = package / "bounded" / "make"
    wrapper.parent.mkdir()
    real = program("make", package="make")
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = -j ] && shift && set -- -j2 "$@"\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    environment = {
        "CKJS_LINKING": "dynamic",
        "npm_config_nodedir": str(Path(node).resolve().parents[1]),
        "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
    }
    _run([node, str(gyp), "rebuild"], package, environment)


def _told(command: Sequence[str], environment: dict[str, str] | None = None) -> str:
    return subprocess.run(
        command, env=os.environ | (environment or {}), capture_output=True, text=True, check=True, timeout=60
    ).stdout


def _run(
    command: Sequence[str], folder: Path | None = None, environment: dict[str, str] | None = None
) -> None:
    """Run a step of a build; an exception contains its output."""
    subprocess.run(
        command,
        cwd=folder,
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_BUILD_S,
    )
