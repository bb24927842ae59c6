"""How many permits one topic of a CreateTopics, CreatePartitions or DeleteTopics request costs (KIP-599).

The unit is partitions; the replication factor plays no role. Kafka validates before it charges, so a topic that it
would refuse for one of these reasons costs nothing. The functions then return the reason instead of a number.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

INTERNAL_TOPICS: Final = frozenset({b"__consumer_offsets", b"__transaction_state", b"__share_group_state"})
INTERNAL_TOPIC_PARTITIONS: Final = 50
"""The number of partitions that brokers create them with by default (offsets.topic.num.partitions and others)."""


class CostError(StrEnum):
    """Why the broker will refuse a topic, which is therefore not charged; Kafka's error names."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    INVALID_REPLICA_ASSIGNMENT = "INVALID_REPLICA_ASSIGNMENT"
    UNKNOWN_TOPIC_OR_PARTITION = "UNKNOWN_TOPIC_OR_PARTITION"


def create_topics_permits(
    num_partitions: int,
    assignment_count: int,
    default_num_partitions: int,
    *,
    replication_factor: int = -1,
) -> int | CostError:
    """The permits for one topic of a CreateTopics request.

    Args:
        num_partitions: as in the request; -1 means the broker's default.
        assignment_count: entries of the manual assignment, 0 when there is none.
        default_num_partitions: the broker's num.partitions.
        replication_factor: as in the request; -1 means the broker's default.
    """
    if assignment_count:
        return assignment_count if num_partitions == replication_factor == -1 else CostError.INVALID_REQUEST
    if replication_factor == 0 or replication_factor < -1:
        return CostError.INVALID_REPLICATION_FACTOR
    if num_partitions == 0 or num_partitions < -1:
        return CostError.INVALID_PARTITIONS
    return default_num_partitions if num_partitions == -1 else num_partitions


def auto_create_permits(name: bytes, default_num_partitions: int) -> int:
    """The permits for a topic that a broker creates because a Metadata request names it."""
    if name in INTERNAL_TOPICS:
        return max(default_num_partitions, INTERNAL_TOPIC_PARTITIONS)
    return default_num_partitions


def create_partitions_permits(
    current: int | None, count: int, assignment_count: int | None = None
) -> int | CostError:
    """The permits for one topic of a CreatePartitions request: the partitions that would be new.

    Args:
        current: the topic's partitions now, None when there is no such topic.
        count: the requested total number of partitions.
        assignment_count: entries of the manual assignment, None when there is none.
    """
    if current is None:
        return CostError.UNKNOWN_TOPIC_OR_PARTITION
    if count <= current:
        return CostError.INVALID_PARTITIONS
    if assignment_count is not None and assignment_count != count - current:
        return CostError.INVALID_REPLICA_ASSIGNMENT
    return count - current


def delete_topics_permits(current: int | None) -> int | CostError:
    """The permits for one topic of a DeleteTopics request: all its partitions, None being no such topic."""
    return CostError.UNKNOWN_TOPIC_OR_PARTITION if current is None else current
