"""The old process's side of an upgrade, with a next process that does what a test wants."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.server.upgrade import Upgrade
from quotas.connections import CarriedConnections, ConnectionRates

NEXT = """
import os, socket, sys, time
sock = socket.socket(fileno=int(os.environ["SLUICE_UPGRADE_FD"]))
for message in ('["hello", 1]', '["lend", null]', '["ready", null]'):
    sock.send(message.encode())
time.sleep(60)
"""


async def test_next_process_that_stops_when_it_is_ready_is_given_up_long_before_clients_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.server.upgrade.HANDED_S", 0.1)
    calls: list[str] = []

    async def done(call: str, result: Any) -> Any:
        calls.append(call)
        return result

    gateway: Any = SimpleNamespace(
        sockets=lambda: (),
        lend=lambda: done("lend", True),
        take_back=lambda: done("take back", None),
        suspend=lambda: calls.append("suspend") or {},
        resume=lambda waiting: calls.append("resume"),
        carrier=SimpleNamespace(states=lambda: done("states", []), stop=lambda: None),
        connections=SimpleNamespace(
            rates=lambda now_ms: ConnectionRates((), {}, {}), counts=lambda: CarriedConnections({}, {})
        ),
        users=SimpleNamespace(counts=dict),
        changes=SimpleNamespace(
            mode=["enforce", "enforce"], tell_next=lambda _tell: None, stop=lambda: calls.append("stop telling")
        ),
        now_ms=lambda: 0,
    )
    upgrade = Upgrade(
        gateway,
        refusal=lambda: None,
        on_replaced=lambda pid: calls.append("replaced"),
        command=[sys.executable, "-c", NEXT],
    )
    with capture_logs() as lines:
        report = await upgrade.run("a test")
    assert "has not served within" in str(report.error)
    assert [line["event"] for line in lines] == ["upgrade_begun", "upgrade_failed"]
    assert {line["old_pid"] for line in lines} == {os.getpid()}
    assert len(new_pids := {line["new_pid"] for line in lines}) == 1
    assert new_pids != {os.getpid()}
    assert calls == ["lend", "suspend", "states", "stop telling", "resume", "take back"]


async def test_a_next_process_that_takes_over_at_the_very_end_is_not_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.server.upgrade.UPGRADE_S", 0.0)
    gateway: Any = SimpleNamespace(changes=SimpleNamespace(tell_next=lambda _tell: None))
    upgrade = Upgrade(gateway, refusal=lambda: None, on_replaced=lambda pid: None)

    def start() -> None:
        upgrade._process = SimpleNamespace(pid=7)  # type: ignore[assignment]
        upgrade.replaced = True  # and the task has not run since

    monkeypatch.setattr(upgrade, "_start", start)
    report = await upgrade.run("a test")
    assert (report.pid, report.error) == (7, None)
