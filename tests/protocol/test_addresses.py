"""Responses that name brokers: only host and port change, and nothing of the cluster's addresses is left."""

from collections.abc import Callable
from struct import pack
from typing import Any

import pytest

from protocol.addresses import Advertise, rewrite_describe_cluster, rewrite_find_coordinator, rewrite_metadata
from protocol.api_keys import Api, ApiKey, describe
from protocol.errors import MalformedBody, ProtocolError
from protocol.produce import rewrite_endpoints
from protocol.steps import Steps, finish
from testkit import wire
from testkit.cases import every_case
from testkit.golden import api_name, golden, goldens

Rewrite = Callable[[bytes, Api, Advertise], bytes | Steps[bytes]]

REWRITES: dict[str, tuple[ApiKey, Rewrite, range]] = {
    "Metadata": (ApiKey.METADATA, rewrite_metadata, range(14)),
    "FindCoordinator": (ApiKey.FIND_COORDINATOR, rewrite_find_coordinator, range(7)),
    "DescribeCluster": (ApiKey.DESCRIBE_CLUSTER, rewrite_describe_cluster, range(3)),
    "Produce": (ApiKey.PRODUCE, rewrite_endpoints, range(10, 14)),
}
EVERY = [(name, version) for name, (_, _, versions) in REWRITES.items() for version in versions]
UPSTREAM = "broker.internal"
GATEWAY = "gateway.example.org"
CORRELATION_ID = -123_456


def rewrite(name: str, version: int, frame: bytes, advertise: Advertise) -> bytes:
    """The rewritten frame."""
    key, function, _ = REWRITES[name]
    rewritten = function(frame, describe(key, version), advertise)
    return rewritten if isinstance(rewritten, bytes) else finish(rewritten)


def ours(broker_id: int, host: str, port: int) -> tuple[str, int] | None:
    """Brokers 1 to 9 have an address here."""
    assert host == f"{UPSTREAM}-{broker_id}"
    assert port == 9000 + broker_id
    return (GATEWAY, 19_000 + broker_id) if 1 <= broker_id <= 9 else None


def unchanged(_broker_id: int, host: str, port: int) -> tuple[str, int]:
    return host, port


def nowhere(_broker_id: int, _host: str, _port: int) -> None:
    return None


def broker(broker_id: int, **more: Any) -> dict[str, Any]:
    return {"node_id": broker_id, "host": f"{UPSTREAM}-{broker_id}", "port": 9000 + broker_id, **more}


def metadata(version: int, *broker_ids: int, controller_id: int = 2) -> bytes:
    """A Metadata response whose other fields are all set."""
    fields = wire.populated("Metadata", version)
    rack: dict[str, Any] = {"rack": "r1"} if version >= 1 else {}
    fields["brokers"] = [broker(broker_id, **rack) for broker_id in broker_ids]
    if version >= 1:
        fields["controller_id"] = controller_id
    return wire.response("Metadata", version, correlation_id=CORRELATION_ID, **fields)


def decoded(name: str, version: int, frame: bytes) -> dict[str, Any]:
    assert wire.correlation_id_of(frame) == CORRELATION_ID
    return dict(wire.decode_response(name, version, frame).to_dict())


def assert_only_hosts_change(name: str, version: int, before: bytes) -> None:
    """What is rewritten keeps everything but host and port, and nothing of the cluster's addresses is left."""
    after = rewrite(name, version, before, ours)
    assert_only_addresses_differ(decoded(name, version, before), decoded(name, version, after))
    assert UPSTREAM.encode() not in after


def seen(name: str, version: int, frame: bytes) -> dict[str, Any]:
    """The answer as a client gets it; nothing of the cluster's addresses is in it."""
    after = rewrite(name, version, frame, ours)
    assert UPSTREAM.encode() not in after
    return decoded(name, version, after)


def assert_only_addresses_differ(before: Any, after: Any) -> None:
    """Both are alike but for host and port, and every known host has become ours."""
    if isinstance(before, dict):
        assert before.keys() == after.keys()
        if before.get("host"):
            number = int(before["host"].rsplit("-", 1)[1])
            assert (after["host"], after["port"]) == (GATEWAY, 19_000 + number)
            before, after = before | {"host": "", "port": 0}, after | {"host": "", "port": 0}
        for key in before:
            assert_only_addresses_differ(before[key], after[key])
    elif isinstance(before, list):
        assert len(before) == len(after)
        for one, other in zip(before, after, strict=True):
            assert_only_addresses_differ(one, other)
    else:
        assert before == after


