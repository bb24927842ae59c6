"""Runs the parts of a job: as tasks of Spark, or one after the other in this process.

Both runners call the same function for the same parts and return its results in the order of the parts. So a job has
the same result on one machine and on a cluster. Only the DataFrame API is used, which is the same in Spark 3.5 and
later, and through Spark Connect. Results travel as bytes in one column, which every version can collect.
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
        """The number of parts that can be processed at once."""

    def run(self, work: Callable[[P], Iterable[R]], parts: Sequence[P]) -> Iterator[R]:
        """The results of all parts, in the order of the parts.

        Args:
            work: the function for a part. On a cluster it runs in another process.
            parts: small values, such as names of files.
        """


class InProcess:
    """Runs one part after the other in this process, so memory is that of the largest part."""

    def __init__(self, cores: int = 1) -> None:
        """Args: cores: the least number of parts into which jobs divide their work."""
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
    """Runs each part as a task of Spark."""

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
    """Applies a function to the rows of a DataFrame in Spark's workers; results are in the order of its partitions.

    Args:
        frame: the DataFrame.
        work: the function for the batches of a partition.
    """

    def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for result in work(batches):
            data = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            yield pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_RESULT)

    rows = frame.mapInArrow(packed, _DDL).collect()
    # Reversed, so that `pop` takes the results in order and each is freed after its use.
    rows.reverse()
    while rows:
        yield pickle.loads(rows.pop()[0])


def cores_of(spark: Any) -> int:
    """The number of tasks that the session runs at once by default: the partitions of a range of numbers."""
    return max(1, sum(results_of(spark.range(_MOST_CORES), _is_there)))


def _is_there(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(sum(map(len, batches)) > 0)]
