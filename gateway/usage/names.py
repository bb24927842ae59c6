"""How clients' names are written into records: as they are, or as keyed hashes (hazard I11). Pure.

Equal names stay equal, so that what a client used can be followed over time; without the salt names can not be tried.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import StrEnum
from typing import Final

from quotas.entities import cut_name

HASHED: Final = "#"
"""What a hashed name begins with."""

_DIGEST_CHARS: Final = 16


class Privacy(StrEnum):
    """What is written of users, client ids and addresses."""

    PLAIN = "plain"
    HASHED = "hashed"


class Names:
    """BatchScheduler names into what is written."""

    def __init__(self, salt: bytes | None = None) -> None:
        """Names as they are, or hashed with a salt.

        Args:
            salt: the key of the hashes; with it one can find out whether a hash is of a given name.
        """
        self._salt = salt

    def written(self, name: str) -> str:
        """The text for a name; nothing stays nothing, since it says that a field does not apply."""
        if not name:
            return ""
        if self._salt is not None:
            digest = hmac.new(self._salt, name.encode("utf-8", "surrogatepass"), hashlib.sha256)
            return HASHED + digest.hexdigest()[:_DIGEST_CHARS]
        # Half of a surrogate pair is no text that JSON readers must take (hazard I14).
        return cut_name(name).encode("utf-8", "replace").decode()
