"""From compacted days to required rates, from these to a plan, and no plan from half of the records."""

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.errors import ArgumentError, Exit, JobError, NotYetCompleteError
from pipeline.jobs.arguments import parse_capacity
from pipeline.jobs.recommend import history_days
from pipeline.plans.plan import Action, Basis, Plan, PlanEntry, TooLittle, too_little_text
from pipeline.recommend.backtest import History, evaluator
from pipeline.recommend.recommendation import (
    ClientDay,
    ClientHistory,
    RecommendationSettings,
    Rule,
    amount,
    entity_of,
    recommend,
)
from pipeline.recommend.required_rates import Windows, _name, gather, known_enough, stricter_than_asked
from pipeline.recommend.waiting import burst_s
from pipeline.replay.algorithms import Algorithm, Model
from pipeline.replay.candidates import Candidates, parse_candidates
from pipeline.replay.demand import KEY_OF_API, demands
from pipeline.replay.dispatch import ReplaySettings, recorded_algorithm
from pipeline.replay.kernels.deferral import PRECISION, required_rates
from pipeline.replay.simulation import simulate_batch
from pipeline.storage.layout import CompactedDay
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import OTHER, UsageApi
from testkit.pipeline.client_days import client_days_of, write_client_tables
from testkit.pipeline.compacted_days import DAY, compacted_rows, write_compacted
from testkit.pipeline.usage_lines import LONG_AFTER

BASIS = Basis("2026-11-14", "2026-11-20", 7, 1.0, 0.01, 1.25, "deferral")
GOLDEN = Path(__file__).parent / "golden" / "plan.json"


def history(
    *rates: float,
    user: str = "alice",
    client_id: str = "app",
    api: UsageApi = UsageApi.PRODUCE,
    censored: float = 0.0,
    quota: float | None = None,
    gateways: int = 1,
    beside: float = 0.0,
) -> ClientHistory:
    """A client with these required rates on days from 2026-11-14 on."""
    days = tuple(
        ClientDay(f"2026-11-{14 + i}", rate, 1_000, round(1_000 * censored), quota, gateways, beside=beside)
        for i, rate in enumerate(rates)
    )
    return ClientHistory(user, client_id, api, KEY_OF_API[api], days)


def plan(*histories: ClientHistory, **options: Any) -> Plan:
    peaks = options.pop("peaks", None)
    capacity = options.pop("capacity", None)
    settings = RecommendationSettings(**options)
    return recommend(histories, settings, BASIS, made_at="2026-11-21T00:00:00Z", peaks=peaks, capacity=capacity)


def only(*histories: ClientHistory, **options: Any) -> PlanEntry:
    (entry,) = plan(*histories, **options).entries
    return entry


def test_a_quota_is_the_required_rate_and_a_margin_and_one_that_fits_is_left_alone() -> None:
    entry = only(history(1000.1, 1000.1, 1000.1))
    assert entry.entity == QuotaEntity(user="alice", client_id="app")
    assert entry.key is QuotaKey.PRODUCER_BYTE_RATE
    assert entry.value == 1251.0
    assert entry.action is Action.SET
    assert "1 kB/s" in entry.reason
    assert "0.99 of its use not to wait; +25%" in entry.reason
    kept = only(history(1000.0, 1000.0, quota=1100.0))
    assert (kept.action, kept.value) == (Action.KEEP, 1100.0)
    assert kept.lower <= 1100.0 <= kept.upper
    assert kept.reason.startswith("stays at 1.1 kB/s: a quota from 1 kB/s to 1.88 kB/s is not changed; needed 1 kB/s")
    of_a_part = only(history(1000.0, 1000.0, quota=1099.25))
    assert (of_a_part.action, of_a_part.value) == (Action.KEEP, 1100.0)
    muted = only(history(10.0, censored=0.5, quota=1000.5))
    assert (muted.action, muted.value) == (Action.KEEP, 1001.0)
    # More days make the bounds narrower.
    assert kept.upper < only(history(1000.0)).upper


