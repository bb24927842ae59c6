"""Whose records a message holds: what kafka-python decodes is the truth, at any split of the bytes."""

from __future__ import annotations

import itertools
import uuid
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api_keys import ApiKey, describe, newest_version
from protocol.headers import HEAD, HEAD_BYTES
from protocol.plain_topics import (
    BATCHES_SEEN,
    OF_FETCHED_PARTITION,
    OF_PRODUCED_PARTITION,
    plain_fetch,
    plain_produce,
    records_at,
    short_batches,
    single_batch_records,
)
from protocol.topic_sizes import MAX_STEPS, MAX_TOPIC_BYTES, TopicWalk
from testkit import wire
from testkit.golden import golden

FETCHES = range(newest_version(ApiKey.FETCH) + 1)
PRODUCES = range(newest_version(ApiKey.PRODUCE) + 1)
SHARE_FETCHES = range(newest_version(ApiKey.SHARE_FETCH) + 1)

Sizes = list[tuple[bytes, int, int]]


def batch(records: int, value_bytes: int = 20) -> bytes:
    """A batch as long as it says, with the head that Kafka gives it."""
    rest = pack(">iBIhiqqqhii", 0, 2, 0, 0, records - 1, 0, 0, -1, -1, -1, records) + b"v" * value_bytes
    return pack(">qi", 0, len(rest)) + rest


def old_message(value_bytes: int = 20) -> bytes:
    return pack(">qiIBB", 0, value_bytes + 6, 0, 1, 0) + b"v" * value_bytes


batches = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=BATCHES_SEEN)
topics = st.lists(st.lists(st.none() | batches, max_size=4), max_size=4)
splits = st.lists(st.integers(0, 2_000), max_size=8) | st.just(list(range(1, 4_000)))


def joined(batches_of: list[tuple[int, int]] | None) -> bytes | None:
    return None if batches_of is None else b"".join(itertools.starmap(batch, batches_of))


def called(at: int, by_id: bool) -> bytes:
    return uuid.UUID(int=at + 1).bytes if by_id else b"topic-%d" % at


def expected(wanted: list[list[list[tuple[int, int]] | None]], by_id: bool) -> Sizes:
    return [
        (
            called(at, by_id),
            sum(len(joined(each) or b"") for each in partitions),
            sum(records for each in partitions for records, _ in each or ()),
        )
        for at, partitions in enumerate(wanted)
    ]


def named(at: int, name: str, by_id: bool) -> dict[str, Any]:
    return {"topic_id": uuid.UUID(int=at + 1)} if by_id else {name: f"topic-{at}"}


def produce(version: int, wanted: list[list[list[tuple[int, int]] | None]], **more: Any) -> bytes:
    topic_data = [
        named(at, "name", version >= 13)
        | {"partition_data": [{"index": i, "records": joined(each)} for i, each in enumerate(partitions)]}
        for at, partitions in enumerate(wanted)
    ]
    return wire.request("Produce", version, acks=1, timeout_ms=1, topic_data=topic_data, client_id="c", **more)


def fetched(version: int, wanted: list[list[list[tuple[int, int]] | None]], *, aborted: bool) -> bytes:
    fields = wire.populated("Fetch", version)
    (like,) = fields["responses"][0]["partitions"][:1]
    fields["node_endpoints"] = []
    if not aborted and "aborted_transactions" in like:
        like["aborted_transactions"] = None
    fields["responses"] = [
        named(at, "topic", version >= 13) | {"partitions": [like | {"records": joined(each)} for each in partitions]}
        for at, partitions in enumerate(wanted)
    ]
    return wire.response("Fetch", version, **fields)


def plainly_fetched(version: int, wanted: list[list[list[tuple[int, int]] | None]]) -> bytes:
    """An answer with nothing that is optional."""
    fields: dict[str, Any] = {"throttle_time_ms": 0, "error_code": 0, "session_id": 1}
    fields["responses"] = [
        named(at, "topic", version >= 13)
        | {"partitions": [{"partition_index": i, "records": joined(each)} for i, each in enumerate(partitions)]}
        for at, partitions in enumerate(wanted)
    ]
    return wire.response("Fetch", version, **fields)


