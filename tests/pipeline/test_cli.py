"""The command line: which jobs there are, what they refuse before Spark starts, and the session that they open."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import cli
from pipeline.cli import JOBS, main
from pipeline.errors import MEANINGS, Exit, JobError, NotYetCompleteError, RefusedError
from pipeline.plans.text import number, table
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import write_compacted

ELSEWHERE = "hdfs://name/out"


def load(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setattr(cli, "importlib", SimpleNamespace(import_module=module))


@pytest.mark.parametrize("job", ["", *JOBS, "plan apply"])
def test_every_job_shows_its_arguments_and_exit_codes(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*job.split(), "--help"]) == Exit.DONE
    said = capsys.readouterr().out
    assert f"sluice-pipeline {job}".strip() in said
    assert all(f"  {code:<4} {meaning}" in said for code, meaning in MEANINGS.items())


def test_without_a_job_or_with_an_unknown_one_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.WRONG_ARGUMENTS
    assert main(["guess"]) == Exit.WRONG_ARGUMENTS
    said = capsys.readouterr().err
    assert all(said.count(job) >= 2 for job in (*JOBS, "completion"))


def test_the_version_is_that_of_the_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == Exit.DONE
    assert capsys.readouterr().out == f"sluice-pipeline {version('sluice')}\n"


def test_a_missing_package_and_each_error_end_with_their_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")

    load(monkeypatch, missing)
    assert main(["compact"]) == Exit.FAILED
    assert " -m pip install " in capsys.readouterr().err

    for error, code in (
        (JobError("no room"), Exit.FAILED),
        (NotYetCompleteError("no room"), Exit.NOT_YET_COMPLETE),
        (RefusedError("no room"), Exit.REFUSED),
        (PermissionError("no room"), Exit.FAILED),
    ):

        def end(_: object, error: Exception = error) -> Exit:
            raise error

        job = SimpleNamespace(add_arguments=lambda parser: None, run=end)
        load(monkeypatch, lambda name, job=job: job)
        assert main(["compact"]) == code
        assert capsys.readouterr().err == "sluice-pipeline compact: no room\n"


@pytest.mark.slow
def test_help_loads_no_package_of_the_extra() -> None:
    code = """
import sys
from pipeline.cli import JOBS, main
for words in (["--help"], *([job, "--help"] for job in JOBS)):
    assert main(words) == 0
