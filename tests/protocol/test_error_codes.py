"""Error codes are Kafka's numbers under Kafka's names."""

from __future__ import annotations

import kafka.errors
import pytest

from protocol.error_codes import ErrorCode


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
