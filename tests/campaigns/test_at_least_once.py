"""What the campaign of producers without idempotence judges: each planted fault is found."""

from __future__ import annotations

import pytest

from campaigns.at_least_once.verdict import LEVEL, Compared, Pair, by_round, chance, found_in

ALIKE: tuple[Pair, ...] = ((3, 2), (0, 1)) * 16


@pytest.mark.parametrize(
    ("numbers", "lost", "again", "late"),
    [
        ([0, 1, 2, 3], 0, [], []),
        ([0, 1, 3], 1, [], []),
        ([0, 1, 2, 1, 2, 3], 0, [1, 2], []),
        ([0, 1, 1, 1, 2, 3], 0, [1, 1], []),
        ([0, 2, 1, 3], 0, [], [1]),
        ([0, 3, 1, 2, 1], 0, [1], [1, 2]),
        ([], 4, [], []),
    ],
)
def test_lost_doubled_and_late_numbers_are_found(
    numbers: list[int], lost: int, again: list[int], late: list[int]
) -> None:
    found = found_in(numbers, {0, 1, 2, 3})
    assert (found.lost, found.again, found.late) == (lost, again, late)


def test_a_number_that_was_not_acknowledged_may_be_there_or_not() -> None:
    assert found_in([0, 1], {0}).lost == found_in([0], {0}).lost == 0


def test_numbers_belong_to_the_round_in_which_they_were_sent() -> None:
    assert by_round([0, 9, 10, 19, 20, 99], [0, 10, 20]) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], 1.0),
        ([(4, 4)], 1.0),
        ([(1, 0)], 0.5),
        ([(0, 1)], 1.0),
        ([(1, 0), (1, 0), (1, 0)], 0.125),
        ([(5, 0), (0, 1), (0, 1)], 0.5),
        ([(2, 0), (0, 1)], 0.5),
    ],
)
def test_chance_counts_all_choices_of_signs(pairs: list[Pair], expected: float) -> None:
    assert chance(pairs) == expected


def test_ways_that_double_alike_are_not_worse() -> None:
    assert not Compared(ALIKE, ALIKE).worse


def test_a_double_in_each_other_round_of_the_gateway_is_a_finding() -> None:
    more = tuple((ours + number % 2 * 2, theirs) for number, (ours, theirs) in enumerate(ALIKE))
    assert chance(more) < LEVEL
    assert Compared(more, ALIKE).worse
    assert Compared(ALIKE, more).worse


def test_fewer_doubles_than_without_are_no_finding() -> None:
    assert not Compared(tuple((0, theirs) for _, theirs in ALIKE), ALIKE).worse


def test_the_figure_has_both_sums_and_the_chance() -> None:
    assert str(Compared(((2, 0), (1, 1)), ((0, 0),))) == "doubled 3 to 1 (0.5000), late 0 to 0 (1.0000)"
