"""Listeners: who may come in, by which port. Accepting is ours, not the loop's.

uvloop accepts greedily, and at the end of the file descriptors it accepts and closes without telling anybody; so the
listening socket is watched for readability and accepted from here, a bounded number of times per turn of the loop
(hazards B23, F01, F02). One `Listener` owns its bootstrap port and one port per broker.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Final, Protocol

import structlog

from gateway.channel import ClientChannel
from gateway.client_quotas import ClientQuotas
from gateway.clock import NowMs
from gateway.close_cause import CloseCause
from gateway.muted_watch import MutedWatch
from gateway.observer import Observer
from gateway.routes import Routes
from gateway.session import ClientSession
from gateway.session_settings import SessionSettings
from gateway.topology import Address
from gateway.upstream import Connector

BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 32
_RETRY_ACCEPT_S: Final = 0.1
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger("gateway.listener")


class ChannelOwner(Protocol):
    """A listener, as far as its channels are concerned."""

    loop: asyncio.AbstractEventLoop
    now_ms: NowMs
    connector: Connector
    settings: SessionSettings

    def closed(self, channel: ClientChannel, cause: CloseCause) -> None:
        """The channel has ended."""

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """A peer broke the format; worth a line in the log."""


class Listener:
    """One configured listener: its ports, its channels, its table of routes.

    Attributes:
        name: as configured; a label of metrics.
        channels: open client connections.
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
    ) -> None:
        self.name = name
        self.loop = loop
        self.now_ms = now_ms
        self.connector = connector
        self.settings = settings
        self.channels: set[ClientChannel] = set()
        self._routes = routes
        self._quotas = quotas
        self._observer = observer
        self._sockets: dict[int | None, socket.socket] = {}
        self._adoptions: set[asyncio.Task[Any]] = set()
        self._muted_watch = MutedWatch(loop, self.channels)
        self._muted_watch.start()

    # -- ports -----------------------------------------------------------------------------------------------

    def listen(self, address: Address, broker_id: int | None) -> None:
        """Accept clients on one more port.

        Args:
            address: where to bind; a listening socket is ready when this returns.
            broker_id: the broker these clients want, None for the bootstrap port.

        Raises:
            OSError: the port cannot be bound.
        """
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        self._sockets[broker_id] = listening
        self._watch(listening, broker_id)

    def _watch(self, listening: socket.socket, broker_id: int | None) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening.fileno(), self._accept, listening, broker_id)

    def stop_listening(self, broker_id: int | None) -> None:
        """Close one port; connections that came in by it stay."""
        listening = self._sockets.pop(broker_id, None)
        if listening is not None:
            self.loop.remove_reader(listening.fileno())
            listening.close()

    def stop(self) -> None:
        """Close all ports and look after nobody any more."""
        self._muted_watch.stop()
        self.stop_listening_everywhere()

    def stop_listening_everywhere(self) -> None:
        """Close all ports."""
        for broker_id in list(self._sockets):
            self.stop_listening(broker_id)

    @property
    def ports(self) -> dict[int | None, int]:
        """Broker id (None: bootstrap) -> bound port."""
        return {broker_id: bound.getsockname()[1] for broker_id, bound in self._sockets.items()}

    # -- connections -----------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket, broker_id: int | None) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno in _OUT_OF_RESOURCES:
                    _log.error("accept_failed", listener=self.name, error=exc.strerror)
                    # Level-triggered: watching on would spin until a descriptor is free.
                    self.loop.remove_reader(listening.fileno())
                    self.loop.call_later(_RETRY_ACCEPT_S, self._watch, listening, broker_id)
                    return
                continue  # this one connection broke before it was accepted
            accepted.setblocking(False)
            self._adopt(accepted, f"{peer[0]}:{peer[1]}", broker_id)

    def _adopt(self, accepted: socket.socket, peer: str, broker_id: int | None) -> None:
        session = ClientSession(
            self._routes,
            self.settings,
            listener=self.name,
            peer=peer,
            broker_id=broker_id,
            quotas=self._quotas,
            now_ms=self.now_ms(),
        )
        channel = ClientChannel(session, self, broker_id)
        self.channels.add(channel)
        self._observer.connection_opened(self.name)
        task = self.loop.create_task(self._attach(channel, accepted))
        self._adoptions.add(task)
        task.add_done_callback(self._adoptions.discard)

    async def _attach(self, channel: ClientChannel, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: channel, accepted)
        except OSError:
            accepted.close()
            channel.close(CloseCause.CLIENT_CLOSED)

    def closed(self, channel: ClientChannel, cause: CloseCause) -> None:
        """See `ChannelOwner`."""
        self.channels.discard(channel)
        self._observer.connection_closed(self.name, cause)
        _log.debug("connection_closed", listener=self.name, peer=channel.session.peer, cause=cause.value)

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """See `ChannelOwner`."""
        _log.info("connection_refused", **names, cause=cause.value, detail=detail)

    def drain(self) -> None:
        """Close all ports, and each connection as soon as it is owed nothing."""
        self.stop_listening_everywhere()
        for channel in list(self.channels):
            channel.drain()
