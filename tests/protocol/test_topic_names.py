"""Topic names: what Kafka takes and what it answers INVALID_TOPIC_EXCEPTION to."""

from __future__ import annotations

import pytest

from protocol.topic_names import is_valid_topic_name


@pytest.mark.parametrize("name", [b"a", b"A-Z_0.9", b"...", b"-", b"_", b"x" * 249, b"__consumer_offsets"])
def test_legal_names_are_taken(name: bytes) -> None:
    assert is_valid_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b".",
        b"..",
        b"x" * 250,
        b"a b",
        b"a/b",
        b"a\n",
        b"\n",
        b"a\0",
        "gr\u00fc\u00df".encode(),
        b"a,b",
        b"\xff",
    ],
)
def test_everything_else_is_not(name: bytes) -> None:
    assert not is_valid_topic_name(name)
