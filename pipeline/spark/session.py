"""The Spark session of every job: its settings and the choice of the cluster.

With spark-submit the submitter sets the cluster, its memory and its packages. This module then makes only settings
that do not depend on where a job runs. A job that is started directly runs on this machine, in this process's own
JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_CONF_DIR: Final = Path(__file__).resolve().parent / "conf"
_PACKAGES: Final = Path(__file__).resolve().parents[2]
CONNECT: Final = "sc://"
"""The beginning of the address of a Spark Connect server."""
LOCAL_MASTER: Final = "local[*]"
MASTER_VARIABLE: Final = "SPARK_MASTER"
_SUBMITTED_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the program that it starts

ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The setting for the number of rows that the JVM sends to a Python worker at once."""
# A compacted row is up to a day of one client in some twenty arrays. The default of 10,000 rows would be gigabytes.
_COMPACTED_ROWS_AT_ONCE: Final = "500"

_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    ARROW_ROWS: _COMPACTED_ROWS_AT_ONCE,
    "spark.sql.parquet.compression.codec": "zstd",
}
_ANYWHERE: Final = {
    **_SESSION,
    # A task that Spark has given up must not write at the same time as the task that replaced it.
    "spark.speculation": "false",
}
_QUIET: Final = {"spark.log.level": "ERROR"}
_HERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # The driver of a local run listens only on loopback.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def open_session(
    app: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, quiet: bool = True
) -> Any:
    """Opens a SparkSession with the pipeline's settings. An existing session is used, with settings that can change.

    Args:
        app: the application's name in Spark's lists.
        master: where to run; None: as spark-submit or SPARK_MASTER says, or else all cores of this machine.
        settings: further Spark settings; they override this module's.
        quiet: log errors only.
    """
    # Imported here, so that `--help` does not wait for Spark.
    from pyspark.sql import SparkSession

    if (master or "").startswith(CONNECT):
        return _connected(SparkSession.builder.appName(app).remote(str(master)), settings or {})
    from pyspark import SparkConf, SparkContext

    if _SUBMITTED_VARIABLE in os.environ:
        # The existing JVM knows what was submitted. SparkConf knows it only after a connection to that JVM.
        SparkContext._ensure_initialized()
    submitted = SparkConf().get("spark.master", None)
    where = master or submitted or os.environ.get(MASTER_VARIABLE) or LOCAL_MASTER
    chosen = _ANYWHERE | (_QUIET if quiet else {})
    if where.startswith("local"):
        chosen |= _HERE | {"spark.sql.shuffle.partitions": str(_local_cores(where))}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if quiet:
            os.environ.setdefault("SPARK_CONF_DIR", str(_CONF_DIR))
    if submitted:
        # Submitted settings are not overridden.
        given = SparkConf()
        chosen = {key: value for key, value in chosen.items() if given.get(key, None) is None}
    else:
        # Worker processes import these packages from this folder too. Installed, it is inside `sluice`.
        chosen["spark.executorEnv.PYTHONPATH"] = str(_PACKAGES)
    builder = SparkSession.builder.appName(app).master(where)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_asked_for(master: str | None) -> bool:
    """Whether a job that needs no Spark on a single machine should run on a cluster."""
    return bool(master or _SUBMITTED_VARIABLE in os.environ or os.environ.get(MASTER_VARIABLE))


def _connected(builder: Any, settings: Mapping[str, str]) -> Any:
    """A session of Spark Connect; the cluster has its own settings."""
    session = builder.getOrCreate()
    for key, value in (_SESSION | dict(settings)).items():
        session.conf.set(key, value)
    return session


def _local_cores(master: str) -> int:
    count = master.partition("[")[2].partition("]")[0].partition(",")[0]
    return int(count) if count.isdigit() else os.cpu_count() or 1
