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
    Topology,
)
from gateway.usage.connections import ConnectionUsage
from quotas.connections import ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.limits import Limits

_SHOWN: Final = 10
"""Broker ids in one line for an operator."""

_log = structlog.get_logger("gateway.listener")
_gateway_log = structlog.get_logger("gateway.app")
_standard_log = logging.getLogger("gateway.listener")


class Channel(Watched, StreamProtocol, Protocol):
    """A client's connection, as far as its listener is concerned.

    Attributes:
        session: what is known of the client.
        ip: the peer's address, by which connections are counted.
    """

    @property
    def session(self) -> ClientSession: ...
    @property
    def ip(self) -> str: ...
    def close(self, cause: CloseCause, *, abort: bool = False) -> None:
        """End both legs."""

    def lead_to(self, broker_id: int | None) -> None:
        """The client has named the broker that it wants."""

    def drain(self) -> None:
        """Close once no reply is outstanding."""


OpenChannel: TypeAlias = "Callable[[Listener, AcceptedSocket], Channel]"
"""Makes the channel of an admitted socket, not yet attached to it; see `ChannelFactory`."""


class Places(Protocol):
    """Where the places of admitted connections are counted; see `ConnectionQuotas`."""

    def release(self, listener: str, ip: str) -> None:
        """A connection has ended."""

    def must_close_one(self, listener: str) -> bool:
        """Whether another listener needs the place of one of this listener's connections."""


