"""Spark's Kafka connector: where its jars are and how they get there.

Three ways, the first that is given wins: a folder of jars (`--jars`, or SLUICE_SPARK_JARS), Maven coordinates that
Spark resolves itself (`--packages`, or SLUICE_SPARK_PACKAGES), else the pinned set of `pom.xml`, fetched once into
the cache folder (`.cache/` of the source tree, else `~/.cache/sluice`, or what SLUICE_CACHE_DIR names).
`python -m pipeline.spark.jars` fetches it beforehand. Only reading from Kafka needs any of this.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pipeline.errors import JobError

CACHE_VARIABLE: Final = "SLUICE_CACHE_DIR"
JARS_VARIABLE: Final = "SLUICE_SPARK_JARS"
PACKAGES_VARIABLE: Final = "SLUICE_SPARK_PACKAGES"

# What pyspark's own folder has already; without this Spark would resolve and ship half of itself again.
EXCLUDES: Final = (
    "org.apache.hadoop:hadoop-client-runtime,org.apache.hadoop:hadoop-client-api,org.scala-lang:scala-library,"
    "org.scala-lang.modules:scala-parallel-collections_2.13,org.apache.spark:spark-tags_2.13,org.lz4:lz4-java,"
    "org.xerial.snappy:snappy-java,org.slf4j:slf4j-api,com.google.code.findbugs:jsr305,com.github.luben:zstd-jni"
)

_HERE: Final = Path(__file__).resolve().parent
_SOURCE_TREE: Final = _HERE.parents[1]
_FETCH_TIMEOUT_S: Final = 300


class JarsError(JobError):
    """The connector is not there and could not be fetched."""


def connector_settings(jars: str | None = None, packages: str | None = None) -> dict[str, str]:
    """Spark settings that bring the Kafka connector.

    Args:
        jars: a folder of jars, of the connector that fits the Spark in use.
        packages: Maven coordinates, comma separated, for Spark to resolve.

    Raises:
        JarsError: the folder has no jar, or the pinned set could not be fetched.
    """
    folder = jars or os.environ.get(JARS_VARIABLE)
    coordinates = packages or os.environ.get(PACKAGES_VARIABLE)
    if folder:
        found = sorted(Path(folder).glob("*.jar"))
        if not found:
            raise JarsError(f"no jar in {folder}: name a folder with Spark's Kafka connector")
    elif coordinates:
        return {"spark.jars.packages": coordinates, "spark.jars.excludes": EXCLUDES}
    else:
        found = sorted(installed().glob("*.jar"))
    return {"spark.jars": ",".join(str(jar.absolute()) for jar in found)}


def installed() -> Path:
    """The folder of the pinned jars, fetched first when they are missing or the pinned set has changed.

    Safe to call from many processes at once: one fetches, the others wait for it.

    Raises:
        JarsError: Maven is not installed or failed, most often for want of a network.
    """
    pom = (_HERE / "pom.xml").read_bytes()
    root = _cache_dir() / "spark-kafka"
    stamp, folder = root / "stamp", root / "jars"
    wanted = hashlib.sha256(pom).hexdigest()
    if _content(stamp) == wanted:
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root / "lock"):
        if _content(stamp) != wanted:
            stamp.unlink(missing_ok=True)
            _fetch(folder)
            stamp.write_text(wanted)
    return folder


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsError(
            "mvn is not installed; install with: apt-get install maven; or name a folder with --jars"
        )
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "--strict-checksums", "-f", str(_HERE / "pom.xml")]
    command += ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    print(f"fetching Spark's Kafka connector into {folder} (10 MB, once)", file=sys.stderr, flush=True)
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
        raise JarsError(
            f"Maven was not done after {_FETCH_TIMEOUT_S} s: is Maven Central reachable?"
        ) from exc
    if done.returncode != 0:
        raise JarsError(f"Maven could not fetch the jars:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _cache_dir() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    if (_SOURCE_TREE / "pyproject.toml").exists():
        return _SOURCE_TREE / ".cache"
    return Path.home() / ".cache" / "sluice"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _content(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    print(installed())
