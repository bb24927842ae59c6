"""Streams groups on the wire: what real brokers and clients sent, and layouts that are cut short."""

from __future__ import annotations

import pytest

from protocol.api_keys import ApiKey, describe
from protocol.errors import ProtocolError
from protocol.headers import correlation_id_of
from protocol.steps import finish
from protocol.streams_groups import (
    Heartbeat,
    HeartbeatAnswer,
    Subtopology,
    describe_request,
    parse_description,
    parse_heartbeat,
    parse_heartbeat_answer,
)
from testkit import wire
from testkit.frames import streams_heartbeat, subtopology
from testkit.golden import golden

HEARTBEAT = [describe(ApiKey.STREAMS_GROUP_HEARTBEAT, version) for version in range(2)]
GOLDEN = Subtopology(
    b"0", frozenset({b"kept"}), frozenset(), frozenset(), frozenset({b"golden-streams-changelog"}), ()
)


@pytest.mark.parametrize("version", [0, 1])
def test_a_recorded_join_and_its_group_have_the_same_topology(version: int) -> None:
    request = golden("streams_group_heartbeat", version, "request")
    found = finish(parse_heartbeat(request, HEARTBEAT[version]))
    assert found == Heartbeat(b"golden-streams", 0, (GOLDEN,))
    answer = golden("streams_group_heartbeat", version)
    parsed = finish(parse_heartbeat_answer(answer, HEARTBEAT[version]))
    body = wire.decode_response("StreamsGroupHeartbeat", version, answer)
    codes = {each.status_code for each in body.status or ()}
    assert parsed == HeartbeatAnswer(body.error_code, not codes & {1, 2, 3}, 3 in codes)


def test_a_recorded_description_is_read() -> None:
    found = finish(parse_description(golden("streams_group_describe", 0)))
    body = wire.decode_response("StreamsGroupDescribe", 0, golden("streams_group_describe", 0)).groups[0]
    assert found.error_code == body.error_code
    assert [each.name.decode() for each in found.topology] == [
        each.subtopology_id for each in body.topology.subtopologies
    ]


def test_every_field_of_a_topology_is_read() -> None:
    first = subtopology(
        "a",
        "b",
        name="first",
        changelogs=["c"],
        sinks=["r"],
        repartitions={"s": 3, "t": 0},
        copartitioned=[([0], [1]), ([1, 9], [-1])],
    )
    found = finish(parse_heartbeat(streams_heartbeat("g", first, subtopology("a")), HEARTBEAT[0]))
    assert found.topology is not None
    assert found.topology[0] == Subtopology(
        b"first",
        frozenset({b"a", b"b"}),
        frozenset({b"r"}),
        frozenset({(b"s", 3), (b"t", 0)}),
        frozenset({b"c"}),
        (frozenset({b"a", b"t"}), frozenset({b"b"})),
    )


def test_a_heartbeat_without_a_topology_is_read() -> None:
    frame = streams_heartbeat("g", member_epoch=4)
    assert finish(parse_heartbeat(frame, HEARTBEAT[0])) == Heartbeat(b"g", 4, None)


@pytest.mark.parametrize(
    ("status", "ready", "creates"),
    [
        (None, True, False),
        ([], True, False),
        ([(5, "delayed")], True, False),
        ([(0, "stale"), (1, "no source")], False, False),
        ([(2, "numbers differ")], False, False),
        ([(5, "delayed"), (3, "Internal topics are missing: a")], False, True),
        ([(3, "Internal topics are missing: a; Unauthorized to CREATE on topics a.")], False, False),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_statuses_say_whether_topics_are_created(
    version: int, status: list[tuple[int, str]] | None, ready: bool, creates: bool
) -> None:
    told = None if status is None else [{"status_code": code, "status_detail": text} for code, text in status]
    fields = {**wire.populated("StreamsGroupHeartbeat", version), "status": told}
    for error_code in (0, 16):
        fields["error_code"] = error_code
        frame = wire.response("StreamsGroupHeartbeat", version, **fields)
        found = finish(parse_heartbeat_answer(frame, HEARTBEAT[version]))
        ok = error_code == 0
        assert found == HeartbeatAnswer(error_code, ok and ready, ok and creates)


def test_the_question_about_a_group_is_kafkas() -> None:
    frame = describe_request(b"g\xc3\xa4", correlation_id=-5, client_id="c")
    body = wire.decode_request("StreamsGroupDescribe", 0, frame)
    assert (correlation_id_of(frame), body.group_ids, body.include_authorized_operations) == (-5, ["gä"], False)


def test_no_length_of_a_frame_is_read_past_its_end() -> None:
    part = subtopology("a", changelogs=["c"], repartitions={"r": 0}, copartitioned=[([0], [0])])
    request = streams_heartbeat("g", part)
    whole = finish(parse_heartbeat(request, HEARTBEAT[0]))
    for length in range(12, len(request)):
        try:
            assert finish(parse_heartbeat(request[:length], HEARTBEAT[0])) == whole
        except ProtocolError:
            continue
    for frame in (golden("streams_group_describe", 0), golden("streams_group_heartbeat", 0)):
        for length in range(8, len(frame)):
            for parse in (parse_description, lambda cut: parse_heartbeat_answer(cut, HEARTBEAT[0])):
                try:
                    finish(parse(frame[:length]))
                except ProtocolError:
                    continue
