from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from pipeline.cli import main


@pytest.mark.spark
def test_days_are_utc_whatever_the_machine_thinks(spark: Any) -> None:
    code = "select cast(timestamp'1970-01-02 00:00:00' as bigint) as seconds"
    assert spark.sql(code).first().seconds == 86_400


@pytest.mark.spark
def test_what_the_caller_asks_for_wins(spark: Any) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.parquet.compression.codec") == "zstd"
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None


def test_what_is_submitted_is_not_overruled() -> None:
    code = (
        "import pyspark.sql, pipeline.session as session\n"
        "told = {}\n"
        "class Builder:\n"
        "    def appName(self, name): return self\n"
        "    def master(self, master): told['master'] = master; return self\n"
        "    def config(self, key, value): told[key] = value; return self\n"
        "    def getOrCreate(self): return None\n"
        "pyspark.sql.SparkSession.builder = Builder()\n"
        "class Conf:\n"
        "    def get(self, key, default=None):\n"
        "        return {'spark.master': 'yarn', 'spark.speculation': 'true'}.get(key, default)\n"
        "pyspark.SparkConf = Conf\n"
        "session.open_session('x', quiet=False)\n"
        "assert told['master'] == 'yarn', told\n"
        "assert told['spark.sql.session.timeZone'] == 'UTC', told\n"
        "assert not {'spark.speculation', 'spark.driver.memory', 'spark.driver.host'} & set(told), told\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["simulate"], "no packed day"),
        (["recommend", "--plan", "plan.json"], "no day is packed"),
        (["backtest", "--result", "result"], "0 packed days"),
    ],
)
def test_a_folder_that_is_not_on_this_machine_is_looked_into_with_a_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    asked = []

    class Empty:
        def names(self, path: str) -> list[str]:
            return []

    def store_of(path: str, spark: Any = None) -> Empty:
        asked.append(spark)
        return Empty()

    monkeypatch.setattr("pipeline.session.open_session", lambda app, **_: "a session")
    monkeypatch.setattr("pipeline.layout.store_of", store_of)
    assert main([*arguments, "--out", "hdfs://name/out"]) == 1
    assert told in capsys.readouterr().err
    assert asked == ["a session"]


@pytest.mark.parametrize(
    ("job", "option"), [("recommend", "--plan"), ("report", "--to-dir"), ("backtest", "--result")]
)
def test_what_is_for_people_is_not_written_into_a_folder_called_as_another_machines(
    capsys: pytest.CaptureFixture[str], job: str, option: str
) -> None:
    assert main([job, "--out", "hdfs://name/out"]) == 1
    assert f"say with {option} where to write" in capsys.readouterr().err
