"""A divided capacity in the simulation: compares what each client passes with what it should get.

A plan has everything at once: guarantees, weights, a group with a quota, a burst and a limit of an API. From the
beginning all clients but one offer more than they get. The last client lends its guarantee and wants it back at
`RETURN_S`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

from simulation.laws import Violation
from simulation.plan import Client, Plan
from simulation.run import Run

CAPACITY: Final = 400_000
SMALL: Final = CAPACITY // 20
"""The quota of the group, and of the client with a burst."""

REQUEST_BYTES: Final = 4_000
RETURN_S: Final = 20
SECONDS: Final = 45
WINDOW_S: Final = 10
"""The length of the windows of promises, in seconds."""

_KNOWN_S: Final = 3
"""Time from the begin until divisions know all clients."""

_SETTLED_S: Final = 10
"""Time after a change of the clients' demand until promises hold again."""

_LATE: Final = 0.05
"""The part of the capacity that may be unused if several processes divide it, since they learn of each other late."""

_PROCESSES: Final[tuple[tuple[int, ...], ...]] = ((1,), (1,), (2,), (1, 1))
"""Numbers of workers of each gateway."""


def make_shares(seed: int) -> Plan:
    """Makes a plan that divides a capacity from a seed."""
    dice = random.Random(f"shares/{seed}")
    gateways = dice.choice(_PROCESSES)
    clients: list[Client] = []
    quotas: list[dict[str, Any]] = [{"client_id": "look-0", "metadata_request_rate": 5}]

    def offer(client_id: str, rates: tuple[float, float], ceiling: int = CAPACITY, **more: float) -> None:
        """Adds a client that offers these bytes per second before and after the lender's return."""
        quotas.append({"client_id": client_id, "producer_byte_rate": ceiling, **more})
        options = {
            "topic": "a",
            "version": dice.choice((8, 9, 11)),
            "bytes": REQUEST_BYTES,
            "rates": rates,
            "change_s": RETURN_S,
        }
        clients.append(Client("offer", client_id, dice.randrange(len(gateways)) + 1, options))

    all_of_it = (2.0 * CAPACITY, 2.0 * CAPACITY)
    guarantee = CAPACITY // dice.choice((3, 5))
    offer("lender", (0.1 * guarantee, 2.0 * CAPACITY), producer_byte_guarantee=guarantee)
    steady = CAPACITY // dice.choice((7, 10))
    offer("steady", (steady, steady), producer_byte_guarantee=steady)
    for at in range(dice.randrange(2, 5)):
        offer(f"equal-{at}", all_of_it)
    offer("heavy", all_of_it, weight=dice.choice((2, 3)))
    for at in range(2):
        offer(f"pair-{at}", all_of_it)
    quotas.append({"group": "pair", "producer_byte_rate": SMALL})
    offer("burst", all_of_it, SMALL, producer_byte_burst_seconds=dice.choice((1, 3)))
    clients.append(Client("look", "look-0", 1, {"version": 9, "pause_ms": 100, "create": False}))
    return Plan(
        seed=seed,
        seconds=SECONDS,
        gateways=gateways,
        tables={
            "client_quota": {"scope": "fleet"} if len(gateways) > 1 else {},
            "capacity": {"producer_byte_rate": CAPACITY},
            "groups": [{"name": "pair", "client_ids": ["pair-*"]}],
            "quotas": quotas,
        },
        most_delay_ms=dice.choice((1, 2)),
        clients=tuple(clients),
    )


class Shares:
    """The bytes that each client of a run has passed, and the promises about them."""

    def __init__(self, run: Run) -> None:
        """Reads the results of a finished run."""
        self._passed = run.laws.passed_bytes
        self._quotas = {each["client_id"]: each for each in run.plan.tables["quotas"] if "client_id" in each}
        self._late = _LATE if sum(run.plan.gateways) > 1 else 0.0
        self.clients = [each.client_id for each in run.plan.clients if each.does == "offer"]

    def rate(self, client_ids: Iterable[str], first_s: int, seconds: int) -> float:
        """The bytes per second that some clients have passed together."""
        slots = range(first_s, first_s + seconds)
        return sum(self._passed[name][at] for name in client_ids for at in slots) / seconds

    def broken(self) -> Iterator[Violation]:
        """The broken promises."""
        equals = [name for name in self.clients if name.startswith("equal")]
        for first_s in range(_KNOWN_S, SECONDS - WINDOW_S):
            total = self.rate(self.clients, first_s, WINDOW_S)
            if not 0.95 - self._late <= total / CAPACITY <= 1.1:
                yield Violation("capacity_is_used", first_s * 1000, f"{total:,.0f} bytes per second pass")
            yield from self._guarantee("steady", first_s)
            if first_s >= RETURN_S + 2:
                yield from self._guarantee("lender", first_s)
            fairness = jain([self.rate([name], first_s, WINDOW_S) for name in equals])
            if fairness < 0.98:
                yield Violation("equals_get_equal_parts", first_s * 1000, f"Jain's index is {fairness:.3f}")
        yield from self._settled(equals)

    def _guarantee(self, client_id: str, first_s: int) -> Iterator[Violation]:
        guarantee = self._quotas[client_id]["producer_byte_guarantee"]
        passed = self.rate([client_id], first_s, WINDOW_S)
        # At each end of a window one request may be incomplete.
        if passed < 0.98 * guarantee - REQUEST_BYTES / WINDOW_S:
            yield Violation(
                "guarantees_hold", first_s * 1000, f"{client_id} passes {passed:,.0f} of {guarantee:,.0f}"
            )

    def _settled(self, equals: list[str]) -> Iterator[Violation]:
        first_s = RETURN_S + _SETTLED_S
        seconds = SECONDS - first_s
        last = {name: self.rate([name], first_s, seconds) for name in self.clients}
        for name in (*equals, "heavy", "lender"):
            for at_s in range(first_s, SECONDS - WINDOW_S):
                now = self.rate([name], at_s, WINDOW_S)
                if not 0.9 <= now / last[name] <= 1.1:
                    yield Violation(
                        "shares_settle", at_s * 1000, f"{name}: {now:,.0f}, later {last[name]:,.0f}"
                    )
        weight = self._quotas["heavy"]["weight"]
        times = last["heavy"] * len(equals) / sum(last[name] for name in equals)
        if not 0.95 <= times / weight <= 1.05:
            yield Violation(
                "weights_hold", first_s * 1000, f"{times:.2f} times as much, with weight {weight}"
            )
        of_pair = (last["pair-0"] + last["pair-1"]) / SMALL
        if not 0.8 <= of_pair <= 1.2:
            yield Violation("groups_hold", first_s * 1000, f"members pass {of_pair:.2f} times their quota")


def jain(values: list[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 0.0


def run_shares(seed: int) -> list[str]:
    """Runs a seed. Returns the broken promises."""
    run = Run(make_shares(seed))
    return [str(each) for each in run.go().violations or Shares(run).broken()]
