"""The largest of many groups, in constant time while members are added and removed."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

G = TypeVar("G", bound=Hashable)


class GroupSizes(Generic[G]):
    """The number of members of each group; groups without members are not kept.

    Attributes:
        largest: the size of the largest group, 0 without groups.
    """

    def __init__(self) -> None:
        """Starts without groups."""
        self.largest = 0
        self._sizes: dict[G, int] = {}
        self._by_size: dict[int, dict[G, None]] = {}

    def __getitem__(self, group: G) -> int:
        """The size of a group."""
        return self._sizes.get(group, 0)

    def largest_group(self) -> G:
        """One of the largest groups; there must be a group."""
        return next(iter(self._by_size[self.largest]))

    def add(self, group: G) -> None:
        """Add a member to a group."""
        self._resize(group, self[group], self[group] + 1)

    def remove(self, group: G) -> None:
        """Remove a member from a group."""
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
