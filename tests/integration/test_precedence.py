"""Hazard C25: which of several quotas holds, and how use is counted after a change; beside a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import session_settings
from testkit.frames import produce_reply
from testkit.secure_kafka import SecureKafka
from testkit.wire_client import WireClient
from tests.integration.sasl_gateway import log_in
from tests.integration.test_operations import records

pytestmark = pytest.mark.integration

CLIENT: Final = "precedence"
USER: Final = "user-of-precedence"
"""No one else's: whatever else writes as ANONYMOUS, a gateway's usage records too, would be counted with it."""
SAMPLE_MS: Final = 1_000
FORGOTTEN_S: Final = 11
ATTEMPTS: Final = 3
"""On a busy machine."""
LEAST_CHANGES: Final = 16
"""Each quota was set, and taken away again."""
LEVELS: Final = [
    QuotaEntity(user=USER, client_id=CLIENT),
    QuotaEntity(user=USER, client_id=DEFAULT),
    QuotaEntity(user=USER),
    QuotaEntity(user=DEFAULT, client_id=CLIENT),
    QuotaEntity(user=DEFAULT, client_id=DEFAULT),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(client_id=CLIENT),
    QuotaEntity(client_id=DEFAULT),
]
"""Kafka's order of precedence."""


def alter(secure_kafka: SecureKafka, entity: QuotaEntity, value: float | None) -> None:
    """Set a producer_byte_rate at the broker; None removes it."""
    parts = [("user", entity.user), ("client-id", entity.client_id)]
    entry = {
        "entity": [
            {"entity_type": kind, "entity_name": None if name is DEFAULT else name}
            for kind, name in parts
            if name is not None
        ],
        "ops": [{"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}],
    }
    with WireClient(secure_kafka.cluster.brokers[1]) as client:
        answer = client.ask("AlterClientQuotas", 1, entries=[entry], validate_only=False).body
    assert [entry.error_code for entry in answer.entries] == [0]


@pytest.fixture
def no_quotas_left(secure_kafka: SecureKafka) -> Iterator[None]:
    yield
    for entity in LEVELS:
        alter(secure_kafka, entity, None)


@pytest.mark.campaign
@pytest.mark.usefixtures("no_quotas_left")
def test_c25_the_gateway_takes_the_same_of_eight_quotas_as_the_broker_and_counts_alike_after_each_change(
    secure_kafka: SecureKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All eight at first, the most specific one taken away in each step, then added again from the other end."""
    # Levels share counters: without it, the bound that the gateway has beside Kafka's rate holds all but the first.
    monkeypatch.setattr("quotas.rate_quotas._BOUND_WINDOWS", 1_000_000)
    for _ in range(ATTEMPTS):
        differences, changes = race(secure_kafka)
        if changes < 3 * len(LEVELS) or differences:
            time.sleep(FORGOTTEN_S + 1)  # else the next attempt begins with full counters
        assert differences == []
        if changes == 3 * len(LEVELS):
            return
    assert changes >= LEAST_CHANGES


def race(secure_kafka: SecureKafka) -> tuple[list[tuple[object, ...]], int]:
    """Both sides through the changes that there is time for: where they differ, and how many there were."""
    topic = f"{CLIENT}-{time.time_ns()}"
    secure_kafka.create_topic(topic)
    partition = {"index": 0, "records": records(20_000)}
    topics = [{"name": topic, "partition_data": [partition]}]
    fields = {"acks": 1, "timeout_ms": 20_000, "topic_data": topics}
    ours = Conversation(user=USER, settings=session_settings(max_mute_ms=2**31 - 1))
    limits = {entity: 10.0 * 2**level for level, entity in enumerate(LEVELS)}
    changes: list[tuple[QuotaEntity, float | None]] = [(entity, limits[entity]) for entity in LEVELS]
    changes += [(entity, None) for entity in LEVELS]
    changes += [(entity, limits[entity]) for entity in reversed(LEVELS)]
    differences: list[tuple[object, ...]] = []
    slowest_ms = 0
    started = time.monotonic()
    for number, (entity, value) in enumerate(changes):
        # What falls out of a window falls out for one side a moment before the other.
        if time.monotonic() - started > FORGOTTEN_S - 2:
            return differences, number
        alter(secure_kafka, entity, value)
        if value is None:
            ours.core.limits.remove(entity, QuotaKey.PRODUCER_BYTE_RATE)
        else:
            ours.core.limits.set(entity, QuotaKey.PRODUCER_BYTE_RATE, value)
        time.sleep(0.15)  # the broker's own quota managers hear of it a moment later
        frame = wire.request("Produce", 9, client_id=CLIENT, **fields)
        with WireClient(secure_kafka.addresses("SASL")[1], client_id=CLIENT) as client:
            assert log_in(client, "OAUTHBEARER", USER).error_code == 0
            now_ms = round((time.monotonic() - started) * 1_000)
            client.send("Produce", 9, **fields)
            theirs_ms = client.receive().body.throttle_time_ms
        if not number and not theirs_ms:
            return differences, number  # the first quota takes a broker longer to hear of than those after it
        # When the broker counted it is known to within the time of its answer, now and when its counter began.
        slowest_ms = max(slowest_ms, round((time.monotonic() - started) * 1_000) - now_ms)
        c = ours.another().at(now_ms)
        c.client_sends(frame).upstream_answers(produce_reply(1))
        ours_ms = wire.decode_response("Produce", 9, c.take_client()).throttle_time_ms
        tolerance_ms = 100 + 2 * slowest_ms
        apart_ms = abs(theirs_ms - ours_ms)
        # Once a second the time that an average is taken over falls back by a sample: for one side a moment earlier.
        if apart_ms > tolerance_ms and abs(apart_ms - SAMPLE_MS) > tolerance_ms:
            differences.append((number, entity, value, theirs_ms, ours_ms))
    return differences, len(changes)
