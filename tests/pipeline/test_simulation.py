"""Candidate quotas, and the table of what they would have done: in the workers, and the job over all of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.errors import Exit, JobError
from pipeline.plans.plan import Action
from pipeline.recommend.recommendation import with_bursts
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.replay.candidates import Candidates, parse_candidates
from pipeline.replay.demand import demands
from pipeline.replay.dispatch import ReplaySettings
from pipeline.replay.kernels.token_bucket import strict_token_bucket
from pipeline.replay.simulation import simulate_batch
from pipeline.storage.layout import CompactedDay
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi
from testkit.pipeline.compacted_days import DAY, compacted_rows, compacted_table_of, publish_day, write_compacted
from testkit.pipeline.local_session import LocalSession
from tests.pipeline.test_plans import plan_of

KEY = QuotaKey.PRODUCER_BYTE_RATE


def test_candidates_are_a_grid_of_each_clients_mean_or_a_plans(tmp_path: Path) -> None:
    (demand,) = demands(compacted_rows([{"t": [0], "offered": [86_400.0]}, {"t": [0], "offered": [864.0]}]))
    found = parse_candidates("grid:1..4x3")
    assert found.count == 3
    assert found.for_demand(demand).tolist() == pytest.approx(np.array([[1, 2, 4], [0.01, 0.02, 0.04]]))
    file = tmp_path / "plan.json"
    file.write_text(plan_of((QuotaEntity(user="a"), Action.SET, 7.0, None)).to_json(), encoding="utf-8")
    assert parse_candidates(str(file)).plan == ((QuotaEntity(user="a"), KEY, 7.0),)


def test_a_plans_quotas_are_found_as_the_gateway_finds_them_for_addresses_too() -> None:
    rows = [
        {"t": [0], "user": user, "client_id": client_id}
        for user, client_id in (("alice", "a"), ("bob", "a"), ("bob", ""), ("carol", ""))
    ]
    (demand,) = demands(compacted_rows(rows))
    candidates = Candidates(
        plan=(
            (QuotaEntity(user="alice", client_id="a"), KEY, 1.0),
            (QuotaEntity(user=DEFAULT, client_id=DEFAULT), KEY, 2.0),
            (QuotaEntity(user="bob"), KEY, 3.0),
            (QuotaEntity(user=DEFAULT), QuotaKey.CONSUMER_BYTE_RATE, 9.0),
        )
    )
    quotas = candidates.for_demand(demand)[:, 0]
    assert quotas[[0, 2]].tolist() == [1.0, 3.0]
    # All of bob's clients have one counter then, of which each row would only be a part.
    assert np.isnan(quotas[[1, 3]]).all()
    shared = [candidates.shared_counter(UsageApi.PRODUCE, row["user"], row["client_id"]) for row in rows]
    assert shared == [None, ("bob", ""), None, None]
    rows = [{"t": [0], "api": "connect", "user": "", "client_id": ip} for ip in ("10.0.0.1", "10.0.0.2")]
    (demand,) = demands(compacted_rows(rows))
    key = QuotaKey.CONNECTION_CREATION_RATE
    listed = ((QuotaEntity(ip="10.0.0.1"), key, 5.0), (QuotaEntity(ip=DEFAULT), key, 7.0))
    assert Candidates(plan=listed).for_demand(demand).tolist() == [[5.0], [7.0]]


def test_a_plan_is_gone_through_once_for_all_batches_of_a_worker() -> None:
    class Counted(tuple[Any, ...]):
        times = 0

        def __iter__(self) -> Any:
            Counted.times += 1
            return super().__iter__()

    candidates = Candidates(plan=Counted([(QuotaEntity(user="u"), KEY, 1.0)]))
    for user, quota in (("u", 1.0), ("v", None), ("u", 1.0)):
        (demand,) = demands(compacted_rows([{"t": [0], "user": user, "client_id": ""}]))
        assert candidates.for_demand(demand).tolist() == [[pytest.approx(quota or np.nan, nan_ok=True)]]
    assert Counted.times == 1


@pytest.mark.parametrize(("text", "fault"), [
    ("grid:1..2", "expected grid"), ("grid:5..2x3", "LOWEST"), ("grid:0..1x2", "LOWEST"),
    ("grid:1..2x0", "LOWEST"), ("grid:1..2x2000", "LOWEST"), ("value:-1", "LOWEST"),
    ("value:many", "expected grid"), ("nowhere.json", "No such file"),
])  # fmt: skip
def test_what_is_no_candidate_is_refused(text: str, fault: str) -> None:
    with pytest.raises(JobError, match=fault):
        parse_candidates(text)


# -- the table -------------------------------------------------------------------------------------------------------
STRICT = ReplaySettings(Algorithm.TOKEN_BUCKET, Model.STRICT)
ROWS: list[dict[str, Any]] = [
    {"t": [0, 1, 2, 50], "offered": [900.0, 900.0, 900.0, 5.0], "client_id": "big"},
    {"t": [10], "offered": [3.0], "client_id": "small"},
    {"t": [], "offered": [], "client_id": "idle"},
    {
        "api": "mutation", "t": [7], "offered": [40.0], "e_ms": [7_000, 7_001], "e_units": [30, 10],
        "client_id": "admin",
    },
]  # fmt: skip


def test_each_client_has_a_row_for_each_candidate_and_is_not_throttled_without_a_limit() -> None:
    (demand, *_) = demands(compacted_rows(ROWS))
    (found,) = simulate_batch([demand], Candidates(values=(50.0, 100.0)), STRICT)
    rows = found.to_pylist()
    assert [(row["client_id"], row["candidate"], row["quota"]) for row in rows] == [
        ("big", 0, 50.0), ("big", 1, 100.0), ("small", 0, 50.0), ("small", 1, 100.0), ("idle", 0, 50.0),
        ("idle", 1, 100.0),
    ]  # fmt: skip
    expected = strict_token_bucket(demand.by_second(), np.array([50.0, 100.0]))
    assert [row["throttled"] for row in rows] == expected.throttled.ravel().tolist()
    assert [row["throttled_units"] for row in rows] == expected.throttled_units.ravel().tolist()
    assert rows[0]["units"] == 2_705.0
    assert rows[0]["throttled_units"] == 1_800.0
    plan = Candidates(plan=((QuotaEntity(user="u", client_id="small"), QuotaKey.PRODUCER_BYTE_RATE, 1.0),))
    (demand, *_) = demands(compacted_rows(ROWS))
    (found,) = simulate_batch([demand], plan, ReplaySettings())
    rows = {row["client_id"]: row for row in found.to_pylist()}
    assert rows["big"]["quota"] is None
    assert rows["big"]["throttled"] == 0
    assert rows["small"]["quota"] == 1.0


def test_the_algorithm_of_mutations_is_given_beside_those_of_other_apis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[ReplaySettings] = []

    def simulate(_days: Any, _candidates: Any, settings: ReplaySettings, **_: Any) -> None:
        used.append(settings)
        raise JobError("only the settings are of interest")

    day = CompactedDay(DAY.isoformat(), algorithms={"a": ["rate"], "b": ["spread_rate"]})
    publish_day(str(tmp_path), day, [compacted_table_of(ROWS)])
    monkeypatch.setattr("pipeline.jobs.simulate.open_session", lambda *_, **__: LocalSession())
    monkeypatch.setattr("pipeline.replay.simulation.simulate", simulate)
    job = ["simulate", "--out", str(tmp_path)]
    assert main(job) == Exit.REFUSED
    assert "rate (a), spread_rate (b): say which with --mutations" in capsys.readouterr().err
    main([*job, "--mutations", "spread"])
    (settings,) = used
    assert settings.of_api(UsageApi.MUTATION).algorithm is Algorithm.SPREAD
    assert settings.of_api(UsageApi.PRODUCE).algorithm is Algorithm.RATE


def test_an_algorithm_for_every_api_is_refused_beside_buckets_of_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = with_bursts(plan_of((QuotaEntity(user="a"), Action.SET, 7.0, None)), 60.0)
    (tmp_path / "plan.json").write_text(plan.to_json())
    job = ["simulate", "--out", str(tmp_path), "--candidates", str(tmp_path / "plan.json"), "--algo", "rate"]
    assert main(job) == Exit.WRONG_ARGUMENTS
    assert "the buckets of the plan would have no effect" in capsys.readouterr().err


@pytest.mark.spark
def test_the_job_writes_every_row_and_prints_a_summary(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_compacted(tmp_path, ROWS)
    argv = ["simulate", "--out", str(tmp_path), "--candidates", "value:50", "--run", "one"]
    assert main([*argv, "--model", "strict", "--algo", "token_bucket"]) == 0
    said = capsys.readouterr().out
    # Of three clients that want something the big one's waits: 1,800 of 2,705 bytes.
    assert "produce" in said
    assert "66.47%" in said
    rows = spark.read.parquet(str(tmp_path / "results" / "sim" / "run=one")).collect()
    assert {(row["api"], row["client_id"]): row["throttled"] for row in rows} == {
        ("produce", "big"): 2.0, ("produce", "small"): 0.0, ("produce", "idle"): 0.0,
        ("mutation", "admin"): 0.0,
    }  # fmt: skip


@pytest.mark.spark
def test_the_job_says_which_quotas_of_a_plan_it_does_not_replay(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clients = [("alice", "a"), ("alice", "b"), ("carol", "c"), ("", "~other")]
    write_compacted(
        tmp_path, [{"t": [0], "offered": [9.0], "user": user, "client_id": name} for user, name in clients]
    )
    users = QuotaEntity(user="alice"), QuotaEntity(user=DEFAULT)
    entities = *users, QuotaEntity(group="orders"), QuotaEntity(client_id="x-*"), QuotaEntity(client_id=DEFAULT)
    plan = plan_of(*((entity, Action.SET, 1.0, None) for entity in entities))
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json(), encoding="utf-8")
    assert main(["simulate", "--out", str(tmp_path), "--candidates", str(file), "--run", "one"]) == 0
    said = capsys.readouterr().out
    assert "user=alice would count 2 clients of the records together: not replayed" in said
    assert "user=carol would count 1 client of the records together: not replayed" in said
    assert "~other, the sum of further clients, is not replayed" in said
    assert "quotas of groups are not replayed: orders" in said
    assert "quotas of prefixes are not replayed: client-id=x-*" in said
