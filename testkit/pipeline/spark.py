"""Spark's settings for tests."""

from __future__ import annotations

from typing import Final

QUICK: Final = {
    # The second compiler takes minutes to be worth its cost, and a test ends earlier.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
}
"""Settings for jobs that run for seconds."""
