"""``python -m benchmarks.clients``: recommend, backtest and report over a month of many clients; 5 minutes.

The benchmark makes the tables of some clients' days (`pipeline.client_tables`) from records. It copies them under
other names and with other sizes until there are enough clients. It measures the jobs themselves, from the command
line to the plan or the page. Goals, for 28 days of 10,000 clients: recommend takes at most 30 s; recommend and
backtest need at most 1 GB in the driver. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from datetime import UTC
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.compacted_days import FIRST_DAY, compacted_table
from benchmarks.keep import keep_results
from benchmarks.pipeline_job import run_job
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.client_tables.profile import CLIENT, PARTIAL, SUMS, merge_profiles, profile_rows
from pipeline.client_tables.rows import BURSTS_S, SCHEMA, client_rows, required_column
from pipeline.client_tables.tables import client_use_table, clients_table
from pipeline.client_tables.timelines import SUMMARY, summarise
from pipeline.storage.layout import CompactedDay, bucket_of
from testkit.pipeline.client_days import publish_made
from testkit.pipeline.compacted_days import publish_day
from testkit.pipeline.traces import day_of

RESULTS: Final = Path(__file__).resolve().parent / "results"
GOAL_S: Final = 30.0
MOST_DRIVER_MB: Final = 1_000
_OF_RECORDS: Final = 50  # clients whose tables are made from records, on each day of a week
_SCALED: Final = (
    "units",
    "peak_1s",
    "peak_10s",
    "peak_60s",
    "mean",
    "p95_active",
    "p99_active",
    "p90_minute",
)
_SCALED_USE: Final = (*SUMS, "p50", "p95", "p99", "peak_1s", "peak_10s", "peak_60s")


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="clients-") as name:
        out = Path(name) / "out"
        size = sum(_write_day(out, options.seed, options.clients, index) for index in range(options.days))
        history = ["--history", str(options.days)]
        rows = [
            _run(out, *job, str(Path(name) / f"{job[0]}-{len(where)}"), *where)
            for where in ((), ("--master", "local[2]"))
            for job in (
                ("recommend", *history, "--plan"),
                ("backtest", "--result"),
                ("report", "--to-dir"),
            )
        ]
    document = {
        "command": f"python -m benchmarks.clients --clients {options.clients} --days {options.days} "
        f"--seed {options.seed}",
        "started": datetime.datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "clients": options.clients,
        "days": options.days,
        "bytes": size,
        "rows": rows,
    }
    page = render(document)
    keep_results(document, page, options.output, "clients")
    print(page)
    return int(rows[0]["wall_s"] > GOAL_S or _most_driver_mb(rows) > MOST_DRIVER_MB)


def _most_driver_mb(rows: list[dict[str, Any]]) -> int:
    return max(int(row["driver_mb"]) for row in rows if row["what"].startswith(("recommend", "backtest")))


def _write_day(out: Path, seed: int, clients: int, index: int) -> int:
    """Write a day's tables, and a compacted day that is never read; the size of the tables."""
    today = FIRST_DAY + datetime.timedelta(days=index)
    found, use = _of_weekday(seed, index % 7)
    dates = pa.repeat(pa.scalar(today, pa.date32()), found.num_rows)
    found = found.set_column(found.schema.get_field_index("date"), "date", dates)
    day = publish_day(str(out), CompactedDay(today.isoformat()), [])
    copies = range(-(-clients // _OF_RECORDS))
    rows = {}
    for table in ("client_day", "client_hour", "total"):
        own = found.filter(pc.equal(found.column("table"), table))
        # The measured jobs do not read the hours, so the hours of the original clients suffice.
        if table == "client_day":
            own = pa.concat_tables(
                [_rates_scaled(_copy(own, number, _SCALED), number) for number in copies]
            ).sort_by("bucket")
        rows["gateway", table] = own
    made = [(clients_table(str(out)), rows)]
    use_rows = pa.concat_tables([_copy(use, number, _SCALED_USE) for number in copies]).sort_by("bucket")
    made.append((client_use_table(str(out)), {(): use_rows}))
    for table, own_rows in made:
        publish_made(table, day, own_rows)
    return sum(file.bytes for table, _ in made for file in table.read().of(date=day.date))


@lru_cache(maxsize=7)
def _of_weekday(seed: int, index: int) -> tuple[pa.Table, pa.Table]:
    day = day_of(seed, _OF_RECORDS, index)
    (batch,) = compacted_table(seed, _OF_RECORDS, day).combine_chunks().to_batches()
    profiles = merge_profiles(pa.Table.from_batches(profile_rows(iter([batch])), schema=PARTIAL))
    return (
        pa.Table.from_batches(client_rows(iter([batch])), schema=SCHEMA),
        pa.Table.from_batches(summarise([profiles]), schema=SUMMARY),
    )


def _factor(number: int) -> float:
    return float(np.random.default_rng(number).lognormal(0, 1))


def _copy(table: pa.Table, number: int, scaled: tuple[str, ...]) -> pa.Table:
    """The table with other client names, each with its own size."""
    names = pc.binary_join_element_wise(table.column("client_id"), pa.scalar(f"-{number}"), "")
    table = table.set_column(table.schema.get_field_index("client_id"), "client_id", names)
    # Timelines have no bucket.
    clients = zip(*(table.column(name).to_pylist() for name in ("bucket", *CLIENT)), strict=True)
    own = pa.array([before if before < 0 else bucket_of(*client) for before, *client in clients], pa.int32())
    table = table.set_column(table.schema.get_field_index("bucket"), "bucket", own)
    for name in scaled:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pc.multiply(table.column(name), _factor(number)))
    return table


def _rates_scaled(table: pa.Table, number: int) -> pa.Table:
    for name in map(required_column, BURSTS_S):
        lists = table.column(name).combine_chunks()
        values = pc.multiply(lists.values, _factor(number))
        made = pa.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null())
        table = table.set_column(table.schema.get_field_index(name), name, made)
    return table


