"""Quotas to try: around each client's own mean, one for all, or what a plan would set for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.candidates import Candidates, parse_candidates
from pipeline.demand import demands
from pipeline.errors import JobError
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from tests.pipeline.test_plan import entry, plan
from tests.support.packed_days import packed_rows

KEY = QuotaKey.PRODUCER_BYTE_RATE


def test_a_grid_is_in_multiples_of_each_clients_mean() -> None:
    (demand,) = demands(packed_rows([{"t": [0], "offered": [86_400.0]}, {"t": [0], "offered": [864.0]}]))
    found = parse_candidates("grid:1..4x3")
    assert found.count == 3
    assert found.for_demand(demand).tolist() == pytest.approx(np.array([[1, 2, 4], [0.01, 0.02, 0.04]]))


def test_a_plans_quotas_are_found_as_the_gateway_finds_them() -> None:
    rows = [
        {"t": [0], "user": user, "client_id": client_id}
        for user, client_id in (("alice", "a"), ("bob", "a"), ("bob", ""), ("carol", ""))
    ]
    (demand,) = demands(packed_rows(rows))
    quotas = Candidates(
        plan=(
            (QuotaEntity(user="alice", client_id="a"), KEY, 1.0),
            (QuotaEntity(user=DEFAULT, client_id=DEFAULT), KEY, 2.0),
            (QuotaEntity(user="bob"), KEY, 3.0),
            (QuotaEntity(user=DEFAULT), QuotaKey.CONSUMER_BYTE_RATE, 9.0),
        )
    ).for_demand(demand)
    assert quotas[:3, 0].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(quotas[3, 0])


def test_a_plans_quotas_for_addresses_are_found() -> None:
    rows = [{"t": [0], "api": "connect", "user": "", "client_id": ip} for ip in ("10.0.0.1", "10.0.0.2")]
    (demand,) = demands(packed_rows(rows))
    key = QuotaKey.CONNECTION_CREATION_RATE
    listed = ((QuotaEntity(ip="10.0.0.1"), key, 5.0), (QuotaEntity(ip=DEFAULT), key, 7.0))
    assert Candidates(plan=listed).for_demand(demand).tolist() == [[5.0], [7.0]]


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan(entry(QuotaEntity(user="a"), 7.0)).to_json(), encoding="utf-8")
    assert parse_candidates(str(file)).plan == ((QuotaEntity(user="a"), KEY, 7.0),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("grid:1..2", "expected grid"),
        ("grid:5..2x3", "LOWEST"),
        ("value:-1", "LOWEST"),
        ("value:many", "expected grid"),
        ("nowhere.json", "No such file"),
    ],
)
def test_what_is_no_candidate_is_refused(text: str, fault: str) -> None:
    with pytest.raises(JobError, match=fault):
        parse_candidates(text)
