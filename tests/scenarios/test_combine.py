"""Rows of kind combine on a connection: two quotas want the client to wait, and one of them books it."""

from typing import Any

import pytest

from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from testkit import wire
from testkit.conversation import Conversation
from testkit.scenarios import scenarios

ROWS = {param.id: param.values[0]["rows"] for param in scenarios("combine")}
BYTES_PER_S = 100
NS_PER_MS_OF_WAIT = 10_000_000 // 1_000
"""At one percent, a thousandth of 10 ms of CPU time beyond the window's share costs a millisecond."""


def use(
    c: Conversation, api: str, *, bandwidth_ms: int, request_ms: int, acks: int = 1
) -> tuple[int, list[tuple[ApiKey, ThrottledBy]]]:
    """One operation that costs so much of both quotas; how long it is made to wait, and who books it."""
    bytes_wanted = BYTES_PER_S * 10 + BYTES_PER_S * bandwidth_ms // 1_000
    assert c.session.meter is not None
    # Ten windows' share of one percent, and the wait's worth on top.
    c.session.meter.busy_ns = (10_000 + request_ms) * NS_PER_MS_OF_WAIT
    if api == "Produce":
        empty = wire.request("Produce", 7, transactional_id="", acks=acks, topic_data=[])
        padding = "x" * (bytes_wanted + 4 - len(empty))
        c.client_sends(wire.request("Produce", 7, transactional_id=padding, acks=acks, topic_data=[]))
        reply = wire.response("Produce", 7, responses=[])
    else:
        c.client_sends(wire.request("Fetch", 7, topics=[], forgotten_topics_data=[]))
        empty = wire.response("Fetch", 7, responses=[{"topic": "", "partitions": []}])
        padding = "x" * (bytes_wanted + 4 - len(empty))
        reply = wire.response("Fetch", 7, responses=[{"topic": padding, "partitions": []}])
    told_ms = 0
    if acks:
        c.upstream_answers(reply)
        told_ms = wire.decode_response(api, 7, c.take_client()).throttle_time_ms
    booked = [(key, by) for key, _, _, by in c.core.observer.throttles]
    if told_ms or booked:
        c.muted_for(told_ms or bandwidth_ms)
    return told_ms, booked


def both(api: str) -> Conversation:
    """A client under both quotas."""
    rate: dict[str, Any] = (
        {"producer_byte_rate": BYTES_PER_S} if api == "Produce" else {"consumer_byte_rate": BYTES_PER_S}
    )
    return Conversation(request_percentage=1, **rate)


@pytest.mark.parametrize("api", ["Produce", "Fetch"])
@pytest.mark.parametrize("row", ROWS["RQ-16"])
def test_scenario_rq_16(row: dict[str, Any], api: str) -> None:
    acks = row.get("acks", 1)
    if api == "Fetch" and not acks:
        api = "Produce"
    told_ms, booked = use(both(api), api, bandwidth_ms=row["bandwidth"], request_ms=row["request"], acks=acks)
    assert told_ms == (row["applied"] if acks else 0)
    family = ThrottledBy.REQUEST if row["metric"] == "Request" else ThrottledBy(api.lower())
    assert booked == [(ApiKey[api.upper()], family)]


@pytest.mark.parametrize("row", ROWS["RQ-17"])
def test_scenario_rq_17(row: dict[str, Any]) -> None:
    told_ms, booked = use(both(row["api"]), row["api"], bandwidth_ms=60_000, request_ms=1_000)
    families = [by.value.capitalize() for _, by in booked]
    assert families == row["throttle_metric"]
    assert not set(families) & set(row["not_in"])
    assert told_ms == 60_000


def test_without_acks_the_request_quota_alone_mutes_nobody() -> None:
    c = Conversation(request_percentage=1)
    told_ms, booked = use(c, "Produce", bandwidth_ms=0, request_ms=900, acks=0)
    assert (told_ms, booked) == (0, [])
    c.reading()
