"""Brokers' addresses behind the records of a reply: ours in their place, however the reply arrives."""

from __future__ import annotations

import itertools
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.events import CloseCause
from protocol import node_endpoints
from testkit import wire
from testkit.conversation import Conversation, frames_of
from testkit.core import FIRST_PORT, GATEWAY_HOST
from testkit.frames import heartbeat, heartbeat_reply

SHORT, LONG = "b.io", "broker-with-a-longer-name.than.the.gateways"
WITH_ENDPOINTS = [
    *(("Fetch", version) for version in (16, 17, 18)),
    *((name, version) for name in ("ShareFetch", "ShareAcknowledge") for version in range(3)),
]


def endpoint(node_id: int, host: str) -> dict[str, Any]:
    return {"node_id": node_id, "host": host, "port": 9_092, "rack": None if node_id % 2 else "rack"}


EVERY = [*WITH_ENDPOINTS, *(("Produce", version) for version in range(10, 14))]
"""Those of Produce are collected and rewritten whole."""


def reply(name: str, version: int, brokers: list[tuple[int, str]], records: int = 3, *, nulls: bool = False) -> bytes:
    """A reply in which every other field has a value of its own."""
    fields = wire.populated(name, version, nulls=nulls)
    if name in ("Fetch", "ShareFetch"):
        for topic in fields["responses"]:
            for partition in topic["partitions"]:
                if partition["records"] is not None:
                    partition["records"] = b"r" * records
    fields["node_endpoints"] = [endpoint(*broker) for broker in brokers]
    return wire.response(name, version, **fields)


def asked(name: str, version: int) -> Conversation:
    fields: dict[str, Any] = {"acks": 1} if name == "Produce" else {}
    request = wire.request(name, version, **fields)
    return Conversation().client_sends(request).upstream_sees(request)


