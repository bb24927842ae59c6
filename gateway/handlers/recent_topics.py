"""What clients did to topics a moment ago, while Metadata may not show it yet, and what may still come of timeouts.

A broker answers CreateTopics when the controller has decided; its own Metadata follows some milliseconds later, on a
busy machine some hundred. A topic that is deleted or grown in between would be charged by guess, and a request that
timed out would be given back although it was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.api_keys import ApiKey
from quotas.mutations import MutationDecision

NOTE_MS: Final = 2_000
"""How long a note is trusted more than Metadata: longer than a broker lags, too short for much else to happen."""

MOST_NOTES: Final = 10_000
_Noted = TypeVar("_Noted")


@dataclass(frozen=True, slots=True)
class OpenCharge:
    """A charge for what may have been done: its request timed out, or failed in a way that tells nothing.

    Attributes:
        user, client_id: who asked; asked for the same by nobody else.
        key: what was asked for.
        partitions: how many the topic has at least if it was done; for deletions of no meaning.
        decision: what was charged.
        due_ms: from when on Metadata tells the truth of it.
    """

    user: str
    client_id: str
    key: ApiKey
    partitions: int
    decision: MutationDecision
    due_ms: int


class RecentTopics:
    """Partition counts by topic name, and by topic id where an answer had it; open charges by name; bounded."""

    def __init__(self) -> None:
        self._notes: dict[bytes, tuple[int, int]] = {}  # -> partitions, when the note expires
        self._open: dict[bytes, OpenCharge] = {}

    def note(self, identity: bytes, partition_count: int, *, now_ms: int) -> None:
        """A topic has this many partitions as of now; 0: it has been deleted."""
        _put(self._notes, identity, (partition_count, now_ms + NOTE_MS))
        # What the topic is like from now on tells nothing any more of a request before.
        self._open.pop(identity, None)

    def partitions(self, identity: bytes, *, now_ms: int) -> int | None:
        """The noted count, 0 for a deleted topic, None when nothing is noted that Metadata of then may not show."""
        noted = self._notes.get(identity)
        return None if noted is None or noted[1] <= now_ms else noted[0]

    def last_partitions(self, identity: bytes) -> int:
        """The last count that was noted, however long ago; 0 when there is none."""
        return self._notes.get(identity, (0, 0))[0]

    def leave_open(self, name: bytes, charge: OpenCharge) -> None:
        """Keep a charge until it is known what was done; of two for the same topic the first is kept for good."""
        _put(self._open, name, charge)

    def take_due(self, user: str, client_id: str, *, now_ms: int) -> dict[bytes, OpenCharge]:
        """The charges of this client that Metadata can decide by now; they are not open any more."""
        due = {
            name: charge
            for name, charge in self._open.items()
            if (charge.user, charge.client_id) == (user, client_id) and charge.due_ms <= now_ms
        }
        for name in due:
            del self._open[name]
        return due


def _put(notes: dict[bytes, _Noted], name: bytes, noted: _Noted) -> None:
    """The newest comes last; the oldest goes when there are too many."""
    notes.pop(name, None)
    if len(notes) >= MOST_NOTES:
        del notes[next(iter(notes))]
    notes[name] = noted
