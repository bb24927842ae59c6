"""``python -m benchmarks.pipeline_scale``: a month of 10,000 clients and 100 gateways, from usage files to bills.

All jobs run one after the other on a standalone Spark cluster of two workers with a core each, first with half of the
clients and gateways, then with all. `benchmarks.fleet_month` writes the files and counts the expected results: each
recorded second, and each byte of the bill. Before that, the cost of committing the states of tables with 1,000
gateways is measured.

Goals: twice the data costs each job at most 2.2 times the CPU time; both executors work; recommend and backtest use
at most 1 GB in the driver; no process would use more than 8 GB with 100,000 clients and 1,000 gateways. Exit code 1
when a goal is missed.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

from benchmarks.fleet_month import ACTIVITY, EVERY_S, FIRST_DAY, LINES, Month, Truth, groups_text, write_month
from benchmarks.keep import command_line, keep_results
from benchmarks.pipeline_job import JobRun, run_job
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.spark_cluster import SETTINGS, Cluster, cluster, environment, overlap, tasks_of
from pipeline.storage.compacted_days import CompactedState, compacted_table, published_days
from pipeline.storage.layout import CompactedDay
from pipeline.storage.offset_index import Interval, OffsetIndex, Run
from pipeline.storage.raw_table import RawDay, RawState, raw_table

RESULTS: Final = Path(__file__).resolve().parent / "results"
MOST_RATIO: Final = 2.2
MOST_MB: Final = 8_000
MOST_DRIVER_MB: Final = 1_000
_IN_DRIVER: Final = ("recommend", "backtest")
_BOTH: Final = 0.5
_LEAST_S: Final = 10.0
"""Jobs with less CPU time or task time are not judged: most of it is the start of Python and of a JVM."""
_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Most work is Python's. In a job of a minute the JVM's second compiler costs more time than it saves."""
_PRICES: Final = 'currency = "EUR"\n\n[prices]\ngb_in = 0.04\ngb_out = 0.02\n'
_LARGE: Final = Month(clients=100_000, gateways=1_000, days=400)
_RAW_DAYS: Final = 91  # as `prune` leaves them


@dataclass(frozen=True, slots=True)
class Step:
    """A job, and figures about it from Spark's event log.

    Attributes:
        tasks: tasks of each executor, in stages with at least two tasks.
        busy_s: for how long any executor had such a task.
        both: the part of that time in which both executors had one.
    """

    run: JobRun
    tasks: tuple[int, ...] = ()
    busy_s: float = 0.0
    both: float = 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """All jobs with one amount of data."""

    month: Month
    truth: Truth
    made_s: float
    steps: tuple[Step, ...]

    def of(self, job: str) -> JobRun:
        """A job's run."""
        return next(step.run for step in self.steps if step.run.what == job)


