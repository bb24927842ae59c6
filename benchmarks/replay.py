"""``python -m benchmarks.replay``: how fast quotas are replayed and required rates found; 10 minutes.

A row-candidate is one recorded second of one client under one candidate quota. Each row is the best of several
passes. Both wall time and CPU time of all involved processes are measured, since a shared machine makes wall times
longer. Goals (quiet machine, two cores): replay at least 200 M row-candidates/s and at least 100 times the naive job;
required rates at least 4 M rows/s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.compacted_days import write_compacted_days
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.client_tables.rows import CLIENT_TABLES, client_rows
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.replay.candidates import Candidates
from pipeline.replay.demand import Demand, demands
from pipeline.replay.dispatch import ReplaySettings, grid
from pipeline.replay.kernels.compiled import LOOPS, Loops
from pipeline.replay.kernels.deferral import required_rates_on
from pipeline.replay.kernels.split import MOST
from pipeline.replay.kernels.token_bucket import strict_token_bucket
from pipeline.replay.simulation import WIDE, simulate, simulate_batch
from pipeline.spark.session import open_session
from pipeline.storage.compacted_days import ELEMENTS_AT_ONCE, CompactedDays
from pipeline.storage.compacted_files import pieces_of, read_entities
from pipeline.storage.entity_days import ARRAYS, ENTITY, FOR_REQUESTS, arrays_of
from quotas.token_bucket import TokenBucket

RESULTS: Final = Path(__file__).resolve().parent / "results"
STRICT: Final = ReplaySettings(Algorithm.TOKEN_BUCKET, Model.STRICT)
CANDIDATES: Final = 64
NAIVE_CANDIDATES: Final = 4
_PASSES: Final = 3
_DAY_ROWS: Final = 86_400_000


@dataclass(slots=True)
class Row:
    """One measurement; work is in row-candidates, or rows."""

    what: str
    unit: str
    work: float
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Millions per second of wall time."""
        return self.work / self.wall_s / 1e6

    @property
    def cpu_rate(self) -> float:
        """Millions per second of CPU time, one core."""
        return self.work / self.cpu_s / 1e6


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--entities", type=int, default=1_000)
    parser.add_argument("--naive-entities", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="leave out all models but the strict bucket")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        out, small = Path(name) / "out", Path(name) / "small"
        total = write_compacted_days(out, seed=options.seed, entities=options.entities, days=1)
        few = write_compacted_days(small, seed=options.seed, entities=options.naive_entities, days=1)
        rows += without_spark(out, total, quick=options.quick)
        rows += with_spark(out, total, small, few)
    document = {
        "command": f"python -m benchmarks.replay --entities {options.entities} "
        f"--naive-entities {options.naive_entities} --seed {options.seed}{' --quick' * options.quick}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "recorded_seconds": total,
        "rows": [asdict(row) for row in rows],
    }
    page = render(document, rows)
    keep_results(document, page, options.output, "replay")
    print(page)
    return 0


