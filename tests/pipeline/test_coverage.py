"""How much of its gateways' time a day has, which days are over, and what is made of a day that lacks some."""

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import NotYetCompleteError
from pipeline.jobs.recommend import history_days
from pipeline.plans.plan import TooLittle, too_little_text
from pipeline.recommend.doubt import ALL_GATEWAYS, Doubt, doubts_of
from pipeline.recommend.recommendation import ClientDay, RecommendationSettings, Rule, entry_of, required_rate_of
from pipeline.recommend.required_rates import gather
from pipeline.storage.compacted_days import CompactedState
from pipeline.storage.coverage import AHEAD_S, Clash, Coverage, Expectation, coverage, short_gateways
from pipeline.storage.layout import CompactedDay
from pipeline.storage.losses import with_losses
from pipeline.storage.offset_index import DAY_S, Entry, Interval, OffsetIndex, Run
from pipeline.storage.raw_table import RawState, raw_table
from quotas.usage_record import OTHER
from testkit.pipeline.client_days import client_days_of, client_table, left_of

DAY = 20_000
NAME, NEXT = "2024-10-04", "2024-10-05"
MIDNIGHT = DAY * DAY_S
LATER = Expectation(MIDNIGHT + 30 * DAY_S)


def index_of(*intervals: tuple[str, int, int], boot_s: int = -1) -> OffsetIndex:
    """Gateways with lines from one second of the day to another, numbered since their start."""
    runs: dict[Run, tuple[Interval, ...]] = {}
    for gw, begin, end in intervals:
        run = Run(gw, (MIDNIGHT + boot_s) * 1000)
        seq = begin - boot_s - 1
        own = Interval(seq, seq + end - begin - 1, MIDNIGHT + begin, MIDNIGHT + end - 1)
        runs[run] = (*runs.get(run, ()), own)
    return OffsetIndex(runs)


def shares(index: OffsetIndex, expectation: Expectation = LATER) -> dict[str, dict[str, float]]:
    return {day: of_day.shares() for day, of_day in coverage(index, expectation).items()}


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 11), st.integers(0, 86_000), st.integers(1, 200_000)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 12),
    st.sampled_from([frozenset(), frozenset("a"), frozenset("ad")]),
)
def test_what_is_forgotten_changes_no_day_that_is_still_known(
    drawn: list[tuple[str, int, int, int]], first: int, expected: frozenset[str]
) -> None:
    runs = {
        Run(gw, begin * 1000): (Interval(0, length - 1, begin, begin + length - 1),)
        for gw, day, second, length in drawn
        for begin in (MIDNIGHT + day * DAY_S + second,)
    }
    index = OffsetIndex(runs)
    left = index.forget(MIDNIGHT + first * DAY_S)
    expectation = Expectation(MIDNIGHT + 60 * DAY_S, gateways=expected)
    before, after = coverage(index, expectation), coverage(left, expectation)
    known = (datetime.date(2024, 10, 4) + datetime.timedelta(days=first)).isoformat()
    # Without any line that is left, no day has a place.
    begins = min((name for name in after), default="9999")
    assert {day: found for day, found in before.items() if day >= max(known, begins)} == {
        day: found for day, found in after.items() if day >= max(known, begins)
    }
    assert all(run in left.runs for run, (own,) in runs.items() if own.last_ts >= MIDNIGHT + first * DAY_S)


