"""Judges of the campaign with three teams: made-up series that keep or miss each promise by a little."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from campaigns.three_teams import judge
from campaigns.three_teams.__main__ import STEPS, figures, phases
from campaigns.three_teams.clients import Line
from campaigns.three_teams.judge import SLOTS_PER_S, Client, Figure, Phase
from campaigns.three_teams.stage import CAPACITY, TEAMS

LOADED = Phase("all", 0, 40, more=True)
RETURNED = Phase("returned", 40, 80, more=True)


def series(rate: Callable[[float], float], seconds: int = 80) -> list[float]:
    """Bytes in each slot, of a rate at a time in seconds."""
    return [rate(at / SLOTS_PER_S) / SLOTS_PER_S for at in range(seconds * SLOTS_PER_S)]


def client(rate: Callable[[float], float], user: str = "a", guarantee: float = 0.0, offers: float = 1e9) -> Client:
    return Client(user, guarantee, series(rate), series(lambda _: offers))


def dip(first_s: float, seconds: float, of: float, low: float = 0.0) -> Callable[[float], float]:
    return lambda at_s: low if first_s <= at_s < first_s + seconds else of


@pytest.mark.parametrize(("seconds", "kept"), [(0.4, True), (0.7, False)])
def test_a_capacity_must_be_used_in_each_window(seconds: float, kept: bool) -> None:
    steady, _ = judge.conservation([client(dip(20, seconds, 100))], [LOADED], 100)
    assert steady.kept == kept
    assert steady.value == pytest.approx(1 - seconds / 10)


def test_what_is_not_used_after_a_step_counts_on_average_alone() -> None:
    steady, whole = judge.conservation([client(dip(40, 3, 100))], [LOADED, RETURNED], 100)
    assert steady.value == pytest.approx(1)
    assert whole.value == pytest.approx(74 / 77)
    assert "0.700" in whole.where
    assert not judge.conservation([client(dip(40, 5, 100))], [LOADED, RETURNED], 100)[1].kept


def test_a_capacity_that_no_client_wants_is_no_proof() -> None:
    quiet = Phase("alone", 0, 80, more=False)
    assert [each.kept for each in judge.conservation([client(lambda _: 100)], [quiet], 100)] == [False, False]


@pytest.mark.parametrize(("rate", "kept"), [(98.1, True), (97.9, False)])
def test_a_guarantee_is_for_each_window(rate: float, kept: bool) -> None:
    assert judge.guarantees([client(lambda _: rate, guarantee=100)], [LOADED]).kept == kept
    one_window = client(dip(20, 10, 100, low=rate), guarantee=100)
    assert judge.guarantees([one_window, client(lambda _: 0)], [LOADED]).kept == kept


@pytest.mark.parametrize(("rate", "kept"), [(50, True), (48, False)])
def test_of_a_client_that_offers_less_than_its_guarantee_all_must_pass(rate: float, kept: bool) -> None:
    assert judge.guarantees([client(lambda _: rate, guarantee=100, offers=50)], [LOADED]).kept == kept


@pytest.mark.parametrize(("other", "kept"), [(80, True), (70, False)])
def test_equals_have_equal_parts(other: float, kept: bool) -> None:
    equals = [client(lambda _: 100), client(dip(10, 12, 100, low=other))]
    assert judge.fairness(equals, [LOADED]).kept == kept


@pytest.mark.parametrize(("late_s", "kept"), [(0.0, True), (1.0, True), (1.2, False), (math.inf, False)])
def test_a_lender_is_back_within_two_windows(late_s: float, kept: bool) -> None:
    lender = client(lambda at_s: 100 if at_s >= 40 + late_s else 5, guarantee=100)
    assert judge.back(lender, RETURNED).kept == kept


@pytest.mark.parametrize(("peak", "kept"), [(190, True), (210, False)])
def test_a_step_overshoots_by_at_most_a_tenth_in_ten_seconds(peak: float, kept: bool) -> None:
    figure = judge.overshoot([client(dip(40, 1, 100, low=peak))], [LOADED, RETURNED], 100)
    assert figure.kept == kept
    assert figure.value == pytest.approx(1 + (peak - 100) / 1000)


@pytest.mark.parametrize(("swing", "kept"), [(0.2, True), (0.6, False)])
def test_what_swings_ten_windows_after_a_step_has_not_settled(swing: float, kept: bool) -> None:
    """Each 8 s; what happens before is no matter."""
    figure = judge.settled(
        [client(lambda at_s: 900 if at_s < 9 else 100 * (1 + swing * math.sin(at_s * 0.8)))], [LOADED]
    )
    assert figure.kept == kept


def test_a_client_that_settles_late_is_found() -> None:
    rising = client(lambda at_s: 100 if at_s >= 25 else 50)
    assert not judge.settled([rising], [LOADED]).kept


def test_latencies_are_compared_by_the_median_of_turns() -> None:
    alone: Sequence[Sequence[float]] = [[1.0] * 99 + [5.0] * 2] * 3
    arrival = [[9.0] * 200]
    for shared, kept in ((6.4, True), (6.6, False)):
        turns = [[1.0] * 99 + [shared] * 2] * 2 + [[100.0] * 200]
        assert judge.slower(alone, turns, arrival).kept == kept
    assert not judge.slower(alone, [[1.0] * 99], arrival).kept  # too few


def test_what_is_not_a_number_keeps_no_promise() -> None:
    assert not Figure("", math.nan, 1, at_most=True).kept
    assert not Figure("", math.nan, 1, at_most=False).kept


def test_lines_of_clients_are_read_as_they_were_printed() -> None:
    line = Line("lab-1", "produce", 123, 20_000, 30_000, (1.5, 2.25))
    assert Line.parse(line.text() + "\n") == line
    assert Line.parse(Line("lab-1", "fetch", 1, 0, 0, ()).text()).latencies_ms == ()


def test_a_run_as_it_should_be_keeps_all_promises_and_one_without_clients_none() -> None:
    """Shares as the division of the how-to gives them in each step."""
    parts = {
        "alone": {"orders": 0.5, "search": 0.0, "lab": 0.0},
        "all": {"orders": 0.5, "search": 0.2 + 0.3 * 3 / 7, "lab": 0.3 / 7},
        "orders lends": {"orders": 0.05, "search": 0.2 + 0.75 * 3 / 7, "lab": 0.75 / 7},
        "orders returns": {"orders": 0.5 + 0.3 / 8, "search": 0.2 + 0.9 / 8, "lab": 0.3 / 8},
    }
    lines = []
    for step in STEPS:
        phase = phases()[step.name]
        passes = parts[step.name.rstrip(" 0123456789")] if step.name != "begin" else parts["alone"]
        for slot in range(phase.begin_s * SLOTS_PER_S, phase.end_s * SLOTS_PER_S):
            for team, users in TEAMS.items():
                passed, offered = (round(part * CAPACITY / SLOTS_PER_S) for part in (passes[team], step.offers[team]))
                lines += [Line(user, "produce", slot, passed, offered, (5.0,) * 20) for user in users]
    assert [each.text() for each in figures(lines, "produce", 0.0) if not each.kept] == []
    assert [each.promise for each in figures([], "produce", 0.0) if each.kept] == [
        "highest part of the capacity in a window, steps included"
    ]
