"""The composition root: builds, starts, drains and stops all parts; handles the signals of the process.

The module only has signal handlers, the order of start and stop, and the exit code; all logic is in the parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import structlog
import uvloop
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from config import Config, ConfigError, ListenerSettings
from config.sections.quota_admin import LimitsBy
from gateway.fleet.counters import AllCounters, ConnectionCounters, counters_of
from gateway.fleet.service import FleetService
from gateway.handlers import handlers_of
from gateway.handlers.context import HandlerContext
from gateway.handlers.recent_topics import RecentTopics
from gateway.net.channel import ChannelFactory
from gateway.net.listener import Listener, Listeners
from gateway.net.listening import ListeningSockets
from gateway.net.long_work import LongWork
from gateway.observability.capacity_metrics import CapacityMetrics, capacity_json
from gateway.observability.capacity_notices import brakes_json, overload_json
from gateway.observability.connection_metrics import ConnectionMetrics, users_json
from gateway.observability.fleet_metrics import FleetMetrics, members_json
from gateway.observability.operation_metrics import (
    AdminPortMetrics,
    LoginMetrics,
    QuotaAdminMetrics,
    ReadinessMetrics,
    ReloadMetrics,
    StoreMetrics,
)
from gateway.observability.quota_metrics import QuotaMetrics, label_value
from gateway.observability.request_metrics import RequestMetrics
from gateway.observability.status import Built, Status
from gateway.observability.throttle_journal import ThrottleJournal
from gateway.quota_admin.alterations import AlterationRunner
from gateway.quota_admin.audit import AuditLog
from gateway.quota_admin.earlier_limits import take_over
from gateway.quota_admin.rights import QuotaAdmin
from gateway.quota_admin.store.build import build_store
from gateway.quota_admin.store.interface import QuotaStore, StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.sqlite_store import SqliteStore
from gateway.runtime.client_settings import ClientSettings
from gateway.runtime.clock import NowMs, loop_clock, wall_clock_ms
from gateway.runtime.collector import freeze_survivors
from gateway.runtime.lateness import LATE_MS
from gateway.runtime.slices import Slices, in_slices
from gateway.server.admin import AdminServer
from gateway.server.admin_access import AdminAccess, pod_hosts
from gateway.server.admin_keys import AdminKeys
from gateway.server.admin_tls import AdminTls
from gateway.server.asked_mutations import AskedMutations
from gateway.server.asked_users import AskedUsers
from gateway.server.carrier import Carrier, WorkerCarrier
from gateway.server.clusters.label import LABEL
from gateway.server.clusters.member import Member, ParentsAccess
from gateway.server.connection_capacity import (
    DescriptorPlan,
    connection_limits,
    plan_descriptors,
    raise_descriptor_limit,
    session_settings,
)
from gateway.server.control import Control, UpgradeReport, control_name
from gateway.server.division_timer import DivisionTimer
from gateway.server.forwarded_changes import ForwardedChanges
from gateway.server.link import LinkLost
from gateway.server.live_settings import LiveSettings
from gateway.server.loop_watchdog import TICK_S, LoopWatchdog
from gateway.server.merged_metrics import ProcessMetrics, packing
from gateway.server.merged_status import MergedMetrics, MergedStatus
from gateway.server.nursery import Nursery, WorkerSockets
from gateway.server.operations import ConfigSource, Operations, ReloadReport, log_contradictions
from gateway.server.predecessor import Predecessor, predecessor_socket
from gateway.server.quota_routes import QuotaRoutes
from gateway.server.remote_store import RemoteStore
from gateway.server.replacement import ADMIN, CONTROL, LISTENER, Replaceable
from gateway.server.sasl_setup import sasl_of
from gateway.server.shared_topics import SharedRecentTopics
from gateway.server.shared_usage import SharedUsage, SupervisorsTopic
from gateway.server.start_error import StartError
from gateway.server.status_routes import StatusRoutes
from gateway.server.supervisor import Supervisor
from gateway.server.systemd import Notify
from gateway.server.tls_setup import TlsParts
from gateway.server.upgrade import Upgrade
from gateway.server.worker import FoundBrokers, WorkerSide
from gateway.server.workers import WorkerPool
from gateway.session.announced import AnnouncedLimits
from gateway.session.client_quotas import ClientQuotas, QuotaScope, RequestTimeSource
from gateway.session.memory_budget import MemoryBudget
from gateway.session.mute import MuteReason
from gateway.session.routes import build_routes
from gateway.session.user_places import UserPlaces
from gateway.upstream.librdkafka import settings_if_needed
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.stored_sampler import StoredSampler
from gateway.upstream.topology import ClusterMap
from gateway.upstream.upstreams import MAIN, build_upstreams
from gateway.usage.forwarding import WorkerUsage
from gateway.usage.service import UsageService, counter_scope, host_id, worker_usage
from gateway.usage.topic_ids import TopicIds
from pinned_jars.extras import install_command
from quotas.connections import ConnectionQuotas
from quotas.entities import QuotaKey
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from quotas.mutations import KEY, MutationQuotas
from quotas.rate_quotas import RateQuotas, RateSettings
from quotas.usage_record import FLEET
from quotas.user_connections import UserConnections

if TYPE_CHECKING:
    from gateway.observability.otlp import OtlpTraces
    from gateway.observability.otlp_metrics import OtlpMetrics

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_DRAIN_POLL_S: Final = 0.02
_SWITCH_S: Final = 0.0005
_READY_MS: Final = 20_000
"""How long a new process may take to reach the brokers."""
_IDLE_MS: Final = 500
"""A process that was replaced closes connections that were idle for this long."""
_STORE_GRACE_S: Final = 5.0
"""Added to the time of an alteration: after a failed write, a topic store takes up to 2 s to learn its outcome."""

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One running gateway.

    Attributes:
        registry: all metrics.
        tls: certificates and the rate limiter of handshakes.
        upstreams: by name; `cluster` and `discovery` belong to the main upstream.
        limits, live_quotas: the quotas in force, and their store, which keeps changes made at run time.
        quota_admin, alterations: the right to change quotas, and changes under way.
        mutations, client_quotas, connections: the counters.
        user_connections: the connections of each user; the supervisor counts them for its workers.
        journal: why clients were throttled.
        traces: spans for OpenTelemetry; None: the gateway makes none.
        usage: the usage records; None: the gateway keeps none.
        fleet: the exchange of usage with other gateways; None: this gateway is in no fleet.
        listeners: by name.
        memory: bounds the memory of their connections.
        announced: bounds the request bytes that these connections have announced to brokers.
        settings: settings that change at run time.
        operations: the kill switch, brakes and reloads.
        admin: the admin port.
        status_routes: the read-only paths of the admin port.
    """

    def __init__(
        self,
        config: Config,
        source: ConfigSource | None = None,
        *,
        nursery: Nursery | None = None,
        worker: WorkerSide | None = None,
        predecessor: Predecessor | None = None,
        member: Member | None = None,
    ) -> None:
        """Build everything; nothing is bound or connected yet.

        Args:
            config: valid.
            source: reads the configuration again at a reload; None: the gateway cannot reload.
            nursery: forks the workers of this process, a supervisor; None: this process serves clients itself.
            worker: the link of this process, a worker, to its supervisor; None: this process is no worker.
            predecessor: the process that this one replaces; None: there is none.
            member: the cluster that this process serves, one of several; None: it is the whole gateway.

        Raises:
            ConfigError: the configuration needs more file descriptors than this process may open.
        """
        loop = self._loop = asyncio.get_running_loop()
        now_ms = self._now_ms = loop_clock(loop)
        process = _Process(config, loop, now_ms, worker, supervises=nursery is not None)
        self._config = config
        self._worker = worker
        self._predecessor = predecessor
        self._member = member
        self._draining = False
        self.replaced = asyncio.Event()
        self.notify = Notify({})
        self.pool = (
            None if nursery is None else WorkerPool(nursery, config.server.worker_count, now_ms=now_ms)
        )

        # Metrics, and parts that depend on no other part of the gateway.
        self.registry = CollectorRegistry()
        self._connection_metrics = ConnectionMetrics(now_ms, MuteReason)
        self._request_metrics = RequestMetrics()
        self._reload_metrics = ReloadMetrics()
        self._watchdog = _build_watchdog(loop)
        self._long_work = LongWork(loop)
        self.journal = ThrottleJournal(wall_clock_ms, label_value)

        # The brokers, and the gateway's port for each.
        self._listening = ListeningSockets()
        self._listeners = Listeners(
            on_port_failed=self._connection_metrics.broker_port_failed,
            open_port=None if worker is None else worker.open_port,
        )
        self.listeners = self._listeners.by_name
        self.tls = TlsParts(config, loop)
        self._own_topics = OwnTopics.of(config)
        self._topic_ids = TopicIds()
        self.announced = _build_announced(process)
        self.upstreams = build_upstreams(
            config,
            now_ms=now_ms,
            tls=self.tls.upstream_tls,
            on_change=self._brokers_changed,
            own_topics=self._own_topics,
            topic_ids=self._topic_ids,
            announced=self.announced,
        )
        self.cluster = self.upstreams[MAIN].cluster
        self.discovery = self.upstreams[MAIN].discovery

        # The quotas in force, and who may change them.
        self._logins = {name: each.login for name, each in self.upstreams.items() if each.login is not None}
        for login in self._logins.values():
            self.tls.look_after(login)
        own_clients = settings_if_needed(config, self._logins.get(MAIN), self.tls.upstream_identity(MAIN))
        self.traces = _traces_of(config)
        self.limits = config.quota_limits()
        store = _build_store(process, own_clients)
        self.live_quotas = LiveQuotas(LayeredQuotas(self.limits), store, now_ms=now_ms, traces=self.traces)
        self.alterations = AlterationRunner(self.live_quotas, now_ms)
        self.quota_admin = _build_quota_admin(config, self.live_quotas, self.alterations)

        # The counters: for quotas, for usage records and for the fleet.
        self.mutations = _build_mutations(process, self.limits)
        self.usage = _build_usage(process, own_clients, self.cluster, self._topic_ids)
        self._stored_sampler = self._build_stored_sampler()
        self.client_quotas = _build_client_quotas(
            config, self.limits, self._request_metrics, self.usage, self.journal, self._topic_ids
        )
        descriptor_limit = raise_descriptor_limit()
        descriptors = plan_descriptors(config, descriptor_limit)
        self.connections = _build_connections(process, self.limits, descriptors)
        self.user_connections = _build_user_connections(process, self.limits, self.connections, self.journal)
        further: dict[QuotaKey, RateQuotas] = dict(self.client_quotas.further_rates)
        if worker is None:
            further[QuotaKey.CONNECTION_CREATION_RATE] = self.user_connections.rates
        self._divided = {"produce": self.client_quotas.produce, "fetch": self.client_quotas.fetch}
        counters = counters_of(
            self.client_quotas.produce,
            self.client_quotas.fetch,
            self.client_quotas.request_time,
            self.mutations,
            (self.client_quotas.produce_topics, self.client_quotas.fetch_topics),
            (
                self.client_quotas.produce_groups,
                self.client_quotas.fetch_groups,
                self.client_quotas.request_groups,
            ),
            further,
        )
        self.fleet = _build_fleet(
            process, self._fleet_counters(counters, shared=worker is None), self.limits, own_clients
        )
        if worker is not None:
            _share_counters(process, worker, counters, self.fleet)
        if self.usage is not None:
            self.usage.watch(self.mutations, self.connections, self.user_connections)

        # The parts that serve clients.
        # Only the supervisor has an admin port: a worker needs none of its keys.
        self._admin_keys = AdminKeys(() if worker is not None else config.admin.keys)
        self.tls.look_after(self._admin_keys)
        self.settings = LiveSettings(
            config,
            descriptor_limit=descriptor_limit,
            set_session_settings=self._listeners.set_session_settings,
            limits_changed=self._listeners.limits_changed,
            connections=self.connections,
            quota_admin=self.quota_admin,
            handshake_limiter=self.tls.handshake_limiter,
            admin_keys=self._admin_keys,
            client_quotas=self.client_quotas,
            now_ms=now_ms,
        )
        self.settings.set_capacity(config)
        self._user_places = self._build_user_places()
        self._division = DivisionTimer(self.client_quotas, self._divided, loop, now_ms, wall_clock_ms)
        self.memory = MemoryBudget(config.limits.queued_max_request_bytes)
        self.memory.later = self._soon
        self._supervisor = self._build_supervisor()
        # A topic created through one listener is known on the others.
        recent_topics = _build_recent_topics(worker, self.mutations)
        for section in config.listeners:
            self._add_listener(section, descriptors, recent_topics)

        # Operations, metrics and status.
        self.operations = Operations(
            config,
            self.live_quotas.quotas,
            source,
            check=self.settings.check,
            read_files=self.settings.read_files,
            apply=self.settings.apply,
            on_reload=self._reloaded,
            tier_use=self._tier_use,
            **({} if self._supervisor is None else {"spread": self._supervisor.spread}),
        )
        admin_tls = self.tls.admin_tls(config.admin.tls)
        self._admin_access = AdminAccess(
            lambda: self.operations.config.admin,
            self._admin_keys,
            now_ms,
            tls=admin_tls,
            hosts=pod_hosts(os.environ),
        )
        self._quota_metrics = self._register_metrics(further)
        self._merged_metrics = (
            None if self.pool is None else MergedMetrics(self.registry, self.pool, self._prepare_metrics)
        )
        # Workers report to the supervisor, which sends their sums.
        self.otlp_metrics = (
            None if worker is not None else _otlp_metrics_of(config, self._shown_metrics, member)
        )
        if self.otlp_metrics is not None:
            self.registry.register(self.otlp_metrics)
        status = self._status()
        self.status_routes = StatusRoutes(
            status,
            self.journal,
            self.limits,
            self.live_quotas.history,
            merged=None if self.pool is None else MergedStatus(status.build, self.pool),
        )
        if worker is not None:
            self._answer_supervisor(worker, status)
        self.admin = self._build_admin(admin_tls)
        self.control = Control(lambda by: self.upgrade.run(by))

        # The state that another process takes over from this one.
        self._replaceable = Replaceable(
            self.listeners,
            self.connections,
            self.user_connections,
            store if isinstance(store, SqliteStore) else None,
            lambda: self.admin.connections.sockets,
            (config.admin.bind.host, config.admin.bind.port),
            self.control,
            Carrier(counters, self.pool, now_ms, None if self.fleet is None else self.fleet.exchange),
            ForwardedChanges(
                self.live_quotas, self.operations, both_follow=config.quota_store.kind == "topic"
            ),
            now_ms,
        )
        self.upgrade = Upgrade(
            self._replaceable, refusal=self._why_not_replaceable, on_replaced=self._replaced_by
        )

    def _fleet_counters(self, counters: AllCounters, *, shared: bool) -> AllCounters:
        """Add the connection rates, if the fleet shares them and this process counts them."""
        if not (
            shared and self._config.fleet.connection_rates and self._config.client_quota.scope == "fleet"
        ):
            return counters
        workers = self._config.server.worker_count
        processes = workers + 1 if workers > 1 else 1  # per gateway; each of them is a member
        self.connections.share_rates(
            lambda: 1 if self.fleet is None else math.ceil(self.fleet.members / processes)
        )
        rates = ConnectionCounters(self.user_connections.rates, self.connections)
        return {**counters, QuotaKey.CONNECTION_CREATION_RATE: rates}

    def _build_stored_sampler(self) -> StoredSampler | None:
        if not isinstance(self.usage, UsageService) or self.usage.stored is None:
            return None
        return StoredSampler(self.usage.stored, self.discovery, self.cluster)

    def _build_user_places(self) -> UserPlaces:
        if self._worker is None:
            return self.user_connections
        asked = AskedUsers(self.limits, self._worker.asking, self._soon)
        self._worker.on_tick.append(asked.tick)
        return asked

    async def _tier_use(self, tier: int) -> Mapping[QuotaKey, float]:
        if self._supervisor is None:
            return self.client_quotas.tier_use(tier)
        return await self._supervisor.tier_use(tier)

    def learn_brokers(self, brokers: FoundBrokers) -> None:
        """See `Worked`."""
        for name, found in brokers.items():
            self.upstreams[name].cluster.learn_from(found)

    def _brokers_changed(self, cluster: ClusterMap, gone: Sequence[int]) -> None:
        self._listeners.follow(cluster, gone)
        if self._supervisor is not None:
            self._supervisor.brokers_changed()

    def _build_supervisor(self) -> Supervisor | None:
        if self.pool is None:
            return None
        from_workers = self.usage.from_workers if isinstance(self.usage, UsageService) else None
        return Supervisor(
            self.pool,
            listeners=self.listeners,
            open_port=self._listeners.open_port,
            connections=self.connections,
            users=self.user_connections,
            live_quotas=self.live_quotas,
            mutations=self.mutations,
            operations=lambda: self.operations,
            on_usage=(lambda _line: None) if from_workers is None else from_workers.add,
            clusters={name: each.cluster for name, each in self.upstreams.items()},
            now_ms=self._now_ms,
            fleet_topic=None if self.fleet is None else self.fleet.topic,
        )

    def _build_admin(self, tls: AdminTls | None) -> AdminServer:
        merged = self._merged_metrics
        return AdminServer(
            merged or self.registry,
            self.operations,
            prepare=self._prepare_metrics if merged is None else merged.prepare,
            ready=self.why_not_ready,
            remark=self._remark,
            access=self._admin_access if self._member is None else ParentsAccess(),
            tls=tls,
            quotas=QuotaRoutes(self.live_quotas, lambda: self.operations.config),
            status=self.status_routes,
        )

    def _remark(self) -> str | None:
        """The remark of /readyz, independent of readiness: isolation, and what the brokers lack; None: no remark."""
        isolation = None if self.fleet is None else self.fleet.isolation()
        lacks = [
            f"{upstream.name} lacks {lack}"
            for upstream in self.upstreams.values()
            for lack in upstream.discovery.lacks
        ]
        return "\n".join([*([] if isolation is None else [isolation]), *lacks]) or None

    def _answer_supervisor(self, worker: WorkerSide, status: Status) -> None:
        worker.handlers |= {
            "metrics": self._all_metrics,
            "tier_use": self.client_quotas.tier_use,
            "status": lambda: _text_of(status.build),
            "throttles": lambda what, values: self.journal.entries(what, *values),
        }

    def _soon(self, step: Callable[[], None]) -> None:
        self._loop.call_soon(step)

    def _add_listener(
        self,
        section: ListenerSettings,
        descriptors: DescriptorPlan,
        recent_topics: RecentTopics,
    ) -> None:
        answers_limits = self._config.quota_admin.broker_limits is LimitsBy.GATEWAY
        settings = session_settings(self._config)
        upstream = self.upstreams[section.upstream or MAIN]
        context = HandlerContext(
            self._listeners.topology(section, upstream.cluster),
            self.limits,
            self.mutations,
            self._request_metrics,
            recent_topics=recent_topics,
            usage=self.usage.table if self.usage is not None else None,
            listener=section.name,
            own_topics=self._own_topics,
            journal=self.journal,
            topic_ids=self._topic_ids,
            scope=self._config.client_quota.scope,
        )
        collecting, of_heads = handlers_of(
            context,
            self.client_quotas,
            self.quota_admin,
            self.settings.broker_limits if answers_limits else None,
            sasl=section.security_protocol.sasl,
        )
        routes = build_routes(collecting, of_heads, max_frame_bytes=settings.max_frame_bytes)
        listener = Listener(
            section.name,
            loop=self._loop,
            now_ms=self._now_ms,
            settings=settings,
            open_channel=ChannelFactory(
                routes,
                quotas=self.client_quotas,
                sasl=sasl_of(section, routes, self._request_metrics),
                traces=self.traces,
                upstream=upstream.name,
                users=self._user_places,
            ),
            connector=upstream.connector,
            observer=self._connection_metrics,
            connections=self.connections,
            max_lingering=descriptors.max_lingering,
            tls_acceptor=self.tls.tls_acceptor(section, upstream.named_brokers(section)),
            usage=self.usage.connections if self.usage is not None else None,
            journal=self.journal,
            proxy=section.proxy_protocol,
            memory=self.memory,
            announced=self.announced,
            long_work=self._long_work,
            hand_over=None if self._supervisor is None else partial(self._supervisor.hand_over, section.name),
            places=None if self._worker is None else self._worker.places,
            listening=self._listening,
            spreads=section.sni is not None,
        )
        self._request_metrics.watch_routes(section.name, routes)
        self._connection_metrics.watch_listener(section.name, listener)
        self._listeners.add(listener)

    def _fleet_name(self) -> str:
        """The fleet's name as in usage records; empty while the cluster is not known."""
        return counter_scope(self._config, self.cluster.cluster_id).removeprefix(FLEET)

    def _status(self) -> Status:
        families = [
            self._connection_metrics.collect_listeners,
            self._request_metrics.collect_throttles,
            self._watchdog.collect,
            self.tls.metrics.collect,
            StoreMetrics(self.live_quotas, self._own_topics, self._now_ms).collect,
        ]
        if isinstance(self.usage, UsageService):
            families.append(self.usage.series.collect)
        if self.fleet is not None and self._worker is None:
            families.append(FleetMetrics(self.fleet, self._fleet_name).collect)
        return Status(
            self._quota_metrics,
            self.journal,
            families=families,
            gateway={
                "name": self._config.usage.gateway_id or host_id(),
                "version": version("sluice"),
                "started_ms": wall_clock_ms(),
            },
            capacity=lambda: capacity_json(self._divided),
            overload=lambda: overload_json(
                self.client_quotas.overload,
                self._division.episodes,
                now_ms=self._now_ms(),
                wall_ms=wall_clock_ms(),
            ),
            state=lambda: {
                "not_ready": self.why_not_ready(),
                "enforcement": self.limits.mode,
                "brakes": self._brakes_json(),
                # The supervisor counts the connections of users for its workers.
                "users": [] if self._worker is not None else users_json(self.user_connections),
                "journal_entries": len(self.journal),
                "fleet": [] if self.fleet is None else members_json(self.fleet),
                "workers": [],
            },
            wall_ms=wall_clock_ms,
        )

    def _brakes_json(self) -> list[dict[str, Any]]:
        if self.operations.cannot_brake is not None:
            return []
        return brakes_json(self.operations.brakes, now_ms=self._now_ms(), wall_ms=wall_clock_ms())

    async def _prepare_metrics(self) -> None:
        self._quota_metrics.prepare(await in_slices(self._quota_metrics.look(), Slices()))

    async def _shown_metrics(self) -> AsyncIterator[Metric]:
        """Yield the current metrics of all workers; the loop does other work after each family."""
        merged = self._merged_metrics
        await (self._prepare_metrics() if merged is None else merged.prepare())
        for family in (merged or self.registry).collect():
            yield family
            await asyncio.sleep(0)

    async def _all_metrics(self) -> list[bytes]:
        """The metrics of a worker, for the /metrics page of its supervisor."""
        return [part async for family in self._shown_metrics() for part in packing(family)]

    def _register_metrics(self, further: Mapping[QuotaKey, RateQuotas]) -> QuotaMetrics:
        max_series = self._config.admin.max_entity_series
        quota_metrics = QuotaMetrics(
            self.limits,
            produce=self.client_quotas.produce,
            fetch=self.client_quotas.fetch,
            request_time=self.client_quotas.request_time,
            mutations=self.mutations,
            topics=(self.client_quotas.produce_topics, self.client_quotas.fetch_topics),
            groups=(
                ("produce", self.client_quotas.produce_groups),
                ("fetch", self.client_quotas.fetch_groups),
                ("request", self.client_quotas.request_groups),
                ("controller_mutation", self.mutations.groups),
            ),
            further=further,
            now_ms=self._now_ms,
            per_broker=self._config.client_quota.scope == "broker",
            max_entity_series=max_series,
        )
        self._connection_metrics.watch_connections(self.connections, max_ip_series=max_series)
        if self._worker is None:
            self._connection_metrics.watch_users(self.user_connections, max_user_series=max_series)
        self._connection_metrics.watch_brokers(self._listeners.hidden_brokers)
        self._connection_metrics.watch_memory(self.memory, self.announced)
        for metrics in (
            self._connection_metrics,
            self._request_metrics,
            quota_metrics,
            self._reload_metrics,
            self.tls.metrics,
            ReadinessMetrics(self.why_not_ready),
            QuotaAdminMetrics(self.quota_admin),
            LoginMetrics(self._logins),
            AdminPortMetrics(self._admin_access, self._admin_keys),
            StoreMetrics(self.live_quotas, self._own_topics, self._now_ms),
            CapacityMetrics(self._divided, lambda: self.client_quotas.overload),
            self._watchdog,
        ):
            self.registry.register(metrics)
        if isinstance(self.usage, UsageService):
            self.registry.register(self.usage.series)
        if self.traces is not None:
            self.registry.register(self.traces)
        if self.fleet is not None and self._worker is None:
            self.registry.register(FleetMetrics(self.fleet, self._fleet_name))
        if self.pool is not None:
            self.registry.register(ProcessMetrics(self.pool))
        return quota_metrics

    def _reloaded(self, report: ReloadReport) -> None:
        self.tls.look_now()
        self._reload_metrics.config_reloaded(report.result, awaiting_restart=len(report.needs_restart))

    def why_not_ready(self) -> str | None:
        """The reason why clients cannot be served, in a few words for /readyz; None: they can."""
        if self._draining:
            return "draining"
        pool = None if self.pool is None else self.pool.why_not_ready()
        return self.live_quotas.why_not_ready() or pool or self._unreached()

    async def start(self) -> None:
        """Bind the admin port and every bootstrap port, then begin discovery of the brokers.

        Raises:
            OSError: a port cannot be bound; nothing stays open.
            StoreError: the quota store cannot be used; nothing stays open.
            StartError: the brokers, the workers or the process to replace did not answer; nothing stays open.
        """
        if self._worker is None and self._predecessor is None:
            await self._open_other_ports()
        try:
            # Discovery and the gateway's own clients need tokens.
            await asyncio.gather(*(login.start() for login in self._logins.values()))
            if self._predecessor is not None:
                await self._prepare_to_replace(self._predecessor)
            await self.live_quotas.open()
            if self._worker is None:
                log_contradictions(self.live_quotas.quotas)
            if self._config.quota_admin.broker_limits is LimitsBy.GATEWAY:
                if self._worker is None:
                    await take_over(self._config, self.live_quotas, self.settings.broker_limits)
                self.live_quotas.follow_limits(self.settings.broker_limits)
            if self.fleet is not None and self._worker is None and self._predecessor is None:
                await self.fleet.start()
            if self.pool is not None:
                await self.pool.start()
            if self._worker is None and self._predecessor is None:
                self._listeners.listen(self._config.listeners)
            if self._predecessor is not None:
                await self._replace(self._predecessor)
        except (OSError, StoreError, StartError):
            await self.stop()
            raise
        if self.usage is not None:
            self.usage.start()
        self.tls.start()
        self._watchdog.start()
        self._division.start()
        if self._predecessor is None:
            self._discover()
        if self.otlp_metrics is not None:
            self.otlp_metrics.start()
        if self._worker is not None:
            self._worker.serve(self)
            if self.fleet is not None:
                self.fleet.begin()

    def _discover(self) -> None:
        for upstream in self.upstreams.values():
            upstream.start()
        if self._stored_sampler is not None:
            self._stored_sampler.start()

    async def _open_other_ports(self, predecessor: Predecessor | None = None) -> None:
        address = self._replaceable.admin_address
        inherited = {} if predecessor is None else predecessor.sockets
        # The parent binds the sockets of a cluster. The address in the file is not theirs, and may have changed.
        here = {} if self._member is None else dict(inherited.keys())
        sockets = inherited.pop((ADMIN, here.get(ADMIN, address)), [])
        if self._member is not None:
            sockets = sockets or self._member.sockets
            if not sockets:
                raise StartError("the process before this one has no socket of the cluster's admin port")
        try:
            await self.admin.start(*address, sockets)
        except OSError as exc:
            raise OSError(exc.errno, f"admin.bind: {exc.strerror}") from exc
        control = inherited.pop((CONTROL, here.get(CONTROL, address)), [None])[0]
        own = control_name(address[0], self.admin.port)
        self.control.start(own if self._member is None else self._member.control, control)

    async def _prepare_to_replace(self, predecessor: Predecessor) -> None:
        """Do everything that is possible while the old process still serves."""
        await predecessor.begin()
        self._listening.hold()
        for (kind, address), sockets in predecessor.sockets.items():
            if kind == LISTENER:
                self._listening.inherit(address, sockets[0])
        self._listeners.listen(self._config.listeners)
        self._discover()
        deadline_ms = self._now_ms() + _READY_MS
        while (reason := self._unreached()) is not None:
            if self._now_ms() >= deadline_ms:
                raise StartError(
                    f"the brokers have not answered within {_READY_MS // 1000} s: {reason}; check that they run, and "
                    "that this machine reaches them"
                )
            await asyncio.sleep(_DRAIN_POLL_S)
        await predecessor.borrow_store()

    def _unreached(self) -> str | None:
        reasons = (upstream.why_not_ready() for upstream in self.upstreams.values())
        return next((reason for reason in reasons if reason is not None), self._listeners.why_not_ready())

    async def _replace(self, predecessor: Predecessor) -> None:
        """Serve in place of the old process.

        Raises:
            StoreError: the old process could change quotas, and this one cannot.
        """
        if (reason := predecessor.store_lost(self._replaceable)) is not None:
            raise StoreError(reason)
        waiting = await predecessor.take_over(self._replaceable)
        await self._open_other_ports(predecessor)
        self._listening.release()
        for name, accepted in waiting.items():
            if name in self.listeners:
                self.listeners[name].resume(accepted)
            else:
                accepted.sock.close()
        predecessor.serving()
        for (kind, _), sockets in predecessor.sockets.items():
            for sock in sockets if kind != LISTENER else ():
                sock.close()

    async def became_main(self) -> None:
        """Wait until the old process has left the fleet and handed over the service; then join the fleet."""
        if self._predecessor is not None:
            await self._predecessor.main()
            if self.fleet is not None:
                await self.fleet.start()

    def _why_not_replaceable(self) -> str | None:
        if self._draining:
            return "the gateway drains"
        if self._predecessor is not None and self._predecessor.draining:
            return "the process before this one still drains; try again once it has ended"
        return None

    def _replaced_by(self, pid: int) -> None:
        """Close this process's ports: the new process accepts, also the connections that wait in the backlogs."""
        self._draining = True
        self._listeners.close_ports()
        self.control.stop()
        self.admin.connections.stop()
        # Changes made through these connections from now on would be lost.
        self.admin.connections.end_each()
        if self.otlp_metrics is not None:
            self.otlp_metrics.replaced()
        self.notify.replaced_by(pid)
        self.replaced.set()

    async def leave(self) -> None:
        """Leave the fleet after being replaced; then make the new process the main process of the service."""
        if self.fleet is not None:
            if self.pool is not None:  # else workers would count this as isolation
                await self.pool.ask_all("leave_fleet")
            await self.fleet.stop(self.upgrade.tell_left)
        self.upgrade.tell_main()

    def listener(self, name: str) -> Listener:
        """The listener of this name."""
        return self.listeners[name]

    async def drain(self, *, hurry: asyncio.Event, gently: bool = False) -> None:
        """Stop accepting, wait for the replies to requests already read, then close all connections.

        Args:
            hurry: when set, remaining connections are closed at once.
            gently: the new process accepts meanwhile. For `DrainSettings.gently_ms` clients may continue, and only
                idle connections are closed. The drain itself, at most `drain.timeout_ms`, comes after that.
        """
        self._draining = True
        self.live_quotas.drain()
        # Discovery could open the port of a broker that has just appeared.
        await self._stop_discovering()
        if not gently:
            self._listeners.drain()
        section = self.operations.config.drain
        if self.pool is not None:
            longest_ms = section.longest_ms if gently else section.timeout_ms
            await self.pool.drain(longest_ms / 1000, hurry=hurry, gently=gently)
        elif gently:
            await self._drain_idle(section.gently_ms, hurry)
        if gently:
            self._listeners.drain()
        deadline_ms = self._now_ms() + section.timeout_ms
        while self._listeners.unfinished and self._now_ms() < deadline_ms and not hurry.is_set():
            began_ms = self._now_ms()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_POLL_S):
                    await hurry.wait()
            if (took_ms := self._now_ms() - began_ms) >= LATE_MS:
                deadline_ms += took_ms
        self._listeners.abort()

    async def _drain_idle(self, within_ms: int, hurry: asyncio.Event) -> None:
        until_ms = self._now_ms() + within_ms
        while self._listeners.unfinished and self._now_ms() < until_ms and not hurry.is_set():
            for listener in self.listeners.values():
                listener.drain_idle(_IDLE_MS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5 * _DRAIN_POLL_S):
                    await hurry.wait()

    async def _stop_discovering(self) -> None:
        if self._stored_sampler is not None:
            await self._stored_sampler.stop()
        for upstream in self.upstreams.values():
            await upstream.stop()

    async def stop(self) -> None:
        """Release every port, task and thread."""
        self._watchdog.stop()
        await self._division.stop()
        await self._stop_discovering()
        await self.tls.stop()
        self._listeners.stop()
        if self.fleet is not None:
            await self.fleet.stop()
        self.control.stop()
        await self.admin.stop()
        await self.upgrade.stop()
        if self._predecessor is not None:
            self._predecessor.stop()
        if self.otlp_metrics is not None:
            await self.otlp_metrics.stop()
        if self.pool is not None:
            self.pool.stop()
        try:
            await self._close_quotas()
        finally:
            if self.usage is not None:
                await self.usage.stop()
            if self.traces is not None:
                await self.traces.stop()
            for login in self._logins.values():
                await login.stop()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)

    async def _close_quotas(self) -> None:
        within_s = self._config.quota_store.write_timeout_ms / 1000 + _STORE_GRACE_S
        try:
            # A disk that hangs must not cost the usage records too.
            async with asyncio.timeout(within_s):
                await self.alterations.finish()
                await self.live_quotas.close()
        except TimeoutError:
            _log.error("quota_store_not_closed", waited_s=within_s)


