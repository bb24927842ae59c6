"""Finds or fetches the jars of Spark's Kafka connector.

There are three ways, and the first that is given is used: a folder of jars (`--jars`, or SLUICE_SPARK_JARS); Maven
coordinates that Spark resolves itself (`--packages`, or SLUICE_SPARK_PACKAGES); otherwise the pinned set of
`pom.xml`, fetched once (see `pinned_jars`). `python -m pipeline.spark.jars` fetches it beforehand. Only reading from
Kafka needs the connector.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pipeline.errors import JobError

JARS_VARIABLE: Final = "SLUICE_SPARK_JARS"
PACKAGES_VARIABLE: Final = "SLUICE_SPARK_PACKAGES"

# These are in pyspark's own folder. Without this list Spark would resolve and send half of itself again.
EXCLUDES: Final = (
    "org.apache.hadoop:hadoop-client-runtime,org.apache.hadoop:hadoop-client-api,org.scala-lang:scala-library,"
    "org.scala-lang.modules:scala-parallel-collections_2.13,org.apache.spark:spark-tags_2.13,org.lz4:lz4-java,"
    "org.xerial.snappy:snappy-java,org.slf4j:slf4j-api,com.google.code.findbugs:jsr305,com.github.luben:zstd-jni"
)

_HERE: Final = Path(__file__).resolve().parent


class JarsError(JobError):
    """The connector is missing and could not be fetched."""


def connector_settings(jars: str | None = None, packages: str | None = None) -> dict[str, str]:
    """Spark settings that add the Kafka connector.

    Args:
        jars: a folder of jars, with a connector that fits the Spark in use.
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
    """The folder of the pinned jars. Fetches them if they are missing or the pinned set has changed.

    Many processes may call it at once: one fetches the jars, and the others wait for it.

    Raises:
        JarsError: Maven is not installed or failed, usually because there is no network; or this is an archive.
    """
    try:
        from pinned_jars import FetchError, MissingProgramError, cache_dir, ensure
    except ModuleNotFoundError as exc:  # spark-submit's archive has only `pipeline` and `quotas`
        raise JarsError("the archive has no Kafka connector: name one with --jars or --packages") from exc

    folder = cache_dir() / "spark-kafka" / "jars"
    try:
        ensure(folder, _HERE / "pom.xml", "Spark's Kafka connector (10 MB)")
    except MissingProgramError as exc:
        raise JarsError(f"{exc}; or name a folder with --jars") from exc
    except FetchError as exc:
        raise JarsError(str(exc)) from exc
    return folder


if __name__ == "__main__":
    print(installed())
