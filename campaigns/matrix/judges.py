"""Kafka's own tests of quotas and tools, with the gateway as their bootstrap address.

Kafka publishes the tests as jars. Tests that use a `ClusterInstance` run unchanged: `programs/judges/Judges.java`
gives them an instance with a given address. The same tests also run directly at the broker, and the same ones must
pass.
"""

from __future__ import annotations

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from campaigns.matrix.cells import Cell
from campaigns.matrix.stage import gateway
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from pinned_jars import cache_dir, ensure, program
from testkit.built_programs import built
from testkit.loopback import own_host

VERSION: Final = "4.3.1"
"""The newest version whose tests are published."""

AS_THEY_ARE: Final = (
    "org.apache.kafka.server.quota.ClientQuotasRequestTest",
    "org.apache.kafka.tools.ConfigCommandIntegrationTest",
    "org.apache.kafka.tools.GetOffsetShellTest",
    "org.apache.kafka.tools.DeleteRecordsCommandTest",
    "org.apache.kafka.tools.consumer.ConsoleConsumerTest",
    "org.apache.kafka.tools.consumer.group.DeleteConsumerGroupsTest",
)

_SOURCES: Final = Path(__file__).parent / "programs" / "judges"
_BUILD_S: Final = 300
_JUDGES_S: Final = 3_600


def judge(folder: Path) -> dict[str, Any]:
    """Run all of them on both sides.

    Args:
        folder: for the gateways.

    Returns:
        The data for the page. A row is a cell whose client is the test class and whose step is the test.
    """
    command = _command()
    # Each side has its own broker, because tests remove all topics and quotas.
    direct, behind = (KafkaCluster(host=own_host(77), version=VERSION, start_timeout_s=600) for _ in range(2))
    with direct, behind, gateway(behind, folder) as gate, ThreadPoolExecutor(2) as both:
        ways = [both.submit(_run, command, address) for address in (direct.bootstrap, str(gate.bootstrap))]
        alone, through = (way.result() for way in ways)
        leaks = [repr(hit) for hit in gate.tap.hits]
    tests = sorted({*alone, *through})
    missing = "failed it did not get there"
    cells = [
        Cell(VERSION, *test.split("."), alone.get(test, missing), through.get(test, missing))
        for test in tests
    ]
    return {"version": VERSION, "rows": [asdict(cell) for cell in cells], "leaks": leaks}


def _command() -> list[str]:
    install = jars.installed(VERSION)
    folder = cache_dir() / f"kafka-judges-{VERSION}" / "jars"
    ensure(folder, _SOURCES / "pom.xml", "tests of Kafka (8 MB)", properties={"kafka.version": VERSION})
    more = ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))
    javac = program("javac", package="default-jdk-headless")
    source, class_path = _SOURCES / "Judges.java", f"{install.class_path()}:{more}"

    def build(target: Path) -> None:
        command = [javac, "-nowarn", "-d", str(target), "-cp", class_path, str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_BUILD_S)

    classes = built("kafka-judges", [source], class_path, build)
    command = jars.java_command(install, "Judges", [], log_level="OFF")
    command[command.index("-cp") + 1] += f":{classes}:{more}"
    return command


def _run(command: list[str], bootstrap: str) -> dict[str, str]:
    """Class and test -> outcome."""
    done = subprocess.run(
        [*command, bootstrap, *AS_THEY_ARE], capture_output=True, text=True, timeout=_JUDGES_S, check=False
    )
    return {
        name: outcome
        for name, _, outcome in (line.partition(" ") for line in done.stdout.splitlines())
        if re.fullmatch(r"\w+\.\w+", name)
    }
