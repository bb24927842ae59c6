"""How names are written into records: plain, or as keyed hashes (hazard I11). Pure.

Equal names stay equal, so that a client's usage can be followed over time. Without the salt it is not possible to
test whether a hash belongs to a given name.
"""

from __future__ import annotations

from enum import StrEnum

from quotas.usage_record import hashed_name, plain_name


class Privacy(StrEnum):
    """How users, client ids and addresses are written."""

    PLAIN = "plain"
    HASHED = "hashed"


class Names:
    """Turns names into their written form."""

    def __init__(self, salt: bytes | None = None) -> None:
        """Write names as they are, or hashed with a salt.

        Args:
            salt: the key of the hashes, with which a name can be tested against a hash; None: no hashes.
        """
        self._salt = salt

    def written(self, name: str) -> str:
        """The text for a name; an empty name stays empty, since it means that a field does not apply."""
        if not name:
            return ""
        return plain_name(name) if self._salt is None else hashed_name(name, self._salt)