def share_fetched(version: int, wanted: list[list[list[tuple[int, int]] | None]]) -> bytes:
    """An answer with two ranges of acquired records of each partition."""
    fields = wire.populated("ShareFetch", version)
    (like,) = fields["responses"][0]["partitions"][:1]
    fields["responses"] = [
        named(at, "", True) | {"partitions": [like | {"records": joined(each)} for each in partitions]}
        for at, partitions in enumerate(wanted)
    ]
    return wire.response("ShareFetch", version, **fields)


def walked(key: ApiKey, version: int, data: bytes, cuts: list[int]) -> Sizes:
    found: Sizes = []
    walk = TopicWalk(describe(key, version), lambda *each: found.append(each))
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    for start, end in itertools.pairwise(edges):
        walk.take(b"<" + data[start:end] + b">", 1, 1 + end - start)
    return found


@given(st.sampled_from(PRODUCES), topics, splits, st.booleans())
def test_a_produce_request_tells_its_topics_at_any_split(
    version: int, wanted: list[list[list[tuple[int, int]] | None]], cuts: list[int], tagged: bool
) -> None:
    more: dict[str, Any] = {"transactional_id": "tx" if tagged else None} if version >= 3 else {}
    frame = produce(version, wanted, header_tags=[(3, b"tag")] if tagged and version >= 9 else (), **more)
    body_at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    truth = expected(wanted, version >= 13)
    assert walked(ApiKey.PRODUCE, version, frame[body_at:], cuts) == truth
    plain = plain_produce(frame, body_at, len(frame), describe(ApiKey.PRODUCE, version))
    assert plain == (truth if version >= 9 and not tagged else None)


@given(st.sampled_from(FETCHES), topics, splits, st.booleans())
def test_a_fetch_answer_tells_its_topics_at_any_split(
    version: int, wanted: list[list[list[tuple[int, int]] | None]], cuts: list[int], aborted: bool
) -> None:
    frame = fetched(version, wanted, aborted=aborted)
    truth = expected(wanted, version >= 13)
    assert walked(ApiKey.FETCH, version, frame, cuts) == truth
    plain = plain_fetch(b"<" + frame, 1, 1 + len(frame), describe(ApiKey.FETCH, version))
    assert plain in (None, truth)
    if version >= 12 and not aborted and "preferred_read_replica" not in wanted:
        assert wire.decode_response("Fetch", version, frame) is not None


@given(st.sampled_from(SHARE_FETCHES), topics, splits)
def test_a_share_fetch_answer_tells_its_topics_at_any_split(
    version: int, wanted: list[list[list[tuple[int, int]] | None]], cuts: list[int]
) -> None:
    assert walked(ApiKey.SHARE_FETCH, version, share_fetched(version, wanted), cuts) == expected(wanted, True)


@pytest.mark.slow
@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH])
def test_every_version_is_read_alike_in_one_piece_in_any_two_and_byte_by_byte(key: ApiKey) -> None:
    wanted: Any = [[[(3, 20)], None, [(300, 5), (1, 0)], [(2, 1)]], [[(7, 3)]]]
    for version in range(newest_version(key) + 1):
        truth = expected(wanted, key is ApiKey.SHARE_FETCH or version >= 13)
        if key is ApiKey.PRODUCE:
            frames = [produce(version, wanted)[HEAD_BYTES + 1 :]]
        elif key is ApiKey.FETCH:
            frames = [plainly_fetched(version, wanted), fetched(version, wanted, aborted=True)]
        else:
            frames = [share_fetched(version, wanted)]
        for frame in frames:
            for cuts in ([], list(range(len(frame))), *([at] for at in range(1, len(frame)))):
                assert walked(key, version, frame, cuts) == truth


SIZES_OF_VALUES = (0, 60, *range(64, 69), *range(16_320, 16_325), *range(2_097_088, 2_097_093), 2_200_000)
"""With them the sizes of records take one to four bytes, and are the smallest or the largest of these."""


@pytest.mark.parametrize("value_bytes", SIZES_OF_VALUES)
def test_sizes_of_one_to_four_bytes_are_read_at_a_glance(value_bytes: int) -> None:
    wanted: Any = [[[(1, value_bytes)], [(2, 20)]]]
    frame = produce(12, wanted, transactional_id=None)
    at, api = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3], describe(ApiKey.PRODUCE, 12)
    assert plain_produce(frame, at, len(frame), api) == expected(wanted, by_id=False)
    single = produce(12, [[[(1, value_bytes)]]], transactional_id=None)
    assert single_batch_records(single, at, len(single), api) == 1


