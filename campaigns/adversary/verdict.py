"""What must hold after a script: the formulas of docs/reference/quota-semantics.md, for any number of connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from campaigns.adversary.player import Outcome
from campaigns.adversary.script import Script
from campaigns.adversary.stage import MUTATIONS_PER_S, QUOTA_BYTES_PER_S, WINDOW_S, Found

SLACK_S: Final = 0.5
"""Between the first byte of a script and the gateway's clock, and at its end."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be.

    Attributes:
        kind: produced, fetched, partitions, or of the process: stall, memory, honest, ended, error.
        detail: figures.
    """

    kind: str
    detail: str


def judge(script: Script, outcome: Outcome, found: Found) -> list[Violation]:
    """What this client got beyond its quota, or saw and must not."""
    violations = [Violation("order", fault) for fault in outcome.faults[:1]]
    seconds = max(outcome.seconds, found.seconds) + SLACK_S
    for kind, got, one in (
        ("produced", found.produced_bytes, outcome.largest_produce_bytes),
        ("fetched", outcome.fetched_bytes, outcome.largest_fetch_bytes),
    ):
        bound = QUOTA_BYTES_PER_S * (seconds + 2 * WINDOW_S) + one
        if got > bound:
            violations.append(Violation(kind, _told(got, bound, outcome, "bytes")))
    # Creating costs what is there at the end; what has been deleted has cost twice.
    permits = found.partitions + 2 * outcome.deleted_partitions
    bound = MUTATIONS_PER_S * (WINDOW_S + seconds) + outcome.most_permits
    if script.old:  # cannot be refused: it waits beyond one window of debt
        bound += MUTATIONS_PER_S * WINDOW_S
    if permits > bound:
        violations.append(Violation("partitions", _told(permits, bound, outcome, "permits")))
    return violations


def _told(got: float, bound: float, outcome: Outcome, unit: str) -> str:
    return (
        f"{got:,.0f} {unit}, {got / bound:.2f} times the bound of {bound:,.0f}; "
        f"{outcome.seconds:.1f} s, {len(outcome.ports)} connections, {outcome.requests} requests"
    )
