"""The composition root: builds the parts, starts them, drains and stops them. No logic of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog
import uvloop

from config import Config
from gateway.admin import AdminServer
from gateway.clock import loop_clock
from gateway.close_cause import CloseCause
from gateway.discovery import Discovery
from gateway.handlers import collecting_handlers, head_handlers
from gateway.handlers.context import HandlerContext
from gateway.listener import Listener
from gateway.metrics import GatewayMetrics
from gateway.resolver import Resolver
from gateway.routes import build_routes
from gateway.session_settings import SessionSettings
from gateway.topology import BrokerPorts, ClusterMap, Topology
from gateway.upstream import Connector
from quotas.mutations import MutationQuotas

_DRAIN_POLL_S: Final = 0.02

_log = structlog.get_logger("gateway.app")


class Gateway:
    """One running gateway.

    Attributes:
        listeners: by name.
        cluster: what is known of the brokers.
        metrics: what has happened.
    """

    def __init__(self, config: Config) -> None:
        """Build everything; nothing is bound or connected yet.

        Args:
            config: valid.
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
        self.metrics.watch_mutations(self.mutations)
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
        settings = SessionSettings(**config.limits.model_dump())
        self.listeners: dict[str, Listener] = {}
        self._topologies: dict[str, Topology] = {}
        for section in config.listeners:
            ports = BrokerPorts(
                advertised_host=section.advertised_host,
                first_port=section.first_broker_port,
                lowest_broker_id=section.lowest_broker_id,
                count=section.broker_ports,
            )
            topology = Topology(self.cluster, ports, self._binder(section.name, section.bind.host))
            context = HandlerContext(topology, self.limits, self.mutations, self.metrics)
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
            )
            self.metrics.watch_listener(listener.name, routes, listener)
            self.listeners[section.name] = listener
            self._topologies[section.name] = topology
        self.admin = AdminServer(self.metrics, ready=self.why_not_ready)
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
        _log.info("draining", connections=self._connections())
        for listener in self.listeners.values():
            listener.drain()
        deadline_ms = self._now_ms() + self._config.drain.timeout_ms
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

    async def stop(self) -> None:
        """Release every port and task."""
        if self._discovering is not None:
            self._discovering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._discovering
        for listener in self.listeners.values():
            listener.stop()
        await self.admin.stop()
        # Transports close in the next turn of the loop.
        await asyncio.sleep(0)


async def _serve(config: Config, banner: str | None) -> int:
    loop = asyncio.get_running_loop()
    gateway = Gateway(config)
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # A supervisor's stray signals do not end the gateway (hazard F15).
    loop.add_signal_handler(signal.SIGHUP, lambda: _log.info("signal_ignored", signal="SIGHUP"))
    loop.add_signal_handler(signal.SIGUSR1, lambda: _log.info("signal_ignored", signal="SIGUSR1"))
    try:
        await gateway.start()
    except OSError as exc:
        print(f"sluice: cannot listen: {exc}", file=sys.stderr)
        return 2
    if banner is not None:
        print(banner, flush=True)
    await stop.wait()
    await gateway.drain(hurry=hurry)
    await gateway.stop()
    _log.info("stopped")
    return 0


def run(config: Config, *, banner: str | None = None) -> int:
    """Serve until SIGTERM or SIGINT; a second one ends the drain at once.

    Args:
        config: valid.
        banner: printed once the gateway listens.

    Returns:
        The process's exit code: 0, or 2 when a port cannot be bound.
    """
    return uvloop.run(_serve(config, banner))