@dataclass(frozen=True, slots=True)
class _Process:
    """The inputs from which the parts of a gateway are built.

    Attributes:
        config: valid.
        loop: of the process.
        now_ms: its clock.
        worker: the link to the supervisor; None: this process is no worker.
        supervises: whether this process has workers.
    """

    config: Config
    loop: asyncio.AbstractEventLoop
    now_ms: NowMs
    worker: WorkerSide | None
    supervises: bool


def _build_watchdog(loop: asyncio.AbstractEventLoop) -> LoopWatchdog:
    # In asyncio's debug mode a timer costs thirty times as much, and tests run many idle processes.
    return LoopWatchdog(loop, tick_s=10 * TICK_S if loop.get_debug() else TICK_S)


def _build_announced(process: _Process) -> AnnouncedLimits:
    config = process.config
    processes = config.server.worker_count if process.worker is not None else 1
    return AnnouncedLimits(config.limits.announced_max_request_bytes, processes=processes)


def _build_store(process: _Process, own_clients: ClientSettings) -> QuotaStore:
    if process.worker is not None:
        return RemoteStore(process.worker.link, process.worker.handlers)
    return build_store(process.config, own_clients, gateway=_lasting_name(process.config))


def _build_quota_admin(config: Config, live_quotas: LiveQuotas, alterations: AlterationRunner) -> QuotaAdmin:
    return QuotaAdmin(
        live_quotas.quotas,
        alterations.alter,
        AuditLog(),
        authorize=config.quota_admin.authorize,
        admins=config.quota_admin.admin_names(),
        shared=config.quota_store.kind == "topic",
    )


