"""Finds anomalies in a history of transactions, in the manner of Elle (Kingsbury, Alvaro; VLDB 2020). Pure.

Each transaction appends unique records to some partitions. So each read record has exactly one writer, and the
anomalies are visible: aborted reads (G1a), partial transactions, lost and duplicated records, and records of one
producer in a wrong order. Cycles of writes of different producers over several partitions (G0) are not checked,
because Kafka orders each partition separately.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Outcome(StrEnum):
    """The outcome of a transaction, as far as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Anomaly(StrEnum):
    """A kind of anomaly."""

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
        transaction: number of the producer's transaction.
        number: number of the record in the transaction.
    """

    producer: str
    transaction: int
    number: int


@dataclass(frozen=True, slots=True)
class Told:
    """A transaction as its client knows it.

    Attributes:
        writes: the partition of each of its records, by number.
        outcome: its outcome.
    """

    writes: tuple[int, ...]
    outcome: Outcome


Key: TypeAlias = tuple[str, int]
View: TypeAlias = Mapping[int, Sequence[Record]]
"""Records that a consumer of committed records read: partition -> records in order."""


def anomalies(told: Mapping[Key, Told], seen: View) -> Counter[Anomaly]:
    """Count the anomalies in a view that the outcomes do not allow.

    Args:
        told: all begun transactions by producer and number.
        seen: all records of each partition.
    """
    found: Counter[Anomaly] = Counter()
    where: defaultdict[Record, list[int]] = defaultdict(list)
    for partition, records in seen.items():
        latest: dict[str, Record] = {}
        for record in records:
            where[record].append(partition)
            # A repeated record counts as duplicated, and not also as out of order.
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
        else:
            found[Anomaly.FRACTURED] += any(there) and not all(there)
    return +found


def difference(one: View, other: View) -> int:
    """The number of partitions in which two views differ."""
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


def chance(found: int, transactions: int, others_found: int, others: int) -> float:
    """The probability of at least so many anomalies here, if they are as likely here as elsewhere.

    Args:
        found: anomalies of this way to the broker.
        transactions: of this way, more than 0.
        others_found: anomalies of the other ways.
        others: transactions of the other ways.
    """
    total, part = found + others_found, transactions / (transactions + others)
    return sum(math.comb(total, k) * part**k * (1 - part) ** (total - k) for k in range(found, total + 1))
