"""The composition root: builds the parts, starts them, drains and stops them. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import uvloop

from config import Config
from gateway.admin import AdminServer
from gateway.client_quotas import ClientQuotas, QuotaScope, RequestTimeSource
from gateway.clock import loop_clock
from gateway.close_cause import CloseCause
from gateway.connection_plan import (
    connection_limits,
    plan_descriptors,
    raise_descriptor_limit,
    session_settings,
)
from gateway.discovery import Discovery
from gateway.handlers import collecting_handlers, head_handlers
from gateway.handlers.context import HandlerContext
from gateway.handlers.recent_topics import RecentTopics
from gateway.listener import Listener
from gateway.metrics import GatewayMetrics
from gateway.operations import ConfigSource, Operations, ReloadReport
from gateway.reload import ReloadPlan, ReloadResult
from gateway.resolver import Resolver
from gateway.routes import build_routes
from gateway.topology import BrokerPorts, ClusterMap, Topology
from gateway.upstream import Connector
from quotas.connections import ConnectionQuotas
from quotas.mutations import MutationQuotas

_DRAIN_POLL_S: Final = 0.02

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One running gateway.

    Attributes:
        listeners: by name.
        cluster: what is known of the brokers.
        metrics: what has happened.
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
        self.cluster = ClusterMap(
            [(broker.host, broker.port) for broker in config.upstream.bootstrap],
            default_num_partitions=config.mutation_quota.default_num_partitions,
        )
        self.limits = config.quota_limits()
        self.mutations = MutationQuotas(self.limits, config.mutation_settings())
        self.metrics = GatewayMetrics(now_ms)
        self.client_quotas = ClientQuotas(
            self.limits,
            config.rate_settings(),
            self.metrics,
            scope=QuotaScope(config.client_quota.scope),
            source=RequestTimeSource(config.client_quota.request_time),
        )
        self.metrics.watch_quotas(
            self.limits,
            self.client_quotas,
            self.mutations,
            per_broker=config.client_quota.scope == "broker",
            max_entity_series=config.admin.max_entity_series,
        )
        connector = Connector(
            self.cluster, Resolver(now_ms), connect_timeout_ms=config.upstream.connect_timeout_ms
        )
        self.discovery = Discovery(
            self.cluster,
            connector,
            now_ms,
            refresh_ms=config.upstream.topology_refresh_ms,
            on_change=self._follow_topology,
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
        self.metrics.watch_connections(self.connections, max_ip_series=config.admin.max_entity_series)
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
            topology = Topology(self.cluster, ports, self._binder(section.name, section.bind.host))
            context = HandlerContext(
                topology,
                self.limits,
                self.mutations,
                self.metrics,
                self.client_quotas,
                recently_created=recently_created,
                recent_topics=recent_topics,
            )
            routes = build_routes(
                collecting_handlers(context),
                head_handlers(context),
                max_frame_bytes=settings.max_frame_bytes,
            )
            listener = Listener(
                section.name,
                loop=loop,
                now_ms=now_ms,
                routes=routes,
                settings=settings,
                connector=connector,
                observer=self.metrics,
                quotas=self.client_quotas,
                connections=self.connections,
                max_lingering=descriptors.max_lingering,
            )
            self.metrics.watch_listener(listener.name, routes, listener)
            self.listeners[section.name] = listener
            self._topologies[section.name] = topology
        for listener in self.listeners.values():
            listener.siblings = tuple(self.listeners.values())
        self.operations = Operations(
            config,
            self.limits,
            source,
            check=self._check_descriptors,
            apply=self._apply_settings,
            on_reload=self._count_reload,
        )
        self.admin = AdminServer(
            self.metrics,
            self.operations,
            ready=self.why_not_ready,
            remote_changes=config.admin.remote_changes,
        )
        self._discovering: asyncio.Task[None] | None = None
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

    def _follow_topology(self, gone: Sequence[int]) -> None:
        for name, topology in self._topologies.items():
            for broker_id in gone:
                self.listeners[name].stop_listening(broker_id)
                topology.withdraw(broker_id)
            topology.advertise_known()

    def _check_descriptors(self, config: Config) -> None:
        plan_descriptors(config, self._descriptor_limit)

    def _apply_settings(self, plan: ReloadPlan) -> None:
        """What a reload changes besides quotas and the log; what reads `operations.config` needs nothing here."""
        settings = session_settings(plan.config)
        for listener in self.listeners.values():
            listener.settings = settings
        if plan.changes("connections") or plan.changes("listeners"):
            descriptors = plan_descriptors(plan.config, self._descriptor_limit)
            self.connections.update(connection_limits(plan.config, descriptors), now_ms=self._now_ms())
            for listener in self.listeners.values():
                listener.slot_freed()

    def _count_reload(self, report: ReloadReport) -> None:
        unread = report.result is ReloadResult.INVALID
        self.metrics.config_reloaded(
            report.result, awaiting_restart=None if unread else len(report.needs_restart)
        )

    def why_not_ready(self) -> str | None:
        """None when clients can be served, otherwise a few words for /readyz."""
        if self._draining:
            return "draining"
        if not self.discovery.reached:
            return "upstream not reached"
        return None

    async def start(self) -> None:
        """Bind the admin port and every bootstrap port, then begin to look for the brokers.

        Raises:
            OSError: a port cannot be bound; nothing stays open.
        """
        await self.admin.start(self._config.admin.bind.host, self._config.admin.bind.port)
        try:
            for section in self._config.listeners:
                listener = self.listeners[section.name]
                listener.listen((section.bind.host, section.bind.port), None)
                _log.info("listening", listener=section.name, port=listener.ports[None])
        except OSError:
            await self.stop()
            raise
        self._discovering = asyncio.create_task(self.discovery.run())

    async def drain(self, *, hurry: asyncio.Event) -> None:
        """Stop accepting, let requests already read get their replies, then close; bounded by the configuration.

        Args:
            hurry: when set, what is left is closed at once.
        """
        self._draining = True
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
        discovering, self._discovering = self._discovering, None
        if discovering is not None:
            discovering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await discovering

    async def stop(self) -> None:
        """Release every port and task."""
        await self._stop_discovering()
        for listener in self.listeners.values():
            listener.stop()
        await self.admin.stop()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)


async def _serve(config: Config, banner: str | None, source: ConfigSource | None) -> int:
    loop = asyncio.get_running_loop()
    gateway = Gateway(config, source)
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    reloads: set[asyncio.Task[ReloadReport]] = set()

    def on_hangup() -> None:
        # One that waits reads the file after whatever sent this signal has written it; more change nothing.
        if len(reloads) < 2:
            reloads.add(task := asyncio.create_task(gateway.operations.reload(by="SIGHUP")))
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    # A supervisor's stray signals do not end the gateway (hazard F15).
    loop.add_signal_handler(signal.SIGUSR1, lambda: _log.info("signal_ignored", signal="SIGUSR1"))
    try:
        await gateway.start()
    except OSError as exc:
        print(f"sluice: cannot listen: {exc}", file=sys.stderr)
        return 2
    # What stands by now stays for good: full collections need not walk through it each time.
    gc.collect()
    gc.freeze()
    if banner is not None:
        print(banner, flush=True)
    await stop.wait()
    await gateway.drain(hurry=hurry)
    await gateway.stop()
    _log.info("stopped")
    return 0


def run(config: Config, *, banner: str | None = None, source: ConfigSource | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends the drain at once. SIGHUP reloads the configuration.

    Args:
        config: valid.
        banner: printed once the gateway listens.
        source: where the configuration comes from again; None: it can not be reloaded.

    Returns:
        The process's exit code: 0, or 2 when a port cannot be bound.
    """
    return uvloop.run(_serve(config, banner, source))
