"""``python -m benchmarks.pipeline``: usage files to compacted days with Spark, beside DuckDB; 5 minutes.

A row is a recorded second of one client with one API. Each figure is the best of several passes; the first pass is
also reported as the cold one. Both wall time and CPU time of all involved processes are measured, since a shared
machine makes wall times longer.
Goals (quiet machine, two cores): ingest at least 250,000 rows/s without and 150,000 with the index, compact at least
500,000 rows/s and at most 9 bytes a row for `t`, `offered` and `max_units`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.keep import keep_results
from benchmarks.process_tree import cpu_s
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.ingest.collector import Collector
from pipeline.ingest.sources import files_stream, stream
from pipeline.ingest.writer import Writer, files_to_rows
from pipeline.maintenance.compaction import compact
from pipeline.spark.runner import OnSpark, results_of
from pipeline.spark.session import open_session
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.coverage import Expectation
from pipeline.storage.raw_table import write_raw_files
from pipeline.storage.tables import DataFile
from quotas.usage_record import Row as Position
from testkit.pipeline.usage_files import FIRST_BOOT_MS, SIZE_S, Load, write_usage

RESULTS: Final = Path(__file__).resolve().parent / "results"
GATEWAY_DAY_ROWS: Final = 86_400_000
_THREE: Final = ("t", "offered", "max_units")


@dataclass(slots=True)
class Row:
    """One measurement, in seconds."""

    what: str
    rows: int
    cold_wall_s: float
    wall_s: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Thousand rows per second of wall time, warm."""
        return self.rows / self.wall_s / 1e3

    @property
    def cpu_rate(self) -> float:
        """Thousand rows per second of CPU time, warm."""
        return self.rows / self.cpu_s / 1e3


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--entities", type=int, default=SIZE_S.entities)
    parser.add_argument("--seconds", type=int, default=SIZE_S.seconds, help="of usage")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        folder = Path(name)
        truth = write_usage(folder / "in", Load(entities=options.entities, seconds=options.seconds))
        file_bytes = sum(path.stat().st_size for path in (folder / "in").iterdir())
        rows = [
            *without_spark(folder, truth.rows, options.passes),
            *with_spark(folder, truth.rows, options.passes),
        ]
        sizes = column_bytes(CompactedDays.of(None, str(folder / "out")).paths)
    document = {
        "command": f"python -m benchmarks.pipeline --entities {options.entities} --seconds {options.seconds} "
        f"--passes {options.passes}",
        "started": started,
        "machine": machine | {"load_average_after": load_average()},
        "rows": truth.rows,
        "lines": truth.lines,
        "file_bytes": file_bytes,
        "results": [asdict(row) for row in rows],
        "compacted_bytes": dict(sizes.most_common()),
    }
    page = render(document, rows)
    keep_results(document, page, options.output, "pipeline")
    print(page)
    return 0


def without_spark(folder: Path, total: int, passes: int) -> list[Row]:
    """The same work by DuckDB, and by this project's own reading on one core."""
    files = sorted((folder / "in").iterdir())

    def plain() -> None:
        batches = (batch for file in files for batch in Collector().file(file.name, file.read_bytes()))
        shutil.rmtree(folder / "plain", ignore_errors=True)
        for _ in write_raw_files(batches, str(folder / "plain"), 0):
            pass

    def exploded() -> None:
        columns = "{gw: 'VARCHAR', boot: 'BIGINT', seq: 'BIGINT', ts: 'BIGINT', rows: 'VARCHAR[][]'}"
        cells = ", ".join(_cell(position) for position in Position)
        lines = f"read_json('{folder}/in/*.gz', format = 'newline_delimited', columns = {columns})"
        connection = duckdb.connect()
        connection.execute("set threads = 2")
        connection.execute(
            f"copy (select gw, boot, seq, ts, {cells} from "
            f"(select gw, boot, seq, ts, unnest(rows) as r from {lines})) "
            f"to '{folder}/duck.parquet' (format parquet, compression zstd)"
        )
        connection.close()

    return [
        _timed("plain Python, one core: lines to raw Parquet", total, plain, passes=2),
        _timed("DuckDB, two threads: lines to one Parquet row each", total, exploded, passes=passes),
    ]


