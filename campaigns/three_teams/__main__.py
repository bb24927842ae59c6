"""``python -m campaigns.three_teams``: three teams share a capacity; each promise about it, and whether it was kept.

A real Kafka, and librdkafka's producers and consumers. `orders` has a guarantee and tier 0, `search` a guarantee and
weight 3, and the four users of `lab` are equals in tier 3. Three minutes; 1 when a promise was not kept.
"""

from __future__ import annotations

import argparse
import os
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
        name: of the phase.
        seconds: how long it lasts.
        offers: of each client of a team, as a part of the capacity.
    """

    name: str
    seconds: int
    offers: Mapping[str, float]

    @property
    def offered(self) -> float:
        """By all clients together, as a part of the capacity."""
        return sum(len(TEAMS[name]) * part for name, part in self.offers.items())


_ALONE: Final = {"orders": 0.5, "search": 0.0, "lab": 0.0}
_OTHERS: Final = {"search": 1.0, "lab": 0.375}
STEPS: Final = (
    Step("begin", 5, _ALONE),
    Step("alone", 25, _ALONE),
    Step("all", 45, {"orders": 0.5, **_OTHERS}),
    Step("orders lends", 30, {"orders": 0.05, **_OTHERS}),
    Step("orders returns", 30, {"orders": 1.2, **_OTHERS}),
    Step("others leave", 5, _ALONE),
    Step("alone again", 25, _ALONE),
)


def play(teams: Mapping[str, Team]) -> float:
    """Go through the steps; the time at which they began."""
    began_s = at_s = time.monotonic()
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
    """What was promised to producers, or to consumers."""
    found = {user: of_user(lines, user, verb, began_s) for team in TEAMS.values() for user in team}
    clients = [client for client, _ in found.values()]
    by_name = phases()
    loaded = [phase for phase in by_name.values() if phase.more]
    orders, latencies = found["orders"]
    measured = [
        judge.conservation(clients, list(by_name.values()), CAPACITY),
        judge.guarantees(clients, [by_name["alone"], *loaded, by_name["alone again"]]),
        judge.fairness([found[user][0] for user in TEAMS["lab"]], list(by_name.values())),
        judge.back(orders, by_name["orders returns"]),
        judge.overshoot(clients, list(by_name.values()), CAPACITY),
        judge.settled(clients, loaded),
    ]
    if verb == "produce":
        alone = [each for name in ("alone", "alone again") for each in _between(latencies, by_name[name])]
        measured.append(judge.slower(alone, _between(latencies, by_name["all"])))
        offered = judge.averages(
            [sum(each) for each in zip(*(client.offered for client in clients), strict=True)],
            by_name["all"].begin_s,
            by_name["all"].end_s,
        )
        measured.append(
            Figure(
                "offered while tier 0 is measured, by the capacity",
                min(offered) / CAPACITY,
                2.9,
                at_most=False,
            )
        )
    return measured


def _between(latencies: Mapping[int, list[float]], phase: Phase) -> list[float]:
    slots = range(phase.begin_s * judge.SLOTS_PER_S, phase.end_s * judge.SLOTS_PER_S)
    return [each for at in slots for each in latencies.get(at, ())]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.three_teams", description=__doc__)
    parser.add_argument("--lines", type=Path, help="keep what the clients said in this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        with stage(Path(name)) as teams:
            began_s = play(teams)
        print((Path(name) / "gateway.log").read_text()[-3000:], file=sys.stderr)
    lines = [line for team in teams.values() for line in team.lines]
    if options.lines:
        options.lines.write_text(f"{began_s}\n" + "".join(line.text() + "\n" for line in lines))
    return report(lines, began_s)


def report(lines: list[Line], began_s: float) -> int:
    """Print each figure; 1 when a promise was not kept."""
    found = []
    for verb in ("produce", "fetch"):
        for figure in figures(lines, verb, began_s):
            print(f"{verb}: {figure.text()}")
            found.append(figure)
    print(f"load average: {os.getloadavg()[0]:.1f}")
    missed = sum(not each.held for each in found)
    print(
        f"**{len(found) - missed} of {len(found)} promises to three teams held, with {CAPACITY / 1e6:g} MB/s**"
    )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
