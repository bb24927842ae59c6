"""The new process of an upgrade, when the old one is killed."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.server.predecessor import Predecessor
from gateway.server.upgrade import Upgrade
from quotas.connections import ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateSettings
from quotas.user_connections import UserConnections

LIMITS = ConnectionLimits({"a": ListenerLimits()})

# Closes its link, as the kernel does first for a process that is killed, and ends when it is asked to.
_OLD = """
import socket, sys
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(sys.argv[1])
listening.listen()
print("listens", flush=True)
listening.accept()[0].close()
sys.stdin.read()
"""


async def test_the_store_is_opened_after_the_end_of_a_process_that_was_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "link")
    old = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OLD, path, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert old.stdin is not None
    assert old.stdout is not None
    try:
        assert await asyncio.wait_for(old.stdout.readline(), 60) == b"listens\n"
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.connect(path)
        predecessor = Predecessor(link)
        await asyncio.wait_for(predecessor.begin(), 60)
        borrowing = asyncio.create_task(predecessor.borrow_store())
        await asyncio.wait([borrowing], timeout=0.2)
        assert not borrowing.done()
        old.stdin.close()
        await asyncio.wait_for(borrowing, 60)
        assert await asyncio.wait_for(old.wait(), 60) == 0
    finally:
        if old.returncode is None:
            old.kill()
            await old.wait()


def gateway_of(limits: Limits) -> Any:
    """A gateway as far as its connections go."""
    return SimpleNamespace(
        users=UserConnections(limits, RateSettings(), lambda: 10),
        connections=ConnectionQuotas(limits, LIMITS, now_ms=0),
        listeners={},
        carrier=SimpleNamespace(stop=lambda: None),
        changes=SimpleNamespace(stop=lambda: None),
    )


async def test_connections_of_users_count_in_the_new_process_until_they_end_in_the_old_one() -> None:
    limits = Limits()
    limits.set(QuotaEntity("alice"), QuotaKey.CONNECTION_COUNT, 3)
    old, new = gateway_of(limits), gateway_of(limits)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    predecessor = Predecessor(ours)
    predecessor._gateway = new
    upgrade = Upgrade(old, refusal=lambda: None, on_replaced=lambda _pid: None)
    upgrade._link = SimpleNamespace(send_rows=lambda what, rows, only_now: predecessor._received(what, rows, ()))  # type: ignore[assignment]
    try:
        for name in "ab":
            old.connections.admit("a", "10.0.0.1", now_ms=0)
            old.users.enter("alice", name, now_ms=0)
        upgrade._tell_counts()
        assert new.users.by_user == {"alice": 2}
        assert new.connections.connections_of("10.0.0.1") == 2
        assert [new.users.enter("alice", name, now_ms=0).decision for name in "cd"] == ["admit", "refuse"]
        old.users.leave("a")
        upgrade._tell_counts()
        assert new.users.enter("alice", "e", now_ms=0).decision == "admit"
        # The old process is gone, with what it had.
        predecessor._lost()
        assert new.users.by_user == {"alice": 2}
    finally:
        ours.close()
        theirs.close()
