"""A `Listener` owns its ports, channels and table of routes; `Listeners` are all of a gateway.

Counts and rates of connections are shared by all listeners through one `ConnectionQuotas`. The bootstrap port and
the broker ports of a listener are ports of the same listener, so they share its limits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

import structlog

from config import ListenerSettings
from config.sections.listeners import ProxyProtocolSettings
from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.acceptor import ACCEPTS_PER_TURN, Acceptor, OnAdmitted
from gateway.net.back_pressure import BackPressure
from gateway.net.batch_scheduler import BatchScheduler
from gateway.net.lingering import Lingering
from gateway.net.listening import ListeningSockets
from gateway.net.long_work import LongWork
from gateway.net.peer_close import PeerCloseDetector, Watched
from gateway.net.tls_acceptor import TlsAcceptor
from gateway.observability.events import CloseCause, ConnectionObserver, Side
from gateway.observability.throttle_journal import ThrottleJournal
from gateway.runtime.clock import NowMs
from gateway.runtime.collector import connection_opened
from gateway.runtime.eager import Eager
from gateway.session.announced import AnnouncedLimits
from gateway.session.memory_budget import MemoryBudget
from gateway.session.session import ClientSession
from gateway.session.settings import SessionSettings
from gateway.tls.transport import StreamProtocol
from gateway.upstream.connector import Connector
from gateway.upstream.topology import (
    Address,
    BrokerAddresses,
    BrokerNames,
    BrokerPorts,
    ClusterMap,
    Found,
    Topology,
)
from gateway.usage.connections import ConnectionUsage
from quotas.connections import ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.limits import Limits

_SHOWN: Final = 10
"""Most broker ids in one line for an operator."""

_log = structlog.get_logger("gateway.listener")
_gateway_log = structlog.get_logger("gateway.app")
_standard_log = logging.getLogger("gateway.listener")


class Channel(Watched, StreamProtocol, Protocol):
    """The part of a client's channel that its listener needs.

    Attributes:
        session: the client's session.
        ip: the peer's address, by which connections are counted.
    """

    @property
    def session(self) -> ClientSession: ...
    @property
    def ip(self) -> str: ...
    def close(self, cause: CloseCause, *, abort: bool = False) -> None:
        """End both legs."""

    def lead_to(self, broker_id: int | None) -> None:
        """Set the broker that the client named."""

    def drain(self) -> None:
        """Close once no reply is outstanding."""


OpenChannel: TypeAlias = "Callable[[Listener, AcceptedSocket], Channel]"
"""Creates the channel of an admitted socket, not attached to it yet; see `ChannelFactory`."""


class Places(Protocol):
    """Counts the slots of admitted connections; see `ConnectionQuotas`."""

    def release(self, listener: str, ip: str) -> None:
        """Free the slot of a connection that has ended."""

    def must_close_one(self, listener: str) -> bool:
        """Whether another listener needs the slot of one of this listener's connections."""


