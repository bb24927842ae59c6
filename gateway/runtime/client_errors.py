"""Explains in words why one of the gateway's own Kafka clients failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from gateway.runtime.topic_access import FORBIDDEN

RIGHTS: Final = "the gateway's user needs the rights DESCRIBE, READ and WRITE on it"
_AFTER: Final = re.compile(r" \(after \d+ms in state \w+.*\)$")


def reason_of(exc: Exception) -> str:
    """The reason, for people; never empty."""
    if isinstance(exc, KafkaException):
        return str(exc.args[0].str())
    if isinstance(exc, TimeoutError):  # a future's timeout has no text
        return "the brokers did not answer in time"
    return f"{type(exc).__name__}: {exc}"


def bug_in(exc: Exception) -> Exception | None:
    """The exception if it needs a traceback; None if the cluster is the cause, so that a traceback is of no use."""
    return None if isinstance(exc, KafkaException | TimeoutError) else exc


def reason_of_topic(exc: Exception) -> str:
    """As `reason_of`, for one of the gateway's own topics. If permissions are missing, it names the needed ones."""
    forbidden = isinstance(exc, KafkaException) and exc.args[0].code() in FORBIDDEN
    return f"{reason_of(exc)}; {RIGHTS}" if forbidden else reason_of(exc)


def why_not_reached(seen: Sequence[KafkaError]) -> str:
    """Why no broker has answered a client, as far as the client noticed. The text is the same for each try.

    Args:
        seen: the errors that librdkafka passed to its `error_cb`.
    """
    causes = [_AFTER.sub("", each.str()) for each in seen if each.code() != KafkaError._ALL_BROKERS_DOWN]
    return f"no broker answers: {causes[0]}" if causes else "no broker answers"