@every_case("version", range(14))
def test_e07_metadata_keeps_everything_but_host_and_port(version: int) -> None:
    assert_only_hosts_change("Metadata", version, metadata(version, 1, 2, 3))
    empty = metadata(version, controller_id=-1)
    assert rewrite("Metadata", version, empty, ours) == empty


@every_case("version", range(14))
def test_e12_a_broker_without_an_address_here_is_left_out_of_metadata(version: int) -> None:
    answer = seen("Metadata", version, metadata(version, 1, 77, 2))
    assert [row["node_id"] for row in answer["brokers"]] == [1, 2]
    assert answer["topics"] == decoded("Metadata", version, metadata(version, 1))["topics"]


@every_case("version", range(1, 14))
@pytest.mark.parametrize("controller_id", [77, 5, -1])
def test_e08_controller_that_is_not_among_brokers_becomes_minus_one(version: int, controller_id: int) -> None:
    frame = metadata(version, 1, 2, 77, controller_id=controller_id)
    assert seen("Metadata", version, frame)["controller_id"] == -1


def find_coordinator(version: int, *coordinators: tuple[int, int]) -> bytes:
    """A FindCoordinator response of (error code, broker id); before v4 of the first alone."""
    rows = []
    for error_code, broker_id in coordinators:
        row = broker(broker_id) if broker_id >= 0 else {"node_id": -1, "host": "", "port": -1}
        rows.append(row | {"error_code": error_code} | ({"error_message": "why"} if version >= 1 else {}))
    fields: dict[str, Any] = {"throttle_time_ms": 31} if version >= 1 else {}
    if version >= 4:
        fields["coordinators"] = [row | {"key": f"group-{i}"} for i, row in enumerate(rows)]
    else:
        fields |= rows[0]
    return wire.response("FindCoordinator", version, correlation_id=CORRELATION_ID, **fields)


def coordinators(version: int, *rows: tuple[int, int], to: Advertise = ours) -> list[tuple[int, int, str, int]]:
    """(error code, broker id, host, port) of each coordinator that a client sees."""
    after = rewrite("FindCoordinator", version, find_coordinator(version, *rows), to)
    assert UPSTREAM.encode() not in after
    answer = decoded("FindCoordinator", version, after)
    seen = answer["coordinators"] if version >= 4 else [answer]
    return [(row["error_code"], row["node_id"], row["host"], row["port"]) for row in seen]


@every_case("version", range(7))
def test_e05_coordinator_keeps_everything_but_host_and_port(version: int) -> None:
    assert_only_hosts_change("FindCoordinator", version, find_coordinator(version, (0, 3), (0, 1), (15, -1)))
    # A coordinator with id 0 is a broker like any other.
    assert coordinators(version, (0, 0), to=lambda *_: (GATEWAY, 1)) == [(0, 0, GATEWAY, 1)]


@every_case("version", [4, 5, 6])
def test_null_list_of_coordinators_is_an_empty_one(version: int) -> None:
    frame = wire.framed(pack(">i", 1) + b"\0" + pack(">i", 0) + b"\0\0")
    empty = wire.framed(pack(">i", 1) + b"\0" + pack(">i", 0) + b"\1\0")
    assert rewrite("FindCoordinator", version, frame, ours) == empty


@every_case("version", range(7))
def test_e05_e12_answer_without_a_coordinator_or_an_address_here_tells_none(version: int) -> None:
    frame = find_coordinator(version, (15, -1), (15, -1))
    assert rewrite("FindCoordinator", version, frame, ours) == frame
    first, *others = coordinators(version, (0, 77), (0, 1))
    assert first == (15, -1, "", -1)
    assert [host for _, _, host, _ in others] == [GATEWAY] * len(others)
    # An address beside an error code is not passed on.
    assert coordinators(version, (16, 3)) == [(16, -1, "", -1)]


def describe_cluster(version: int, *broker_ids: int, controller_id: int = 2, endpoint_type: int = 1) -> bytes:
    """A DescribeCluster response whose other fields are all set."""
    fields = wire.populated("DescribeCluster", version)
    fenced: dict[str, Any] = {"is_fenced": True} if version >= 2 else {}
    fields["brokers"] = [
        {"broker_id": i, "host": f"{UPSTREAM}-{i}", "port": 9000 + i, "rack": "r", **fenced} for i in broker_ids
    ]
    fields["controller_id"] = controller_id
    if version >= 1:
        fields["endpoint_type"] = endpoint_type
    return wire.response("DescribeCluster", version, correlation_id=CORRELATION_ID, **fields)