def told(name: str, version: int, frame: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A reply without its endpoints, and those."""
    fields = wire.decode_response(name, version, frame).to_dict()
    return fields, [dict(one) for one in fields.pop("node_endpoints", [])]


pieces = st.lists(st.integers(0, 1_200), max_size=8) | st.just(list(range(1, 2_000)))
some_brokers = st.lists(st.tuples(st.integers(1, 11), st.sampled_from([SHORT, LONG])), max_size=6)


@given(st.sampled_from(EVERY), some_brokers, st.sampled_from([0, 1, 130, 700]), pieces, st.booleans(), st.booleans())
def test_e02_e03_every_endpoint_is_ours_at_any_split(
    api: tuple[str, int], brokers: list[tuple[int, str]], records: int, cuts: list[int], known: bool, nulls: bool
) -> None:
    """Ids 1 to 10 have a port here; 11 has none and is left out. A short name has to make place for a longer one."""
    name, version = api
    sent = reply(name, version, brokers, records, nulls=nulls)
    c = asked(name, version).client_sends(heartbeat(2))
    if known:
        for node_id, host in brokers:
            c.core.context.topology.cluster.learn(node_id, host, 9_092)
    c.take_upstream()
    stream = sent + heartbeat_reply(2)
    edges = [0, *sorted({cut for cut in cuts if cut < len(stream)}), len(stream)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            c.upstream_answers(stream[start:end])
    c.alive()

    got, after = frames_of(c.take_client())
    assert after == heartbeat_reply(2)
    assert SHORT.encode() not in got
    assert LONG.encode() not in got
    fields, endpoints = told(name, version, got)
    assert fields == told(name, version, sent)[0]
    ours = [
        endpoint(node_id, GATEWAY_HOST) | {"port": FIRST_PORT + node_id - 1}
        for node_id, _ in brokers
        if node_id <= 10
    ]
    whole = not any(cut in range(1, len(sent)) for cut in cuts)
    unique = len({node_id for node_id, _ in brokers}) == len(brokers)
    if whole or name == "Produce" or (known and unique) or all(host == LONG for _, host in brokers):
        assert endpoints == ours
    else:
        assert endpoints == ours[: len(endpoints)]


@pytest.mark.parametrize(("name", "version"), WITH_ENDPOINTS)
def test_unknown_tags_and_what_names_no_broker_stay(name: str, version: int) -> None:
    plain = reply(name, version, [])
    tagged = wire.framed(plain[4:-1] + wire.tag_section([(7, b"new"), (10_000, b"x" * 200)]))
    for sent in (plain, tagged):
        for piece_bytes in (None, 5, len(sent) - 1):
            asked(name, version).upstream_answers(sent, piece_bytes=piece_bytes).client_sees(sent)


@given(
    st.lists(
        st.lists(st.sampled_from([None, 0, 1, 126, 127, 128, 16_382, 16_383, 2_097_152]), max_size=3), max_size=3
    ),
    st.sampled_from([0, 126, 127, 200]),
    st.booleans(),
)
def test_e02_the_quick_look_at_a_fetch_finds_what_the_walk_finds(
    topics: list[list[int | None]], more: int, endpoints: bool
) -> None:
    """Sizes at the edges of their varints; `more` small partitions in the first topic."""
    rows = [sizes + [0] * (more if index == 0 else 0) for index, sizes in enumerate(topics)]
    responses = [
        {
            "partitions": [
                {"aborted_transactions": None, "records": None if size is None else b"\0" * size} for size in sizes
            ]
        }
        for sizes in rows
    ]
    brokers = [endpoint(1, SHORT)] if endpoints else []
    sent = wire.response("Fetch", 18, responses=responses, node_endpoints=brokers)
    got = asked("Fetch", 18).upstream_answers(sent).take_client()
    assert (got == sent) == (not endpoints)
    assert SHORT.encode() not in got


def test_a_usual_fetch_reply_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk takes five times as long."""
    asked("Fetch", 18)
    monkeypatch.setattr(node_endpoints, "_walk", None)
    plain = {"aborted_transactions": None}
    for size in (None, 0, 1, 126, 127, 128, 16_382, 16_383, 2_097_150):
        for topics, partitions in ((0, 0), (1, 1), (2, 2), (126, 1), (1, 126), (1, 127), (1, 200)):
            if (size or 0) * topics * partitions > 8_000_000:
                continue
            records = None if size is None else bytes([7]) * size
            responses = [{"partitions": [{**plain, "records": records}] * partitions}] * topics
            sent = wire.response("Fetch", 18, responses=responses)
            assert asked("Fetch", 18).upstream_answers(sent).take_client() == sent, (size, topics, partitions)


def test_unknown_tags_keep_their_order_and_the_filler_takes_a_number_of_its_own() -> None:
    plain, sent = reply("Fetch", 18, []), reply("Fetch", 18, [(1, LONG)])
    size = len(sent) - len(plain) - 2  # behind the tag's number and length
    known = (0, sent[-size:])
    others = [(7, b"new"), (10_000, b"taken"), (20_000, b"last")]
    tagged = wire.framed(plain[4:-1] + wire.tag_section([known, *others]))
    got = asked("Fetch", 18).upstream_answers(tagged, piece_bytes=100).take_client()
    ours = reply("Fetch", 18, [(1, GATEWAY_HOST)]).replace(pack(">i", 9_092), pack(">i", FIRST_PORT))
    endpoints = (0, ours[-(size - len(LONG) + len(GATEWAY_HOST)) :])
    filler = (10_001, bytes(len(LONG) - len(GATEWAY_HOST) - 3))
    expected = wire.tag_section([endpoints, *others[:2], filler, others[2]])
    assert got == tagged[: len(plain) - 1] + expected


@pytest.mark.parametrize("piece_bytes", [None, 65_536])
def test_an_end_of_more_than_a_mebibyte_closes(piece_bytes: int | None) -> None:
    plain = reply("Fetch", 18, [])
    sent = wire.framed(plain[4:-1] + wire.tag_section([(7, bytes(2**20))]))
    c = asked("Fetch", 18).upstream_answers(sent[:-1], piece_bytes=piece_bytes)
    c.closed(CloseCause.UPSTREAM_MALFORMED)


@pytest.mark.parametrize(("name", "version"), WITH_ENDPOINTS)
def test_a_shorter_list_is_filled_to_the_size_that_was_told(name: str, version: int) -> None:
    for surplus in (*range(6), *range(120, 140)):  # sizes in one byte and in two
        sent = reply(name, version, [(1, "h" * (len(GATEWAY_HOST) + surplus))])
        got = asked(name, version).upstream_answers(sent[:-1]).upstream_answers(sent[-1:]).take_client()
        assert len(got) == len(sent)
        assert told(name, version, got)[1] == [endpoint(1, GATEWAY_HOST) | {"port": FIRST_PORT}]


@pytest.mark.parametrize(("name", "version"), WITH_ENDPOINTS)
def test_a_reply_that_does_not_end_as_it_should_closes(name: str, version: int) -> None:
    sent = reply(name, version, [(1, SHORT)])
    for bad in (wire.framed(sent[4:-4]), wire.framed(sent[4:] + b"\x00"), wire.framed(sent[4:60])):
        for piece_bytes in (None, 7):
            c = asked(name, version).upstream_answers(bad, piece_bytes=piece_bytes)
            c.closed(CloseCause.UPSTREAM_MALFORMED)
            assert SHORT.encode() not in c.take_client()


@pytest.mark.parametrize("name", ["Fetch", "ShareFetch"])
def test_nothing_is_held_of_the_records(name: str) -> None:
    version = 2 if name == "ShareFetch" else 18
    sent = reply(name, version, [(1, LONG)], 300_000)
    c = asked(name, version)
    most = len(sent) - len(reply(name, version, [], 300_000)) + 10
    held = 0
    for at in range(0, len(sent), 1_000):
        held += len(sent[at : at + 1_000]) - len(c.upstream_answers(sent[at : at + 1_000]).take_client())
        assert held <= most
    assert held == 0


@pytest.mark.parametrize("name", ["Fetch", "ShareFetch"])
@pytest.mark.parametrize("piece_bytes", [None, 100])
def test_a_throttled_reply_has_its_wait_at_the_front_and_our_addresses_at_the_end(
    name: str, piece_bytes: int | None
) -> None:
    sent = reply(name, 2 if name == "ShareFetch" else 18, [(1, SHORT), (2, LONG)], 2_000)
    version = 2 if name == "ShareFetch" else 18
    c = Conversation(consumer_byte_rate=100).client_sends(wire.request(name, version, max_bytes=1))
    c.take_upstream()
    got = c.upstream_answers(sent, piece_bytes=piece_bytes).take_client()
    fields, endpoints = told(name, version, got)
    assert fields.pop("throttle_time_ms") > 10_000
    assert fields == {key: value for key, value in told(name, version, sent)[0].items() if key != "throttle_time_ms"}
    assert [one["host"] for one in endpoints] in ([GATEWAY_HOST] * 2, [GATEWAY_HOST])
    c.still_muted()


def test_c12_a_share_fetch_delivers_its_records_and_acknowledges_whatever_the_quota_says() -> None:
    """Its acknowledgements would be lost, or the records that the broker has locked for the client."""
    request = wire.request("ShareFetch", 2, max_bytes=50_000_000, min_bytes=20_000)
    c = Conversation(consumer_byte_rate=100).client_sends(request)
    c.upstream_sees(wire.request("ShareFetch", 2, max_bytes=1_000, min_bytes=1_000))
    other = c.another().client_sends(wire.request("ShareFetch", 2, max_bytes=1))
    other.take_upstream()
    sent = reply("ShareFetch", 2, [], 20_000)
    c.upstream_answers(sent)
    records = [
        partition["records"]
        for topic in told("ShareFetch", 2, other.upstream_answers(sent).take_client())[0]["responses"]
        for partition in topic["partitions"]
    ]
    assert records == ["r" * 20_000] * 4
    acknowledged = [{"first_offset": 3, "last_offset": 4, "acknowledge_types": [1]}]
    topics = [{"partitions": [{"partition_index": 1, "acknowledgement_batches": acknowledged}]}]
    fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "share_session_epoch": 3, "topics": topics}
    nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    wish = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1, "max_records": 9}
    next_one = c.another().client_sends(wire.request("ShareFetch", 2, **wish, **fields))
    next_one.upstream_sees(wire.request("ShareFetch", 2, **nothing, **fields))
    next_one.client_sends(wire.request("ShareFetch", 2, **wish, **fields)).upstream_sees()
    next_one.upstream_answers(wire.response("ShareFetch", 2))
    told_ms = wire.decode_response("ShareFetch", 2, next_one.take_client()).throttle_time_ms
    assert told_ms == next_one.session.throttling.max_mute_ms
    next_one.muted_for(told_ms).upstream_sees(wire.request("ShareFetch", 2, **nothing, **fields))
