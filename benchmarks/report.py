"""How fast the report's table is computed from compacted days, beside plain DuckDB: ``python -m benchmarks.report``.

DuckDB's row is an aggregate of the same files: sums and one peak per client. The table `client_use` also has
percentiles, peaks of ten and sixty seconds over all brokers, distance to limits and series for plots. The second
table is for clients that use every second of the day, so no second is skipped. Its page is rendered too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.compacted_days import FIRST_DAY, write_compacted_days
from benchmarks.keep import keep_results
from benchmarks.process_tree import cpu_s
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.client_tables.timelines import SUMMARY
from pipeline.client_tables.use import use_of
from pipeline.report.page import render
from pipeline.report.report import report_of
from pipeline.spark.session import open_session
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.layout import EVENTS, KEY, SERIES, CompactedDay
from pipeline.storage.schemas import ARROW_TYPES
from testkit.pipeline.compacted_days import publish_day

RESULTS: Final = Path(__file__).parent / "results"
GOAL: Final = 4.0
_DAY_S: Final = 86_400
_DUCKDB: Final = (
    "select client_id, api, sum(list_sum(offered)), sum(list_sum(throttle_ms)), max(list_max(offered)) "
    "from '{out}/compacted/date=*/*.parquet' group by all"
)
_TYPES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.float64(): "double"}
_SUMMARY: Final = ", ".join(
    f"`{column.name}` array<{_TYPES[column.type.value_type]}>"
    if pa.types.is_list(column.type)
    else f"`{column.name}` {_TYPES[column.type]}"
    for column in SUMMARY
)


@dataclass(frozen=True, slots=True)
class Row:
    """One timed job: its number of recorded seconds, and the time of the best warm pass."""

    what: str
    seconds: int
    cold_s: float
    warm_s: float
    warm_cpu_s: float


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--entities", type=int, default=1_000)
    parser.add_argument("--all-day", type=int, default=500, help="clients of the second report")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="report-") as name:
        total = write_compacted_days(Path(name), seed=1, entities=options.entities, days=1)
        spark = open_session("benchmark")

        def report() -> None:
            CompactedDays.of(spark, name).deal(use_of, _SUMMARY).toArrow()

        def aggregate() -> None:
            duckdb.sql(_DUCKDB.format(out=name)).fetchall()

        rows = [
            _timed("Spark: the report's table, all clients", total, report, options.passes),
            _timed("DuckDB: sums and one peak", total, aggregate, options.passes),
        ]
        if options.all_day:
            rows.append(_all_day(spark, Path(name) / "all-day", options.all_day))
        spark.stop()
    document = {
        "command": f"python -m benchmarks.report --entities {options.entities} --all-day {options.all_day} "
        f"--passes {options.passes}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "recorded_seconds": total,
        "rows": [asdict(row) for row in rows],
    }
    page = _render(document, rows)
    keep_results(document, page, options.output, "report")
    print(page)
    return 0


def _all_day(spark: Any, out: Path, clients: int) -> Row:
    """The report, including the page, of clients that were limited, throttled and muted in every second of a day."""
    rng = np.random.default_rng(1)
    seconds = {name: rng.integers(1, 1_000_000, _DAY_S) for name in SERIES} | {
        "t": np.arange(_DAY_S),
        "quota": np.full(_DAY_S, 1e6),
        "censored": rng.random(_DAY_S) < 0.5,
    }
    firsts = range(0, clients, 50)
    rows = (_rows_of(seconds, range(first, min(first + 50, clients))) for first in firsts)
    publish_day(str(out), CompactedDay(FIRST_DAY.isoformat()), rows)
    total = clients * _DAY_S

    def page() -> None:
        days = CompactedDays.of(spark, str(out))
        assert len(render(report_of([days.deal(use_of, _SUMMARY).toArrow()], days.days), top=40)) > 0

    return _timed(f"Spark: table, report and page, {clients} clients in all seconds", total, page, 1)


def _rows_of(seconds: dict[str, Any], numbers: range) -> pa.Table:
    """Rows of a few clients. All clients at once would need gigabytes."""
    count = len(numbers)
    names = {"date": FIRST_DAY, "gw": "gw", "listener": "clients", "user": "", "api": "produce", "node": 1}
    columns = {name: pa.array([value] * count, ARROW_TYPES[KEY[name]]) for name, value in names.items()}
    columns["client_id"] = pa.array([f"client-{number:05d}" for number in numbers])
    offsets = pa.array(np.arange(count + 1) * _DAY_S, pa.int32())
    for name, kind in SERIES.items():
        values = pa.array(np.tile(seconds[name], count)).cast(ARROW_TYPES[kind])
        columns[name] = pa.ListArray.from_arrays(offsets, values)
    for name, kind in EVENTS.items():
        columns[name] = pa.array([[]] * count, pa.list_(ARROW_TYPES[kind]))
    return pa.table(columns)


def _timed(what: str, seconds: int, run: Callable[[], None], passes: int) -> Row:
    def once() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), cpu_s()
        run()
        return time.perf_counter() - wall, cpu_s() - cpu

    cold_s, _ = once()
    warm_s, warm_cpu_s = min(once() for _ in range(passes))
    return Row(what, seconds, cold_s, warm_s, warm_cpu_s)


def _render(document: dict[str, Any], rows: list[Row]) -> str:
    machine = document["machine"]
    lines = [
        "# The report",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, Python {machine['python']}; "
        f"load average before {machine['load_average_before']}, "
        f"after {machine['load_average_after']}: where the machine did other things too, CPU time is the better "
        "measure (two cores give twice the rate of its column, at best).",
        "",
        f"{document['recorded_seconds']:,} recorded seconds of one day, compacted.",
        "",
        "| what | M/s, first pass | M/s, warm | M per CPU-second, warm |",
        "|---|---|---|---|",
    ]
    for row in rows:
        millions = row.seconds / 1e6
        lines.append(
            f"| {row.what} | {millions / row.cold_s:.2f} | {millions / row.warm_s:.2f} | "
            f"{millions / row.warm_cpu_s:.2f} |"
        )
    warm = rows[0].seconds / 1e6 / rows[0].warm_s
    lines += ["", f"Goal, warm: {GOAL:g} M/s ({'met' if warm >= GOAL else 'missed'}).", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
