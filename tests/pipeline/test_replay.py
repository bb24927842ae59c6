"""Compacted rows as the kernels take them, and which algorithm and kind of client a replay takes."""

import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from campaigns.fidelity.comparison import producers
from campaigns.fidelity.truth import errors, replayed, truth_of
from gateway.usage.row import RowValues
from pipeline.recommend.waiting import burst_s, kept_burst_s
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.replay.demand import KEY_OF_API, Demand, demands
from pipeline.replay.dispatch import ReplaySettings, replay, replay_all
from pipeline.report.report import UNITS
from quotas.entities import API_BURST_S, API_RATE_KEYS
from quotas.lent_rates import LENT_BURST_S
from quotas.usage_record import Row, UsageApi
from testkit.pipeline.compacted_days import compacted_rows


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


def test_a_slice_of_a_batch_and_large_lists_are_read_as_well() -> None:
    batch = compacted_rows([{"t": [i], "offered": [float(i)]} for i in range(1, 5)])
    (found,) = demands(batch.slice(2, 2))
    assert found.by_second().total_units().tolist() == [3.0, 4.0]
    batch = compacted_rows([{"t": [1], "offered": [2.0]}])
    large = [
        column.cast(pa.large_list(column.type.value_type)) if pa.types.is_list(column.type) else column
        for column in batch.columns
    ]
    (found,) = demands(pa.RecordBatch.from_arrays(large, names=batch.schema.names))
    assert found.by_second().total_units().tolist() == [2.0]


def test_order_of_time_and_percent_of_a_thread() -> None:
    found = one([{"t": [5, 9, 2, 9], "offered": [1.0, 2.0, 3.0, 4.0], "requests": [1, 2, 3, 4]}])
    assert found.seconds.tolist() == [2, 5, 9]
    assert found.units.tolist() == [3.0, 1.0, 6.0]
    assert found.requests.tolist() == [3, 1, 6]
    found = one([{"api": "request", "t": [1], "offered": [250.0], "max_units": [50.0]}])
    assert found.units.tolist() == [25.0]
    assert found.max_units.tolist() == [5.0]
    found = one([{"t": [1, 2], "offered": [1.0, 1.0], "censored": [True, False], "quota": [None, 7.0]}])
    assert found.sums(found.censored).tolist() == [1.0]
    assert np.isnan(found.quota[0])
    assert found.quota[1] == 7.0


def test_mutations_are_taken_one_by_one_and_retries_are_no_new_demand() -> None:
    row = {
        "api": "mutation", "t": [1], "offered": [9.0], "e_ms": [1_100, 1_200, 1_050], "e_units": [4, 4, 1],
        "e_strict": [True, True, False], "e_attempt": [1, 2, 1],
    }  # fmt: skip
    events = one([row]).events
    assert events is not None
    assert events.t_ms.tolist() == [1_050, 1_100]
    assert events.units.tolist() == [1.0, 4.0]
    assert events.weights.tolist() == [0.0, 1.0]
    again = one([row], retries=True).by_second()
    assert again.t_ms.tolist() == [1_050, 1_100, 1_200]
    assert again.weights.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("column", ["t", "offered"])
def test_a_missing_column_is_an_error_and_not_an_empty_day(column: str) -> None:
    batch = compacted_rows([{"t": [1], "offered": [2.0]}])
    with pytest.raises(KeyError):
        list(demands(batch.drop_columns([column])))


# -- which algorithm -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("api", "algorithm", "model"), [
    (UsageApi.PRODUCE, Algorithm.RATE, Model.CLOSED_LOOP),
    (UsageApi.FETCH, Algorithm.RATE, Model.CLOSED_LOOP),
    (UsageApi.REQUEST, Algorithm.RATE, Model.CLOSED_LOOP),
    (UsageApi.MUTATION, Algorithm.TOKEN_BUCKET, Model.RECORDED),
    (UsageApi.CONNECT, Algorithm.RATE, Model.STRICT),
])  # fmt: skip
def test_each_api_is_replayed_as_the_gateway_decides(api: UsageApi, algorithm: Algorithm, model: Model) -> None:
    how = ReplaySettings().of_api(api)
    assert (how.algorithm, how.model) == (algorithm, model)


