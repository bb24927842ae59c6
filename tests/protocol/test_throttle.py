"""throttle_time_ms: found in every response that has it, raised in place, and nothing else touched (hazard C19)."""

import uuid
from functools import cache
from itertools import product
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import produce, throttle
from protocol.api_keys import Api, ApiKey, ThrottlePlace, describe
from protocol.errors import ProtocolError
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden, goldens

OURS = 1_234_567
EVERY = list(wire.every_version())
each_api = every_case("name", wire.api_names())
HEAD_BYTES = 24  # size, correlation id, an empty tag section and the field, and some to spare
TOKENS = {
    "create_delegation_token": ApiKey.CREATE_DELEGATION_TOKEN,
    "renew_delegation_token": ApiKey.RENEW_DELEGATION_TOKEN,
    "expire_delegation_token": ApiKey.EXPIRE_DELEGATION_TOKEN,
    "describe_delegation_token": ApiKey.DESCRIBE_DELEGATION_TOKEN,
}


def api_of(name: str, version: int) -> Api:
    return describe(ApiKey(wire.api_key_of(name)), version)


@cache
def populated(name: str, version: int, throttle_time_ms: int = 3, *, nulls: bool = False) -> bytes:
    """A response with every field set, this one as given."""
    fields = wire.populated(name, version, nulls=nulls)
    if "throttle_time_ms" in fields:
        fields["throttle_time_ms"] = throttle_time_ms
    return wire.response(name, version, **fields)


def has_field(name: str, version: int) -> bool:
    return "throttle_time_ms" in wire.populated(name, version)


@cache
def versions_with_field(name: str) -> list[int]:
    return [version for version in wire.versions(name) if has_field(name, version)]


def patched(frame: bytes, api: Api, throttle_time_ms: int) -> tuple[bytes, int]:
    buffer = bytearray(frame)
    returned = throttle.patch(buffer, api, throttle_time_ms)
    return bytes(buffer), returned


@each_api
def test_c10_c19_response_says_our_number_where_it_has_the_field_and_is_never_lowered(name: str) -> None:
    for version, nulls in product(versions_with_field(name), (False, True)):
        api = api_of(name, version)
        frame, returned = patched(populated(name, version, nulls=nulls), api, OURS)
        assert frame == populated(name, version, OURS, nulls=nulls)
        assert wire.decode_response(name, version, frame).throttle_time_ms == OURS
        assert returned == OURS
        assert throttle.read(frame, api) == OURS
    for version in set(wire.versions(name)) - set(versions_with_field(name)):
        api = api_of(name, version)
        before = populated(name, version)
        assert patched(before, api, OURS) == (before, OURS)
        assert throttle.offset(before, api) is None
        assert throttle.read(before, api) == 0
    for version, ours in product(versions_with_field(name), (0, 1, OURS - 1, OURS)):
        before = populated(name, version, OURS)
        assert patched(before, api_of(name, version), ours) == (before, OURS)


@each_api
def test_field_in_the_head_is_patched_there_and_a_response_that_ends_before_it_refused(name: str) -> None:
    for version in versions_with_field(name):
        api = api_of(name, version)
        frame = populated(name, version)
        if throttle.in_head(api):
            head, returned = patched(frame[:HEAD_BYTES], api, OURS)
            assert head + frame[HEAD_BYTES:] == populated(name, version, OURS)
            assert returned == OURS
        else:
            assert name in ("Produce", "ApiVersions")
    for version in versions_with_field(name):
        api = api_of(name, version)
        frame = populated(name, version)
        place = throttle.offset(frame, api)
        assert place is not None
        assert unpack_from(">i", frame, place)[0] == 3
        for end in {8, place - 1, place, place + 3}:
            with pytest.raises(ProtocolError):
                throttle.offset(frame[:end], api)


