"""The Spark session of every job: its settings and the choice of the cluster.

Under spark-submit the cluster, its memory and its packages are the submitter's; only settings that do not depend on
where a job runs are made here. Started by itself a job runs on this machine, in this process's own JVM.
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
"""How the address of a Spark Connect server begins."""
LOCAL_MASTER: Final = "local[*]"
MASTER_VARIABLE: Final = "SPARK_MASTER"
_SUBMITTED_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the program that it starts

ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""The setting that says how many rows go from the JVM to a Python worker at once."""
# A compacted row is up to a day of one client in some twenty arrays; the default, 10,000 of them, would be gigabytes.
_COMPACTED_ROWS_AT_ONCE: Final = "500"

_SESSION: Final = {
    "spark.sql.session.timeZone": "UTC",
    ARROW_ROWS: _COMPACTED_ROWS_AT_ONCE,
    "spark.sql.parquet.compression.codec": "zstd",
}
_ANYWHERE: Final = {
    **_SESSION,
    # A task that was given up must not write beside the one that replaced it.
    "spark.speculation": "false",
}
_QUIET: Final = {"spark.log.level": "ERROR"}
_HERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    # A local run's driver listens on loopback alone.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def open_session(
    app: str, *, master: str | None = None, settings: Mapping[str, str] | None = None, quiet: bool = True
) -> Any:
    """A SparkSession with the pipeline's settings; an existing one is used and gets what can be set later.

    Args:
        app: the application's name in Spark's lists.
        master: where to run; else what spark-submit or SPARK_MASTER says, else all cores of this machine.
        settings: more Spark settings; they win over this module's.
        quiet: say errors only.
    """
    # Not at the top: --help need not wait for Spark.
    from pyspark.sql import SparkSession

    if (master or "").startswith(CONNECT):
        return _connected(SparkSession.builder.appName(app).remote(str(master)), settings or {})
    from pyspark import SparkConf, SparkContext

    if _SUBMITTED_VARIABLE in os.environ:
        # What was submitted is known to the JVM that is there already, and to SparkConf only once that is connected.
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
        # What is submitted is not overruled.
        given = SparkConf()
        chosen = {key: value for key, value in chosen.items() if given.get(key, None) is None}
    else:
        # Workers are other processes, and import these packages from there too: installed, they lie inside `sluice`.
        chosen["spark.executorEnv.PYTHONPATH"] = str(_PACKAGES)
    builder = SparkSession.builder.appName(app).master(where)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def is_asked_for(master: str | None) -> bool:
    """Whether a job that can do without Spark is to run on a cluster."""
    return bool(master or _SUBMITTED_VARIABLE in os.environ or os.environ.get(MASTER_VARIABLE))


def _connected(builder: Any, settings: Mapping[str, str]) -> Any:
    """A session of Spark Connect; the cluster's settings are its own."""
    session = builder.getOrCreate()
    for key, value in (_SESSION | dict(settings)).items():
        session.conf.set(key, value)
    return session


def _local_cores(master: str) -> int:
    count = master.partition("[")[2].partition("]")[0].partition(",")[0]
    return int(count) if count.isdigit() else os.cpu_count() or 1
