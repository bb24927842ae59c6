"""The parts of the gateway that connections of one listener share, without a socket: limits, counters, handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from config.sections.connections import ConnectionSettings
from config.sections.limits import LimitSettings
from config.sections.quota_admin import Authorize
from gateway.handlers import handlers_of
from gateway.handlers.context import HandlerContext
from gateway.observability.quota_metrics import label_value
from gateway.observability.throttle_journal import ThrottleJournal
from gateway.observability.traces import TraceSink
from gateway.session.announced import AnnouncedLimits
from gateway.session.client_quotas import ClientQuotas
from gateway.session.memory_budget import MemoryBudget
from gateway.session.routes import (
    UNKNOWN_API_VERSIONS,
    HeadHandler,
    RequestHandler,
    Route,
    build_routes,
    route_of,
)
from gateway.session.session import ClientSession
from gateway.session.settings import SessionSettings
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.topology import BrokerPorts, ClusterMap, Topology
from gateway.usage.table import UsageTable
from gateway.usage.topic_ids import TopicIds
from protocol.api_keys import ApiKey, all_offered
from protocol.headers import api_number
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.rate_quotas import RateSettings
from quotas.resolution import Rule
from quotas.user_connections import UserConnections
from testkit.broker_limits import ScriptedLimits
from testkit.clock import FakeClock
from testkit.observer import SilentObserver
from testkit.quota_admin import ScriptedAlterations

START_MS: Final = 7_300_000
UPSTREAM_HOST: Final = "broker.inside"
GATEWAY_HOST: Final = "gateway.test"
FIRST_PORT: Final = 19_092
MOST_HELD: Final = 8
"""Connections that wait for their user's rate."""


def session_settings(**changes: int) -> SessionSettings:
    """The configuration's defaults, with changes."""
    delay_ms = ConnectionSettings().failed_authentication_delay_ms
    defaults = LimitSettings().model_dump() | {"failed_authentication_delay_ms": delay_ms}
    return SessionSettings(**defaults | changes)


