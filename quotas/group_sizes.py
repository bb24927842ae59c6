"""The largest of many groups, in constant time while members come and go."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)


class GroupSizes(Generic[G]):
    """How many members each group has; groups without one are not kept.

    Attributes:
        largest: the size of the largest group, 0 without one.
    """

    def __init__(self) -> None:
        """There is no group."""
        self.largest = 0
        self._sizes: dict[G, int] = {}
        self._by_size: dict[int, dict[G, None]] = {}

    def __getitem__(self, group: G) -> int:
        """The size of a group."""
        return self._sizes.get(group, 0)

    def largest_group(self) -> G:
        """One of those that have most members; there must be one."""
        return next(iter(self._by_size[self.largest]))

    def add(self, group: G) -> None:
        """The group has one member more."""
        self._resize(group, self[group], self[group] + 1)

    def remove(self, group: G) -> None:
        """The group has one member less."""
        self._resize(group, self[group], self[group] - 1)

    def _resize(self, group: G, was: int, size: int) -> None:
        if was:
            del self._by_size[was][group]
            if not self._by_size[was]:
                del self._by_size[was]
        if size:
            self._by_size.setdefault(size, {})[group] = None
            self._sizes[group] = size
        else:
            del self._sizes[group]
        # Sizes change by one, so the next largest is never far.
        self.largest = max(self.largest, size) if self.largest in self._by_size else size
