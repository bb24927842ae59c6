"""Each way in which a peer can break the protocol closes its channel and has a cause from a closed list."""

from __future__ import annotations

import pytest

from protocol import errors
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
