"""Numbers of partitions of internal topics: never less than a coordinator of Kafka gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import thread_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.handlers.internal_topics import internal_topics
from protocol.steps import finish
from protocol.streams_groups import Subtopology
from tests.reference.streams_topics import Refused, missing_internal_topics

DEFAULT = 5


def part(
    *sources: bytes,
    sinks: Sequence[bytes] = (),
    repartitions: Mapping[bytes, int] | None = None,
    changelogs: Sequence[bytes] = (),
    groups: tuple[frozenset[bytes], ...] | None = (),
) -> Subtopology:
    return Subtopology(
        b"0",
        frozenset(sources),
        frozenset(sinks),
        frozenset((repartitions or {}).items()),
        frozenset(changelogs),
        groups,
    )


def counted(topology: Sequence[Subtopology], **existing: int) -> dict[bytes, int]:
    known = {name.encode(): count for name, count in existing.items()}
    return finish(internal_topics(topology, lambda name: known.get(name, 0), default_num_partitions=DEFAULT))


def test_a_changelog_has_the_partitions_of_its_largest_source() -> None:
    assert counted([part(b"a", b"b", changelogs=[b"c"])], a=3, b=8) == {b"c": 8}


def test_a_repartition_topic_has_the_partitions_of_what_its_writer_reads() -> None:
    chain = [
        part(repartitions={b"r2": 0}, changelogs=[b"c2"]),
        part(repartitions={b"r1": 0}, sinks=[b"r2"], changelogs=[b"c1"]),
        part(b"a", sinks=[b"r1"]),
    ]
    assert counted(chain, a=7) == {b"r1": 7, b"r2": 7, b"c1": 7, b"c2": 7}


@pytest.mark.parametrize(("given_count", "count"), [(4, 4), (-1, DEFAULT), (-2, 0)])
def test_a_number_in_the_topology_wins(given_count: int, count: int) -> None:
    parts = [part(b"a", sinks=[b"r"]), part(repartitions={b"r": given_count}, changelogs=[b"c"])]
    assert counted(parts, a=7) == {b"r": count, b"c": count}


def test_co_partitioned_topics_get_one_number() -> None:
    joined = part(b"a", repartitions={b"r": 0}, changelogs=[b"c"], groups=(frozenset({b"a", b"r"}),))
    assert counted([joined, part(b"b", sinks=[b"r"])], a=10, b=3) == {b"r": 10, b"c": 10}
    both = part(repartitions={b"r": 0, b"s": 0}, groups=(frozenset({b"r", b"s"}),))
    assert counted([both, part(b"a", sinks=[b"r"]), part(b"b", sinks=[b"s"])], a=2, b=9) == {b"r": 9, b"s": 9}


def test_without_groups_a_derived_number_is_the_largest_of_the_topology() -> None:
    parts = [part(repartitions={b"r": 0}, groups=None), part(b"a", sinks=[b"r"], groups=None)]
    assert counted([*parts, part(b"b", groups=None)], a=2, b=9) == {b"r": 9}


@pytest.mark.parametrize(
    "parts",
    [
        [part(b"gone", changelogs=[b"c"])],
        [part(repartitions={b"r": 0}, sinks=[b"s"]), part(repartitions={b"s": 0}, sinks=[b"r"])],
        [part(b"a", repartitions={b"never-written": 0})],
    ],
)
def test_nothing_is_created_where_a_source_is_missing_or_no_number_can_be_derived(parts: list[Subtopology]) -> None:
    assert counted(parts, a=3) == {}


def test_a_long_chain_in_the_worst_order_is_looked_at_once() -> None:
    links = 3_000
    names = [b"r%d" % each for each in range(links)]
    looked = 0

    def partitions_of(_name: bytes) -> int:
        nonlocal looked
        looked += 1
        return 6

    chain = [part(repartitions={names[at]: 0}, sinks=[names[at + 1]]) for at in range(links - 2, -1, -1)]
    chain.append(part(b"a", sinks=[names[0]]))
    found = finish(internal_topics(chain, partitions_of, default_num_partitions=DEFAULT))
    assert found == dict.fromkeys(names[:-1], 6)
    assert looked < 3 * links


NAMES = [b"r%d" % each for each in range(3)]
SOURCES = [b"s%d" % each for each in range(3)]


def test_many_groups_beside_many_topics_do_not_hold_up_the_loop() -> None:
    topics = {b"r%d" % number: 3 for number in range(3_000)}
    parts = [part(b"s", repartitions=topics, groups=(frozenset(),) * 20_000)]
    walk = internal_topics(parts, lambda name: int(name == b"s"), default_num_partitions=DEFAULT)
    longest_s, steps, done = 0.0, 0, False
    while not done:
        began = thread_time()
        done = next(walk, None) is None and walk.gi_frame is None  # type: ignore[attr-defined]
        longest_s, steps = max(longest_s, thread_time() - began), steps + 1
    assert steps > 20_000 // 100
    assert longest_s < 0.1  # CPU time; it was 0.7 s in one step


@st.composite
def topologies(draw: st.DrawFn) -> list[Subtopology]:
    def some(of: Sequence[bytes]) -> list[bytes]:
        return draw(st.lists(st.sampled_from(of), unique=True, max_size=3))

    fixed = draw(st.dictionaries(st.sampled_from(NAMES), st.integers(1, 6), max_size=1))
    parts = []
    for at in range(draw(st.integers(1, 4))):
        sources, read = some(SOURCES), some(NAMES)
        groups = draw(
            st.lists(st.frozensets(st.sampled_from([*sources, *read] or SOURCES[:1]), min_size=1), max_size=2)
        )
        inside = frozenset([*sources, *read])
        parts.append(
            part(
                *sources,
                sinks=some(NAMES),
                repartitions={name: fixed.get(name, 0) for name in read},
                changelogs=[b"c%d" % at],
                groups=tuple(group & inside for group in groups if group & inside),
            )
        )
    return parts


EXISTING = st.fixed_dictionaries(
    dict.fromkeys(SOURCES, st.integers(1, 6)), optional=dict.fromkeys([NAMES[0], b"c0"], st.integers(1, 6))
)


@given(topologies(), EXISTING)
@example([part(b"s0", sinks=[b"r0"]), part(repartitions={b"r0": 0, b"r1": 0})], {b"s0": 2})
@example(
    [part(repartitions={b"r0": 0, b"r1": 0}, groups=(frozenset({b"r0", b"r1"}),)), part(b"s0", sinks=[b"r0", b"r1"])],
    {b"s0": 2, b"r0": 6},
)
@example(
    [
        part(b"s0", sinks=[b"r1"], repartitions={b"r0": 1}),
        part(repartitions={b"r0": 1, b"r1": 0}, groups=(frozenset({b"r0", b"r1"}),)),
    ],
    {b"s0": 1, b"r0": 2},
)
def test_no_topic_gets_more_partitions_than_it_is_charged_for(
    topology: list[Subtopology], existing: dict[bytes, int]
) -> None:
    try:
        created = missing_internal_topics(topology, existing)
    except Refused:
        return
    for known in (topology, [_ungrouped(each) for each in topology]):
        found = finish(internal_topics(known, lambda name: existing.get(name, 0), default_num_partitions=DEFAULT))
        assert {name: count for name, count in created.items() if found.get(name, 0) < count} == {}


def _ungrouped(each: Subtopology) -> Subtopology:
    return Subtopology(each.name, each.sources, each.sinks, each.repartitions, each.changelogs, None)