def test_a_client_that_other_limits_have_muted_is_neither_raised_nor_lowered() -> None:
    """Such as its group: more quota would not have let it pass."""
    entry = only(history(100.0, censored=0.5, quota=1_000.0, beside=1.0))
    assert (entry.action, entry.value) == (Action.KEEP, 1_000.0)
    assert "was muted in 50.0% of its active seconds, 100% of that by other limits than its quota" in entry.reason
    assert only(history(2_000.0, censored=0.5, quota=1_000.0, beside=1.0)).value == 2_500.0
    # Most of the mutes, and still enough by its own quota.
    assert only(history(900.0, censored=0.5, quota=1_000.0, beside=0.9)).value == 1_200.0
    assert only(history(900.0, censored=0.5, beside=1.0)).value == 1_125.0


def test_a_client_of_connections_is_named_by_its_address() -> None:
    assert _name("", "127.0.0.1", UsageApi.CONNECT) == "ip=127.0.0.1"
    assert _name("alice", "app", UsageApi.PRODUCE) == "user=alice,client-id=app"


def test_recent_days_count_more_and_refused_mutations_hide_nothing() -> None:
    falling = history(9000.0, 100.0, 100.0, 100.0, 100.0, 100.0)
    assert only(falling).value == 125.0
    assert only(falling, rule=Rule.LARGEST).value == 11_250.0
    rising = history(100.0, 100.0, 9000.0)
    assert only(rising).value == 11_250.0
    entry = only(history(4.0, api=UsageApi.MUTATION, censored=0.5, quota=20.0))
    assert entry.value == 5.0


@pytest.mark.parametrize("quota", [999.0, 1876.0])
def test_a_quota_in_force_that_does_not_fit_is_set(quota: float) -> None:
    entry = only(history(1000.0, 1000.0, quota=quota))
    assert (entry.action, entry.value, entry.old) == (Action.SET, 1250.0, quota)


def test_a_client_whose_demand_is_hidden_is_only_raised_also_when_its_quota_was_lifted() -> None:
    entry = only(history(400.0, censored=0.5, quota=1000.0))
    assert (entry.action, entry.value) == (Action.SET, 1200.0)
    assert "muted in 50.0% of its active seconds" in entry.reason
    assert "raised from 1 kB/s" in entry.reason
    # A little muting hides nothing that matters.
    assert only(history(400.0, censored=0.005, quota=2000.0)).value == 500.0
    muted = history(*[1_000.0] * 6, censored=0.5, quota=1_000.0)
    quiet = ClientDay("2026-11-20", 10.0, 1_000, 0, None)
    entry = only(replace(muted, days=(*muted.days, quiet)), bump=1.5)
    assert (entry.old, entry.value) == (None, 1_500.0)
    assert "what it wanted is not known: raised from 1 kB/s, lifted meanwhile" in entry.reason


def test_a_guess_has_an_end() -> None:
    produce = QuotaKey.PRODUCER_BYTE_RATE
    # Its fetches were muted, and it was raised by a fifth of its quota each time, without end.
    muted_by_another = history(10.0, censored=0.5, quota=1_000.0)
    entry = only(muted_by_another)
    assert (entry.action, entry.value) == (Action.KEEP, 1_000.0)
    assert "not raised above 4 times the 10 B/s that it was seen to need" in entry.reason
    hungry = history(900.0, censored=0.5, quota=1_000.0)
    assert only(hungry).value == 1_200.0
    assert only(hungry, peaks={produce: 1_150.0}).value == 1_150.0
    entry = only(hungry, peaks={produce: 950.0})
    assert (entry.action, entry.value) == (Action.SET, 1_125.0)  # what it was seen to need is no guess
    assert "not raised above the 950 B/s that all used together" in entry.reason
    assert only(hungry, peaks={produce: 950.0}, capacity={produce: 5_000.0}).value == 1_200.0
    entry = only(hungry, capacity={produce: 1_000.5})
    assert (entry.action, entry.value) == (Action.KEEP, 1_000.0)
    # Week after week.
    quota = 100.0
    for _ in range(100):
        entry = only(history(quota, censored=0.5, quota=quota), margin=1.0, peaks={produce: 5_000.0})
        quota = entry.value
    assert quota == 5_000.0


@pytest.mark.parametrize(("limit", "kept"), [(150.0, 180.0), (180.0, 180.0), (200.0, 180.0)])
def test_no_quota_above_what_the_cluster_can_take_is_kept_or_becomes_a_clients_own(limit: float, kept: float) -> None:
    produce, above = QuotaKey.PRODUCER_BYTE_RATE, history(120.0, quota=180.0)
    value, action = (150.0, Action.SET) if limit < kept else (kept, Action.KEEP)
    entry = only(above, capacity={produce: limit})
    assert (entry.value, entry.action) == (value, action)
    assert entry.upper <= max(limit, entry.value)
    small = history(1.0, user="bob")
    entries = plan(above, small, overrides=1, capacity={produce: limit}).entries
    assert {each.value for each in entries if each.entity.user == "alice"} == {value}