class RecordingObserver(SilentObserver):
    """Records its calls.

    Attributes:
        throttles: (api key, rule, throttle_time_ms, by) in order.
        decisions: (api key, accepted permits, refused topics) in order.
        auto_created: topics.
    """

    def __init__(self) -> None:
        self.throttles: list[tuple[ApiKey, Rule, int, ThrottledBy]] = []
        self.decisions: list[tuple[ApiKey, float, int]] = []
        self.auto_created = 0

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See `Observer`."""
        self.decisions.append((api_key, accepted_permits, refused_topics))

    def throttled(
        self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy, again: bool = False
    ) -> None:
        """See `Observer`."""
        self.throttles.append((api_key, rule, throttle_time_ms, by))

    def topics_auto_created(self, count: int) -> None:
        """See `Observer`."""
        self.auto_created += count


class RoutesOnDemand(dict[int, Route]):
    """The result of `build_routes`, with routes made when they are first used: a test uses a few of some 3,400."""

    _offered: Final = {api_number(api.key, api.version): api for api in all_offered()}

    def __init__(
        self,
        collect: Mapping[ApiKey, RequestHandler],
        head: Mapping[ApiKey, HeadHandler],
        *,
        max_frame_bytes: int,
    ) -> None:
        self._route = partial(route_of, collect=collect, head=head, max_frame_bytes=max_frame_bytes)
        self._whole = partial(build_routes, collect, head, max_frame_bytes=max_frame_bytes)

    def get(self, number: int, default: Any = None) -> Any:
        if number in self:
            return self[number]
        if number in self._offered:
            self[number] = self._route(self._offered[number])
        elif number == UNKNOWN_API_VERSIONS:
            self[number] = self._whole()[number]
        return super().get(number, default)

    def __missing__(self, number: int) -> Route:
        if self.get(number) is None:
            raise KeyError(number)
        return self[number]


class GatewayCore:
    """The shared parts of one listener, and the clock of its connections.

    Attributes:
        clock: moved by conversations.
        started_ms: the clock's first value.
        limits, mutations, client_quotas, users, observer, journal, context: as in the gateway.
        desk: makes quota alterations durable.
        settings: the bounds of its sessions.
        memory: the memory that its sessions use together.
        announced: the bytes that they have announced to brokers.
        traces: called for mutations and logins.
        routes: the table of routes.
    """

    def __init__(
        self,
        *,
        controller_mutation_rate: float | None = None,
        producer_byte_rate: float | None = None,
        consumer_byte_rate: float | None = None,
        request_percentage: float | None = None,
        mutation_settings: MutationSettings | None = None,
        rate_settings: RateSettings | None = None,
        settings: SessionSettings | None = None,
        default_num_partitions: int = 1,
        bind: Callable[[int, int], bool] = lambda _broker_id, _port: True,
        user: str = "ANONYMOUS",
        authorize: Authorize = Authorize.ANYONE,
        admins: Iterable[str] = (),
        board: ScriptedLimits | None = None,
        usage: UsageTable | None = None,
        topic_ids: TopicIds | None = None,
        own_topics: Iterable[str] = (),
        traces: TraceSink | None = None,
    ) -> None:
        """Builds the parts.

        Args:
            controller_mutation_rate: quota of `user`; None: no quota. The next three are the same.
            producer_byte_rate: see above.
            consumer_byte_rate: see above.
            request_percentage: see above.
            mutation_settings: defaults to ten windows of a second, as in most of Kafka's tests.
            rate_settings: windows of the other quotas; Kafka's defaults.
            settings: the bounds of the sessions.
            default_num_partitions: the gateway's value of num.partitions.
            bind: see `gateway.upstream.topology.BindPort`.
            user: the principal of its sessions.
            authorize: decides who may read and change quotas.
            admins: users that always may.
            board: answers for connection limits of brokers; None: the broker does.
            usage: the usage records; None: none are kept.
            topic_ids: names of topics.
            own_topics: names of the gateway's own topics that the cluster has not shown yet.
            traces: of mutations and logins; None: off.
        """
        self.traces = traces
        self.started_ms = START_MS
        self.clock = FakeClock(START_MS)
        self.user = user
        self.limits = Limits()
        self.set_quota(QuotaKey.CONTROLLER_MUTATION_RATE, controller_mutation_rate)
        self.set_quota(QuotaKey.PRODUCER_BYTE_RATE, producer_byte_rate)
        self.set_quota(QuotaKey.CONSUMER_BYTE_RATE, consumer_byte_rate)
        self.set_quota(QuotaKey.REQUEST_PERCENTAGE, request_percentage)
        mutation_settings = mutation_settings or MutationSettings(window_num=10)
        self.mutations = MutationQuotas(self.limits, mutation_settings)
        window_s = mutation_settings.window_num * mutation_settings.window_ms / 1_000
        self._full_tokens = (controller_mutation_rate or 0) * window_s
        self.observer = RecordingObserver()
        self.journal = ThrottleJournal(lambda: self.clock.now_ms, label_value)
        self.topic_ids = topic_ids or TopicIds()
        self.client_quotas = ClientQuotas(
            self.limits,
            rate_settings or RateSettings(),
            self.observer,
            usage=usage,
            journal=self.journal,
            topic_ids=self.topic_ids,
        )
        self.users = UserConnections(self.limits, rate_settings or RateSettings(), lambda: MOST_HELD)
        self.users.on_held = self.journal.user_connection_held
        self.desk = ScriptedAlterations(self.limits, authorize=authorize, admins=admins)
        if board is not None:
            self.desk.limits = board.limits
        cluster_map = ClusterMap([(UPSTREAM_HOST, 9092)], default_num_partitions=default_num_partitions)
        self._broker_limits = None if board is None else board.limits
        self.context = HandlerContext(
            topology=Topology(cluster_map, BrokerPorts(GATEWAY_HOST, FIRST_PORT, 1, 10), bind),
            limits=self.limits,
            mutations=self.mutations,
            observer=self.observer,
            usage=usage,
            topic_ids=self.topic_ids,
            own_topics=OwnTopics(*own_topics),
            journal=self.journal,
        )
        self.settings = settings or session_settings()
        self.memory = MemoryBudget(self.settings.queued_max_request_bytes)
        self.announced = AnnouncedLimits(self.settings.announced_max_request_bytes)
        self.routes: dict[int, Route] = RoutesOnDemand(
            *self.handlers(), max_frame_bytes=self.settings.max_frame_bytes
        )

    def handlers(
        self, *, sasl: bool = False
    ) -> tuple[Mapping[ApiKey, RequestHandler], Mapping[ApiKey, HeadHandler]]:
        """The handlers as in the gateway; see `handlers_of`."""
        return handlers_of(self.context, self.client_quotas, self.desk.admin, self._broker_limits, sasl=sasl)

    def new_session(self) -> ClientSession:
        """The session of a client that has connected."""
        session = ClientSession(
            self.routes,
            self.settings,
            listener="tests",
            peer="192.0.2.1:40000",
            address="192.0.2.1",
            quotas=self.client_quotas,
            memory=self.memory,
            announced=self.announced.of("", None),
            traces=self.traces,
            users=self.users,
            now_ms=self.clock.now_ms,
        )
        session.user = self.user
        return session

    def set_quota(self, key: QuotaKey, value: float | None) -> None:
        """Sets or removes a quota of the user."""
        entity = QuotaEntity(user=self.user)
        if value is None:
            self.limits.remove(entity, key)
        else:
            self.limits.set(entity, key, value)

    @property
    def tokens(self) -> float:
        """Mutation tokens of the only counter. A full bucket's tokens if nothing was counted yet."""
        rows = self.mutations.snapshot(now_ms=self.clock.now_ms)
        if not rows:
            return self._full_tokens
        (row,) = rows
        assert row.tokens is not None
        return row.tokens

    def spend(self, permits: float, *, client_id: str = "tests") -> None:
        """Takes mutation tokens without a request."""
        self.mutations.charge(self.user, client_id, permits, strict=True, now_ms=self.clock.now_ms)
