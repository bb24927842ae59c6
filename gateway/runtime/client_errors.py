"""Says in words why one of the gateway's own Kafka clients failed."""

from __future__ import annotations

from confluent_kafka import KafkaException


def reason_of(exc: Exception) -> str:
    """The reason, for people; never empty."""
    if isinstance(exc, KafkaException):
        return str(exc.args[0].str())
    if isinstance(exc, TimeoutError):  # of a future, without a text
        return "the brokers did not answer in time"
    return f"{type(exc).__name__}: {exc}"


def bug_in(exc: Exception) -> Exception | None:
    """The exception, for a traceback; None: the cluster is the reason, and a traceback says nothing more."""
    return None if isinstance(exc, KafkaException | TimeoutError) else exc
