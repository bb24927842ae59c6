from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.profile import PARTIAL, PROFILE, READ, SUMS, merge_profiles, profile_rows
from tests.support.packed_rows import packed_batch

MIDNIGHT_S = 1_795_219_200  # 2026-11-21T00:00:00Z
DAY = date(2026, 11, 21)


def profile_of(*rows: dict[str, Any]) -> dict[str, Any]:
    """The profile of packed rows that are one client's."""
    partial = pa.Table.from_batches(list(profile_rows(iter([packed_batch(*rows)]))), schema=PARTIAL)
    merged = merge_profiles(partial)
    assert merged.schema == PROFILE
    return dict(merged.to_pylist()[0])


def test_sums_are_over_all_brokers_gateways_and_days() -> None:
    rows = [
        {"date": DAY, "gw": "a", "node": 1, "t": [5, 6], "offered": [10.0, 20.0], "delayed": [1, 0]},
        {"date": DAY, "gw": "b", "node": 2, "t": [5], "offered": [70.0], "throttle_ms": [1500]},
        {"date": date(2026, 11, 22), "gw": "a", "node": 1, "t": [0], "offered": [1.0]},
    ]
    found = profile_of(*rows)
    assert found["offered"] == 101.0
    assert (found["delayed"], found["throttle_ms"]) == (1, 1500)
    assert (found["gateways"], found["nodes"], found["active_s"]) == (2, 2, 4)
    assert found["step"] == [MIDNIGHT_S // 10, (MIDNIGHT_S + 86_400) // 10]
    assert found["step_offered"] == [100.0, 1.0]


def test_the_peak_of_a_client_is_that_of_its_brokers_together() -> None:
    """Each broker sees 100 in a step of its own and 60 in a shared one: the shared one is the peak."""
    one = {"date": DAY, "node": 1, "t": [0, 20], "offered": [100.0, 60.0]}
    two = {"date": DAY, "node": 2, "t": [10, 25], "offered": [100.0, 60.0]}
    found = profile_of(one, two)
    assert found["peak_10s"] == 12.0
    assert found["peak_60s"] == pytest.approx(320 / 60)
    assert found["peak_1s"] == 100.0


def test_percentiles_leave_out_steps_without_use() -> None:
    found = profile_of(
        {"date": DAY, "t": [0, 10, 20, 30], "offered": [10.0, 0.0, 20.0, 30.0], "throttle_ms": [0, 900, 0, 0]}
    )
    assert found["p50"] == 2.0
    assert found["step_throttle_ms"] == [0.0, 900.0, 0.0, 0.0]


def test_nearness_is_the_gateways_own_measure_of_a_rate() -> None:
    row = {
        "date": DAY,
        "t": [1, 2, 3, 4],
        "offered": [1.0] * 4,
        "quota": [None, 100.0, 100.0, 50.0],
        "level_end": [99.0, 79.0, None, 45.0],
    }
    found = profile_of(row)
    assert found["closest"] == pytest.approx(0.9)
    assert found["near_s"] == 1
    assert found["quota"] == 50.0


def test_nearness_of_mutations_is_what_was_wanted_in_ten_seconds() -> None:
    row = {"date": DAY, "api": "mutation", "t": [1, 2, 30], "offered": [40.0, 20.0, 1.0], "quota": [2.0] * 3}
    found = profile_of(row)
    assert found["closest"] == 3.0
    assert found["near_s"] == 2


def test_a_client_without_a_limit_is_near_to_none() -> None:
    found = profile_of({"date": DAY, "t": [1], "offered": [1e9]})
    assert (found["closest"], found["quota"], found["near_s"]) == (None, None, 0)


def test_a_packed_row_without_seconds_makes_no_profile() -> None:
    batches = list(profile_rows(iter([packed_batch({"date": DAY, "t": [], "offered": []})])))
    assert [batch.num_rows for batch in batches] == [0]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 86_399), st.integers(0, 1000)), min_size=1, max_size=30),
        min_size=1,
        max_size=4,
    )
)
def test_however_a_clients_use_is_divided_its_sums_are_the_same(parts: list[list[tuple[int, int]]]) -> None:
    rows = []
    for node, part in enumerate(parts):
        part.sort()
        rows.append(
            {"date": DAY, "node": node, "t": [t for t, _ in part], "offered": [float(n) for _, n in part]}
        )
    found = profile_of(*rows)
    flat = [each for part in parts for each in part]
    by_step: dict[int, float] = {}
    for t, units in flat:
        by_step[t // 10] = by_step.get(t // 10, 0.0) + units
    assert found["offered"] == sum(by_step.values())
    assert found["peak_10s"] == max(by_step.values()) / 10
    assert found["step_offered"] == [by_step[step] for step in sorted(by_step)]


def test_clients_come_apart_whatever_the_order_of_their_partial_profiles() -> None:
    rows = [
        {"date": DAY, "client_id": name, "node": node, "t": [node], "offered": [size]}
        for node in (1, 2)
        for name, size in (("b", 5.0), ("a", 7.0))
    ]
    partial = pa.Table.from_batches(list(profile_rows(iter([packed_batch(*rows)]))), schema=PARTIAL)
    found = merge_profiles(partial).to_pylist()
    assert [(row["client_id"], row["offered"], row["nodes"]) for row in found] == [
        ("a", 14.0, 2),
        ("b", 10.0, 2),
    ]
    assert merge_profiles(partial.slice(0, 0)).num_rows == 0


def test_only_columns_that_are_packed_are_read() -> None:
    from pipeline.layout import KEY, SERIES

    assert set(READ) <= {*KEY, *SERIES}
    assert set(SUMS) <= set(READ)
    assert np.all([name in PARTIAL.names for name in SUMS])
