"""What the records of the topic mean, in any order that transactions can have."""

import asyncio
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quota_admin.store.interface import effective, slot_of
from gateway.quota_admin.store.topic_log import FORMAT, Record, TopicLog, Written
from quotas.entities import QuotaEntity, QuotaKey
from testkit.quota_stores import ALICE, ANYBODY, APP, AT_MS, FETCH, PRODUCE, alteration

Values = dict[tuple[QuotaEntity, QuotaKey], float]


class Topic:
    """The log of a topic: records get offsets, and compaction may take some away."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._offset = 0

    def append(self, written: Written, name: str | None) -> Record:
        record = Record(self._offset, written.key, written.value, name)
        self._offset += 1
        self.records.append(record)
        return record

    def transaction(self, name: str, written: Sequence[Written]) -> list[Record]:
        found = [self.append(each, name) for each in written]
        self._offset += 1  # the marker
        return found

    def compacted(self) -> list[Record]:
        """Of each key only the last, and no trace of what was removed."""
        last = {record.key: record for record in self.records}
        return [record for record in self.records if last[record.key] is record and record.value is not None]


class Gateway:
    """One that follows."""

    def __init__(self) -> None:
        self.log = TopicLog()
        self.values: Values = {}

    def write(
        self, name: str, *changes: tuple[QuotaEntity, QuotaKey, float | None], history: int = 1000
    ) -> list[Written]:
        asked = alteration(*changes)
        return self.log.write(
            name, asked, effective(asked.changes, self.log.kept_of, {}), at_ms=AT_MS, max_history=history
        )

    def follow(self, records: Sequence[Record]) -> None:
        for applied in self.log.feed(records):
            for change in applied.changes:
                if change.value is None:
                    self.values.pop((change.entity, change.key), None)
                else:
                    self.values[change.entity, change.key] = change.value

    @property
    def read(self) -> Values:
        """What a gateway that only now reads all this would have."""
        return {slot_of(change): change.value or 0 for change in self.log.values()}


def late(records: Sequence[Record]) -> Gateway:
    gateway = Gateway()
    gateway.follow(records)
    gateway.log.read_to_end()
    return gateway


def test_alterations_come_into_force_with_their_last_record_and_removals_for_everybody() -> None:
    topic, mine = Topic(), Gateway()
    *first, last = topic.transaction("a", mine.write("a", (ALICE, PRODUCE, 1.0), (APP, FETCH, 2.0)))
    mine.follow(first)
    assert mine.values == {}
    mine.follow([last])
    assert mine.values == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 2.0}
    assert mine.log.version == last.offset + 1
    topic, mine = Topic(), Gateway()
    mine.follow(topic.transaction("a", mine.write("a", (ALICE, PRODUCE, 1.0))))
    mine.follow(topic.transaction("b", mine.write("b", (ALICE, PRODUCE, None))))
    assert mine.values == mine.read == late(topic.records).read == late(topic.compacted()).read == {}
    assert mine.log.size == 0
    # What a broker gives to readers may end amidst a transaction, when another one was begun before its end.
    topic, mine = Topic(), Gateway()
    first, *rest = topic.transaction("a", mine.write("a", (ALICE, PRODUCE, 1.0), (APP, FETCH, 2.0)))
    gateway = late([first])
    gateway.values = dict(gateway.read)
    gateway.follow(rest)
    assert gateway.values == gateway.read == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 2.0}


def test_history_says_what_was_and_is_cut_to_its_bound() -> None:
    topic, mine = Topic(), Gateway()
    for value in range(1, 8):
        mine.follow(topic.transaction(f"t{value}", mine.write(f"t{value}", (ALICE, PRODUCE, value), history=3)))
    for log in (mine.log, late(topic.compacted()).log):
        found = log.history(10)
        assert [(entry.old, entry.new) for entry in found] == [(6, 7), (5, 6), (4, 5)]
        assert found[0].version == log.version == mine.log.version
    assert len(topic.compacted()) == 1 + 3


def test_history_of_a_large_alteration_is_in_parts_that_brokers_take_with_one_version() -> None:
    topic, mine = Topic(), Gateway()
    many = [(QuotaEntity(user=f"user-{number}"), PRODUCE, 1.0) for number in range(1_200)]
    records = topic.transaction("a", mine.write("a", *many))
    assert len(records) == 1_200 + 3
    mine.follow(records)
    found = mine.log.history(2_000)
    assert [entry.entity for entry in reversed(found)] == [entity for entity, _, _ in many]
    assert {entry.version for entry in found} == {mine.log.version}
    topic, mine = Topic(), Gateway()
    many = [(QuotaEntity(user=f"{number}-" + "\U0001f600" * 250), PRODUCE, 1.0) for number in range(400)]
    records = topic.transaction("a", mine.write("a", *many))
    assert max(len(record.value or b"") for record in records) < 600_000
    assert len(records) == 400 + 3
    mine.follow(records)
    assert len(mine.values) == len(mine.log.history(1_000)) == 400


@pytest.mark.slow
def test_forgotten_history_is_no_fault_for_a_gateway_that_comes_later() -> None:
    topic, mine = Topic(), Gateway()
    for number in range(1_500):
        entity = QuotaEntity(user=f"user-{number}")
        mine.follow(topic.transaction(f"a{number}", mine.write(f"a{number}", (entity, FETCH, 1.0), history=100)))
    gateway = late(topic.compacted())
    assert gateway.log.bad_records == 0
    assert gateway.read == mine.values
    # What is removed from now on is freed.
    gone = topic.transaction("gone", mine.write("gone", (QuotaEntity(user="user-7"), FETCH, None), history=100))
    gateway.follow(gone)
    assert len(gateway.log._latest) == 1_499


_STEPS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from([ALICE, ANYBODY, APP]),
            st.sampled_from([PRODUCE, FETCH]),
            st.sampled_from([None, 1.0, 2.0, 3.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=2,
    max_size=6,
)


@given(rounds=_STEPS, data=st.data())
def test_g06_two_that_alter_at_once_come_to_the_same_everywhere(
    rounds: list[list[tuple[QuotaEntity, QuotaKey, float | None]]], data: st.DataObject
) -> None:
    # Both write without having seen the other's, and their records are mixed in any order.
    topic, one, two = Topic(), Gateway(), Gateway()
    for number, (left, right) in enumerate(itertools.pairwise(rounds)):
        pending = [
            [(written, f"one-{number}") for written in one.write(f"one-{number}", *left)],
            [(written, f"two-{number}") for written in two.write(f"two-{number}", *right)],
        ]
        records = []
        while any(pending):
            side = data.draw(st.sampled_from([each for each in pending if each]))
            records.append(topic.append(*side.pop(0)))
        one.follow(records)
        for record in records:
            two.follow([record])
        assert one.values == two.values == one.read
        assert late(topic.records).read == late(topic.compacted()).read == one.values
        assert one.log.version == two.log.version == late(topic.records).log.version
        assert one.log.history(100) == two.log.history(100)
        assert len(one.values) == one.log.size


def test_records_that_do_not_fit_are_passed_over_and_counted() -> None:
    topic, mine = Topic(), Gateway()
    mine.follow(topic.transaction("a", mine.write("a", (ALICE, PRODUCE, 1.0))))
    foreign = [
        (None, None),
        (b"\xff", b"x"),
        (b"{}", b"{}"),
        (b"[" * 100_000, b"1"),
        (b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1,"value":-5}'),
        (b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1,"value":NaN}'),
        (b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"value":5}'),
        (b'{"quota":"nobody","key":"producer_byte_rate"}', b'{"format":1,"value":5}'),
        (b'{"quota":"user=alice","key":"speed"}', b'{"format":1,"value":5}'),
        (b'{"history":"x","part":0}', b'{"format":1}'),
        (b'"history"', b"7"),
        (b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1,"value":1' + b"0" * 400 + b"}"),
        (b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1e999,"value":5}'),
        (b'{"history":"x","part":1e999}', b'{"format":1,"last":true,"at_ms":1,"by":"","via":"","changes":[]}'),
    ]
    records = [Record(100 + at, key, value, None) for at, (key, value) in enumerate(foreign)]
    good = Record(200, b'{"quota":"client-id=app","key":"consumer_byte_rate"}', b'{"format":1,"value":7}', None)
    # What comes with them is read all the same.
    mine.follow([*records, good])
    assert mine.values == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 7.0}
    assert mine.log.bad_records == len(foreign)
    assert mine.log.newer is None


def test_record_by_hand_takes_effect_at_once_and_a_newer_format_is_remembered() -> None:
    mine = Gateway()
    mine.follow([Record(4, b'{"quota":"user=alice","key":"producer_byte_rate"}', b'{"format":1,"value":5}', None)])
    assert (mine.values, mine.log.version) == ({(ALICE, PRODUCE): 5.0}, 5)
    mine.follow([Record(5, b'{"quota":"user=alice","key":"producer_byte_rate"}', None, None)])
    assert mine.values == {}
    mine = Gateway()
    value = json.dumps({"format": FORMAT + 1, "limit": {"bytes": 5}}).encode()
    mine.follow([Record(7, b'{"quota":"user=alice","key":"producer_byte_rate"}', value, None)])
    assert mine.log.newer is not None
    assert "offset 7 was written by a newer version" in mine.log.newer


def test_names_that_nothing_follows_or_that_were_removed_do_not_pile_up() -> None:
    mine = late([])
    written = Gateway().write("a", (ALICE, PRODUCE, 1.0))[0]
    mine.follow([Record(at, *written, f"name-{at}") for at in range(3_000)])
    assert len(mine.log._open) <= 1_000
    assert mine.log.bad_records == 2_000
    topic, mine = Topic(), Gateway()
    for number in range(50):
        entity = QuotaEntity(user=f"user-{number}")
        mine.follow(topic.transaction(f"s{number}", mine.write(f"s{number}", (entity, FETCH, 1.0), history=5)))
        mine.follow(topic.transaction(f"r{number}", mine.write(f"r{number}", (entity, FETCH, None), history=5)))
    assert len(mine.log._latest) == 0
    assert len(mine.log.history(100)) == 5


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.campaign)])
async def test_l04_an_alteration_of_many_changes_ends_in_slices_with_the_same_outcome(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    # Each change ends a slice, however fast the machine is.
    monkeypatch.setattr("gateway.runtime.slices.SLICE_S", 0.0)
    values = [(QuotaEntity(user=f"user-{at}"), PRODUCE, 1.0) for at in range(count)]
    asked = alteration(*values)
    logs = [TopicLog(), TopicLog()]
    written = logs[0].write("a", asked, effective(asked.changes, logs[0].kept_of, {}), at_ms=1, max_history=100_000)
    records = [Record(at, each.key, each.value, "a") for at, each in enumerate(written)]
    for log in logs:
        log.read_to_end()
        log.feed(records[:-1])
    turns = 0
    ended = False

    async def count_turns() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    applied = await logs[0].feed_in_slices(records[-1])
    ended = True
    await counting
    assert [applied] == logs[1].feed(records[-1:])
    assert applied is not None
    assert len(applied.changes) == count
    assert turns >= count
