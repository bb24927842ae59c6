"""A client erased between jobs that run in Spark: all of them continue, and no file names it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.client_tables.making import make_missing
from pipeline.jobs import arguments
from pipeline.maintenance.compaction import compact
from pipeline.maintenance.status import status
from pipeline.spark.runner import OnSpark
from pipeline.storage.compacted_days import published_days
from testkit.pipeline.local_session import contents
from testkit.pipeline.searching import files_with
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, event, line, place, row
from tests.pipeline.conftest import Ingest, Session

pytestmark = pytest.mark.spark


SECONDS = 25
"""Of each file. A client needs 40 on its only day to get a quota."""


def fill(folder: Path, number: int) -> None:
    """A file of a gateway with two clients."""
    lines = [
        line(seq, row("app", 50 + seq, node=seq % 2), row("mallory", 9 * seq), events=(event("mallory"),))
        for seq in range(SECONDS * number, SECONDS * (number + 1))
    ]
    place(folder / "in", f"usage-a-1-{number}.jsonl.gz", *lines, b"mallory, torn")


def jobs(folder: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """What comes of the jobs that read compacted days, of the client that stays."""
    out, plan = str(folder / "out"), folder / "out/results/plan/run=1/plan.json"
    assert compact(OnSpark(spark), out, LONG_AFTER, date="all")
    make_missing(OnSpark(spark), out)
    assert main(["recommend", "--out", out, "--history", "1", "--allow-gaps", "--plan", str(plan)]) == 0
    assert main(["simulate", "--out", out, "--candidates", "value:100", "--run", "by-name"]) == 0
    assert main(["report", "--out", out, "--to-dir", str(folder / "out/results/report/run=1")]) == 0
    assert main(["status", "--out", out]) == 0
    capsys.readouterr()
    simulated = spark.read.parquet(f"{out}/results/sim/run=by-name").where("client_id = 'app'")
    entries = json.loads(plan.read_text())["entries"]
    clients = json.loads((folder / "out/results/report/run=1/report.json").read_text())["clients"]
    return [
        [each for each in entries if each["entity"].get("client-id") == "app"],
        [each for each in clients if each["client_id"] == "app"],
        sorted(map(str, simulated.collect())),
    ]


def test_jobs_go_on_after_an_erasure_and_give_the_same_for_all_others(
    spark: Any, tmp_path: Path, ingest: Ingest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments.time, "time", lambda: DAY + 5 * 86_400)
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: Session(spark))
    out = str(tmp_path / "out")
    for number in range(2):
        fill(tmp_path, number)
        ingest(max_files=1)
    before = jobs(tmp_path, spark, capsys)
    assert all(before)
    rows = [each for each in contents(out)["compacted"] if "'mallory'" not in each]
    # The files of a third batch are there, and not read yet.
    fill(tmp_path, 2)
    assert main(["erase", "--out", out, "--usage", str(tmp_path / "in"), "--client-id", "mallory", "--yes"]) == 0
    assert "tables of clients made again of what is left: 2026-09-28" in capsys.readouterr().out
    assert files_with(tmp_path, "mallory") == []
    assert contents(out)["compacted"] == rows
    assert (tmp_path / "out/results/sim/run=by-name/_SUCCESS").exists()
    kept = spark.read.parquet(f"{out}/results/sim/run=by-name").collect()
    assert sorted(map(str, kept)) == before[2]
    assert jobs(tmp_path, spark, capsys) == before
    ingest()
    assert compact(OnSpark(spark), out, LONG_AFTER)["2026-09-28"].rows == 3 * SECONDS
    make_missing(OnSpark(spark), out)
    assert files_with(tmp_path, "mallory") == []
    (day,) = published_days(out)
    assert (day.rows, day.keys, day.erased, day.lines) == (3 * SECONDS, 2, 2 * SECONDS, 3 * SECONDS)
    assert not status(out, LONG_AFTER)["days"][0]["late"]
