"""Judges topics of numbers, and whether one way to the brokers is worse than another. Pure.

No acknowledged record may be missing. Retries may write a record twice, also without Sluice, and how often depends on
chance. So two ways are compared round by round. If the gateway adds no duplicates, the counts of the two ways could
be exchanged in each round. `chance` is the probability that this alone gives a sum of differences as large as the
observed one. Below 1 % it is a finding. A campaign has four such comparisons, so at most 4 % of its runs report a
finding by mistake.

The order is judged in the same way, with one request in flight. librdkafka does not always keep it when the leader
moves, also without Sluice. With more in flight Kafka promises no order to producers without idempotence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

LEVEL: Final = 0.01
Pair: TypeAlias = tuple[int, int]
"""The counts of one round: of the gateway, and of the other way."""


@dataclass(slots=True)
class Found:
    """Faults found in a topic.

    Attributes:
        lost: acknowledged numbers that are missing.
        again: each repetition of a number.
        late: each number that first appears after a higher one.
    """

    lost: int = 0
    again: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)


def found_in(numbers: Iterable[int], acknowledged: Collection[int]) -> Found:
    """Judge a topic of one producer, which sends increasing numbers."""
    found, seen, highest = Found(), set[int](), -1
    for number in numbers:
        if number in seen:
            found.again.append(number)
        elif number < highest:
            found.late.append(number)
        seen.add(number)
        highest = max(highest, number)
    found.lost = len(set(acknowledged) - seen)
    return found


def by_round(numbers: Iterable[int], marks: Sequence[int]) -> Counter[int]:
    """How many of the numbers belong to each round.

    Args:
        numbers: numbers of one producer.
        marks: the first number of each round, from round 0 on.
    """
    return Counter(bisect_right(marks, number) - 1 for number in numbers)


def chance(pairs: Iterable[Pair]) -> float:
    """The probability of a sum of differences at least this large, if the two ways do not differ.

    The value is exact, because all combinations of signs are counted.
    """
    differences = [ours - theirs for ours, theirs in pairs]
    sums = {0: 1.0}
    for difference in differences:
        halves: dict[int, float] = {}
        for total, probability in sums.items():
            for signed in (total + difference, total - difference):
                halves[signed] = halves.get(signed, 0.0) + probability / 2
        sums = halves
    return sum(probability for total, probability in sums.items() if total >= sum(differences))


@dataclass(frozen=True, slots=True)
class Compared:
    """The gateway compared with another way, in rounds of one kind of fault.

    Attributes:
        again: counts of repeated records.
        late: counts of records out of order, of producers with one request in flight.
    """

    again: tuple[Pair, ...]
    late: tuple[Pair, ...]

    @property
    def worse(self) -> bool:
        """Whether the gateway duplicates or reorders more records than chance explains."""
        return min(chance(self.again), chance(self.late)) < LEVEL

    def __str__(self) -> str:
        """Both sums of each kind, and the chance."""
        return f"doubled {_sums(self.again)}, late {_sums(self.late)}"


def _sums(pairs: Iterable[Pair]) -> str:
    pairs = tuple(pairs)
    ours, theirs = (sum(each) for each in zip(*pairs, strict=True))
    return f"{ours:,} to {theirs:,} ({chance(pairs):.4f})"
