"""HandlerContext: the objects that most handlers need. The composition root creates one context per listener."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.handlers.recent_topics import RecentTopics
from gateway.observability.events import RequestObserver
from gateway.observability.throttle_journal import ThrottleJournal
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.topology import Topology
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from quotas.limits import Enforcement, Limits
from quotas.mutations import MutationQuotas

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""Largest request that is collected whole; a CreateTopics of 10,000 topics has about one MiB."""


@dataclass(slots=True)
class HandlerContext:
    """The objects that most handlers need.

    Attributes:
        topology: broker addresses for the clients of this listener.
        limits: configured quotas.
        mutations: KIP-599 accounting, shared by all listeners.
        observer: called with every decision.
        recent_topics: recent changes of topics that Metadata may not show yet.
        usage: the usage records' table; None: no usage records are kept.
        listener: the listener's name.
        own_topics: the gateway's own topics, which clients must not change.
        journal: the journal of throttles; None: no journal is kept.
        scope: the configured scope of one counter.
        topic_ids: gets the names of topics from Metadata answers; None: not needed.
    """

    topology: Topology
    limits: Limits
    mutations: MutationQuotas
    observer: RequestObserver
    recent_topics: RecentTopics = field(default_factory=RecentTopics)
    usage: UsageTable | None = None
    listener: str = ""
    own_topics: OwnTopics = field(default_factory=OwnTopics)
    journal: ThrottleJournal | None = None
    topic_ids: TopicIds | None = None
    scope: str = "gateway"

    @property
    def mutations_enabled(self) -> bool:
        """Whether any controller mutation quota is set. Without one no mutation is charged, as in Kafka."""
        return self.mutations.enabled

    @property
    def mutations_seen(self) -> bool:
        """Whether mutations are charged, or counted in usage records; neither if enforcement is off."""
        if self.usage is not None:
            return self.limits.mode is not Enforcement.OFF
        return self.mutations_enabled