def _build_mutations(process: _Process, limits: Limits) -> MutationQuotas:
    settings = process.config.mutation_settings()
    if process.worker is not None:
        return AskedMutations(limits, settings, process.worker.asking)
    return MutationQuotas(limits, settings)


def _build_usage(
    process: _Process, own_clients: ClientSettings, cluster: ClusterMap, topic_ids: TopicIds
) -> UsageService | WorkerUsage | None:
    config = process.config
    if process.worker is not None:
        return worker_usage(
            config,
            loop=process.loop,
            now_ms=process.now_ms,
            tell=partial(process.worker.link.tell, "usage"),
            topic_ids=topic_ids,
        )
    return UsageService.configured(
        config,
        loop=process.loop,
        now_ms=process.now_ms,
        client=own_clients,
        scope=lambda: counter_scope(config, cluster.cluster_id),
        topic_ids=topic_ids,
        workers=process.supervises,
    )


def _build_client_quotas(
    config: Config,
    limits: Limits,
    observer: RequestMetrics,
    usage: UsageService | WorkerUsage | None,
    journal: ThrottleJournal,
    topic_ids: TopicIds,
) -> ClientQuotas:
    return ClientQuotas(
        limits,
        config.rate_settings(),
        observer,
        scope=QuotaScope(config.client_quota.scope),
        source=RequestTimeSource(config.client_quota.request_time),
        usage=usage.table if usage is not None else None,
        journal=journal,
        topic_ids=topic_ids,
    )


