"""Schedules of faults: made from a seed, printed as lines, and read from such lines. Pure.

A schedule has this form; lines that begin with # are comments::

    seed 7
    round 3
    at 350 ms: broker-kill 2 for 620 ms
    at 500 ms: clock-step 0 by -3600000
"""

from __future__ import annotations

import random
import re
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_LINE: Final = re.compile(
    r"at (?P<at>\d+) ms: (?P<what>[a-z-]+) (?P<where>\d+)(?: for (?P<for>\d+) ms)?(?: by (?P<by>-?\d+))?"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        at_ms: time since the round, or the clients of a simulation, began.
        what: its kind. A name has the same meaning in all campaigns.
        where: the gateway, broker or link; each campaign says how it counts them.
        for_ms: its duration, for kinds that last.
        amount: its size, for kinds with a size; times are in ms.
    """

    at_ms: int
    what: str
    where: int = 0
    for_ms: int = 0
    amount: int = 0

    def __str__(self) -> str:
        """Its line of a schedule."""
        lasts = f" for {self.for_ms} ms" if self.for_ms else ""
        return f"at {self.at_ms} ms: {self.what} {self.where}{lasts}" + (
            f" by {self.amount}" if self.amount else ""
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, with its choices. A single choice uses no random number.

    Attributes:
        what: its name.
        where: its possible targets.
        for_ms, amount: see `Fault`.
        weight: its frequency relative to other kinds.
    """

    what: str
    where: Sequence[int] = (0,)
    for_ms: Sequence[int] = (0,)
    amount: Sequence[int] = (0,)
    weight: int = 1

    def draw(self, dice: random.Random, at_ms: Sequence[int], where: Sequence[int] = ()) -> Fault:
        """Makes one fault of this kind.

        Args:
            dice: a seeded generator.
            at_ms: times to choose from.
            where: targets to choose from; empty: all targets of the kind.
        """
        amount, at, target, lasts_ms = (
            dice.choice(each) if len(each) > 1 else each[0]
            for each in (self.amount, at_ms, where or self.where, self.for_ms)
        )
        return Fault(at, self.what, target, lasts_ms, amount)


def choose(dice: random.Random, kinds: Sequence[Kind]) -> Kind:
    """Chooses one of the kinds by their weights."""
    return dice.choice([kind for kind in kinds for _ in range(kind.weight)])


@dataclass(frozen=True, slots=True)
class Schedule:
    """The faults of some rounds.

    Attributes:
        seed: the seed of the campaign's other random numbers.
        rounds: faults by the number of their round, in the order in which they were made.
    """

    seed: int
    rounds: Mapping[int, tuple[Fault, ...]]

    def __str__(self) -> str:
        """The text that `parse` reads."""
        lines = [f"seed {self.seed}"]
        for number, faults in self.rounds.items():
            lines += [f"round {number}", *map(str, faults)]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, kinds: Collection[str]) -> Self:
        """Reads a schedule.

        Args:
            text: see the module's docstring.
            kinds: kinds that the campaign can carry out.

        Raises:
            ValueError: a line has another form, or its kind is not one of this campaign's.
        """
        seed, rounds = 0, dict[int, list[Fault]]()
        for line in filter(None, (each.partition("#")[0].strip() for each in text.splitlines())):
            word, _, number = line.partition(" ")
            if found := _LINE.fullmatch(line):
                if found["what"] not in kinds:
                    raise ValueError(f"{line!r}: this campaign has {', '.join(sorted(kinds))}")
                if not rounds:
                    raise ValueError(f"{line!r}: no round before it")
                at, where, lasts, amount = (int(found[each] or 0) for each in ("at", "where", "for", "by"))
                rounds[next(reversed(rounds))].append(Fault(at, found["what"], where, lasts, amount))
            elif word == "round" and number.isdecimal() and int(number) not in rounds:
                rounds[int(number)] = []
            elif word == "seed" and number.isdecimal():
                seed = int(number)
            else:
                raise ValueError(f"{line!r} is no line of a schedule")
        return cls(seed, {number: tuple(faults) for number, faults in rounds.items()})


def add_option(parser: ArgumentParser, kinds: Collection[str]) -> None:
    """Adds an option with a schedule to a campaign: `options.schedule`, None if it is not given."""

    def read(file: str) -> Schedule:
        try:
            return Schedule.parse(Path(file).read_text(encoding="utf-8"), kinds)
        except (OSError, ValueError) as exc:
            raise ArgumentTypeError(str(exc)) from exc

    parser.add_argument(
        "--schedule",
        type=read,
        metavar="FILE",
        help="play the rounds of this file, as a failing run prints them",
    )


def rounds_of(
    schedule: Schedule | None, draw: Callable[[int], tuple[Fault, ...]], numbers: Sequence[int]
) -> Iterator[tuple[int, tuple[Fault, ...]]]:
    """Rounds with their numbers: those of a schedule, or otherwise random ones with these numbers."""
    if schedule is not None:
        yield from schedule.rounds.items()
    else:
        for number in numbers:
            yield number, draw(number)
