"""Refusals as bytes: what Kafka 4.3.1 wrote in the same situation (RQ-19 and its like)."""

from typing import Any

import pytest

from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.conversation import Conversation
from testkit.golden import golden
from testkit.scenarios import scenarios

REFUSALS = [
    ("create_topics_refused", 6),
    ("create_topics_refused", 7),
    ("create_partitions_refused", 3),
    ("delete_topics_refused", 5),
    ("delete_topics_refused", 6),
    ("delete_topics_by_id_refused", 6),
]


def results_of(body: Any) -> Any:
    """The results of a decoded reply to any of the three APIs."""
    return next(getattr(body, field) for field in ("topics", "results", "responses") if hasattr(body, field))


@pytest.mark.parametrize(("label", "version"), REFUSALS)
def test_a_refusal_is_the_one_that_kafka_writes_to_the_byte(label: str, version: int) -> None:
    request, kafkas = golden(label, version, "request"), golden(label, version)
    name = "".join(word.capitalize() for word in label.split("_")[:2])
    body = wire.decode_response(name, version, kafkas)
    cluster = ScriptedCluster()
    if name != "CreateTopics":
        for result in results_of(body):
            cluster.create(result.name, 1)
            cluster.ids[result.name] = getattr(result, "topic_id", None) or cluster.ids[result.name]
    c = Conversation(controller_mutation_rate=1, cluster=cluster)
    client_id = request[14 : 14 + int.from_bytes(request[12:14], "big")].decode()
    debt = body.throttle_time_ms / 1_000
    c.core.spend(10 + debt, client_id=client_id)
    c.client_sends(request)
    c.serve()
    c.client_sees(kafkas)


@pytest.mark.parametrize("row", scenarios("wire"))
def test_scenario_wire(row: dict[str, Any]) -> None:
    cluster = ScriptedCluster({"a": 1})
    c = Conversation(controller_mutation_rate=10, cluster=cluster)
    spent = 100 + row["throttle_field"] / 100
    c.core.spend(spent)
    reply = c.exchange(row["api"], row["v"], topics=[{"name": "a"}], timeout_ms=1_000)
    (result,) = results_of(reply)
    assert (result.error_code, result.error_message) == (row["code"], row["error_message"])
    assert reply.throttle_time_ms == row["throttle_field"]
