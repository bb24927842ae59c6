"""The tested combinations of clients, mechanisms and situations, and their table in docs/reference/sasl.md.

Every cell is a test of its own (`tests/integration/test_sasl_matrix.py`), so the page cannot claim more than the
tests
show. `python -m testkit.sasl_matrix` writes the table into the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testkit.marked_part import with_part

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "sasl.md"

FAMILIES: Final = ("kafka-python", "aiokafka", "librdkafka", "Java")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
OUTCOMES: Final = {
    "success": "alice's records arrive and are counted for alice alone",
    "over TLS": "the same by SASL_SSL, on both sides of the gateway",
    "failure": "with a wrong password or a token without a name nothing arrives and no client is counted",
    "re-authentication": "after the session's end the same connection is still alice's",
    "other principal": "bob's records are counted for bob alone",
}

NOT_POSSIBLE: Final = {
    ("aiokafka", "re-authentication"): "does not re-authenticate: connects anew, as alice",
}
"""(family, outcome) -> the reason for another outcome, for which the cell is tested."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One client in one situation, with a client id of its own."""

    family: str
    mechanism: str
    outcome: str

    @property
    def client_id(self) -> str:
        """The client id that distinguishes its requests."""
        return f"{self.family}.{self.mechanism}.{self.outcome}".replace(" ", "-")

    @property
    def reauthenticates(self) -> bool:
        """Whether the family can do what the outcome requires."""
        return self.outcome == "re-authentication" and (self.family, self.outcome) not in NOT_POSSIBLE


CELLS: Final = tuple(
    Cell(family, mechanism, outcome)
    for family in FAMILIES
    for mechanism in MECHANISMS
    for outcome in OUTCOMES
)


def table() -> str:
    """The table of the page."""
    lines = ["| client | mechanism | " + " | ".join(OUTCOMES) + " |", "|---|---|" + "---|" * len(OUTCOMES)]
    for family in FAMILIES:
        for mechanism in MECHANISMS:
            cells = (NOT_POSSIBLE.get((family, outcome), "yes") for outcome in OUTCOMES)
            lines.append(f"| {family} | {mechanism} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.extend(f"* {outcome}: {meaning}." for outcome, meaning in OUTCOMES.items())
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its table as it should be."""
    return with_part(text, "matrix", table())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
