"""Names of topics by their ids, from the cluster and from clients' Metadata responses. Pure.

Since v13, Produce and Fetch name topics only by id (KIP-516). Unknown ids that are used are noted, and the gateway
asks the cluster for their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MOST_KNOWN: Final = 100_000
"""The most ids that are remembered; forgotten ones are requested again."""

MOST_UNKNOWN: Final = 500
"""The most unknown ids from brokers, and the most from clients."""

_MOST_ASKED: Final = 10
"""How often the name of an id is requested that the cluster does not know, or may not name."""


class TopicIds:
    """See the module; one object for all listeners, since an id never gets another name.

    Attributes:
        wanted: whether anything is counted by topic; otherwise names in Metadata responses need not be read.
    """

    def __init__(self) -> None:
        """None is known."""
        self.wanted = False
        self._names: dict[bytes, bytes] = {}
        self._told: dict[bytes, int] = {}  # unknown ids from brokers: how often each was requested
        # From clients. Each id has one place. Among those for a place chance decides, anew after each question: ids
        # in use come again, and no order in which invented ones are sent keeps them out.
        self._claimed: dict[int, tuple[bytes, int]] = {}
        self._draw = 0

    def name_of(self, topic_id: bytes, *, told_by_broker: bool) -> bytes | None:
        """The name; None: it is not known yet, and will be requested.

        Args:
            topic_id: 16 bytes.
            told_by_broker: whether the id is from a broker. Clients may invent ids, which must not displace real
                ones.
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
            other, asked = self._claimed.get(place, (b"", _MOST_ASKED))
            if other != topic_id and (asked >= _MOST_ASKED or self._rank(topic_id) < self._rank(other)):
                self._claimed[place] = topic_id, 0
        return None

    def _rank(self, topic_id: bytes) -> int:
        """The lowest has the place. Clients cannot know it: Python's hashes differ from process to process."""
        return hash(self._draw.to_bytes(8) + topic_id)

    def learn(self, topic_id: bytes, name: bytes) -> None:
        """Note a topic that the cluster has named."""
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
        """The ids whose names should be requested from the cluster."""
        claimed = dict(self._claimed.values())
        return [each for each, asked in (claimed | self._told).items() if asked < _MOST_ASKED]

    def asked(self, topic_ids: Iterable[bytes]) -> None:
        """Note that these names were requested; if they stay unknown, they are requested again, a few times."""
        self._draw += 1
        for each in topic_ids:
            if each in self._told:
                self._told[each] += 1
            place = hash(each) % MOST_UNKNOWN
            claimed, asked = self._claimed.get(place, (b"", 0))
            if claimed == each:
                self._claimed[place] = each, asked + 1
