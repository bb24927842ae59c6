"""ApiVersions: what a client is offered is what the broker knows and may pass here."""

from struct import pack
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe, newest_version
from protocol.api_versions import answered_in, intersect, offered_by_broker, unsupported_version_reply
from protocol.errors import ProtocolError
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

# Advertised by Kafka 4.4.0 to clients, as recorded: key -> (lowest, highest).
WITHHELD = {64, 80, 81, 83, 84, 85, 86, 87, 27, 94}
CAPPED = {24: 3}


def offers(frame: bytes, version: int) -> dict[int, tuple[int, int]]:
    """Key -> (lowest, highest) of an ApiVersions response."""
    decoded = wire.decode_response("ApiVersions", version, frame)
    assert len({entry.api_key for entry in decoded.api_keys}) == len(decoded.api_keys)
    return {entry.api_key: (entry.min_version, entry.max_version) for entry in decoded.api_keys}


def intersected(version: int, **fields: Any) -> bytes:
    frame = wire.response("ApiVersions", version, **fields)
    return intersect(frame, describe(ApiKey.API_VERSIONS, version))


def entry(api_key: int, lowest: int, highest: int) -> dict[str, int]:
    return {"api_key": api_key, "min_version": lowest, "max_version": highest}


@every_case("version", range(6))
def test_what_kafka_advertises_passes_except_what_is_withheld_or_capped(version: int) -> None:
    from_kafka = golden("api_versions", version)
    after = intersect(from_kafka, describe(ApiKey.API_VERSIONS, version))
    expected = {
        key: (lowest, min(highest, CAPPED.get(key, highest)))
        for key, (lowest, highest) in offers(from_kafka, version).items()
        if key not in WITHHELD
    }
    # In the same order, and nothing but the array of APIs changes.
    assert list(offers(after, version).items()) == list(expected.items())
    assert len(expected) == 67
    assert after[4:8] == from_kafka[4:8]
    rest = [
        wire.decode_response("ApiVersions", version, frame).to_dict() | {"api_keys": None}
        for frame in (from_kafka, after)
    ]
    assert rest[0] == rest[1]


@every_case("version", [3, 4, 5])
def test_features_and_unknown_tags_stay_byte_for_byte(version: int) -> None:
    tail = pack(">i", 7) + wire.tag_section([(0, b"\x01"), (1, b"\0" * 8), (99, b"unknown")])
    entries = b"".join(
        pack(">hhh", key, 0, 1) + wire.tag_section([(5, b"odd")]) for key in (ApiKey.FETCH, ApiKey.ENVELOPE)
    )
    frame = wire.framed(pack(">ih", -5, 0) + wire.uvarint(3) + entries + tail)
    expected = pack(">ih", -5, 0) + wire.uvarint(2) + entries[: len(entries) // 2] + tail
    assert intersect(frame, describe(ApiKey.API_VERSIONS, version)) == wire.framed(expected)


@pytest.mark.parametrize(("from_broker", "offered"), [
    # Produce keeps version 0 although the broker has dropped it.
    ([(0, 3, 12), (1, 4, 19)], {0: (0, 12), 1: (4, 18)}),
    # Of an API that is only relayed, versions that are not known here are left out too.
    ([(ApiKey.HEARTBEAT, 0, 9)], {ApiKey.HEARTBEAT: (0, 4)}),
    # An API whose lowest version is above our newest is left out.
    ([(ApiKey.FETCH, 19, 20), (ApiKey.HEARTBEAT, 0, 4)], {ApiKey.HEARTBEAT: (0, 4)}),
])  # fmt: skip
def test_what_is_offered_is_what_both_know(from_broker: list[tuple[int, int, int]], offered: Any) -> None:
    for version in range(6):
        frame = intersected(version, api_keys=[entry(*row) for row in from_broker])
        assert offers(frame, version) == offered


@pytest.mark.parametrize("key", [
    4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 94, 95, 999, -1, 32767,
])  # fmt: skip
def test_a35_broker_only_and_unknown_apis_are_not_advertised(key: int) -> None:
    frame = intersected(3, api_keys=[entry(key, 0, 1), entry(ApiKey.API_VERSIONS, 0, 4)])
    assert offers(frame, 3) == {ApiKey.API_VERSIONS: (0, 4)}


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1, -(2**31)])
def test_a15_unknown_version_gets_exactly_what_kafka_answers(correlation_id: int) -> None:
    kafkas = golden("api_versions_unsupported", 99)
    assert unsupported_version_reply(1) == kafkas
    frame = unsupported_version_reply(correlation_id)
    assert frame == kafkas[:4] + pack(">i", correlation_id) + kafkas[8:]
    assert offers(frame, 0) == {ApiKey.API_VERSIONS: (0, newest_version(ApiKey.API_VERSIONS))}


@every_case("version", range(6))
def test_a15_a17_refusals_by_a_broker_are_passed_on_as_it_wrote_them(version: int) -> None:
    """An older broker's is in version 0 whatever was asked; nothing is added to it."""
    api = describe(ApiKey.API_VERSIONS, version)
    refusal = golden("api_versions_unsupported", 99)
    assert answered_in(refusal, api).version == 0
    for own in (frozenset(), frozenset({ApiKey.ALTER_CLIENT_QUOTAS})):
        assert intersect(refusal, api, own) == refusal
    if version >= 3:
        invalid = golden("api_versions_invalid", version)
        assert intersect(invalid, api) == invalid


@every_case("version", [3, 4, 5])
def test_a18_response_header_has_no_tags_even_in_flexible_versions(version: int) -> None:
    api = describe(ApiKey.API_VERSIONS, version)
    assert (api.flexible, api.flexible_header) == (True, False)
    assert golden("api_versions", version)[8:10] == b"\0\0"


@every_case("version", [0, 3])
def test_truncated_response_is_a_protocol_error_at_every_byte(version: int) -> None:
    frame = golden("api_versions", version)
    api = describe(ApiKey.API_VERSIONS, version)
    array_ends = 10 + 4 + 77 * 6 if version == 0 else 10 + 1 + 77 * 7
    for end in range(array_ends):
        with pytest.raises(ProtocolError):
            intersect(frame[:end], api)


@every_case("version", range(6))
def test_what_only_the_gateway_has_is_offered_whatever_the_broker_offers(version: int) -> None:
    own = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS})
    api = describe(ApiKey.API_VERSIONS, version)
    frame = wire.response("ApiVersions", version, api_keys=[entry(18, 0, 3), entry(48, 0, 0)])
    assert offers(intersect(frame, api, own), version) == {18: (0, 3), 48: (0, 1), 49: (0, 1)}
    assert offers(intersect(frame, api), version) == {18: (0, 3), 48: (0, 0)}
    # A broker that has them as we do is passed on byte for byte.
    from_kafka = golden("api_versions", version)
    assert intersect(from_kafka, api, own) == intersect(from_kafka, api)


def test_what_a_broker_offers_is_read_as_it_is_or_not_at_all() -> None:
    from_kafka = golden("api_versions", 0)
    assert offered_by_broker(from_kafka) == offers(from_kafka, 0)
    for end in range(4, len(from_kafka)):
        with pytest.raises(ProtocolError):
            offered_by_broker(from_kafka[:end])
    with pytest.raises(ProtocolError, match="error 35"):
        offered_by_broker(unsupported_version_reply(1))