def without_spark(out: Path, total: int, *, quick: bool) -> list[Row]:
    """Kernels over Parquet, read with Arrow, one thread."""

    def over(work: Callable[[list[Demand]], object], arrays: Collection[str]) -> Callable[[], None]:
        def run() -> None:
            for batch in _batches(out, arrays):
                work(list(demands(batch)))

        return run

    candidates = Candidates(multiples=tuple(grid(0.5, 64, CANDIDATES)))
    few = Candidates(multiples=tuple(grid(0.5, 64, 8)))
    rate = ReplaySettings(Algorithm.RATE, Model.CLOSED_LOOP)
    spread = ReplaySettings(Algorithm.SPREAD, Model.PERMISSIVE)
    permissive = ReplaySettings(Algorithm.TOKEN_BUCKET, Model.PERMISSIVE)
    deferral = ReplaySettings(model=Model.DEFERRAL)
    kinds: list[tuple[str, Loops | None]] = [("numpy", None)]
    if LOOPS is not None:
        kinds.append(("compiled", LOOPS))
    jobs: list[tuple[str, str, float, Callable[[list[Demand]], object]]] = [
        *(
            (
                f"{name}: strict bucket",
                "row-candidates",
                total * CANDIDATES,
                lambda d, loops=loops: [
                    strict_token_bucket(each.by_second(), candidates.for_demand(each), loops=loops)
                    for each in d
                ],
            )
            for name, loops in kinds
        ),
        (
            "numpy: permissive bucket, waits",
            "row-candidates",
            total * 8,
            lambda d: list(simulate_batch(d, few, permissive)),
        ),
        ("numpy: deferral", "row-candidates", total * 8, lambda d: list(simulate_batch(d, few, deferral))),
        (
            "numpy: closed-loop Rate, 4 requests a second",
            "row-candidates",
            total * 8,
            lambda d: list(simulate_batch(d, few, rate)),
        ),
        ("numpy: spread Rate", "row-candidates", total * 8, lambda d: list(simulate_batch(d, few, spread))),
        *(
            (
                f"{name}: required rates at 1 %",
                "rows",
                total,
                lambda d, loops=loops: [
                    required_rates_on(each.by_second(), [0.01], [10.0], loops=loops) for each in d
                ],
            )
            for name, loops in kinds
        ),
    ]
    if quick:
        jobs = [*jobs[: len(kinds)], *jobs[-len(kinds) :]]
    return [
        _best(what, unit, work, over(job, FOR_REQUESTS if "closed-loop" in what else ()), passes=2)
        for what, unit, work, job in jobs
    ]


def with_spark(out: Path, total: int, small: Path, few: int) -> list[Row]:
    """The jobs on this machine's cores, and a naive job for comparison."""
    spark = open_session("sluice-replay-benchmark")
    days = CompactedDays.of(spark, str(out))
    candidates = Candidates(multiples=tuple(grid(0.5, 64, CANDIDATES)))

    def simulated() -> None:
        simulate(days, candidates, STRICT).write.format("noop").mode("overwrite").save()

    def required() -> None:
        rows = days.map_entities(client_rows, CLIENT_TABLES, arrays=ARRAYS)
        rows.write.format("noop").mode("overwrite").save()

    exploded = (
        spark.read.parquet(*CompactedDays.of(spark, str(small)).paths)
        .selectExpr("client_id", "inline(arrays_zip(t, offered))")
        .repartition(4)
        .cache()
    )
    exploded.count()

    def naive() -> None:
        exploded.groupBy("client_id").applyInPandas(
            _naive, "client_id string, quota double, refused double"
        ).write.format("noop").mode("overwrite").save()

    rows = [
        _best(
            "Spark: simulate, strict bucket", "row-candidates", total * CANDIDATES, simulated, passes=_PASSES
        ),
        _best("Spark: tables of clients, 24 required rates each", "rows", total, required, passes=_PASSES),
        _best("Spark: naive applyInPandas", "row-candidates", few * NAIVE_CANDIDATES, naive, passes=2),
    ]
    spark.stop()
    return rows


def _naive(pdf: Any) -> Any:
    """One client at a time, one candidate at a time, one record at a time."""
    import pandas as pd

    pdf = pdf.sort_values("t")
    mean = pdf["offered"].sum() / 86_400
    found = []
    for multiple in grid(0.5, 64, NAIVE_CANDIDATES):
        bucket = TokenBucket(mean * multiple, window_num=11, window_ms=1_000, now_ms=0)
        refused = 0.0
        for row in pdf.itertuples():
            if bucket.throttle_time_ms(now_ms=row.t * 1000) > 0:
                refused += row.offered
            else:
                bucket.record(row.offered, now_ms=row.t * 1000)
        found.append((pdf["client_id"].iloc[0], mean * multiple, refused))
    return pd.DataFrame(found, columns=["client_id", "quota", "refused"])


def _batches(out: Path, arrays: Collection[str]) -> Iterator[pa.RecordBatch]:
    days = CompactedDays.of(None, str(out))
    for _, paths in groupby(days.paths, lambda path: path.rpartition("/")[0]):
        yield from read_entities(
            sorted(pieces_of(paths)),
            ENTITY,
            arrays_of(arrays),
            brokers_apart=False,
            most_elements=ELEMENTS_AT_ONCE // MOST if arrays else WIDE,
        )


