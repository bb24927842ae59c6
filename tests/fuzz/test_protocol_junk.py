"""Whatever a peer sends, every parser of `protocol` gives a value or a `ProtocolError`, never anything else.

Hazard A39. The junk is valid frames, recorded and made, with a few bytes changed, removed, repeated or inserted:
plain noise would not get past the first field. `HYPOTHESIS_PROFILE=thorough` looks twenty times as long.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from struct import pack, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import addresses, api_versions, codec, headers, metadata, produce, throttle
from protocol.api_keys import Api, ApiKey, describe
from protocol.describe_configs import edit_broker_configs
from protocol.errors import ProtocolError
from protocol.node_endpoints import NodeEndpoints
from protocol.produce import read_acks
from protocol.steps import Steps, finish
from protocol.topic_mutations import parse_topic_mutations
from protocol.topic_results import encode_topic_results, parse_topic_results
from testkit import wire
from testkit.golden import api_name, golden, goldens

HOSTS = ("127.77.0.1",)
MUTATIONS = ("CreateTopics", "CreatePartitions", "DeleteTopics")


@dataclass(frozen=True)
class Target:
    """A parser, and the frames that it is meant for."""

    parse: Callable[[bytes, Api], object]
    kind: str
    names: tuple[str, ...]


def advertise(broker_id: int, _host: str, _port: int) -> tuple[str, int] | None:
    return ("gateway", broker_id & 0xFFFF) if broker_id & 1 else None


def is_whole_frame(frame: bytes) -> None:
    assert unpack_from(">i", frame)[0] == len(frame) - 4


def rewrite(
    function: Callable[[bytes, Api, addresses.Advertise], bytes | Steps[bytes]],
) -> Callable[[bytes, Api], None]:
    def check(frame: bytes, api: Api) -> None:
        rewritten = function(frame, api, advertise)
        is_whole_frame(rewritten if isinstance(rewritten, bytes) else finish(rewritten))

    return check


def node_endpoints(frame: bytes, api: Api) -> None:
    """The tail is where the bytes say, however they are cut."""
    endpoints = NodeEndpoints(api, advertise, lambda: 0)
    is_whole_frame(endpoints.rewrite_reply(frame))
    tail_at = endpoints.find(frame, 0, len(frame))
    finder = endpoints.begin()
    found = (finder.find(frame, at, min(at + 3, len(frame))) for at in range(0, len(frame), 3))
    assert next(at for at in found if at is not None) == tail_at
    assert not endpoints.passes(frame, 0, len(frame)) or endpoints.is_plain(frame[tail_at:])


def patch(frame: bytes, api: Api) -> None:
    buffer = bytearray(frame)
    throttle.read(buffer, api)
    assert throttle.patch(buffer, api, 5) >= 5
    assert len(buffer) == len(frame)


def patch_head(frame: bytes, api: Api) -> None:
    if throttle.in_head(api):
        patch(frame[:24], api)


def acks(frame: bytes, api: Api) -> None:
    if len(frame) >= headers.HEAD_BYTES:
        client_id_length = headers.HEAD.unpack_from(frame)[3]
        value = read_acks(frame, 0, len(frame), client_id_length, api)
        assert value is None or -(2**15) <= value < 2**15


def head(frame: bytes, api: Api) -> None:
    at = headers.body_offset(frame, flexible=api.flexible)
    assert headers.HEAD_BYTES <= at <= len(frame)
    assert isinstance(headers.read_client_id(frame, 14, headers.HEAD.unpack_from(frame)[3]), str)


def mutations(frame: bytes, api: Api) -> None:
    parsed = finish(parse_topic_mutations(frame, api))
    is_whole_frame(parsed.encode(parsed.topics[1:]))
    assert len(parsed.encode(parsed.topics)) <= len(frame) + 8


def results(frame: bytes, api: Api) -> None:
    parsed = finish(parse_topic_results(frame, api))
    is_whole_frame(encode_topic_results(1, 2, parsed.results, api, tail=parsed.tail))


def question(frame: bytes, api: Api) -> None:
    asked = finish(metadata.parse_metadata_question(frame, api))
    if api.version >= metadata.FIRST_VERSION_WITH_FLAG:
        assert len(metadata.forbid_creation(frame, asked)) == len(frame)
    else:
        is_whole_frame(metadata.upgrade_question(frame, api, asked))


def downgrade(frame: bytes, api: Api) -> None:
    if api.version == 4:
        for version in range(3):
            is_whole_frame(finish(metadata.downgrade_answer(frame, describe(ApiKey.METADATA, version))))


TARGETS = {
    "intersect": Target(lambda f, a: is_whole_frame(api_versions.intersect(f, a)), "response", ("ApiVersions",)),
    "rewrite_metadata": Target(rewrite(addresses.rewrite_metadata), "response", ("Metadata",)),
    "rewrite_find_coordinator": Target(rewrite(addresses.rewrite_find_coordinator), "response", ("FindCoordinator",)),
    "rewrite_describe_cluster": Target(rewrite(addresses.rewrite_describe_cluster), "response", ("DescribeCluster",)),
    "rewrite_endpoints": Target(rewrite(produce.rewrite_endpoints), "response", ("Produce",)),
    "rewrite_describe_quorum": Target(rewrite(addresses.rewrite_describe_quorum), "response", ("DescribeQuorum",)),
    "node_endpoints": Target(node_endpoints, "response", ("Fetch", "ShareFetch", "ShareAcknowledge")),
    "patch": Target(patch, "response", tuple(wire.api_names())),
    "patch_head": Target(patch_head, "response", tuple(wire.api_names())),
    "read_acks": Target(acks, "request", ("Produce",)),
    "head": Target(head, "request", ("Metadata", "Produce", *MUTATIONS)),
    "parse_topic_mutations": Target(mutations, "request", MUTATIONS),
    "parse_topic_results": Target(results, "response", MUTATIONS),
    "parse_metadata_question": Target(question, "request", ("Metadata",)),
    "topics_in_error": Target(lambda f, a: finish(metadata.topics_in_error(f, a, {3})), "response", ("Metadata",)),
    "downgrade_answer": Target(downgrade, "response", ("Metadata",)),
    "read_metadata": Target(codec.read_metadata, "response", ("Metadata",)),
    "edit_broker_configs": Target(
        lambda f, a: finish(edit_broker_configs(f, a, HOSTS)), "response", ("DescribeConfigs",)
    ),
    "read_broker_configs": Target(lambda f, _: codec.read_broker_configs(f), "response", ("DescribeConfigs",)),
}


@cache
def corpus(target: str) -> list[tuple[Api, bytes]]:
    """Valid frames for a parser: recorded ones, and ones with every field set."""
    wanted = TARGETS[target]
    frames = [
        (describe(ApiKey(wire.api_key_of(api_name(label))), version), golden(label, version, wanted.kind))
        for label, version in goldens(kind=wanted.kind)
        if api_name(label) in wanted.names and version != 99
    ]
    if wanted.kind == "response":
        for name in wanted.names:
            for version in wire.versions(name):
                api = describe(ApiKey(wire.api_key_of(name)), version)
                for nulls in (False, True):
                    frames.append((api, wire.response(name, version, **wire.populated(name, version, nulls=nulls))))
    if target == "rewrite_endpoints":
        frames = [(api, frame) for api, frame in frames if api.version >= 10]
    if target == "rewrite_describe_quorum":
        frames = [(api, frame) for api, frame in frames if api.version >= 2]
    if target == "node_endpoints":
        frames = [(api, frame) for api, frame in frames if api.key is not ApiKey.FETCH or api.version >= 16]
    if target == "read_broker_configs":
        frames = [(api, frame) for api, frame in frames if api.version == 1]
    return frames


lengths = st.sampled_from(
    [0, 1, 2, 127, 128, 2**14, 2**15 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2]
)
pieces = st.one_of(
    st.binary(max_size=6),
    lengths.map(wire.uvarint),
    lengths.map(lambda value: pack(">I", value & 0xFFFFFFFF)),
    lengths.map(lambda value: pack(">H", value & 0xFFFF)),
    st.just(b"\x80" * 6),
)
edits = st.lists(
    st.tuples(st.sampled_from(["overwrite", "insert", "remove", "repeat", "cut"]), st.integers(0, 2**16), pieces),
    min_size=1,
    max_size=3,
)


def edited(frame: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """The frame after all changes, with a size that fits again, as a relay would have received it."""
    payload = frame[4:]
    for change, where, piece in changes:
        at = where % (len(payload) + 1)
        before, after = payload[:at], payload[at:]
        payload = {
            "overwrite": before + piece + after[len(piece) :],
            "insert": before + piece + after,
            "remove": before + after[len(piece) + 1 :],
            "repeat": before + before[-8:] * 4 + after,
            "cut": before,
        }[change]
    return wire.framed(payload)


def survives(target: str, frame: bytes, api: Api) -> None:
    with suppress(ProtocolError):
        TARGETS[target].parse(frame, api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_every_valid_frame_gives_a_value(target: str) -> None:
    """Otherwise the corpus would not reach far."""
    assert corpus(target)
    for api, frame in corpus(target):
        TARGETS[target].parse(frame, api)


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.data())
def test_a39_a_damaged_frame_gives_a_value_or_a_protocol_error(target: str, data: Any) -> None:
    api, frame = data.draw(st.sampled_from(corpus(target)))
    survives(target, edited(frame, data.draw(edits)), api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_a_frame_cut_at_any_byte_gives_a_value_or_a_protocol_error(target: str) -> None:
    frames = corpus(target)
    for api, frame in frames[:: 1 + len(frames) // 20]:
        for end in range(min(len(frame), 300)):
            survives(target, frame[:end], api)


@pytest.mark.parametrize("target", TARGETS)
def test_a39_a_frame_of_another_api_or_version_gives_a_value_or_a_protocol_error(target: str) -> None:
    apis = {api for api, _ in corpus(target)}
    frames = [corpus(other)[len(corpus(other)) // 2][1] for other in TARGETS]
    for api in apis:
        for frame in frames:
            survives(target, frame, api)