@pytest.mark.parametrize(("required", "quota", "value"), [
    (10_000.0, 1_000.0, 4_000.0), (40.0, 1_000.0, 250.0), (1_200.0, 1_000.0, 1_500.0),
])  # fmt: skip
def test_a_quota_is_not_changed_by_more_than_a_factor_at_once(required: float, quota: float, value: float) -> None:
    # A week of holidays took all of it, and one wild day gave ten times as much.
    entry = only(history(*[required] * 7, quota=quota))
    assert (entry.action, entry.value) == (Action.SET, value)
    assert ("on the way from 1 kB/s" in entry.reason) == (value != 1_500.0)
    assert only(history(*[required] * 7)).value == 1.25 * required


def test_a_quota_that_is_only_watched_has_held_no_client() -> None:
    # It was raised to 12,000: the client was muted, and had this quota.
    watched = history(1_000.0, censored=0.5, quota=10_000.0)
    watched = replace(watched, days=tuple(replace(day, observed=True) for day in watched.days))
    entry = only(watched)
    assert (entry.value, entry.old) == (1_250.0, 10_000.0)
    rows = found({"t": [5, 6], "offered": [9.0, 9.0], "quota": [7.0, 7.0], "observed": [False, True]})
    (day,) = gather(rows)[0][0].days
    assert (day.quota, day.observed) == (7.0, True)
    enforced = {"t": [6], "offered": [9.0], "quota": [70.0], "gw": "b"}
    (day,) = gather([*rows, *found(enforced)])[0][0].days
    assert (day.quota, day.observed) == (70.0, False)


def test_mutations_are_measured_as_the_newest_records_say() -> None:
    days = [
        replace(compacted_day("2026-11-14"), algorithms={"a": ["token_bucket"]}),
        replace(compacted_day("2026-11-15"), algorithms={"a": ["rate"], "b": ["rate"]}),
        compacted_day("2026-11-16"),
    ]
    assert recorded_algorithm(days, option="--algo") is Algorithm.RATE
    assert recorded_algorithm(days[2:], option="--algo") is Algorithm.TOKEN_BUCKET
    row = {"api": "mutation", "t": [5], "e_ms": [5_000], "e_units": [99]}
    (rate,) = client_days_of([row], windows=Windows(mutations=Algorithm.RATE))
    # A Rate passes all windows but one at once, a bucket all.
    assert found(row)[0]["required_rate"] * 11 == pytest.approx(rate["required_rate"] * 10)
    assert ReplaySettings(mutations=Algorithm.RATE).of_api(UsageApi.MUTATION).algorithm is Algorithm.RATE
    for names in (["rate", "spread_rate"], ["new"]):
        with pytest.raises(JobError, match=r"on 2026-11-17 .* say which with --algo"):
            recorded_algorithm([replace(compacted_day("2026-11-17"), algorithms={"a": names})], option="--algo")


def test_shared_counters_get_the_entity_that_shares_them_and_clients_without_a_name_none() -> None:
    assert plan(history(5.0, user="", client_id="")).entries == ()
    assert plan(history(5.0, client_id=OTHER)).entries == ()
    assert plan(history(0.0)).entries == ()
    assert plan(history(5.0, user="", client_id="not an address", api=UsageApi.CONNECT)).entries == ()
    assert entity_of(history(user="alice", client_id="")) == QuotaEntity(user="alice")
    assert entity_of(history(user="", client_id="app")) == QuotaEntity(client_id="app")
    address = history(user="", client_id="10.0.0.1", api=UsageApi.CONNECT)
    assert entity_of(address) == QuotaEntity(ip="10.0.0.1")
    of_user = history(5.0, user="alice", client_id="", api=UsageApi.USER_CONNECT)
    (entry,) = plan(of_user).entries
    assert (entry.entity, entry.key) == (QuotaEntity(user="alice"), QuotaKey.CONNECTION_CREATION_RATE)


