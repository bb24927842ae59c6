"""Rows of one client come together over listeners, and over brokers where they count together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.entity_days import Scope, entity_days
from pipeline.layout import read_packed
from tests.support.packed_days import write_packed

pytestmark = pytest.mark.spark


def test_what_one_counter_counts_is_one_row_and_gateways_stay_apart(spark: Any, tmp_path: Path) -> None:
    write_packed(
        tmp_path,
        [
            {"t": [1, 3], "offered": [1.0, 2.0], "node": 1},
            {"t": [2], "offered": [5.0], "node": 2},
            {"t": [4], "offered": [7.0], "node": 2, "listener": "other"},
            {"t": [9], "offered": [9.0], "gw": "gw-1"},
        ],
    )
    packed = read_packed(spark, str(tmp_path))
    together = {row["gw"]: row for row in entity_days(packed, Scope.GATEWAY).collect()}
    assert sorted(zip(together["gw"]["t"], together["gw"]["offered"])) == [
        (1, 1.0),
        (2, 5.0),
        (3, 2.0),
        (4, 7.0),
    ]
    assert together["gw-1"]["t"] == [9]
    assert {row["node"] for row in together.values()} == {-1}
    apart = {(row["gw"], row["node"]): row["t"] for row in entity_days(packed, Scope.BROKER).collect()}
    assert {name: sorted(seconds) for name, seconds in apart.items()} == {
        ("gw", 1): [1, 3],
        ("gw", 2): [2, 4],
        ("gw-1", -1): [9],
    }


def test_rows_that_are_apart_already_are_not_moved(spark: Any, tmp_path: Path) -> None:
    write_packed(tmp_path, [{"t": [1], "client_id": name} for name in "abc"])
    days = entity_days(read_packed(spark, str(tmp_path)), Scope.GATEWAY)
    plan = days._jdf.queryExecution().toString()
    assert "Exchange" not in plan
    assert days.count() == 3
