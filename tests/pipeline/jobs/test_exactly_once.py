"""Kills with a batch in flight, which start Spark five times.

One kill, in front of a topic: `test_topic.py`. More kills: the campaign `exactly-once`.
"""

import datetime
from pathlib import Path
from typing import Any

import pytest

from campaigns.exactly_once.ingests import (
    KILLED,
    count_by_duckdb,
    count_by_spark,
    ingest,
    log_tail,
    reported_missing,
    shuffle_arrival,
)
from pipeline.errors import Exit
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.keep import Keep
from pipeline.maintenance.pruning import delete
from pipeline.spark.runner import OnSpark
from testkit.pipeline.usage_files import Faults, Load, write_usage
from testkit.pipeline.usage_lines import LONG_AFTER

pytestmark = [pytest.mark.spark, pytest.mark.campaign]


@pytest.mark.parametrize("storage", ["here", "s3"])
def test_killed_ingests_lose_nothing_and_count_nothing_twice_in_any_engine(
    spark: Any, tmp_path: Path, request: pytest.FixtureRequest, storage: str
) -> None:
    faults = Faults(lost=0.1, doubled=0.2, torn=0.1, repeated_lines=0.1)
    load = Load(entities=60, seconds=1_200 if storage == "here" else 600, restart_after_s=500, rotate_s=40)
    truth = write_usage(tmp_path / "in", load, faults)
    assert truth.missing
    assert truth.torn_files
    shuffle_arrival(tmp_path / "in", seed=5)
    log = tmp_path / "log"
    out = str(tmp_path / "out") if storage == "here" else f"{request.getfixturevalue('bucket')}/out"
    arguments = ["--from", f"files:{tmp_path / 'in'}", "--out", out, "--master", "local[2]"]
    arguments += ["--max-files", "20", "--checkpoint", str(tmp_path / "checkpoint")]
    kills = (
        (("rows", 1), ("committed", 2), ("done-driver", 1)) if storage == "here" else (("state", 1), ("committed", 1))
    )
    for point, batch in kills:
        assert ingest(arguments, log, point=point, batch=batch) == KILLED, "\n".join(log_tail(log))
    # What was killed may have read the last lines.
    assert ingest(arguments, log) in (Exit.DONE, Exit.NOTHING_TO_DO), "\n".join(log_tail(log))
    by_duckdb = count_by_duckdb(out)
    assert (by_duckdb.duplicated_rows, by_duckdb.duplicated_lines) == (0, 0)
    found = (by_duckdb.rows, by_duckdb.units, by_duckdb.events, by_duckdb.lines)
    assert found == (truth.rows, truth.units, truth.events, truth.lines)
    assert count_by_spark(spark, out) == by_duckdb
    assert reported_missing(out) == truth.missing
    # The rest of the way.
    days = compact(OnSpark(spark), out, LONG_AFTER)
    assert sum(day.rows for day in days.values()) == truth.rows
    delete(out, Keep(raw=1), today=datetime.date.fromisoformat(max(days)) + datetime.timedelta(days=10), made=())
    assert count_by_duckdb(out).rows == 0
    assert reported_missing(out) == truth.missing