def _build_fleet(
    process: _Process, counters: AllCounters, limits: Limits, own_clients: ClientSettings
) -> FleetService | None:
    config, worker = process.config, process.worker
    return FleetService.configured(
        config,
        counters,
        limits,
        gateway=config.usage.gateway_id or host_id(),
        client=own_clients,
        now_ms=process.now_ms,
        worker=None if worker is None else (worker.number, SupervisorsTopic(worker)),
    )


def _share_counters(
    process: _Process, worker: WorkerSide, counters: AllCounters, fleet: FleetService | None
) -> None:
    """Share a worker's counters with the other workers; the supervisor has those of mutations."""
    own: AllCounters = {key: each for key, each in counters.items() if key is not KEY}
    WorkerCarrier(worker, own, process.now_ms)
    if fleet is not None:
        worker.handlers["leave_fleet"] = fleet.stop
    else:
        SharedUsage(worker, own, process.config.server.worker_count, process.now_ms)


def _build_connections(process: _Process, limits: Limits, descriptors: DescriptorPlan) -> ConnectionQuotas:
    config = process.config
    return ConnectionQuotas(
        limits,
        connection_limits(config, descriptors),
        window_num=config.client_quota.window_num,
        window_ms=config.client_quota.window_size_seconds * 1000,
        max_ip_trackers=config.connections.max_trackers,
        ipv6_prefix_bits=config.connections.ipv6_prefix_bits,
        now_ms=process.now_ms(),
    )


