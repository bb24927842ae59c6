"""A client that only makes TLS handshakes: `python -m benchmarks.tls.handshakes`, or called by the benchmarks.

Every handshake is a full one. With requests, each connection also sends ApiVersions and waits for the answer.
Without, it ends as soon as the server has completed the handshake.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress
from typing import Any, Final

ASK_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
PATIENCE_S: Final = 15.0


def context() -> ssl.SSLContext:
    """A client's context that accepts any certificate; this does not change the server's cost."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def shake_hands(port: int, count: int, *, ask: bool) -> dict[str, Any]:
    """Make `count` handshakes one after the other.

    Args:
        port: port of the server.
        count: number of handshakes.
        ask: whether each connection sends a request.

    Returns:
        The negotiated TLS version and cipher.
    """
    client, agreed = context(), {}
    for _ in range(count):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
            client.wrap_socket(plain, suppress_ragged_eofs=True) as connection,
        ):
            if ask:
                connection.sendall(ASK_VERSIONS)
                connection.recv(8)
            agreed = {"version": connection.version(), "cipher": connection.cipher()}
    return agreed


def hold(port: int, count: int) -> None:
    """Open `count` connections with TLS and one answered request each; keep them idle until stdin ends."""
    client, held = context(), []
    for _ in range(count):
        plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        held.append(connection := client.wrap_socket(plain))
        connection.sendall(ASK_VERSIONS)
        if not connection.recv(4096):
            raise ConnectionError("no answer")
    print(json.dumps({"held": len(held)}), flush=True)
    sys.stdin.read()


async def storm(port: int, per_second: int, seconds: float) -> dict[str, Any]:
    """Begin `per_second` handshakes per second, even if earlier ones are not complete.

    Returns:
        How many handshakes were begun, completed and refused, and the longest wait.
    """
    client = context()
    loop = asyncio.get_running_loop()
    done = refused = 0
    longest_s = 0.0

    async def one() -> None:
        nonlocal done, refused, longest_s
        began = loop.time()
        try:
            async with asyncio.timeout(PATIENCE_S):
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
        except (OSError, TimeoutError):
            refused += 1
            return
        done += 1
        longest_s = max(longest_s, loop.time() - began)
        writer.transport.abort()

    tasks: set[asyncio.Task[None]] = set()
    began = loop.time()
    count = int(per_second * seconds)
    for number in range(count):
        wait_s = began + number / per_second - loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.add(task := asyncio.create_task(one()))
        task.add_done_callback(tasks.discard)
    under_way_s = loop.time() - began
    at_the_end = done
    for task in list(tasks):
        with suppress(asyncio.CancelledError):
            await task
    return {
        "begun": count,
        "begun_per_s": count / under_way_s,
        "done_per_s": at_the_end / under_way_s,
        "done": done,
        "refused": refused,
        "longest_s": longest_s,
    }


def silent(port: int, count: int) -> dict[str, Any]:
    """Open connections that send nothing, until the server closes them.

    Returns:
        Seconds from accept to close: of the first, the median and the last connection.
    """
    began, ended = {}, []
    for _ in range(count):
        each = socket.create_connection(("127.0.0.1", port), timeout=60)
        began[each] = time.monotonic()
    for each, since in began.items():
        with suppress(OSError):
            each.recv(1)
        ended.append(time.monotonic() - since)
        each.close()
    ended.sort()
    return {"count": count, "first_s": ended[0], "median_s": ended[count // 2], "last_s": ended[-1]}


if __name__ == "__main__":
    verb, port, *numbers = sys.argv[1:]
    if verb == "storm":
        print(json.dumps(asyncio.run(storm(int(port), int(numbers[0]), float(numbers[1])))), flush=True)
    elif verb == "hold":
        hold(int(port), int(numbers[0]))
    elif verb == "silent":
        print(json.dumps(silent(int(port), int(numbers[0]))), flush=True)
    else:
        print(json.dumps(shake_hands(int(port), int(numbers[0]), ask=verb == "ask")), flush=True)
