"""From packed days to a plan; and no plan from half of the records."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.demand import demands
from pipeline.errors import JobError
from pipeline.kernels.deferral import needs
from pipeline.layout import PackedDay
from pipeline.plan import Action, Plan
from pipeline.recommend import burst_s, gather, history_days, need_finder, parse_capacity
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi
from tests.support.packed_days import DAY, packed_rows, write_packed

NEXT = DAY + datetime.timedelta(days=1)


def found(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    work = need_finder(0.01, 11, 1_000)
    return [row for batch in work(iter([packed_rows(rows)])) for row in batch.to_pylist()]


def test_workers_find_needs_and_what_all_used_together() -> None:
    big = {"t": [5, 6], "offered": [1_000.0, 500.0], "quota": [None, 70.0], "censored": [True, False]}
    small = {"t": [7, 20], "offered": [100.0, 100.0], "client_id": "small"}
    rows = found(big, small)
    clients = {row["client_id"]: row for row in rows if row["steps"] is None}
    (demand,) = demands(packed_rows([big, small]))
    expected = needs(demand.by_second(), 0.01, burst_s=10.0)
    assert [clients["c"]["need"], clients["small"]["need"]] == expected.tolist()
    assert (clients["c"]["quota"], clients["c"]["censored_s"], clients["c"]["active_s"]) == (70.0, 1, 2)
    histories, peaks = gather(rows)
    assert [(history.client_id, len(history.days)) for history in histories] == [("c", 1), ("small", 1)]
    assert peaks == {QuotaKey.PRODUCER_BYTE_RATE: 160.0}


def test_the_gateway_in_most_need_decides_and_peaks_add_up() -> None:
    rows = found(
        {"t": [5], "offered": [1_000.0], "gw": "a", "quota": [50.0]},
        {"t": [6], "offered": [300.0], "gw": "b", "quota": [60.0]},
    )
    histories, peaks = gather(rows)
    (day,) = histories[0].days
    assert day.need == max(row["need"] for row in rows if row["steps"] is None)
    assert (day.gateways, day.quota, day.active_s) == (2, 50.0, 2)
    assert peaks == {QuotaKey.PRODUCER_BYTE_RATE: 130.0}


def test_a_last_day_that_is_none_is_said_in_a_line() -> None:
    with pytest.raises(JobError, match="--to 'yesterday': say a day"):
        history_days([PackedDay("2026-09-28", "", 1, 1, 1, 1.0, [0])], 7, "yesterday", allow_gaps=False)


def test_days_are_told_apart() -> None:
    rows = found({"t": [5], "offered": [10.0]}, {"t": [5], "offered": [40.0], "date": NEXT})
    histories, peaks = gather(rows)
    assert [day.date for day in histories[0].days] == [DAY.isoformat(), NEXT.isoformat()]
    assert peaks == {QuotaKey.PRODUCER_BYTE_RATE: 4.0}


def test_a_bucket_saves_up_all_its_windows_and_a_rate_all_but_one() -> None:
    assert burst_s(UsageApi.MUTATION, 11, 1_000) == 11.0
    assert burst_s(UsageApi.PRODUCE, 11, 1_000) == 10.0
    assert burst_s(UsageApi.CONNECT, 1, 500) == 0.5


def packed_day(date: str, completeness: float = 1.0) -> PackedDay:
    return PackedDay(date, "", 1, 1, 1, completeness, [])


def test_a_history_with_holes_is_refused_and_says_which() -> None:
    days = [packed_day("2026-11-14"), packed_day("2026-11-16", 0.9)]
    with pytest.raises(JobError, match=r"2026-11-15 not packed; 2026-11-16 is 90.0% complete"):
        history_days(days, 3, None, allow_gaps=False)
    chosen = history_days(days, 3, None, allow_gaps=True)
    assert [day.date for day in chosen] == ["2026-11-14", "2026-11-16"]
    assert [day.date for day in history_days(days, 1, "2026-11-14", allow_gaps=False)] == ["2026-11-14"]
    with pytest.raises(JobError, match="no day is packed"):
        history_days([], 3, None, allow_gaps=True)


def test_capacity_is_given_by_api() -> None:
    assert parse_capacity("produce=200e6, mutation=50") == {
        QuotaKey.PRODUCER_BYTE_RATE: 2e8,
        QuotaKey.CONTROLLER_MUTATION_RATE: 50.0,
    }
    with pytest.raises(JobError, match="--capacity bytes=1"):
        parse_capacity("bytes=1")


@pytest.mark.spark
def test_the_job_writes_a_plan_that_holds_what_it_promises(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {
            "date": date,
            "t": list(range(0, 3_000, 2)),
            "offered": rng.integers(1, 2_000, 1_500).astype(float).tolist(),
            "client_id": name,
            "node": node,
        }
        for date in (DAY, NEXT)
        for name, node in (("one", 1), ("one", 2), ("two", 1))
    ]
    rows.append(
        {"api": "mutation", "t": [5], "e_ms": [5_000, 5_010, 9_000], "e_units": [50, 50, 50], "date": NEXT}
    )
    write_packed(tmp_path, rows)
    file = tmp_path / "plan.json"
    argv = ["recommend", "--out", str(tmp_path), "--plan", str(file), "--history", "2"]
    assert main([*argv, "--target", "0.05", "--margin", "1", "--capacity", "produce=1e6"]) == 0
    plan = Plan.from_json(file.read_bytes())
    entries = {(str(entry.entity), entry.key): entry for entry in plan.entries}
    one = entries[str(QuotaEntity(user="u", client_id="one")), QuotaKey.PRODUCER_BYTE_RATE]
    two = entries[str(QuotaEntity(user="u", client_id="two")), QuotaKey.PRODUCER_BYTE_RATE]
    # Brokers count together: twice as many bytes.
    assert one.value == pytest.approx(2 * two.value, rel=0.1)
    assert one.action is Action.SET
    # Without a margin the busier day just meets the target, and both together stay below.
    assert one.expected_throttled is not None
    assert 0.02 < one.expected_throttled <= 0.05
    admin = entries[str(QuotaEntity(user="u", client_id="c")), QuotaKey.CONTROLLER_MUTATION_RATE]
    assert admin.days == 1
    said = capsys.readouterr().out
    assert "3 quotas, 3 to be set" in said
    assert "producer_byte_rate: quotas add up to" in said


def test_a_plan_is_not_made_of_half_of_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_packed(tmp_path, [{"t": [1]}], completeness=0.5)
    assert main(["recommend", "--out", str(tmp_path), "--history", "1"]) == 1
    assert "50.0% complete" in capsys.readouterr().err
