"""What an operator reads when librdkafka reaches no broker."""

from __future__ import annotations

from confluent_kafka import KafkaError

from gateway.runtime.client_errors import why_not_reached

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down")


def test_the_first_cause_is_named_without_what_differs_at_each_try() -> None:
    cause = "sasl_ssl://kafka-1:9093/bootstrap: SASL authentication error"
    seen = [DOWN, KafkaError(KafkaError._AUTHENTICATION, f"{cause} (after 327ms in state AUTH_REQ)"), DOWN]
    assert why_not_reached(seen) == f"no broker answers: {cause}"


def test_without_a_cause_no_broker_answers() -> None:
    assert why_not_reached([DOWN]) == why_not_reached([]) == "no broker answers"
