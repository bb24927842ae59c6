"""Compacted days as the jobs read them, whichever way is there.

Where every machine has the folder mounted (`store.is_local`) and the days were written by workers, Spark deals out
parts and each worker reads its own row groups with Arrow (`pipeline.storage.compacted_files`). Else, on `hdfs://`
or for days that were compacted by Spark or by an older release, Spark reads and brings rows together. Both give a
job the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipeline.storage.compacted_files import Piece, dealt, pieces_of, read_entities
from pipeline.storage.entity_days import ENTITY, Scope, arrays_of, entity_days
from pipeline.storage.layout import BUCKETS, CompactedDay, compacted_days, read_days
from pipeline.storage.store import is_local, local_path

ELEMENTS_AT_ONCE: Final = 2_000_000
"""Recorded seconds in a batch of `map_entities`: about 150 bytes each with what is made of them, 300 MB."""

_ELEMENTS_PER_PART: Final = 16_000_000


Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a job does with batches; it runs in Spark's Python workers."""


@dataclass(frozen=True, slots=True)
class CompactedDays:
    """Some compacted days.

    Attributes:
        spark: the session.
        days: which, by date; at least one.
        here: whether workers read the files themselves.
    """

    spark: Any
    days: tuple[CompactedDay, ...]
    here: bool

    @classmethod
    def of(cls, spark: Any, out: str, first: str | None = None, last: str | None = None) -> CompactedDays:
        """The compacted days of a folder.

        Args:
            spark: a SparkSession.
            out: the pipeline's folder.
            first: the first day, else from the beginning; 2026-11-21.
            last: the last day, else to the end.

        Raises:
            FileNotFoundError: no day in this range is compacted.
        """
        days = tuple(compacted_days(out, first, last, spark=spark))
        return cls(spark, days, is_local(out) and all(day.buckets == BUCKETS for day in days))

    def frame(self) -> Any:
        """All rows by Spark, as a DataFrame with the columns of `layout.COMPACTED`."""
        return read_days(self.spark, self.days)

    def map_entities(
        self,
        work: Work,
        result: str,
        *,
        scope: Scope = Scope.GATEWAY,
        arrays: Collection[str] = (),
        apis: Collection[str] | None = None,
        elements_at_once: int = ELEMENTS_AT_ONCE,
    ) -> Any:
        """What a job makes of rows as quotas count: one for each client, gateway and day.

        Args:
            work: gets batches with the columns of `entity_days.ENTITY` and arrays; it may get none.
            result: the columns it gives, as Spark DDL.
            scope: whether brokers count together. Listeners always do.
            arrays: those needed besides `arrays_of(())`, of `entity_days.ARRAYS`.
            apis: leave out others.
            elements_at_once: see `ELEMENTS_AT_ONCE`.

        Returns:
            A DataFrame.
        """
        needed = arrays_of(arrays)
        if not self.here:
            rows = self.frame()
            if apis is not None:
                rows = rows.where(rows["api"].isin(list(apis)))
            names = [name for group in needed.values() for name in group]
            return entity_days(rows, scope, names).mapInArrow(work, result)

        def entities(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
            return work(
                read_entities(
                    pieces,
                    ENTITY,
                    needed,
                    brokers_apart=scope is Scope.BROKER,
                    apis=apis,
                    most_elements=elements_at_once,
                )
            )

        return self.deal(entities, result, days_apart=True)

    def deal(
        self, read: Callable[[list[Piece]], Iterator[pa.RecordBatch]], result: str, *, days_apart: bool
    ) -> Any:
        """What workers make of parts of the files; only where `here`.

        Args:
            read: gets pieces of whole buckets, in order.
            result: the columns it gives, as Spark DDL.
            days_apart: whether days of the same client may be in different parts.

        Returns:
            A DataFrame.
        """
        pieces = [piece for day in self.days for piece in pieces_of(local_path(day.path).absolute())]
        cores = self.spark.sparkContext.defaultParallelism
        parts = dealt(pieces, cores, _ELEMENTS_PER_PART, days_apart=days_apart)

        def mine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in batch.column("id").to_pylist():
                    yield from read(parts[part])

        return self.spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(mine, result)
