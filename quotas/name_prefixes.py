"""Quota names that end in ``*`` and stand for every name with that beginning; opt-in, not in Kafka.

This module knows the prefixes that are set, and finds those of a name, the longest first. Precedence and counters of
prefixes are in `quotas.resolution`. A single ``*`` is an ordinary name: as a prefix it would mean the same as the
default.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from quotas.entities import Name

_MARK: Final = "*"


def is_prefix(name: Name | None) -> bool:
    """Whether this name stands for all names with its beginning."""
    return isinstance(name, str) and len(name) > 1 and name.endswith(_MARK)


class NamePrefixes:
    """The prefixes of one quota key and one type of entity. Finding those of a name takes one look-up per length."""

    __slots__ = ("_lengths", "_names")

    def __init__(self) -> None:
        """Starts without prefixes."""
        self._names: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, name: Name | None) -> None:
        """Add the name of an entity, if it is a prefix."""
        if is_prefix(name):
            assert isinstance(name, str)
            self._names[name] += 1
            self._lengths[len(name) - 1] += 1

    def discard(self, name: Name | None) -> None:
        """Remove the name of one entity."""
        if is_prefix(name):
            assert isinstance(name, str)
            self._names[name] -= 1
            self._lengths[len(name) - 1] -= 1
            if not self._names[name]:
                del self._names[name]
            if not self._lengths[len(name) - 1]:
                del self._lengths[len(name) - 1]

    def of(self, name: str) -> list[str]:
        """The prefixes that this name begins with, as they are set, longest first."""
        lengths = sorted((length for length in self._lengths if length <= len(name)), reverse=True)
        found = (name[:length] + _MARK for length in lengths)
        return [prefix for prefix in found if prefix in self._names]
