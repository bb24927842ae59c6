"""Both ways of reading packed days give every job the same rows."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import report
from pipeline.backtest import STATS, _stats_of
from pipeline.candidates import Candidates
from pipeline.entity_days import Scope
from pipeline.layout import MANIFEST
from pipeline.packed_days import PackedDays
from pipeline.recommend import find_needs
from pipeline.replay import ReplaySettings
from pipeline.simulate import simulate
from quotas.usage_record import UsageApi
from tests.support.packed_days import DAY, write_packed

pytestmark = pytest.mark.spark

NEXT = DAY + datetime.timedelta(days=1)


def busy_days() -> list[dict[str, Any]]:
    """Two days of clients on several listeners, brokers and gateways, some limited and muted."""
    rng = np.random.default_rng(7)
    rows: list[dict[str, Any]] = []
    for number in range(24):
        for date in (DAY, NEXT):
            for place in range(int(rng.integers(1, 4))):
                seconds = int(rng.integers(1, 200))
                units = rng.integers(1, 5_000, seconds).astype(float)
                row = {
                    "date": date,
                    "client_id": f"c{number}",
                    "api": ("produce", "fetch", "request", "connect")[number % 4],
                    "node": place,
                    "listener": "one" if place % 2 else "two",
                    "gw": f"gw-{place // 2}",
                    "t": sorted(rng.choice(3_000, seconds, replace=False).tolist()),
                    "offered": units.tolist(),
                    "requests": rng.integers(1, 20, seconds).tolist(),
                    "delayed": rng.integers(0, 2, seconds).tolist(),
                    "throttle_ms": rng.integers(0, 900, seconds).tolist(),
                    "muted_ms": rng.integers(0, 500, seconds).tolist(),
                    "censored": (rng.random(seconds) < 0.3).tolist(),
                }
                if number % 3:
                    row |= {"quota": [float(number)] * seconds, "level_end": (units / 1_000).tolist()}
                rows.append(row)
    for date in (DAY, NEXT):
        moments = sorted(rng.choice(9_000, 40, replace=False).tolist())
        rows.append(
            {
                "date": date,
                "api": "mutation",
                "t": sorted({at // 1_000 for at in moments}),
                "e_ms": moments,
                "e_units": rng.integers(1, 9, 40).tolist(),
                "e_strict": (rng.random(40) < 0.5).tolist(),
                "e_attempt": rng.integers(1, 3, 40).tolist(),
            }
        )
    return rows


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> tuple[PackedDays, PackedDays]:
    """The same days as workers read them, and as Spark does."""
    write_packed(tmp_path / "files", busy_days())
    write_packed(tmp_path / "spark", busy_days(), by_spark=True)
    ours, sparks = (PackedDays.of(spark, str(tmp_path / name)) for name in ("files", "spark"))
    assert (ours.here, sparks.here) == (True, False)
    return ours, sparks


def same(one: Any, other: Any) -> int:
    """Holds two DataFrames against each other; how many rows they have."""
    ours, theirs = (sorted(map(repr, frame.collect())) for frame in (one, other))
    assert ours == theirs
    return len(ours)


@pytest.mark.parametrize("scope", Scope)
def test_every_job_gets_the_same_rows_from_files_and_from_spark(
    both: tuple[PackedDays, PackedDays], scope: Scope
) -> None:
    ours, sparks = both
    candidates = Candidates(multiples=(0.5, 2.0, 20.0))
    rows = same(*(simulate(days, candidates, ReplaySettings(), scope=scope) for days in both))
    assert rows > 3 * 24 * 2
    needs = [
        frame.where("steps is null")
        for frame in (find_needs(days, 0.01, 11, 1_000, scope=scope) for days in both)
    ]
    assert same(*needs) == rows // 3
    same(*(days.since(NEXT.isoformat()).map_entities(_stats_of(0.01), STATS, scope=scope) for days in both))
    assert ours.since(NEXT.isoformat()).days == ours.days[1:]
    assert sparks.frame().count() == ours.frame().count()


def test_the_report_is_the_same_from_files_and_from_spark(both: tuple[PackedDays, PackedDays]) -> None:
    ours, sparks = (report.report_of(report.summaries(days).toArrow(), days.days) for days in both)
    for one, other in zip(ours.clients, sparks.clients, strict=True):
        assert one == pytest.approx(other)
    assert len(ours.clients) == 25
    assert ours.use.keys() == sparks.use.keys()
    for api, use in ours.use.items():
        assert use.offered.tolist() == pytest.approx(sparks.use[api].offered.tolist())
        assert use.throttle_ms.sum() == sum(client["throttle_ms"] for client in ours.of_api(api))
        for client in ours.of_api(api)[:6]:
            key = (client["user"], client["client_id"], api)
            assert ours.use_of[key].offered.sum() == client["offered"]


def test_days_of_an_older_release_are_read_by_spark_together_with_newer_ones(
    spark: Any, tmp_path: Path
) -> None:
    write_packed(tmp_path, busy_days())
    days = PackedDays.of(spark, str(tmp_path))
    expected = simulate(days, Candidates(values=(100.0,)), ReplaySettings()).collect()
    manifest = Path(days.days[0].path, MANIFEST)
    told = json.loads(manifest.read_text())
    del told["buckets"]
    manifest.write_text(json.dumps(told))
    mixed = PackedDays.of(spark, str(tmp_path))
    assert not mixed.here
    found = simulate(mixed, Candidates(values=(100.0,)), ReplaySettings()).collect()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


def test_only_the_apis_that_are_asked_for_are_read(both: tuple[PackedDays, PackedDays]) -> None:
    for days in both:
        found = simulate(
            days, Candidates(values=(1.0,)), ReplaySettings(), apis=[UsageApi.MUTATION]
        ).collect()
        assert {row["api"] for row in found} == {"mutation"}
        assert len(found) == 2


def test_without_a_packed_day_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="sluice-pipeline pack"):
        PackedDays.of(None, str(tmp_path))
