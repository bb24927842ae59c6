"""The parsers of `protocol`, each as a function of a frame and its version, with the frames that it is meant for.

Each returns what it found, or raises `ProtocolError` and nothing else, and asserts what must hold of what it found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from struct import unpack_from
from typing import Any, Final

from protocol import addresses, api_versions, codec, fetch, headers, metadata, named_topics, produce, throttle
from protocol.api_keys import Api, ApiKey, describe
from protocol.broker_configs import parse_configs_request, read_configs_answer
from protocol.describe_configs import asked_broker_configs, edit_broker_configs
from protocol.errors import Truncated
from protocol.node_endpoints import NodeEndpoints
from protocol.plain_topics import plain_fetch, plain_produce
from protocol.steps import Steps, finish
from protocol.topic_mutations import parse_topic_mutations
from protocol.topic_results import encode_topic_results, parse_topic_results
from protocol.topic_sizes import TopicWalk
from testkit import wire
from testkit.golden import api_name, golden, goldens

HOSTS: Final = ("127.77.0.1",)
MUTATIONS: Final = ("CreateTopics", "CreatePartitions", "DeleteTopics")
NAMING: Final = (
    "Produce", "DeleteRecords", "AlterPartitionReassignments", "ElectLeaders", "AddPartitionsToTxn", "AlterConfigs",
    "IncrementalAlterConfigs",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser, and the frames that it is meant for."""

    parse: Callable[[bytes, Api], object]
    kind: str
    names: tuple[str, ...]


def advertise(broker_id: int, _host: str, _port: int) -> tuple[str, int] | None:
    return ("gateway", broker_id & 0xFFFF) if broker_id & 1 else None


def whole(frame: bytes) -> bytes:
    assert unpack_from(">i", frame)[0] == len(frame) - 4
    return frame


# -- heads ---------------------------------------------------------------------------------------------------
def length_of_client_id(frame: bytes) -> int | None:
    """As in the head of a request that passes the session's own look at it; None: it does not."""
    if len(frame) < headers.HEAD_BYTES:
        return None
    length: int = headers.HEAD.unpack_from(frame)[3]
    return None if length > len(frame) - headers.HEAD_BYTES else length


def head(frame: bytes, api: Api) -> object:
    at = headers.body_offset(frame, flexible=api.flexible)
    assert headers.HEAD_BYTES <= at <= len(frame)
    client_id = headers.read_client_id(frame, 14, headers.HEAD.unpack_from(frame)[3])
    assert isinstance(client_id, str)
    return at, client_id, headers.correlation_id_of(frame)


def acks(frame: bytes, api: Api) -> object:
    length = length_of_client_id(frame)
    if length is None:
        return None
    found = produce.read_acks(frame, 0, len(frame), length, api)
    assert found is None or -(2**15) <= found < 2**15
    # What has come of a request in pieces is no other request.
    for end in range(headers.HEAD_BYTES + max(length, 0), len(frame), 7):
        with suppress(Truncated):
            assert produce.read_acks(frame, 0, end, length, api) in (None, found)
    return found


def fetch_head(frame: bytes, api: Api) -> object:
    length = length_of_client_id(frame)
    if length is None:
        return None
    size = len(frame) - 4
    within = fetch.asked_bytes(frame, 0, length, api) <= 1_000
    named: list[bytes] = []
    with suppress(Truncated):
        named.extend(fetch.topics_named(frame, 0, size, length, api, most=9))
    lowered = fetch.clamped_head(frame, 0, size, length, api, 1_000)
    assert lowered is None or (not within and len(lowered) <= len(frame))
    without = fetch.without_wish_for_records if api.key is ApiKey.SHARE_FETCH else fetch.without_records
    return within, named, lowered, without(frame, api)


# -- topics --------------------------------------------------------------------------------------------------
def walked(data: bytes, at: int, api: Api, piece_bytes: int) -> tuple[list[Any], object, int]:
    """What a walk finds in these bytes, why it ended early, and how much it would step over."""
    found: list[Any] = []
    walk = TopicWalk(api, lambda *each: found.append(each))
    for start in range(at, len(data), piece_bytes):
        walk.take(data, start, min(start + piece_bytes, len(data)))
    return found, walk.fault and repr(walk.fault), walk.left_bytes