@pytest.mark.parametrize("model", [Model.STRICT, Model.DEFERRAL])
def test_apis_replayed_together_are_decided_each_alone(model: Model) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {"api": api, "client_id": f"c{n}", "t": sorted(rng.choice(500, 40, replace=False).tolist()),
         "offered": rng.integers(1, 900, 40).astype(float).tolist()}
        for n in range(5) for api in ("produce", "fetch", "request")
    ]  # fmt: skip
    rows.append({"api": "mutation", "t": [1], "e_ms": [1_000, 1_004, 1_008], "e_units": [9, 9, 9]})
    found = list(demands(compacted_rows(rows)))
    quotas = [np.geomspace(1, 500, 6)[None, :] * np.arange(1, len(demand) + 1)[:, None] for demand in found]
    settings = ReplaySettings(Algorithm.TOKEN_BUCKET, model)
    together = replay_all(found, quotas, settings)
    assert sum(told.outcome.throttled_units.sum() for told in together) > 0
    for demand, of_api, told in zip(found, quotas, together, strict=True):
        alone = replay(demand, of_api, settings)
        for name in ("throttled", "wait_ms", "late_ms"):
            assert getattr(told.outcome, name).tolist() == getattr(alone.outcome, name).tolist()
        assert told.outcome.throttled_units == pytest.approx(alone.outcome.throttled_units)
        assert (told.requests.tolist(), told.units.tolist()) == (alone.requests.tolist(), alone.units.tolist())


def test_the_deferral_model_is_one_of_the_bucket() -> None:
    assert ReplaySettings(model=Model.DEFERRAL).of_api(UsageApi.FETCH).algorithm is Algorithm.TOKEN_BUCKET
    with pytest.raises(ValueError, match="not of rate"):
        ReplaySettings(Algorithm.RATE, Model.DEFERRAL).of_api(UsageApi.FETCH)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("model", [Model.STRICT, Model.PERMISSIVE, Model.CLOSED_LOOP])
def test_every_algorithm_slows_a_burst_in_every_model(algorithm: Algorithm, model: Model) -> None:
    demand = one([{"t": [0, 1, 2], "offered": [2_000.0, 10.0, 10.0]}])
    found = replay(demand, np.array([10.0, 1e6]), ReplaySettings(algorithm, model))
    assert found.outcome.throttled[0, 0] > 0
    assert found.outcome.throttled[0, 1] == 0
    assert found.units.tolist() == [2_020.0]
    assert bool(found.outcome.late_ms[0, 0] > 0) is (model is Model.CLOSED_LOOP)


def test_a_request_quota_is_never_told_more_than_a_window_and_old_clients_are_told_apart() -> None:
    demand = one([{"api": "request", "t": [0, 1], "offered": [60_000.0, 1.0]}])
    waits = replay(demand, np.array([1.0]), ReplaySettings()).outcome
    # The second waits at the bound until the first is forgotten.
    assert waits.wait_ms[0, 0] == 1_000
    row = {"api": "mutation", "t": [0], "e_ms": [0, 1], "e_units": [100, 1], "e_strict": [True, False]}
    outcome = replay(one([row]), np.array([1.0]), ReplaySettings()).outcome
    # The strict one goes into debt without a reply that says so; the permissive one gets it.
    assert outcome.throttled[0, 0] == 1
    assert outcome.wait_ms[0, 0] == 89_999


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "share", "time"), [(1, 0.012, 0.03), (3, 0.015, 0.15)])
def test_seconds_alone_say_nearly_what_the_quota_in_force_did_to_each_request(
    connections: int, share: float, time: float
) -> None:
    clients = [
        replace(client, connections=connections, request_bytes=client.request_bytes * (2 * connections - 1))
        for client in producers(8, seed=1)
    ]
    truths = [truth_of(client, seconds=240, seed=1) for client in clients]
    assert max(truth.share for truth in truths) > 0.2
    found = errors(truths, replayed(clients, truths))
    # What longer runs come to, and how far these clients are off from themselves: benchmarks/results/fidelity.md.
    assert found.share < share
    assert found.time < time


