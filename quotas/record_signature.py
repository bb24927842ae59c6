"""The signature of a record in a topic of the gateway: HMAC-SHA-256 under a shared secret. Pure.

The signature is in a header. It covers the topic, the key, the value and its own version. Key, value and topic follow
their lengths, so no two different records have the same signed bytes. The signature does not cover the order: a
signed record can be written again.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

SIGNATURE_HEADER: Final = "sluice-hmac"
MIN_SECRET_BYTES: Final = 16

_VERSION: Final = b"\x01"
_ABSENT: Final = b"\xff" * 8


class RecordSigner:
    """Signs and verifies the records of one topic."""

    def __init__(self, topic: str, secrets: Sequence[bytes]) -> None:
        """Args: topic: its name. secrets: the first one signs, each of them verifies; not empty."""
        start = b"sluice record" + _VERSION + _field(topic.encode())
        # These are copied for each record, so that the secret and the topic are hashed only once.
        self._started = [hmac.new(secret, start, hashlib.sha256) for secret in secrets]

    def sign(self, key: bytes | None, value: bytes | None) -> bytes:
        """The header's value."""
        return self._signature(0, key, value)

    def secret_of(self, signature: bytes | None, key: bytes | None, value: bytes | None) -> int | None:
        """The index of the secret that this record was signed with; 0 is the one that signs. None: no secret fits."""
        if signature is not None:
            for at in range(len(self._started)):
                if hmac.compare_digest(signature, self._signature(at, key, value)):
                    return at
        return None

    def _signature(self, at: int, key: bytes | None, value: bytes | None) -> bytes:
        mac = self._started[at].copy()
        mac.update(_field(key))
        mac.update(_field(value))
        return _VERSION + mac.digest()


def _field(data: bytes | None) -> bytes:
    return _ABSENT if data is None else len(data).to_bytes(8, "big") + data
