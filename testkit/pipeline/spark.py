"""Spark as tests start it."""

from __future__ import annotations

from typing import Final

QUICK: Final = {
    # The second compiler pays after minutes only, and a test is over before.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""Settings for jobs that live for seconds."""
