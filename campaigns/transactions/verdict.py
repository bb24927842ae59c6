"""What a history of transactions shows, in the manner of Elle (Kingsbury, Alvaro; VLDB 2020). Pure.

Each transaction appends records of its own to some partitions. So each record that is read has exactly one writer,
and anomalies can be read off: aborted reads (G1a), transactions of which only a part is there, lost and doubled
records, and records of one producer in another order. Cycles of writes of different producers over several
partitions (G0) are left out: Kafka orders each partition by itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Outcome(StrEnum):
    """What the client of a transaction knows of its end."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Anomaly(StrEnum):
    """What must not be."""

    ABORTED_READ = "aborted read"
    FRACTURED = "fractured"
    LOST = "lost"
    DOUBLED = "doubled"
    REORDERED = "reordered"
    UNTOLD = "never written"
    VIEWS_DIFFER = "views differ"


@dataclass(frozen=True, slots=True, order=True)
class Record:
    """One record.

    Attributes:
        producer: its writer.
        transaction: counts those of the producer.
        number: counts the records of the transaction.
    """

    producer: str
    transaction: int
    number: int


@dataclass(frozen=True, slots=True)
class Told:
    """A transaction as its client knows it.

    Attributes:
        writes: the partition of each of its records, by number.
        outcome: of its end.
    """

    writes: tuple[int, ...]
    outcome: Outcome


Key: TypeAlias = tuple[str, int]
View: TypeAlias = Mapping[int, Sequence[Record]]
"""What a consumer of committed records read: partition -> records in their order."""


def anomalies(told: Mapping[Key, Told], seen: View) -> Counter[Anomaly]:
    """What a view shows that the outcomes do not allow.

    Args:
        told: transactions by producer and number; all that were begun.
        seen: the whole of each partition.
    """
    found: Counter[Anomaly] = Counter()
    where: defaultdict[Record, list[int]] = defaultdict(list)
    for partition, records in seen.items():
        latest: dict[str, Record] = {}
        for record in records:
            where[record].append(partition)
            # A record that is there again is doubled, and not in the wrong order as well.
            if len(where[record]) == 1:
                found[Anomaly.REORDERED] += record < latest.get(record.producer, record)
                latest[record.producer] = max(record, latest.get(record.producer, record))
    for record, partitions in where.items():
        found[Anomaly.DOUBLED] += len(partitions) - 1
        transaction = told.get((record.producer, record.transaction))
        if transaction is None or transaction.writes[record.number : record.number + 1] != (partitions[0],):
            found[Anomaly.UNTOLD] += 1
    for (producer, number), transaction in told.items():
        there = [Record(producer, number, at) in where for at in range(len(transaction.writes))]
        if transaction.outcome is Outcome.ABORTED:
            found[Anomaly.ABORTED_READ] += any(there)
        elif transaction.outcome is Outcome.COMMITTED:
            found[Anomaly.LOST] += not all(there)
        found[Anomaly.FRACTURED] += any(there) and not all(there)
    return +found


def difference(one: View, other: View) -> int:
    """How many partitions two views do not have alike."""
    return sum(list(one.get(at, ())) != list(other.get(at, ())) for at in {*one, *other})


def incomplete(told: Mapping[Key, Told], view: View) -> Iterator[str]:
    """The transactions that are lost or fractured, a line each."""
    there = {record for records in view.values() for record in records}
    for (producer, number), transaction in told.items():
        records = [Record(producer, number, at) for at in range(len(transaction.writes))]
        missing = [record for record in records if record not in there]
        if missing and (transaction.outcome is Outcome.COMMITTED or len(missing) < len(records)):
            without = [record.number for record in missing]
            yield f"{producer} {number}, {transaction.outcome}: partitions {transaction.writes}, without {without}"
