"""Listeners: the connections of one configured way in.

A `Listener` owns its ports (`acceptor.py`), its channels and its table of routes; counts and rates are shared with
the other listeners through one `ConnectionQuotas`. Its broker ports are ways into the same listener, so they share
its limits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any, Protocol

import structlog

from config.sections.listeners import ProxyProtocolSettings
from gateway.clock import NowMs
from gateway.net.acceptor import ACCEPTS_PER_TURN, AcceptedSocket, Acceptor
from gateway.net.back_pressure import BackPressure
from gateway.net.batch_scheduler import BatchScheduler
from gateway.net.channel import ClientChannel
from gateway.net.lingering import Lingering
from gateway.net.peer_close import PeerCloseDetector
from gateway.net.tls_acceptor import TlsAcceptor
from gateway.observability.close_cause import CloseCause
from gateway.observability.observer import Observer
from gateway.session.client_quotas import ClientQuotas
from gateway.session.routes import Routes
from gateway.session.sasl_routes import SaslListener
from gateway.session.session import ClientSession
from gateway.session.settings import SessionSettings
from gateway.upstream.channel import Connector
from gateway.upstream.topology import Address
from gateway.usage.connections import ConnectionUsage
from quotas.connections import ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.limits import Limits

_log = structlog.get_logger("gateway.listener")
_standard_log = logging.getLogger("gateway.listener")


class ChannelOwner(Protocol):
    """A listener, as far as its channels are concerned."""

    loop: asyncio.AbstractEventLoop
    now_ms: NowMs
    connector: Connector
    settings: SessionSettings
    lingering: Lingering
    scheduler: BatchScheduler
    back_pressure: BackPressure

    def closed(self, channel: ClientChannel, cause: CloseCause) -> None:
        """The channel has ended."""

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """A peer broke the format; worth a line in the log."""


class Listener:
    """See the module.

    Attributes:
        name: as configured; a label of metrics.
        channels: open client connections.
        lingering: closed ones whose last bytes have not left.
        scheduler: what is due for channels and waits for its turn.
        back_pressure: how long channels were held up by a slow side.
        settings: for connections that come from now on.
        siblings: all listeners that share the connection quotas, this one included.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        routes: Routes,
        settings: SessionSettings,
        connector: Connector,
        observer: Observer,
        quotas: ClientQuotas | None = None,
        connections: ConnectionQuotas | None = None,
        sasl: SaslListener | None = None,
        max_lingering: int = 256,
        tls_acceptor: TlsAcceptor | None = None,
        usage: ConnectionUsage | None = None,
        proxy: ProxyProtocolSettings | None = None,
    ) -> None:
        """Make it; nothing is bound yet.

        Args:
            name: see above.
            loop: runs everything.
            now_ms: the clock.
            routes: what is done with which request.
            settings: see above.
            connector: opens upstream legs.
            observer: told what happens.
            quotas: byte rates and request time; None: not enforced.
            sasl: what its clients may send before they have authenticated; None: they do not have to.
            connections: counts and rates, shared by all listeners; None: this listener counts alone, unlimited.
            max_lingering: see `Lingering`.
            tls_acceptor: the TLS handshakes of its clients; None: without TLS.
            usage: the usage records; None: none are kept.
            proxy: the load balancers that all its clients come through; None: there are none.
        """
        self.name = name
        self.loop = loop
        self.now_ms = now_ms
        self.connector = connector
        self.settings = settings
        self.channels: set[ClientChannel] = set()
        self.lingering = Lingering(loop, most=max_lingering)
        self.scheduler = BatchScheduler(loop)
        self.back_pressure = BackPressure()
        self._tls_acceptor = tls_acceptor
        self._routes = routes
        self._sasl = sasl
        self._quotas = quotas
        self._observer = observer
        if connections is None:
            alone = ConnectionLimits(listeners={name: ListenerLimits()})
            connections = ConnectionQuotas(Limits(), alone, now_ms=now_ms())
        self._connections = connections
        self.siblings: Sequence[Listener] = (self,)
        self._acceptor = Acceptor(
            name,
            loop=loop,
            now_ms=now_ms,
            quotas=connections,
            observer=observer,
            on_admitted=self._adopt,
            on_place_free=self._place_free,
            proxy=proxy,
            write_timeout_ms=settings.write_timeout_ms,
            usage=usage,
            # Each brings a handshake; in between, those who are connected have their turn.
            accepts_per_turn=ACCEPTS_PER_TURN if tls_acceptor is None else 1,
        )
        self._adoptions: set[asyncio.Task[Any]] = set()
        self._muted_watch = PeerCloseDetector(loop, self.channels)
        self._muted_watch.start()

    # -- ports -----------------------------------------------------------------------------------------------

    def listen(self, address: Address, broker_id: int | None) -> None:
        """Accept clients on one more port; see `Acceptor.listen`."""
        self._acceptor.listen(address, broker_id)

    def stop_listening(self, broker_id: int | None) -> None:
        """Close one port; connections that came in by it stay."""
        self._acceptor.stop_listening(broker_id)

    def stop(self) -> None:
        """Close all ports and look after nobody any more."""
        self._muted_watch.stop()
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
        """Sockets whose load balancer has not told yet whose they are."""
        return self._acceptor.awaiting_header

    @property
    def accepted(self) -> int:
        """Connections taken from the kernel so far, whatever became of them."""
        return self._acceptor.accepted

    @property
    def waits_since_ms(self) -> int | None:
        """Since when somebody waits to be let in while nobody else is accepted; None: nobody does."""
        return self._acceptor.waits_since_ms

    # -- connections -----------------------------------------------------------------------------------------

    def _adopt(self, accepted: AcceptedSocket) -> None:
        """Give an admitted socket its session and its transport."""
        session = ClientSession(
            self._routes,
            self.settings,
            listener=self.name,
            peer=accepted.peer,
            broker_id=accepted.broker_id,
            quotas=self._quotas,
            sasl=self._sasl,
            now_ms=self.now_ms(),
        )
        channel = ClientChannel(session, self, accepted.broker_id, ip=accepted.ip)
        session.on_output_ready = channel.on_output_ready
        self.channels.add(channel)
        if self.connector.header_sender is not None:
            self.connector.header_sender.remember(channel, accepted)
        self._observer.connection_opened(self.name)
        task = self.loop.create_task(self._attach(channel, accepted.sock))
        self._adoptions.add(task)
        task.add_done_callback(self._adoptions.discard)
        for listener in self.siblings:
            listener.make_room()

    async def _attach(self, channel: ClientChannel, accepted: socket.socket) -> None:
        if channel not in self.channels:
            # Drained or evicted since: a handshake now would be a connection that nobody counts.
            accepted.close()
            return
        try:
            await self.loop.connect_accepted_socket(
                lambda: channel if self._tls_acceptor is None else self._tls_acceptor.enter(channel), accepted
            )
        except OSError:
            accepted.close()
            channel.close(CloseCause.CLIENT_CLOSED)

    def slot_freed(self) -> None:
        """A connection of this or a sibling listener has ended, or the limits have changed."""
        self._acceptor.slot_freed()

    def make_room(self) -> None:
        """The protected listener took a place beyond the cap: the least recently used connection gives way."""
        while self.channels and self._connections.must_close_one(self.name):
            idlest = min(self.channels, key=lambda channel: channel.session.idle_since_ms)
            idlest.close(CloseCause.EVICTED)

    def closed(self, channel: ClientChannel, cause: CloseCause) -> None:
        """See `ChannelOwner`."""
        self.channels.discard(channel)
        channel.session.ended()
        if self._tls_acceptor is not None:
            self._tls_acceptor.forget(channel)
        if self.connector.header_sender is not None:
            self.connector.header_sender.forget(channel)
        self._connections.release(self.name, channel.ip)
        self._observer.connection_closed(self.name, cause)
        self._place_free()
        if _standard_log.isEnabledFor(logging.DEBUG):  # what would be dropped is not even put together
            _log.debug("connection_closed", listener=self.name, peer=channel.session.peer, cause=cause.value)

    def _place_free(self) -> None:
        waiting = [listener for listener in self.siblings if listener.waits_since_ms is not None]
        # Whoever has waited longest is asked first, so that a busy listener doesn't take every free slot.
        for listener in sorted(waiting, key=lambda each: each.waits_since_ms or 0):
            listener.slot_freed()

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """See `ChannelOwner`."""
        _log.info("connection_refused", **names, cause=cause.value, detail=detail)

    def drain(self) -> None:
        """Close all ports, and each connection as soon as it is owed nothing."""
        self._acceptor.stop()
        self.lingering.most = None
        for channel in list(self.channels):
            channel.drain()