@pytest.mark.slow
def test_a_run_with_a_lent_limit_is_replayed_as_the_gateway_throttled_it() -> None:
    """Its records say the quota as well as the limit in force, and the error is that of any run."""
    clients = producers(8, seed=1)
    lenders = [replace(each, quota=2 * each.quota, wanted=each.wanted / 2) for each in clients]
    truths = [truth_of(each, seconds=240, seed=1, share_at=lambda _s: 0.5) for each in lenders]
    alone = [truth_of(each, seconds=240, seed=1, share_at=lambda _s: 1.0) for each in clients]
    assert [each.told_ms for each in truths] == [each.told_ms for each in alone]
    assert max(truth.share for truth in truths) > 0.2
    for client, truth in zip(clients, truths, strict=True):
        assert {(row[Row.QUOTA], row[Row.IN_FORCE]) for row in truth.seconds.values()} == {
            (2 * client.quota, client.quota)
        }
    found = errors(truths, replayed(clients, truths, ReplaySettings(burst_s=LENT_BURST_S)))
    assert found.share < 0.012
    assert found.time < 0.03


@pytest.mark.slow
def test_of_seconds_under_a_brake_a_replay_takes_the_limit_that_was_in_force() -> None:
    """It is nearer to what the quota alone would have done than a replay that takes the quota as in force."""
    clients = producers(16, seed=1)
    settings = ReplaySettings(burst_s=LENT_BURST_S)

    def brake(second: int) -> float:
        return 0.25 if 80 <= second < 160 else 1.0

    free = [truth_of(each, seconds=240, seed=1, share_at=lambda _s: 1.0) for each in clients]
    braked = [truth_of(each, seconds=240, seed=1, share_at=brake) for each in clients]
    blind, told_as_quota = copy.deepcopy(braked), copy.deepcopy(braked)
    for truths, quota in ((blind, False), (told_as_quota, True)):
        for truth in truths:
            for second, row in truth.seconds.items():
                values = list(row)
                if quota and row[Row.IN_FORCE]:
                    values[Row.QUOTA] = row[Row.IN_FORCE]
                values[Row.IN_FORCE] = 0.0
                truth.seconds[second] = cast("RowValues", tuple(values))
    found = replayed(clients, braked, settings)
    assert found == replayed(clients, told_as_quota, settings)
    without = errors(free, replayed(clients, blind, settings))
    assert errors(free, found).share < 0.6 * without.share
    assert errors(free, found).time < without.time


def test_connections_of_a_second_are_decided_one_by_one_and_count_when_they_are() -> None:
    row = {"api": "connect", "t": [0, 1, 2, 3], "requests": [4] * 4, "offered": [4.0] * 4, "max_units": [1.0] * 4}
    found = replay(one([row]), np.array([1.0, 2.0]), ReplaySettings())
    # Ten of the window's first ten seconds; as four records of a second each, the third would have passed whole.
    assert found.outcome.throttled.tolist() == [[6, 0]]
    assert (found.requests.tolist(), found.units.tolist()) == ([16], [16.0])


def test_connections_of_users_wait_for_their_bucket_and_open_ones_do_not_matter() -> None:
    row = {
        "api": "user_connect", "user": "alice", "client_id": "", "t": [0, 1], "requests": [8, 0],
        "offered": [8.0, 0.0], "max_units": [1.0, 0.0], "connections": [900, 900],
    }  # fmt: skip
    found = replay(one([row]), np.array([1.0, 4.0]), ReplaySettings())
    # Two fit into the bucket; as with requests per API, the one that overdraws it counts as throttled.
    assert found.outcome.throttled.tolist() == [[6, 0]]


def test_requests_per_api_are_replayed_and_recommended_for_with_the_bucket_of_the_gateway() -> None:
    for api in (UsageApi.USER_CONNECT, *(api for api, key in KEY_OF_API.items() if key in API_RATE_KEYS)):
        how = ReplaySettings().of_api(api)
        assert (how.algorithm, how.model) == (Algorithm.TOKEN_BUCKET, Model.CLOSED_LOOP)
        assert how.window_num * how.window_ms == API_BURST_S * 1_000
        assert burst_s(api, 11, 1_000) == API_BURST_S
        # No table lets more pass at once than the gateway does.
        assert kept_burst_s(api, API_BURST_S) <= API_BURST_S
    assert set(KEY_OF_API) == set(UsageApi) == set(UNITS)
