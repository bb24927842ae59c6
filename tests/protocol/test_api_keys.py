"""The table of APIs and the error codes agree with Kafka's, and only what is safe is on offer."""

import re

import kafka.errors
import pytest

from protocol.api_keys import (
    BROKER_ONLY,
    CLUSTER_ADMIN,
    MAX_VERSION,
    Api,
    ApiKey,
    ThrottlePlace,
    all_offered,
    describe,
    newest_version,
    offered,
)
from protocol.error_codes import ErrorCode
from testkit import wire
from testkit.cases import every_case
from testkit.golden import golden

each_api = every_case("name", wire.api_names())
BROKER_ONLY_IN_KAFKA = {4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, *range(82, 88)}


def camel(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))


def advertised_by_kafka() -> dict[int, tuple[int, int]]:
    rows = wire.decode_response("ApiVersions", 5, golden("api_versions", 5)).api_keys
    return {row.api_key: (row.min_version, row.max_version) for row in rows}


@each_api
def test_a18_name_and_flexible_versions_are_kafkas_also_in_response_headers(name: str) -> None:
    assert camel(ApiKey(wire.api_key_of(name))) == name
    for version in wire.versions(name):
        api = describe(ApiKey(wire.api_key_of(name)), version)
        fields = wire.populated(name, version, kind="Request")
        with_tags = wire.request(name, version, header_tags=[(1, b"")], **fields)
        without = wire.request(name, version, **fields)
        assert api.flexible == (len(with_tags) > len(without))
    for version in wire.versions(name):
        api = describe(ApiKey(wire.api_key_of(name)), version)
        plain = wire.response(name, version, **wire.populated(name, version))
        tagged = wire.response(name, version, header_tags=[(1, b"")], **wire.populated(name, version))
        assert api.flexible_header == (len(tagged) > len(plain))
        if name == "ApiVersions":
            assert not api.flexible_header


def test_every_key_has_its_number_and_a_layout_that_is_checked() -> None:
    assert sorted(ApiKey) == list(range(95))
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", key.name) for key in ApiKey)
    from_kafka_python = {wire.api_key_of(name) for name in wire.api_names()}
    assert NOT_IN_KAFKA_PYTHON.keys() | from_kafka_python == set(ApiKey)
    assert not NOT_IN_KAFKA_PYTHON.keys() & from_kafka_python


@each_api
def test_throttle_time_is_claimed_exactly_where_the_response_has_it(name: str) -> None:
    for version in wire.versions(name):
        api = describe(ApiKey(wire.api_key_of(name)), version)
        fields = list(wire.populated(name, version))
        if "throttle_time_ms" not in fields:
            assert api.throttle_place is ThrottlePlace.NOWHERE
        else:
            expected = {
                "Produce": ThrottlePlace.AFTER_RESPONSES,
                "ApiVersions": ThrottlePlace.AFTER_API_KEYS,
                "OffsetDelete": ThrottlePlace.AFTER_ERROR_CODE,
            }.get(name, ThrottlePlace.FIRST)
            assert api.throttle_place is expected
            if expected is ThrottlePlace.FIRST:
                assert fields[0] == "throttle_time_ms"


# What kafka-python has no classes for, from Kafka's message definitions:
# key -> (first flexible version, first version with throttle_time_ms or None).
NOT_IN_KAFKA_PYTHON: dict[int, tuple[int, int | None]] = {
    **dict.fromkeys(range(38, 42), (2, 0)),
    **dict.fromkeys([59, 62, 63, 64, *range(67, 74), 76, 77, *range(80, 83), *range(90, 93), 94], (0, 0)),
    **dict.fromkeys([52, 58, *range(83, 88)], (0, None)),
    53: (1, None),
    54: (1, None),
    56: (0, 0),
    4: (4, None),
    5: (2, None),
    6: (6, None),
    7: (3, None),
}


@pytest.mark.parametrize("key", NOT_IN_KAFKA_PYTHON)
def test_layouts_that_kafka_python_does_not_know_are_kafkas(key: int) -> None:
    flexible_since, throttle_since = NOT_IN_KAFKA_PYTHON[key]
    place = ThrottlePlace.LAST if 38 <= key <= 41 else ThrottlePlace.FIRST
    for version in range(9):
        api = describe(ApiKey(key), version)
        has_field = throttle_since is not None and version >= throttle_since
        assert api.flexible == api.flexible_header == (version >= flexible_since)
        assert api.throttle_place is (place if has_field else ThrottlePlace.NOWHERE)


@pytest.mark.parametrize(
    ("key", "strict_since"), [(ApiKey.CREATE_TOPICS, 6), (ApiKey.CREATE_PARTITIONS, 3), (ApiKey.DELETE_TOPICS, 5)]
)
def test_c21_mutations_are_strict_from_version_that_can_read_refusal(key: ApiKey, strict_since: int) -> None:
    for version in range(newest_version(key) + 1):
        assert describe(key, version).strict == (version >= strict_since)


def test_c21_no_other_api_is_strict() -> None:
    strict = {api.key for api in all_offered() if api.strict}
    assert strict == {ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.DELETE_TOPICS}


def test_a35_what_brokers_say_to_each_other_is_not_on_offer() -> None:
    assert BROKER_ONLY_IN_KAFKA == BROKER_ONLY
    assert {64, 80, 81, 94} == CLUSTER_ADMIN
    for key in BROKER_ONLY | CLUSTER_ADMIN:
        assert not offered(key)


@pytest.mark.parametrize("key", [-1, -(2**15), 95, 999, 10_000, 32_767])
def test_a12_unknown_keys_are_not_on_offer(key: int) -> None:
    assert not offered(key)


def test_what_kafka_advertises_passes_and_nothing_newer() -> None:
    """A newer layout must not reach clients past code that does not know it."""
    passing = {(api.key, api.version) for api in all_offered()}
    for key, (lowest, highest) in advertised_by_kafka().items():
        for version in range(lowest, highest + 1):
            withheld = not offered(key) or (key, version) in {(24, 4), (24, 5)}
            assert ((key, version) in passing) != withheld
    assert all(highest <= MAX_VERSION[ApiKey(key)] or key == 24
               for key, (_, highest) in advertised_by_kafka().items() if offered(key))  # fmt: skip


def test_what_is_on_offer_is_bounded_and_a_newer_version_looks_like_the_newest_known() -> None:
    listed = [(api.key, api.version) for api in all_offered()]
    assert len(listed) == len(set(listed)) < 300
    assert all(0 <= version <= newest_version(key) for key, version in listed)
    assert describe(ApiKey.HEARTBEAT, 60) == Api(
        key=ApiKey.HEARTBEAT,
        version=60,
        flexible=True,
        flexible_header=True,
        throttle_place=ThrottlePlace.FIRST,
        strict=False,
    )


def test_number_and_name_belong_together() -> None:
    """kafka-python may not name 89 and 129; KIP-599 and KIP-1102 do."""
    unnamed = {89: ErrorCode.THROTTLING_QUOTA_EXCEEDED, 129: ErrorCode.REBOOTSTRAP_REQUIRED}
    assert all(ErrorCode(number) is code for number, code in unnamed.items())
    for code in set(ErrorCode) - set(unnamed.values()):
        name = "NO_ERROR" if code is ErrorCode.NONE else code.name
        kafkas = str(kafka.errors.for_code(code).message)
        assert kafkas.removesuffix("_EXCEPTION") == name.removesuffix("_EXCEPTION")
