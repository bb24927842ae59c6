import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationQuotas, MutationSettings, TrackerSnapshot, ValidateOnly
from quotas.resolution import Rule, TrackerKey
from testkit.clock import FakeClock
from testkit.scenarios import scenarios, steps

KEY = QuotaKey.CONTROLLER_MUTATION_RATE
ALICE = QuotaEntity(user="alice")
STRICT_SINCE = {"CreateTopics": 6, "CreatePartitions": 3, "DeleteTopics": 5}


def _quotas(
    quota: float | None, window_num: int = 10, window_s: int = 1, **settings: Any
) -> tuple[MutationQuotas, Limits]:
    limits = Limits()
    if quota is not None:
        limits.set(ALICE, KEY, quota)
    return MutationQuotas(
        limits, MutationSettings(window_num=window_num, window_ms=window_s * 1000, **settings)
    ), limits


def _only(quotas: MutationQuotas, now_ms: int) -> TrackerSnapshot:
    (row,) = quotas.snapshot(now_ms=now_ms)
    return row


@pytest.mark.parametrize("row", [p for p in scenarios("tb") if "strict" in str(p) or "perm" in str(p)])
def test_scenario_token_bucket(row: dict[str, Any], clock: FakeClock) -> None:
    start_ms = clock.now_ms
    quotas, limits = _quotas(row["q"], row["S"], row["W"])
    for at_ms, verb, *args in steps(row):
        now_ms = start_ms + at_ms
        if verb == "quota":
            limits.set(ALICE, KEY, args[0])
            continue
        if verb in ("strict", "perm"):
            decision = quotas.charge("alice", "c", args[0], strict=verb == "strict", now_ms=now_ms)
            expected = args[1:3] if verb == "strict" else [True, args[1]]
            assert [decision.accepted, decision.throttle_time_ms] == expected
        else:
            quotas.charge("alice", "c", 0, strict=True, now_ms=now_ms)
            if not quotas.snapshot(now_ms=now_ms):
                continue
        assert _only(quotas, now_ms).tokens == pytest.approx(args[-1], abs=1e-9)
    if "then" in row:
        refused = quotas.charge_request("alice", "c", [1], strict=True, now_ms=now_ms)
        left_ms = refused.throttle_time_ms_at(now_ms=now_ms + row["then"]["elapsed_ms"])
        assert left_ms == row["then"]["throttle_ms"]


@pytest.mark.parametrize("row", scenarios("req"))
def test_scenario_request(row: dict[str, Any], clock: FakeClock) -> None:
    quotas, _ = _quotas(row["q"], row["S"], row["W"])
    strict = row["v"] >= STRICT_SINCE[row["api"]]
    permits = [n for _, n in row["topics"]]
    decision = quotas.charge_request("alice", "c", permits, strict=strict, now_ms=clock.now_ms)
    assert [0 if topic.accepted else 89 for topic in decision.topics] == row["codes"]
    assert decision.throttle_time_ms == row["throttle_ms"]
    if "tokens_after" in row:
        assert _only(quotas, clock.now_ms).tokens == row["tokens_after"]


@pytest.mark.parametrize("row", scenarios("vo"))
def test_scenario_validate_only(row: dict[str, Any], clock: FakeClock) -> None:
    quotas, _ = _quotas(row["q"], row["S"], row["W"], validate_only=ValidateOnly(row["mode"]))
    burst = row["q"] * row["S"] * row["W"]
    quotas.charge("alice", "c", burst - row["debt"], strict=True, now_ms=clock.now_ms)
    decision = quotas.charge_request("alice", "c", [5], strict=True, validate_only=True, now_ms=clock.now_ms)
    assert [0 if topic.accepted else 89 for topic in decision.topics] == [row["code"]]
    assert decision.throttle_time_ms == row["throttle_ms"]
    assert _only(quotas, clock.now_ms).tokens == row["debt"] - row["charged"]


def test_kraft_charges_a_validate_only_request_that_it_accepts(clock: FakeClock) -> None:
    quotas, _ = _quotas(2, validate_only=ValidateOnly.KRAFT)
    quotas.charge_request("alice", "c", [30], strict=True, validate_only=True, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).tokens == -10