@dataclass(frozen=True, slots=True)
class StateCost:
    """Cost of reading a table's state, and of committing it with one more day, in a separate process."""

    table: str
    days: int
    bytes: int
    cpu_s: float
    mb: int


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_scale", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--gateways", type=int, default=100)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; else the system's for temporary files")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    whole = Month(options.seed, options.clients, options.gateways, options.days)
    half = Month(options.seed, options.clients // 2, options.gateways // 2, options.days)
    with tempfile.TemporaryDirectory(prefix="pipeline-scale-", dir=options.folder) as name:
        states = [_in_process(table, Path(name) / table) for table in ("raw", "compacted")]
        sizes = [_through(month, Path(name) / str(month.clients)) for month in (whole, half)][::-1]
    document = {
        "command": command_line("benchmarks.pipeline_scale"),
        "started": started,
        "machine": machine | {"load_average_after": load_average()},
        "rows": [
            {"clients": size.month.clients, "gateways": size.month.gateways, "days": size.month.days}
            | asdict(step.run)
            | {"tasks": step.tasks, "busy_s": round(step.busy_s, 1), "both": round(step.both, 3)}
            for size in sizes
            for step in size.steps
        ],
        "sizes": [
            {"month": asdict(size.month), "truth": asdict(size.truth), "made_s": size.made_s}
            for size in sizes
        ],
        "states": [asdict(state) for state in states],
    }
    page = render(document, sizes, states)
    keep_results(document, page, options.output, "pipeline-scale")
    print(page)
    return int("missed" in page)


def _through(month: Month, folder: Path) -> Size:
    """Run all jobs over a month; then delete its files and tables."""
    folder.mkdir()
    began = time.perf_counter()
    truth = write_month(folder / "in", month)
    made_s = round(time.perf_counter() - began, 1)
    _say(f"{month.clients:,} clients: {truth.rows:,} rows in {truth.lines:,} lines, made in {made_s:.0f} s")
    with cluster(folder, workers=2) as found:
        steps = tuple(_steps(month, folder, found))
    _check(folder, truth)
    shutil.rmtree(folder)
    return Size(month, truth, made_s, steps)


def _steps(month: Month, folder: Path, found: Cluster) -> Iterator[Step]:
    out, plan = ("--out", f"{folder}/out"), f"{folder}/plan.json"
    (folder / "groups.toml").write_text(groups_text())
    (folder / "prices.toml").write_text(_PRICES)
    on = ("--master", found.master)
    bill = ("--groups", f"{folder}/groups.toml", "--prices", f"{folder}/prices.toml")
    month_of_bill = ("--month", f"{FIRST_DAY:%Y-%m}", "--allow-gaps", "--to-dir", f"{folder}/cost")
    jobs: list[tuple[str, ...]] = [
        ("ingest", "--from", f"files:{folder}/in", *out, *on),
        ("compact", *out, *on),
        ("recommend", *out, "--history", str(month.days), "--allow-gaps", "--plan", plan, *on),
        ("plan", "show", plan),
        ("backtest", *out, "--allow-gaps", "--result", f"{folder}/backtest", *on),
        ("report", *out, "--to-dir", f"{folder}/report", *on),
        ("cost", *out, *bill, *month_of_bill),
    ]
    for job in jobs:
        step = _step(job, folder, found)
        yield step
        run = step.run
        _say(
            f"{run.what}: {run.wall_s} s, CPU {run.driver_cpu_s} + {run.worker_cpu_s} + {run.jvm_cpu_s} s, "
            f"{run.driver_mb} / {run.worker_mb} / {run.jvm_mb} MB, tasks {step.tasks}, both {step.both:.0%}: "
            f"{run.said[:120]}; load {load_average()[0]}"
        )


def _step(job: Sequence[str], folder: Path, found: Cluster) -> Step:
    events = folder / f"events-{job[0]}"
    settings = {**SETTINGS, "spark.eventLog.dir": events.as_uri(), "spark.driver.memory": "2g"}
    settings |= dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), _JAVA)
    # This benchmark measures memory itself: Spark's own measurement takes longer than the smaller jobs.
    settings["spark.executor.processTreeMetrics.enabled"] = "false"
    settings["spark.eventLog.logStageExecutorMetrics"] = "false"
    settings["spark.executor.metrics.pollingInterval"] = "0"
    conf = folder / f"conf-{job[0]}"
    for each in (events, conf):
        each.mkdir()
    text = "".join(f"{name} {value}\n" for name, value in settings.items())
    (conf / "spark-defaults.conf").write_text(text)
    beside = found.pids if found.master in job else ()
    run = run_job(*job, environment={**environment(), "SPARK_CONF_DIR": str(conf)}, beside=beside)
    logs = list(events.iterdir())
    if not logs:
        return Step(run)
    stages = tasks_of(logs[0].read_text(encoding="utf-8").splitlines())
    tasks = list(chain.from_iterable(each for each in stages.values() if len(each) > 1))
    executors = sorted({executor for executor, _, _ in tasks})
    busy_s, both_s = overlap(tasks)
    counts = tuple(sum(task[0] == executor for task in tasks) for executor in executors)
    return Step(run, counts, busy_s, both_s / busy_s if busy_s else 0.0)