def _cell(position: Position) -> str:
    text = f"r[{position + 1}]"
    return f"{text} as {position.name}" if position < Position.NODE else f"{text}::DOUBLE as {position.name}"


def with_spark(folder: Path, total: int, passes: int) -> list[Row]:
    """The jobs, in one session."""
    spark = open_session("benchmark", master="local[2]")
    out, source = str(folder / "out"), str(folder / "in")

    def ingest() -> None:
        shutil.rmtree(out, ignore_errors=True)
        writer = Writer(out, f"{out}/checkpoint", files_to_rows, OnSpark(spark))
        frame = files_stream(spark, source, max_files=400)
        stream(frame, writer, f"{out}/checkpoint")

    def without_index() -> None:
        bare = folder / "bare"
        shutil.rmtree(bare, ignore_errors=True)
        target = str(bare)

        def written(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | DataFile]:
            return write_raw_files(files_to_rows(batches, frozenset()), target, 0)

        files = spark.read.format("binaryFile").load(source).select("path", "content")
        assert list(results_of(files, written))

    def compaction() -> None:
        shutil.rmtree(f"{out}/compacted", ignore_errors=True)
        compact(OnSpark(spark), out, Expectation(int(time.time())))

    try:
        return [
            _timed("Spark: ingest, without stream and offset index", total, without_index, passes=passes),
            _timed("Spark: ingest, stream and offset index", total, ingest, passes=passes),
            _timed("Spark: compact", total, compaction, passes=passes),
        ]
    finally:
        spark.stop()


def _timed(what: str, rows: int, run: Callable[[], None], *, passes: int) -> Row:
    walls, cpus = [], []
    for _ in range(passes):
        wall, cpu = time.perf_counter(), cpu_s()
        run()
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_s() - cpu)
    row = Row(what, rows, walls[0], min(walls[1:]), min(cpus[1:]))
    print(f"{what}: {row.rate:.0f} k rows/s, {row.cpu_rate:.0f} k per CPU-s", file=sys.stderr, flush=True)
    return row


def column_bytes(paths: Iterable[str]) -> Counter[str]:
    """Compressed bytes of each column of a compacted day."""
    sizes: Counter[str] = Counter()
    for path in paths:
        with pq.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                for at in range(file.metadata.num_columns):
                    column = file.metadata.row_group(group).column(at)
                    sizes[column.path_in_schema.partition(".")[0]] += column.total_compressed_size
    return sizes


def render(document: dict[str, Any], rows: list[Row]) -> str:
    """The page."""
    machine, total = document["machine"], document["rows"]
    sizes = document["compacted_bytes"]
    three = sum(sizes[name] for name in _THREE) / total
    by_name = {row.what: row for row in rows}
    ingest, compaction = by_name["Spark: ingest, stream and offset index"], by_name["Spark: compact"]
    day_min = [GATEWAY_DAY_ROWS / (row.cpu_rate * 1e3 * 2) / 60 for row in (ingest, compaction)]
    since = datetime.fromtimestamp(FIRST_BOOT_MS / 1000, UTC).date()
    lines = [
        "# From usage files to compacted days",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, Python {machine['python']}; load average before "
        f"{machine['load_average_before']}, after {machine['load_average_after']}: the machine did other things too, "
        "so CPU time is the better measure (two cores give twice the rate of its column, at best).",
        "",
        f"{document['lines']:,} lines of two gateways with {total:,} rows ({since}), "
        f"{document['file_bytes'] / total:.1f} bytes a row in the files.",
        "",
        "| what | k rows/s, first pass | k rows/s, warm | k rows per CPU-second, warm |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.rows / row.cold_wall_s / 1e3:,.0f} | {row.rate:,.0f} | {row.cpu_rate:,.0f} |"
        for row in rows
    ]
    widest = ", ".join(f"{name} {size / total:.2f}" for name, size in list(sizes.items())[:10])
    lines += [
        "",
        f"Compacted: {three:.1f} bytes a row for t, offered and max_units; {sum(sizes.values()) / total:.1f} for all "
        f"columns (bytes a row: {widest}).",
        "",
        "One gateway-day of 1,000 clients active in every second (86.4 M rows), computed from CPU times on two "
        f"cores: ingest {day_min[0]:.1f} min, compact {day_min[1]:.1f} min.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
