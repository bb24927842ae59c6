"""Close causes are a closed list of metric labels, and every error of a peer has one."""

from __future__ import annotations

import re

import protocol.errors
from gateway.observability.events import CloseCause


def test_causes_are_plain_labels_and_differ() -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", cause.value) for cause in CloseCause)
    assert len({cause.value for cause in CloseCause}) == len(CloseCause)


def test_every_error_that_a_peer_can_cause_has_its_label() -> None:
    errors = [
        error
        for error in vars(protocol.errors).values()
        if isinstance(error, type)
        and issubclass(error, protocol.errors.ProtocolError)
        and error is not protocol.errors.ProtocolError
    ]
    assert len(errors) >= 9
    for error in errors:
        assert CloseCause(error.cause).value == error.cause
