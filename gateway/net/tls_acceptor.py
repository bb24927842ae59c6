"""TLS handshakes of one listener: after admission, before the first Kafka bytes (hazards H17 to H19).

A connection counts from accept on. Its handshake has a deadline and waits for the handshake rate limiter. Its
principal comes from the certificate, before its session gets a byte. Failures are counted by a fixed list of reasons,
and their log lines are bounded.

The name in a client's hello selects its certificate and, if clients name brokers, its broker. A wrong name ends the
connection before the handshake takes a place in the queue.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Final, Protocol

import structlog

from config.mapping_rules import MappingRules, NoRuleMatches
from config.server_names import BOOTSTRAP
from gateway.auth.principals import principal_name
from gateway.net.peer_close import peer_gone
from gateway.observability.events import CloseCause, TlsFailure
from gateway.observability.logging_setup import flooded
from gateway.observability.tls_metrics import TlsMetrics
from gateway.runtime.clock import NowMs
from gateway.tls.contexts import Certificates
from gateway.tls.handshake_rate import HandshakeRateLimiter
from gateway.tls.handshake_steps import HandshakeSteps
from gateway.tls.records import ReceiveBuffer
from gateway.tls.resumed import has_expired
from gateway.tls.server_name import MalformedHello, normalised, server_name
from gateway.tls.transport import HandshakeRefused, StreamProtocol, TlsTransport
from gateway.upstream.topology import NamedBrokers
from quotas.entities import cut_name
from quotas.ip_limits import IPV6_PREFIX_BITS, normalise

ANONYMOUS: Final = "ANONYMOUS"

# Alerts (RFC 8446, 6).
_DECODE_ERROR: Final = 50
_MISSING_EXTENSION: Final = 109
_UNRECOGNIZED_NAME: Final = 112

_NEW_BROKER_S: Final = 4.0
"""How long a hello waits for a broker to be known: discovery asks every two seconds at most."""
_LOOK_AGAIN_S: Final = 0.2
_MOST_LOOKING: Final = 200
"""The most hellos that wait for a broker. Others are refused at once."""
_MOST_LOOKING_OF_NETWORK: Final = 50
"""The most of them from one address (IPv6: a /64), so that one client cannot take all places."""
_LOGGED_BYTES: Final = 100  # of a name, which may contain anything

_CAUSES: Final = {
    TlsFailure.NO_SERVER_NAME: CloseCause.WRONG_SERVER_NAME,
    TlsFailure.WRONG_SERVER_NAME: CloseCause.WRONG_SERVER_NAME,
    TlsFailure.UNKNOWN_BROKER: CloseCause.UNKNOWN_BROKER,
}

_log = structlog.get_logger("gateway.tls")


def _left(transport: TlsTransport) -> bool:
    """Whether the client of a handshake that waited has left. Then the handshake ends."""
    connection = transport.get_extra_info("socket")
    if connection is not None and not peer_gone(connection.fileno()):
        return False
    transport.abort()
    return True


class _Session(Protocol):
    user: str

    @property
    def peer(self) -> str: ...
    def expect_first_frame(self, *, now_ms: int) -> None: ...


class _Channel(StreamProtocol, Protocol):
    """The part of a client channel that its handshake needs."""

    @property
    def session(self) -> _Session: ...
    @property
    def ip(self) -> str: ...
    def close(self, cause: CloseCause) -> None: ...
    def lead_to(self, broker_id: int | None) -> None: ...


class TlsAcceptor:
    """A `TlsUser` for all connections of a listener."""

    def __init__(
        self,
        listener: str,
        certificates: Certificates,
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
        brokers: NamedBrokers | None = None,
    ) -> None:
        """Create an acceptor.

        Args:
            listener: name in metrics and logs.
            certificates: provide the context of each handshake.
            loop: provides timers.
            now_ms: the clock.
            handshake_limiter: shared by all listeners.
            buffer, steps: of this loop.
            timeout_ms: from accept to the end of the handshake.
            rules: map a certificate's name to a user name; None: certificates do not name users.
            metrics: counts handshakes and failures.
            all_utf8: how texts in certificates are decoded; see `rfc2253_name`.
            protected: whether this is the protected listener.
            brokers: the brokers that clients name; None: each broker has a port.
        """
        self._protected = protected
        self._all_utf8 = all_utf8
        self._listener = listener
        self._certificates = certificates
        self._brokers = brokers
        self._looks_at_names = brokers is not None or len(certificates.identities) > 1
        self._loop = loop
        self._now_ms = now_ms
        self._handshake_limiter = handshake_limiter
        self._buffer = buffer
        self._steps = steps
        self._timeout_ms = timeout_ms
        self._rules = rules
        self._metrics = metrics
        self._channels: dict[TlsTransport, _Channel] = {}
        self._looking: Counter[str] = Counter()  # hellos that wait for a broker to be known, by network
        self._transports: dict[_Channel, TlsTransport] = {}

    def transport_for(self, channel: _Channel) -> TlsTransport:
        """The protocol of an admitted socket. After the handshake the channel gets the decrypted bytes."""
        transport = TlsTransport(
            self._certificates.context,
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
        """Forget a channel that has ended, perhaps during its handshake."""
        transport = self._transports.pop(channel, None)
        if transport is not None:
            transport.abort()

    @property
    def under_way(self) -> int:
        """Number of handshakes that have neither succeeded nor failed."""
        return len(self._channels)

    # -- TlsUser ---------------------------------------------------------------------------------------------

    def hello(self, transport: TlsTransport, hello: bytes) -> None:
        """See `TlsUser`."""
        self._take_hello(transport, hello, self._loop.time() + _NEW_BROKER_S)

    def _take_hello(self, transport: TlsTransport, hello: bytes, until_s: float) -> None:
        if self._looks_at_names and not self._follow_name(transport, hello, until_s):
            return

        def begin(waited: bool) -> bool:
            if waited and _left(transport):
                return False
            transport.proceed()
            return True

        self._handshake_limiter.request(
            transport,
            begin,
            lambda: transport.refuse(TlsFailure.OVERLOADED),
            network=self._network(transport),
            left_s=transport.left_s,
            protected=self._protected,
        )

    def _network(self, transport: TlsTransport) -> str:
        return normalise(self._channels[transport].ip, IPV6_PREFIX_BITS)

    def _waits(self, network: str) -> bool:
        """Take a place among the hellos that wait, if there is one for this network."""
        if self._looking.total() >= _MOST_LOOKING or self._looking[network] >= _MOST_LOOKING_OF_NETWORK:
            return False
        self._looking[network] += 1
        return True

    def _take_again(self, transport: TlsTransport, hello: bytes, until_s: float, network: str) -> None:
        self._looking -= Counter((network,))  # forgets networks without any
        if transport in self._channels and not _left(transport):
            self._take_hello(transport, hello, until_s)

    def _follow_name(self, transport: TlsTransport, hello: bytes, until_s: float) -> bool:
        """Select broker and certificate by the name in the hello. Returns whether the handshake may begin."""
        try:
            sent = server_name(hello)
        except MalformedHello:
            transport.refuse(TlsFailure.PROTOCOL, "malformed hello", alert=_DECODE_ERROR)
            return False
        name = None if sent is None else normalised(sent)
        brokers = self._brokers
        if brokers is not None:
            node = self._node_named(transport, brokers, name, sent)
            if node is None:
                return False
            if node != BOOTSTRAP and brokers.cluster.address_of(node) is None:
                brokers.look_soon()
                # It may be new, and known to another worker, which has named it to the client.
                network = self._network(transport)
                if self._loop.time() < until_s and self._waits(network):
                    self._loop.call_later(_LOOK_AGAIN_S, self._take_again, transport, hello, until_s, network)
                else:
                    # Without an alert: clients would take it for an error that a retry cannot fix.
                    transport.refuse(TlsFailure.UNKNOWN_BROKER, f"node {node}")
                return False
            self._channels[transport].lead_to(None if node == BOOTSTRAP else node)
        identity = None if name is None else self._certificates.of(name)
        if identity is not None:
            transport.use(identity.context)
        return True

    def _node_named(
        self, transport: TlsTransport, brokers: NamedBrokers, name: str | None, sent: bytes | None
    ) -> int | None:
        """The node that a hello names; None: it names none of this listener, and is refused."""
        if sent is None:
            transport.refuse(TlsFailure.NO_SERVER_NAME, alert=_MISSING_EXTENSION)
            return None
        node = None if name is None else brokers.names.node_of(name)
        if node is None:
            detail = repr(sent[:_LOGGED_BYTES])[2:-1]
            transport.refuse(TlsFailure.WRONG_SERVER_NAME, detail, alert=_UNRECOGNIZED_NAME)
        return node

    def secured(self, transport: TlsTransport) -> StreamProtocol:
        """See `TlsUser`."""
        channel = self._channels[transport]
        tls: ssl.SSLObject = transport.get_extra_info("ssl_object")
        if has_expired(tls):
            raise HandshakeRefused(TlsFailure.CERTIFICATE_EXPIRED, "of a resumed session")
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
        channel.close(_CAUSES.get(failure, CloseCause.TLS_FAILED))

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """See `TlsUser`. The channel ends as if its client had closed it."""
        _log.debug("tls_broken", listener=self._listener, reason=failure.value, detail=detail)

    def _remove(self, transport: TlsTransport) -> _Channel:
        channel = self._channels.pop(transport)
        self._transports.pop(channel, None)
        return channel