def topics(frame: bytes, at: int, api: Api, plain: object) -> object:
    """At a glance, walked in one piece and in many: the same."""
    found = walked(frame, at, api, len(frame) + 1)
    assert walked(frame, at, api, 5)[:2] == found[:2]
    assert plain is None or plain == found[0]
    return plain, found


def produce_topics(frame: bytes, api: Api) -> object:
    length = length_of_client_id(frame)
    if length is None:
        return None
    at = headers.HEAD_BYTES + max(length, 0)
    found = topics(frame, at, api, plain_produce(frame, at, len(frame), api))
    return found, produce.only_topic(frame, at, len(frame), api)


def fetch_topics(frame: bytes, api: Api) -> object:
    found = topics(frame, 0, api, plain_fetch(frame, 0, len(frame), api) if api.key is ApiKey.FETCH else None)
    return found, whole(fetch.emptied(frame, api)) if api.key is ApiKey.FETCH else None


def named(frame: bytes, api: Api) -> object:
    parsed = finish(named_topics.parse_named_topics(frame, api))
    called = {each.called for each in parsed.elements[:1]}
    return whole(parsed.without(called)), parsed


# -- answers that are rewritten ------------------------------------------------------------------------------
def rewrite(
    function: Callable[[bytes, Api, addresses.Advertise], bytes | Steps[bytes]],
) -> Callable[[bytes, Api], bytes]:
    def rewritten(frame: bytes, api: Api) -> bytes:
        found = function(frame, api, advertise)
        return whole(found if isinstance(found, bytes) else finish(found))

    return rewritten


def rewrite_endpoints(frame: bytes, api: Api) -> bytes:
    passes = produce.names_no_broker(api.version, frame, 0, len(frame) - 4)
    rewritten = whole(produce.rewrite_endpoints(frame, api, advertise))
    assert not passes or rewritten == frame
    return rewritten


def node_endpoints(frame: bytes, api: Api) -> object:
    """The tail is where the bytes say, however they are cut."""
    endpoints = NodeEndpoints(api, advertise, lambda: 0)
    rewritten = whole(endpoints.rewrite_reply(frame))
    tail_at = endpoints.find(frame, 0, len(frame))
    finder = endpoints.begin()
    found = (finder.find(frame, at, min(at + 3, len(frame))) for at in range(0, len(frame), 3))
    assert next(at for at in found if at is not None) == tail_at
    passes = endpoints.passes(frame, 0, len(frame))
    assert not passes or endpoints.is_plain(frame[tail_at:])
    return rewritten, tail_at, passes


def patch(frame: bytes, api: Api) -> object:
    buffer = bytearray(frame)
    before = throttle.read(buffer, api)
    assert throttle.patch(buffer, api, 5) >= 5
    assert len(buffer) == len(frame)
    return before, buffer


def patch_head(frame: bytes, api: Api) -> object:
    return patch(frame[:24], api) if throttle.in_head(api) else None


def mutations(frame: bytes, api: Api) -> object:
    parsed = finish(parse_topic_mutations(frame, api))
    whole(parsed.encode(parsed.topics[1:]))
    assert len(parsed.encode(parsed.topics)) <= len(frame) + 8
    return parsed


def results(frame: bytes, api: Api) -> object:
    parsed = finish(parse_topic_results(frame, api))
    return whole(encode_topic_results(1, 2, parsed.results, api, tail=parsed.tail))


def question(frame: bytes, api: Api) -> object:
    asked = finish(metadata.parse_metadata_question(frame, api))
    if api.version >= metadata.FIRST_VERSION_WITH_FLAG:
        forbidding = metadata.forbid_creation(frame, asked)
        assert len(forbidding) == len(frame)
        return forbidding
    return whole(metadata.upgrade_question(frame, api, asked))


def downgrade(frame: bytes, api: Api) -> object:
    if api.version != 4:
        return None
    return [whole(finish(metadata.downgrade_answer(frame, describe(ApiKey.METADATA, each)))) for each in range(3)]


