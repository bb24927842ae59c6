"""Causes of protocol errors are a closed list; error codes are Kafka's numbers under Kafka's names."""

from __future__ import annotations

import kafka.errors
import pytest

from protocol import errors
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError

ALL = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ProtocolError)
]


def test_every_cause_is_a_word_of_the_closed_list() -> None:
    assert {error.cause for error in ALL} == {
        "protocol_error",
        "malformed_frame",
        "too_many_elements",
        "frame_too_large",
        "invalid_frame_size",
        "tls_on_plaintext",
        "not_kafka",
        "unsupported_request",
        "upstream_desync",
    }


@pytest.mark.parametrize("error", ALL)
def test_cause_is_fit_to_be_a_metric_label(error: type[ProtocolError]) -> None:
    assert error.cause.replace("_", "").isalpha()
    assert error.cause.islower()
    assert error("said more").cause == error.cause


def kafka_name(code: int) -> str:
    """UNKNOWN_TOPIC_OR_PARTITION as kafka-python's class for this number calls it."""
    return str(kafka.errors.for_code(code).message)


@pytest.mark.parametrize(
    "code", [code for code in ErrorCode if code is not ErrorCode.THROTTLING_QUOTA_EXCEEDED]
)
def test_number_and_name_belong_together(code: ErrorCode) -> None:
    name = "NO_ERROR" if code is ErrorCode.NONE else code.name
    assert kafka_name(code).removesuffix("_EXCEPTION") == name.removesuffix("_EXCEPTION")


def test_throttling_quota_exceeded_is_89() -> None:
    """kafka-python may not name it; KIP-599 does."""
    assert ErrorCode(89) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