@pytest.mark.parametrize(("burst", "margin", "least"), [
    (None, 1.25, 40), (None, 1.5, 20), (None, 1.0, 40), (60.0, 1.25, 240), (1_800.0, 3.0, 900),
])  # fmt: skip
def test_a_few_seconds_on_one_day_make_no_quota(burst: float | None, margin: float, least: int) -> None:
    def seen(*active_s: int, left_out: int = 0, **names: Any) -> ClientHistory:
        made = history(*(5.0 for _ in active_s), **names)
        days = (
            replace(day, active_s=seconds, left_out=at < left_out)
            for at, (day, seconds) in enumerate(zip(made.days, active_s, strict=True))
        )
        return replace(made, days=tuple(days))

    windows = Windows(burst_s=burst)
    short = seen(9_999, least - 1, left_out=1, quota=7.0)
    assert known_enough([short], windows, margin) == ([], {
        ("alice", "app", "produce"): TooLittle(
            "produce of user=alice,client-id=app", f"seen for only {least - 1} s, on 2026-11-15"
        )
    })  # fmt: skip
    # From there on the quota of a client with a constant rate is its rate or more.
    rate = 1_000.0
    required = rate * least / (windows.burst_of(UsageApi.PRODUCE) + least)
    assert margin == 1.0 or required * margin >= rate * 0.999
    enough = [
        seen(least), seen(1, 1), seen(1, api=UsageApi.MUTATION), seen(1, client_id=OTHER),
        seen(1, user="", client_id="10.0.0.1", api=UsageApi.CONNECT), seen(9_999, 1, left_out=2),
    ]  # fmt: skip
    assert known_enough(enough, windows, margin) == (enough, {})


def test_a_default_covers_all_but_the_largest_of_its_kind() -> None:
    histories = [history(100.0 * i, client_id=f"c{i}") for i in range(1, 6)]
    made = plan(*histories, overrides=2)
    found = made.entries
    assert [(str(entry.entity), entry.value) for entry in found] == [
        ("user=<default>,client-id=<default>", 375.0),
        ("user=alice,client-id=c5", 625.0),
        ("user=alice,client-id=c4", 500.0),
    ]
    assert "covers 3 clients" in found[0].reason
    assert found[0].entity == QuotaEntity(user=DEFAULT, client_id=DEFAULT)
    # It is counted for each client that it covers.
    assert made.capacity[0].allocated == 3 * 375 + 625 + 500
    histories = [
        history(100.0, client_id="a"),
        history(900.0, user="bob", client_id=""),
        history(7.0, user="", client_id="10.0.0.1", api=UsageApi.CONNECT),
    ]
    found = plan(*histories, overrides=0).entries
    assert {str(entry.entity) for entry in found} == {
        "user=<default>,client-id=<default>",
        "user=<default>",
        "ip=<default>",
    }


def test_what_a_client_has_of_the_default_becomes_its_own_when_the_default_changes() -> None:
    # Last week the default was as large as the second one needs; now it is for the third.
    entries = plan(
        history(9_000.0, client_id="a"),
        history(4_000.0, client_id="b", quota=5_000.0),
        history(100.0, client_id="c", quota=5_000.0),
        overrides=2,
        largest_change=100.0,
    ).entries
    by_client = {entry.entity.client_id: entry for entry in entries}
    assert by_client[DEFAULT].value == 125
    assert (by_client["b"].action, by_client["b"].value) == (Action.SET, 5_000)
    assert by_client["b"].reason.startswith("its own, whatever the default is")


def test_what_all_may_use_is_compared_with_what_all_used_and_with_the_cluster() -> None:
    histories = [history(100.0, client_id="a"), history(100.0, client_id="b", gateways=2)]
    (check,) = plan(
        *histories, peaks={QuotaKey.PRODUCER_BYTE_RATE: 150.0}, capacity={QuotaKey.PRODUCER_BYTE_RATE: 200.0}
    ).capacity
    assert (check.allocated, check.peak, check.over_allocation, check.fits) == (375.0, 150.0, 2.5, True)
    assert "2.5 times the most that all used together" in check.note
    assert "not more than 53%" in check.note
    (tight,) = plan(
        *histories, peaks={QuotaKey.PRODUCER_BYTE_RATE: 150.0}, capacity={QuotaKey.PRODUCER_BYTE_RATE: 100.0}
    ).capacity
    assert not tight.fits
    assert "do not protect it" in tight.note


