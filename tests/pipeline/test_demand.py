"""Compacted rows as the kernels take them: in order, without retries, in the quota's unit."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.replay.demand import Demand, demands
from quotas.usage_record import UsageApi
from testkit.pipeline.compacted_days import compacted_rows

DAY = datetime.date(2026, 11, 14)


def one(rows: list[dict[str, Any]], **options: Any) -> Demand:
    (found,) = demands(compacted_rows(rows), **options)
    return found


def test_apis_come_apart_and_unknown_ones_are_left_out() -> None:
    batch = compacted_rows(
        [
            {"api": "produce", "t": [1, 2], "offered": [10.0, 20.0]},
            {"api": "raft", "t": [1]},
            {"api": "fetch", "t": [3], "offered": [5.0]},
            {"api": "produce", "t": [], "offered": [], "client_id": "idle"},
        ]
    )
    found = {demand.api: demand for demand in demands(batch)}
    assert list(found) == [UsageApi.PRODUCE, UsageApi.FETCH]
    assert found[UsageApi.PRODUCE].by_second().total_units().tolist() == [30.0, 0.0]
    assert found[UsageApi.PRODUCE].names.column("client_id").to_pylist() == ["c", "idle"]


def test_a_slice_of_a_batch_is_that_slice() -> None:
    batch = compacted_rows([{"t": [i], "offered": [float(i)]} for i in range(1, 5)])
    (found,) = demands(batch.slice(2, 2))
    assert found.by_second().total_units().tolist() == [3.0, 4.0]


def test_rows_of_several_brokers_put_together_are_brought_into_order() -> None:
    found = one([{"t": [5, 9, 2, 9], "offered": [1.0, 2.0, 3.0, 4.0], "requests": [1, 2, 3, 4]}])
    assert found.seconds.tolist() == [2, 5, 9, 9]
    assert found.units.tolist() == [3.0, 1.0, 2.0, 4.0]
    assert found.requests.tolist() == [3, 1, 2, 4]


def test_request_time_is_counted_in_percent_of_a_thread() -> None:
    found = one([{"api": "request", "t": [1], "offered": [250.0], "max_units": [50.0]}])
    assert found.units.tolist() == [25.0]
    assert found.max_units.tolist() == [5.0]


def test_mutations_are_taken_one_by_one_and_retries_are_no_new_demand() -> None:
    row = {
        "api": "mutation",
        "t": [1],
        "offered": [9.0],
        "e_ms": [1_100, 1_200, 1_050],
        "e_units": [4, 4, 1],
        "e_strict": [True, True, False],
        "e_attempt": [1, 2, 1],
    }
    events = one([row]).events
    assert events is not None
    assert events.t_ms.tolist() == [1_050, 1_100]
    assert events.units.tolist() == [1.0, 4.0]
    assert events.weights.tolist() == [0.0, 1.0]
    again = one([row], retries=True).by_second()
    assert again.t_ms.tolist() == [1_050, 1_100, 1_200]
    assert again.weights.tolist() == [1.0, 1.0, 1.0]


def test_quotas_and_censored_seconds_are_told() -> None:
    found = one([{"t": [1, 2], "offered": [1.0, 1.0], "censored": [True, False], "quota": [None, 7.0]}])
    assert found.sums(found.censored).tolist() == [1.0]
    assert np.isnan(found.quota[0])
    assert found.quota[1] == 7.0


def test_large_lists_are_read_as_well() -> None:
    batch = compacted_rows([{"t": [1], "offered": [2.0]}])
    large = [
        column.cast(pa.large_list(column.type.value_type)) if pa.types.is_list(column.type) else column
        for column in batch.columns
    ]
    (found,) = demands(pa.RecordBatch.from_arrays(large, names=batch.schema.names))
    assert found.by_second().total_units().tolist() == [2.0]


@pytest.mark.parametrize("column", ["t", "offered"])
def test_a_missing_column_is_an_error_and_not_an_empty_day(column: str) -> None:
    batch = compacted_rows([{"t": [1], "offered": [2.0]}])
    with pytest.raises(KeyError):
        list(demands(batch.drop_columns([column])))
