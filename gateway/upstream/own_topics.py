"""The topics in which the gateway keeps its own records, by name and, once known, by id. Pure."""

from __future__ import annotations

from typing import Final

from config import Config
from protocol.error_codes import ErrorCode
from protocol.metadata import TopicFacts
from protocol.topic_mutations import NO_TOPIC_ID

MOST_OTHERS: Final = 65_536
"""The most ids of other topics that are remembered; forgotten ones are requested again."""


class OwnTopics:
    """The topics that clients must not write to, alter or delete; one object for all listeners.

    Attributes:
        names: as bytes; empty if the gateway keeps nothing in topics.
        ids: of own topics that are known to exist.
        others: ids of topics with other names; the cluster must be asked about an id that is neither here nor in
            `ids`.
        refusals: the number of requests that were refused in part.
    """

    def __init__(self, *names: str) -> None:
        self.names: Final = frozenset(name.encode() for name in names)
        self.ids: frozenset[bytes] = frozenset()
        self.others: dict[bytes, None] = {}
        self.refusals = 0
        self._ids: dict[bytes, bytes] = {}

    @classmethod
    def of(cls, config: Config) -> OwnTopics:
        """The own topics of a configuration."""
        return cls(*config.own_topics().values())

    def __bool__(self) -> bool:
        """Whether there are own topics."""
        return bool(self.names)

    @property
    def all_known(self) -> bool:
        """Whether the ids of all own topics are known."""
        return len(self._ids) == len(self.names)

    def learn(self, topic: TopicFacts) -> None:
        """Note the id of an own topic; the last one counts, since a recreated topic has a new id."""
        if topic.name in self.names and topic.error_code == ErrorCode.NONE and topic.topic_id != NO_TOPIC_ID:
            self._ids[topic.name] = topic.topic_id
            self.ids = frozenset(self._ids.values())

    def tell_apart(self, topic: TopicFacts) -> None:
        """Note whether an id that the cluster has named is of an own topic; an id never gets another name."""
        if topic.name in self.names:
            self.learn(topic)
        elif topic.name and topic.topic_id != NO_TOPIC_ID:
            while len(self.others) >= MOST_OTHERS:
                del self.others[next(iter(self.others))]
            self.others[topic.topic_id] = None

    def owns(self, topic: TopicFacts) -> bool:
        """Whether a topic that the cluster has named is an own topic; notes its id."""
        self.learn(topic)
        return topic.name in self.names
