"""Spark's own Delta Lake in a separate process: an engine that is independent of the pipeline.

``python -m testkit.pipeline.spark_delta JARS`` answers each line of SQL with one line, which contains the error, if
any. VACUUM prints further lines.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pinned_jars import cache_dir, ensure
from testkit.pipeline.spark import QUICK

_POM: Final = Path(__file__).with_name("delta_pom.xml")
_ANSWER: Final = "=>"
_SETTINGS: Final = {
    **QUICK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    # By default it starts a task for each of fifty parts of a log, and for each of ten thousand folders.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@contextmanager
def spark_delta() -> Iterator[Callable[..., None]]:
    """Runs the engine.

    Yields:
        A function that runs statements one after the other; a table is written delta.`/path`.
    """
    folder = cache_dir() / "spark-delta" / "jars"
    ensure(folder, _POM, "Spark's Delta Lake (8 MB)")
    command = [sys.executable, "-m", "testkit.pipeline.spark_delta", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin
        assert process.stdout

        def run(*statements: str) -> None:
            for statement in statements:
                assert process.stdin
                assert process.stdout
                print(statement, file=process.stdin, flush=True)
                answers = (line for line in process.stdout if line.startswith(_ANSWER))
                answer = next(answers, "the process has ended")
                assert answer.rstrip() == _ANSWER, f"{statement}: {answer}"

        yield run
        process.stdin.close()


def _main() -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    jars = ",".join(map(str, sorted(Path(sys.argv[1]).glob("*.jar"))))
    for name, value in {**_SETTINGS, "spark.jars": jars}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for statement in sys.stdin:
        try:
            session.sql(statement).collect()
        except PySparkException as exc:
            print(_ANSWER, " ".join(str(exc).split()), flush=True)
        else:
            print(_ANSWER, flush=True)
    session.stop()


if __name__ == "__main__":
    _main()
