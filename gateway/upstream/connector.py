"""The connection from one client channel to one broker, and how it is made.

There is at most one per client connection. Clients that shared one would share its order, identity and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Sequence
from typing import Protocol, cast

from gateway.observability.events import CloseCause
from gateway.runtime.lateness import LATE_MS
from gateway.upstream.keepalive import watch_connected
from gateway.upstream.proxy_header import Endpoints, ProxyHeaderSender
from gateway.upstream.resolver import Resolver
from gateway.upstream.tls import BrokerNotTrusted, BrokerTls
from gateway.upstream.topology import Address, ClusterMap


class UpstreamUser(Protocol):
    """The client channel, as far as its upstream is concerned.

    Attributes:
        endpoints: source and destination for the PROXY header; None: the connection is the gateway's own.
    """

    @property
    def endpoints(self) -> Endpoints | None: ...

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        """The broker accepted the connection."""

    def upstream_failed(self, cause: CloseCause) -> None:
        """No broker could be reached."""

    def upstream_received(self, data: bytes) -> None:
        """Bytes from the broker."""

    def upstream_lost(self) -> None:
        """The broker closed the connection, or it broke."""

    def upstream_writable(self, writable: bool) -> None:
        """The broker takes less than we have for it, or takes it again."""


class UpstreamChannel:
    """Passes what the transport says to the client channel: an `asyncio.Protocol`, by its methods."""

    __slots__ = ("_user", "data_received")

    def __init__(self, user: UpstreamUser) -> None:
        self._user = user
        # One call less for each received chunk.
        self.data_received = user.upstream_received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is ready."""
        # uvloop's transports have the methods without the base class.
        self._user.upstream_connected(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        """The leg is gone, whichever side ended it."""
        self._user.upstream_lost()

    def pause_writing(self) -> None:
        """Back pressure begins."""
        self._user.upstream_writable(False)

    def resume_writing(self) -> None:
        """Back pressure ends."""
        self._user.upstream_writable(True)


class _Deadline:
    """Cancels the task that makes it when its time is over: `asyncio.timeout` at a third of the cost.

    Attributes:
        passed: it is over.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timeout_ms = timeout_ms
        self.passed = False
        self._arm()

    def _arm(self) -> None:
        self._due_s = self._loop.time() + self._timeout_ms / 1000
        self._timer = self._loop.call_at(self._due_s, self._pass)

    def _pass(self) -> None:
        if (self._loop.time() - self._due_s) * 1000 >= LATE_MS:
            self._arm()
        elif self._task is not None:
            self.passed = True
            self._task.cancel()

    def lift(self) -> None:
        """The task is done."""
        self._timer.cancel()


class Connector:
    """Opens upstream legs."""

    def __init__(
        self,
        cluster: ClusterMap,
        resolver: Resolver,
        *,
        connect_timeout_ms: int,
        tls: BrokerTls | None = None,
        header_sender: ProxyHeaderSender | None = None,
    ) -> None:
        """Make a connector.

        Args:
            cluster: knows the bootstrap addresses and the brokers.
            resolver: turns names into addresses.
            connect_timeout_ms: for the whole attempt, names and all; shorter than clients wait (hazard D02).
            tls: TLS with the brokers; None: without.
            header_sender: the PROXY header in front of everything; None: without.
        """
        self._header_sender = header_sender
        self._tls = tls
        self._cluster = cluster
        self._resolver = resolver
        self._connect_timeout_ms = connect_timeout_ms
        self._turn = itertools.count()

    @property
    def sends_header(self) -> bool:
        """Whether `UpstreamUser.endpoints` is needed."""
        return self._header_sender is not None

    async def connect(self, user: UpstreamUser, broker_id: int | None) -> None:
        """Connect to a broker, or for None to any bootstrap address; tell `user` how it went."""
        addresses = self.addresses(broker_id)
        if not addresses:
            user.upstream_failed(CloseCause.UNKNOWN_BROKER)
            return
        deadline = _Deadline(self._connect_timeout_ms)
        try:
            await self._connect_first(user, addresses)
        except asyncio.CancelledError:
            if not deadline.passed:
                raise
            user.upstream_failed(CloseCause.UPSTREAM_TIMEOUT)
        except BrokerNotTrusted:
            user.upstream_failed(CloseCause.UPSTREAM_TLS)
        # A host that is no host name is a ValueError, a port that is no port an OverflowError: the cluster's words.
        except (OSError, ValueError, OverflowError):
            user.upstream_failed(CloseCause.UPSTREAM_REFUSED)
        finally:
            deadline.lift()

    async def _connect_first(self, user: UpstreamUser, addresses: Sequence[Address]) -> None:
        """One attempt per address; the last one's error counts (hazard D01: no retries of our own)."""
        failure: OSError | None = None
        try:
            for host, port in addresses:
                try:
                    for numeric in await self._resolver.resolve(host, port):
                        try:
                            await self._open(user, host, numeric, port)
                            return
                        except OSError as exc:
                            failure = exc
                except OSError as exc:
                    failure = exc
            raise failure or OSError("no address")
        finally:
            # Its traceback has this frame, and this frame the client's channel: a circle for the collector.
            del failure

    async def _open(self, user: UpstreamUser, host: str, numeric: str, port: int) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls
        channel = cast("asyncio.Protocol", UpstreamChannel(user))
        handshake = None if tls is None else tls.handshake(channel, host)
        protocol: asyncio.BaseProtocol = channel if handshake is None else handshake.transport
        if self._header_sender is None:
            transport, _ = await loop.create_connection(lambda: protocol, numeric, port)
        else:
            sock = await self._header_sender.connect(numeric, port, user.endpoints)
            transport, _ = await loop.create_connection(lambda: protocol, sock=sock)
        connection = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it may be gone again already
            watch_connected(connection.fileno(), connection.family)
        if handshake is not None and tls is not None:
            try:
                await handshake.done()
            except BrokerNotTrusted as exc:
                tls.failed(host, exc)
                raise

    def addresses(self, broker_id: int | None) -> list[Address]:
        """Where to connect: the broker's address, or the bootstrap addresses, each time beginning with the next."""
        if broker_id is not None:
            address = self._cluster.address_of(broker_id)
            return [] if address is None else [address]
        bootstrap = self._cluster.bootstrap
        first = next(self._turn) % len(bootstrap)
        return [*bootstrap[first:], *bootstrap[:first]]
