"""The composition root: builds the parts, starts them, drains and stops them. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from config import Config
from config.quota_admin_section import LimitsBy
from gateway.clock import loop_clock
from gateway.handlers import collecting_handlers, head_handlers
from gateway.handlers.context import HandlerContext
from gateway.handlers.recent_topics import RecentTopics
from gateway.net.listener import Listener
from gateway.observability.close_cause import CloseCause
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.quota_admin_metrics import QuotaAdminMetrics
from gateway.observability.store_metrics import StoreMetrics
from gateway.quota_admin.alterations import AlterationRunner
from gateway.quota_admin.audit import AuditLog
from gateway.quota_admin.broker_limits import BrokerLimits, Values
from gateway.quota_admin.earlier_limits import take_over
from gateway.quota_admin.rights import QuotaAdmin
from gateway.quota_admin.store.build import build_store
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.server.admin import AdminServer
from gateway.server.connection_capacity import (
    connection_limits,
    plan_descriptors,
    raise_descriptor_limit,
    session_settings,
)
from gateway.server.operations import ConfigSource, Operations, ReloadReport
from gateway.server.quota_routes import QuotaRoutes
from gateway.server.reload import ReloadPlan, ReloadResult
from gateway.server.sasl_setup import sasl_of
from gateway.server.tls_setup import TlsParts
from gateway.session.client_quotas import ClientQuotas, QuotaScope, RequestTimeSource
from gateway.session.routes import build_routes
from gateway.upstream.own_clients import librdkafka_settings
from gateway.upstream.topology import BrokerPorts, Topology
from gateway.upstream.upstreams import MAIN, build_upstreams
from gateway.usage.service import UsageService
from quotas.connections import ConnectionQuotas
from quotas.layered_quotas import LayeredQuotas
from quotas.mutations import MutationQuotas

_DRAIN_POLL_S: Final = 0.02
_STORE_GRACE_S: Final = 5.0
"""Beyond the time of an alteration; a topic store asks for 2 s when one has failed."""

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One running gateway.

    Attributes:
        listeners: by name.
        cluster: what is known of the brokers.
        metrics: what has happened.
        live_quotas: the quotas in force, and the store that keeps what is changed of them.
        operations: what can be changed meanwhile.
    """

    def __init__(self, config: Config, source: ConfigSource | None = None) -> None:
        """Build everything; nothing is bound or connected yet.

        Args:
            config: valid.
            source: where it comes from again at a reload; None: it can not be reloaded.

        Raises:
            ConfigError: it asks for more than the file descriptors of this process carry.
        """
        self._config = config
        loop = asyncio.get_running_loop()
        now_ms = loop_clock(loop)
        self._now_ms = now_ms
        self.tls = TlsParts(config, loop)
        self.upstreams = build_upstreams(
            config, now_ms=now_ms, security=self.tls.security, on_change=self._follow_topology
        )
        self.cluster = self.upstreams[MAIN].cluster
        self.discovery = self.upstreams[MAIN].discovery
        self.limits = config.quota_limits()
        self.live_quotas = LiveQuotas(LayeredQuotas(self.limits), build_store(config), now_ms=now_ms)
        self._alteration_runner = AlterationRunner(self.live_quotas, now_ms)
        self.quota_admin = QuotaAdmin(
            self.live_quotas.quotas,
            self._alteration_runner.alter,
            self._alteration_runner.slowly,
            AuditLog(),
            authorize=config.quota_admin.authorize,
            admins=config.quota_admin.admin_names(),
            shared=config.quota_store.kind == "topic",
        )
        self.mutations = MutationQuotas(self.limits, config.mutation_settings())
        self.metrics = GatewayMetrics(now_ms)
        self.usage = UsageService.configured(config, loop=loop, now_ms=now_ms, client_of=librdkafka_settings)
        usage = self.usage.table if self.usage is not None else None
        self.client_quotas = ClientQuotas(
            self.limits,
            config.rate_settings(),
            self.metrics,
            scope=QuotaScope(config.client_quota.scope),
            source=RequestTimeSource(config.client_quota.request_time),
            usage=usage,
        )
        self.metrics.watch_quotas(
            self.limits,
            self.client_quotas,
            self.mutations,
            per_broker=config.client_quota.scope == "broker",
            max_entity_series=config.admin.max_entity_series,
        )
        settings = session_settings(config)
        self._descriptor_limit = raise_descriptor_limit()
        descriptors = plan_descriptors(config, self._descriptor_limit)
        self.connections = ConnectionQuotas(
            self.limits,
            connection_limits(config, descriptors),
            window_num=config.client_quota.window_num,
            window_ms=config.client_quota.window_size_seconds * 1000,
            max_ip_trackers=config.connections.max_trackers,
            ipv6_prefix_bits=config.connections.ipv6_prefix_bits,
            now_ms=now_ms(),
        )
        if self.usage is not None:
            self.usage.watch(self.mutations, self.connections)
            self.metrics.registry.register(self.usage.series)
        self.metrics.registry.register(self.tls.metrics)
        self.metrics.registry.register(QuotaAdminMetrics(self.quota_admin))
        self.metrics.registry.register(StoreMetrics(self.live_quotas, now_ms))
        self.metrics.watch_connections(self.connections, max_ip_series=config.admin.max_entity_series)
        self.broker_limits = BrokerLimits(
            [listener.name for listener in config.listeners],
            check=lambda values: self._check_descriptors(self.broker_limits.over(self._in_force(), values)),
            apply=self._apply_limits,
            in_force=lambda: self.connections.configured,
        )
        answers_limits = config.quota_admin.broker_limits is LimitsBy.GATEWAY
        self.listeners: dict[str, Listener] = {}
        self._topologies: dict[str, Topology] = {}
        # A topic created through one listener is known on the others.
        recently_created: dict[bytes, int] = {}
        recent_topics = RecentTopics()
        for section in config.listeners:
            ports = BrokerPorts(
                advertised_host=section.advertised_host,
                first_port=section.first_broker_port,
                lowest_broker_id=section.lowest_broker_id,
                count=section.broker_ports,
            )
            upstream = self.upstreams[section.upstream or MAIN]
            topology = Topology(upstream.cluster, ports, self._binder(section.name, section.bind.host))
            context = HandlerContext(
                topology,
                self.limits,
                self.mutations,
                self.metrics,
                self.client_quotas,
                recently_created=recently_created,
                recent_topics=recent_topics,
                usage=usage,
                listener=section.name,
                quota_admin=self.quota_admin,
                broker_limits=self.broker_limits if answers_limits else None,
            )
            routes = build_routes(
                collecting_handlers(context, sasl=section.security_protocol.sasl),
                head_handlers(context),
                max_frame_bytes=settings.max_frame_bytes,
            )
            listener = Listener(
                section.name,
                loop=loop,
                now_ms=now_ms,
                routes=routes,
                settings=settings,
                connector=upstream.connector,
                observer=self.metrics,
                quotas=self.client_quotas,
                connections=self.connections,
                max_lingering=descriptors.max_lingering,
                tls_acceptor=self.tls.tls_acceptor(section),
                usage=self.usage.connections if self.usage is not None else None,
                proxy=section.proxy_protocol,
                sasl=sasl_of(section, routes, self.metrics),
            )
            self.metrics.watch_listener(listener.name, routes, listener)
            self.listeners[section.name] = listener
            self._topologies[section.name] = topology
        for listener in self.listeners.values():
            listener.siblings = tuple(self.listeners.values())
        self.operations = Operations(
            config,
            self.live_quotas.quotas,
            source,
            check=self._check_reload,
            apply=self._apply_settings,
            on_reload=self._count_reload,
        )
        self.admin = AdminServer(
            self.metrics.registry,
            self.operations,
            ready=self.why_not_ready,
            remote_changes=config.admin.remote_changes,
            quotas=QuotaRoutes(self.live_quotas, lambda: self.operations.config),
        )
        self._draining = False

    def _binder(self, listener: str, host: str) -> Callable[[int, int], bool]:
        def bind(broker_id: int, port: int) -> bool:
            try:
                self.listeners[listener].listen((host, port), broker_id)
            except OSError as exc:
                self.metrics.broker_port_failed(listener)
                _log.error(
                    "broker_port_failed", listener=listener, broker=broker_id, port=port, error=exc.strerror
                )
                return False
            _log.info("broker_port_open", listener=listener, broker=broker_id, port=port)
            return True

        return bind

    def _follow_topology(self, upstream: str, gone: Sequence[int]) -> None:
        for name, topology in self._topologies.items():
            if topology.cluster is not self.upstreams[upstream].cluster:
                continue
            for broker_id in gone:
                self.listeners[name].stop_listening(broker_id)
                topology.withdraw(broker_id)
            topology.advertise_known()

    def _check_reload(self, config: Config) -> None:
        self._check_descriptors(self.broker_limits.over(config, self.broker_limits.values))

    def _check_descriptors(self, config: Config) -> None:
        plan_descriptors(config, self._descriptor_limit)

    def _apply_settings(self, plan: ReloadPlan) -> None:
        """What a reload changes besides quotas and the log; what reads `operations.config` needs nothing here."""
        settings = session_settings(plan.config)
        for listener in self.listeners.values():
            listener.settings = settings
        rights = plan.config.quota_admin
        self.quota_admin.set_rights(rights.authorize, rights.admin_names())
        if plan.changes("connections") or plan.changes("listeners"):
            self.tls.handshake_limiter.per_second = plan.config.connections.max_tls_handshakes_per_second
            self._limit_connections(self.broker_limits.over(plan.config, self.broker_limits.values))

    def _in_force(self) -> Config:
        return self.operations.config

    def _apply_limits(self, values: Values) -> None:
        self._limit_connections(self.broker_limits.over(self._in_force(), values))

    def _limit_connections(self, config: Config) -> None:
        descriptors = plan_descriptors(config, self._descriptor_limit)
        self.connections.update(connection_limits(config, descriptors), now_ms=self._now_ms())
        for listener in self.listeners.values():
            listener.slot_freed()

    def _count_reload(self, report: ReloadReport) -> None:
        self.tls.look_now()
        unread = report.result is ReloadResult.INVALID
        self.metrics.config_reloaded(
            report.result, awaiting_restart=None if unread else len(report.needs_restart)
        )

    def why_not_ready(self) -> str | None:
        """None when clients can be served, otherwise a few words for /readyz."""
        if self._draining:
            return "draining"
        if (unread := self.live_quotas.why_not_ready()) is not None:
            return unread
        for upstream in self.upstreams.values():
            if not upstream.discovery.reached:
                return f"{upstream.name} {upstream.discovery.trouble}"
        return None

    async def start(self) -> None:
        """Bind the admin port and every bootstrap port, then begin to look for the brokers.

        Raises:
            OSError: a port cannot be bound; nothing stays open.
            StoreError: the quota store can not be used; nothing stays open.
        """
        await self.admin.start(self._config.admin.bind.host, self._config.admin.bind.port)
        try:
            await self.live_quotas.open()
            if self._config.quota_admin.broker_limits is LimitsBy.GATEWAY:
                await take_over(self._config, self.live_quotas, self.broker_limits)
                self.live_quotas.follow_limits(self.broker_limits)
            for section in self._config.listeners:
                listener = self.listeners[section.name]
                listener.listen((section.bind.host, section.bind.port), None)
                _log.info("listening", listener=section.name, port=listener.ports[None])
        except (OSError, StoreError):
            await self.stop()
            raise
        if self.usage is not None:
            self.usage.start()
        self.tls.start()
        for upstream in self.upstreams.values():
            upstream.start()

    async def drain(self, *, hurry: asyncio.Event) -> None:
        """Stop accepting, let requests already read get their replies, then close; bounded by the configuration.

        Args:
            hurry: when set, what is left is closed at once.
        """
        self._draining = True
        self.live_quotas.drain()
        # It could open the port of a broker that has just come.
        await self._stop_discovering()
        _log.info("draining", connections=self._connections())
        for listener in self.listeners.values():
            listener.drain()
        deadline_ms = self._now_ms() + self.operations.config.drain.timeout_ms
        while self._unfinished() and self._now_ms() < deadline_ms and not hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hurry.wait(), _DRAIN_POLL_S)
        for listener in self.listeners.values():
            for channel in list(listener.channels):
                channel.close(CloseCause.DRAIN_TIMEOUT, abort=True)

    def _connections(self) -> int:
        return sum(len(listener.channels) for listener in self.listeners.values())

    def _unfinished(self) -> bool:
        return any(listener.channels or listener.lingering.unsent for listener in self.listeners.values())

    async def _stop_discovering(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.stop()

    async def stop(self) -> None:
        """Release every port and task."""
        await self._stop_discovering()
        await self.tls.stop()
        for listener in self.listeners.values():
            listener.stop()
        await self.admin.stop()
        try:
            await self._close_quotas()
        finally:
            if self.usage is not None:
                await self.usage.stop()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)

    async def _close_quotas(self) -> None:
        within_s = self._config.quota_store.write_timeout_ms / 1000 + _STORE_GRACE_S
        try:
            # A disk that hangs must not cost the usage records too.
            async with asyncio.timeout(within_s):
                await self._alteration_runner.finish()
                await self.live_quotas.close()
        except TimeoutError:
            _log.error("quota_store_not_closed", waited_s=within_s)
