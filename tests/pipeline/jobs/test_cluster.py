"""The jobs as spark-submit runs them on a cluster: two workers in processes of their own, code from an archive."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pyspark
import pytest

from pipeline.storage.compacted_days import published_days
from pipeline.storage.raw_table import raw_table
from testkit.pipeline.spark import QUICK
from testkit.pipeline.usage_lines import line, place, row

pytestmark = [pytest.mark.spark, pytest.mark.campaign]

ROOT: Final = Path(__file__).parents[3]
SUBMIT: Final = Path(pyspark.__file__).parent / "bin" / "spark-submit"
_MARK: Final = "from-the-archive"
SETTINGS: Final = {
    **QUICK,
    "spark.executor.extraJavaOptions": QUICK["spark.driver.extraJavaOptions"],
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}


def archive(path: Path) -> Path:
    """The packages as `--py-files` takes them, with a mark in the paths of files that workers write."""
    with zipfile.ZipFile(path, "w") as file:
        for package in ("pinned_jars", "pipeline", "quotas"):
            for module in sorted((ROOT / package).rglob("*.py")):
                text = module.read_text()
                if module.name == "partitioned_files.py":
                    text = text.replace('f"{folders}/', f'f"{{folders}}/{_MARK}/')
                file.writestr(str(module.relative_to(ROOT)), text)
    return path


def submit(tmp_path: Path, *arguments: str) -> str:
    """Runs a job on two workers; what it said."""
    command = [str(SUBMIT), "--master", "local-cluster[2,1,512]", "--py-files", str(tmp_path / "sluice.zip")]
    events = tmp_path / "events"
    events.mkdir(exist_ok=True)
    for name, value in {**SETTINGS, "spark.eventLog.dir": events.as_uri()}.items():
        command += ["--conf", f"{name}={value}"]
    # A copy elsewhere: the folder of the entry comes first in the path, and must not bring the packages.
    entry = tmp_path / "entry" / "cli.py"
    entry.parent.mkdir(exist_ok=True)
    entry.write_bytes((ROOT / "pipeline" / "cli.py").read_bytes())
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment |= {"SPARK_HOME": str(SUBMIT.parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, str(entry), *arguments],
        capture_output=True, text=True, timeout=280, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def executors(tmp_path: Path) -> set[str]:
    """Those that ran a task of a submitted job."""
    events = (json.loads(text) for log in (tmp_path / "events").iterdir() for text in log.read_text().splitlines())
    return {event["Task Info"]["Executor ID"] for event in events if event["Event"] == "SparkListenerTaskEnd"}


def test_jobs_run_unchanged_on_a_cluster(tmp_path: Path) -> None:
    archive(tmp_path / "sluice.zip")
    for first in range(0, 60, 10):
        lines = [line(seq, *(row(f"c{number}") for number in range(20))) for seq in range(first, first + 10)]
        place(tmp_path / "in", f"usage-a-{first}.jsonl.gz", *lines)
    out = tmp_path / "out"
    assert "60 lines with 1200 rows" in submit(
        tmp_path, "ingest", "--from", f"files:{tmp_path}/in", "--out", str(out)
    )
    # On a machine of its own the driver would have run all tasks itself.
    assert executors(tmp_path) in ({"0"}, {"1"}, {"0", "1"})
    files = raw_table(str(out)).read().files
    assert files
    assert all(Path(file.path).parent.name == _MARK for file in files)
    assert "2026-09-28: 1200 rows of 20" in submit(tmp_path, "compact", "--out", str(out))
    assert [day.rows for day in published_days(str(out))] == [1200]
    # Workers read what workers wrote: 20 clients with each candidate, and the summary is of all of them.
    said = submit(tmp_path, "simulate", "--out", str(out), "--candidates", "grid:1..8x4")
    shown = [text.split() for text in said.splitlines() if text.startswith("produce")]
    assert [(cells[1], cells[2]) for cells in shown] == [(str(n), "20") for n in range(4)]
