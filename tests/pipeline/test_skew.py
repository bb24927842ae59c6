"""A client that many gateways share is divided: no task holds more than a stated number of recorded seconds."""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.maintenance import compaction, dividing
from pipeline.maintenance.compaction import compact
from pipeline.replay.demand import demands
from pipeline.storage import joining
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.compacted_files import FILE_ORDER
from pipeline.storage.entity_days import ARRAYS, ENTITY, arrays_of
from pipeline.storage.files import parquet_reader
from pipeline.storage.joining import counted_together, join_chunks
from quotas.usage_record import FLEET
from testkit.pipeline.compacted_days import compacted_rows
from testkit.pipeline.local_session import LocalSession, ingest_files
from testkit.pipeline.usage_lines import LONG_AFTER, event, line, place, row

GATEWAYS, SECONDS = 30, 40
ONE = f"{FLEET}cluster/shares"


def seconds_of(table: Any) -> int:
    return int(pc.sum(pc.list_value_length(table.column("t"))).as_py() or 0)


def compacted(out: Path) -> list[dict[str, Any]]:
    """The rows of the only day, in the order of its files and buckets."""
    found: list[dict[str, Any]] = []
    for path in sorted(CompactedDays.of(LocalSession(), str(out)).paths):
        with parquet_reader(path) as reader:
            found += reader.read().to_pylist()
    return found


@pytest.mark.slow
def test_a_bucket_is_compacted_in_parts_to_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    files = []
    for gateway in chance.sample(range(GATEWAYS), GATEWAYS):
        for part in range(2):
            lines = [
                line(
                    seq,
                    row("shared", chance.randrange(1_000), node=seq % 2),
                    row("admin", 2, api="mutation", node=-1),
                    *([row("rare", 5)] if gateway == 3 else []),
                    events=(event("admin", units=seq),),
                    gw=f"g{gateway:02}",
                )
                for seq in range(part * SECONDS // 2, (part + 1) * SECONDS // 2)
            ]
            files.append(place(tmp_path / "in", f"{gateway}-{part}.gz", *lines))
    out = str(tmp_path / "out")
    for batch in (files[:20], files[20:]):
        ingest_files(out, tmp_path / "checkpoint", *batch)
    once = compact(LocalSession(), out, LONG_AFTER)["2026-09-28"]
    whole = compacted(tmp_path / "out")

    held: list[int] = []
    divided = dividing.divided

    def watched(read: dividing.Read, most: int) -> Any:
        for table in divided(read, most):
            held.append(seconds_of(table))
            yield table

    monkeypatch.setattr(compaction, "divided", watched)
    monkeypatch.setattr(compaction, "MOST_SECONDS", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    parts = compact(LocalSession(), out, LONG_AFTER, date="all")["2026-09-28"]

    assert (parts.rows, parts.keys, parts.buckets) == (once.rows, once.keys, once.buckets)
    assert compacted(tmp_path / "out") == whole
    keys = [tuple(each[name] for name in ("bucket", *FILE_ORDER)) for each in whole]
    assert keys == sorted(keys)
    # Of a client's day at one gateway there are at most 40.
    assert max(held) <= 100
    assert sum(held) == once.rows
    assert len(held) > GATEWAYS * SECONDS // 100
    assert list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize("fleet", [GATEWAYS, 20, 0])
def test_gateways_that_count_together_are_added_up_as_they_come(fleet: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(fleet)
    rows = []
    for name in ("a", "shared", "z"):
        for gateway in range(GATEWAYS if name == "shared" else 2):
            times = np.sort(rng.choice(60, SECONDS, replace=False))
            rows.append(
                {
                    "user": "u",
                    "client_id": name,
                    "api": "produce",
                    "gw": f"g{gateway:02}",
                    "t": times.tolist(),
                    "offered": rng.integers(1, 1_000, SECONDS).astype(float).tolist(),
                    "muted_ms": rng.integers(0, 500, SECONDS).tolist(),
                    "censored": (rng.random(SECONDS) < 0.3).tolist(),
                    "connections": rng.integers(0, 2, SECONDS).tolist(),
                    "first_ms": rng.integers(0, 900, SECONDS).tolist(),
                    "quota": [None if each < 0.5 else each for each in rng.random(SECONDS).tolist()],
                    "e_ms": [int(rng.integers(0, 60_000))],
                    "e_units": [3],
                }
            )
    # Connections count at each gateway.
    rows.sort(key=lambda each: (each["client_id"], each["gw"]))
    fleets = {f"g{gateway:02}": ONE for gateway in range(fleet)}
    held: list[int] = []
    once_per_second = joining._once_per_second

    def watched(table: pa.Table, known: Any) -> pa.Table:
        held.append(seconds_of(table))
        return once_per_second(table, known)

    monkeypatch.setattr(joining, "_once_per_second", watched)
    arrays = arrays_of(ARRAYS)
    names = [*ENTITY, *(name for own in arrays.values() for name in own)]

    def found(most: int) -> list[dict[str, Any]]:
        batches = [compacted_rows(rows[at : at + 3]).select(names) for at in range(0, len(rows), 3)]
        joined = list(join_chunks(counted_together(batches, fleets, most), ENTITY, arrays))
        (batch,) = pa.Table.from_batches(joined).combine_chunks().to_batches()
        (demand,) = demands(batch)
        series = []
        for at in range(len(demand)):
            begin, end = demand.offsets[at], demand.offsets[at + 1]
            values = {
                name: np.nan_to_num(getattr(demand, name)[begin:end], nan=-1.0).tolist()
                for name in ("seconds", "units", "requests", "max_units", "connections", "first_ms", "muted_ms")
            }
            values |= {
                name: np.nan_to_num(getattr(demand, name)[begin:end], nan=-1.0).tolist()
                for name in ("censored", "quota", "observed")
            }
            values["told"] = {name: each[begin:end].tolist() for name, each in demand.told.items()}
            values["events"] = sorted(batch.column("e_ms")[at].as_py())
            series.append({**demand.names.slice(at, 1).to_pylist()[0], **values})
        return sorted(series, key=lambda each: (each["client_id"], each["gw"]))

    whole = found(10**9)
    assert held == []
    parts = found(200)
    for one, other in zip(parts, whole, strict=True):
        assert {name: value for name, value in one.items() if value != other[name]} == {}
    # What was brought together, one more batch, and what is alone at the end of it.
    assert len(held) > 1
    assert max(held) <= 200 + 3 * SECONDS + 60
    assert sum(each["client_id"] == "shared" for each in whole) == (1 if fleet else 0) + GATEWAYS - fleet
