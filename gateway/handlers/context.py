"""What most handlers need: one object per listener, made by the composition root."""

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
    """The parts of the gateway that decide.

    Attributes:
        topology: broker addresses for the clients of this listener.
        limits: configured quotas.
        mutations: KIP-599 accounting, shared by all listeners.
        observer: called with every decision.
        recent_topics: what was done to topics that Metadata may not show yet.
        usage: of the usage records; None: none are kept.
        listener: its name.
        own_topics: the gateway's own, which clients must not change.
        journal: of throttles; None: none is kept.
        scope: what one counter covers, as the configuration says it.
        topic_ids: receives what Metadata answers say of topics; None: it is not wanted.
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
        """Whether any controller mutation quota is set; without one nothing is charged, as in Kafka."""
        return self.mutations.enabled

    @property
    def mutations_seen(self) -> bool:
        """Whether mutations are looked at: charged, or only counted in usage records; neither with all quotas off."""
        if self.usage is not None:
            return self.limits.mode is not Enforcement.OFF
        return self.mutations_enabled