class Listener:
    """One configured listener.

    Attributes:
        name: as configured; a label of metrics.
        channels: open client connections, oldest first.
        lingering: closed connections whose last bytes have not left.
        scheduler: runs due steps of channels.
        long_work: runs the steps of long work; shared by all listeners.
        back_pressure: how long channels were slowed down by a slow side.
        received_bytes: bytes received by the channels that have ended.
        settings: bounds for new connections.
        memory: the memory budget of the connections of all listeners.
        announced: the bounds of bytes that they have announced to brokers.
        siblings: all listeners that share the connection quotas, this one included.
        spreads: whether connections for any broker go to the known brokers in turn.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        settings: SessionSettings,
        open_channel: OpenChannel,
        connector: Connector,
        observer: ConnectionObserver,
        connections: ConnectionQuotas | None = None,
        max_lingering: int = 256,
        tls_acceptor: TlsAcceptor | None = None,
        usage: ConnectionUsage | None = None,
        journal: ThrottleJournal | None = None,
        proxy: ProxyProtocolSettings | None = None,
        memory: MemoryBudget | None = None,
        announced: AnnouncedLimits | None = None,
        long_work: LongWork | None = None,
        hand_over: OnAdmitted | None = None,
        places: Places | None = None,
        listening: ListeningSockets | None = None,
        spreads: bool = False,
    ) -> None:
        """Create a listener without ports.

        Args:
            name: see the class.
            loop: the event loop.
            now_ms: the clock.
            settings: see the class.
            open_channel: creates its channels.
            connector: opens upstream legs.
            observer: notified of events.
            connections: counts and rates, shared by all listeners; None: this listener counts alone, unlimited.
            max_lingering: see `Lingering`.
            tls_acceptor: performs its clients' TLS handshakes; None: without TLS.
            usage: the usage records; None: no usage records are kept.
            journal: the journal of throttles; None: no journal is kept.
            proxy: the load balancers from which all its clients come; None: no load balancers.
            memory: see the class; None: a budget of this listener alone.
            announced: see the class; None: bounds of this listener alone.
            long_work: see the class; None: of this listener alone.
            hand_over: takes admitted sockets for another process; None: this process serves them.
            places: counts the ends of connections of this process; None: `connections` does.
            listening: see `Acceptor`.
            spreads: see the class.
        """
        self.name = name
        self.spreads = spreads
        self.loop = loop
        self.now_ms = now_ms
        self.connector = connector
        self.settings = settings
        self.channels: dict[Channel, None] = {}
        self.lingering = Lingering(loop, most=max_lingering)
        self.scheduler = BatchScheduler(loop)
        self.long_work = long_work or LongWork(loop)
        self.memory = memory or MemoryBudget(settings.queued_max_request_bytes)
        self.announced = announced or AnnouncedLimits(settings.announced_max_request_bytes)
        self.back_pressure = BackPressure()
        self.received_bytes = dict.fromkeys(Side, 0)
        self._tls_acceptor = tls_acceptor
        self._open_channel = open_channel
        self._observer = observer
        if connections is None:
            alone = ConnectionLimits(listeners={name: ListenerLimits()})
            connections = ConnectionQuotas(Limits(), alone, now_ms=now_ms())
        self._places: Places = places or connections
        self.siblings: Collection[Listener] = (self,)
        self._acceptor = Acceptor(
            name,
            loop=loop,
            now_ms=now_ms,
            quotas=connections,
            observer=observer,
            on_admitted=hand_over or self.adopt,
            on_slot_freed=self.offer_slot,
            proxy=proxy,
            write_timeout_ms=settings.write_timeout_ms,
            usage=usage,
            journal=journal,
            # With TLS one socket per turn, because of its handshake: open connections are served in between.
            accepts_per_turn=ACCEPTS_PER_TURN if tls_acceptor is None or hand_over is not None else 1,
            listening=listening,
        )
        self._draining = False
        self._peer_close_detector = PeerCloseDetector(loop, self.channels)
        self._peer_close_detector.start()

    # -- ports -----------------------------------------------------------------------------------------------

    def listen(self, address: Address, broker_id: int | None) -> None:
        """Accept clients on one more port; see `Acceptor.listen`."""
        self._acceptor.listen(address, broker_id)

    def stop_listening(self, broker_id: int | None) -> None:
        """Close one port; its connections stay."""
        self._acceptor.stop_listening(broker_id)

    def open_sockets(self) -> Iterator[tuple[Address, socket.socket]]:
        """The listening sockets, each with its configured address."""
        return self._acceptor.open_sockets

    def suspend(self) -> AcceptedSocket | None:
        """See `Acceptor.suspend`."""
        return self._acceptor.suspend()

    def resume(self, waiting: AcceptedSocket | None = None) -> None:
        """See `Acceptor.resume`."""
        self._acceptor.resume(waiting)

    def drain_idle(self, idle_ms: int) -> None:
        """Close each connection that was idle for this time and has no outstanding reply."""
        latest_ms = self.now_ms() - idle_ms
        for channel in list(self.channels):
            if channel.session.idle_since_ms <= latest_ms and channel.session.responses.idle:
                channel.drain()

    def stop(self) -> None:
        """Close all ports and stop every watch."""
        self._peer_close_detector.stop()
        self.lingering.abort()
        self._acceptor.stop()

    @property
    def ports(self) -> dict[int | None, int]:
        """Broker id (None: bootstrap) -> bound port."""
        return self._acceptor.ports

    @property
    def held(self) -> int:
        """Number of sockets that are kept unread because their address connects too often."""
        return len(self._acceptor.held)

    @property
    def awaiting_header(self) -> int:
        """Number of sockets whose PROXY header has not been read."""
        return self._acceptor.awaiting_header

    @property
    def accepted(self) -> int:
        """Number of sockets accepted so far, whatever the decision."""
        return self._acceptor.accepted

    @property
    def waits_since_ms(self) -> int | None:
        """When the waiting socket, which blocks accepting, began to wait; None: no socket waits."""
        return self._acceptor.waits_since_ms

    # -- connections -----------------------------------------------------------------------------------------

    def adopt(self, accepted: AcceptedSocket) -> None:
        """Give an admitted socket its session and its transport."""
        connection_opened()
        channel = self._open_channel(self, accepted)
        self.channels[channel] = None
        self._observer.connection_opened(self.name)
        for listener in self.siblings:
            listener.evict_over_limit()
        if self._draining:  # the supervisor sent it before the drain
            channel.drain()
        if channel in self.channels:
            Eager().run(self._attach(channel, accepted.sock))
        else:
            accepted.sock.close()

    async def _attach(self, channel: Channel, accepted: socket.socket) -> None:
        attached = False
        try:
            protocol = channel if self._tls_acceptor is None else self._tls_acceptor.transport_for(channel)
            await self.loop.connect_accepted_socket(lambda: cast("asyncio.Protocol", protocol), accepted)
            attached = True
        except OSError:
            pass  # the connection broke meanwhile
        finally:
            if not attached:
                accepted.close()
                channel.close(CloseCause.CLIENT_CLOSED)

    def slot_freed(self) -> None:
        """Let a waiting socket try again: a connection of any listener has ended, or the limits have changed."""
        self._acceptor.slot_freed()

    def evict_over_limit(self) -> None:
        """Close this listener's longest idle connections until the limit of all connections is kept.

        The protected listener may exceed the limit, at the cost of the others.
        """
        while self._places.must_close_one(self.name) and self.evict_one():
            pass

    @property
    def idle_since_ms(self) -> int | None:
        """When the longest idle connection became idle; None without connections."""
        return min((channel.session.idle_since_ms for channel in self.channels), default=None)

    def evict_one(self) -> bool:
        """Close the longest idle connection. Returns whether there was one."""
        if not self.channels:
            return False
        idlest = min(self.channels, key=lambda channel: channel.session.idle_since_ms)
        idlest.close(CloseCause.EVICTED)
        return True

    def closed(self, channel: Channel, cause: CloseCause) -> None:
        """See `ChannelOwner`."""
        self.channels.pop(channel, None)
        session = channel.session
        session.ended(now_ms=self.now_ms())
        self.received_bytes[Side.CLIENT] += session.bytes_from_client
        self.received_bytes[Side.UPSTREAM] += session.bytes_from_upstream
        if self._tls_acceptor is not None:
            self._tls_acceptor.forget(channel)
        self._places.release(self.name, channel.ip)
        self._observer.connection_closed(self.name, cause)
        self.offer_slot()
        if _standard_log.isEnabledFor(logging.DEBUG):  # do not build a line that would be dropped
            _log.debug("connection_closed", listener=self.name, peer=channel.session.peer, cause=cause.value)

    def offer_slot(self) -> None:
        """Offer a free slot to a waiting socket of this listener or a sibling."""
        waiting = [listener for listener in self.siblings if listener.waits_since_ms is not None]
        if not waiting:
            return
        # The socket that has waited longest comes first, so that a busy listener does not take every free slot.
        for listener in sorted(waiting, key=lambda each: each.waits_since_ms or 0):
            listener.slot_freed()

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """See `ChannelOwner`."""
        _log.info("connection_refused", **names, cause=cause.value, detail=detail)

    def close_ports(self) -> None:
        """Stop accepting; connections stay."""
        self._acceptor.stop()

    def drain(self) -> None:
        """Close all ports, and each connection as soon as no reply is outstanding."""
        self._draining = True
        self._acceptor.stop()
        self.lingering.most = None
        for channel in list(self.channels):
            channel.drain()


class Listeners:
    """All listeners of a gateway, which share its connection quotas, with their broker ports.

    Attributes:
        by_name: the listeners.
    """

    def __init__(
        self,
        *,
        on_port_failed: Callable[[str], None],
        open_port: Callable[[str, int, Found], bool] | None = None,
    ) -> None:
        """Start without listeners.

        Args:
            on_port_failed: called with the name of a listener that could not bind the port of a broker.
            open_port: lets the supervisor open the port of a broker for a listener, and sends it the broker's
                address; None: this process opens it.
        """
        self.by_name: dict[str, Listener] = {}
        self._topologies: dict[str, Topology] = {}
        self._hidden: dict[str, list[int]] = {}  # as logged last
        self._on_port_failed = on_port_failed
        self._open_port = open_port
        self._closed = False

    def topology(self, section: ListenerSettings, cluster: ClusterMap) -> Topology:
        """The cluster as a listener's clients see it. The topology opens a port for each broker that it learns of.

        If clients name brokers, the port of `bind` is enough.

        Args:
            section: of the listener, which must be added before the first broker is known.
            cluster: the brokers.
        """
        if section.sni is not None:
            names = BrokerNames(section.sni.names, section.sni.advertised_port or section.bind.port)
            topology = Topology(cluster, names, lambda _broker_id, _port: True)
            self._topologies[section.name] = topology
            return topology
        ports = BrokerPorts(
            advertised_host=section.advertised_host,
            first_port=section.first_broker_port,
            lowest_broker_id=section.lowest_broker_id,
            count=section.broker_ports,
        )

        def bind(broker_id: int, port: int) -> bool:
            if self._open_port is not None:
                found = Found(cluster.cluster_id, {broker_id: cluster.brokers[broker_id]})
                return self._open_port(section.name, broker_id, found)
            return self._bind(section, broker_id, port)

        topology = self._topologies[section.name] = Topology(cluster, ports, bind)
        return topology

    def add(self, listener: Listener) -> None:
        """Add a listener, which shares the connection quotas with the others."""
        self.by_name[listener.name] = listener
        listener.siblings = self.by_name.values()

    def open_port(self, name: str, broker_id: int, found: Found) -> bool:
        """Open the port of a broker that another process has found. Returns whether it is open now."""
        topology = self._topologies[name]
        topology.cluster.learn_from(found)
        return topology.open(broker_id)

    def _bind(self, section: ListenerSettings, broker_id: int, port: int) -> bool:
        if self._closed:
            return True  # in an upgrade, the process that replaced this one binds it
        name = section.name
        try:
            self.by_name[name].listen((section.bind.host, port), broker_id)
        except OSError as exc:
            self._on_port_failed(name)
            _gateway_log.error(
                "broker_port_failed", listener=name, broker=broker_id, port=port, error=exc.strerror
            )
            return False
        _gateway_log.info("broker_port_open", listener=name, broker=broker_id, port=port)
        return True

    def follow(self, cluster: ClusterMap, gone: Sequence[int]) -> None:
        """Open and close broker ports after a change of the cluster.

        Args:
            cluster: the cluster; listeners of other clusters are left alone.
            gone: ids of brokers that have left it.
        """
        for name, topology in self._topologies.items():
            if topology.cluster is not cluster:
                continue
            for broker_id in gone:
                self.by_name[name].stop_listening(broker_id)
                topology.withdraw(broker_id)
            topology.advertise_known()
            if self._open_port is None:
                self._log_hidden(name, topology)

    def _log_hidden(self, name: str, topology: Topology) -> None:
        hidden = topology.hidden
        if hidden != self._hidden.get(name, []):
            _gateway_log.warning(
                "brokers_hidden", listener=name, brokers=hidden, detail=_range_of_ids(topology.addresses)
            )
        self._hidden[name] = hidden

    def why_not_ready(self) -> str | None:
        """None if each listener has a port for a broker, otherwise the reason for /readyz."""
        for name, topology in self._topologies.items():
            hidden = topology.hidden
            if hidden and len(hidden) == len(topology.cluster.broker_ids):
                ids = f"{_range_of_ids(topology.addresses)}, and the brokers are {_some(hidden)}"
                return f"listener {name} has no port for any broker: {ids}"
        return None

    def hidden_brokers(self) -> dict[str, int]:
        """By listener: how many known brokers are hidden from its clients because their ids have no port."""
        return {name: len(topology.hidden) for name, topology in self._topologies.items()}

    def listen(self, sections: Sequence[ListenerSettings]) -> None:
        """Bind the bootstrap ports.

        Raises:
            OSError: a port cannot be bound; the message names the key.
        """
        for section in sections:
            listener = self.by_name[section.name]
            try:
                listener.listen((section.bind.host, section.bind.port), None)
            except OSError as exc:
                raise OSError(exc.errno, f"{section.path}.bind: {exc.strerror}") from exc
            _gateway_log.info("listening", listener=section.name, port=listener.ports[None])

    def set_session_settings(self, settings: SessionSettings) -> None:
        """Set the bounds of new connections."""
        for listener in self.by_name.values():
            listener.settings = settings
            listener.memory.limit_bytes = settings.queued_max_request_bytes
            listener.announced.set(settings.announced_max_request_bytes)

    def limits_changed(self) -> None:
        """Decide about waiting connections again."""
        for listener in self.by_name.values():
            listener.slot_freed()

    # -- the end ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close all ports, and each connection as soon as no reply is outstanding."""
        self._closed = True
        connections = sum(len(listener.channels) for listener in self.by_name.values())
        _gateway_log.info("draining", pid=os.getpid(), connections=connections)
        for listener in self.by_name.values():
            listener.drain()

    def close_ports(self) -> None:
        """Stop accepting; connections stay. Ports of brokers that join from now on are another process's."""
        self._closed = True
        for listener in self.by_name.values():
            listener.close_ports()

    @property
    def unfinished(self) -> bool:
        """Whether a connection is open or lingering."""
        return any(listener.channels or listener.lingering.unsent for listener in self.by_name.values())

    def abort(self) -> None:
        """Close the remaining connections at once, after a drain."""
        for listener in self.by_name.values():
            for channel in list(listener.channels):
                channel.close(CloseCause.DRAIN_TIMEOUT, abort=True)

    def stop(self) -> None:
        """Release every port."""
        for listener in self.by_name.values():
            listener.stop()


def _range_of_ids(addresses: BrokerAddresses) -> str:
    ids = f"{addresses.lowest_broker_id} to {addresses.last_broker_id}"
    return f"lowest_broker_id and broker_ports give ports to the ids {ids}"


def _some(broker_ids: Sequence[int]) -> str:
    more = f" and {len(broker_ids) - _SHOWN} more" if len(broker_ids) > _SHOWN else ""
    return ", ".join(map(str, broker_ids[:_SHOWN])) + more