def _build_user_connections(
    process: _Process, limits: Limits, connections: ConnectionQuotas, journal: ThrottleJournal
) -> UserConnections:
    client_quota = process.config.client_quota
    settings = RateSettings(
        window_num=client_quota.window_num,
        window_ms=client_quota.window_size_seconds * 1000,
        max_trackers=process.config.connections.max_trackers,
    )
    users = UserConnections(limits, settings, lambda: connections.configured.max_held)
    users.on_held = journal.user_connection_held
    return users


def _build_recent_topics(worker: WorkerSide | None, mutations: MutationQuotas) -> RecentTopics:
    if worker is not None:
        return SharedRecentTopics(worker.asking, lambda: mutations.enabled)
    return RecentTopics()


def otlp_classes(config: Config) -> tuple[type[OtlpTraces], type[OtlpMetrics]]:
    """The classes that send spans and metrics to OpenTelemetry.

    Raises:
        ConfigError: their packages are not installed.
    """
    try:
        # Imported only here: a gateway that sends neither does not need the packages.
        from gateway.observability.otlp import OtlpTraces
        from gateway.observability.otlp_metrics import OtlpMetrics
    except ImportError as exc:
        section = "traces" if config.traces.endpoint is not None else "metrics"
        raise ConfigError(
            [f"{section}.endpoint: needs more packages: {install_command('traces')} ({exc})"]
        ) from exc
    return OtlpTraces, OtlpMetrics


