"""Names of topics by their ids, from the cluster and from clients' Metadata responses. Pure.

Produce v13 on and Fetch v13 on name topics by id alone (KIP-516). An id that is used and not known is noted, for the
gateway to ask the cluster about.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_KNOWN: Final = 100_000
"""Ids that are remembered; what was forgotten is asked for again."""

MOST_UNKNOWN: Final = 500
"""Ids that are to be asked for of those that brokers have named, and as many of those that clients have."""

_MOST_ASKED: Final = 10
"""How often the cluster is asked for an id that it does not know, or must not name."""


class TopicIds:
    """See the module; one object for all listeners, since an id never gets another name.

    Attributes:
        wanted: whether anything is counted by topic; otherwise what passes need not be read.
    """

    def __init__(self) -> None:
        """None is known."""
        self.wanted = False
        self._names: dict[bytes, bytes] = {}
        self._told: dict[bytes, int] = {}  # by brokers, not known: how often each was asked for
        # By clients; each has one place, which the newest takes: ids in use come back, invented ones do not.
        self._claimed: dict[int, tuple[bytes, int]] = {}

    def name_of(self, topic_id: bytes, *, told_by_broker: bool) -> bytes | None:
        """The name; None: it is not known yet, and will be asked for.

        Args:
            topic_id: 16 bytes.
            told_by_broker: what clients name may be invented, and takes no place from what is not.
        """
        name = self._names.get(topic_id)
        if name is not None or topic_id in self._told:
            return name
        if told_by_broker:
            if len(self._told) >= MOST_UNKNOWN:
                del self._told[next(iter(self._told))]
            self._told[topic_id] = 0
        else:
            place = hash(topic_id) % MOST_UNKNOWN
            if self._claimed.get(place, (b"", 0))[0] != topic_id:
                self._claimed[place] = topic_id, 0
        return None

    def learn(self, topic_id: bytes, name: bytes) -> None:
        """The cluster has named a topic."""
        self._told.pop(topic_id, None)
        place = hash(topic_id) % MOST_UNKNOWN
        if self._claimed.get(place, (b"", 0))[0] == topic_id:
            del self._claimed[place]
        if topic_id not in self._names:
            while len(self._names) >= MOST_KNOWN:
                del self._names[next(iter(self._names))]
            self._names[topic_id] = name

    @property
    def to_ask(self) -> list[bytes]:
        """Ids to ask the cluster for."""
        claimed = dict(self._claimed.values())
        return [each for each, asked in (claimed | self._told).items() if asked < _MOST_ASKED]

    def asked(self, topic_ids: Iterable[bytes]) -> None:
        """These were asked for; those that are not known all the same are asked for again, a few times."""
        for each in topic_ids:
            if each in self._told:
                self._told[each] += 1
            place = hash(each) % MOST_UNKNOWN
            claimed, asked = self._claimed.get(place, (b"", 0))
            if claimed == each:
                self._claimed[place] = each, asked + 1
