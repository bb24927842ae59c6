"""Finds and fetches Kafka's jars, and starts a JVM with them.

The jars are those of the `pom.xml` beside this file; see `pinned_jars`. Beside them lie two things that are made
once because making them costs a JVM start each: the first metadata records (what `kafka-storage format` writes, the
same for every node and cluster) and a class data archive, which halves a broker's start (3.5 s to 1.7 s on two cores)
and its CPU time. Jars of an older version are fetched only for tests that ask for them.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pinned_jars import FetchError, cache_dir, ensure, program

KAFKA_VERSION: Final = "4.4.0"

# A quick start matters more than peak speed for a broker that lives for a test: no second compiler, no GC threads.
# No counters for jstat either, which a thread renews 20 times a second.
QUICK_START: Final = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
# For measurements: the collector and the heap that Kafka's own scripts choose.
FULL_SPEED: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

_HERE: Final = Path(__file__).resolve().parent
_TOOL_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class Install:
    """A complete set of jars in the cache folder."""

    root: Path

    @property
    def libs(self) -> Path:
        """The folder with the jars."""
        return self.root / "libs"

    @property
    def archive(self) -> Path:
        """The class data archive; may not exist yet."""
        return self.root / "classes.jsa"

    @property
    def formatted(self) -> Path:
        """The folder with the files of a freshly formatted node, but for its `meta.properties`."""
        return self.root / "formatted"

    def class_path(self) -> str:
        """The class path, sorted: the class data archive is only valid for one order."""
        return ":".join(str(jar) for jar in sorted(self.libs.glob("*.jar")))


def installed(version: str = KAFKA_VERSION) -> Install:
    """The jars, fetched first when they are missing or the pinned set has changed.

    Safe to call from many processes at once: one fetches, the others wait for it.

    Args:
        version: Kafka's.

    Raises:
        MissingProgramError: no Java or no Maven on this machine.
        FetchError: Maven failed, most often for want of a network.
    """
    install = Install(cache_dir() / f"kafka-{version}")
    ensure(
        install.libs,
        _HERE / ("pom-3.xml" if int(version.split(".")[0]) < 4 else "pom.xml"),
        f"Kafka {version} (54 MB)",
        partial(_format, install),
        properties={"kafka.version": version},
    )
    return install


def streams_class_path(version: str = KAFKA_VERSION) -> str:
    """The class path of Kafka Streams, to go behind that of `installed`; fetched first when it is missing."""
    folder = cache_dir() / f"kafka-streams-{version}" / "jars"
    ensure(folder, _HERE / "streams.xml", "Kafka Streams (2 MB)", properties={"kafka.version": version})
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def java_command(
    install: Install,
    main_class: str,
    arguments: Sequence[str],
    *,
    jvm_options: Sequence[str] = QUICK_START,
    log_level: str = "INFO",
) -> list[str]:
    """The command line that runs a class of the jars.

    Args:
        install: the jars.
        main_class: a class with a main method.
        arguments: what the class gets.
        jvm_options: heap, collector, compiler.
        log_level: log4j's level for the whole process, to standard error.
    """
    # Without an archive, or with one of another Java, the JVM starts without it (-Xshare:auto).
    archive = [f"-XX:SharedArchiveFile={install.archive}"] if install.archive.exists() else []
    return [
        java(),
        "-Xshare:auto",
        "-Xlog:disable",  # such as of an archive of another Java, into the output of a tool
        *archive,
        *jvm_options,
        f"-Dlog4j2.configurationFile={_HERE / 'log4j2.xml'}",
        f"-Dsluice.log.level={log_level}",
        "-cp",
        install.class_path(),
        main_class,
        *arguments,
    ]


def java() -> str:
    """The java program: JAVA_HOME's, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return program("java", package="default-jre-headless")


def _format(install: Install) -> None:
    install.archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="sluice-format-") as scratch:
        properties = Path(scratch) / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:1\n"
            "listeners=PLAINTEXT://localhost:2,CONTROLLER://localhost:1\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={scratch}/data\nlistener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        )
        # Any cluster id will do: the records do not hold it.
        arguments = ["format", "-t", "A" * 21 + "Q", "-c", str(properties)]
        command = java_command(install, "kafka.tools.StorageTool", arguments, log_level="WARN")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise FetchError(f"kafka-storage format failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        shutil.rmtree(install.formatted, ignore_errors=True)
        ignored = shutil.ignore_patterns("meta.properties")
        shutil.copytree(Path(scratch) / "data", install.formatted, ignore=ignored)


if __name__ == "__main__":
    print(installed().root)
