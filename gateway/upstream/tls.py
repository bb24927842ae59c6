"""TLS to brokers: sends nothing to one whose certificate or name is wrong (hazard D17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from gateway.observability.events import TlsFailure
from gateway.observability.logging_setup import flooded
from gateway.observability.tls_metrics import TlsMetrics
from gateway.tls.contexts import TlsIdentity
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.transport import StreamProtocol, TlsTransport

_MOST_REASONS: Final = 1_000

_log = structlog.get_logger("gateway.tls")


class BrokerNotTrusted(OSError):
    """TLS with a broker failed.

    Attributes:
        failure: its kind.
    """

    def __init__(self, failure: TlsFailure, detail: str) -> None:
        super().__init__(f"{failure.value}: {detail}" if detail else failure.value)
        self.failure = failure


class BrokerTls:
    """The TLS handshakes of one upstream."""

    def __init__(
        self,
        upstream: str,
        identity: TlsIdentity,
        *,
        server_name: str | None,
        buffer: ReceiveBuffer,
        steps: HandshakeSteps,
        metrics: TlsMetrics,
    ) -> None:
        """Make it.

        Args:
            upstream: name in metrics and logs.
            identity: gives the context of each handshake.
            server_name: expected of every broker; None: the host of the connection.
            buffer, steps: of this loop.
            metrics: count failures.
        """
        self._upstream = upstream
        self._identity = identity
        self._server_name = server_name
        self._buffer = buffer
        self._steps = steps
        self._metrics = metrics
        self._reasons: dict[str, str] = {}  # why the last handshake with a host failed, as logged

    def handshake(self, user: StreamProtocol, host: str) -> BrokerHandshake:
        """A new handshake; its transport is the protocol of the connecting socket.

        Args:
            user: gets the connection once the broker's certificate and name are verified.
            host: as it was configured, or given by the cluster.
        """
        name = self._server_name or host.rstrip(".")
        return BrokerHandshake(
            user, self._identity, name, self._buffer, self._steps, on_broken=partial(self._broken, host)
        )

    def trusted(self, host: str) -> None:
        """A handshake has succeeded: the next failure is logged again."""
        self._reasons.pop(host, None)

    def failed(self, host: str, error: BrokerNotTrusted) -> None:
        """Count a failure, and log it if the reason is new: unreachable brokers are tried all the time."""
        self._metrics.upstream_failed(self._upstream, error.failure)
        reason = str(error)
        if self._reasons.get(host) == reason:
            return
        if len(self._reasons) >= _MOST_REASONS:
            self._reasons.clear()
        self._reasons[host] = reason
        self._log(host, error)

    def _broken(self, host: str, error: BrokerNotTrusted) -> None:
        self._metrics.upstream_failed(self._upstream, error.failure)
        self._log(host, error)

    def _log(self, host: str, error: BrokerNotTrusted) -> None:
        if not flooded("upstream_tls_failed"):
            _log.warning("upstream_tls_failed", upstream=self._upstream, broker=host, error=str(error))


class BrokerHandshake:
    """One handshake with one broker; a `TlsUser`.

    Attributes:
        transport: the protocol of the socket.
    """

    def __init__(
        self,
        user: StreamProtocol,
        identity: TlsIdentity,
        server_name: str,
        buffer: ReceiveBuffer,
        steps: HandshakeSteps,
        *,
        on_broken: Callable[[BrokerNotTrusted], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._user = user
        self._on_broken = on_broken
        self._done: asyncio.Future[None] = loop.create_future()
        self.transport = TlsTransport(
            identity.context,
            self,
            loop=loop,
            buffer=buffer,
            steps=steps,
            timeout_ms=None,
            server_name=server_name,
        )

    async def done(self) -> None:
        """Wait for the handshake; after it the user has its connection.

        Raises:
            BrokerNotTrusted: it failed.
        """
        try:
            await self._done
        except asyncio.CancelledError:
            self.transport.abort()
            raise

    def hello(self, transport: TlsTransport, hello: bytes) -> None:
        """See `TlsUser`; only servers need it."""

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        """See `TlsUser`."""
        if not self._done.done():
            self._done.set_result(None)
        return self._user

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`."""
        if not self._done.done():
            self._done.set_exception(BrokerNotTrusted(failure, detail))

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`; the connection ends as if the broker had closed it."""
        self._on_broken(BrokerNotTrusted(failure, detail))
