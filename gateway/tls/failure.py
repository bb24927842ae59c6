"""Which `TlsFailure` an error of the `ssl` module is, and the exception that refuses a handshake."""

from __future__ import annotations

import ssl
from typing import Final

from gateway.observability.events import TlsFailure

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
    """The handshake is complete, but its peer is refused.

    Attributes:
        failure: for the metric.
        detail: for the log.
    """

    def __init__(self, failure: TlsFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure = failure
        self.detail = detail
