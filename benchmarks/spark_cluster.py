"""``python -m benchmarks.spark_cluster``: the jobs on a standalone cluster of two workers; 6 minutes.

The benchmark starts a master and two workers of a core each on this machine. It submits ingest, compact and simulate
to them as docs/how-to/pipeline.md describes. Spark's event log shows which executor ran which task when, and how much
memory its Python processes had. The page has each job's stages with at least two tasks: the tasks of each executor,
and the part of the busy time in which both executors worked. There are many clients, each seldom active, because a
task's memory must not grow with their number. Exit code 1 when only one executor ran a stage of some seconds, or an
executor used more than `MOST_MB`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
import pyspark

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from quotas.usage_record import VERSION
from testkit.gateway import free_ports
from testkit.pipeline.usage_files import FIRST_BOOT_MS
from testkit.pipeline.usage_lines import row

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "benchmarks" / "results"
Task: TypeAlias = tuple[str, float, float]
"""Executor, begin and end, in seconds since the epoch."""
BIN: Final = Path(pyspark.__file__).parent / "bin"
MOST_MB: Final = 1_000
"""Memory limit of the Python processes of an executor with one core."""
_LEAST_S: Final = 2.0  # shorter stages may be over before the second executor has its Python
_BOTH: Final = 0.5
_LINES_PER_FILE: Final = 30
SETTINGS: Final = {
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.executor.memory": "1g",
    "spark.executor.processTreeMetrics.enabled": "true",
    "spark.executor.metrics.pollingInterval": "500ms",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.logStageExecutorMetrics": "true",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Both executors are registered before the first task is assigned.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster: its address, and the processes of the master and of the workers."""

    master: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of at least two tasks.

    Attributes:
        tasks: number of tasks of each executor.
        busy_s: for how long any executor had a task.
        both: the part of that time in which at least two had one.
        python_mb: peak memory of an executor's Python processes; 0 without such processes.
    """

    job: str
    stage: int
    tasks: tuple[int, ...]
    busy_s: float
    both: float
    python_mb: int


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_cluster", description=__doc__)
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=600, help="seconds of one gateway")
    parser.add_argument("--rows", type=int, default=5_000, help="clients in each second")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="spark-cluster-") as name:
        folder = Path(name)
        write_lines(folder / "in", options.clients, options.lines, options.rows)
        stages = on_cluster(folder)
    document = {
        "command": f"python -m benchmarks.spark_cluster --clients {options.clients} --lines {options.lines} "
        f"--rows {options.rows}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "clients": options.clients,
        "recorded": options.lines * options.rows,
        "rows": [asdict(stage) for stage in stages],
    }
    page = render(document, stages)
    keep_results(document, page, options.output, "spark-cluster")
    print(page)
    return int(not met(stages))


def write_lines(folder: Path, clients: int, lines: int, rows: int) -> None:
    """Write files of one gateway. The clients take turns from second to second."""
    folder.mkdir()
    told = [orjson.dumps(row(f"client-{number:06d}")) for number in range(clients)] * 2
    for first in range(0, lines, _LINES_PER_FILE):
        text = bytearray()
        for seq in range(first, min(first + _LINES_PER_FILE, lines)):
            head = {"v": VERSION, "gw": "gw-0", "boot": FIRST_BOOT_MS, "seq": seq}
            head |= {"ts": FIRST_BOOT_MS // 1000 + seq, "dur_ms": 1000, "algo": "token_bucket"}
            head |= {"events": [], "dropped_rows": 0, "dropped_events": 0}
            begin = seq * rows % clients
            own = b",".join(told[begin : begin + rows])
            text += orjson.dumps(head)[:-1] + b',"rows":[' + own + b"]}\n"
        (folder / f"usage-gw-0-{FIRST_BOOT_MS}-{first:09d}.jsonl.gz").write_bytes(gzip.compress(text, 1))


def on_cluster(folder: Path) -> list[Stage]:
    """Run the jobs on a new cluster; the stages from their event logs."""
    archive = folder / "sluice.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for package in ("pinned_jars", "pipeline", "quotas"):
            for module in sorted((ROOT / package).rglob("*.py")):
                file.write(module, str(module.relative_to(ROOT)))
    out, stages = str(folder / "out"), []
    with ExitStack() as stack:
        master = stack.enter_context(cluster(folder, workers=2)).master
        for job in (
            ("ingest", "--from", f"files:{folder}/in", "--out", out),
            ("compact", "--out", out),
            ("simulate", "--out", out, "--candidates", "grid:0.5..64x8"),
        ):
            events = folder / f"events-{job[0]}"
            events.mkdir()
            _submit(folder, master, events, job)
            (log,) = events.iterdir()
            stages += stages_of(job[0], log.read_text(encoding="utf-8").splitlines())
    return stages


@contextmanager
def cluster(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """A standalone master and its workers of a core each, on loopback."""
    port = free_ports(1)
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    commands += [
        [
            f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
            "--work-dir", str(folder / f"work-{number}"), master,
        ]
        for number in range(workers)
    ]  # fmt: skip
    pids = []
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            log = folder / f"daemon-{number}.log"
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [str(BIN / "spark-class"), *command], stdout=output, stderr=output, env=environment()
            )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            pids.append(process.pid)
            _wait_for(log, b"New state: ALIVE" if number == 0 else b"registered with master", process)
        yield Cluster(master, tuple(pids))


def _wait_for(log: Path, said: bytes, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + 120
    while said.lower() not in log.read_bytes().lower():
        if process.poll() is not None or time.monotonic() > until_s:
            raise RuntimeError(log.read_text(errors="replace")[-2000:])
        time.sleep(0.2)


def environment() -> dict[str, str]:
    """The variables of Spark's programs."""
    more = {"SPARK_HOME": str(BIN.parent), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **more, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_NO_DAEMONIZE": "1"}


def _submit(folder: Path, master: str, events: Path, job: Sequence[str]) -> None:
    settings = {**SETTINGS, "spark.eventLog.dir": events.as_uri()}
    command = [str(BIN / "spark-submit"), "--master", master, "--py-files", str(folder / "sluice.zip")]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    # A copy in another folder: Python puts the entry's folder first in the path. It must not contain the packages.
    entry = folder / "entry" / "cli.py"
    entry.parent.mkdir(exist_ok=True)
    entry.write_bytes((ROOT / "pipeline" / "cli.py").read_bytes())
    done = subprocess.run(
        [*command, str(entry), *job],
        capture_output=True, text=True, env=environment(), cwd=folder, timeout=900, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{job[0]}: {done.stderr[-3000:]}")


def stages_of(job: str, log: Sequence[str]) -> list[Stage]:
    """The stages of at least two tasks in a job's event log."""
    memory: dict[int, int] = {}
    for text in log:
        event = json.loads(text)
        if event["Event"] == "SparkListenerStageExecutorMetrics":
            stage, used = event["Stage ID"], event["Executor Metrics"].get("ProcessTreePythonRSSMemory", 0)
            memory[stage] = max(memory.get(stage, 0), used)
    found = []
    for stage, of_stage in sorted(tasks_of(log).items()):
        if len(of_stage) < 2:
            continue
        names = sorted({executor for executor, _, _ in of_stage})
        counts = tuple(sum(executor == name for executor, _, _ in of_stage) for name in names)
        busy_s, both_s = overlap(of_stage)
        share = both_s / busy_s if busy_s else 0.0
        found.append(Stage(job, stage, counts, busy_s, share, memory.get(stage, 0) // 1_048_576))
    return found


def tasks_of(log: Iterable[str]) -> dict[int, list[Task]]:
    """The tasks of each stage in a job's event log."""
    tasks: dict[int, list[Task]] = {}
    for text in log:
        event = json.loads(text)
        if event["Event"] == "SparkListenerTaskEnd":
            info = event["Task Info"]
            task = info["Executor ID"], info["Launch Time"] / 1000, info["Finish Time"] / 1000
            tasks.setdefault(event["Stage ID"], []).append(task)
    return tasks


def overlap(tasks: Sequence[Task]) -> tuple[float, float]:
    """For how long any executor had a task, and for how long at least two had."""
    moments = sorted({moment for _, begin, end in tasks for moment in (begin, end)})
    busy = both = 0.0
    for begin, end in pairwise(moments):
        working = {executor for executor, first, last in tasks if first <= begin and last >= end}
        busy += (end - begin) * (len(working) > 0)
        both += (end - begin) * (len(working) > 1)
    return busy, both


def met(stages: Sequence[Stage]) -> bool:
    """Whether both executors ran each stage of some seconds, and no executor's Python used too much memory."""
    long = [stage for stage in stages if stage.busy_s >= _LEAST_S]
    return bool(long) and all(stage.both >= _BOTH for stage in long) and _most_mb(stages) <= MOST_MB


def _most_mb(stages: Sequence[Stage]) -> int:
    return max(stage.python_mb for stage in stages)


def render(document: dict[str, Any], stages: Sequence[Stage]) -> str:
    """The page."""
    machine = document["machine"]
    lines = [
        "# The jobs on two workers",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores; load average before {machine['load_average_before']}, after "
        f"{machine['load_average_after']}.",
        "",
        f"`spark-submit` to a standalone cluster of two workers with a core each; {document['recorded']:,} rows of "
        f"{document['clients']:,} clients. Of each job the stages with at least two tasks, from Spark's event log.",
        "",
        "| job | stage | tasks of each executor | busy, s | both at once | Python of an executor, MB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {stage.job} | {stage.stage} | {' + '.join(map(str, stage.tasks))} | {stage.busy_s:.1f} "
        f"| {stage.both:.0%} | {stage.python_mb or '–'} |"
        for stage in stages
    ]
    lines += [
        "",
        f"Goal: in stages of at least {_LEAST_S:g} s both work at once for at least {_BOTH:.0%} of the time, and the "
        f"Python processes of an executor have at most {MOST_MB} MB ({'met' if met(stages) else 'missed'}; most: "
        f"{_most_mb(stages)} MB).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
