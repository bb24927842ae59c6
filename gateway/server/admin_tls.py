"""TLS of the admin port: as on a listener, with the same limit of handshakes per second and the same metrics."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

import structlog
from aiohttp.web_protocol import RequestHandler

from config.mapping_rules import MappingRules, NoRuleMatches
from config.sections.listeners import ListenerTls
from gateway.auth.principals import principal_name
from gateway.observability.events import TlsFailure
from gateway.observability.logging_setup import flooded
from gateway.observability.tls_metrics import TlsMetrics
from gateway.tls.contexts import TlsIdentity
from gateway.tls.handshake_rate import HandshakeRateLimiter
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.resumed import has_expired
from gateway.tls.transport import HandshakeRefused, StreamProtocol, TlsTransport
from quotas.ip_limits import IPV6_PREFIX_BITS, normalise

ADMIN_PORT: Final = "admin port"
"""The admin port's name among the listeners in metrics and logs; no listener can have it."""

_log = structlog.get_logger("gateway.tls")


class _Handler:
    """An HTTP handler whose connection ends in a later turn of the loop than it began.

    aiohttp begins to serve in a task, and that task fails if the connection ends before its first step. With TLS both
    can happen in one turn, since a peer may reset the connection while the handshake is computed.
    """

    def __init__(self, handler: RequestHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._loop = loop
        self.connection_made = handler.connection_made
        self.data_received = handler.data_received
        self.eof_received = handler.eof_received
        self.pause_writing = handler.pause_writing
        self.resume_writing = handler.resume_writing

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._loop.call_soon(self._handler.connection_lost, exc)


class AdminTls:
    """A `TlsUser` for all connections of the admin port."""

    def __init__(
        self,
        section: ListenerTls,
        identity: TlsIdentity,
        *,
        loop: asyncio.AbstractEventLoop,
        handshake_limiter: HandshakeRateLimiter,
        buffer: ReceiveBuffer,
        steps: HandshakeSteps,
        metrics: TlsMetrics,
    ) -> None:
        """Make it.

        Args:
            section: TLS of the admin port, from the configuration.
            identity: gives the context of each handshake.
            loop: for timers.
            handshake_limiter: shared with all listeners.
            buffer, steps: of this loop.
            metrics: count handshakes.
        """
        self._identity = identity
        self._rules = MappingRules.parse(section.principal_mapping_rules)
        self._all_utf8 = section.certificate_texts == "utf8"
        self._timeout_ms = section.handshake_timeout_ms
        self._loop = loop
        self._handshake_limiter = handshake_limiter
        self._buffer, self._steps = buffer, steps
        self._metrics = metrics
        self._handlers: dict[TlsTransport, tuple[RequestHandler, str]] = {}
        self._transports: dict[RequestHandler, TlsTransport] = {}

    def transport_for(self, handler: RequestHandler, ip: str) -> TlsTransport:
        """The protocol of an accepted socket until the handshake is done; then the handler gets the bytes."""
        transport = TlsTransport(
            self._identity.context,
            self,
            loop=self._loop,
            buffer=self._buffer,
            steps=self._steps,
            timeout_ms=self._timeout_ms,
        )
        self._handlers[transport] = handler, ip
        self._transports[handler] = transport
        return transport

    def under_way(self, handler: RequestHandler) -> TlsTransport | None:
        """The handshake of a connection; None: it is done."""
        return self._transports.get(handler)

    def stop(self) -> None:
        """End the handshakes that are under way."""
        for transport in list(self._handlers):
            transport.abort()

    def name_of(self, tls: ssl.SSLObject) -> str | None:
        """The name in a client's certificate; None: there is no certificate, or no mapping rule matches."""
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            return None
        try:
            return principal_name(certificate, self._rules, all_utf8=self._all_utf8)
        except (NoRuleMatches, ValueError):
            return None

    # -- TlsUser ---------------------------------------------------------------------------------------------

    def hello(self, transport: TlsTransport, hello: bytes) -> None:
        """See `TlsUser`."""

        def begin(_waited: bool) -> bool:
            transport.proceed()
            return True

        self._handshake_limiter.request(
            transport,
            begin,
            lambda: transport.refuse(TlsFailure.OVERLOADED),
            network=normalise(self._handlers[transport][1], IPV6_PREFIX_BITS),
            left_s=transport.left_s,
        )

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        """See `TlsUser`."""
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        if has_expired(tls):
            raise HandshakeRefused(TlsFailure.CERTIFICATE_EXPIRED, "of a resumed session")
        handler, _ = self._remove(transport)
        self._metrics.handshake_done(ADMIN_PORT, tls.version() or "")
        return _Handler(handler, self._loop)

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`."""
        self._handshake_limiter.cancel(transport)
        _, ip = self._remove(transport)
        self._metrics.handshake_failed(ADMIN_PORT, failure)
        if not flooded("tls_failed"):
            _log.info("tls_failed", listener=ADMIN_PORT, peer=ip, reason=failure.value, detail=detail)

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`: an established connection breaks."""
        _log.debug("tls_broken", listener=ADMIN_PORT, reason=failure.value, detail=detail)

    def _remove(self, transport: TlsTransport) -> tuple[RequestHandler, str]:
        handler, ip = self._handlers.pop(transport)
        self._transports.pop(handler, None)
        return handler, ip
