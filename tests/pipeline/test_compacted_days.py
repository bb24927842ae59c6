"""Both ways of reading compacted days give every job the same rows."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.client_tables.rows import CLIENT_TABLES, client_rows
from pipeline.client_tables.use import use_of_day
from pipeline.replay.candidates import Candidates
from pipeline.replay.dispatch import ReplaySettings
from pipeline.replay.simulation import simulate
from pipeline.report import report
from pipeline.storage.compacted_days import CompactedDays
from pipeline.storage.entity_days import ARRAYS, Scope, entity_days
from pipeline.storage.layout import read_compacted
from pipeline.storage.store import MANIFEST
from quotas.usage_record import UsageApi
from testkit.pipeline.compacted_days import DAY, write_compacted

pytestmark = pytest.mark.spark

NEXT = DAY + datetime.timedelta(days=1)
CLIENTS = 12


def busy_days() -> list[dict[str, Any]]:
    """Two days of clients on several listeners, brokers and gateways, some limited and muted."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    for number in range(CLIENTS):
        for date in (DAY, NEXT):
            for place in range(int(rng.integers(1, 4))):
                seconds = int(rng.integers(1, 80))
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


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> tuple[CompactedDays, CompactedDays]:
    """The same days as workers read them, and as Spark does."""
    write_compacted(tmp_path / "files", busy_days())
    write_compacted(tmp_path / "spark", busy_days(), by_spark=True)
    ours, sparks = (CompactedDays.of(spark, str(tmp_path / name)) for name in ("files", "spark"))
    assert (ours.here, sparks.here) == (True, False)
    return ours, sparks


def clients_of(days: CompactedDays) -> Any:
    """Clients' days and hours; what all used together comes from each worker."""
    rows = days.map_entities(client_rows, CLIENT_TABLES, arrays=ARRAYS)
    return rows.where("table != 'total'")


def rows_of(frame: Any) -> list[str]:
    return sorted(map(repr, frame.collect()))


def test_every_job_gets_the_same_rows_from_files_and_from_spark(both: tuple[CompactedDays, CompactedDays]) -> None:
    candidates = Candidates(multiples=(0.5, 2.0, 20.0))
    for scope in Scope:
        ours, sparks = (rows_of(simulate(days, candidates, ReplaySettings(), scope=scope)) for days in both)
        assert ours == sparks
        assert len(ours) > 3 * CLIENTS * 2
    ours, sparks = (rows_of(clients_of(days)) for days in both)
    assert ours == sparks
    late = [replace(days, days=days.days[1:]) for days in both]
    mutations = {"apis": [UsageApi.MUTATION]}
    (ours,), (sparks,) = (
        rows_of(simulate(days, Candidates(values=(1.0,)), ReplaySettings(), **mutations)) for days in late
    )
    assert ours == sparks


def test_the_report_is_the_same_from_files_and_from_spark(both: tuple[CompactedDays, CompactedDays]) -> None:
    ours, sparks = (
        report.report_of([use_of_day(replace(days, days=(day,))).toArrow() for day in days.days], days.days)
        for days in both
    )
    for one, other in zip(ours.clients, sparks.clients, strict=True):
        assert one == pytest.approx(other)
    assert len(ours.clients) == CLIENTS + 1
    assert ours.use.keys() == sparks.use.keys()
    for api, use in ours.use.items():
        assert use.offered.tolist() == pytest.approx(sparks.use[api].offered.tolist())
        assert use.throttle_ms.sum() == sum(client["throttle_ms"] for client in ours.of_api(api))
        for client in ours.of_api(api)[:6]:
            key = (client["user"], client["client_id"], api)
            assert ours.use_of[key].offered.sum() == client["offered"]


def test_a_day_of_older_release_is_read_by_spark_together_with_newer_ones(spark: Any, tmp_path: Path) -> None:
    write_compacted(tmp_path, [{"t": [1], "client_id": name, "date": day} for name in "abc" for day in (DAY, NEXT)])
    days = CompactedDays.of(spark, str(tmp_path))
    manifest = Path(days.days[0].path, MANIFEST)
    content = json.loads(manifest.read_text())
    del content["buckets"]
    manifest.write_text(json.dumps(content))
    mixed = CompactedDays.of(spark, str(tmp_path))
    assert (days.here, mixed.here) == (True, False)
    rates = [rows_of(clients_of(each)) for each in (days, mixed)]
    assert rates[0] == rates[1]
    assert len(rates[0]) == 12


def test_rows_that_are_apart_already_are_not_moved(spark: Any, tmp_path: Path) -> None:
    write_compacted(tmp_path, [{"t": [1], "client_id": name} for name in "abc"])
    days = entity_days(read_compacted(spark, str(tmp_path)), Scope.GATEWAY)
    assert "Exchange" not in days._jdf.queryExecution().toString()
    assert days.count() == 3


def test_without_a_compacted_day_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run `sluice-pipeline compact` first"):
        CompactedDays.of(None, str(tmp_path))