@every_case(("name", "version"), [("Heartbeat", 4), ("Produce", 9), ("OffsetDelete", 0)])
def test_tags_in_the_response_header_are_stepped_over(name: str, version: int) -> None:
    api = api_of(name, version)
    tags = [(9, b"x" * 150)]
    fields = wire.populated(name, version) | {"throttle_time_ms": 3}
    frame = wire.response(name, version, header_tags=tags, **fields)
    expected = wire.response(name, version, header_tags=tags, **fields | {"throttle_time_ms": OURS})
    assert patched(frame, api, OURS) == (expected, OURS)


@pytest.mark.parametrize("ours", [2**31 - 1, 2**31, 2**40])
def test_c20_time_beyond_an_int32_is_cut(ours: int) -> None:
    frame, returned = patched(populated("Heartbeat", 4), api_of("Heartbeat", 4), ours)
    assert wire.decode_response("Heartbeat", 4, frame).throttle_time_ms == 2**31 - 1 == returned


def test_negative_time_from_a_broker_counts_as_none() -> None:
    frame, returned = patched(populated("Heartbeat", 4, -5), api_of("Heartbeat", 4), 0)
    assert wire.decode_response("Heartbeat", 4, frame).throttle_time_ms == 0 == returned


@every_case("version", range(5))
def test_c19_refused_api_versions_answer_has_no_field_whatever_was_asked(version: int) -> None:
    refusal = golden("api_versions_unsupported", 99)
    assert patched(refusal, api_of("ApiVersions", version), OURS) == (refusal, OURS)


@every_case("version", [3, 4])
def test_c19_api_versions_error_in_the_layout_that_was_asked_for_is_patched(version: int) -> None:
    before = golden("api_versions_invalid", version)
    frame, _ = patched(before, api_of("ApiVersions", version), OURS)
    assert frame == before[:11] + pack(">i", OURS) + before[15:]


@every_case(("label", "version"), [row for row in goldens() if row[0] in TOKENS])
def test_c19_delegation_token_responses_end_with_the_field(label: str, version: int) -> None:
    api = describe(TOKENS[label], version)
    before = golden(label, version)
    assert api.throttle_place is ThrottlePlace.LAST
    frame, _ = patched(before, api, OURS)
    tail = b"\0" if version >= 2 else b""
    assert before.endswith(bytes(4) + tail)
    assert frame == before[: len(before) - 4 - len(tail)] + pack(">i", OURS) + tail


@pytest.mark.parametrize(("label", "version", "name"), [
    ("create_topics_refused", 6, "CreateTopics"), ("create_topics_refused", 7, "CreateTopics"),
    ("create_partitions_refused", 3, "CreatePartitions"), ("delete_topics_refused", 5, "DeleteTopics"),
    ("delete_topics_refused", 6, "DeleteTopics"),
])  # fmt: skip
def test_throttle_time_of_a_real_controller_is_read(label: str, version: int, name: str) -> None:
    frame = golden(label, version)
    time_ms = throttle.read(frame, api_of(name, version))
    assert 30_000 < time_ms < 40_000  # 39 partitions too many at 1 per second
    assert time_ms == wire.decode_response(name, version, frame).throttle_time_ms


MARK = 0x7A7B7C7D


def produce_partition(version: int, **more: Any) -> dict[str, Any]:
    """A partition of a Produce response; fields that the version lacks are left out."""
    has = wire.populated("Produce", version)["responses"][0]["partition_responses"][0]
    plain = {"index": 0x01010101, "base_offset": -1, "log_append_time_ms": -1, "log_start_offset": 0} | more
    return {name: value for name, value in plain.items() if name in has}


