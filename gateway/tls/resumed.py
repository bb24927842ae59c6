"""Checks the certificate of a client whose TLS session is resumed."""

from __future__ import annotations

import ssl
from time import time


def has_expired(tls: ssl.SSLObject) -> bool:
    """Whether the client's certificate, if any, of a resumed session has expired.

    OpenSSL checks it only when the session is created.
    """
    shown = tls.getpeercert() if tls.session_reused else None
    return shown is not None and bool(shown) and time() > ssl.cert_time_to_seconds(str(shown["notAfter"]))
