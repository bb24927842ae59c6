"""``python -m campaigns.three_teams``: three teams share a capacity; checks whether each promise is kept.

The run uses a real Kafka, and librdkafka's producers and consumers. `orders` has a guarantee and tier 0, `search` a
guarantee and weight 3, and the four users of `lab` are equals in tier 3. It takes three minutes. Exit code 1 when a
promise was not kept.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from campaigns.three_teams import judge
from campaigns.three_teams.clients import SLOT_S, Line
from campaigns.three_teams.judge import Client, Figure, Phase
from campaigns.three_teams.stage import CAPACITY, GUARANTEES, TEAMS, Team, stage


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of the run.

    Attributes:
        name: name of the phase.
        seconds: how long it lasts.
        offers: by team the offer of each of its clients, as a part of the capacity.
    """

    name: str
    seconds: int
    offers: Mapping[str, float]

    @property
    def offered(self) -> float:
        """The offer of all clients together, as a part of the capacity."""
        return sum(len(TEAMS[name]) * part for name, part in self.offers.items())


_ALONE: Final = {"orders": 0.5, "search": 0.0, "lab": 0.0}
_OTHERS: Final = {"search": 1.0, "lab": 0.375}
_ALL: Final = {"orders": 0.5, **_OTHERS}
_TURNS: Final = 6
"""Tier 0 is measured alternately alone and among others, so that the machine's load affects both figures."""

_TURN_S: Final = 6
_LEFT_S: Final = 2
"""Time until the other clients' queues are empty, and each client has its share."""

STEPS: Final = (
    Step("begin", 5, _ALONE),
    *(
        step
        for turn in range(1, _TURNS + 1)
        for step in (
            Step(f"alone {turn}", _TURN_S, _ALONE),
            Step(f"all {turn}", _TURN_S if turn < _TURNS else 45, _ALL),
        )
    ),
    Step("orders lends", 30, {"orders": 0.05, **_OTHERS}),
    Step("orders returns", 30, {"orders": 1.2, **_OTHERS}),
)


def play(teams: Mapping[str, Team]) -> float:
    """Play the steps; the time at which they began, which is the beginning of a slot."""
    began_s = math.ceil(time.monotonic() / SLOT_S) * SLOT_S
    # A client prints a slot soon after its end, with its offer at that time.
    at_s = began_s + SLOT_S
    time.sleep(max(0.0, at_s - time.monotonic()))
    for step in STEPS:
        for name, part in step.offers.items():
            teams[name].offer(part * CAPACITY)
        at_s += step.seconds
        time.sleep(max(0.0, at_s - time.monotonic()))
    time.sleep(2 * SLOT_S)
    return began_s


def phases() -> dict[str, Phase]:
    """The steps, by the clock of the run."""
    found = {}
    at_s = 0
    for step in STEPS:
        found[step.name] = Phase(step.name, at_s, at_s + step.seconds, more=step.offered > 1)
        at_s += step.seconds
    return found


def of_user(lines: list[Line], user: str, verb: str, began_s: float) -> tuple[Client, dict[int, list[float]]]:
    """A client's bytes from the beginning of the run, and its latencies by slot."""
    slots = sum(step.seconds for step in STEPS) * judge.SLOTS_PER_S
    passed, offered = [0.0] * slots, [0.0] * slots
    latencies: dict[int, list[float]] = {}
    first = round(began_s / SLOT_S)
    for line in lines:
        at = line.slot - first
        if line.user == user and line.verb == verb and 0 <= at < slots:
            passed[at], offered[at] = line.passed, line.offered
            latencies[at] = list(line.latencies_ms)
    return Client(user, GUARANTEES.get(user, 0.0), passed, offered), latencies


def figures(lines: list[Line], verb: str, began_s: float) -> list[Figure]:
    """The figures of the promises to producers, or to consumers."""
    found = {user: of_user(lines, user, verb, began_s) for team in TEAMS.values() for user in team}
    clients = [client for client, _ in found.values()]
    by_name = phases()
    loaded = [phase for phase in by_name.values() if phase.more]
    orders, latencies = found["orders"]
    everything = list(by_name.values())
    measured = [
        *judge.conservation(clients, everything, CAPACITY),
        judge.guarantees(clients, everything),
        judge.fairness([found[user][0] for user in TEAMS["lab"]], everything),
        judge.back(orders, by_name["orders returns"]),
        judge.overshoot(clients, everything, CAPACITY),
        judge.settled(clients, loaded),
    ]
    if verb == "produce":
        turns = range(1, _TURNS + 1)
        alone_ms, shared_ms = (
            [
                _between(latencies, by_name[f"{name} {turn}"].begin_s + _LEFT_S, _TURN_S - _LEFT_S)
                for turn in turns
            ]
            for name in ("alone", "all")
        )
        begins_s = [by_name[f"all {turn}"].begin_s for turn in turns]
        arrivals_ms = [_between(latencies, begin_s, _LEFT_S) for begin_s in begins_s]
        measured.append(judge.slower(alone_ms, shared_ms, arrivals_ms))
        offered = judge.offered(clients)
        rates = [
            each
            for begin_s in begins_s
            for each in judge.averages(offered, begin_s + _LEFT_S, begin_s + _TURN_S, 1)
        ]
        promise = "offered meanwhile by all, by the capacity, on average"
        measured.append(Figure(promise, statistics.mean(rates) / CAPACITY, 2.95, at_most=False))
    return measured


def _between(latencies: Mapping[int, list[float]], begin_s: int, seconds: int) -> list[float]:
    slots = range(begin_s * judge.SLOTS_PER_S, (begin_s + seconds) * judge.SLOTS_PER_S)
    return [each for at in slots for each in latencies.get(at, ())]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.three_teams", description=__doc__)
    parser.add_argument("--lines", type=Path, help="keep what the clients said in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, stage(Path(name)) as (teams, waits):
        began_s = play(teams)
    lines = [line for team in teams.values() for line in team.lines]
    if options.lines:
        options.lines.write_text(f"{began_s}\n" + "".join(line.text() + "\n" for line in lines))
    waited_ms = waits.in_seconds_ms
    print(
        f"the gateway waited for a processor for {sum(waited_ms) / 1000:.1f} s of {len(waited_ms)} s, "
        f"for {max(waited_ms):.0f} ms of the worst second; load average: {os.getloadavg()[0]:.1f}"
    )
    return report(lines, began_s)


def report(lines: list[Line], began_s: float) -> int:
    """Print each figure; 1 when a promise was not kept."""
    found = []
    for verb in ("produce", "fetch"):
        for figure in figures(lines, verb, began_s):
            print(f"{verb}: {figure.text()}")
            found.append(figure)
    missed = sum(not each.kept for each in found)
    print(
        f"**{len(found) - missed} of {len(found)} promises to three teams kept, with {CAPACITY / 1e6:g} MB/s**"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
