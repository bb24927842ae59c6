"""Where Kafka's jars are, how they get there, and how a JVM is started with them.

The jars come from Maven Central through the pinned `pom.xml` beside this file and stay in an ignored cache
folder: `.cache/` of the source tree, else `~/.cache/sluice`, or what SLUICE_CACHE_DIR names. Beside them lie two
things that are made once because making them costs a JVM start each: the first metadata record batch (what
`kafka-storage format` writes, the same for every node and cluster) and a class data archive, which halves a
broker's start (3.5 s to 1.7 s on two cores) and its CPU time.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.3.1"
CACHE_VARIABLE: Final = "SLUICE_CACHE_DIR"

# A quick start matters more than peak speed for a broker that lives for a test: no second compiler, no GC threads.
QUICK_START: Final = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# For measurements: the collector and the heap that Kafka's own scripts choose.
FULL_SPEED: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")

_HERE: Final = Path(__file__).resolve().parent
_FETCH_TIMEOUT_S: Final = 600
_TOOL_TIMEOUT_S: Final = 120


class MissingProgramError(RuntimeError):
    """A program this machine needs is not installed; the text says what to install."""


class FetchError(RuntimeError):
    """The jars could not be fetched; the text holds what Maven said."""


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
    def bootstrap_checkpoint(self) -> Path:
        """The first metadata records of a freshly formatted node."""
        return self.root / "bootstrap.checkpoint"

    def class_path(self) -> str:
        """The class path, sorted: the class data archive is only valid for one order."""
        return ":".join(str(jar) for jar in sorted(self.libs.glob("*.jar")))


def cache_dir() -> Path:
    """The folder everything that can be made again is kept in."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    source_tree = _HERE.parent
    if (source_tree / "pyproject.toml").exists():
        return source_tree / ".cache"
    return Path.home() / ".cache" / "sluice"


def installed() -> Install:
    """The jars, fetched first when they are missing or the pinned set has changed.

    Safe to call from many processes at once: one fetches, the others wait for it.

    Raises:
        MissingProgramError: no Java or no Maven on this machine.
        FetchError: Maven failed, most often for want of a network.
    """
    install = Install(cache_dir() / f"kafka-{KAFKA_VERSION}")
    stamp = install.root / "stamp"
    wanted = hashlib.sha256((_HERE / "pom.xml").read_bytes()).hexdigest()
    if _content(stamp) == wanted:
        return install
    install.root.mkdir(parents=True, exist_ok=True)
    with locked(install.root / "lock"):
        if _content(stamp) != wanted:
            stamp.unlink(missing_ok=True)
            _fetch(install)
            _format(install)
            stamp.write_text(wanted)
    return install


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
    # Without an archive, or with one of another Java, the JVM goes on without it (-Xshare:auto).
    archive = [f"-XX:SharedArchiveFile={install.archive}"] if install.archive.exists() else []
    return [
        java(),
        "-Xshare:auto",
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
    return _program("java", package="default-jre-headless")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the kernel releases it when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(install: Install) -> None:
    java()
    maven = _program("mvn", package="maven")
    partial = install.root / "libs.partial"
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "--strict-checksums", "-f", str(_HERE / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    print(f"fetching Kafka {KAFKA_VERSION} into {install.root} (54 MB, once)", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as exc:
        raise FetchError(
            f"Maven was not done after {_FETCH_TIMEOUT_S} s: is Maven Central reachable?"
        ) from exc
    if done.returncode != 0:
        raise FetchError(f"Maven could not fetch the jars:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
    shutil.rmtree(install.libs, ignore_errors=True)
    install.archive.unlink(missing_ok=True)
    partial.rename(install.libs)


def _format(install: Install) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-format-") as scratch:
        properties = Path(scratch) / "server.properties"
        properties.write_text(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:1\n"
            "listeners=PLAINTEXT://localhost:2,CONTROLLER://localhost:1\ncontroller.listener.names=CONTROLLER\n"
            f"log.dirs={scratch}/data\n"
        )
        # Any cluster id will do: the records do not hold it.
        arguments = ["format", "-t", "A" * 21 + "Q", "-c", str(properties)]
        command = java_command(install, "kafka.tools.StorageTool", arguments, log_level="WARN")
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise FetchError(f"kafka-storage format failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        shutil.copy(Path(scratch) / "data" / "bootstrap.checkpoint", install.bootstrap_checkpoint)


def _program(name: str, *, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingProgramError(f"{name} is not installed; install with: apt-get install {package}")
    return found


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    print(installed().root)