@pytest.mark.parametrize("length", [1, 125, 126, 127, 128, MAX_TOPIC_BYTES])
def test_names_of_every_length_are_read(length: int) -> None:
    name, records = "\2" * length, {"index": 0, "records": batch(3)}
    topics = [{"name": name, "partition_data": [records]}]
    frame = wire.request("Produce", 12, acks=1, timeout_ms=1, topic_data=topics, client_id="c")
    truth = [(name.encode(), len(batch(3)), 3)]
    at, api = HEAD_BYTES + 1, describe(ApiKey.PRODUCE, 12)
    assert walked(ApiKey.PRODUCE, 12, frame[at:], []) == truth
    assert plain_produce(frame, at, len(frame), api) == (truth if length < 127 else None)
    assert single_batch_records(frame, at, len(frame), api) == (3 if length < 127 else 0)


@pytest.mark.parametrize("records", [None, [(1, 20)]])
@pytest.mark.parametrize("version", [8, 12])
def test_a27_a_walk_ends_after_its_bound_of_elements(version: int, records: list[tuple[int, int]] | None) -> None:
    one = produce(version, [[records]])[HEAD_BYTES + 1 :]
    # Before the partition: its topic's name, and the number of partitions; after it the tags of the topic and of all.
    count_at, tags_at = one.index(b"topic-0") + 7, len(one) - (2 if version >= 9 else 0)
    partition_at = count_at + (1 if version >= 9 else 4)
    for partitions in (MAX_STEPS - 1, MAX_STEPS):
        count = wire.uvarint(partitions + 1) if version >= 9 else pack(">i", partitions)
        body = one[:count_at] + count + one[partition_at:tags_at] * partitions + one[tags_at:]
        found: Sizes = []
        walk = TopicWalk(describe(ApiKey.PRODUCE, version), lambda *each, found=found: found.append(each))
        walk.take(body, 0, len(body))
        # The topic is an element, too.
        assert (len(found), walk.fault is None) == ((1, True) if partitions < MAX_STEPS else (0, False))


