"""The new process of an upgrade, when the old one is killed."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from gateway.server.predecessor import Predecessor

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
