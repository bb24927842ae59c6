"""Deadlines of the gateways of a chaos campaign."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from campaigns.chaos import gateways
from campaigns.chaos.gateways import Patience


@dataclass
class Starved:
    """A gateway whose process is ready to run and gets no CPU."""

    pid: int = 1
    waited_s: float = 7.0

    def starved_s(self) -> float:
        return self.waited_s


def test_a_deadline_leaves_out_what_a_gateway_waits_for_a_cpu_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(gateways, "time", SimpleNamespace(monotonic=lambda: now_s))
    gateway = Starved()
    patience = Patience(gateway, 10.0)  # type: ignore[arg-type]
    now_s, gateway.waited_s = 112.0, 12.0
    assert not patience.over
    assert str(patience) == "12.0 s, of which it waited 5.0 s for a CPU"
    now_s = 115.0
    assert patience.over
    gateway.pid, gateway.waited_s = 2, 6.0  # started again: what the one before waited is forgotten
    assert not patience.over
    now_s, gateway.waited_s = 130.0, 30.0
    assert patience.over
