"""Kill ingests with a batch in flight, and count what came of it in two engines."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from pipeline.storage.index_files import read_offset_index
from pipeline.storage.layout import committed_batches

_TIMEOUT_S: Final = 300
KILLED: Final = -signal.SIGKILL


@dataclass(frozen=True, slots=True)
class Count:
    """What an engine finds in the raw table."""

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
        """For a table of results."""
        return asdict(self)


def ingest(arguments: Sequence[str], log: Path, *, point: str = "none", batch: int = 1) -> int:
    """Runs an ingest in processes of its own.

    Args:
        arguments: of the job.
        log: what it says is added here.
        point: where to kill it; see `testkit.pipeline.victim`.
        batch: in which of the batches it writes, 1 is the first.

    Returns:
        Its exit code, negative for a signal.
    """
    command = [sys.executable, "-m", "testkit.pipeline.victim", point, str(batch), *arguments]
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
    """Gives files random times: Spark reads the oldest first."""
    chance = random.Random(seed)
    for path in sorted(folder.iterdir()):
        when = 1_700_000_000 + chance.randrange(10_000_000)
        os.utime(path, (when, when))


_KEY: Final = "gw, boot, listener, user, client_id, api, node"


def count_by_duckdb(out: Path) -> Count:
    """What DuckDB sees in the files, without asking which batches count."""
    raw = f"read_parquet('{out}/raw/batch=*/*.parquet', hive_partitioning = false)"
    connection = duckdb.connect()
    try:
        return _count(lambda text: connection.execute(text).fetchall()[0], raw, "len", "unnest")
    finally:
        connection.close()


def count_by_spark(spark: Any, out: Path) -> Count:
    """What Spark sees in the batches that count."""
    paths = [batch.path for batch in committed_batches(str(out))]
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


def reported_missing(out: Path) -> set[tuple[str, int, int]]:
    """Every line that the offset index says is missing: (gateway, boot, seq)."""
    gaps = read_offset_index(str(out)).gaps()
    return {(gap.gw, gap.boot, seq) for gap in gaps for seq in range(gap.first, gap.last + 1)}


def unreadable_files(out: Path) -> int:
    """Parquet files that another engine would stumble over."""
    return sum(not _readable(path) for path in (out / "raw").glob("batch=*/*.parquet"))


def _readable(path: Path) -> bool:
    try:
        duckdb.sql(f"select count(*) from '{path}'").fetchall()
    except duckdb.Error:
        return False
    return True


def log_tail(log: Path, lines: int = 15) -> Iterable[str]:
    """The end of what ingests said."""
    return log.read_text(errors="replace").splitlines()[-lines:]