def _traces_of(config: Config) -> OtlpTraces | None:
    section = config.traces
    if section.endpoint is None:
        return None
    return otlp_classes(config)[0](
        section.endpoint,
        ca=section.ca,
        max_spans_per_second=section.max_spans_per_second,
        max_queued_spans=section.max_queued_spans,
        resource=_otlp_resource(config),
    )


def _otlp_metrics_of(
    config: Config, families: Callable[[], AsyncIterator[Metric]], member: Member | None
) -> OtlpMetrics | None:
    section = config.metrics
    if section.endpoint is None:
        return None
    return otlp_classes(config)[1](
        section.endpoint,
        families,
        ca=section.ca,
        interval_ms=section.interval_ms,
        resource=_otlp_resource(config),
        # The same label as on the parent's /metrics.
        labels={} if member is None else {LABEL: member.name},
    )


def _otlp_resource(config: Config) -> dict[str, str]:
    return {
        "service.name": "sluice",
        "service.instance.id": config.usage.gateway_id or host_id(),
        "service.version": version("sluice"),
    }


async def _text_of(build: Callable[[], Awaitable[Built]]) -> bytes:
    return (await build()).text


async def _serve(
    config: Config,
    banner: str | None,
    source: ConfigSource | None,
    nursery: Nursery | None = None,
    inherited: socket.socket | None = None,
    member: Member | None = None,
) -> int:
    # A thread that computes, such as one that writes many quotas, delays each callback of the loop by this long.
    sys.setswitchinterval(_SWITCH_S)
    predecessor = None if inherited is None else Predecessor(inherited)
    gateway = Gateway(config, source, nursery=nursery, predecessor=predecessor, member=member)
    gateway.notify = Notify(os.environ, successor=predecessor is not None)
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        gateway.upgrade.abort()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, on_signal)
    if member is not None:
        # A terminal sends SIGINT to the whole process group, and the parent passes it on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        member.watch_parent(on_signal)
    reloads: set[asyncio.Task[ReloadReport]] = set()

    def on_hangup() -> None:
        # One waiting reload is enough: it reads the file after the sender of this signal has written it.
        if len(reloads) < 2:
            gateway.notify.reloading()
            reloads.add(task := asyncio.create_task(gateway.operations.reload(by="SIGHUP")))
            task.add_done_callback(reloads.discard)
            task.add_done_callback(lambda _: gateway.notify.ready())

    _on_signal(signal.SIGHUP, on_hangup)
    upgrades: set[asyncio.Task[UpgradeReport]] = set()

    def on_upgrade() -> None:
        upgrades.add(task := asyncio.create_task(gateway.upgrade.run("SIGUSR2")))
        task.add_done_callback(upgrades.discard)

    _on_signal(signal.SIGUSR2, on_upgrade)
    # A supervisor's stray signals do not end the gateway (hazard F15).
    _on_signal(signal.SIGUSR1, lambda: _log.info("signal_ignored", signal="SIGUSR1"))
    try:
        return await _serve_until(gateway, stop, hurry, banner)
    finally:
        # Everything is stopped: a signal must not kill the process in its last moments (hazard L08).
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _lasting_name(config: Config) -> str | None:
    """A name that is the same at each start of this gateway; None: there is none, as the admin port is a free one."""
    port = config.admin.bind.port
    return f"{config.usage.gateway_id or host_id()}-{port}" if port else None