print(sys.modules.keys() & {"deltalake", "jinja2", "matplotlib", "numpy", "pandas", "pyarrow", "pyspark"})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_the_package_is_a_program_too_and_says_nothing_into_a_closed_pipe() -> None:
    command = [sys.executable, "-m", "pipeline", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("usage: sluice-pipeline JOB ...")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("arguments", "fault"), [
    ("ingest --from nowhere", "say files:DIR or kafka:TOPIC"),
    ("ingest --from files:/nowhere --trigger often", "say available-now"),
    ("compact --date yesterday", "say a day as 2026-11-21, all, or new"),
    ("compact --date 2026-11-21 --from 2026-11-20", "give one of them"),
    *((f"{job} --from 2026-11-02 --to 2026-11-01", "--to 2026-11-01 is before --from")
      for job in ("compact", "report", "simulate", "recommend", "backtest")),
    *((f"{job} --to 20261102", "--to '20261102': say a day as 2026-11-21")
      for job in ("compact", "report", "simulate", "recommend", "backtest")),
    ("recommend --from 2026-11-01 --history 3", "give one of them"),
    ("prune --keep-raw 0", "--keep-raw: at least 1 day"),
    ("report --plan no-plan.json", "no-plan.json: a plan is a JSON object"),
    ("plan show no-plan.json", "no-plan.json: a plan is a JSON object"),
    ("recommend", "no day is compacted"), ("simulate", "no compacted day"), ("report", "no compacted day"),
    ("simulate --candidates grid:x", "expected grid"),
    ("simulate --algo rate --burst 60", "the buckets of --burst would have no effect"),
    ("simulate --algo rate --mutations rate", "with --mutations, leave it out"),
    ("simulate --model deferral --algo rate", "not of rate"), ("simulate --window-num 0", "--window-num"),
    ("backtest", "0 closed days are compacted: at least one is needed"),
])  # fmt: skip
def test_what_cannot_be_done_is_said_before_spark_starts(
    arguments: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no-plan.json").write_text("{}")
    job, *rest = arguments.split()
    code = main([job, *(() if job == "plan" else ("--out", "out")), *rest])
    assert fault in capsys.readouterr().err
    if "no-plan" in arguments:
        assert code == Exit.FAILED
    else:
        assert code == (Exit.NOT_YET_COMPLETE if "compacted" in fault else Exit.WRONG_ARGUMENTS)


@pytest.mark.slow
def test_incomplete_days_make_no_plan_and_the_status_is_told_without_spark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--out", str(tmp_path), "--json"]) == Exit.NOT_YET_COMPLETE
    found = json.loads(capsys.readouterr().out)
    assert (found["batches"], found["days"], found["gaps"]) == (0, [], [])
    assert main(["status", "--out", str(tmp_path)]) == Exit.NOT_YET_COMPLETE
    assert f"{tmp_path}: nothing has been ingested there yet" in capsys.readouterr().err
    write_compacted(tmp_path, [{"t": [1]}], completeness=0.5)
    write_client_tables(tmp_path)
    assert main(["recommend", "--out", str(tmp_path), "--history", "1"]) == Exit.NOT_YET_COMPLETE
    said = capsys.readouterr().out
    assert "2026-11-14: every gateway is 50.0% complete; this day of 1 client is left out" in said
    assert (
        "no quota for 1 of the clients and APIs, as too little is known of them: produce of user=u,client-id=c"
        in said
    )
    assert "0 quotas, 0 to be set" in said


# -- folders that are not on this machine ------------------------------------------------------------------------
@pytest.mark.parametrize(("arguments", "fault"), [
    ("ingest --from files:/nowhere", "say with --checkpoint where"),
    ("recommend", "say with --plan where to write"), ("report", "say with --to-dir where to write"),
    ("backtest", "say with --result where to write"),
    ("capacity --capacity produce=1MB", "say with --to-dir where to write"),
])  # fmt: skip
def test_what_is_of_this_machine_is_not_written_elsewhere(
    arguments: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments.split(), "--out", ELSEWHERE]) == Exit.WRONG_ARGUMENTS
    assert fault in capsys.readouterr().err


def test_a_folder_that_cannot_hold_tables_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--out", str(tmp_path / "a%20b")]) == Exit.WRONG_ARGUMENTS
    assert "a folder with % in its name can't hold tables" in capsys.readouterr().err


# -- the session -------------------------------------------------------------------------------------------------
@pytest.mark.spark
def test_days_are_utc_and_what_the_caller_asks_for_wins(spark: Any) -> None:
    code = "select cast(timestamp'1970-01-02 00:00:00' as bigint) as seconds"
    assert spark.sql(code).first().seconds == 86_400
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.parquet.compression.codec") == "zstd"
    assert (spark.sparkContext.master, spark.sparkContext.uiWebUrl) == ("local[2]", None)


@pytest.mark.slow
def test_what_is_submitted_is_not_overruled() -> None:
    code = """
import pyspark.sql, pipeline.spark.session as session
found = {}
class Builder:
    def appName(self, name): return self
    def master(self, master): found['master'] = master; return self
    def config(self, key, value): found[key] = value; return self
    def getOrCreate(self): return None
class Conf:
    def get(self, key, default=None):
        return {'spark.master': 'yarn', 'spark.speculation': 'true'}.get(key, default)
pyspark.sql.SparkSession.builder, pyspark.SparkConf = Builder(), Conf
session.open_session('x', quiet=False)
assert found['master'] == 'yarn', found
assert found['spark.sql.session.timeZone'] == 'UTC', found
assert not {'spark.speculation', 'spark.driver.memory', 'spark.driver.host'} & set(found), found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# -- tables on a terminal ----------------------------------------------------------------------------------------
def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert table(("user", "rate"), [("alice", "1"), ("b", "10000")]) == "user   rate\nalice  1\nb      10000"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (5.0, "5"), (0.5, "0.5"), (1e9, "1000000000")])
def test_a_quota_is_written_without_needless_digits(value: float | None, text: str) -> None:
    assert number(value) == text