@every_case("version", range(3))
def test_e04_described_cluster_keeps_what_has_an_address_here(version: int) -> None:
    assert_only_hosts_change("DescribeCluster", version, describe_cluster(version, 1, 2, 3))
    answer = seen("DescribeCluster", version, describe_cluster(version, 1, 77, controller_id=77))
    assert [row["broker_id"] for row in answer["brokers"]] == [1]
    assert answer["controller_id"] == -1


@every_case("version", [1, 2])
def test_e04_endpoints_of_controllers_are_not_told(version: int) -> None:
    """A quorum voter may have a broker's id, but its endpoint is not the broker's."""
    answer = seen("DescribeCluster", version, describe_cluster(version, 1, 2, endpoint_type=2))
    assert (answer["brokers"], answer["controller_id"], answer["endpoint_type"]) == ([], -1, 2)


def produce_response(version: int, *broker_ids: int, leader_id: int = 1) -> bytes:
    """A Produce response that says where a moved partition's leader is."""
    fields = wire.populated("Produce", version)
    for topic in fields["responses"]:
        for partition in topic["partition_responses"]:
            partition["current_leader"] = {"leader_id": leader_id, "leader_epoch": 9}
    fields["node_endpoints"] = [broker(i, rack=None) for i in broker_ids]
    return wire.response("Produce", version, correlation_id=CORRELATION_ID, **fields)


@every_case("version", range(10, 14))
def test_e02_node_endpoints_without_an_address_here_are_left_out_and_leader_id_stays(version: int) -> None:
    assert_only_hosts_change("Produce", version, produce_response(version, 1, 2))
    answer = seen("Produce", version, produce_response(version, 77, 1, leader_id=77))
    assert [row["node_id"] for row in answer["node_endpoints"]] == [1]
    rows = [row for topic in answer["responses"] for row in topic["partition_responses"]]
    assert [row["current_leader"]["leader_id"] for row in rows] == [77] * 4
    assert seen("Produce", version, produce_response(version, 77))["node_endpoints"] == []
    # Many endpoints need a longer size.
    after = rewrite("Produce", version, produce_response(version, *range(1, 10)), lambda *_: ("h" * 200, 1))
    assert {row["host"] for row in decoded("Produce", version, after)["node_endpoints"]} == {"h" * 200}


@every_case("version", range(10, 14))
def test_a24_unknown_tags_of_a_produce_response_stay_byte_for_byte(version: int) -> None:
    frame = wire.response("Produce", version, responses=[])
    endpoints = b"\x02" + pack(">i", 1) + b"\x12broker.internal-1" + pack(">i", 9001) + b"\x00\x00"
    head, after = frame[4:-1], b"after"
    tags = [(3, b"x" * 130), (0, endpoints), (1000, b"")]
    rewritten = rewrite("Produce", version, wire.framed(head + wire.tag_section(tags) + after), ours)
    expected = b"\x02" + pack(">i", 1) + b"\x14" + GATEWAY.encode() + pack(">i", 19_001) + b"\x00\x00"
    tags[1] = (0, expected)
    assert rewritten == wire.framed(head + wire.tag_section(tags) + after)


def test_node_endpoints_that_do_not_fill_their_tag_are_refused() -> None:
    frame = wire.response("Produce", 10, responses=[])
    for raw in (b"\x01\x00", b"\x02" + pack(">i", 1)):
        with pytest.raises(ProtocolError):
            rewrite("Produce", 10, wire.framed(frame[4:-1] + wire.tag_section([(0, raw)])), ours)


@every_case(("name", "version"), EVERY)
@pytest.mark.parametrize("nulls", [False, True])
def test_a40_nothing_changes_when_every_broker_keeps_its_address(name: str, version: int, nulls: bool) -> None:
    fields = wire.populated(name, version, nulls=nulls)
    for row in [fields, *fields.get("coordinators", ())]:
        if name == "FindCoordinator" and "error_code" in row:
            row["error_code"] = 0
    if name in ("Metadata", "DescribeCluster") and "controller_id" in fields:
        rows = fields["brokers"]
        fields["controller_id"] = rows[0]["node_id" if name == "Metadata" else "broker_id"]
    if name == "DescribeCluster" and version >= 1:
        fields["endpoint_type"] = 1
    tags = [(200, b"header tag")]
    frame = wire.response(name, version, correlation_id=CORRELATION_ID, header_tags=tags, **fields)
    assert rewrite(name, version, frame, unchanged) == frame