def test_a_gateway_that_is_silent_from_noon_on_has_half_of_its_day() -> None:
    # It was 100 %: no line came after the hole.
    index = index_of(("a", 0, DAY_S // 2))
    assert list(index.gaps()) == []
    assert shares(index) == {NAME: {"a": 0.5}}
    assert coverage(index, LATER)[NAME].silent() == {"a": ((MIDNIGHT + DAY_S // 2, MIDNIGHT + DAY_S),)}


def test_one_of_twenty_that_lost_nearly_all_is_named_though_the_whole_would_pass() -> None:
    few = 1_728
    whole = [(f"g{number:02}", 0, DAY_S) for number in range(19)]
    index = index_of(*whole, ("late", 0, few), ("late", DAY_S - few, DAY_S))
    found = coverage(index, LATER)[NAME]
    assert found.share == pytest.approx(0.952)
    assert short_gateways([found.shares()]) == {"late": pytest.approx(0.04)}


def test_the_longest_spans_without_lines_are_told_of_a_gateway_that_is_short() -> None:
    index = index_of(("a", 0, 20_000), ("a", 20_001, 30_000), ("a", 50_000, 60_000), ("a", 60_100, 80_000))
    (found,) = coverage(index, LATER).values()
    silent = [(begin - MIDNIGHT, end - MIDNIGHT) for begin, end in found.silent()["a"]]
    assert silent == [(30_000, 50_000), (60_000, 60_100), (80_000, DAY_S)]
    assert coverage(index_of(("a", 0, 84_000)), LATER)[NAME].silent() == {}


def test_a_gateway_that_is_gone_is_missed_for_a_day_and_one_that_is_expected_every_day() -> None:
    index = index_of(("a", 0, 3 * DAY_S), ("gone", 0, DAY_S))
    days = shares(index)
    assert [of_day.get("gone") for of_day in days.values()] == [1.0, 0.0, None]
    assert [of_day["a"] for of_day in days.values()] == [1.0, 1.0, 1.0]
    # Only the named are: the other was stopped.
    named = replace(LATER, gateways=frozenset({"a"}))
    assert [of_day.get("gone") for of_day in shares(index, named).values()] == [1.0, None, None]
    named = replace(LATER, gateways=frozenset({"a", "gone", "never"}))
    assert [of_day["gone"] for of_day in shares(index, named).values()] == [1.0, 0.0, 0.0]
    assert [of_day["never"] for of_day in shares(index, named).values()] == [0.0, 0.0, 0.0]


def test_time_counts_from_the_start_of_a_gateway_and_a_restart_costs_what_it_takes() -> None:
    index = index_of(("a", DAY_S // 2, DAY_S), boot_s=DAY_S // 2 - 1)
    assert coverage(index, LATER)[NAME].gateways == {"a": Coverage(43_200, 43_200)}
    again = index_of(("a", 1_000, DAY_S), boot_s=999)
    both = OffsetIndex({**index_of(("a", 0, 940)).runs, **again.runs})
    assert coverage(both, LATER)[NAME].gateways == {"a": Coverage(DAY_S - 60, DAY_S)}
    # The first lines never came.
    assert shares(index_of(("a", DAY_S // 2, DAY_S)))[NAME]["a"] == 0.5
    # Its clock was at 1970 when it started.
    wrong = Run("a", 5_000)
    index = OffsetIndex({wrong: (Interval(0, DAY_S - 1, MIDNIGHT, MIDNIGHT + DAY_S - 1),)})
    assert shares(index) == {NAME: {"a": 1.0}}


def test_of_an_open_day_time_is_expected_up_to_the_newest_line_of_any_gateway() -> None:
    index = index_of(("a", 0, 7_200), ("slow", 0, 3_600))
    at_two = Expectation(MIDNIGHT + 7_300)
    assert shares(index, at_two) == {NAME: {"a": 1.0, "slow": 0.5}}
    late = Expectation(MIDNIGHT + DAY_S + at_two.grace_s)
    assert late.is_open(NEXT)
    assert not late.is_open(NAME)
    assert replace(late, now_s=late.now_s - 1).is_open(NAME)
    assert shares(index, late)[NAME]["a"] == pytest.approx(7_200 / DAY_S)


def test_i15_a_clock_in_the_future_makes_no_days_until_then() -> None:
    years = 4 * 365 * DAY_S
    entries = [Entry(Run("a", (MIDNIGHT - 1) * 1000), seq, MIDNIGHT + seq) for seq in range(10)]
    ahead = [Entry(entries[0].run, 10 + seq, MIDNIGHT + years + seq) for seq in range(10)]
    index, _ = OffsetIndex().add(entries + ahead)
    # It was a whole gateway on each of 1,461 days.
    assert list(index.gaps()) == []
    now = Expectation(MIDNIGHT + 20)
    assert shares(index, now) == {NAME: {"a": 1.0}}
    assert now.lies_ahead("2028-10-03")
    assert not now.lies_ahead(NAME)
    assert not replace(now, now_s=MIDNIGHT - AHEAD_S).lies_ahead(NAME)
    # Lines that an older release has joined over the jump cover no more than there are.
    joined = OffsetIndex({entries[0].run: (Interval(0, 19, MIDNIGHT, MIDNIGHT + years + 9),)})
    assert coverage(joined, now)[NAME].covered_s == 20


def test_two_gateways_with_one_id_at_the_same_time_are_told() -> None:
    one, other = index_of(("a", 0, DAY_S)), index_of(("a", 100, 10_000), boot_s=99)
    (clash,) = coverage(OffsetIndex({**one.runs, **other.runs}), LATER)[NAME].clashes
    boots = ((MIDNIGHT - 1) * 1000, (MIDNIGHT + 99) * 1000)
    assert clash == Clash("a", boots, MIDNIGHT + 100, MIDNIGHT + 10_000)
    assert "two gateways called a were up at the same time" in str(clash)
    # An upgrade, and a process before it that drained for nine minutes.
    again = index_of(("a", 10_000, DAY_S), boot_s=9_999)
    before = index_of(("a", 0, 10_540))
    assert coverage(OffsetIndex({**before.runs, **again.runs}), LATER)[NAME].clashes == ()
    # One of them loses a line every nine minutes: no stretch of them is long.
    torn = index_of(*(("a", begin, begin + 539) for begin in range(0, DAY_S, 540)))
    (clash,) = coverage(OffsetIndex({**torn.runs, **other.runs}), LATER)[NAME].clashes
    assert clash.boots == boots


def test_a_gateway_that_comes_back_is_not_missed_for_the_days_it_was_away() -> None:
    index = index_of(("a", 0, 6 * DAY_S), ("b", 0, DAY_S))
    later = index_of(("b", 5 * DAY_S, 6 * DAY_S), boot_s=5 * DAY_S - 1)
    back = OffsetIndex({**index.runs, **later.runs})
    assert [of_day.get("b") for of_day in shares(back).values()] == [1.0, 0.0, None, None, None, 1.0]
    named = replace(LATER, gateways=frozenset({"a"}))
    assert [of_day.get("b") for of_day in shares(back, named).values()] == [1.0, None, None, None, None, 1.0]
    # The same run: it was there, and its lines are lost.
    lost = index_of(("a", 0, 6 * DAY_S), ("b", 0, DAY_S), ("b", 5 * DAY_S, 6 * DAY_S))
    assert [of_day.get("b") for of_day in shares(lost).values()] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("run", "interval"),
    [
        (Run("new", 0), Interval(0, 19, 0, 19)),
        (Run("new", 1000 * 2**35), Interval(2**35, 2**35, MIDNIGHT, MIDNIGHT)),
        (Run("new", 0), Interval(10**9, 10**9, MIDNIGHT, MIDNIGHT)),
    ],
)
def test_a_line_of_a_clock_that_was_not_set_or_with_a_wild_number_makes_no_days(run: Run, interval: Interval) -> None:
    index = index_of(("a", 0, DAY_S))
    found = shares(OffsetIndex({**index.runs, run: (interval,)}))
    assert found[NAME]["a"] == 1.0
    assert found.keys() <= {NAME, NEXT}


def test_of_twenty_gateways_one_is_late_one_lies_about_its_clock_and_one_is_gone() -> None:
    years, noon = 4 * 365 * DAY_S, DAY_S // 2
    whole = [(f"g{number:02}", 0, DAY_S) for number in range(17)]
    gone = ("gone", -DAY_S, 0)
    liar = (Interval(0, noon - 1, MIDNIGHT, MIDNIGHT + noon - 1),)
    liar += (Interval(noon, DAY_S - 1, MIDNIGHT + noon + years, MIDNIGHT + years + DAY_S - 1),)
    before = OffsetIndex({**index_of(*whole, gone, ("late", 0, noon)).runs, Run("liar", MIDNIGHT * 1000): liar})
    expectation = Expectation(MIDNIGHT + 2 * DAY_S)
    found = coverage(before, expectation)[NAME]
    assert short_gateways([found.shares()]) == {"gone": 0.0, "late": 0.5, "liar": 0.5}
    assert found.share == pytest.approx(18 / 20)
    late = OffsetIndex({**before.runs, **index_of(("late", 0, DAY_S)).runs})
    assert short_gateways([coverage(late, expectation)[NAME].shares()]) == {"gone": 0.0, "liar": 0.5}


# -- what is made of it ----------------------------------------------------------------------------------------------
def day(date: str, **known: Any) -> CompactedDay:
    return CompactedDay(date, rows=1, keys=1, **known)


def test_a_day_that_is_not_over_is_not_used() -> None:
    # Two hours of a morning pulled what a client needs from 100 to 20.
    needs = {NAME: 100.0, NEXT: 20.0, "2024-10-06": 20.0, "2024-10-07": 20.0}
    days = [day(date) for date in needs]
    morning = Expectation(MIDNIGHT + 3 * DAY_S + 7_200)

    def needed(chosen: list[CompactedDay]) -> float:
        of_client = [ClientDay(each.date, needs[each.date], 1, 0, None) for each in chosen]
        return required_rate_of(of_client, Rule.DECAYED)

    assert needed(history_days(days, 3, None, morning, allow_gaps=False)[0]) == 100.0
    assert needed(history_days(days, 4, None, morning, allow_gaps=False, allow_open=True)[0]) == 20.0
    # Compacted while it was open, and not since.
    half = [day(NAME), day(NEXT, open=True)]
    with pytest.raises(NotYetCompleteError, match=f"{NEXT} not closed when it was compacted"):
        history_days(half, 2, NEXT, LATER, allow_gaps=False)
    assert [each.date for each in history_days(half, 1, None, LATER, allow_gaps=False)[0]] == [NAME]
    with pytest.raises(NotYetCompleteError, match=f"{NEXT} not closed, and nothing else is compacted"):
        history_days(half[1:], 1, None, LATER, allow_gaps=False)


def test_a_doubt_is_about_a_gateway_and_a_day_and_says_the_span() -> None:
    noon = MIDNIGHT + DAY_S // 2
    days = [
        day(NAME, gateways={"a": 1.0, "b": 0.5}, silent={"b": ((MIDNIGHT, noon - 60), (noon, noon + 60))}),
        day(NEXT, completeness=0.6, set_back_ms={"a": 1_000, "b": 30_000}, clashes={"c": "two gateways called c"}),
    ]
    reason = (
        "is 50.0% complete, without records 10-04T00:00:00Z to 10-04T11:59:00Z and 10-04T12:00:00Z to 10-04T12:01:00Z"
    )
    assert doubts_of(days) == [
        Doubt("b", NAME, reason, lacks=True),
        # The gateways of this day are not known.
        Doubt(ALL_GATEWAYS, NEXT, "is 60.0% complete", lacks=True),
        Doubt("b", NEXT, "had its clock set back by 30 s", lacks=False),
        Doubt("c", NEXT, "is not one gateway: two gateways called c", lacks=False),
    ]
    assert doubts_of(days[:0]) == []


def used(*rows: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Client, gateway and day."""
    return [
        {"user": "u", "client_id": client, "gw": gw, "date": datetime.date.fromisoformat(date)}
        for client, gw, date in rows
    ]


def test_what_is_missing_may_be_of_any_client_of_the_gateway_and_what_stands_twice_is_of_those_that_are_there() -> (
    None
):
    rows = used(("here", "a", NAME), ("later", "a", NEXT), ("other", "b", NAME), ("other", "b", NEXT))
    lacking = left_of(rows, Doubt("a", NAME, "is 50.0% complete", lacks=True))
    assert lacking.days == {("u", "here"): {NAME: ("a",)}, ("u", "later"): {NAME: ("a",)}}
    assert [each.text() for each in lacking.left_out] == [
        f"{NAME}: a is 50.0% complete; this day of 2 clients is left out"
    ]
    twice = left_of(rows, Doubt("a", NAME, "had its clock set back by 30 s", lacks=False))
    assert twice.days == {("u", "here"): {NAME: ("a",)}}
    whole = left_of(rows, Doubt(ALL_GATEWAYS, NAME, "has written nothing", lacks=True))
    assert set(whole.days) == {("u", "here"), ("u", "later"), ("u", "other")}
    assert whole.left_out[0].text() == f"{NAME}: every gateway has written nothing; this day of 3 clients is left out"


def test_clients_keep_their_other_days_and_those_without_any_are_named() -> None:
    tomorrow = datetime.date.fromisoformat(NEXT)
    rows = [
        {"t": [5], "offered": [1_000.0], "gw": gw, "client_id": client, "date": date, "quota": [quota]}
        for gw, client, date, quota in (
            ("a", "one", tomorrow, None),
            ("a", "both", tomorrow - datetime.timedelta(days=1), 7.0),
            ("late", "both", tomorrow, 9.0),
            ("late", "other", tomorrow, None),
            ("late", OTHER, tomorrow, None),
        )
    ]
    found = client_days_of(rows)
    left = left_of(found, Doubt("late", NEXT, "is 4.0% complete", lacks=True))
    histories, too_little = gather(found, left)
    assert [history.client_id for history in histories] == ["both", "one"]
    (named,) = too_little.values()
    assert named == TooLittle("produce of user=u,client-id=other", f"{NEXT} left out for late")
    text = too_little_text([named])
    assert text == (
        "no quota for 1 of the clients and APIs, as too little is known of them: "
        f"produce of user=u,client-id=other ({NEXT} left out for late)"
    )
    # Of the day that is left out the quota in force counts, and nothing else.
    entry = entry_of(histories[0], RecommendationSettings(), limit=None, peak=None)
    assert entry is not None
    assert (entry.days, entry.old) == (1, 9.0)
    assert [history.client_id for history in gather(found)[0]] == ["both", "one", "other", OTHER]


def test_a_day_of_twenty_gateways_adds_up_though_one_is_late_one_lies_about_its_clock_and_one_is_gone() -> None:
    names = [f"g{number:02}" for number in range(17)]
    half = DAY_S // 2
    index = index_of(
        *((gw, 0, DAY_S) for gw in (*names, "liar")),
        ("gone", 0, half),
        ("late", 0, 600),
        ("late", DAY_S - 600, DAY_S),
    )
    # Everything again, as by a second copy of the files: each line counts once.
    again = [Entry(run, seq, own[0].first_ts + seq) for run, own in index.runs.items() for seq in range(3)]
    assert index.add(again) == (index, list(range(60)))
    found = coverage(index, LATER)[NAME]
    assert (found.covered_s, found.expected_s) == (18 * DAY_S + half + 1_200, 20 * DAY_S)
    of_day = day(NAME, gateways=found.shares(), set_back_ms={"liar": 30_000})
    doubts = doubts_of([of_day])
    assert {doubt.gateway for doubt in doubts} == {"gone", "late", "liar"}
    # One client goes through all of them, and each gateway has one of its own.
    rows = [
        {"gw": gw, "client_id": client, "t": [second], "offered": [float(units)]}
        for second, gw in enumerate([*names, "gone", "late", "liar"])
        for client, units in (("everywhere", 10), (f"of-{gw}", 1))
    ]
    days = client_days_of(rows)
    assert len(days) == 40
    assert sum(each["units"] for each in days if each["client_id"] == "everywhere") == 200.0
    (total,) = client_table(rows, "total").to_pylist()
    assert total["steps"][:2] == [110.0, 110.0]
    assert sum(total["steps"]) == sum(each["units"] for each in days) == 220.0
    assert {str(each["date"]) for each in days} == {"2026-11-14"}
    left = left_of(days, *(replace(doubt, date="2026-11-14") for doubt in doubts))
    histories, too_little = gather(days, left)
    assert [history.client_id for history in histories] == [f"of-{gw}" for gw in names]
    assert len(too_little) == 4
    assert [(each.gateway, each.clients) for each in left.left_out] == [("gone", 2), ("late", 2), ("liar", 2)]
    # With all of them allowed its rate is that of one gateway: each has quotas of its own.
    everywhere = next(each for each in gather(days)[0] if each.client_id == "everywhere")
    assert (everywhere.days[0].gateways, everywhere.days[0].active_s) == (20, 20)
    assert everywhere.days[0].required_rate == pytest.approx(0.99, rel=0.01)


def test_days_of_an_older_release_are_read() -> None:
    known = day(NAME, silent={"a": ((MIDNIGHT, MIDNIGHT + 60),)}, clashes={"a": "two"}, scopes={"a": "gateway"})
    state = CompactedState({NAME: known}).to_json()
    read = CompactedState.from_json(json.loads(json.dumps(state))).days[NAME]
    assert replace(read, silent=known.silent) == known
    assert doubts_of([read]) == doubts_of([known])
    older = state["days"][NAME]
    for name in ("silent", "scopes"):
        del older[name]
    older["clashes"] = []
    read = CompactedState.from_json(state).days[NAME]
    assert (read.silent, read.clashes, read.scopes) == ({}, {}, {})


def test_a_loss_that_shows_only_after_compaction_counts_from_then_on(tmp_path: Path) -> None:
    compacted = day(NAME, gateways={"a": 1.0, "b": 0.97})
    # What one gateway wrote in the evening is lost, as its first line of the next day shows; the other's came late.
    index = index_of(("a", 0, DAY_S // 2), ("a", DAY_S, 2 * DAY_S), ("b", 0, 2 * DAY_S))
    table = raw_table(str(tmp_path))
    table.commit(table.prepared(), state=RawState(index=index).to_json())
    (known,) = with_losses([compacted], str(tmp_path), LATER)
    assert (known.completeness, known.gateways) == (0.75, {"a": 0.5, "b": 0.97})
    assert known.silent == {"a": ((MIDNIGHT + DAY_S // 2, MIDNIGHT + DAY_S),)}
    assert with_losses([], str(tmp_path), LATER) == []


def test_a_gateway_whose_lines_all_came_after_compaction_is_not_in_the_tables(tmp_path: Path) -> None:
    # It was 100 %, of both.
    compacted = day(NAME, gateways={"a": 1.0})
    table = raw_table(str(tmp_path))
    table.commit(table.prepared(), state=RawState(index=index_of(("a", 0, DAY_S), ("b", 0, DAY_S))).to_json())
    (known,) = with_losses([compacted], str(tmp_path), LATER)
    assert (known.completeness, known.gateways) == (0.5, {"a": 1.0, "b": 0.0})