@pytest.mark.parametrize(("value", "key", "text"), [
    (999.0, QuotaKey.CONSUMER_BYTE_RATE, "999 B/s"),
    (12_345_678.0, QuotaKey.PRODUCER_BYTE_RATE, "12.3 MB/s"),
    (2.5e9, QuotaKey.PRODUCER_BYTE_RATE, "2.5 GB/s"), (12.5, QuotaKey.REQUEST_PERCENTAGE, "12.5 %"),
    (3.0, QuotaKey.CONTROLLER_MUTATION_RATE, "3 partitions/s"),
    (3.0, QuotaKey.CONNECTION_CREATION_RATE, "3 connections/s"),
])  # fmt: skip
def test_amounts_are_written_for_people(value: float, key: QuotaKey, text: str) -> None:
    assert amount(value, key) == text


def test_the_plan_of_known_clients_is_the_one_kept() -> None:
    # A change of rule, wording or layout shows here; look at the difference, then keep the new one.
    made = plan(
        history(*[5e6, 6e6, 7e6] * 2, 5e6, client_id="orders", quota=4e6),
        history(*[1e6] * 7, client_id="audit", quota=1.3e6),
        history(*[2e5] * 7, client_id="muted", quota=3e5, censored=0.2),
        history(2.0, 4.0, 3.0, user="deploy", client_id="", api=UsageApi.MUTATION),
        history(40.0, 30.0, user="", client_id="10.0.0.7", api=UsageApi.CONNECT, gateways=2),
        peaks={QuotaKey.PRODUCER_BYTE_RATE: 6.5e6, QuotaKey.CONTROLLER_MUTATION_RATE: 5.0},
        capacity={QuotaKey.PRODUCER_BYTE_RATE: 1e8},
    )
    assert made == Plan.from_json(GOLDEN.read_bytes())
    assert made.to_json() == GOLDEN.read_text(encoding="utf-8")


# -- required rates --------------------------------------------------------------------------------------------------
NEXT = DAY + datetime.timedelta(days=1)