class Listener:
    """One configured listener.

    Attributes:
        name: as configured; a label of metrics.
        channels: open client connections, in the order in which they came.
        lingering: closed ones whose last bytes have not left.
        scheduler: steps that are due for channels.
        long_work: steps of work that takes long, shared by all listeners.
        back_pressure: how long channels were slowed down by a slow side.
        received_bytes: by the channels that have ended.
        settings: for connections that come from now on.
        memory: what its connections and those of other listeners hold.
        announced: what they have announced to brokers.
        siblings: all listeners that share the connection quotas, this one included.
        spreads: whether connections for any broker go to each of those that are there, in turn.
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
        """Make it; nothing is bound yet.

        Args:
            name: see above.
            loop: runs everything.
            now_ms: the clock.
            settings: see above.
            open_channel: makes its channels.
            connector: opens upstream legs.
            observer: notified of what happens.
            connections: counts and rates, shared by all listeners; None: this listener counts alone, unlimited.
            max_lingering: see `Lingering`.
            tls_acceptor: the TLS handshakes of its clients; None: without TLS.
            usage: the usage records; None: none are kept.
            journal: of throttles; None: none is kept.
            proxy: the load balancers that all its clients come through; None: there are none.
            memory: what the connections of all listeners hold; None: those of this one alone.
            announced: what they have announced to brokers; None: those of this one alone.
            long_work: see above; None: of this listener alone.
            hand_over: takes admitted sockets, which are another process's from then on; None: they are served here.
            places: where connections are counted that end here; None: in `connections`.
            listening: see `Acceptor`.
            spreads: see above.
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
            # Each brings a handshake; in between, open connections are served.
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
        """Close one port; connections that came in by it stay."""
        self._acceptor.stop_listening(broker_id)

    def open_sockets(self) -> Iterator[tuple[Address, socket.socket]]:
        """What listens, and where it was configured to."""
        return self._acceptor.open_sockets

    def suspend(self) -> AcceptedSocket | None:
        """See `Acceptor.suspend`."""
        return self._acceptor.suspend()

    def resume(self, waiting: AcceptedSocket | None = None) -> None:
        """See `Acceptor.resume`."""
        self._acceptor.resume(waiting)

    def drain_idle(self, idle_ms: int) -> None:
        """Close each connection on which nothing has passed for so long and which has no reply outstanding."""
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
        """Sockets that are kept unread because their address connects too often."""
        return len(self._acceptor.held)

    @property
    def awaiting_header(self) -> int:
        """Sockets whose PROXY header has not been read."""
        return self._acceptor.awaiting_header

    @property
    def accepted(self) -> int:
        """Connections taken from the kernel so far, whatever became of them."""
        return self._acceptor.accepted

    @property
    def waits_since_ms(self) -> int | None:
        """Since when a socket waits for a slot while none is accepted; None: none waits."""
        return self._acceptor.waits_since_ms

    # -- connections -----------------------------------------------------------------------------------------

    def adopt(self, accepted: AcceptedSocket) -> None:
        """Give an admitted socket its session and its transport."""
        channel = self._open_channel(self, accepted)
        self.channels[channel] = None
        self._observer.connection_opened(self.name)
        for listener in self.siblings:
            listener.evict_over_limit()
        if self._draining:  # it was on its way from the process that accepts
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
            pass  # it broke in the meantime
        finally:
            if not attached:
                accepted.close()
                channel.close(CloseCause.CLIENT_CLOSED)

    def slot_freed(self) -> None:
        """A connection of this or a sibling listener has ended, or the limits have changed."""
        self._acceptor.slot_freed()

    def evict_over_limit(self) -> None:
        """Close the connections of this listener that were idle the longest, until the limit of all is kept.

        The protected listener may exceed it, at the cost of the others.
        """
        while self._places.must_close_one(self.name) and self.evict_one():
            pass

    @property
    def idle_since_ms(self) -> int | None:
        """Since when the connection that was idle the longest is; None: there is none."""
        return min((channel.session.idle_since_ms for channel in self.channels), default=None)

    def evict_one(self) -> bool:
        """Close the connection that was idle the longest; False: there is none."""
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
        if _standard_log.isEnabledFor(logging.DEBUG):  # what would be dropped is not even put together
            _log.debug("connection_closed", listener=self.name, peer=channel.session.peer, cause=cause.value)

    def offer_slot(self) -> None:
        """A place is free: a socket that waits for one, of this listener or a sibling, may have it."""
        waiting = [listener for listener in self.siblings if listener.waits_since_ms is not None]
        if not waiting:
            return
        # The one that has waited longest comes first, so that a busy listener doesn't take every free slot.
        for listener in sorted(waiting, key=lambda each: each.waits_since_ms or 0):
            listener.slot_freed()

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """See `ChannelOwner`."""
        _log.info("connection_refused", **names, cause=cause.value, detail=detail)

    def close_ports(self) -> None:
        """Accept nothing more; connections stay."""
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
        self, *, on_port_failed: Callable[[str], None], open_port: Callable[[str, int], bool] | None = None
    ) -> None:
        """There is none yet.

        Args:
            on_port_failed: called with the name of a listener that could not bind the port of a broker.
            open_port: opens the port of a broker for a listener, in the process that accepts; None: this one does.
        """
        self.by_name: dict[str, Listener] = {}
        self._topologies: dict[str, Topology] = {}
        self._hidden: dict[str, list[int]] = {}  # as last logged
        self._on_port_failed = on_port_failed
        self._open_port = open_port

    def topology(self, section: ListenerSettings, cluster: ClusterMap) -> Topology:
        """What a listener's clients see of the cluster. It binds a port for each broker that it learns of.

        Where clients name brokers, the port of `bind` is enough.

        Args:
            section: of the listener, which is to be added before the first broker is known.
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
                return self._open_port(section.name, broker_id)
            return self._bind(section, broker_id, port)

        topology = self._topologies[section.name] = Topology(cluster, ports, bind)
        return topology

    def add(self, listener: Listener) -> None:
        """One more listener, which shares the connection quotas with the others."""
        self.by_name[listener.name] = listener
        listener.siblings = self.by_name.values()

    def open_port(self, name: str, broker_id: int) -> bool:
        """Open the port of a broker that another process has learnt of, unless it is; whether it is open then."""
        return self._topologies[name].open(broker_id)

    def _bind(self, section: ListenerSettings, broker_id: int, port: int) -> bool:
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
        """Open and close broker ports as the cluster has changed.

        Args:
            cluster: only listeners of this one are concerned.
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
        """None while each listener has a port for a broker, otherwise a few words for /readyz."""
        for name, topology in self._topologies.items():
            hidden = topology.hidden
            if hidden and len(hidden) == len(topology.cluster.broker_ids):
                ids = f"{_range_of_ids(topology.addresses)}, and the brokers are {_some(hidden)}"
                return f"listener {name} has no port for any broker: {ids}"
        return None

    def hidden_brokers(self) -> dict[str, int]:
        """By listener: how many known brokers its clients are not shown, because their ids have no port."""
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
        """The bounds of connections that come from now on."""
        for listener in self.by_name.values():
            listener.settings = settings
            listener.memory.limit_bytes = settings.queued_max_request_bytes
            listener.announced.set(settings.announced_max_request_bytes)

    def limits_changed(self) -> None:
        """Connections that wait for a slot are looked at again."""
        for listener in self.by_name.values():
            listener.slot_freed()

    # -- the end ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Close all ports, and each connection as soon as no reply is outstanding."""
        connections = sum(len(listener.channels) for listener in self.by_name.values())
        _gateway_log.info("draining", pid=os.getpid(), connections=connections)
        for listener in self.by_name.values():
            listener.drain()

    def close_ports(self) -> None:
        """Accept nothing more; connections stay."""
        for listener in self.by_name.values():
            listener.close_ports()

    @property
    def unfinished(self) -> bool:
        """Whether a connection is open, or its last bytes have not left."""
        return any(listener.channels or listener.lingering.unsent for listener in self.by_name.values())

    def abort(self) -> None:
        """Close at once what the drain has left."""
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
