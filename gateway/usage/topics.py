"""The topics of a usage row, and the bounds on their number. Pure; the data path counts here.

The topics of a row add up to the bytes of the row exactly. The overhead around the records of a request or response
is counted under the empty name, and topics beyond the caps under `~other`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

from gateway.usage.names import Names
from gateway.usage.row import Counts, TopicTold
from gateway.usage.topic_ids import TopicIds
from quotas.usage_record import OTHER, OVERHEAD

OVERHEAD_KEY: Final = OVERHEAD.encode()
_OTHER: Final = OTHER.encode()
_ID: Final = b"\0"
"""Precedes an id that stands for a name; names do not have this character."""
_WAITS_S: Final = 5
"""How many lines an id waits for its name; then the id is written."""


class TopicUse:
    """The `Topics` of a table: the caps, and names for ids.

    Attributes:
        ids: see `TopicIds`.
        max_of_client: the most topics that are counted separately, for each client and API.
        max_topics: the same for all clients and APIs together.
    """

    def __init__(self, ids: TopicIds, names: Names, *, max_of_client: int, max_topics: int) -> None:
        self.ids = ids
        self.max_of_client = max_of_client
        self.max_topics = max_topics
        self._names = names
        self._topics = 0

    def key_of_id(self, topic_id: bytes, *, told_by_broker: bool) -> bytes:
        """The key for counting a topic that a message names by id; other topics are counted by name."""
        name = self.ids.name_of(topic_id, told_by_broker=told_by_broker)
        return _ID + topic_id if name is None else name

    def new(self, counts: dict[bytes, Counts], key: bytes) -> Counts:
        """New counts for a topic of a row; beyond a cap, the counts of all other topics."""
        if key not in (OVERHEAD_KEY, _OTHER):
            if len(counts) >= self.max_of_client or self._topics >= self.max_topics:
                return counts.get(_OTHER) or self.new(counts, _OTHER)
            self._topics += 1
        found = counts[key] = Counts()
        return found

    def take(self, counts: dict[bytes, Counts]) -> tuple[list[TopicTold], dict[bytes, Counts]]:
        """The topics of a row to write, and those that wait for the next line."""
        told = []
        waiting = {}
        for key, each in counts.items():
            name: bytes | None = key
            if key.startswith(_ID):
                name = self.ids.name_of(key[1:], told_by_broker=False)
                if name is None and each.lines < _WAITS_S:
                    each.lines += 1
                    waiting[key] = each
                    continue
            if key not in (OVERHEAD_KEY, _OTHER):
                self._topics -= 1
            told.append((self._written(key, name), each.requests, each.size_bytes, each.records))
        return told, waiting

    def _written(self, key: bytes, name: bytes | None) -> str:
        if name is None:
            return urlsafe_b64encode(key[1:]).decode().rstrip("=")  # as Kafka prints ids
        if name in (OVERHEAD_KEY, _OTHER):
            return name.decode()
        return self._names.written(name.decode("utf-8", "replace"))

    def pour(self, counts: dict[bytes, Counts], into: dict[bytes, Counts]) -> None:
        """Add the topics of one row to those of another."""
        for key, each in counts.items():
            if key not in (OVERHEAD_KEY, _OTHER):
                self._topics -= 1
            (into.get(key) or self.new(into, key)).add(each)
        counts.clear()
