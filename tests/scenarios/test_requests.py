"""The rows of kinds req, vo and tb as requests on a connection: what the client reads, and how long it waits."""

from typing import Any

import pytest

from quotas.mutations import MutationSettings, ValidateOnly
from testkit.cluster import NO_ID, ScriptedCluster
from testkit.conversation import Conversation
from testkit.frames import creatable
from testkit.scenarios import scenarios, steps


def settings_of(row: dict[str, Any], mode: str = "kip") -> MutationSettings:
    """Windows as in the row."""
    return MutationSettings(window_num=row["S"], window_ms=row["W"] * 1_000, validate_only=ValidateOnly(mode))


def fields_of(api: str, version: int, topics: list[tuple[str, int]]) -> dict[str, Any]:
    """A request that costs so many permits per topic; CreatePartitions starts from one partition each."""
    if api == "CreateTopics":
        return {"topics": creatable(*topics)}
    if api == "CreatePartitions":
        return {"topics": [{"name": name, "count": n + 1, "assignments": None} for name, n in topics]}
    if version >= 6:
        return {"topics": [{"name": name, "topic_id": NO_ID} for name, _ in topics]}
    return {"topic_names": [name for name, _ in topics]}


def cluster_for(api: str, topics: list[tuple[str, int]]) -> ScriptedCluster:
    """The cluster before the request."""
    if api == "CreateTopics":
        return ScriptedCluster()
    return ScriptedCluster({name: n if api == "DeleteTopics" else 1 for name, n in topics})


def codes(reply: Any) -> list[int]:
    """Error codes in order."""
    results = next(getattr(reply, name) for name in ("topics", "results", "responses") if hasattr(reply, name))
    return [result.error_code for result in results]


@pytest.mark.parametrize("row", scenarios("req"))
def test_scenario_request(row: dict[str, Any]) -> None:
    topics = [tuple(topic) for topic in row["topics"]]
    c = Conversation(
        controller_mutation_rate=row["q"], mutation_settings=settings_of(row), cluster=cluster_for(row["api"], topics)
    )
    reply = c.exchange(row["api"], row["v"], **fields_of(row["api"], row["v"], topics), timeout_ms=1_000)
    assert codes(reply) == row["codes"]
    assert reply.throttle_time_ms == row["throttle_ms"]
    if "tokens_after" in row:
        assert c.core.tokens == row["tokens_after"]
    if row["throttle_ms"]:
        c.muted_for(row["throttle_ms"])
    else:
        c.reading()
    refused = codes(reply).count(89)
    (request,) = c.cluster.asked(row["api"])
    names = getattr(request, "topics", None) or request.topic_names
    assert len(names) == len(topics) - refused


@pytest.mark.parametrize("row", scenarios("vo"))
def test_scenario_validate_only(row: dict[str, Any]) -> None:
    c = Conversation(controller_mutation_rate=row["q"], mutation_settings=settings_of(row, row["mode"]))
    spent = c.core.tokens - row["debt"]
    c.core.spend(spent)
    reply = c.exchange(
        "CreateTopics", 7, topics=creatable(("a", 5)), timeout_ms=1_000, validate_only=row["validate_only"]
    )
    assert (codes(reply), reply.throttle_time_ms) == ([row["code"]], row["throttle_ms"])
    assert c.core.tokens == row["debt"] - row["charged"]


TB_REQUESTS = [
    param
    for param in scenarios("tb")
    if any(step[1] in ("strict", "perm") for step in param.values[0].get("steps", ()))
]


@pytest.mark.parametrize("row", TB_REQUESTS)
def test_scenario_token_bucket_as_requests_of_one_topic(row: dict[str, Any]) -> None:
    """Each step comes on a connection of its own: the rows are about the client's bucket, not about mutes."""
    first = Conversation(controller_mutation_rate=row["q"], mutation_settings=settings_of(row))
    for number, (at_ms, verb, permits, *expected) in enumerate(steps(row)):
        if verb == "measure":
            assert first.another().at(at_ms).core.tokens == pytest.approx(permits)
            continue
        version = 7 if verb == "strict" else 5
        c = first.another().at(at_ms)
        reply = c.exchange("CreateTopics", version, topics=creatable((f"t{number}", permits)), timeout_ms=1_000)
        accepted, throttle_ms, tokens = expected if verb == "strict" else (True, *expected)
        assert codes(reply) == [0 if accepted else 89]
        assert reply.throttle_time_ms == throttle_ms
        assert c.core.tokens == pytest.approx(tokens, abs=1e-9)
    if "then" in row:
        left_ms = row["then"]["throttle_ms"]
        c = first.another().at(row["then"]["elapsed_ms"])
        reply = c.exchange("CreateTopics", 7, topics=creatable(("late", 1)), timeout_ms=1_000)
        assert reply.throttle_time_ms == left_ms


def test_the_worked_example_of_kip_599_in_one_request() -> None:
    """Quota 5/s, burst 500, seven topics of 80 partitions: all accepted, 60 in debt, then 12 s."""
    settings = MutationSettings(window_num=100)
    c = Conversation(controller_mutation_rate=5, mutation_settings=settings)
    topics = [(f"t{number}", 80) for number in range(7)]
    reply = c.exchange("CreateTopics", 7, topics=creatable(*topics), timeout_ms=1_000)
    assert (codes(reply), reply.throttle_time_ms, c.core.tokens) == ([0] * 7, 0, -60)
    reply = c.reading().exchange("CreateTopics", 7, topics=creatable(("next", 1)), timeout_ms=1_000)
    assert (codes(reply), reply.throttle_time_ms, c.core.tokens) == ([89], 12_000, -60)
    c.muted_for(12_000)


def test_the_worked_example_of_kip_599_from_an_old_client() -> None:
    settings = MutationSettings(window_num=100)
    c = Conversation(controller_mutation_rate=5, mutation_settings=settings)
    topics = [(f"t{number}", 80) for number in range(7)]
    reply = c.exchange("CreateTopics", 5, topics=creatable(*topics), timeout_ms=1_000)
    assert (codes(reply), reply.throttle_time_ms, c.core.tokens) == ([0] * 7, 12_000, -60)
    c.muted_for(12_000)