def _run(out: Path, job: str, *arguments: str) -> dict[str, Any]:
    done = run_job(job, "--out", str(out), *arguments)
    return {
        "what": " ".join([job, *(each for each in arguments if each.startswith(("--history", "local")))]),
        "wall_s": done.wall_s,
        "cpu_s": round(done.cpu_s, 1),
        "driver_mb": done.driver_mb,
        "worker_mb": done.worker_mb,
        "jvm_mb": done.jvm_mb,
        "said": done.said.replace(f"{out.parent}/", ""),
    }


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine, rows = document["machine"], document["rows"]
    lines = [
        "# Recommend, backtest and report over a month",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores; load average before {machine['load_average_before']}, after "
        f"{machine['load_average_after']}.",
        "",
        f"{document['clients']:,} clients on {document['days']} days: {document['bytes'] / 1e6:.0f} MB of "
        "tables. Wall and CPU time of the whole job; the most memory of the driver, of the largest Python worker and "
        "of the JVM. Without a master a job is one process.",
        "",
        "| job | wall, s | CPU, s | driver, MB | worker, MB | JVM, MB |",
        "|---|---|---|---|---|---|",
        *(
            f"| {_label(row, document)} | {row['wall_s']} | {row['cpu_s']} | {row['driver_mb']} "
            f"| {row['worker_mb'] or ''} "
            f"| {row['jvm_mb'] or ''} |"
            for row in rows
        ),
        "",
        f"Goal: recommend over all days in at most {GOAL_S:g} s "
        f"({'met' if rows[0]['wall_s'] <= GOAL_S else 'missed'}). Recommend and backtest: at most "
        f"{MOST_DRIVER_MB:,} MB in the driver ({'met' if _most_driver_mb(rows) <= MOST_DRIVER_MB else 'missed'}).",
    ]
    return "\n".join(lines) + "\n"


def _label(row: dict[str, Any], document: dict[str, Any]) -> str:
    return str(row["what"]).replace("--history", f"--history {document['days']}")


if __name__ == "__main__":
    sys.exit(main())