def _on_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    """Call a function in the loop at a signal.

    The loop's own handlers would end with the loop, and the next signal would then end the process.
    """
    loop = asyncio.get_running_loop()
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


async def _serve_until(
    gateway: Gateway, stop: asyncio.Event, hurry: asyncio.Event, banner: str | None
) -> int:
    freeze_survivors()  # before there are clients that would wait meanwhile
    try:
        if not await _started(gateway, stop):
            return 0
    except OSError as exc:
        print(f"sluice: cannot listen: {exc.strerror or exc}", file=sys.stderr)
        return 2
    except StoreError as exc:
        print(f"sluice: quota store: {exc}", file=sys.stderr)
        return 2
    except StartError as exc:
        print(f"sluice: {exc}", file=sys.stderr)
        return 2
    gc.freeze()
    if banner is not None:
        print(banner, flush=True)
    becoming = asyncio.ensure_future(_become_main(gateway))
    await _first_of(stop, gateway.replaced)
    becoming.cancel()
    if gateway.replaced.is_set():
        await gateway.control.answered()
        await gateway.leave()
    else:
        gateway.notify.stopping()
    await gateway.drain(hurry=hurry, gently=gateway.replaced.is_set())
    await gateway.stop()
    await gateway.notify.sent()
    gateway.notify.close()
    _log.info("stopped", pid=os.getpid())
    return 0