def named_node(frame: bytes, api: Api) -> object:
    found = api_versions.named_node(frame, api)
    assert found is None or (api.version >= 5 and found[0] in frame and found[1] != -1)
    return found


def offered_by_broker(frame: bytes, api: Api) -> object:
    answered = api.version == 0 and api_versions.error_code_of(frame) == 0
    return api_versions.offered_by_broker(frame) if answered else None


TARGETS: Final = {
    "offered_by_broker": Target(offered_by_broker, "response", ("ApiVersions",)),
    "intersect": Target(lambda f, a: whole(api_versions.intersect(f, a)), "response", ("ApiVersions",)),
    "named_node": Target(named_node, "request", ("ApiVersions",)),
    "rewrite_metadata": Target(rewrite(addresses.rewrite_metadata), "response", ("Metadata",)),
    "rewrite_find_coordinator": Target(rewrite(addresses.rewrite_find_coordinator), "response", ("FindCoordinator",)),
    "rewrite_describe_cluster": Target(rewrite(addresses.rewrite_describe_cluster), "response", ("DescribeCluster",)),
    "rewrite_endpoints": Target(rewrite_endpoints, "response", ("Produce",)),
    "rewrite_describe_quorum": Target(rewrite(addresses.rewrite_describe_quorum), "response", ("DescribeQuorum",)),
    "node_endpoints": Target(node_endpoints, "response", ("Fetch", "ShareFetch", "ShareAcknowledge")),
    "patch": Target(patch, "response", tuple(wire.api_names())),
    "patch_head": Target(patch_head, "response", tuple(wire.api_names())),
    "read_acks": Target(acks, "request", ("Produce",)),
    "head": Target(head, "request", ("Metadata", "Produce", *MUTATIONS)),
    "fetch_head": Target(fetch_head, "request", ("Fetch", "ShareFetch")),
    "produce_topics": Target(produce_topics, "request", ("Produce",)),
    "fetch_topics": Target(fetch_topics, "response", ("Fetch", "ShareFetch")),
    "parse_named_topics": Target(named, "request", NAMING),
    "parse_topic_mutations": Target(mutations, "request", MUTATIONS),
    "parse_topic_results": Target(results, "response", MUTATIONS),
    "parse_metadata_question": Target(question, "request", ("Metadata",)),
    "topics_in_error": Target(lambda f, a: finish(metadata.topics_in_error(f, a, {3})), "response", ("Metadata",)),
    "downgrade_answer": Target(downgrade, "response", ("Metadata",)),
    "read_metadata": Target(codec.read_metadata, "response", ("Metadata",)),
    "asked_broker_configs": Target(
        lambda f, a: sorted((finish(asked_broker_configs(f, a)) or {}).keys()), "request", ("DescribeConfigs",)
    ),
    "edit_broker_configs": Target(
        lambda f, a: finish(edit_broker_configs(f, a, HOSTS)), "response", ("DescribeConfigs",)
    ),
    "read_broker_configs": Target(lambda f, _: codec.read_broker_configs(f), "response", ("DescribeConfigs",)),
    "parse_configs_request": Target(parse_configs_request, "request", ("IncrementalAlterConfigs",)),
    "read_configs_answer": Target(read_configs_answer, "response", ("IncrementalAlterConfigs",)),
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
    for name in wanted.names:
        for version in wire.versions(name):
            api = describe(ApiKey(wire.api_key_of(name)), version)
            for nulls in (False, True):
                fields = wire.populated(name, version, nulls=nulls, kind=wanted.kind.capitalize())
                make = wire.response if wanted.kind == "response" else wire.request
                frames.append((api, make(name, version, **fields)))
    if target == "rewrite_endpoints":
        frames = [(api, frame) for api, frame in frames if api.version >= 10]
    if target == "rewrite_describe_quorum":
        frames = [(api, frame) for api, frame in frames if api.version >= 2]
    if target == "node_endpoints":
        frames = [(api, frame) for api, frame in frames if api.key is not ApiKey.FETCH or api.version >= 16]
    if target == "read_broker_configs":
        frames = [(api, frame) for api, frame in frames if api.version == 1]
    return frames
