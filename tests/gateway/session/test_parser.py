"""The walk through the client's bytes: client ids, counts of requests, and what is refused how."""

from struct import pack

import pytest

from gateway.observability.events import CloseCause
from gateway.session.parser import RequestParser
from protocol.api_keys import ApiKey
from protocol.headers import api_number
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import GatewayCore
from testkit.frames import (
    create_topics,
    heartbeat,
    heartbeat_reply,
    metadata,
    produce,
    produce_reply,
    unknown_api_versions,
)


def test_a_client_id_is_known_once_it_has_come_whole_and_remembered_while_it_stays() -> None:
    session = Conversation().session
    for client_id, expected in [("a", "a"), ("a", "a"), ("b", "b"), ("", ""), (None, ""), (b"\xff", "\ufffd")]:
        frame = b"before" + wire.request("Heartbeat", 4, client_id=client_id)
        length = int.from_bytes(frame[18:20], "big", signed=True)
        assert session.client_id_at(frame, 6, length) == expected
    session = Conversation().session
    frame = wire.request("Heartbeat", 4, client_id="abcdef")
    assert session.client_id_at(frame[:19], 0, 6) is None
    assert session.client_id_at(frame[:20], 0, 6) == "abcdef"


@pytest.mark.parametrize("piece_bytes", [None, 1, 20])
def test_every_request_is_counted_once_whatever_becomes_of_it(piece_bytes: int | None) -> None:
    c = Conversation()
    frames = [heartbeat(1), metadata(2), produce(3, acks=0), unknown_api_versions(4), heartbeat(5)]
    c.client_sends(*frames, piece_bytes=piece_bytes)
    counted = {route.api.key: route.requests for route in c.core.routes.values() if route.requests}
    assert counted == {ApiKey.HEARTBEAT: 2, ApiKey.METADATA: 1, ApiKey.PRODUCE: 1, ApiKey.API_VERSIONS: 1}


def test_bytes_that_end_before_they_begin_are_none() -> None:
    """Compiled too: see `mended_runtime` in setup.py."""
    core = GatewayCore()
    parser = RequestParser(core.routes, max_frame_bytes=1_000)
    frame = metadata(1)
    route = parser.read_head(frame, 0)
    assert route is not None
    parser.frame_end = 2
    assert parser.collect(route, frame, 4) == b""


def test_a_refused_request_is_not_counted() -> None:
    c = Conversation().client_sends(wire.framed(wire.head(ApiKey.PRODUCE, 99, flexible=True)))
    c.closed(CloseCause.UNSUPPORTED_REQUEST)
    assert not any(route.requests for route in c.core.routes.values())


def test_a_produce_without_its_acks_is_refused() -> None:
    tags = wire.tag_section([(1, b"x" * 140_000)])
    head = wire.head(ApiKey.PRODUCE, 9, flexible=False) + tags
    c = Conversation().client_sends(wire.framed(head + bytes(100_000)), piece_bytes=10_000)
    c.closed(CloseCause.MALFORMED_FRAME).upstream_sees()
    frame = wire.framed(wire.head(ApiKey.PRODUCE, 9, flexible=True))
    Conversation().client_sends(frame).closed(CloseCause.MALFORMED_FRAME).upstream_sees()


def test_routes_are_those_of_the_exact_version() -> None:
    c = Conversation().client_sends(metadata(1, version=5))
    assert c.core.routes[api_number(ApiKey.METADATA, 5)].requests == 1


# -- bytes that are no request -------------------------------------------------------------------------------
BAD = [
    pytest.param(pack(">ihhih", 10, 999, 0, 1, -1), CloseCause.UNSUPPORTED_REQUEST, id="unknown api"),
    pytest.param(pack(">i", -1), CloseCause.INVALID_FRAME_SIZE, id="negative size"),
    pytest.param(produce(9)[:4] + pack(">hhih", 0, 3, 9, 5_000), CloseCause.MALFORMED_FRAME, id="client id"),
    pytest.param(pack(">ihhih", 10, 0, 3, 9, -1), CloseCause.MALFORMED_FRAME, id="no acks"),
    pytest.param(pack(">ihhihi", 14, 19, 4, 9, -1, 2**30), CloseCause.MALFORMED_FRAME, id="no topics"),
]


@pytest.mark.parametrize("piece_bytes", [None, 1, 50])
@pytest.mark.parametrize(("bad", "cause"), BAD)
def test_what_was_asked_before_bad_bytes_is_answered_before_the_end(
    bad: bytes, cause: CloseCause, piece_bytes: int | None
) -> None:
    c = Conversation(controller_mutation_rate=1)
    c.client_sends(heartbeat(1), produce(2, size=99), bad, heartbeat(3), piece_bytes=piece_bytes)
    c.upstream_sees(heartbeat(1), produce(2, size=99)).alive().still_muted()
    c.upstream_answers(heartbeat_reply(1)).alive().client_sees(heartbeat_reply(1))
    c.upstream_answers(produce_reply(2)).client_sees(produce_reply(2)).upstream_sees().closed(cause)


@pytest.mark.parametrize(("bad", "cause"), BAD)
def test_bad_bytes_with_nothing_owed_before_them_end_at_once(bad: bytes, cause: CloseCause) -> None:
    Conversation(controller_mutation_rate=1).client_sends(produce(1, acks=0), bad).closed(cause)


@pytest.mark.parametrize(("bad", "cause"), BAD)
def test_bad_bytes_behind_a_mute_are_the_clients_fault_whoever_ends_the_mute(bad: bytes, cause: CloseCause) -> None:
    c = Conversation(controller_mutation_rate=1)
    c.client_sends(create_topics(1, ("a", 1)), heartbeat(2), bad)
    c.serve()
    replies = list(frames_of(c.take_client()))
    assert [wire.correlation_id_of(reply) for reply in replies] == [1, 2]
    c.closed(cause)