async def _become_main(gateway: Gateway) -> None:
    await gateway.became_main()
    gateway.notify.ready()


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()


async def _started(gateway: Gateway, stop: asyncio.Event) -> bool:
    """Start the gateway; False: a signal came first, as a quota store may wait for its cluster."""
    starting = asyncio.ensure_future(gateway.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            return True
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await gateway.stop()
        return False
    finally:
        stopping.cancel()


def run(
    config: Config,
    *,
    banner: str | None = None,
    source: ConfigSource | None = None,
    member: Member | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends the drain at once. SIGHUP reloads the configuration.

    Args:
        config: valid.
        banner: printed once the gateway listens.
        source: reads the configuration again at a reload; None: the gateway cannot reload.
        member: the cluster that this process serves, one of several; None: it is the whole gateway.

    Returns:
        The process's exit code: 0, or 2 when the gateway could not start.
    """
    inherited = predecessor_socket(os.environ)
    nursery = None
    if config.server.worker_count > 1:
        # Created before the loop, threads and ports, because it forks the workers.
        nursery = Nursery(partial(_run_worker, source), longest_drain_ms=config.drain.longest_ms)
    return uvloop.run(_serve(config, banner, source, nursery, inherited, member))


def _run_worker(source: ConfigSource | None, number: int, sockets: WorkerSockets) -> None:
    uvloop.run(_work(source, number, sockets))


async def _work(source: ConfigSource | None, number: int, sockets: WorkerSockets) -> None:
    """Run a worker until its supervisor makes it drain or is gone."""
    sys.setswitchinterval(_SWITCH_S)
    worker = WorkerSide(number, sockets)
    try:
        start = await worker.begin()
    except LinkLost:
        return
    if source is not None:
        source.set_log(start.config.log)
    gateway = Gateway(start.config, source, worker=worker)
    gateway.limits.set_mode(start.mode)
    gateway.learn_brokers(start.brokers)
    freeze_survivors()
    try:
        await gateway.start()
    except StoreError:
        if worker.link.lost:
            return
        raise
    gc.freeze()
    await worker.drain.wait()
    await gateway.drain(hurry=worker.hurry, gently=worker.gently)
    await gateway.stop()
    worker.close()
    # Messages leave in the next turns of the loop.
    await worker.link.closed.wait()
