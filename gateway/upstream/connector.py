"""Connects one client channel to one broker.

There is at most one broker connection per client connection. Clients that share one would share its order, identity
and end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, Protocol, cast

from gateway.observability.events import CloseCause
from gateway.runtime.eager import Eager
from gateway.runtime.lateness import LATE_MS
from gateway.upstream.proxy_header import Endpoints, ProxyHeaderSender
from gateway.upstream.resolver import Resolver
from gateway.upstream.tls import BrokerNotTrusted, BrokerTls
from gateway.upstream.topology import Address, ClusterMap

_LOOK_S: Final = 0.01
"""The shortest interval between two checks of attempts: thousands may be due one after the other."""

_UNKNOWN_BROKER: Final = CloseCause.UNKNOWN_BROKER
_REFUSED: Final = (OSError, ValueError, OverflowError)
"""Errors of an attempt. An invalid host or port from the cluster causes a ValueError or an OverflowError."""


class UpstreamUser(Protocol):
    """The client channel, as its broker connection uses it.

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
        """The broker reads more slowly than we send, or keeps up again."""


class UpstreamChannel:
    """An `asyncio.Protocol`, by its methods, that passes the transport's events to the client channel."""

    __slots__ = ("_user", "data_received")

    def __init__(self, user: UpstreamUser) -> None:
        self._user = user
        # Saves a call for each received chunk.
        self.data_received = user.upstream_received

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The transport is ready."""
        # uvloop's transports have the methods without the base class.
        self._user.upstream_connected(cast("asyncio.Transport", transport))

    def eof_received(self) -> bool:
        """The broker sends nothing more: the transport closes itself, and calls `connection_lost`."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; either side may have ended it."""
        self._user.upstream_lost()

    def pause_writing(self) -> None:
        """Back pressure begins."""
        self._user.upstream_writable(False)

    def resume_writing(self) -> None:
        """Back pressure ends."""
        self._user.upstream_writable(True)


class Attempt(Eager):
    """An attempt to connect to a broker; see `Connector.begin`.

    Attributes:
        due_s: when it times out, by the loop's clock.
        late: it has timed out.
        reason: why it failed, for people: the last address and its error.
    """

    __slots__ = ("due_s", "late", "reason")

    def __init__(self, due_s: float) -> None:
        super().__init__()
        self.due_s = due_s
        self.late = False
        self.reason = ""


class Connector:
    """Opens connections to brokers."""

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
            connect_timeout_ms: of the whole attempt, including names; shorter than clients wait (hazard D02).
            tls: TLS with the brokers; None: without.
            header_sender: sends the PROXY header before anything else; None: without.
        """
        self._header_sender = header_sender
        self._tls = tls
        self._cluster = cluster
        self._resolver = resolver
        self._timeout_s = connect_timeout_ms / 1000
        self._attempts: dict[Attempt, None] = {}
        self._watching = False  # whether a timer looks at them
        self._turn = itertools.count()

    @property
    def sends_header(self) -> bool:
        """Whether `UpstreamUser.endpoints` is needed."""
        return self._header_sender is not None

    def begin(self, user: UpstreamUser, broker_id: int | None, *, spread: bool = False) -> Attempt:
        """Begin to connect to a broker; `user` is called with the result, but not within this call.

        Args:
            user: gets the connection.
            broker_id: the broker; None: any bootstrap address.
            spread: with None, try the present brokers before the bootstrap addresses.

        Returns:
            The attempt; if it is cancelled, `user` is not called.
        """
        loop = asyncio.get_running_loop()
        attempt = Attempt(loop.time() + self._timeout_s)
        # All have the same timeout, so attempts are due in order, and one timer is enough.
        self._attempts[attempt] = None
        if not self._watching:
            self._watch(loop, attempt.due_s)
        attempt.run(self._connect(attempt, user, self.addresses(broker_id, spread=spread)))
        return attempt

    async def connect(self, user: UpstreamUser, broker_id: int | None) -> Attempt:
        """`begin`, and wait until `user` has been called."""
        attempt = self.begin(user, broker_id)
        await attempt.over()
        return attempt

    def _watch(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._watching = True
        loop.call_at(due_s, self._look, loop, due_s)

    def _look(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._watching = False
        now_s = loop.time()
        stood_still = (now_s - due_s) * 1000 >= LATE_MS
        for attempt in self._attempts:  # a cancelled attempt is removed in a later turn
            if stood_still:
                attempt.due_s = now_s + self._timeout_s
            if attempt.due_s > now_s:
                self._watch(loop, max(attempt.due_s, now_s + _LOOK_S))
                return
            attempt.late = True
            attempt.cancel()

    async def _connect(self, attempt: Attempt, user: UpstreamUser, addresses: Sequence[Address]) -> None:
        """Try each address once; the last error counts (hazard D01: no retries of our own)."""
        cause = _UNKNOWN_BROKER
        try:
            for host, port in addresses:
                try:
                    for numeric in self._resolver.known(host, port) or await self._resolver.resolve(
                        host, port
                    ):
                        try:
                            await self._open(user, host, numeric, port)
                            return
                        except _REFUSED as exc:
                            cause, attempt.reason = _cause_of(exc), _reason_of(exc, host, port)
                except _REFUSED as exc:
                    cause, attempt.reason = _cause_of(exc), _reason_of(exc, host, port)
        except asyncio.CancelledError:
            if not attempt.late:
                raise
            cause = CloseCause.UPSTREAM_TIMEOUT
            attempt.reason = f"{host}:{port}: no answer within {self._timeout_s:g} s"
        finally:
            del self._attempts[attempt]
        asyncio.get_running_loop().call_soon(user.upstream_failed, cause)

    async def _open(self, user: UpstreamUser, host: str, numeric: str, port: int) -> None:
        loop, tls = asyncio.get_running_loop(), self._tls
        channel = UpstreamChannel(user)
        handshake = None if tls is None else tls.handshake(channel, host)
        protocol = cast("asyncio.BaseProtocol", channel if handshake is None else handshake.transport)
        if self._header_sender is None:
            await loop.create_connection(lambda: protocol, numeric, port)
        else:
            sock = await self._header_sender.connect(numeric, port, user.endpoints)
            await loop.create_connection(lambda: protocol, sock=sock)
        if handshake is not None and tls is not None:
            try:
                await handshake.done()
            except BrokerNotTrusted as exc:
                tls.failed(host, exc)
                raise
            tls.trusted(host)

    def addresses(self, broker_id: int | None, *, spread: bool = False) -> list[Address]:
        """The addresses to try: the broker's, or all bootstrap addresses, each time beginning with the next.

        With `spread` the present brokers come before the bootstrap addresses, also beginning with the next.
        """
        if broker_id is not None:
            address = self._cluster.address_of(broker_id)
            return [] if address is None else [address]
        bootstrap = self._cluster.bootstrap
        turn = next(self._turn)
        first = turn % len(bootstrap)
        found = [*bootstrap[first:], *bootstrap[:first]]
        if spread and (present := [*self._cluster.present.values()]):
            first = turn % len(present)
            found = [*present[first:], *present[:first], *(each for each in found if each not in present)]
        return found


def _reason_of(refusal: Exception, host: str, port: int) -> str:
    text = refusal.strerror if isinstance(refusal, OSError) else None
    return f"{host}:{port}: {text or refusal}"


def _cause_of(refusal: Exception) -> CloseCause:
    trusted = not isinstance(refusal, BrokerNotTrusted)
    return CloseCause.UPSTREAM_REFUSED if trusted else CloseCause.UPSTREAM_TLS
