from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.resolution import Match, Rule, TrackerKey, match_of_tracker, resolve, walk
from tests.support.scenarios import scenarios

KEY = QuotaKey.CONTROLLER_MUTATION_RATE


def _name(text: str | None) -> Name | None:
    return DEFAULT if text == "<default>" else text


def _limits(quotas: list[Any], **options: Any) -> Limits:
    limits = Limits(**options)
    for user, client_id, value in quotas:
        limits.set(QuotaEntity(_name(user), _name(client_id)), KEY, value)
    return limits


@pytest.mark.parametrize("row", scenarios("prec"))
def test_scenario_precedence(row: dict[str, Any]) -> None:
    limits = Limits()
    if "uc" in row.get("touched", ()):
        limits.set(QuotaEntity("once", "once"), KEY, 1)
    for user, client_id, value in row["quotas"]:
        limits.set(QuotaEntity(_name(user), _name(client_id)), KEY, value)
    limits.remove(QuotaEntity("once", "once"), KEY)
    for user, client_id, limit, tags in row.get("lookups", ()):
        match = resolve(limits, KEY, user, client_id)
        assert (match.limit, ":".join(match.tracker_key)) == (limit, tags), (user, client_id)
    if row.get("peel"):
        found = []
        for user, client_id, _ in row["quotas"]:
            found.append(resolve(limits, KEY, *row["who"]).limit)
            limits.remove(QuotaEntity(_name(user), _name(client_id)), KEY)
        assert found == row["expect"]
        assert resolve(limits, KEY, *row["who"]).limit is None


EIGHT: list[tuple[str | None, str | None]] = [
    ("u", "c"), ("u", "<default>"), ("u", None), ("<default>", "c"),
    ("<default>", "<default>"), ("<default>", None), (None, "c"), (None, "<default>"),
]  # fmt: skip


@given(st.sets(st.integers(0, 7), min_size=1))
def test_first_configured_of_the_eight_levels_wins_and_shapes_the_counter(levels: set[int]) -> None:
    limits = _limits([(*EIGHT[level], level + 1) for level in levels])
    match = resolve(limits, KEY, "u", "c")
    user, client_id = EIGHT[min(levels)]
    assert match.limit == min(levels) + 1
    assert match.rule is list(Rule)[min(levels)]
    assert match.tracker_key == ("u" if user else "", "c" if client_id else "")


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_family_whose_last_quota_is_gone_no_longer_shapes_counters(order: list[int]) -> None:
    # Kafka 4.3.1: with one family left, an unlimited client is counted in that family's shape.
    quotas = [("alice", None, 5), ("alice", "c", 6)]
    limits = _limits([quotas[i] for i in order])
    assert resolve(limits, KEY, "bob", "x").tracker_key == ("", "x")
    limits.remove(QuotaEntity("alice"), KEY)
    assert resolve(limits, KEY, "bob", "x").tracker_key == ("bob", "x")
    limits.set(QuotaEntity("alice"), KEY, 5)
    limits.remove(QuotaEntity("alice", "c"), KEY)
    assert resolve(limits, KEY, "bob", "x").tracker_key == ("bob", "")


def test_an_entity_literally_named_default_is_no_default() -> None:
    limits = Limits()
    limits.set(QuotaEntity(user="<default>"), KEY, 1)
    limits.set(QuotaEntity(user=DEFAULT), KEY, 2)
    assert resolve(limits, KEY, "<default>", "c").limit == 1
    assert resolve(limits, KEY, "anyone", "c").limit == 2


@pytest.mark.parametrize(
    ("quotas", "kafka", "as_named"),
    [
        ([(None, "<default>", 8)], Match(None, Rule.NONE, TrackerKey("", "")),
         Match(8, Rule.DEFAULT_CLIENT, TrackerKey("", ""))),
        ([("u", "<default>", 2)], Match(None, Rule.NONE, TrackerKey("u", "")),
         Match(2, Rule.USER_DEFAULT_CLIENT, TrackerKey("u", ""))),
        ([("u", "<default>", 2), ("u", None, 3)], Match(3, Rule.USER, TrackerKey("u", "")),
         Match(2, Rule.USER_DEFAULT_CLIENT, TrackerKey("u", ""))),
        ([("<default>", "<default>", 5), ("u", None, 3)], Match(3, Rule.USER, TrackerKey("u", "")),
         Match(3, Rule.USER, TrackerKey("u", ""))),
    ],
)  # fmt: skip
def test_a_client_without_an_id_escapes_default_clients_unless_told_otherwise(
    quotas: list[Any], kafka: Match, as_named: Match
) -> None:
    assert resolve(_limits(quotas), KEY, "u", "") == kafka
    assert resolve(_limits(quotas, empty_client_id="as_named"), KEY, "u", "") == as_named


@given(
    st.sets(
        st.tuples(st.sampled_from(["u", "v", "<default>", None]), st.sampled_from(["c", "<default>", None]))
    ),
    st.sampled_from(["kafka", "as_named"]),
)
def test_a_counter_alone_finds_the_quota_that_made_it(pairs: set[Any], empty_client_id: Any) -> None:
    quotas = [(u, c, i + 1) for i, (u, c) in enumerate(sorted(pairs, key=str)) if (u, c) != (None, None)]
    limits = _limits(quotas, empty_client_id=empty_client_id)
    for user, client_id in product("uvw", ["c", "d", ""]):
        match = resolve(limits, KEY, user, client_id)
        assert match_of_tracker(limits, KEY, match.tracker_key) == match


def test_walk_shows_all_levels_and_marks_the_one_that_decides() -> None:
    limits = _limits([("<default>", None, 6), (None, "c", 7)])
    steps = walk(limits, KEY, "u", "c")
    assert [step.rule for step in steps] == [rule for rule in Rule if rule is not Rule.NONE]
    assert [(step.rule, step.limit) for step in steps if step.applies] == [(Rule.DEFAULT_USER, 6)]
    assert [str(step.entity) for step in steps if step.limit is not None] == ["user=<default>", "client-id=c"]


def test_walk_marks_nothing_for_an_unlimited_client() -> None:
    assert not any(step.applies for step in walk(_limits([("u", None, 1)]), KEY, "v", "c"))
