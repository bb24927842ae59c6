"""Shrinks a plan while it still breaks the same law."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from simulation.plan import Plan
from simulation.run import run
from simulation.world import Stuck


def broken_by(plan: Plan) -> str | None:
    """The first law that a run of this plan breaks; None: it breaks none."""
    try:
        violations = run(plan).violations
    except Stuck:
        return "stuck"
    except Exception as exc:  # noqa: BLE001  (any error counts: a smaller plan with the same error is wanted)
        return type(exc).__name__
    return violations[0].law if violations else None


def shrink(plan: Plan, *, seconds: float = 60.0) -> Plan:
    """Searches for the smallest plan that breaks the same law.

    Args:
        plan: a plan that breaks a law.
        seconds: how long to search.
    """
    law = broken_by(plan)
    end_s = time.monotonic() + seconds
    found = True
    while found and law is not None:
        found = False
        for smaller in _smaller(plan):
            if time.monotonic() > end_s:
                return plan
            if broken_by(smaller) == law:
                plan, found = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with a little less content, the largest reductions first."""
    for name in ("faults", "clients"):
        items = getattr(plan, name)
        if len(items) > 3:
            half = len(items) // 2
            yield replace(plan, **{name: items[:half]})
            yield replace(plan, **{name: items[half:]})
        for at in range(len(items)):
            yield replace(plan, **{name: items[:at] + items[at + 1 :]})
    if len(plan.gateways) > 1:
        clients = tuple(replace(each, gateway=1) for each in plan.clients)
        yield replace(plan, gateways=plan.gateways[:1], clients=clients)
    if any(count > 1 for count in plan.gateways):
        yield replace(plan, gateways=tuple(1 for _ in plan.gateways))
    if plan.seconds > 2:
        yield replace(plan, seconds=plan.seconds // 2)
    for name in plan.tables:
        yield replace(plan, tables={key: value for key, value in plan.tables.items() if key != name})
    rules = plan.tables.get("quotas", [])
    for at in range(len(rules)):
        yield replace(plan, tables={**plan.tables, "quotas": rules[:at] + rules[at + 1 :]})
    if plan.brokers > 1:
        yield replace(plan, brokers=1)