@every_case(("name", "version"), EVERY)
def test_a31_bytes_behind_the_body_neither_crash_nor_shift_anything(name: str, version: int) -> None:
    frames = {
        "Metadata": lambda: metadata(version, 1, 2),
        "FindCoordinator": lambda: find_coordinator(version, (0, 1)),
        "DescribeCluster": lambda: describe_cluster(version, 1, 2),
        "Produce": lambda: produce_response(version, 1),
    }
    frame = frames[name]()
    clean = rewrite(name, version, frame, ours)
    longer = rewrite(name, version, wire.framed(frame[4:] + b"behind"), ours)
    assert longer == wire.framed(clean[4:] + b"behind")


@pytest.mark.parametrize("host", ["::1", "x" * 255, "gr\u00fc\u00df.example", "trailing.dot."])
def test_e15_any_host_of_ours_is_encoded_properly(host: str) -> None:
    for version in (0, 8, 9, 13):
        frame = rewrite("Metadata", version, metadata(version, 1, 2), lambda *_: (host, 65_535))
        rows = decoded("Metadata", version, frame)["brokers"]
        assert [(row["host"], row["port"]) for row in rows] == [(host, 65_535)] * 2


RECORDED = [row for row in goldens() if row[0] != "produce" and (api_name(row[0]), row[1]) in EVERY]


@every_case(("label", "version"), RECORDED)
def test_e01_no_address_of_a_real_cluster_is_left_in_a_recorded_answer(label: str, version: int) -> None:
    name = api_name(label)
    frame = golden(label, version)
    asked: set[tuple[str, int]] = set()

    def advertise(broker_id: int, host: str, port: int) -> tuple[str, int]:
        assert host == "127.77.0.1"
        asked.add((host, port))
        return GATEWAY, 19_000 + broker_id

    after = rewrite(name, version, frame, advertise)
    assert asked
    assert b"127.77.0.1" not in after
    assert all(pack(">i", port) not in after for _, port in asked)
    assert wire.decode_response(name, version, after)
    assert rewrite(name, version, frame, unchanged) == frame


@every_case(("name", "version"), [row for row in EVERY if row[0] != "FindCoordinator" or row[1] >= 4])
def test_a26_array_of_brokers_longer_than_the_frame_is_refused(name: str, version: int) -> None:
    compact = describe(REWRITES[name][0], version).flexible
    length = wire.uvarint(2**31 - 1) if compact else pack(">i", 2**31 - 1)
    body = {
        "Metadata": pack(">i", 0) + length if version >= 3 else length,
        "FindCoordinator": pack(">i", 0) + length,
        "DescribeCluster": pack(">ih", 0, 0) + b"\x01" + b"\x01" * (version >= 1) + b"\x01\0\0\0\0" + length,
        "Produce": length,
    }[name]
    header = pack(">i", 1) + (b"\0" if compact else b"")
    with pytest.raises(MalformedBody):
        rewrite(name, version, wire.framed(header + body), nowhere)


@pytest.mark.parametrize("version", [1, 9, 13])
def test_e18_of_metadata_the_brokers_alone_are_read_however_many_topics_follow(version: int) -> None:
    # Bytes that are no topics: to walk them would be an error.
    topics, frame = b"\xff" * 3_000_000, metadata(version, 1, 2)
    frame = wire.framed(frame[4:] + topics)
    seen = rewrite("Metadata", version, frame, ours)
    assert seen.endswith(topics)
    assert UPSTREAM.encode() not in seen
    assert seen[: -len(topics)].count(GATEWAY.encode()) == 2


@pytest.mark.slow
def test_k12_twenty_thousand_coordinators_are_answered() -> None:
    asked = [
        {"key": f"g-{at}", "node_id": 1, "host": f"{UPSTREAM}-1", "port": 9001, "error_code": 0, "error_message": ""}
        for at in range(20_000)
    ]
    frame = wire.response("FindCoordinator", 4, correlation_id=CORRELATION_ID, coordinators=asked)
    seen = wire.decode_response("FindCoordinator", 4, rewrite("FindCoordinator", 4, frame, ours)).coordinators
    assert len(seen) == 20_000
    assert {each.host for each in seen} == {GATEWAY}
