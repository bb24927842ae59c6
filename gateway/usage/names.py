"""How names are written into records: plain, or as keyed hashes (hazard I11). Pure.

Equal names stay equal, so that what a client used can be followed over time; without the salt names cannot be tried.
"""

from __future__ import annotations

from enum import StrEnum

from quotas.usage_record import hashed_name, plain_name


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
        return plain_name(name) if self._salt is None else hashed_name(name, self._salt)