def produce_topic(version: int, name: str, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    identity = {"topic_id": uuid.UUID(int=2**127 + len(name))} if version >= 13 else {"name": name}
    return identity | {"partition_responses": partitions}


def assert_found(frame: bytes, version: int) -> None:
    at = throttle.offset(frame, api_of("Produce", version))
    assert at == frame.index(pack(">i", MARK))


def produce_reply(version: int, topics: list[dict[str, Any]], **more: Any) -> bytes:
    return wire.response("Produce", version, responses=topics, throttle_time_ms=MARK, **more)


odd_partitions = st.fixed_dictionaries(
    {},
    optional={
        "record_errors": st.lists(
            st.fixed_dictionaries(
                {"batch_index": st.integers(0, 3), "batch_index_error_message": st.text(max_size=3)}
            ),
            max_size=2,
        ),
        "error_message": st.none() | st.text(max_size=3) | st.just("m" * 130),
        "current_leader": st.just({"leader_id": 1, "leader_epoch": 0}),
        "error_code": st.sampled_from([0, 6, 0x0102]),
    },
)


@given(
    version=st.integers(1, 13),
    topics=st.lists(
        st.tuples(st.sampled_from([0, 1, 5, 126, 127, 128, 249]), st.lists(odd_partitions, max_size=3)), max_size=3
    ),
    endpoints=st.booleans(),
)
def test_c19_produce_has_the_field_behind_any_topics(version: int, topics: Any, endpoints: bool) -> None:
    rows = [
        produce_topic(version, "t" * length, [produce_partition(version, **more) for more in partitions])
        for length, partitions in topics
    ]
    node = {"node_id": 1, "host": "h", "port": 2, "rack": None}
    assert_found(
        produce_reply(version, rows, **{"node_endpoints": [node]} if endpoints and version >= 10 else {}), version
    )


@every_case("version", range(1, 14))
def test_c19_produce_has_the_field_behind_any_number_of_partitions(version: int) -> None:
    for count, name in product((0, 1, 2, 125, 126, 127, 128, 129, 300), ("topic", "t" * 249)):
        topic = produce_topic(version, name, [produce_partition(version)] * count)
        assert_found(produce_reply(version, [topic]), version)


@every_case("version", range(9, 14))
@pytest.mark.parametrize("where", ["header", "topic", "partition", "tail"])
def test_a24_unknown_tags_anywhere_in_a_produce_reply_are_stepped_over(version: int, where: str) -> None:
    def tags(here: str) -> bytes:
        return wire.tag_section([(77, b"\0\0")] if here == where else [])

    partition = pack(">ihqqq", 0, 0, -1, -1, 0) + b"\1\0" + tags("partition")
    identity = b"i" * 16 if version >= 13 else b"\x02t"
    topic = identity + b"\x02" + partition + tags("topic")
    body = pack(">i", 1) + tags("header") + b"\x02" + topic + pack(">i", MARK) + tags("tail")
    assert_found(wire.framed(body), version)


@every_case("version", range(9, 14))
def test_usual_produce_reply_is_not_walked(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what the relay costs at 16 KiB would be the walk."""
    monkeypatch.setattr(produce, "read_array_length", None)
    for count, length in product((1, 2, 126), (1, 126)):
        topic = produce_topic(version, "t" * length, [produce_partition(version)] * count)
        assert_found(produce_reply(version, [topic]), version)


@every_case("version", [1, 2])
def test_token_response_too_short_for_the_field_is_not_patched_in_its_header(version: int) -> None:
    api = describe(ApiKey.RENEW_DELEGATION_TOKEN, version)
    for end in range(12):
        with pytest.raises(ProtocolError):
            throttle.offset(golden("renew_delegation_token", version)[:end], api)


@given(st.sampled_from(EVERY), st.binary(max_size=60), st.integers(0, 2**31 - 1))
def test_a39_junk_is_patched_inside_frame_or_refused(row: tuple[str, int], junk: bytes, ours: int) -> None:
    api = api_of(*row)
    try:
        frame, returned = patched(junk, api, ours)
    except ProtocolError:
        return
    assert len(frame) == len(junk)
    assert returned >= ours
    assert sum(a != b for a, b in zip(frame, junk, strict=True)) <= 4
    assert frame[:8] == junk[:8]
