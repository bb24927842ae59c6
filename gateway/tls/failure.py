"""How handshakes end: why TLS did not come about, a closed list and the label of metrics, and who is told."""

from __future__ import annotations

import asyncio
import ssl
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from gateway.tls.transport import TlsTransport


class TlsFailure(StrEnum):
    """What a handshake failed of."""

    TIMEOUT = "timeout"  # silent, or too slow
    CLOSED = "closed"  # the peer went away, or we did: a drain
    NOT_TLS = "not_tls"  # Kafka's own frames, HTTP, SSLv2, junk
    PROTOCOL_VERSION = "protocol_version"
    NO_SHARED_CIPHER = "no_shared_cipher"
    NO_CERTIFICATE = "no_certificate"  # one was required
    CERTIFICATE_EXPIRED = "certificate_expired"  # or not valid yet
    CERTIFICATE_REVOKED = "certificate_revoked"
    CERTIFICATE_PURPOSE = "certificate_purpose"  # not made for this side (extended key usage)
    CERTIFICATE_HOST = "certificate_host"  # of another host
    CERTIFICATE_UNTRUSTED = "certificate_untrusted"  # from nobody we trust, or otherwise not valid
    NO_PRINCIPAL = "no_principal"  # no mapping rule fits the certificate's name
    REJECTED_BY_PEER = "rejected_by_peer"  # it sent an alert
    OVERLOADED = "overloaded"  # too many handshakes wait already
    PROTOCOL = "protocol"  # anything else


# X509_V_ERR_*, as OpenSSL numbers them.
_VERIFY: Final = {
    9: TlsFailure.CERTIFICATE_EXPIRED,
    10: TlsFailure.CERTIFICATE_EXPIRED,
    23: TlsFailure.CERTIFICATE_REVOKED,
    26: TlsFailure.CERTIFICATE_PURPOSE,
    62: TlsFailure.CERTIFICATE_HOST,
    64: TlsFailure.CERTIFICATE_HOST,
}

_REASONS: Final = {
    "HTTP_REQUEST": TlsFailure.NOT_TLS,
    "HTTPS_PROXY_REQUEST": TlsFailure.NOT_TLS,
    "WRONG_VERSION_NUMBER": TlsFailure.NOT_TLS,
    "UNKNOWN_PROTOCOL": TlsFailure.NOT_TLS,
    "UNSUPPORTED_PROTOCOL": TlsFailure.PROTOCOL_VERSION,
    "VERSION_TOO_LOW": TlsFailure.PROTOCOL_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": TlsFailure.PROTOCOL_VERSION,
    "NO_SHARED_CIPHER": TlsFailure.NO_SHARED_CIPHER,
    "NO_SUITABLE_SIGNATURE_ALGORITHM": TlsFailure.NO_SHARED_CIPHER,
    "NO_SUITABLE_KEY_SHARE": TlsFailure.NO_SHARED_CIPHER,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsFailure.NO_CERTIFICATE,
}


def failure_of(error: ssl.SSLError) -> TlsFailure:
    """Which of the list an error of the `ssl` module is."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, TlsFailure.CERTIFICATE_UNTRUSTED)
    if isinstance(error, ssl.SSLEOFError):
        return TlsFailure.CLOSED
    reason = error.reason or ""
    known = _REASONS.get(reason)
    if known is not None:
        return known
    return TlsFailure.REJECTED_BY_PEER if "ALERT" in reason else TlsFailure.PROTOCOL


class HandshakeRefused(Exception):
    """Whoever this is, is not let in.

    Attributes:
        failure: for the metric.
        detail: for the log.
    """

    def __init__(self, failure: TlsFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail


class TlsUser(Protocol):
    """Who is told how a handshake ended: exactly one of `secured` and `failed` is called, once."""

    def hello(self, transport: TlsTransport) -> None:
        """The client's first bytes are here: call `proceed`, at once or when it is its turn."""

    def secured(self, transport: TlsTransport) -> asyncio.Protocol:
        """The handshake is done; returns who gets the bytes. May raise `HandshakeRefused`."""

    def failed(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """The handshake failed; the socket is closed."""

    def broken(self, transport: TlsTransport, failure: TlsFailure, detail: str) -> None:
        """TLS broke after the handshake; in 1.3 also: the server has not liked the client's certificate."""
