"""What clients did to topics a moment ago, while Metadata may not show it yet.

A broker answers CreateTopics when the controller has decided; its own Metadata follows some milliseconds later, on a
busy machine some hundred. A topic that is deleted or grown in between would be charged by guess.
"""

from __future__ import annotations

from typing import Final

NOTE_MS: Final = 2_000
"""How long a note is trusted more than Metadata: longer than a broker lags, too short for much else to happen."""

MOST_NOTES: Final = 10_000


class RecentTopics:
    """Partition counts by topic name, and by topic id where an answer had it; bounded."""

    def __init__(self) -> None:
        self._notes: dict[bytes, tuple[int, int]] = {}  # -> partitions, when the note expires

    def note(self, identity: bytes, partition_count: int, *, now_ms: int) -> None:
        """A topic has this many partitions as of now; 0: it has been deleted."""
        self._notes.pop(identity, None)
        if len(self._notes) >= MOST_NOTES:
            del self._notes[next(iter(self._notes))]
        self._notes[identity] = (partition_count, now_ms + NOTE_MS)

    def partitions(self, identity: bytes, *, now_ms: int) -> int | None:
        """The noted count, 0 for a deleted topic, None when nothing is noted."""
        noted = self._notes.get(identity)
        if noted is None:
            return None
        if noted[1] <= now_ms:
            del self._notes[identity]
            return None
        return noted[0]
