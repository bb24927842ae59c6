"""TLS handshakes of one listener: after admission, before the first Kafka bytes (hazards H17 to H19).

A connection counts from accept on. Its handshake has a deadline and waits for the handshake rate limiter; its
principal comes from the certificate, before its session sees a byte. Failures are counted by a closed list of
reasons, and their lines in the log are bounded.
"""

from __future__ import annotations

import asyncio
import ssl
from time import time
from typing import Final, Protocol

import structlog

from config.mapping_rules import MappingRules, NoRuleMatches
from gateway.auth.principals import principal_name
from gateway.net.peer_close import peer_gone
from gateway.observability.events import CloseCause, TlsFailure
from gateway.observability.logging_setup import flooded
from gateway.observability.tls_metrics import TlsMetrics
from gateway.runtime.clock import NowMs
from gateway.tls.contexts import TlsIdentity
from gateway.tls.handshake_rate import HandshakeRateLimiter
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.transport import HandshakeRefused, StreamProtocol, TlsTransport
from quotas.entities import cut_name
from quotas.ip_limits import IPV6_PREFIX_BITS, normalise

ANONYMOUS: Final = "ANONYMOUS"

_log = structlog.get_logger("gateway.tls")


class _Session(Protocol):
    user: str

    @property
    def peer(self) -> str: ...
    def expect_first_frame(self, *, now_ms: int) -> None: ...


class _Channel(StreamProtocol, Protocol):
    """A client channel, as far as its handshake is concerned."""

    @property
    def session(self) -> _Session: ...
    @property
    def ip(self) -> str: ...
    def close(self, cause: CloseCause) -> None: ...


class TlsAcceptor:
    """A `TlsUser` for all connections of a listener."""

    def __init__(
        self,
        listener: str,
        identity: TlsIdentity,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        handshake_limiter: HandshakeRateLimiter,
        buffer: ReceiveBuffer,
        steps: HandshakeSteps,
        timeout_ms: int,
        rules: MappingRules | None,
        metrics: TlsMetrics,
        all_utf8: bool = False,
        protected: bool = False,
    ) -> None:
        """Make it.

        Args:
            listener: name in metrics and logs.
            identity: gives the context of each handshake.
            loop: gives timers.
            now_ms: the clock.
            handshake_limiter: shared by all listeners.
            buffer, steps: of this loop.
            timeout_ms: from accept to the end of the handshake.
            rules: makes a user's name of a certificate's; None: certificates do not name users.
            metrics: counts.
            all_utf8: how texts in certificates are read; see `rfc2253_name`.
            protected: whether this is the protected listener.
        """
        self._protected = protected
        self._all_utf8 = all_utf8
        self._listener = listener
        self._identity = identity
        self._loop = loop
        self._now_ms = now_ms
        self._handshake_limiter = handshake_limiter
        self._buffer = buffer
        self._steps = steps
        self._timeout_ms = timeout_ms
        self._rules = rules
        self._metrics = metrics
        self._channels: dict[TlsTransport, _Channel] = {}
        self._transports: dict[_Channel, TlsTransport] = {}

    def transport_for(self, channel: _Channel) -> TlsTransport:
        """The protocol of an admitted socket, until the handshake is done and the channel gets its bytes."""
        transport = TlsTransport(
            self._identity.context,
            self,
            loop=self._loop,
            buffer=self._buffer,
            steps=self._steps,
            timeout_ms=self._timeout_ms,
        )
        self._channels[transport] = channel
        self._transports[channel] = transport
        return transport

    def forget(self, channel: _Channel) -> None:
        """The channel has ended, perhaps before its handshake has."""
        transport = self._transports.pop(channel, None)
        if transport is not None:
            transport.abort()

    @property
    def under_way(self) -> int:
        """Handshakes that have neither succeeded nor failed."""
        return len(self._channels)

    # -- TlsUser ---------------------------------------------------------------------------------------------

    def hello(self, transport: TlsTransport) -> None:
        """See `TlsUser`."""

        def begin(waited: bool) -> bool:
            if waited:
                connection = transport.get_extra_info("socket")
                if connection is None or peer_gone(connection.fileno()):
                    transport.abort()
                    return False
            transport.proceed()
            return True

        self._handshake_limiter.request(
            transport,
            begin,
            lambda: transport.refuse(TlsFailure.OVERLOADED),
            network=normalise(self._channels[transport].ip, IPV6_PREFIX_BITS),
            left_s=transport.left_s,
            protected=self._protected,
        )

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        """See `TlsUser`."""
        channel = self._channels[transport]
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        if tls.session_reused:
            _check_validity(tls)
        if self._rules is not None:
            channel.session.user = cut_name(self._principal(tls, self._rules))
        self._remove(transport)
        self._metrics.handshake_done(self._listener, tls.version() or "")
        channel.session.expect_first_frame(now_ms=self._now_ms())
        return channel

    def _principal(self, tls: ssl.SSLObject, rules: MappingRules) -> str:
        certificate = tls.getpeercert(binary_form=True)
        if certificate is None:
            return ANONYMOUS
        try:
            return principal_name(certificate, rules, all_utf8=self._all_utf8)
        except (NoRuleMatches, ValueError) as exc:
            raise HandshakeRefused(TlsFailure.NO_PRINCIPAL, str(exc)) from exc

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`."""
        self._handshake_limiter.cancel(transport)
        channel = self._remove(transport)
        self._metrics.handshake_failed(self._listener, failure)
        if not flooded("tls_failed"):
            _log.info(
                "tls_failed",
                listener=self._listener,
                peer=channel.session.peer,
                reason=failure.value,
                detail=detail,
            )
        channel.close(CloseCause.TLS_FAILED)

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`; the channel ends as its client's."""
        _log.debug("tls_broken", listener=self._listener, reason=failure.value, detail=detail)

    def _remove(self, transport: TlsTransport) -> _Channel:
        channel = self._channels.pop(transport)
        self._transports.pop(channel, None)
        return channel


def _check_validity(tls: ssl.SSLObject) -> None:
    """Of the certificate of a resumed session, if there is one: OpenSSL looked at it when the session was made."""
    shown = tls.getpeercert()
    if shown and time() > ssl.cert_time_to_seconds(str(shown["notAfter"])):
        raise HandshakeRefused(TlsFailure.CERTIFICATE_EXPIRED, "of a resumed session")
