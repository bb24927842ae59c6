"""What is advised, and that the reason says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.advice import AdviceSettings, ClientHistory, DayNeed, Rule, advise, amount, entity_of, need_of
from pipeline.backtest_rules import OURS, RULES
from pipeline.demand import KEY_OF_API
from pipeline.plan import Action, Basis, Plan, PlanEntry
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import OTHER, UsageApi

BASIS = Basis("2026-11-14", "2026-11-20", 7, 1.0, 0.01, 1.25, "deferral")
GOLDEN = Path(__file__).parent / "golden" / "plan.json"


def history(
    *needs: float,
    user: str = "alice",
    client_id: str = "app",
    api: UsageApi = UsageApi.PRODUCE,
    censored: float = 0.0,
    quota: float | None = None,
    gateways: int = 1,
) -> ClientHistory:
    """A client with these needs on days from 2026-11-14 on."""
    days = tuple(
        DayNeed(f"2026-11-{14 + i}", need, 1_000, round(1_000 * censored), quota, gateways)
        for i, need in enumerate(needs)
    )
    return ClientHistory(user, client_id, api, KEY_OF_API[api], days)


def plan(*histories: ClientHistory, **options: Any) -> Plan:
    peaks = options.pop("peaks", None)
    capacity = options.pop("capacity", None)
    settings = AdviceSettings(**options)
    return advise(histories, settings, BASIS, made_at="2026-11-21T00:00:00Z", peaks=peaks, capacity=capacity)


def only(*histories: ClientHistory, **options: Any) -> PlanEntry:
    (entry,) = plan(*histories, **options).entries
    return entry


def test_a_quota_is_the_need_and_a_margin_in_whole_bytes() -> None:
    entry = only(history(1000.1, 1000.1, 1000.1))
    assert entry.entity == QuotaEntity(user="alice", client_id="app")
    assert entry.key is QuotaKey.PRODUCER_BYTE_RATE
    assert entry.value == 1251.0
    assert entry.action is Action.SET
    assert "1 kB/s" in entry.reason
    assert "0.99 of its use not to wait; +25%" in entry.reason


def test_recent_days_count_more_and_the_largest_day_is_another_rule() -> None:
    falling = history(9000.0, 100.0, 100.0, 100.0, 100.0, 100.0)
    assert only(falling).value == 125.0
    assert only(falling, rule=Rule.LARGEST).value == 11_250.0
    rising = history(100.0, 100.0, 9000.0)
    assert only(rising).value == 11_250.0


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=7))
def test_the_rule_is_the_one_that_the_backtest_judges(needs: list[float]) -> None:
    (rule,) = (rule for rule in RULES if rule.name == OURS)
    judged = rule.quota({"need": np.array([needs])})[0]
    assert need_of(history(*needs).days, Rule.DECAYED) == judged
    assert rule.margin == AdviceSettings().margin


def test_a_quota_in_force_that_fits_is_left_alone() -> None:
    kept = only(history(1000.0, 1000.0, quota=1100.0))
    assert (kept.action, kept.value) == (Action.KEEP, 1100.0)
    assert kept.lower <= 1100.0 <= kept.upper
    assert kept.reason.startswith("1.1 kB/s is within")


@pytest.mark.parametrize("quota", [999.0, 1876.0])
def test_a_quota_in_force_that_does_not_fit_is_set(quota: float) -> None:
    entry = only(history(1000.0, 1000.0, quota=quota))
    assert (entry.action, entry.value, entry.old) == (Action.SET, 1250.0, quota)


def test_more_days_make_the_bounds_narrower() -> None:
    few, many = only(history(1000.0)), only(history(*[1000.0] * 7))
    assert many.upper < few.upper
    assert many.lower == few.lower


def test_a_client_whose_demand_is_hidden_is_only_raised() -> None:
    entry = only(history(400.0, censored=0.5, quota=1000.0))
    assert (entry.action, entry.value) == (Action.SET, 1200.0)
    assert "muted in 50.0% of its active seconds" in entry.reason
    assert "raised from 1 kB/s" in entry.reason


def test_a_client_whose_quota_was_lifted_is_not_held_to_what_it_got_through_while_muted() -> None:
    muted = history(*[1_000.0] * 6, censored=0.5, quota=1_000.0)
    quiet = DayNeed("2026-11-20", 10.0, 1_000, 0, None)
    entry = only(replace(muted, days=(*muted.days, quiet)), bump=1.5)
    assert (entry.old, entry.value) == (None, 1_500.0)
    assert "what it wanted is not known: raised from 1 kB/s, lifted meanwhile" in entry.reason


def test_a_little_muting_hides_nothing_that_matters() -> None:
    assert only(history(400.0, censored=0.005, quota=2000.0)).value == 500.0


def test_refused_mutations_are_recorded_so_nothing_is_hidden() -> None:
    entry = only(history(4.0, api=UsageApi.MUTATION, censored=0.5, quota=20.0))
    assert entry.value == 5.0


def test_nobody_and_the_sum_of_the_rest_get_no_quota() -> None:
    assert plan(history(5.0, user="", client_id="")).entries == ()
    assert plan(history(5.0, client_id=OTHER)).entries == ()
    assert plan(history(0.0)).entries == ()
    assert plan(history(5.0, user="", client_id="not an address", api=UsageApi.CONNECT)).entries == ()


def test_shared_counters_get_the_entity_that_shares_them() -> None:
    assert entity_of(history(user="alice", client_id="")) == QuotaEntity(user="alice")
    assert entity_of(history(user="", client_id="app")) == QuotaEntity(client_id="app")
    address = history(user="", client_id="10.0.0.1", api=UsageApi.CONNECT)
    assert entity_of(address) == QuotaEntity(ip="10.0.0.1")


def test_a_default_covers_all_but_the_largest() -> None:
    histories = [history(100.0 * i, client_id=f"c{i}") for i in range(1, 6)]
    found = plan(*histories, overrides=2).entries
    assert [(str(entry.entity), entry.value) for entry in found] == [
        ("user=<default>,client-id=<default>", 375.0),
        ("user=alice,client-id=c5", 625.0),
        ("user=alice,client-id=c4", 500.0),
    ]
    assert "covers 3 clients" in found[0].reason
    assert found[0].entity == QuotaEntity(user=DEFAULT, client_id=DEFAULT)


def test_what_a_client_has_of_the_default_becomes_its_own_when_the_default_changes() -> None:
    # Last week the default was as large as the second one needs; now it is for the third.
    entries = plan(
        history(9_000.0, client_id="a"),
        history(4_000.0, client_id="b", quota=5_000.0),
        history(100.0, client_id="c", quota=5_000.0),
        overrides=2,
    ).entries
    by_client = {entry.entity.client_id: entry for entry in entries}
    assert by_client[DEFAULT].value == 125
    assert (by_client["b"].action, by_client["b"].value) == (Action.SET, 5_000)
    assert by_client["b"].reason.startswith("its own, whatever the default is")


def test_each_kind_of_entity_gets_a_default_of_its_own() -> None:
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


def test_what_all_may_use_is_compared_with_what_all_used_and_with_the_cluster() -> None:
    histories = [history(100.0, client_id="a"), history(100.0, client_id="b", gateways=2)]
    (check,) = plan(
        *histories,
        peaks={QuotaKey.PRODUCER_BYTE_RATE: 150.0},
        capacity={QuotaKey.PRODUCER_BYTE_RATE: 200.0},
    ).capacity
    assert (check.allocated, check.peak, check.over_allocation, check.fits) == (375.0, 150.0, 2.5, True)
    assert "2.5 times the most that all used together" in check.note
    assert "not more than 53%" in check.note
    (tight,) = plan(
        *histories,
        peaks={QuotaKey.PRODUCER_BYTE_RATE: 150.0},
        capacity={QuotaKey.PRODUCER_BYTE_RATE: 100.0},
    ).capacity
    assert not tight.fits
    assert "do not protect it" in tight.note


def test_a_default_is_counted_for_each_client_that_it_covers() -> None:
    histories = [history(100.0 * i, client_id=f"c{i}") for i in range(1, 6)]
    (check,) = plan(*histories, overrides=2).capacity
    assert check.allocated == 3 * 375 + 625 + 500


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        (999.0, QuotaKey.CONSUMER_BYTE_RATE, "999 B/s"),
        (12_345_678.0, QuotaKey.PRODUCER_BYTE_RATE, "12.3 MB/s"),
        (2.5e9, QuotaKey.PRODUCER_BYTE_RATE, "2.5 GB/s"),
        (12.5, QuotaKey.REQUEST_PERCENTAGE, "12.5 %"),
        (3.0, QuotaKey.CONTROLLER_MUTATION_RATE, "3 partitions/s"),
        (3.0, QuotaKey.CONNECTION_CREATION_RATE, "3 connections/s"),
    ],
)
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
