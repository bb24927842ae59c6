"""The closed lists are plain labels of metrics, and every error of a peer has a close cause."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

import protocol.errors
from gateway.observability.events import (
    AdminApi,
    AdminOutcome,
    AuthenticationResult,
    CloseCause,
    ReloadResult,
    Side,
    TlsFailure,
)


@pytest.mark.parametrize(
    "labels", [AdminApi, AdminOutcome, AuthenticationResult, CloseCause, ReloadResult, Side, TlsFailure]
)
def test_labels_are_plain(labels: type[StrEnum]) -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", label.value) for label in labels)


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