def test_the_throttle_shrinks_while_the_broker_works_and_looking_charges_nothing(clock: FakeClock) -> None:
    quotas, _ = _quotas(2)
    decision = quotas.charge_request("alice", "c", [30], strict=False, now_ms=clock.now_ms)
    assert decision.throttle_time_ms == 5_000
    assert decision.throttle_time_ms_at(now_ms=clock.advance(1_200)) == 3_800
    assert decision.throttle_time_ms_at(now_ms=clock.advance(60_000)) == 0
    quotas, _ = _quotas(2)
    assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == 0
    assert quotas.snapshot(now_ms=clock.now_ms) == []
    quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    for _ in range(3):
        assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == 5_000
    assert quotas.throttle_time_ms("alice", "c", now_ms=clock.advance(5_000)) == 0


def test_a_refund_gives_back_what_was_taken_from_the_counter_it_was_taken_from(clock: FakeClock) -> None:
    quotas, _ = _quotas(2)
    decision = quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    quotas.refund(decision, 12, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).tokens == 2
    assert quotas.charge("alice", "c", 1, strict=True, now_ms=clock.now_ms).accepted
    quotas, _ = _quotas(2)
    first = quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    refused = quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    quotas.refund(refused, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).tokens == -10
    quotas.refund(first, 1_000, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).tokens == 20
    quotas.refund(first, -5, now_ms=clock.now_ms)  # the topic has more partitions by now than were paid for
    assert _only(quotas, clock.now_ms).tokens == 20
    quotas, limits = _quotas(2)
    decision = quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    limits.set(QuotaEntity("alice", "c"), KEY, 5)
    quotas.charge("alice", "c", 60, strict=True, now_ms=clock.now_ms)
    quotas.refund(decision, now_ms=clock.now_ms)
    rows = {(row.user, row.client_id): row.tokens for row in quotas.snapshot(now_ms=clock.now_ms)}
    assert rows == {("alice", ""): 20, ("alice", "c"): -10}


def test_a_topic_that_costs_nothing_or_is_rejected_leaves_the_debt_as_it_is(clock: FakeClock) -> None:
    # In debt a broker still answers its own errors for topics that are wrong anyway.
    quotas, _ = _quotas(2)
    quotas.charge("alice", "c", 100, strict=True, now_ms=clock.now_ms)
    decision = quotas.charge_request("alice", "c", [0, 1, 0], strict=True, now_ms=clock.now_ms)
    assert [topic.accepted for topic in decision.topics] == [True, False, True]
    quotas, _ = _quotas(2)
    quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    for _ in range(5):
        assert not quotas.charge("alice", "c", 1_000, strict=True, now_ms=clock.now_ms).accepted
    assert _only(quotas, clock.now_ms).tokens == -10
    assert _only(quotas, clock.now_ms).refused_total == 5


def test_limits_that_come_change_and_go_find_the_counters_that_were(clock: FakeClock) -> None:
    quotas, limits = _quotas(None)
    decision = quotas.charge("alice", "c", 10**6, strict=True, now_ms=clock.now_ms)
    assert (decision.accepted, decision.throttle_time_ms, decision.limit) == (True, 0, None)
    assert quotas.snapshot(now_ms=clock.now_ms) == []
    limits.set(ALICE, KEY, 1)
    quotas.charge("alice", "c", 3, strict=True, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).tokens == 7
    quotas, limits = _quotas(2)
    quotas.charge("alice", "c", 30, strict=True, now_ms=clock.now_ms)
    limits.set(ALICE, KEY, 10)
    assert _only(quotas, clock.now_ms).limit == 10
    assert quotas.throttle_time_ms("alice", "c", now_ms=clock.now_ms) == 1_000
    # Kafka 4.3.1: 500 more are accepted uncharged, and when the quota is back so is the debt.
    quotas, limits = _quotas(1, window_num=11)
    quotas.charge("alice", "c", 100, strict=True, now_ms=clock.now_ms)
    limits.remove(ALICE, KEY)
    assert quotas.charge("alice", "c", 500, strict=True, now_ms=clock.now_ms).accepted
    quotas.snapshot(now_ms=clock.advance(600))
    limits.set(ALICE, KEY, 1)
    decision = quotas.charge("alice", "c", 1, strict=True, now_ms=clock.advance(400))
    assert (decision.accepted, decision.throttle_time_ms) == (False, 88_000)


