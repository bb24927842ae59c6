"""Brokers' stored bytes, until they are in lines of usage records. Pure.

A *sample* is the bytes of each topic on one broker. It goes into lines in parts, so that a line stays small and no
call of the loop takes long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gateway.usage.names import Names

TOPICS_PER_LINE: Final = 2_000
TOPICS_PER_TURN: Final = 250
"""Taken and encoded within one turn of the loop."""

StoredValues: TypeAlias = list[Any]
"""See `quotas.usage_record.StoredRow`."""


@dataclass(slots=True)
class _Sample:
    cluster: str
    node: int
    at_s: int
    total: int
    left: dict[bytes, int]


class StoredBytes:
    """See the module.

    Attributes:
        taken: samples that succeeded.
        failed: samples that failed.
    """

    def __init__(self, names: Names) -> None:
        """Args: names: how names of topics are written."""
        self.taken = 0
        self.failed = 0
        self._names = names
        self._sample: _Sample | None = None

    @property
    def waiting(self) -> bool:
        """Whether a part of the last sample is in no line yet."""
        return self._sample is not None

    def add(self, cluster: str, node: int, topics: dict[bytes, int], total: int, *, at_s: int) -> None:
        """Add a sample; to be called when none is `waiting`.

        Args:
            cluster: its id.
            node: the broker's id.
            topics: bytes by the name of the topic; `take` empties it.
            total: the sum of them.
            at_s: when the broker answered, in seconds since the epoch.
        """
        self.taken += 1
        self._sample = _Sample(cluster, node, at_s, total, topics)

    def take(self) -> Iterator[StoredValues]:
        """The parts for one line, each for one turn of the loop."""
        for _ in range(TOPICS_PER_LINE // TOPICS_PER_TURN):
            sample = self._sample
            if sample is None:
                return
            part = [sample.left.popitem() for _ in range(min(TOPICS_PER_TURN, len(sample.left)))]
            if not sample.left:
                self._sample = None
            yield [
                sample.cluster,
                sample.node,
                sample.at_s,
                None if sample.left else sample.total,
                [[self._names.written(name.decode("utf-8", "replace")), size] for name, size in part],
            ]
