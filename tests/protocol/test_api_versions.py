"""ApiVersions: what a client is offered is what the broker knows and may pass here."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest

from protocol.api_keys import ApiKey, describe, newest_version
from protocol.api_versions import answered_in, intersect, unsupported_version_reply
from protocol.errors import ProtocolError
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

# Advertised by Kafka 4.3.1 to clients, as recorded: key -> (lowest, highest).
WITHHELD = {64, 78, 79, 80, 81, 83, 84, 85, 86, 87, 27}
CAPPED = {1: 15, 24: 3, 55: 1}


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


@every_case("version", range(5))
def test_what_kafka_advertises_passes_except_what_is_withheld_or_capped(version: int) -> None:
    from_kafka = golden("api_versions", version)
    offered = offers(intersect(from_kafka, describe(ApiKey.API_VERSIONS, version)), version)
    expected = {
        key: (lowest, min(highest, CAPPED.get(key, highest)))
        for key, (lowest, highest) in offers(from_kafka, version).items()
        if key not in WITHHELD
    }
    assert offered == expected
    assert len(expected) == 64


@every_case("version", range(5))
def test_nothing_but_the_array_of_apis_changes(version: int) -> None:
    from_kafka = golden("api_versions", version)
    before = wire.decode_response("ApiVersions", version, from_kafka).to_dict()
    after_frame = intersect(from_kafka, describe(ApiKey.API_VERSIONS, version))
    after = wire.decode_response("ApiVersions", version, after_frame).to_dict()
    kept = [row["api_key"] for row in after.pop("api_keys")]
    assert kept == [row["api_key"] for row in before.pop("api_keys") if row["api_key"] in kept]
    assert after == before
    assert after_frame[4:8] == from_kafka[4:8]


@every_case("version", [3, 4])
def test_features_and_unknown_tags_stay_byte_for_byte(version: int) -> None:
    tail = pack(">i", 7) + wire.tag_section([(0, b"\x01"), (1, b"\0" * 8), (99, b"unknown")])
    entries = b"".join(
        pack(">hhh", key, 0, 1) + wire.tag_section([(5, b"odd")]) for key in (ApiKey.FETCH, ApiKey.ENVELOPE)
    )
    frame = wire.framed(pack(">ih", -5, 0) + wire.uvarint(3) + entries + tail)
    expected = pack(">ih", -5, 0) + wire.uvarint(2) + entries[: len(entries) // 2] + tail
    assert intersect(frame, describe(ApiKey.API_VERSIONS, version)) == wire.framed(expected)


@every_case("version", range(5))
def test_produce_keeps_version_0_although_the_broker_has_dropped_it(version: int) -> None:
    frame = intersected(version, api_keys=[entry(0, 3, 12), entry(1, 4, 17)])
    assert offers(frame, version) == {0: (0, 12), 1: (4, 15)}


def test_a_broker_newer_than_all_known_versions_of_a_relayed_api_is_not_held_back() -> None:
    frame = intersected(0, api_keys=[entry(ApiKey.HEARTBEAT, 0, 9)])
    assert offers(frame, 0) == {ApiKey.HEARTBEAT: (0, 9)}


def test_an_api_whose_lowest_version_is_above_our_newest_is_left_out() -> None:
    frame = intersected(0, api_keys=[entry(ApiKey.FETCH, 16, 20), entry(ApiKey.HEARTBEAT, 0, 4)])
    assert offers(frame, 0) == {ApiKey.HEARTBEAT: (0, 4)}


@pytest.mark.parametrize(
    "key", [4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82, 93, 999, -1, 32767]
)
def test_a35_broker_only_and_unknown_apis_are_not_advertised(key: int) -> None:
    frame = intersected(3, api_keys=[entry(key, 0, 1), entry(ApiKey.API_VERSIONS, 0, 4)])
    assert offers(frame, 3) == {ApiKey.API_VERSIONS: (0, 4)}


def test_a15_unknown_version_gets_exactly_what_kafka_answers() -> None:
    assert unsupported_version_reply(1) == golden("api_versions_unsupported", 99)


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1, -(2**31)])
def test_a15_unknown_version_is_answered_with_the_clients_correlation_id(correlation_id: int) -> None:
    frame = unsupported_version_reply(correlation_id)
    assert wire.correlation_id_of(frame) == correlation_id
    decoded = wire.decode_response("ApiVersions", 0, frame)
    assert decoded.error_code == 35
    newest = newest_version(ApiKey.API_VERSIONS)
    assert [tuple(row) for row in decoded.api_keys] == [(ApiKey.API_VERSIONS, 0, newest)]


@every_case("version", range(5))
def test_a15_refusal_by_an_older_broker_is_read_in_version_0_whatever_was_asked(version: int) -> None:
    refusal = golden("api_versions_unsupported", 99)
    api = describe(ApiKey.API_VERSIONS, version)
    assert answered_in(refusal, api).version == 0
    assert intersect(refusal, api) == refusal


@every_case("version", [3, 4])
def test_a17_refused_software_name_is_passed_on_as_kafka_wrote_it(version: int) -> None:
    refusal = golden("api_versions_invalid", version)
    assert intersect(refusal, describe(ApiKey.API_VERSIONS, version)) == refusal


@every_case("version", [3, 4])
def test_a18_response_header_has_no_tags_even_in_flexible_versions(version: int) -> None:
    assert not describe(ApiKey.API_VERSIONS, version).flexible_header
    assert describe(ApiKey.API_VERSIONS, version).flexible
    assert golden("api_versions", version)[8:10] == b"\0\0"


@every_case("version", [0, 3])
def test_truncated_response_is_a_protocol_error_at_every_byte(version: int) -> None:
    frame = golden("api_versions", version)
    api = describe(ApiKey.API_VERSIONS, version)
    array_ends = 10 + 4 + 75 * 6 if version == 0 else 10 + 1 + 75 * 7
    for end in range(array_ends):
        with pytest.raises(ProtocolError):
            intersect(frame[:end], api)


@every_case("version", range(5))
def test_what_only_the_gateway_has_is_offered_whatever_the_broker_offers(version: int) -> None:
    own = frozenset({ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS})
    api = describe(ApiKey.API_VERSIONS, version)
    frame = wire.response("ApiVersions", version, api_keys=[entry(18, 0, 3), entry(48, 0, 0)])
    assert offers(intersect(frame, api, own), version) == {18: (0, 3), 48: (0, 1), 49: (0, 1)}
    assert offers(intersect(frame, api), version) == {18: (0, 3), 48: (0, 0)}
    # A broker that has them as we do is passed on byte for byte.
    from_kafka = golden("api_versions", version)
    assert intersect(from_kafka, api, own) == intersect(from_kafka, api)


def test_nothing_is_added_to_an_answer_that_only_says_which_versions_there_are() -> None:
    refusal = unsupported_version_reply(1)
    own = frozenset({ApiKey.ALTER_CLIENT_QUOTAS})
    assert intersect(refusal, describe(ApiKey.API_VERSIONS, 4), own) == refusal