@pytest.mark.parametrize("key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH])
def test_a_topic_is_reported_when_its_tags_have_come_too(key: ApiKey) -> None:
    version, wanted = newest_version(key), list[Any]([[]])
    if key is ApiKey.PRODUCE:
        frame = produce(version, wanted)[HEAD_BYTES + 1 :]
    else:
        frame = plainly_fetched(version, wanted) if key is ApiKey.FETCH else share_fetched(version, wanted)
    tags_at = frame.index(called(0, by_id=True)) + 16 + 1
    tagged = frame[:tags_at] + wire.tag_section([(9, b"t" * 50)])
    for come in range(tags_at, len(tagged) + 1):
        found = walked(key, version, tagged[:come], [])
        assert found == (expected(wanted, by_id=True) if come == len(tagged) else [])


def test_the_quick_look_at_a_fetch_takes_what_nearly_always_comes() -> None:
    for version in range(12, FETCHES.stop):
        fields: dict[str, Any] = {"throttle_time_ms": 0, "error_code": 0, "session_id": 1}
        partition = {"partition_index": 0, "error_code": 0, "records": batch(3)}
        fields["responses"] = [named(0, "topic", version >= 13) | {"partitions": [partition] * 200}]
        frame = wire.response("Fetch", version, **fields)
        found = plain_fetch(frame, 0, len(frame), describe(ApiKey.FETCH, version))
        assert found == [(called(0, version >= 13), 200 * len(batch(3)), 600)]


def alike(times: int, *batches: tuple[int, int]) -> list[list[tuple[int, int]]]:
    return [list(batches)] * times


LAYOUTS: Any = {
    "all alike": alike(300, (3, 20)),
    "all large": alike(40, (300, 20_000)),
    "none but one with records": [*alike(50), *alike(1, (1, 90)), *alike(50)],
    "runs that break": [
        *alike(20, (1, 20)),
        *alike(9, (400, 300)),
        *alike(12),
        *alike(30, (1, 64)),
        *alike(30, (1, 65)),
    ],
    "as long, with other batches": [*alike(20, (1, 200)), *alike(1, (1, 70), (1, 69)), *alike(20, (1, 200))],
    "as long, with other counts": [
        *alike(20, (1, 20)),
        *alike(20, (255, 20)),
        *alike(20, (256, 20)),
        *alike(2, (0, 20)),
    ],
    "none alike": [[(1, size)] for size in range(200)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_many_partitions_are_read_as_if_each_were_looked_at_alone(name: str) -> None:
    """Those laid out alike are looked at together; what differs within them ends that, or the quick look."""
    wanted = [LAYOUTS[name], alike(2, (1, 5))]
    for key, version, frame in (
        (ApiKey.PRODUCE, 13, produce(13, wanted, transactional_id=None)),
        (ApiKey.PRODUCE, 9, produce(9, wanted, transactional_id=None)),
        (ApiKey.FETCH, 13, plainly_fetched(13, wanted)),
    ):
        look = plain_produce if key is ApiKey.PRODUCE else plain_fetch
        at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3] if key is ApiKey.PRODUCE else 0
        api = describe(key, version)
        truth = expected(wanted, version >= 13)
        assert look(frame, at, len(frame), api) == truth == walked(key, version, frame[at:], [])
        assert walked(key, version, frame[at:], list(range(0, len(frame), 997))) == truth
        # What follows in the same chunk is no part of it, and what is cut off is missed.
        assert look(frame + frame, at, len(frame), api) == truth
        assert look(frame[:-5], at, len(frame) - 5, api) is None
        # Another byte anywhere: the walk finds the same, or the quick look leaves it to the walk.
        for changed_at in range(at, len(frame), max(1, len(frame) // 60)):
            for byte in (b"\x00", b"\x01"):
                changed = frame[:changed_at] + byte + frame[changed_at + 1 :]
                found = look(changed, at, len(frame), api)
                assert found is None or found == walked(key, version, changed[at:], [])


@pytest.mark.parametrize("value_bytes", [0, 100])
def test_a_partition_among_plain_ones_with_tags_or_a_batch_of_another_length_is_read_as_by_the_walk(
    value_bytes: int,
) -> None:
    one = batch(1, value_bytes)
    frame = produce(12, [alike(6, (1, value_bytes))], transactional_id=None)
    at, api = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3], describe(ApiKey.PRODUCE, 12)
    stride = (frame.rindex(one) - frame.index(one)) // 5
    third_at = frame.index(one) + 2 * stride
    tags_at, length_at = third_at + len(one), third_at + 11
    assert plain_produce(frame, at, len(frame), api) == walked(ApiKey.PRODUCE, 12, frame[at:], [])
    tagged = frame[:tags_at] + b"\1" + frame[tags_at + 1 :]
    assert plain_produce(tagged, at, len(frame), api) is None
    for byte in (frame[length_at] - 1, frame[length_at] + 1):
        changed = frame[:length_at] + bytes([byte]) + frame[length_at + 1 :]
        assert plain_produce(changed, at, len(frame), api) == walked(ApiKey.PRODUCE, 12, changed[at:], [])


class Sliced(bytes):
    """Counts what is copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            Sliced.copied += len(found)
        return found


def test_partitions_that_end_each_run_as_it_begins_cost_no_more_than_themselves() -> None:
    """Looked at to the end each time, a request of 1,000 would be copied a hundred times."""
    frame = produce(12, [[[(-(i % 2), 0)] for i in range(1_000)]], transactional_id=None)
    at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    Sliced.copied = 0
    found = plain_produce(Sliced(frame), at, len(frame), describe(ApiKey.PRODUCE, 12))
    assert found is None or found == walked(ApiKey.PRODUCE, 12, frame[at:], [])
    assert Sliced.copied < 2 * len(frame)


def test_the_walk_through_a_whole_message_copies_the_names_of_topics_and_nothing_else() -> None:
    frame = produce(8, [alike(50, (1, 20)), alike(50, (2, 20))], transactional_id=None)
    Sliced.copied = 0
    found: Sizes = []
    walk = TopicWalk(describe(ApiKey.PRODUCE, 8), lambda *each: found.append(each))
    walk.take(Sliced(frame), HEAD_BYTES + 1, len(frame))
    assert [records for _, _, records in found] == [50, 100]
    assert Sliced.copied <= 2 * len(b"topic-0")


@pytest.mark.parametrize("fixed", [OF_PRODUCED_PARTITION, OF_FETCHED_PARTITION])
def test_as_many_partitions_with_short_batches_are_skipped_together_as_the_caller_wants(fixed: int) -> None:
    wanted, one = [alike(6, (3, 20))], batch(3, 20)
    produced = fixed == OF_PRODUCED_PARTITION
    frame = produce(12, wanted, transactional_id=None) if produced else plainly_fetched(12, wanted)
    stride = (frame.rindex(one) - frame.index(one)) // 5
    second_at = frame.index(one) + stride - fixed - 1
    for most in range(6):
        skipped = short_batches(frame, second_at, len(frame), most, fixed)
        assert skipped == (0, second_at + most * stride, most * len(one), most * 3)


def test_partitions_of_older_versions_are_never_read_in_the_layout_of_newer_ones() -> None:
    """The sizes of older versions take four bytes. These messages also look like ones with shorter sizes."""
    ends_with_zero = batch(256, 0)
    # The size is a gigabyte, so its records have not arrived.
    frame = produce(8, [[[(256, 0)], None]], transactional_id=None)[:-4] + b"\x3e" + batch(5, 0) + b"\0"
    assert walked(ApiKey.PRODUCE, 8, frame[HEAD_BYTES + 1 :], []) == []
    # The replica's number, the error and the high watermark read as the size, the length and the magic of a batch.
    like = {"log_start_offset": 0, "aborted_transactions": [], "preferred_read_replica": -1, "error_code": 0}
    partitions = [
        like | {"partition_index": 0, "records": ends_with_zero},
        like | {"partition_index": 1, "preferred_read_replica": 0x3E0000, "records": None},
        like | {"partition_index": 0, "error_code": 49, "high_watermark": 2 << 24, "records": batch(7, 20)},
    ]
    answer = wire.response("Fetch", 11, responses=[{"topic": "topic-0", "partitions": partitions}])
    assert walked(ApiKey.FETCH, 11, answer, []) == expected([[[(256, 0)], None, [(7, 20)]]], by_id=False)


@pytest.mark.parametrize("version", [8, 9, 12, 13])
@pytest.mark.parametrize(("records", "value_bytes"), [(300, 0), (1, 60), (300, 20_000)])
def test_records_of_a_single_batch_are_known_from_its_head_on(version: int, records: int, value_bytes: int) -> None:
    frame = produce(version, [[[(records, value_bytes)]]], transactional_id=None)
    at, api = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3], describe(ApiKey.PRODUCE, version)
    truth = records if version >= 9 else 0
    # Up to the first byte of the records; what follows in the same chunk is no part of it.
    known_at = len(frame) - value_bytes - 3
    for come in (*range(min(known_at + 3, len(frame))), len(frame)):
        found = single_batch_records(frame[:come], at, len(frame), api)
        assert found == (truth if come >= known_at else 0)
    assert single_batch_records(frame + frame, at, len(frame), api) == truth
    # Another byte anywhere: it finds what the walk finds, or leaves the request to the walk.
    for changed_at in range(at, min(len(frame), at + 150)):
        for byte in (b"\x00", b"\x01", b"\x02", b"\x7f", b"\xff"):
            changed = frame[:changed_at] + byte + frame[changed_at + 1 :]
            found = single_batch_records(changed, at, len(frame), api)
            assert not found or found == sum(each[2] for each in walked(ApiKey.PRODUCE, version, changed[at:], []))


@pytest.mark.parametrize("wanted", [[], [[None]], [[[]]], [[[(1, 0), (2, 0)]]], [[[(1, 0)], [(2, 0)]]],
                                    [[[(1, 0)]], [[(2, 0)]]], [[[(-1, 0)]]]])  # fmt: skip
def test_other_requests_than_those_with_one_batch_are_left_to_a_closer_look(
    wanted: list[list[list[tuple[int, int]] | None]],
) -> None:
    frame = produce(9, wanted, transactional_id=None)
    at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    assert single_batch_records(frame, at, len(frame), describe(ApiKey.PRODUCE, 9)) == 0


def test_a_name_that_is_null_is_left_to_the_walk() -> None:
    frame = produce(12, [[None]], transactional_id=None)
    name_at = frame.index(b"topic-0") - 1
    null = frame[:name_at] + b"\0" + frame[name_at + 8 :]
    at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    assert walked(ApiKey.PRODUCE, 12, null[at:], []) == [(b"", 0, 0)]
    assert plain_produce(null, at, len(null), describe(ApiKey.PRODUCE, 12)) is None


@pytest.mark.parametrize("null", [b"\x80\x00", b"\x80\x80\x80\x80\x00"])
def test_size_that_is_written_longer_than_it_is_is_left_to_the_walk(null: bytes) -> None:
    frame = produce(12, [[None]], transactional_id=None)
    null_at = frame.index(b"topic-0") + 7 + 1 + 4
    assert frame[null_at] == 0
    longer = frame[:null_at] + null + frame[null_at + 1 :]
    at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    api = describe(ApiKey.PRODUCE, 12)
    assert walked(ApiKey.PRODUCE, 12, longer[at:], []) == walked(ApiKey.PRODUCE, 12, frame[at:], [])
    for end in range(len(longer) - 3, len(longer) + 1):
        assert plain_produce(longer[:end], at, end, api) is None


@pytest.mark.parametrize("version", range(3, 14))
def test_what_a_real_client_has_sent_is_read_as_kafka_python_reads_it(version: int) -> None:
    frame = golden("produce", version, "request")
    body_at = HEAD_BYTES + HEAD.unpack_from(frame, 0)[3]
    topics = wire.decode_request("Produce", version, frame).topic_data
    found = walked(ApiKey.PRODUCE, version, frame[body_at:], [])
    assert [(size, records > 0) for _, size, records in found] == [
        (sum(len(each.records) for each in topic.partition_data), True) for topic in topics
    ]


def test_behind_the_first_batches_the_rest_is_taken_to_be_like_them() -> None:
    many = batch(10) * 50
    assert records_at(b"x" + many, 1, len(many)) == 500
    assert records_at(old_message() * 3, 0, 3 * len(old_message())) == 3
    partial = batch(7) + batch(9)[:-1]  # an answer may end within a batch
    assert records_at(partial, 0, len(partial)) == 16
    assert records_at(b"\0" * 100, 0, 100) == 0
    assert records_at(batch(-5), 0, len(batch(-5))) == 0
    # A batch that is shorter than its head has no number of records, whatever follows.
    short = pack(">qiiB", 0, 20, 0, 2) + bytes(15)
    assert records_at(short + b"\1" * 100, 0, len(short)) == 0


@pytest.mark.parametrize("value_bytes", range(0, 200, 7))
def test_the_walk_takes_the_rest_to_be_like_the_first_batches_too(value_bytes: int) -> None:
    wanted: Any = [[[(7, 20)] * BATCHES_SEEN + [(1, value_bytes)]]]
    records = joined(wanted[0][0]) or b""
    found = walked(ApiKey.PRODUCE, 8, produce(8, wanted)[HEAD_BYTES + 1 :], [])
    assert found == [(b"topic-0", len(records), records_at(records, 0, len(records)))]


@given(
    st.binary(max_size=300), splits, st.sampled_from([(ApiKey.PRODUCE, 9), (ApiKey.PRODUCE, 3), (ApiKey.FETCH, 12)])
)
def test_junk_ends_a_walk_and_nothing_else(junk: bytes, cuts: list[int], api: tuple[ApiKey, int]) -> None:
    assert walked(*api, junk, []) == walked(*api, junk, cuts)
    plain_produce(junk, 0, len(junk), describe(ApiKey.PRODUCE, 9))
    plain_fetch(junk, 0, len(junk), describe(ApiKey.FETCH, 12))


def test_a_number_of_more_than_five_bytes_ends_a_walk_at_its_fifth() -> None:
    for number, is_fault in ((b"\x80\x80\x80\x80", False), (b"\x80\x80\x80\x80\x80", True)):
        walk = TopicWalk(describe(ApiKey.PRODUCE, 9), lambda *_: None)
        walk.take(number, 0, len(number))
        assert (walk.fault is not None) is is_fault
