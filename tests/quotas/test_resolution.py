from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.resolution import Match, Rule, TrackerKey, match_of_tracker, resolve, walk
from testkit.scenarios import scenarios

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
def test_c25_first_configured_of_the_eight_levels_wins_and_shapes_the_counter(levels: set[int]) -> None:
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
    st.sets(st.tuples(st.sampled_from(["u", "v", "<default>", None]), st.sampled_from(["c", "<default>", None]))),
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
    assert [step.rule for step in steps] == list(Rule)[:8]
    assert [(step.rule, step.limit) for step in steps if step.applies] == [(Rule.DEFAULT_USER, 6)]
    assert [str(step.entity) for step in steps if step.limit is not None] == ["user=<default>", "client-id=c"]
    assert not any(step.applies for step in walk(_limits([("u", None, 1)]), KEY, "v", "c"))


# -- prefixes ------------------------------------------------------------------------------------------------
_NAMES = ["a", "ab", "abc", "b", "a*", "ab*", "*", "<default>", None]


def _candidates(name: str) -> list[Name | None]:
    """What stands for a name, best first: itself, prefixes from long to short, the default, nothing."""
    prefixes = [f"{name[:length]}*" for length in range(len(name), 0, -1)]
    return [name, *prefixes, DEFAULT, None]


@given(
    st.lists(
        st.tuples(st.sampled_from(_NAMES), st.sampled_from(_NAMES), st.integers(1, 9)).filter(
            lambda row: any(row[:2])
        ),
        max_size=12,
    )
)
def test_a_prefix_stands_between_the_name_and_the_default_for_the_user_first(quotas: list[Any]) -> None:
    limits = _limits(quotas, prefixes=True)
    values = {(_name(user), _name(client_id)): value for user, client_id, value in quotas}
    for user, client_id in product(["a", "ab", "abc", "b", "c"], repeat=2):
        decided = next((pair for pair in product(_candidates(user), _candidates(client_id)) if pair in values), None)
        match = resolve(limits, KEY, user, client_id)
        assert match.limit == (None if decided is None else values[decided]), (user, client_id)
        if decided is None:
            continue
        named_user, named_client = decided
        # A prefix counts together, a default each by itself, and what is not named is not distinguished.
        expected = (
            "" if named_user is None else user if named_user is DEFAULT else named_user,
            "" if named_client is None else client_id if named_client is DEFAULT else named_client,
        )
        assert match.tracker_key == expected
        assert match_of_tracker(limits, KEY, match.tracker_key) == match
        applied = [step for step in walk(limits, KEY, user, client_id) if step.applies]
        assert [step.entity for step in applied] == [QuotaEntity(named_user, named_client)]


def test_a_prefix_counts_only_where_allowed_and_while_it_is_set() -> None:
    quotas = [(None, "team-*", 5), (None, "<default>", 1)]
    assert resolve(_limits(quotas), KEY, "u", "team-7").limit == 1
    assert resolve(_limits(quotas), KEY, "u", "team-*").limit == 5
    assert resolve(_limits(quotas, prefixes=True), KEY, "u", "team-7").limit == 5
    limits = _limits([(None, "team-*", 5)], prefixes=True)
    limits.remove(QuotaEntity(client_id="team-*"), KEY)
    assert resolve(limits, KEY, "u", "team-7").rule is Rule.NONE
    limits.set(QuotaEntity(client_id="team-*"), KEY, 5)
    limits.replace_all([(QuotaEntity(client_id="t*"), KEY, 3.0)])
    assert resolve(limits, KEY, "u", "team-7").tracker_key == TrackerKey("", "t*")
    limits = _limits([(None, "team-*", 5)], prefixes=True)
    limits.set_observed([QuotaEntity(client_id="team-*")])
    assert resolve(limits, KEY, "u", "team-7") == Match(5, Rule.CLIENT, TrackerKey("", "team-*"), True)
