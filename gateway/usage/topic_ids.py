"""Names of topics by their ids, as the cluster and clients' Metadata answers tell them. Pure.

Produce v13 on and Fetch v13 on name topics by id alone (KIP-516). An id that is used and not known is noted, for the
gateway to ask the cluster about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_KNOWN: Final = 100_000
"""Ids that are remembered; what was forgotten is asked for again."""

MOST_UNKNOWN: Final = 500
"""Ids that are to be asked for, all in one question."""

_MOST_ASKED: Final = 10
"""How often the cluster is asked for an id that it does not know, or must not tell."""


class TopicIds:
    """See the module; one object for all listeners, since an id never gets another name.

    Attributes:
        wanted: whether anything is counted by topic; otherwise what passes need not be read.
    """

    def __init__(self) -> None:
        """None is known."""
        self.wanted = False
        self._names: dict[bytes, bytes] = {}
        self._unknown: dict[bytes, int] = {}  # how often each was asked for

    def name_of(self, topic_id: bytes, *, told_by_broker: bool) -> bytes | None:
        """The name; None: it is not known yet, and will be asked for.

        Args:
            topic_id: 16 bytes.
            told_by_broker: what clients tell may be invented, and takes no place from what is not.
        """
        name = self._names.get(topic_id)
        if name is None and topic_id not in self._unknown and self._has_room(told_by_broker):
            self._unknown[topic_id] = 0
        return name

    def _has_room(self, told_by_broker: bool) -> bool:
        unknown = self._unknown
        if len(unknown) >= MOST_UNKNOWN:
            first = next(iter(unknown))
            if not told_by_broker and unknown[first] < _MOST_ASKED:
                return False
            del unknown[first]
        return True

    def learn(self, topic_id: bytes, name: bytes) -> None:
        """The cluster has told what a topic is called."""
        self._unknown.pop(topic_id, None)
        if topic_id not in self._names:
            while len(self._names) >= MOST_KNOWN:
                del self._names[next(iter(self._names))]
            self._names[topic_id] = name

    @property
    def to_ask(self) -> list[bytes]:
        """Ids to ask the cluster for."""
        return [each for each, asked in self._unknown.items() if asked < _MOST_ASKED]

    def asked(self, topic_ids: Iterable[bytes]) -> None:
        """These were asked for; those that are not known all the same are asked for again, a few times."""
        for each in topic_ids:
            if each in self._unknown:
                self._unknown[each] += 1
