"""Runs the parts of a job: as tasks of Spark, or one after the other in this process.

Both runners call the same function for the same parts and give its results in the order of the parts, so a job finds
the same on one machine and on a cluster. Only the DataFrame API is used: it is the same in Spark 3.5 and later, and
through Spark Connect. Results travel as bytes in one column, which every version can collect.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

P = TypeVar("P")
R = TypeVar("R")

_RESULT: Final = pa.schema([("result", pa.binary())])
_DDL: Final = "result binary"
_MOST_CORES: Final = 4_096


class Runner(Protocol):
    """Calls a function for each part of a job."""

    @property
    def cores(self) -> int:
        """How many parts can be worked on at once."""

    def run(self, work: Callable[[P], Iterable[R]], parts: Sequence[P]) -> Iterator[R]:
        """The results of all parts, in the order of the parts.

        Args:
            work: what is done with a part. On a cluster it runs in another process.
            parts: each small, such as names of files.
        """


class InProcess:
    """One part after the other, in this process: memory is that of the largest part."""

    def __init__(self, cores: int = 1) -> None:
        """Args: cores: into how many parts jobs divide their work, at least."""
        self._cores = cores

    @property
    def cores(self) -> int:
        """See `Runner`."""
        return self._cores

    def run(self, work: Callable[[P], Iterable[R]], parts: Sequence[P]) -> Iterator[R]:
        """See `Runner`."""
        for part in parts:
            yield from work(part)


class OnSpark:
    """Each part as a task of Spark."""

    def __init__(self, spark: Any) -> None:
        """Args: spark: the session."""
        self._spark = spark

    @cached_property
    def cores(self) -> int:
        """See `Runner`."""
        return cores_of(self._spark)

    def run(self, work: Callable[[P], Iterable[R]], parts: Sequence[P]) -> Iterator[R]:
        """See `Runner`."""

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[R]:
            for batch in batches:
                for part in batch.column("id").to_pylist():
                    yield from work(parts[part])

        if parts:
            yield from results_of(self._spark.range(0, len(parts), 1, len(parts)), task)


def results_of(frame: Any, work: Callable[[Iterator[pa.RecordBatch]], Iterable[R]]) -> Iterator[R]:
    """What workers make of the rows of a DataFrame, in the order of its partitions.

    Args:
        frame: the DataFrame.
        work: what is done with the batches of a partition.
    """

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for result in work(batches):
            data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_RESULT)

    rows = frame.mapInArrow(packed, _DDL).collect()
    # Last first, so that each is freed once it is used.
    rows.reverse()
    while rows:
        yield pickle.loads(rows.pop()[0])


def cores_of(spark: Any) -> int:
    """How many tasks the session runs at once by default: into so many partitions it divides a range of numbers."""
    return max(1, sum(results_of(spark.range(_MOST_CORES), _is_there)))


def _is_there(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(sum(map(len, batches)) > 0)]
