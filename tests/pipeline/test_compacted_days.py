"""Compacted days give every job the same rows, however they are divided into buckets, files and row groups."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.client_tables.making import make_missing
from pipeline.client_tables.profile import CLIENT
from pipeline.client_tables.rows import CLIENT_TABLES, client_rows
from pipeline.errors import NotYetCompleteError
from pipeline.replay.candidates import Candidates
from pipeline.replay.dispatch import ReplaySettings
from pipeline.replay.simulation import simulate
from pipeline.report import report
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.entity_days import ARRAYS, Scope
from pipeline.storage.layout import CompactedDay, bucket_of
from quotas.usage_record import UsageApi
from testkit.pipeline.compacted_days import DAY, compacted_rows, publish_day
from testkit.pipeline.local_session import LocalSession
from testkit.pipeline.usage_lines import LONG_AFTER

NEXT = DAY + datetime.timedelta(days=1)
CLIENTS = 8


def busy_days() -> list[dict[str, Any]]:
    """Two days of clients on several listeners, brokers and gateways, some limited and muted."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    for number in range(CLIENTS):
        for date in (DAY, NEXT):
            for place in range(int(rng.integers(1, 4))):
                seconds = int(rng.integers(1, 30))
                units = rng.integers(1, 5_000, seconds).astype(float)
                row = {
                    "date": date, "client_id": f"c{number}",
                    "api": ("produce", "fetch", "request", "connect")[number % 4], "node": place,
                    "listener": "one" if place % 2 else "two", "gw": f"gw-{place // 2}",
                    "t": sorted(rng.choice(3_000, seconds, replace=False).tolist()),
                    "offered": units.tolist(), "requests": rng.integers(1, 20, seconds).tolist(),
                    "delayed": rng.integers(0, 2, seconds).tolist(),
                    "throttle_ms": rng.integers(0, 900, seconds).tolist(),
                    "muted_ms": rng.integers(0, 500, seconds).tolist(),
                    "censored": (rng.random(seconds) < 0.3).tolist(),
                }  # fmt: skip
                if number % 3:
                    row |= {"quota": [float(number)] * seconds, "level_end": (units / 1_000).tolist()}
                rows.append(row)
    for date in (DAY, NEXT):
        moments = sorted(rng.choice(9_000, 40, replace=False).tolist())
        rows.append(
            {
                "date": date, "api": "mutation", "t": sorted({at // 1_000 for at in moments}),
                "e_ms": moments, "e_units": rng.integers(1, 9, 40).tolist(),
                "e_strict": (rng.random(40) < 0.5).tolist(), "e_attempt": rng.integers(1, 3, 40).tolist(),
            }
        )  # fmt: skip
    return rows


def rows_of(frame: Any) -> list[str]:
    return sorted(repr(row) for row in frame.toArrow().to_pylist() if row.get("table") != "total")


@pytest.mark.slow
def test_however_a_day_is_divided_every_job_gets_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = LocalSession(2)
    table = pa.Table.from_batches([compacted_rows(busy_days())])
    found = []
    for buckets, pieces in ((32, 1), (1024, 3)):
        out = str(tmp_path / str(buckets))
        monkeypatch.setattr("pipeline.storage.compacted_files.ELEMENTS_PER_GROUP", 200 * pieces)
        for date in (DAY, NEXT):
            of_day = table.filter(pc.equal(table.column("date"), pa.scalar(date)))
            # All of a bucket of a client stays in one file, as `compact` writes it.
            number = [bucket_of(*each) % pieces for each in zip(*(of_day.column(n).to_pylist() for n in CLIENT))]
            parts = [of_day.filter(pa.array([each == part for each in number])) for part in range(pieces)]
            publish_day(out, CompactedDay(date.isoformat(), buckets=buckets), [part for part in parts if len(part)])
        days = CompactedDays.of(session, out)
        assert all(day.several_brokers for day in days.days)
        candidates = Candidates(multiples=(0.5, 2.0, 20.0))
        rows = [rows_of(simulate(days, candidates, ReplaySettings(), scope=scope)) for scope in Scope]
        assert len(rows[0]) > 3 * CLIENTS * 2
        clients = days.map_entities(client_rows, CLIENT_TABLES, arrays=ARRAYS)
        rows.append(rows_of(clients))
        mutations = {"apis": [UsageApi.MUTATION]}
        rows.append(rows_of(simulate(days, Candidates(values=(1.0,)), ReplaySettings(), **mutations)))
        make_missing(session, out)
        found.append((rows, report.make(session, out, LONG_AFTER)))
    (ours, one), (others, other) = found
    assert ours == others
    assert len(one.clients) == CLIENTS + 1
    for mine, theirs in zip(one.clients, other.clients, strict=True):
        assert mine == pytest.approx(theirs)
    for api, use in one.use.items():
        assert use.offered.tolist() == pytest.approx(other.use[api].offered.tolist())
        assert use.throttle_ms.sum() == sum(client["throttle_ms"] for client in one.of_api(api))
        for client in one.of_api(api)[:6]:
            key = (client["user"], client["client_id"], api)
            assert one.use_of[key].offered.sum() == client["offered"]


def test_without_a_compacted_day_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(NotYetCompleteError, match="run `sluice-pipeline compact` first"):
        CompactedDays.of(None, str(tmp_path))
