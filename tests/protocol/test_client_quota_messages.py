"""DescribeClientQuotas and AlterClientQuotas: read and written as by kafka-python; nothing hostile gets through."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from struct import pack
from typing import Any

import pytest

from protocol.api_keys import Api, ApiKey, describe
from protocol.client_quota_messages import (
    MAX_ENTRIES,
    AlterEntry,
    AlterResult,
    DescribedEntity,
    FilterComponent,
    QuotaOp,
    asking_for_nothing,
    encode_alter_answer,
    encode_describe_answer,
    only_validating,
    parse_alter,
    parse_describe,
    read_alter_outcome,
    read_describe_outcome,
)
from protocol.errors import MalformedBody, ProtocolError, TooManyElements
from protocol.steps import Steps, finish
from testkit import wire

each_version = pytest.mark.parametrize("version", [0, 1])
DESCRIBE = "DescribeClientQuotas"
TAGS = [(3, b"tag")]


def api(name: str, version: int) -> Api:
    return describe(ApiKey.ALTER_CLIENT_QUOTAS if name == "Alter" else ApiKey.DESCRIBE_CLIENT_QUOTAS, version)


def parts(entry: Any) -> list[tuple[str, str | None]]:
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def alter(version: int, *entries: tuple[list[tuple[str, str | None]], list[tuple[str, float, bool]]]) -> bytes:
    rows = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": key, "value": value, "remove": remove} for key, value, remove in ops],
        }
        for entity, ops in entries
    ]
    return wire.request("AlterClientQuotas", version, entries=rows, validate_only=False, header_tags=TAGS)


@each_version
def test_an_alteration_is_read_as_it_was_written(version: int) -> None:
    ops = [("producer_byte_rate", 5e-324, False), ("x", 0.0, True), ("l", -math.inf, False)]
    frame = alter(version, ([("user", "gr\u00fc\u00df"), ("client-id", None)], ops), ([], []))
    parsed = finish(parse_alter(frame, api("Alter", version)))
    assert parsed.entries == (
        AlterEntry({"user": "gr\u00fc\u00df", "client-id": None}, tuple(QuotaOp(*op) for op in ops)),
        AlterEntry({}, ()),
    )
    assert parsed.validate_only is False


@each_version
def test_a_type_that_stands_twice_counts_with_its_last_name_and_value_may_be_no_number(version: int) -> None:
    frame = alter(version, ([("user", "a"), ("user", "b")], [("k", math.nan, False)]))
    (entry,) = finish(parse_alter(frame, api("Alter", version))).entries
    assert entry.entity == {"user": "b"}
    assert math.isnan(entry.ops[0].value)


@each_version
def test_filters_and_requests_to_be_checked_only(version: int) -> None:
    frame = alter(version, ([("user", "a")], [("k", 1.0, False)]))
    asked = only_validating(frame, finish(parse_alter(frame, api("Alter", version))))
    body = wire.decode_request("AlterClientQuotas", version, asked)
    assert body.validate_only is True
    assert body.entries[0].entity[0].entity_name == "a"
    components = [
        {"entity_type": "user", "match_type": 0, "match": "u"},
        {"entity_type": "ip", "match_type": -1, "match": None},
    ]
    frame = wire.request(DESCRIBE, version, components=components, strict=True, header_tags=TAGS)
    parsed = parse_describe(frame, api("Describe", version))
    assert parsed.components == (FilterComponent("user", 0, "u"), FilterComponent("ip", -1, None))
    assert parsed.strict
    frame = wire.request(DESCRIBE, version, correlation_id=7, components=[], strict=False)
    body = wire.decode_request(DESCRIBE, version, asking_for_nothing(frame, api("Describe", version)))
    assert (list(body.components), body.strict) == ([], True)


@each_version
def test_an_answer_to_an_alteration_is_what_kafka_python_reads(version: int) -> None:
    results = [AlterResult({"ip": None}), AlterResult({"user": "a", "client-id": "b", "z": "c"}, 42, "why")]
    frame = finish(encode_alter_answer(77, results, api("Alter", version), throttle_time_ms=5))
    body = wire.decode_response("AlterClientQuotas", version, frame)
    assert wire.correlation_id_of(frame) == 77
    assert body.throttle_time_ms == 5
    assert [(row.error_code, row.error_message, parts(row)) for row in body.entries] == [
        (0, None, [("ip", None)]),
        (42, "why", [("client-id", "b"), ("user", "a"), ("z", "c")]),
    ]
    assert read_alter_outcome(frame, api("Alter", version)) == [(0, None), (42, "why")]


@each_version
def test_answers_to_a_description_are_what_kafka_python_reads(version: int) -> None:
    found = [DescribedEntity({"user": "a", "client-id": None}, {"k": 1.5, "l": 2.0})]
    frame = encode_describe_answer(8, found, api("Describe", version))
    body = wire.decode_response(DESCRIBE, version, frame)
    assert (body.error_code, body.error_message, body.throttle_time_ms) == (0, "", 0)
    (entry,) = body.entries
    assert parts(entry) == [("client-id", None), ("user", "a")]
    assert [(value.key, value.value) for value in entry.values] == [("k", 1.5), ("l", 2.0)]
    frame = encode_describe_answer(8, None, api("Describe", version), error_code=31, error_message=None)
    body = wire.decode_response(DESCRIBE, version, frame)
    assert (body.error_code, body.error_message, body.entries) == (31, None, None)
    assert read_describe_outcome(frame, api("Describe", version)) == (31, None)


@each_version
def test_a_text_that_quotes_a_long_name_is_cut_to_what_a_string_holds(version: int) -> None:
    long = "\u00fc" * 20_000
    frame = finish(encode_alter_answer(1, [AlterResult({"user": "u"}, 42, long)], api("Alter", version)))
    message = wire.decode_response("AlterClientQuotas", version, frame).entries[0].error_message
    assert message == "\u00fc" * 16_383


def test_g10_null_and_many_elements_that_the_layout_does_not_have_are_refused() -> None:
    head = wire.head(49, 0, flexible=False)
    for body in (pack(">i", -1), pack(">iih", 1, 1, -1), pack(">ii", 1, -1)):
        with pytest.raises(MalformedBody):
            finish(parse_alter(wire.framed(head + body + bytes(20)), api("Alter", 0)))
    describing = wire.framed(wire.head(48, 0, flexible=False) + pack(">ib", -1, 0))
    with pytest.raises(MalformedBody):
        parse_describe(describing, api("Describe", 0))
    announced = wire.head(49, 0, flexible=False) + pack(">i", 2**31 - 1) + bytes(100)
    with pytest.raises(MalformedBody):
        finish(parse_alter(wire.framed(announced), api("Alter", 0)))
    with pytest.raises(TooManyElements):
        finish(parse_alter(alter(0, *[([], [])] * (MAX_ENTRIES + 1)), api("Alter", 0)))
    ops = [("k", 1.0, False)] * (MAX_ENTRIES + 1)
    with pytest.raises(TooManyElements):
        finish(parse_alter(alter(0, *[([("user", "u")], ops)] * 4), api("Alter", 0)))


def test_bytes_that_are_no_text_are_replaced_as_long_as_they_can_be_written_back() -> None:
    def named(raw: bytes) -> bytes:
        entity = pack(">ih", 1, 4) + b"user" + pack(">h", len(raw)) + raw
        return wire.framed(wire.head(49, 0, flexible=False) + pack(">i", 1) + entity + pack(">ib", 0, 0))

    assert finish(parse_alter(named(b"a\xff"), api("Alter", 0))).entries[0].entity == {"user": "a\ufffd"}
    with pytest.raises(MalformedBody):
        finish(parse_alter(named(b"\xff" * 32_767), api("Alter", 0)))


def _finished(walk: Callable[[bytes, Api], Steps[Any]], frame: bytes, of: Api) -> Any:
    return finish(walk(frame, of))


@each_version
def test_every_cut_of_a_frame_is_a_protocol_error_or_a_value(version: int) -> None:
    altering, describing = api("Alter", version), api("Describe", version)
    answer = finish(encode_alter_answer(1, [AlterResult({"user": "u"}, 42, "why")], altering))
    frames: list[tuple[Any, bytes, Api]] = [
        (partial(_finished, parse_alter), alter(version, ([("user", "u")], [("k", 1.0, False)])), altering),
        (read_alter_outcome, answer, altering),
        (read_describe_outcome, encode_describe_answer(1, [], describing), describing),
    ]
    for parse, frame, of in frames:
        parse(frame, of)
        for end in range(14, len(frame) - 3):
            with suppress(ProtocolError):
                parse(frame[:end], of)
