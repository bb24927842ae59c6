"""A line of usage records, and the counts of lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without the line feed, and its counts.

    Attributes:
        seq: its number.
        data: the JSON text.
        rows, events: how many it has.
    """

    seq: int
    data: bytes
    rows: int
    events: int


@dataclass(slots=True)
class Tally:
    """Lines, and the rows and events in them."""

    lines: int = 0
    rows: int = 0
    events: int = 0

    def add(self, line: Line) -> None:
        """Add a line."""
        self.lines += 1
        self.rows += line.rows
        self.events += line.events

    def add_all(self, other: Tally) -> None:
        """Add another tally."""
        self.lines += other.lines
        self.rows += other.rows
        self.events += other.events
