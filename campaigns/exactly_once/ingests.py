"""Kills ingests in the middle of a batch, and counts the result in two engines."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
from deltalake import DeltaTable

from pipeline.storage.files import is_local, read_bytes
from pipeline.storage.raw_table import raw_table, read_raw_state

_TIMEOUT_S: Final = 300
KILLED: Final = -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Count:
    """An engine's counts of the raw table."""

    rows: int
    """Elements of the arrays, over all raw rows."""
    units: int
    """Sum of offered."""
    events: int
    lines: int
    duplicated_rows: int
    """Rows of a client in a line beyond the first."""
    duplicated_lines: int

    def as_row(self) -> dict[str, int]:
        """The counts as a row of results."""
        return asdict(self)


def ingest(arguments: Sequence[str], log: Path, *, point: str = "none", batch: int = 1) -> int:
    """Run an ingest in separate processes.

    Args:
        arguments: arguments of the job.
        log: file to which its output is appended.
        point: where to kill it; see `campaigns.exactly_once.victim`.
        batch: in which of its written batches, from 1 on.

    Returns:
        Its exit code, negative for a signal.
    """
    command = [sys.executable, "-m", "campaigns.exactly_once.victim", point, str(batch), *arguments]
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return process.wait(_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def shuffle_arrival(folder: Path, seed: int) -> None:
    """Give files random times, because Spark reads the oldest first."""
    chance = random.Random(seed)
    for path in sorted(folder.iterdir()):
        when = 1_700_000_000 + chance.randrange(10_000_000)
        os.utime(path, (when, when))


_KEY: Final = "gw, boot, listener, user, client_id, api, node"


def count_by_duckdb(out: Path | str) -> Count:
    """DuckDB's counts, with its usual way to read a Delta table."""
    connection = duckdb.connect()
    try:
        connection.register("counted", DeltaTable(f"{out}/raw").to_pyarrow_dataset())
        return _count(lambda text: connection.execute(text).fetchall()[0], "counted", "len", "unnest")
    finally:
        connection.close()


def count_by_spark(spark: Any, out: Path | str) -> Count:
    """Spark's counts of the table's current files. Remote files are copied: Spark has no connector for them here."""
    table = raw_table(str(out))
    files = table.read().files
    with tempfile.TemporaryDirectory(prefix="counted-") as folder:
        if not is_local(table.folder):
            for file in files:
                target = Path(folder, file.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(read_bytes(table.path(file)) or b"")
        paths = table.paths(files) if is_local(table.folder) else [f"{folder}/{file.path}" for file in files]
        return _spark_count(spark, paths)


def _spark_count(spark: Any, paths: list[str]) -> Count:
    spark.read.parquet(*paths).createOrReplaceTempView("counted")
    return _count(lambda text: tuple(spark.sql(text).first()), "counted", "size", "explode")


def _count(ask: Any, raw: str, length: str, unnest: str) -> Count:
    rows = ask(f"select coalesce(sum({length}(seq)), 0) from {raw} where kind = 'rows'")[0]
    events = ask(f"select coalesce(sum({length}(e_ms)), 0) from {raw} where kind = 'events'")[0]
    lines = ask(f"select coalesce(sum({length}(seq)), 0) from {raw} where kind = 'lines'")[0]
    units = ask(
        f"select coalesce(sum(o), 0) from (select {unnest}(offered) as o from {raw} where kind = 'rows') as f"
    )[0]
    distinct_rows = ask(
        f"select count(*) from (select distinct {_KEY}, n from "
        f"(select {_KEY}, {unnest}(seq) as n from {raw} where kind = 'rows') as f) as d"
    )[0]
    distinct_lines = ask(
        "select count(*) from (select distinct gw, boot, n from "
        f"(select gw, boot, {unnest}(seq) as n from {raw} where kind = 'lines') as f) as d"
    )[0]
    return Count(
        rows=int(rows),
        units=int(units),
        events=int(events),
        lines=int(lines),
        duplicated_rows=int(rows) - int(distinct_rows),
        duplicated_lines=int(lines) - int(distinct_lines),
    )


def reported_missing(out: Path | str) -> set[tuple[str, int, int]]:
    """Every line that the offset index reports as missing: (gateway, boot, seq)."""
    gaps = read_raw_state(str(out)).index.gaps()
    return {(gap.gw, gap.boot, seq) for gap in gaps for seq in range(gap.first, gap.last + 1)}


def log_tail(log: Path, lines: int = 15) -> Iterable[str]:
    """The end of the ingests' output."""
    return log.read_text(errors="replace").splitlines()[-lines:]
