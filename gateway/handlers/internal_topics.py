"""How many partitions a group coordinator gives the internal topics of a topology (KIP-1071). Pure.

This follows Kafka's InternalTopicManager, RepartitionTopics, CopartitionedTopicsEnforcer and ChangelogTopics, which
are the same in 4.2 to 4.4. In some cases Kafka takes the first number that it finds, in its own order. This module
then takes the largest, which is the highest price of a topic.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from protocol.steps import STEP_ELEMENTS, Steps
from protocol.streams_groups import Subtopology

PartitionsOf: TypeAlias = Callable[[bytes], int]
"""How many partitions a topic has; 0: it does not exist."""


def names_of(topology: Sequence[Subtopology]) -> set[bytes]:
    """All topics on which the internal topics depend."""
    found: set[bytes] = set()
    for each in topology:
        found |= each.sources | each.changelogs
        found.update(name for name, _ in each.repartitions)
    return found


def internal_topics(
    topology: Sequence[Subtopology], partitions_of: PartitionsOf, *, default_num_partitions: int
) -> Steps[dict[bytes, int]]:
    """The internal topics that the coordinator creates if they are missing, with their numbers of partitions.

    Args:
        topology: the group's topology.
        partitions_of: the partitions of the cluster's topics.
        default_num_partitions: the cluster's num.partitions, for topics that are requested with the default.

    Returns:
        Empty if a source topic is missing or a number cannot be derived: the coordinator then creates no topics.
    """
    counts: dict[bytes, int] = {}
    for done, each in enumerate(topology):
        counts.update((name, partitions_of(name)) for name in each.sources)
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
    if not all(counts.values()):
        return {}
    fixed = _fixed(topology, default_num_partitions)
    decided = dict(fixed)
    yield from _derive(topology, counts, decided)
    flexible = {name for each in topology for name, count in each.repartitions if not count}
    if not flexible <= decided.keys():
        return {}
    yield from _enforce_copartitioning(topology, counts, fixed, flexible, decided, partitions_of)
    if flexible and any(each.copartitioned is None for each in topology):
        most = max([*counts.values(), *decided.values(), *map(partitions_of, decided)])
        decided.update(dict.fromkeys(flexible, most))
    found: dict[bytes, int] = {}
    for done, each in enumerate(topology):
        read = [max(decided[name], partitions_of(name)) for name, _ in each.repartitions]
        most = max([*(counts[name] for name in each.sources), *read], default=0)
        for name in each.changelogs:
            found[name] = max(found.get(name, 0), most)
        found.update((name, decided[name]) for name, _ in each.repartitions)
        if done % STEP_ELEMENTS == STEP_ELEMENTS - 1:
            yield
    return found


def _fixed(topology: Sequence[Subtopology], default_num_partitions: int) -> dict[bytes, int]:
    """Repartition topics whose number the topology gives. For CreateTopics -1 is the cluster's default."""
    found: dict[bytes, int] = {}
    for each in topology:
        for name, count in each.repartitions:
            if count:
                wanted = default_num_partitions if count == -1 else max(count, 0)
                found[name] = max(found.get(name, 0), wanted)
    return found


def _derive(
    topology: Sequence[Subtopology], counts: Mapping[bytes, int], decided: dict[bytes, int]
) -> Steps[None]:
    """Give each written topic the largest partition count of the topics that its writers read, directly or not.

    The largest counts come first. So every sub-topology and every topic is visited once, in whatever order they
    depend on each other.
    """
    readers: dict[bytes, list[int]] = defaultdict(list)
    waiting: list[tuple[int, int]] = []
    for at, each in enumerate(topology):
        known = [counts[name] for name in each.sources]
        for name, _ in each.repartitions:
            readers[name].append(at)
            if name in decided:
                known.append(decided[name])
        if known:
            waiting.append((-max(known), at))
    heapq.heapify(waiting)
    done: set[int] = set()
    while waiting:
        negative, at = heapq.heappop(waiting)
        if at in done:
            continue
        done.add(at)
        for name in topology[at].sinks:
            if name not in decided:
                decided[name] = -negative
                for reader in readers[name]:
                    heapq.heappush(waiting, (negative, reader))
        if len(done) % STEP_ELEMENTS == 0:
            yield


def _enforce_copartitioning(
    topology: Sequence[Subtopology],
    counts: Mapping[bytes, int],
    fixed: Mapping[bytes, int],
    flexible: set[bytes],
    decided: dict[bytes, int],
    partitions_of: PartitionsOf,
) -> Steps[None]:
    """Give the repartition topics of each group one number of partitions."""
    # An existing topic counts with its real partitions, whatever the topology says.
    most_fixed = max((max(count, partitions_of(name)) for name, count in fixed.items()), default=None)
    looked_at = 0
    for group in (group for each in topology for group in each.copartitioned or ()):
        looked_at += 1 + len(group)
        if looked_at >= STEP_ELEMENTS:
            looked_at = 0
            yield
        external = [counts[name] for name in group if name in counts]
        if external:
            wanted = max(external)
        elif most_fixed is not None:
            wanted = most_fixed
        else:
            wanted = max(
                (max(decided[name], partitions_of(name)) for name in group if name in decided), default=0
            )
        for name in group & flexible:
            decided[name] = wanted
