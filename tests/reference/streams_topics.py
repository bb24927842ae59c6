"""How a coordinator of Kafka 4.4 decides on internal topics, rule by rule, as its classes do. Slow, and literal.

InternalTopicManager, RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics. Where Kafka's order is that of
a hash map, it is the order of the arguments here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.streams_groups import Subtopology


class Refused(Exception):
    """The coordinator creates nothing."""


def missing_internal_topics(topology: Sequence[Subtopology], existing: Mapping[bytes, int]) -> dict[bytes, int]:
    """The topics that are created, with their partitions.

    Raises:
        Refused: nothing is created.
    """
    if any(name not in existing for each in topology for name in each.sources):
        raise Refused
    decided = _repartition_topics(topology, existing)

    def count_of(name: bytes) -> int:
        if name in existing:
            return existing[name]
        if name not in decided:
            raise Refused
        return decided[name]

    fixed = {name for each in topology for name, count in each.repartitions if count}
    flexible = {name for each in topology for name, count in each.repartitions if not count}
    for each in topology:
        for group in each.copartitioned or ():
            decided.update(_enforced(group, fixed, flexible, {name: count_of(name) for name in group | fixed}))
    for each in topology:
        sources = [count_of(name) for name in each.sources | {name for name, _ in each.repartitions}]
        if not sources:
            raise Refused
        decided.update(dict.fromkeys(each.changelogs, max(sources)))
    wanted = {name: decided[name] for each in topology for name, _ in each.repartitions}
    wanted |= {name: decided[name] for each in topology for name in each.changelogs}
    if any(existing[name] != count for name, count in wanted.items() if name in existing):
        raise Refused
    return {name: count for name, count in wanted.items() if name not in existing}


def _repartition_topics(topology: Sequence[Subtopology], existing: Mapping[bytes, int]) -> dict[bytes, int]:
    decided = {name: count for each in topology for name, count in each.repartitions if count}
    while True:
        open_topics = [(each, name) for each in topology for name in each.sinks if name not in decided]
        if not open_topics:
            break
        progress = False
        for each, name in open_topics:
            known = [decided[source] for source, _ in each.repartitions if source in decided]
            known += [existing[source] for source in each.sources]
            if known and name not in decided:
                decided[name] = max(known)
                progress = True
        if not progress:
            raise Refused
    if any(name not in decided for each in topology for name, _ in each.repartitions):
        raise Refused
    return decided


def _enforced(
    group: frozenset[bytes], fixed: set[bytes], flexible: set[bytes], counts: Mapping[bytes, int]
) -> dict[bytes, int]:
    repartitions = group & (fixed | flexible)
    others = {counts[name] for name in group - repartitions}
    if others:
        if len(others) > 1:
            raise Refused
        (wanted,) = others
    elif fixed:
        if len({counts[name] for name in fixed}) > 1:
            raise Refused
        wanted = counts[next(iter(fixed))]
    else:
        wanted = max((counts[name] for name in repartitions), default=0)
    if any(counts[name] != wanted for name in repartitions & fixed):
        raise Refused
    return dict.fromkeys(repartitions, wanted)
