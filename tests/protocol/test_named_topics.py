"""Topics are cut out of requests that name them, byte for byte, and answered beside the broker's results."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.api_keys import Api, ApiKey, describe, newest_version
from protocol.errors import ProtocolError, TooManyElements
from protocol.named_topics import (
    NamedTopics,
    insert_results,
    parse_named_topics,
    refused_results,
    refused_transaction,
)
from protocol.steps import STEP_ELEMENTS, finish
from testkit import wire
from testkit.cases import every_case

ARRAYS = {
    "Produce": ("topic_data", "partition_data", "responses"),
    "DeleteRecords": ("topics", "partitions", "topics"),
    "AlterPartitionReassignments": ("topics", "partitions", "responses"),
    "ElectLeaders": ("topic_partitions", "partitions", "replica_election_results"),
    "AddPartitionsToTxn": ("v3_and_below_topics", "partitions", "results_by_topic_v3_and_below"),
    "AlterConfigs": ("resources", "configs", "responses"),
    "IncrementalAlterConfigs": ("resources", "configs", "responses"),
}
"""By API: its array, what stands in each element's, and the array of the answer."""

EVERY = [
    (name, version)
    for name in ARRAYS
    for version in wire.versions(name)
    if version <= newest_version(ApiKey(wire.api_key_of(name)))
    and not (name == "AddPartitionsToTxn" and version >= 4)  # between brokers
]


def fields_of(name: str, version: int) -> dict[str, Any]:
    """A request in which every field has a value of its own, about two topics."""
    fields = wire.populated(name, version, kind="Request")
    for element in fields[ARRAYS[name][0]]:
        if "resource_type" in element:
            element["resource_type"] = 2
    return fields


def called(element: dict[str, Any]) -> bytes:
    """What an element of a request or of an answer calls its topic."""
    if element.get("topic_id"):
        return bytes(element["topic_id"].bytes)
    return str(element.get("name") or element.get("topic") or element["resource_name"]).encode()


def api_of(name: str, version: int) -> Api:
    return describe(ApiKey(wire.api_key_of(name)), version)


def parsed(name: str, version: int, fields: dict[str, Any]) -> NamedTopics:
    return finish(parse_named_topics(wire.request(name, version, **fields), api_of(name, version)))


@every_case(("name", "version"), EVERY)
def test_what_stays_of_a_request_stays_byte_for_byte(name: str, version: int) -> None:
    fields = fields_of(name, version)
    array = ARRAYS[name][0]
    request = parsed(name, version, fields)
    names = [called(element) for element in fields[array]]
    assert [each.called for each in request.elements] == names
    for gone in ([names[0]], [names[1]], names, []):
        kept = [element for element in fields[array] if called(element) not in gone]
        assert request.without(gone) == wire.request(name, version, **fields | {array: kept})
        assert request.names_any(gone) == bool(gone)
    behind = b"before" + wire.request(name, version, **fields) + b"after"
    assert finish(parse_named_topics(behind, api_of(name, version), at=6)) == request


@every_case(("name", "version"), [row for row in EVERY if row[0] != "AddPartitionsToTxn"])
def test_refused_topics_stand_in_front_of_the_brokers_results(name: str, version: int) -> None:
    fields = fields_of(name, version)
    array, inner, results_array = ARRAYS[name]
    request = parsed(name, version, fields)
    second = fields[array][1]
    results, count = finish(refused_results(request, [called(second)], 29))
    assert count == 1
    answer = wire.populated(name, version)
    got = insert_results(wire.response(name, version, **answer), api_of(name, version), results, count)
    told = wire.decode_response(name, version, got).to_dict()
    ours = told[results_array].pop(0)
    usual = wire.decode_response(name, version, wire.response(name, version, **answer)).to_dict()
    assert told == usual
    assert str(ours).count("29") == (1 if "configs" in inner else 2)
    assert called(second).hex() in str(ours).replace("-", "") or called(second).decode() in str(ours)
    if "configs" not in inner:
        wanted = [one if isinstance(one, int) else next(iter(one.values())) for one in second[inner]]
        partitions = next(value for value in ours.values() if isinstance(value, list))
        assert [next(iter(one.values())) for one in partitions] == wanted


@every_case("version", range(4))
def test_a_transaction_with_a_refused_topic_adds_no_other(version: int) -> None:
    fields = fields_of("AddPartitionsToTxn", version)
    request = parsed("AddPartitionsToTxn", version, fields)
    names = [called(element) for element in fields[ARRAYS["AddPartitionsToTxn"][0]]]
    reply = finish(refused_transaction(request, names[:1], 1, 29, 55))
    answer = wire.decode_response("AddPartitionsToTxn", version, reply).to_dict()
    assert answer["throttle_time_ms"] == 0
    results = answer[ARRAYS["AddPartitionsToTxn"][2]]
    assert [called(topic) for topic in results] == names
    codes = [[one["partition_error_code"] for one in topic["results_by_partition"]] for topic in results]
    assert codes == [[29, 29], [55, 55]]


@every_case(("name", "version"), EVERY)
def test_a_request_that_ends_too_early_or_names_too_much_is_refused(name: str, version: int) -> None:
    fields = fields_of(name, version)
    whole = wire.request(name, version, **fields)
    for end in range(30, len(whole) - 12, 7):
        with pytest.raises(ProtocolError):
            finish(parse_named_topics(wire.framed(whole[4:end]), api_of(name, version)))
    finish(parse_named_topics(whole, api_of(name, version), most=4))
    for most in (1, 3):
        with pytest.raises(TooManyElements):
            finish(parse_named_topics(whole, api_of(name, version), most=most))


def test_k06_walks_of_many_elements_pause() -> None:
    """One event holds the loop for some hundred elements, whether they are topics or their partitions."""
    many = 20 * STEP_ELEMENTS - 1
    for topics, partitions in ((many, 0), (1, many)):
        rows = [{"name": f"t{index}", "partitions": list(range(partitions))} for index in range(topics)]
        api = api_of("AddPartitionsToTxn", 3)
        frame = wire.request("AddPartitionsToTxn", 3, v3_and_below_topics=rows)
        request = finish(parse_named_topics(frame, api, most=20_000))
        names = {row["name"].encode() for row in rows}
        for walk in (
            parse_named_topics(frame, api, most=20_000),
            refused_results(request, names, 29),
            refused_transaction(request, names, 1, 29, 55),
        ):
            assert 18 <= sum(1 for _ in walk) <= 20