def found(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return client_days_of(rows)


def test_workers_find_required_rates_and_the_gateway_with_the_largest_decides() -> None:
    big = {"t": [5, 6], "offered": [1_000.0, 500.0], "quota": [None, 70.0], "censored": [True, False]}
    small = {"t": [7, 20], "offered": [100.0, 100.0], "client_id": "small"}
    rows = found(big, small)
    clients = {row["client_id"]: row for row in rows}
    (demand,) = demands(compacted_rows([big, small]))
    expected = required_rates(demand.by_second(), 0.01, burst_s=10.0)
    required = [clients["c"]["required_rate"], clients["small"]["required_rate"]]
    assert required == pytest.approx(expected.tolist(), rel=2 * PRECISION)
    assert (clients["c"]["quota"], clients["c"]["censored_s"], clients["c"]["active_s"]) == (70.0, 1, 2)
    histories, _ = gather(rows)
    assert [(history.client_id, len(history.days)) for history in histories] == [("c", 1), ("small", 1)]
    rows = found(
        {"t": [5], "offered": [1_000.0], "gw": "a", "quota": [50.0]},
        {"t": [6], "offered": [300.0], "gw": "b", "quota": [60.0]},
        {"t": [5], "offered": [40.0], "date": NEXT},
    )
    histories, _ = gather(rows)
    day, other = histories[0].days
    assert (day.date, other.date, other.gateways) == (DAY.isoformat(), NEXT.isoformat(), 1)
    assert day.required_rate == max(row["required_rate"] for row in rows)
    assert (day.gateways, day.quota, day.active_s) == (2, 50.0, 2)
    assert stricter_than_asked(0.01, Windows()) == []
    told = stricter_than_asked(0.05, Windows(21, 1_000))
    assert "--target 0.05: required rates are kept for 0.03, which is taken" in told
    assert "produce: bursts of 20 s are taken for 10 s" in told


def compacted_day(date: str, completeness: float = 1.0) -> CompactedDay:
    return CompactedDay(date, rows=1, keys=1, completeness=completeness)


def test_days_that_are_not_there_yet_are_waited_for_and_those_that_never_come_are_not() -> None:
    days = [compacted_day("2026-11-14"), compacted_day("2026-11-16", 0.9)]
    chosen, silent = history_days(days, 3, None, LONG_AFTER, allow_gaps=False)
    assert ([day.date for day in chosen], silent) == (["2026-11-14", "2026-11-16"], ["2026-11-15"])
    with pytest.raises(NotYetCompleteError, match=r"2026-11-15 not compacted\. Quotas from fewer days"):
        history_days(days, 3, None, LONG_AFTER, read=["2026-11-15"], allow_gaps=False)
    before = "of 2026-11-12, 2026-11-13 there is nothing: compacted days begin with 2026-11-14"
    with pytest.raises(NotYetCompleteError, match=before):
        history_days(days, 5, None, LONG_AFTER, allow_gaps=False)
    with pytest.raises(NotYetCompleteError, match="of 2026-11-17 there is nothing"):
        history_days(days, 2, "2026-11-17", LONG_AFTER, allow_gaps=False)
    chosen, silent = history_days(days, 5, None, LONG_AFTER, read=["2026-11-15"], allow_gaps=True)
    assert ([day.date for day in chosen], silent) == (["2026-11-14", "2026-11-16"], [])
    chosen, _ = history_days(days, 1, "2026-11-14", LONG_AFTER, allow_gaps=False)
    assert [day.date for day in chosen] == ["2026-11-14"]
    chosen, silent = history_days(days, 1, None, LONG_AFTER, first="2026-11-14", allow_gaps=False)
    assert ([day.date for day in chosen], silent) == (["2026-11-14", "2026-11-16"], ["2026-11-15"])
    with pytest.raises(NotYetCompleteError, match="closed is 2026-11-16, before --from 2026-11-17"):
        history_days(days, 1, None, LONG_AFTER, first="2026-11-17", allow_gaps=False)
    with pytest.raises(ArgumentError, match="--to 'yesterday': say a day"):
        history_days(days, 7, "yesterday", LONG_AFTER, allow_gaps=False)


def test_arguments_are_read() -> None:
    assert burst_s(UsageApi.MUTATION, 11, 1_000) == 11.0
    assert burst_s(UsageApi.PRODUCE, 11, 1_000) == 10.0
    assert burst_s(UsageApi.CONNECT, 1, 500) == 0.5
    assert parse_capacity("produce=200e6, mutation=50") == {
        QuotaKey.PRODUCER_BYTE_RATE: 2e8,
        QuotaKey.CONTROLLER_MUTATION_RATE: 50.0,
    }
    assert parse_capacity("produce=200MB,fetch=1GiB/s,mutation=0.5/s") == {
        QuotaKey.PRODUCER_BYTE_RATE: 2e8,
        QuotaKey.CONSUMER_BYTE_RATE: 2.0**30,
        QuotaKey.CONTROLLER_MUTATION_RATE: 0.5,
    }
    with pytest.raises(JobError, match=r"--capacity produce=200mb: has the unknown unit mb \(did you mean 200MB"):
        parse_capacity("produce=200mb")
    with pytest.raises(JobError, match="--capacity bytes=1"):
        parse_capacity("bytes=1")


def test_the_job_writes_a_plan_that_holds_what_it_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    rows: list[dict[str, Any]] = [
        {
            "date": date,
            "t": list(range(0, 3_000, 2)),
            "offered": (rng.integers(1, 2_000, 1_500) * times).astype(float).tolist(),
            "client_id": name,
        }
        for date in (DAY, NEXT)
        for name, times in (("one", 2), ("two", 1))
    ]
    rows.append({"api": "mutation", "t": [5], "e_ms": [5_000, 5_010, 9_000], "e_units": [50, 50, 50], "date": NEXT})
    rows.append({"t": [5], "offered": [9e9], "client_id": "left", "gw": "late", "date": NEXT})
    write_compacted(tmp_path, rows, gateways={"gw": 1.0, "late": 0.04})
    write_client_tables(tmp_path)
    file = tmp_path / "plan.json"
    argv = ["recommend", "--out", str(tmp_path), "--plan", str(file), "--history", "2"]
    assert main([*argv, "--target", "0.03", "--margin", "1", "--capacity", "produce=1e6"]) == 0
    plan = Plan.from_json(file.read_bytes())
    entries = {(str(entry.entity), entry.key): entry for entry in plan.entries}
    one = entries[str(QuotaEntity(user="u", client_id="one")), QuotaKey.PRODUCER_BYTE_RATE]
    two = entries[str(QuotaEntity(user="u", client_id="two")), QuotaKey.PRODUCER_BYTE_RATE]
    # Twice as many bytes.
    assert one.value == pytest.approx(2 * two.value, rel=0.1)
    assert one.action is Action.SET
    # Without a margin the busier day just meets the target, and both together stay below.
    assert one.expected_throttled is not None
    assert 0.01 < one.expected_throttled <= 0.03
    admin = entries[str(QuotaEntity(user="u", client_id="c")), QuotaKey.CONTROLLER_MUTATION_RATE]
    assert admin.days == 1
    assert [(left.gateway, left.date, left.clients) for left in plan.left_out] == [
        ("late", DAY.isoformat(), 1), ("late", NEXT.isoformat(), 1),
    ]  # fmt: skip
    (unknown,) = plan.too_little
    assert (unknown.client, unknown.reason) == ("produce of user=u,client-id=left", f"{NEXT} left out for late")
    assert (plan.basis.scope, plan.basis.window_num, plan.basis.window_ms) == ("gateway", 11, 1_000)
    said = capsys.readouterr().out
    assert all(left.text() in said for left in plan.left_out)
    assert too_little_text(plan.too_little) in said
    assert "3 quotas, 3 to be set" in said
    assert "producer_byte_rate: quotas add up to" in said


@pytest.mark.slow
def test_a_rate_with_a_burst_is_smaller_and_replays_and_backtest_agree_on_what_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client that sends for half a minute every ten minutes."""
    seconds = [begin + at for begin in range(0, 86_400, 600) for at in range(30)]
    rows: list[dict[str, Any]] = [
        {"date": date, "t": seconds, "offered": [100_000.0] * len(seconds), "max_units": [10_000.0] * len(seconds)}
        for date in (DAY, NEXT)
    ]
    write_compacted(tmp_path, rows)
    write_client_tables(tmp_path)
    file = tmp_path / "plan.json"
    argv = ["recommend", "--out", str(tmp_path), "--plan", str(file), "--history", "2", "--margin", "1"]
    assert main(argv) == 0
    (plain,) = Plan.from_json(file.read_bytes()).entries
    assert main([*argv, "--burst", "60", "--for", "user"]) == Exit.WRONG_ARGUMENTS
    assert "--burst is for each counter" in capsys.readouterr().err
    assert main([*argv, "--burst", "61"]) == 0
    assert "bursts of 61 s are taken for 60 s" in capsys.readouterr().out
    pair = Plan.from_json(file.read_bytes())
    rate, burst = pair.entries
    assert (burst.entity, burst.key, burst.value) == (rate.entity, QuotaKey.PRODUCER_BYTE_BURST_SECONDS, 60.0)
    assert rate.value < 0.6 * plain.value
    candidates = parse_candidates(str(file))
    assert candidates.burst_s == 60.0

    def waits(settings: ReplaySettings) -> float:
        (found,) = simulate_batch(list(demands(compacted_rows(rows))), candidates, settings)
        return sum(found.column("throttled_units").to_pylist()) / sum(found.column("units").to_pylist())

    assert rate.expected_throttled is not None
    assert rate.expected_throttled <= 0.01
    assert waits(ReplaySettings(model=Model.DEFERRAL, burst_s=60.0)) == pytest.approx(
        rate.expected_throttled, abs=1e-3
    )
    # The gateway's own bucket, with clients that wait as asked: the last request of thirty, which waits as a whole.
    assert waits(ReplaySettings(burst_s=60.0)) <= 1 / 30 + 1e-9
    assert waits(ReplaySettings()) > 0.2
    days = client_days_of(rows, windows=Windows(burst_s=60.0))
    judged = evaluator(History.of(days, {}).required[:, -1:])(np.array([[[rate.value]]]))
    assert judged.item() == pytest.approx(rate.expected_throttled, abs=1e-3)


def test_a_plan_with_buckets_of_several_sizes_is_not_replayed() -> None:
    one, other = QuotaEntity(user="a"), QuotaEntity(user="b")
    rate, burst = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.PRODUCER_BYTE_BURST_SECONDS
    assert Candidates(plan=((one, rate, 5.0),)).burst_s is None
    for plan_ in (
        ((one, rate, 5.0), (one, burst, 10.0), (other, rate, 5.0)),
        ((one, rate, 5.0), (one, burst, 10.0), (other, rate, 5.0), (other, burst, 60.0)),
    ):
        with pytest.raises(ArgumentError, match="buckets of one size"):
            assert Candidates(plan=plan_).burst_s
