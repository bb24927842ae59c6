"""Whoever listens to the data path has every method, with the names that callers use."""

from __future__ import annotations

import inspect

import pytest

from gateway.observability.metrics import GatewayMetrics
from gateway.observability.observer import Observer, SilentObserver
from testkit.core import RecordingObserver

METHODS = [
    name for name, value in vars(Observer).items() if inspect.isfunction(value) and not name.startswith("_")
]


@pytest.mark.parametrize("listener", [SilentObserver, RecordingObserver, GatewayMetrics])
@pytest.mark.parametrize("name", METHODS)
def test_every_listener_takes_what_the_data_path_says(listener: type, name: str) -> None:
    wanted = inspect.signature(getattr(Observer, name)).parameters.values()
    taken = inspect.signature(getattr(listener, name)).parameters.values()
    assert [(p.name, p.kind) for p in taken] == [(p.name, p.kind) for p in wanted]


def test_there_is_something_to_listen_to() -> None:
    assert len(METHODS) >= 5
