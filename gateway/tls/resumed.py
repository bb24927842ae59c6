"""Looks at the certificate of a client whose session of TLS is resumed."""

from __future__ import annotations

import ssl
from time import time


def has_expired(tls: ssl.SSLObject) -> bool:
    """Whether the certificate of a resumed session has, if there is one.

    OpenSSL looked at it when the session was made.
    """
    shown = tls.getpeercert() if tls.session_reused else None
    return shown is not None and bool(shown) and time() > ssl.cert_time_to_seconds(str(shown["notAfter"]))
