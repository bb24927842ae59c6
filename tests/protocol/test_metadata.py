"""Metadata and automatic topic creation: which topics are asked for, and whether the broker may create them."""

import uuid
from struct import pack
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe
from protocol.errors import ProtocolError, TooManyElements
from protocol.metadata import (
    FIRST_VERSION_WITH_FLAG,
    MOST_NAMES,
    MetadataQuestion,
    downgrade_answer,
    forbid_creation,
    parse_metadata_question,
    topics_in_error,
    upgrade_question,
)
from protocol.steps import finish
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

ID = uuid.UUID(int=77 << 64 | 1)
VERSIONS = range(14)
WITH_FLAG = range(FIRST_VERSION_WITH_FLAG, 14)
WITHOUT_FLAG = range(FIRST_VERSION_WITH_FLAG)


def request(version: int, names: list[str] | None, *, create: bool = True) -> bytes:
    fields: dict[str, Any] = {"topics": None if names is None else [{"name": name} for name in names]}
    if version >= FIRST_VERSION_WITH_FLAG:
        fields["allow_auto_topic_creation"] = create
    if version >= 8:
        fields["include_topic_authorized_operations"] = True
    tags = [(1, b"tag")] if version >= 9 else ()
    return wire.request("Metadata", version, correlation_id=-3, client_id=b"\xff", header_tags=tags, **fields)


def parse(version: int, frame: bytes) -> MetadataQuestion:
    return finish(parse_metadata_question(frame, describe(ApiKey.METADATA, version)))


@every_case("version", VERSIONS)
def test_names_are_read_in_order_and_all_topics_are_none(version: int) -> None:
    names = ["b", "gr\u00fc\u00df", "a"]
    assert parse(version, request(version, names)).names == tuple(name.encode() for name in names)
    assert parse(version, request(version, [])).names == ()
    if version >= 1:
        assert parse(version, request(version, None)).names == ()


@every_case("version", range(10, 14))
def test_topics_asked_for_by_id_have_no_name(version: int) -> None:
    topics = [{"topic_id": ID, "name": None}, {"topic_id": None, "name": "a"}]
    frame = wire.request("Metadata", version, topics=topics, allow_auto_topic_creation=True)
    assert parse(version, frame).names == (b"a",)


@every_case("version", WITH_FLAG)
def test_permission_to_create_is_read_and_taken_away_alone(version: int) -> None:
    frame = request(version, ["a", "b"])
    question = parse(version, frame)
    assert question.may_create
    assert forbid_creation(frame, question) == request(version, ["a", "b"], create=False)
    assert not parse(version, request(version, ["a"], create=False)).may_create


@every_case("version", WITHOUT_FLAG)
def test_older_question_lets_the_broker_create_and_becomes_a_v4_question_that_does_not(version: int) -> None:
    frame = request(version, ["a", "gr\u00fc\u00df"])
    question = parse(version, frame)
    assert (question.may_create, question.flag_offset) == (True, None)
    with pytest.raises(ValueError):
        forbid_creation(frame, question)
    upgraded = upgrade_question(frame, describe(ApiKey.METADATA, version), question)
    assert upgraded == request(4, ["a", "gr\u00fc\u00df"], create=False)


@every_case("version", WITHOUT_FLAG)
def test_v4_answer_becomes_the_answer_of_the_older_version(version: int) -> None:
    def only(known: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
        """`fields` without what `known` does not have, at every depth."""
        kept = {}
        for name, value in fields.items():
            if name in known:
                nested = value and isinstance(value, list) and isinstance(value[0], dict)
                kept[name] = [only(known[name][0], item) for item in value] if nested else value
        return kept

    for nulls in (False, True):
        newer = wire.populated("Metadata", 4, nulls=nulls)
        older = only(wire.populated("Metadata", version), newer)
        downgraded = finish(
            downgrade_answer(
                wire.response("Metadata", 4, correlation_id=-3, **newer), describe(ApiKey.METADATA, version)
            )
        )
        assert downgraded == wire.response("Metadata", version, correlation_id=-3, **older)
    downgraded = finish(downgrade_answer(golden("metadata", 4), describe(ApiKey.METADATA, version)))
    answer = wire.decode_response("Metadata", version, downgraded)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("kept", 0), ("absent", 3)]
    assert len(answer.brokers) == 3


@every_case("version", VERSIONS)
def test_topics_with_the_errors_asked_for_are_named(version: int) -> None:
    fields = wire.populated("Metadata", version)
    known, absent = fields["topics"]
    known["error_code"], absent["error_code"] = 0, 3
    leaderless = known | {"error_code": 5, "name": "leaderless"}
    fields["topics"] = [known, absent, leaderless, absent | {"name": "other"}]
    frame = wire.response("Metadata", version, **fields)
    expected = [absent["name"].encode(), b"other"]
    assert list(finish(topics_in_error(frame, describe(ApiKey.METADATA, version), {3}))) == expected
    assert list(finish(topics_in_error(frame, describe(ApiKey.METADATA, version), {5}))) == [b"leaderless"]
    unknown = [b"absent"] if version >= FIRST_VERSION_WITH_FLAG else []
    assert (
        list(finish(topics_in_error(golden("metadata", version), describe(ApiKey.METADATA, version), {3}))) == unknown
    )


@every_case("version", range(9, 14))
def test_null_list_of_topics_names_none(version: int) -> None:
    frame = wire.response("Metadata", version, cluster_id=None, brokers=[], topics=[])
    # Behind header, throttle time, no brokers, no cluster id and the controller's id.
    at = 9 + 4 + 1 + 1 + 4
    assert frame[at] == 1
    null = frame[:at] + b"\0" + frame[at + 1 :]
    assert list(finish(topics_in_error(null, describe(ApiKey.METADATA, version), {3}))) == []


@every_case("version", [12, 13])
def test_unknown_topic_without_a_name_is_not_named(version: int) -> None:
    row: dict[str, Any] = {"error_code": 3, "name": None, "topic_id": ID, "partitions": []}
    answer = wire.response("Metadata", version, topics=[row])
    assert list(finish(topics_in_error(answer, describe(ApiKey.METADATA, version), {3}))) == []


@every_case("version", VERSIONS)
def test_truncated_frames_are_protocol_errors(version: int) -> None:
    api = describe(ApiKey.METADATA, version)
    question = request(version, ["a", "b"])
    flag_offset = parse(version, question).flag_offset
    needed = len(question) if flag_offset is None else flag_offset + 1
    for end in range(needed):
        with pytest.raises(ProtocolError):
            parse(version, question[:end])
    answer = golden("metadata", version)
    behind = {8: 4, 9: 5, 10: 5, 11: 1, 12: 1, 13: 3}.get(version, 0)
    for end in range(len(answer) - behind):
        with pytest.raises(ProtocolError):
            finish(topics_in_error(answer[:end], api, {3}))


@every_case("version", [1, 9])
def test_a27_more_names_than_are_walked_are_refused_before_one_is_read(version: int) -> None:
    flexible = version >= 9
    length = wire.uvarint(MOST_NAMES + 2) if flexible else pack(">i", MOST_NAMES + 1)
    header = wire.head(ApiKey.METADATA, version, flexible=flexible)
    with pytest.raises(TooManyElements):
        parse(version, wire.framed(header + length + bytes(1_048_576)))
