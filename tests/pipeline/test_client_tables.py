"""A day of a client in numbers: what it used, what it required, and what would have waited under any quota."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client_tables.making import make_missing
from pipeline.client_tables.rows import BURSTS_S, TARGETS, required_column
from pipeline.client_tables.tables import clients_table, find_clients
from pipeline.errors import JobError
from pipeline.recommend.required_rates import ClientDays, Windows, client_day
from pipeline.recommend.waiting import kept_burst_s, kept_target, shares_waiting
from pipeline.replay.demand import demands
from pipeline.replay.kernels.deferral import deferred, required_rates_on
from pipeline.spark.runner import InProcess
from pipeline.storage.compacted_days import published_days
from pipeline.storage.entity_days import Scope
from quotas.usage_record import UsageApi
from testkit.pipeline.client_days import client_table, write_client_tables
from testkit.pipeline.compacted_days import DAY, compacted_rows, write_compacted
from testkit.pipeline.local_session import LocalSession

NEXT = DAY + datetime.timedelta(days=1)


def test_a_day_and_its_hours_are_told_in_numbers() -> None:
    told = {
        "delayed": [0, 1, 1, 0], "throttle_ms": [0, 40, 2, 0], "muted_ms": [0, 40, 0, 0], "beside_ms": [0, 30, 1, 0],
    }  # fmt: skip
    rows = [
        {"t": [0, 1, 2, 7_270], "offered": [10.0, 20.0, 30.0, 60.0], "censored": [False, True, False, False], **told},
        {"client_id": "idle", "t": [], "offered": []},
        {"api": "mutation", "t": [5], "offered": [9.0], "e_ms": [5_000, 5_900], "e_units": [4, 5]},
    ]
    (row, mutation) = client_table(rows).to_pylist()
    (demand, _) = demands(compacted_rows(rows))
    assert [row[name] for name in ("units", "mean", "active_s", "requests")] == [120.0, 120 / 86_400, 4, 4]
    assert [row[name] for name in ("peak_1s", "peak_10s", "peak_60s")] == [60.0, 6.0, 1.0]
    assert [row[name] for name in ("delayed", "throttle_ms", "muted_ms", "censored_s")] == [2, 42, 40, 1]
    assert row["beside_ms"] == 31
    assert row["p99_active"] == np.percentile([10, 20, 30, 60], 99)
    assert row["p90_minute"] == 0.0
    required = required_rates_on(demand.by_second(), TARGETS, [1.0, 10.0, 60.0, 1800.0])[0]
    assert [row[required_column(burst)] for burst in (1, 10, 60, 1800)] == required.tolist()
    # Mutations one by one; a bucket of Kafka's has eleven seconds.
    assert (row[required_column(11)], mutation["peak_1s"]) == (None, 9.0)
    assert len(mutation[required_column(11)]) == len(TARGETS)
    hours = client_table(rows, "client_hour").to_pylist()
    assert [(hour["api"], hour["hour"], hour["units"]) for hour in hours] == [
        ("produce", 0, 60.0), ("produce", 2, 60.0), ("mutation", 0, 9.0),
    ]  # fmt: skip
    assert [hours[0][name] for name in ("peak_1s", "peak_10s", "peak_60s")] == [30.0, 6.0, 1.0]
    assert [hours[0][name] for name in ("delayed", "throttle_ms", "active_s", "censored_s")] == [2, 42, 3, 1]
    (total, _) = client_table(rows, "total").to_pylist()
    assert (total["steps"][0], sum(total["steps"])) == (60.0, 120.0)


def test_brokers_of_a_second_are_one_second() -> None:
    two = {"t": [5, 5, 6], "offered": [1.0, 2.0, 4.0], "requests": [1, 2, 3], "max_units": [1.0, 1.5, 2.0]}
    other = {"client_id": "d", "t": [6, 6], "quota": [7.0, 8.0], "muted_ms": [900, 300]}
    (demand,) = demands(compacted_rows([two, other]))
    assert demand.seconds.tolist() == [5, 6, 6]
    assert demand.units.tolist() == [3.0, 4.0, 2.0]
    assert (demand.requests.tolist(), demand.max_units.tolist()) == ([3, 3, 2], [1.5, 2.0, 1.0])
    assert (demand.offsets.tolist(), demand.quota.tolist()[2], demand.muted_ms.tolist()[2]) == ([0, 2, 3], 8.0, 900)


whole = st.lists(st.tuples(st.integers(0, 900), st.integers(1, 1_000)), min_size=2, max_size=40)


@pytest.mark.slow
@given(whole, st.lists(st.floats(0.001, 50.0), min_size=1, max_size=9))
def test_a_share_lies_between_those_whose_rates_are_known(records: list[tuple[int, int]], rates: list[float]) -> None:
    at = np.cumsum([gap + 1 for gap, _ in records]).tolist()
    rows = [{"t": at, "offered": [float(units) for _, units in records]}]
    (demand,) = demands(compacted_rows(rows))
    required = np.array(client_table(rows).column(required_column(10)).to_pylist())
    ragged = demand.by_second()
    quotas = np.sort(np.array(rates) * ragged.total_units()[0] / (at[-1] - at[0]))
    shares = shares_waiting(required, quotas[None, :])[0]
    exact = deferred(ragged, quotas, burst_s=10.0).throttled_units[0] / ragged.total_units()[0]
    assert (np.diff(shares) <= 1e-12).all()
    for share, real, quota in zip(shares.tolist(), exact.tolist(), quotas.tolist()):
        # The two shares that the quota's lies between, by the rates they require.
        below = max([t for t, rate in zip(TARGETS, required[0]) if quota < rate], default=0.0)
        above = min([t for t, rate in zip(TARGETS, required[0]) if quota >= rate], default=1.0)
        assert below <= share <= above + 1e-12
        assert real <= above + 1e-9
    np.testing.assert_allclose(shares_waiting(required, required)[0], TARGETS, atol=1e-9)


def test_a_share_that_is_asked_for_and_a_burst_are_never_taken_for_more() -> None:
    assert [TARGETS[kept_target(asked)] for asked in (0.0, 0.0099, 0.01, 0.05, 0.9)] == [0.0, 0.003, 0.01, 0.03, 0.6]
    assert [kept_burst_s(UsageApi.PRODUCE, burst) for burst in (10.0, 11.0, 59.0)] == [10, 10, 10]
    assert kept_burst_s(UsageApi.MUTATION, 11.0) == 11
    with pytest.raises(JobError, match=r"0.5 s of use pass at once: client_day has .* 1, 10, 11, 60, 1800 s"):
        Windows(2, 500).column(UsageApi.PRODUCE)
    assert BURSTS_S[0] == 1


@pytest.mark.slow
def test_compact_makes_the_tables_of_each_day_once_and_again_when_the_day_is_another(tmp_path: Path) -> None:
    rows = [
        {"date": date, "client_id": name, "node": node, "t": [1, 2], "offered": [float(node), 5.0]}
        for date in (DAY, NEXT)
        for name, node in (("one", 1), ("one", 2), ("two", 1))
        if date == DAY or name == "two"
    ]
    write_compacted(tmp_path, rows)
    out, days = str(tmp_path), published_days(str(tmp_path))
    with pytest.raises(JobError, match=f"{DAY}, {NEXT}: no tables of clients yet, run `sluice-pipeline compact`"):
        find_clients(out, days, "client_day")
    assert make_missing(LocalSession(), out) == [str(DAY), str(NEXT)]
    columns = ["date", "client_id", "node", "units"]

    def found(scope: Scope) -> list[tuple[Any, ...]]:
        return sorted(
            tuple(row.values())
            for table in find_clients(out, days, "client_day", scope=scope).read(columns)
            for row in table.to_pylist()
        )

    assert found(Scope.GATEWAY) == [(DAY, "one", -1, 13.0), (DAY, "two", -1, 6.0), (NEXT, "two", -1, 6.0)]
    # Of a day on which no client used several brokers there is one table for both.
    assert found(Scope.BROKER) == [
        (DAY, "one", 1, 6.0), (DAY, "one", 2, 7.0), (DAY, "two", 1, 6.0), (NEXT, "two", -1, 6.0),
    ]  # fmt: skip
    assert make_missing(LocalSession(), out) == []
    # Another run of the second day: its tables are of the one before.
    write_compacted(tmp_path, [{"date": NEXT, "client_id": "two", "t": [1], "offered": [8.0]}])
    days = published_days(out)
    with pytest.raises(JobError, match=f"{NEXT}: no tables of clients yet"):
        find_clients(out, days, "client_day")
    assert make_missing(LocalSession(), out) == [NEXT.isoformat()]
    assert found(Scope.GATEWAY)[2] == (NEXT, "two", -1, 8.0)
    assert len(clients_table(out).read().of(date=NEXT.isoformat(), table="client_day")) == 1


def test_tables_of_an_older_release_lack_waits_for_other_limits(tmp_path: Path) -> None:
    write_compacted(tmp_path, [{"t": [5], "offered": [40.0], "throttle_ms": [30]}])
    write_client_tables(tmp_path, use=False)
    days = published_days(str(tmp_path))
    source = clients_table(str(tmp_path))
    for path in map(Path, source.paths(source.read().of(table="client_day"))):
        path.write_bytes(_without(path, "beside_ms"))
    rows = find_clients(str(tmp_path), days, "client_day")
    (row,) = (row for table in rows.read(["throttle_ms", "beside_ms"]) for row in table.to_pylist())
    assert row == {"throttle_ms": 30, "beside_ms": None}
    (part,) = rows.parts(InProcess())
    (day,) = ClientDays([part], 0.01, Windows()).read(part)
    assert client_day("2026-11-20", [day], gateways=1).beside == 0.0


def _without(path: Path, column: str) -> bytes:
    into = pa.BufferOutputStream()
    pq.write_table(pq.ParquetFile(path).read().drop_columns([column]), into)
    return into.getvalue().to_pybytes()
