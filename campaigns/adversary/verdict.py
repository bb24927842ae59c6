"""Checks after a script: the formulas of docs/reference/quota-semantics.md, for any number of connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from campaigns.adversary.player import Outcome
from campaigns.adversary.script import Script
from campaigns.adversary.stage import MUTATIONS_PER_S, QUOTA_BYTES_PER_S, WINDOW_S, Found

SLACK_S: Final = 0.5
"""Tolerance between the script's begin and end and the gateway's clock."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule.

    Attributes:
        kind: produced, fetched, partitions, or for the process: stall, memory, honest, ended, error.
        detail: the figures.
    """

    kind: str
    detail: str


def judge(script: Script, outcome: Outcome, found: Found) -> list[Violation]:
    """The rules that this client broke: bytes or partitions beyond its quota, or forbidden replies."""
    violations = [Violation("order", fault) for fault in outcome.faults[:1]]
    seconds = max(outcome.seconds, found.seconds) + SLACK_S
    for kind, got, one in (
        ("produced", found.produced_bytes, outcome.largest_produce_bytes),
        ("fetched", outcome.fetched_bytes, outcome.largest_fetch_bytes),
    ):
        bound = QUOTA_BYTES_PER_S * (seconds + 2 * WINDOW_S) + one
        if got > bound:
            violations.append(Violation(kind, _told(got, bound, outcome, "bytes")))
    # Existing partitions have cost one permit each. Deleted ones have cost two: creation and deletion.
    permits = found.partitions + 2 * outcome.deleted_partitions
    bound = MUTATIONS_PER_S * (WINDOW_S + seconds) + outcome.most_permits
    if script.old:  # cannot be refused, so it only waits beyond one window of debt
        bound += MUTATIONS_PER_S * WINDOW_S
    if permits > bound:
        violations.append(Violation("partitions", _told(permits, bound, outcome, "permits")))
    return violations


def _told(got: float, bound: float, outcome: Outcome, unit: str) -> str:
    return (
        f"{got:,.0f} {unit}, {got / bound:.2f} times the bound of {bound:,.0f}; "
        f"{outcome.seconds:.1f} s, {len(outcome.ports)} connections, {outcome.requests} requests"
    )