def _check(folder: Path, truth: Truth) -> None:
    """Check that the results equal the input, to the second and to the byte."""
    rows = sum(day.rows for day in published_days(f"{folder}/out"))
    with (folder / "cost" / "cost.csv").open(encoding="utf-8", newline="") as file:
        teams = list(csv.DictReader(file))
    sums = tuple(sum(int(team[name]) for team in teams) for name in ("bytes_in", "bytes_out"))
    if (rows, *sums) != (truth.rows, truth.bytes_in, truth.bytes_out):
        raise RuntimeError(f"{rows} rows and {sums} bytes came out of {truth}")


def _in_process(table: str, out: Path) -> StateCost:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(state_cost, table, out).result()
    _say(f"state of {table}: {found.bytes / 1e6:.1f} MB, {found.cpu_s:.1f} s, {found.mb} MB")
    return found


def state_cost(name: str, out: Path) -> StateCost:
    """Cost of reading and committing the state of a table with 1,000 gateways, each restarted every day."""
    days = [(FIRST_DAY + datetime.timedelta(at)).isoformat() for at in range(_LARGE.days)]
    gateways = [f"gw-{number:04d}" for number in range(_LARGE.gateways)]
    algorithms, scopes = dict.fromkeys(gateways, ("token_bucket",)), dict.fromkeys(gateways, "gateway")
    state: RawState | CompactedState
    if name == "raw":
        days = days[-_RAW_DAYS:]
        table = raw_table(str(out))
        runs: dict[Run, tuple[Interval, ...]] = {}
        for day in days:
            boot = int(datetime.datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp())
            whole = (Interval(0, 86_399, boot, boot + 86_399),)
            runs |= {Run(gateway, boot * 1_000): whole for gateway in gateways}
        newest = dict.fromkeys(gateways, (1772000000000, 86399, "gateway"))
        known = RawDay(86_400_000, 10**9, algorithms=algorithms, scopes=newest)
        state = RawState(index=OffsetIndex(runs), days=dict.fromkeys(days, known))
    else:
        table = compacted_table(str(out))
        whole_day = dict.fromkeys(gateways, 1.0)
        state = CompactedState(
            {day: CompactedDay(day, gateways=whole_day, algorithms=algorithms, scopes=scopes) for day in days}
        )
    table.commit(table.prepared(), state=state.to_json())
    began = time.process_time()
    before = table.prepared()
    kind = RawState if name == "raw" else CompactedState
    table.commit(before, state=kind.from_json(before.state).to_json())
    return StateCost(
        name,
        len(days),
        len(json.dumps(state.to_json(), separators=(",", ":"))),
        round(time.process_time() - began, 1),
        getrusage(RUSAGE_SELF).ru_maxrss // 1024,
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ratio_of(half: JobRun, whole: JobRun) -> float:
    """CPU time with all data, in multiples of that with half of the data."""
    return whole.cpu_s / max(half.cpu_s, 0.1)


def larger(half: int, whole: int, factor: float) -> int:
    """Memory with `factor` times the data, extrapolated on the line through both sizes; at least that of `whole`."""
    return round(whole + max(0, whole - half) * 2 * (factor - 1))


def render(document: Mapping[str, Any], sizes: Sequence[Size], states: Sequence[StateCost]) -> str:
    """The page."""
    machine = document["machine"]
    half, whole = sizes
    month = whole.month
    lines = [
        "# The pipeline at the size of a company",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores; load average before {machine['load_average_before']}, after "
        f"{machine['load_average_after']}: other programs ran beside it, so CPU time is the measure.",
        "",
        f"{month.clients:,} clients at {month.gateways} gateways on {month.days} days, and half of the clients at "
        f"half of the gateways. Each client uses one gateway: {month.client_days:,} client-days. Jobs that use "
        "Spark ran on a standalone cluster of two workers with a core each.",
        "",
        "| | half | whole |",
        "|---|---|---|",
        f"| clients | {half.month.clients:,} | {month.clients:,} |",
        f"| gateways | {half.month.gateways} | {month.gateways} |",
        f"| lines | {half.truth.lines:,} | {whole.truth.lines:,} |",
        f"| rows (recorded seconds of a client) | {half.truth.rows:,} | {whole.truth.rows:,} |",
        f"| usage files, MB | {half.truth.file_bytes / 1e6:,.0f} | {whole.truth.file_bytes / 1e6:,.0f} |",
        "",
        "Rows of compacted days and bytes of the bill are those that were generated, each of them.",
        "",
        "## Fewer seconds than in reality",
        "",
        f"* A gateway has {LINES} lines of a day, each {EVERY_S} s after the last one. So {LINES / 86_400:.1%} of "
        f"its time is covered, and the jobs run with `--allow-gaps`. A real gateway has {86_400 / LINES:.0f} times "
        "as many lines.",
        f"* A client has a row in {ACTIVITY:.1%} of these lines: {whole.truth.rows / month.client_days:.0f} rows a "
        "day, in six hours.",
        "* This is fair for `recommend`, `plan`, `backtest` and `report`: they read one row for each day of a "
        "client, however many seconds it was active. It is fair for the number of clients, gateways, files and days.",
        "* `ingest`, `compact` and `cost` cost in proportion to rows and lines. "
        "[One day of 85 million rows](gateway-day.md) measures these by row.",
        "",
        "## Time",
        "",
        "CPU time of all processes: the job's own Python (driver), Spark's Python workers, and JVMs (driver's and "
        "executors').",
        "",
        "| job | wall, s | driver, s | workers, s | JVMs, s | CPU, s | CPU of half, s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for step in whole.steps:
        run, before = step.run, half.of(step.run.what)
        lines.append(
            f"| {run.what} | {run.wall_s} | {run.driver_cpu_s} | {run.worker_cpu_s or ''} | {run.jvm_cpu_s or ''} "
            f"| {run.cpu_s:.1f} | {before.cpu_s:.1f} | {ratio_of(before, run):.2f} |"
        )
    sums = [sum(step.run.cpu_s for step in size.steps) for size in sizes]
    lines += [
        f"| all | {sum(step.run.wall_s for step in whole.steps):.0f} | | | | {sums[1]:.0f} | {sums[0]:.0f} "
        f"| {sums[1] / sums[0]:.2f} |",
        "",
        f"Goal: twice the data costs at most {MOST_RATIO} times the CPU time, in all and in each job with at least "
        f"{_LEAST_S:g} s ({_verdict(_grows_evenly(sizes))}).",
        "",
        "## Both executors",
        "",
        "Stages with at least two tasks, from Spark's event log, of the whole.",
        "",
        "| job | tasks of each executor | time with tasks, s | both at once |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step.run.what} | {' + '.join(map(str, step.tasks))} | {step.busy_s:.1f} | {step.both:.0%} |"
        for step in whole.steps
        if step.tasks
    ]
    lines += [
        "",
        f"Goal: in jobs with tasks for at least {_LEAST_S:g} s both work at once for at least {_BOTH:.0%} of that "
        f"time ({_verdict(_both_work(whole))}).",
        "",
        "## Memory",
        "",
        "The most that one process of a kind had resident, in MB, with half and with all. The last two columns are "
        f"on the line through both, for {_LARGE.clients:,} clients and {_LARGE.gateways:,} gateways. JVMs have a "
        "bound: 1 GB of heap in an executor, 2 GB in the driver.",
        "",
        "| job | driver | worker | JVM | driver, large | worker, large |",
        "|---|---|---|---|---|---|",
    ]
    for step in whole.steps:
        run, before = step.run, half.of(step.run.what)
        driver, worker = _large_mb(sizes, run.what)
        pairs = (
            (before.driver_mb, run.driver_mb),
            (before.worker_mb, run.worker_mb),
            (before.jvm_mb, run.jvm_mb),
        )
        cells = [f"{less} → {more}" if more else "" for less, more in pairs]
        cells += [f"{driver:,}", f"{worker:,}" if worker else ""]
        lines.append(f"| {run.what} | {' | '.join(cells)} |")
    most = max(whole.of(job).driver_mb for job in _IN_DRIVER)
    lines += [
        "",
        f"Goal: recommend and backtest have at most {MOST_DRIVER_MB:,} MB in the driver, with "
        f"{month.client_days:,} client-days ({_verdict(most <= MOST_DRIVER_MB)}).",
        "",
        *_extrapolated(sizes, states),
    ]
    return "\n".join(lines) + "\n"


def _extrapolated(sizes: Sequence[Size], states: Sequence[StateCost]) -> list[str]:
    half, whole = sizes
    factor = _LARGE.clients / whole.month.clients
    found = chain.from_iterable(_large_mb(sizes, step.run.what) for step in whole.steps)
    largest = max(*found, *(each.mb for each in states))
    lines = [
        f"## {_LARGE.clients:,} clients, {_LARGE.gateways:,} gateways, {_LARGE.days} days",
        "",
        "CPU time on the line through both sizes. `ingest` and `compact` run every day, on that day. The other jobs "
        f"are for {whole.month.days} days.",
        "",
        "| job | CPU | for |",
        "|---|---|---|",
    ]
    for step in whole.steps:
        run, before = step.run, half.of(step.run.what)
        slope = max(0.0, run.cpu_s - before.cpu_s) * 2
        large_s = run.cpu_s + slope * (factor - 1)
        daily = run.what in ("ingest", "compact")
        lines.append(
            f"| {run.what} | {large_s / (whole.month.days if daily else 1) / 60:,.1f} min "
            f"| {'a day' if daily else f'{whole.month.days} days'} |"
        )
    lines += [
        "",
        "The state of a table is read and written with each commit. Measured, not extrapolated, with "
        f"{_LARGE.gateways:,} gateways that each start anew every day:",
        "",
        "| table | days | state, MB | CPU of reading and committing it, s | largest memory, MB |",
        "|---|---|---|---|---|",
        *(
            f"| {each.table} | {each.days} | {each.bytes / 1e6:.1f} | {each.cpu_s} | {each.mb} |"
            for each in states
        ),
        "",
        f"Goal: no process above {MOST_MB:,} MB ({_verdict(largest <= MOST_MB)}; largest: {largest:,} MB).",
        "",
        "Assumptions:",
        "",
        "1. Each client still uses one gateway, and is as active as here. With more active seconds, `ingest`, "
        "`compact` and `cost` take more CPU time, in proportion. Their memory does not grow: a batch of `ingest` has "
        "400 files, a task of `compact` at most 4 million recorded seconds at once, and `cost` reads one row group.",
        "2. Memory and CPU time lie on a straight line. It was measured over a factor of 2 and is used over a factor "
        f"of {factor:g}.",
        f"3. `recommend`, `backtest`, `report` and `cost` look at {whole.month.days} days, whatever is kept. A "
        "backtest over all 400 days is another matter: its driver has the quotas of each judged day of each client. "
        "Name the days with `--from` or `--test`.",
        "4. A part of a job has 20,000 rows, until there are 1,024 parts, with 20 million client-days. Here are "
        f"{whole.month.client_days:,}, and {whole.month.client_days * factor:,.0f} then.",
        f"5. `prune` runs every day. So the raw table knows the starts of {_RAW_DAYS} days.",
        "6. Two cores here. More executors divide the time of workers, and not that of drivers.",
    ]
    return lines


def _verdict(met: bool) -> str:
    return "met" if met else "missed"


def _grows_evenly(sizes: Sequence[Size]) -> bool:
    half, whole = sizes
    judged = [(half.of(step.run.what), step.run) for step in whole.steps if step.run.cpu_s >= _LEAST_S]
    sums = [sum(run.cpu_s for run in runs) for runs in zip(*judged, strict=True)] if judged else [1.0, 1.0]
    return sums[1] <= MOST_RATIO * sums[0] and all(ratio_of(*pair) <= MOST_RATIO for pair in judged)


def _both_work(size: Size) -> bool:
    return all(step.both >= _BOTH for step in size.steps if step.busy_s >= _LEAST_S)


def _large_mb(sizes: Sequence[Size], job: str) -> tuple[int, int]:
    """The largest driver and worker with `_LARGE`'s clients and gateways."""
    half, whole = (size.of(job) for size in sizes)
    factor = _LARGE.clients / sizes[1].month.clients
    return (
        larger(half.driver_mb, whole.driver_mb, factor),
        larger(half.worker_mb, whole.worker_mb, factor),
    )


if __name__ == "__main__":
    sys.exit(main())