def _best(what: str, unit: str, work: float, run: Callable[[], None], *, passes: int) -> Row:
    walls, cpus = [], []
    for _ in range(passes):
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        run()
        walls.append(time.perf_counter() - wall_s)
        cpus.append(_cpu_s() - cpu_s)
    print(f"{what}: {work / min(walls) / 1e6:.1f} M/s, {work / min(cpus) / 1e6:.1f} M/CPU-s", file=sys.stderr)
    return Row(what, unit, work, min(walls), min(cpus))


def _cpu_s() -> float:
    """CPU time so far of this process and all its descendants."""
    parents, times = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (
                    (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                )
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            # This includes children that it has waited for.
            times[int(folder.name)] = sum(map(int, fields[11:15]))
    total = 0
    for pid, ticks in times.items():
        ancestor = pid
        while ancestor not in (0, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        total += ticks if ancestor else 0
    return total / os.sysconf("SC_CLK_TCK")


def render(document: dict[str, Any], rows: list[Row]) -> str:
    """The page."""
    machine = document["machine"]
    by_name = {row.what: row for row in rows}
    spark, naive = by_name["Spark: simulate, strict bucket"], by_name["Spark: naive applyInPandas"]
    found = by_name["Spark: tables of clients, 24 required rates each"]
    day_s = _DAY_ROWS / (found.cpu_rate * 2e6), _DAY_ROWS * CANDIDATES / (spark.cpu_rate * 2e6)
    lines = [
        "# Replay",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, Python {machine['python']}; load average before "
        f"{machine['load_average_before']}, after {machine['load_average_after']}: where the machine did other "
        "things too, CPU time is the better measure.",
        "",
        f"{document['recorded_seconds']:,} recorded seconds of one day; {CANDIDATES} candidates for the strict "
        "bucket, 8 for the other models, 4 for the naive job. Kernels without Spark run on one core and read the "
        "same Parquet.",
        "",
        "| what | unit | M/s, wall | M per CPU-second |",
        "|---|---|---|---|",
    ]
    lines += [f"| {row.what} | {row.unit} | {row.rate:.1f} | {row.cpu_rate:.1f} |" for row in rows]
    if "compiled: strict bucket" in by_name:
        times = {
            what: by_name[f"compiled: {what}"].cpu_rate / by_name[f"numpy: {what}"].cpu_rate
            for what in ("strict bucket", "required rates at 1 %")
        }
        lines += [
            "",
            "What numba compiles beside numpy, which gives the same numbers, by CPU time: "
            + "; ".join(f"{what} {ratio:.1f} times" for what, ratio in times.items())
            + ". Reading Parquet is in both.",
        ]
    lines += [
        "",
        f"Simulate beside the naive job: {spark.cpu_rate / naive.cpu_rate:.0f} times by CPU time, "
        f"{spark.rate / naive.rate:.0f} times by wall time; on its few clients the naive job's fixed costs "
        "weigh more.",
        "",
        f"Goals, for a quiet machine: simulate 200 M row-candidates/s ({_word(spark.rate >= 200)}) and 100 times the "
        f"naive job ({_word(spark.cpu_rate >= 100 * naive.cpu_rate)}); "
        f"required rates 4 M rows/s, of which a table has 24 for each client ({found.rate:.1f} M rows/s, "
        f"{24 * found.rate:.0f} M required rates of a row). "
        "Ranks with few clients cost as much as calls into numpy do: batches with more clients are faster per "
        "client.",
        "",
        "One gateway-day of 1,000 clients active in every second (86.4 M rows), computed from CPU times on two "
        f"cores: tables of clients {day_s[0] / 60:.1f} min, {CANDIDATES} candidates {day_s[1] / 60:.1f} min.",
    ]
    return "\n".join(lines) + "\n"


def _word(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    sys.exit(main())