def test_clients_share_the_counter_of_their_quota_and_unlimited_ones_are_counted(clock: FakeClock) -> None:
    quotas, _ = _quotas(1)
    for _ in range(3):
        decision = quotas.charge("bob", "c", 1_000, strict=False, now_ms=clock.now_ms)
        assert (decision.accepted, decision.throttle_time_ms, decision.rule) == (True, 0, Rule.NONE)
    row = _only(quotas, clock.now_ms)
    assert (row.user, row.limit, row.tokens) == ("bob", None, None)
    assert row.mutation_rate == pytest.approx(3_000 / 30)
    limits = Limits()
    limits.set(ALICE, KEY, 1)
    limits.set(QuotaEntity(DEFAULT, DEFAULT), KEY, 1)
    quotas = MutationQuotas(limits, MutationSettings())
    quotas.charge("alice", "c1", 20, strict=True, now_ms=clock.now_ms)
    assert not quotas.charge("alice", "c2", 1, strict=True, now_ms=clock.now_ms).accepted
    quotas.charge("bob", "c1", 20, strict=True, now_ms=clock.now_ms)
    assert quotas.charge("bob", "c2", 1, strict=True, now_ms=clock.now_ms).accepted
    assert not quotas.charge("bob", "c1", 1, strict=True, now_ms=clock.now_ms).accepted


@pytest.mark.parametrize("permits", [-1, math.nan, math.inf])
def test_permits_that_are_no_amount_are_a_bug(permits: float, clock: FakeClock) -> None:
    quotas, _ = _quotas(2)
    with pytest.raises(ValueError, match="permits"):
        quotas.charge("alice", "c", permits, strict=True, now_ms=clock.now_ms)


def test_throttled_requests_are_counted_with_their_time(clock: FakeClock) -> None:
    quotas, _ = _quotas(2)
    quotas.charge("alice", "c", 30, strict=False, now_ms=clock.now_ms)
    assert _only(quotas, clock.now_ms).throttle_time_ms is None
    quotas.count_throttle("alice", "c", 5_000, now_ms=clock.now_ms)
    quotas.count_throttle("alice", "c", 1_000, now_ms=clock.now_ms)
    quotas.count_throttle("alice", "c", 0, now_ms=clock.now_ms)
    row = _only(quotas, clock.now_ms)
    assert (row.throttled_total, row.throttled_ms_total, row.throttle_time_ms) == (2, 6_000, 3_000)


def test_hazard_c24_i03_a_flood_of_client_ids_forgives_no_debt_and_keeps_the_totals(clock: FakeClock) -> None:
    limits = Limits()
    limits.set(QuotaEntity(client_id=DEFAULT), KEY, 1)
    quotas = MutationQuotas(limits, MutationSettings(window_num=10, max_trackers=5))
    for i in range(5):
        quotas.charge("u", f"debtor-{i}", 1_000, strict=True, now_ms=clock.now_ms)
    for i in range(100):
        quotas.charge("u", f"newcomer-{i}", 1, strict=True, now_ms=clock.now_ms)
    for i in range(5):
        assert not quotas.charge("u", f"debtor-{i}", 1, strict=True, now_ms=clock.now_ms).accepted
    rows = quotas.snapshot(now_ms=clock.now_ms)
    assert len(rows) == 6
    other = rows[-1]
    assert (other.other, other.limit) == (True, 1)
    assert other.refused_total == 100 - 11  # ten tokens, one more goes into debt
    # When the debts are paid there is room again, and what was counted is still in the totals.
    clock.advance(2_000_000)
    quotas.charge("u", "late", 1, strict=True, now_ms=clock.now_ms)
    assert sum(row.refused_total for row in quotas.snapshot(now_ms=clock.now_ms)) == 89 + 5


