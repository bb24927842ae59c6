"""TopicFindings: the known facts about the topics of one mutation request, and each topic's cost. Pure.

Metadata may be out of date, and shows only what one principal may see. So the findings include the notes of
`RecentTopics` from the time of the question. If the answers cannot show what the broker would do, a topic is charged
as requested (docs/decisions/0011-mutation-cost.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from gateway.handlers.recent_topics import RecentTopics
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.topology import ClusterMap
from protocol.api_keys import ApiKey
from protocol.error_codes import ErrorCode
from protocol.metadata import TopicFacts
from protocol.topic_mutations import NO_TOPIC_ID, TopicIdentity, TopicMutation, TopicMutations
from protocol.topic_names import is_valid_topic_name
from protocol.topic_results import TopicResults, by_identity
from quotas.mutation_cost import create_partitions_permits, create_topics_permits, delete_topics_permits


class TopicFindings:
    """The findings of one round of questions. A second round begins with new findings.

    Attributes:
        recent_topics: recent changes of topics that Metadata may not show yet.
        cluster: the known facts about the brokers.
        asked_ms: when the cluster was asked; set by the exchange.
        validated: the broker's refusals when it validated.
        own: topics of the gateway, which are refused whatever the quota says.
        refused_by_broker: topics that the broker refused when it validated.
    """

    __slots__ = (
        "_key",
        "_known",
        "_own_topics",
        "_repeated",
        "_request",
        "_unproven",
        "asked_ms",
        "cluster",
        "own",
        "recent_topics",
        "refused_by_broker",
        "validated",
    )

    def __init__(
        self,
        request: TopicMutations,
        recent_topics: RecentTopics,
        own_topics: OwnTopics,
        cluster: ClusterMap,
        *,
        tail: bytes,
    ) -> None:
        """Start without findings.

        Args:
            request: the client's request.
            recent_topics: see the class.
            own_topics: the gateway's own topics.
            cluster: see the class.
            tail: the bytes after the results in a reply that the gateway makes without the broker.
        """
        self._request = request
        self._key = request.api.key
        self._known: dict[TopicIdentity, TopicFacts] = {}
        self._repeated: set[TopicIdentity] = set()  # topics that the request names more than once
        self._unproven: set[TopicIdentity] = set()  # seemed free, but the broker would not refuse them
        self._own_topics = own_topics
        self.recent_topics = recent_topics
        self.cluster = cluster
        self.asked_ms = 0
        self.own: set[TopicIdentity] = set()
        self.refused_by_broker: set[TopicIdentity] = set()
        self.validated = TopicResults(0, (), tail)

    # -- the cluster's and the broker's answers --------------------------------------------------------------

    def learn(self, facts: TopicFacts, *, by_id: bool) -> None:
        """Note the cluster's facts about a topic, which the gateway requested by id or by name."""
        self._known[(None, facts.topic_id) if by_id else (facts.name, NO_TOPIC_ID)] = facts

    def sort_out(self) -> None:
        """Find topics that are named twice, and topics of the gateway, after the cluster's answer."""
        self._repeated = self._find_repeated()
        own = self._own_topics
        for topic in self._request.topics if own else ():
            facts = self.facts_of(topic)
            if topic.name in own.names or topic.topic_id in own.ids or (facts and own.owns(facts)):
                self.own.add(topic.identity)

    def _find_repeated(self) -> set[TopicIdentity]:
        """The topics that are named twice, or both by name and by id."""
        times = Counter(topic.identity for topic in self._request.topics)
        repeated = {identity for identity, count in times.items() if count > 1}
        by_id: dict[bytes, TopicIdentity] = {}
        for identity in times:
            facts = self._known.get(identity)
            if facts is not None and facts.topic_id != NO_TOPIC_ID:
                other = by_id.setdefault(facts.topic_id, identity)
                if other != identity:
                    repeated |= {identity, other}
        return repeated

    def assume_done(self, free: Iterable[TopicMutation]) -> None:
        """Treat these topics, if named once, as not refused, because the API has no validation."""
        self._unproven = {topic.identity for topic in free if self.is_single(topic)}

    def take_validation(self, free: Iterable[TopicIdentity], answer: TopicResults) -> None:
        """Note which of these topics the broker refused when it validated. It would not refuse the others."""
        found = by_identity(answer.results)
        for identity in free:
            result = found.get(identity)
            refused = result is not None and result.error_code != ErrorCode.NONE
            (self.refused_by_broker if refused else self._unproven).add(identity)
        kept = tuple(result for result in answer.results if result.error_code != ErrorCode.NONE)
        self.validated = replace(answer, results=kept)

    # -- what is known of a topic ----------------------------------------------------------------------------

    def facts_of(self, topic: TopicMutation) -> TopicFacts | None:
        """The cluster's facts about a topic; None without an answer about it."""
        return self._known.get(topic.identity)

    def is_single(self, topic: TopicMutation) -> bool:
        """Whether the request names this topic once."""
        return topic.identity not in self._repeated

    def is_hidden(self, topic: TopicMutation) -> bool:
        """Whether the client has no permission to see this topic."""
        facts = self.facts_of(topic)
        return facts is not None and facts.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def name_of(self, topic: TopicMutation) -> bytes:
        """The name of a topic, or its id if the cluster does not give the name."""
        facts = self.facts_of(topic)
        return topic.name or (facts.name if facts is not None and facts.name else topic.topic_id)

    def _partitions_now(self, topic: TopicMutation) -> int | None:
        """How many partitions this topic has; None if it does not exist."""
        called = topic.topic_id if topic.name is None else topic.name
        # Notes that were valid at the time of the question: an answer read late does not show later changes.
        noted = self.recent_topics.partitions(called, now_ms=self.asked_ms)
        if noted is not None:
            return noted or None
        facts = self.facts_of(topic)
        return facts.partition_count if facts is not None and facts.error_code == ErrorCode.NONE else None

    def partitions_afterwards(self, topic: TopicMutation) -> int:
        """How many partitions the topic has after the mutation; 0: it is deleted."""
        if self._key is ApiKey.DELETE_TOPICS:
            return 0
        if self._key is ApiKey.CREATE_TOPICS:
            return self.permits_as_asked(topic)
        return topic.num_partitions

    def facts_by_name(self, name: bytes) -> TopicFacts | None:
        """The cluster's facts about the topic with this name; None without an answer about it."""
        return self._known.get((name, NO_TOPIC_ID))

    # -- what a topic costs ----------------------------------------------------------------------------------

    def permits(self, topic: TopicMutation, *, guessing: bool = False) -> float:
        """The cost of this topic in permits; 0 if it seems that the broker will refuse it.

        Args:
            topic: of the request.
            guessing: whether the answers are too old to be trusted.
        """
        if topic.identity in self.refused_by_broker or topic.identity in self.own:
            return 0
        if topic.identity in self._unproven:
            return self.permits_as_asked(topic)
        if not self.is_single(topic):
            return 0
        permits = self.permits_as_known(topic)
        if self._key is ApiKey.CREATE_TOPICS:
            return permits
        recent = self.recent_topics
        name = self.name_of(topic)
        if self._key is ApiKey.CREATE_PARTITIONS:
            may_be_another = guessing or recent.may_be_deleted(name, now_ms=self.asked_ms)
            return self.permits_as_asked(topic) if may_be_another else permits
        guess = self.permits_as_asked(topic) if guessing else 0
        return max(permits, guess, recent.most_partitions(name, now_ms=self.asked_ms))

    def permits_to_forward(self, topic: TopicMutation, *, limited: bool, guessing: bool) -> float:
        """As `permits`, but a topic that seems free and that the broker has not validated is charged as requested."""
        permits = self.permits(topic, guessing=guessing)
        if permits or not limited:
            return permits
        refused = topic.identity in self.refused_by_broker or topic.identity in self.own
        creates = self._key is not ApiKey.DELETE_TOPICS and not self._request.validate_only
        return self.permits_as_asked(topic) if creates and not refused and self.is_single(topic) else 0

    def permits_as_known(self, topic: TopicMutation) -> float:
        """The cost of this topic if the cluster's answer is still correct."""
        current = self._partitions_now(topic)
        if self._key is ApiKey.CREATE_TOPICS:
            if current is not None or not is_valid_topic_name(topic.name or b""):
                return 0
            cost = create_topics_permits(
                topic.num_partitions,
                max(topic.assignment_count, 0),
                self.cluster.default_num_partitions,
                replication_factor=topic.replication_factor,
            )
        elif current is None and self.is_hidden(topic):
            return self.permits_as_asked(topic)  # it may exist, and the client may be allowed to change it
        elif self._key is ApiKey.CREATE_PARTITIONS:
            assignments = None if topic.assignment_count < 0 else topic.assignment_count
            cost = create_partitions_permits(current, topic.num_partitions, assignments)
        else:
            cost = delete_topics_permits(current)
        return cost if isinstance(cost, int) else 0

    def permits_as_asked(self, topic: TopicMutation) -> int:
        """The highest cost of a topic, whatever the state of the cluster. For a deletion it is a guess."""
        default = self.cluster.default_num_partitions
        if topic.assignment_count > 0:
            return topic.assignment_count
        if self._key is ApiKey.CREATE_TOPICS:
            return topic.num_partitions if topic.num_partitions > 0 else default
        if self._key is ApiKey.CREATE_PARTITIONS:
            return max(topic.num_partitions - 1, 1)
        called = topic.topic_id if topic.name is None else topic.name
        return self.recent_topics.last_partitions(called) or default
