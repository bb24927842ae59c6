"""The link between two processes of an upgrade, of which one stands still."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from gateway.server.handover_link import MOST_UNSENT_BYTES, HandoverLink


async def test_what_is_only_of_this_moment_is_not_kept_for_a_process_that_stands_still() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = HandoverLink(ours, lambda *_: None, lambda: None)
    link.open()
    row = ["producer_byte_rate", None, "alice", "c" * 1_000, 1.0, 0]
    for _ in range(2 * MOST_UNSENT_BYTES // 100_000):
        link.send_rows("use", [row] * 100, only_now=True)
    kept = sum(len(data) for data, _ in link._unsent)
    assert MOST_UNSENT_BYTES <= kept < MOST_UNSENT_BYTES + 200_000
    link.send("main")  # other messages are never left out
    came: list[tuple[str, Any]] = []
    done = asyncio.Event()

    def receive(what: str, body: Any, _descriptors: Any) -> None:
        came.append((what, body))
        if what == "last":
            done.set()

    other = HandoverLink(theirs, receive, lambda: None)
    other.open()
    await asyncio.wait_for(link.flush(), 30)
    link.send_rows("use", [row], only_now=True)
    link.send("last")
    await asyncio.wait_for(done.wait(), 30)
    assert [what for what, _ in came if what != "use"] == ["main", "last"]
    assert came[-2] == ("use", [row])
    link.close()
    other.close()