def test_a_shared_charge_is_refunded_to_the_shared_counter(clock: FakeClock) -> None:
    limits = Limits()
    limits.set(QuotaEntity(client_id=DEFAULT), KEY, 1)
    quotas = MutationQuotas(limits, MutationSettings(window_num=10, max_trackers=1))
    quotas.charge("u", "debtor", 1_000, strict=True, now_ms=clock.now_ms)
    decision = quotas.charge("u", "newcomer", 20, strict=True, now_ms=clock.now_ms)
    assert decision.tracker_key == TrackerKey("", "newcomer")
    quotas.refund(decision, now_ms=clock.now_ms)
    assert quotas.snapshot(now_ms=clock.now_ms)[-1].tokens == 10
    decision = quotas.charge("u", "newcomer", 20, strict=True, now_ms=clock.now_ms)
    quotas.charge("u", "newcomer", 1, strict=True, now_ms=clock.advance(40_000))
    quotas.refund(decision, now_ms=clock.advance(40_000))  # of which the rate has forgotten the charge
    assert quotas.snapshot(now_ms=clock.now_ms)[-1].mutation_rate == 0


@pytest.mark.parametrize("algorithm", list(MutationAlgorithm))
@given(series=st.lists(st.tuples(st.integers(0, 5_000), st.booleans(), st.integers(1, 60)), max_size=20))
def test_strict_refusal_takes_nothing_and_permissive_never_refuses(
    algorithm: MutationAlgorithm, series: list[tuple[int, bool, int]]
) -> None:
    quotas, _ = _quotas(3, algorithm=algorithm)
    now_ms = 0
    for wait_ms, strict, permits in series:
        now_ms += wait_ms
        before = quotas.snapshot(now_ms=now_ms)
        decision = quotas.charge("alice", "c", permits, strict=strict, now_ms=now_ms)
        if not decision.accepted:
            assert strict
            assert decision.throttle_time_ms > 0
            assert _only(quotas, now_ms).tokens == before[0].tokens
        elif strict:
            assert decision.throttle_time_ms == 0


@given(st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 50), st.booleans()), max_size=40))
def test_accepted_permits_stay_within_burst_and_refill(series: list[tuple[int, int, bool]]) -> None:
    quotas, _ = _quotas(3)
    now_ms = 0
    taken = 0.0
    for wait_ms, permits, refund in series:
        now_ms += wait_ms
        decision = quotas.charge("alice", "c", permits, strict=True, now_ms=now_ms)
        if refund:
            quotas.refund(decision, now_ms=now_ms)
        elif decision.accepted:
            taken += permits
    rows = quotas.snapshot(now_ms=now_ms)
    tokens = rows[0].tokens if rows else 30.0
    assert tokens is not None
    assert tokens <= 30
    assert taken <= 30 + 3 * now_ms / 1000 - tokens + 1e-6


@pytest.mark.parametrize("strict", [True, False])
def test_observe_mode_refuses_and_delays_nobody_and_builds_no_debt_of_refusals(
    strict: bool, clock: FakeClock
) -> None:
    quotas, limits = _quotas(2)
    limits.set_observed([ALICE])
    for _ in range(3):
        decision = quotas.charge("alice", "c", 30, strict=strict, now_ms=clock.now_ms)
        assert (decision.accepted, decision.throttle_time_ms) == (True, 0)
    row = _only(quotas, clock.now_ms)
    assert row.refused_total == 0
    assert row.would_throttle_total == (2 if strict else 3)
    assert row.tokens == (-10 if strict else -70)
    limits.set_observed()
    assert not quotas.charge("alice", "c", 1, strict=True, now_ms=clock.now_ms).accepted


def test_a_throttle_is_counted_with_the_counter_that_the_clients_kind_shares(clock: FakeClock) -> None:
    limits = Limits()
    limits.set(QuotaEntity("alice", DEFAULT), KEY, 2.0)
    quotas = MutationQuotas(limits, MutationSettings(window_num=10, max_trackers=1))
    for client_id in ("a", "b"):
        quotas.charge("alice", client_id, 30, strict=True, kind="here", now_ms=clock.now_ms)
    for kind in ("here", "elsewhere"):
        quotas.count_throttle("alice", "b", 5_000, kind=kind, now_ms=clock.now_ms)
    assert sum(row.throttled_total for row in quotas.snapshot(now_ms=clock.now_ms)) == 1
