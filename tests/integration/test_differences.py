"""Where the gateway answers otherwise than Kafka 4.4.0: each row of a table, shown on both.

The table is in docs/reference/differences-from-kafka.md.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.two_sides import Side, both_sides, brokers_quota, results_of

pytestmark = pytest.mark.integration

# One partition takes the bucket into a debt that outlasts the test.
RATE: Final = 0.01
CLIENTS: Final = [
    "validate-only", "unknowable-in-debt", "unknowable-first", "huge", "bad-assignment", "random-order",
]  # fmt: skip
NONE, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG = 0, 38, 39, 40
POLICY_VIOLATION, THROTTLING_QUOTA_EXCEEDED = 44, 89


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """The default configuration, as KIP-599 has it, with a quota."""
    return start_gateway(kafka, GatewayOptions(dict.fromkeys(CLIENTS, RATE)))


@pytest.fixture(scope="module", autouse=True)
def quota_of_the_broker(kafka: KafkaCluster) -> Iterator[None]:
    with brokers_quota(kafka.brokers[1], CLIENTS, RATE):
        yield


@pytest.fixture
def sides(request: pytest.FixtureRequest, kafka: KafkaCluster, gateway: GatewayProcess) -> tuple[Side, Side]:
    return both_sides(kafka.brokers[1], gateway.bootstrap, request.param)


def as_client(client_id: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sides", [client_id], indirect=True)


def create(side: Side, *topics: dict[str, Any], validate_only: bool = False) -> list[tuple[str, int]]:
    named = [
        {"num_partitions": 1, "replication_factor": 1, **topic, "name": side.prefix + topic["name"]}
        for topic in topics
    ]
    fields = {"topics": named, "timeout_ms": 30_000, "validate_only": validate_only}
    return results_of(side.ask("CreateTopics", 7, **fields), side)


@as_client("validate-only")
def test_requests_that_only_validate_are_never_refused_by_default(sides: tuple[Side, Side]) -> None:
    for side, expected in zip(sides, (THROTTLING_QUOTA_EXCEEDED, NONE), strict=True):
        assert create(side, {"name": "debt"}) == [("debt", NONE)]
        assert create(side, {"name": "a"}, validate_only=True) == [("a", expected)]


WRONG: Final[list[tuple[dict[str, Any], int]]] = [
    ({"name": "replicas", "replication_factor": 3}, INVALID_REPLICATION_FACTOR),
    ({"name": "config", "configs": [{"name": "no.such.config", "value": "1"}]}, INVALID_CONFIG),
]


@as_client("unknowable-in-debt")
def test_in_debt_topics_that_are_wrong_in_ways_only_the_broker_knows_are_refused_as_throttled(
    sides: tuple[Side, Side],
) -> None:
    for side in sides:
        assert create(side, {"name": "debt"}) == [("debt", NONE)]
    for topic, code in WRONG:
        assert create(sides[0], topic) == [(topic["name"], code)]
        assert create(sides[1], topic) == [(topic["name"], THROTTLING_QUOTA_EXCEEDED)]


@as_client("unknowable-first")
def test_topics_that_are_wrong_in_ways_only_the_broker_knows_use_tokens_until_it_has_answered(
    sides: tuple[Side, Side],
) -> None:
    topic, code = WRONG[0]
    assert create(sides[0], topic, {"name": "good"}) == [("replicas", code), ("good", NONE)]
    assert create(sides[1], topic, {"name": "good"}) == [("replicas", code), ("good", THROTTLING_QUOTA_EXCEEDED)]
    # Given back: the next request finds the bucket full.
    assert create(sides[1], {"name": "good"}) == [("good", NONE)]


@as_client("huge")
def test_topic_too_large_for_one_batch_of_records_is_given_back(sides: tuple[Side, Side]) -> None:
    for side, expected in zip(sides, (THROTTLING_QUOTA_EXCEEDED, NONE), strict=True):
        assert create(side, {"name": "huge", "num_partitions": 10_000}) == [("huge", POLICY_VIOLATION)]
        assert create(side, {"name": "next"}) == [("next", expected)]


@as_client("bad-assignment")
def test_partitions_assigned_to_a_broker_that_is_not_there_are_given_back(sides: tuple[Side, Side]) -> None:
    for side, expected in zip(sides, (THROTTLING_QUOTA_EXCEEDED, NONE), strict=True):
        unlimited = Side(side.address, "nobody")
        name = side.prefix + "grown"
        new = {"name": name, "num_partitions": 1, "replication_factor": 1}
        unlimited.ask("CreateTopics", 7, topics=[new], timeout_ms=30_000)
        topic = {"name": name, "count": 2, "assignments": [{"broker_ids": [99]}]}
        reply = side.ask("CreatePartitions", 3, topics=[topic], timeout_ms=30_000, validate_only=False)
        assert results_of(reply, side) == [("grown", INVALID_REPLICA_ASSIGNMENT)]
        assert create(side, {"name": "next"}) == [("next", expected)]


@as_client("random-order")
def test_topics_to_delete_are_admitted_in_the_order_of_the_request(sides: tuple[Side, Side]) -> None:
    names = [f"victim-{number}" for number in range(6)]
    for side in sides:
        new = [{"name": side.prefix + name, "num_partitions": 1, "replication_factor": 1} for name in names]
        Side(side.address, "nobody").ask("CreateTopics", 7, topics=new, timeout_ms=30_000)
    outcomes = []
    for side in sides:
        topics = [{"name": side.prefix + name} for name in names]
        outcomes.append(results_of(side.ask("DeleteTopics", 6, topics=topics, timeout_ms=30_000), side))
    kafkas, ours = outcomes
    assert ours == [(names[0], NONE)] + [(name, THROTTLING_QUOTA_EXCEEDED) for name in names[1:]]
    # As many, but which ones is up to a hash map.
    assert sorted(code for _, code in kafkas) == sorted(code for _, code in ours)
