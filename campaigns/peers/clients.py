"""Hostile clients for any proxy, based on plain sockets.

They count and measure times. They do not know the proxy or how it should behave.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import pack
from typing import Final

from testkit import wire
from testkit.frames import fetch
from testkit.raw_client import HOST

_PATIENCE_S: Final = 10.0


def _frame(body: bytes) -> bytes:
    return pack(">i", len(body)) + body


HOSTILE: Final[Mapping[str, bytes]] = {
    "length -1": pack(">i", -1) + bytes(16),
    "length -2^31": pack(">i", -(2**31)) + bytes(16),
    "length 0": pack(">i", 0) * 5,
    "length 2^31 - 1": pack(">i", 2**31 - 1) + bytes(16),
    "length 1": _frame(b"\0") + bytes(16),
    "HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "API key 32767": _frame(pack(">hhih", 32_767, 0, 1, -1) + bytes(8)),
    "API key -1": _frame(pack(">hhih", -1, 0, 1, -1) + bytes(8)),
    "version 32767 of Fetch": _frame(pack(">hhih", 1, 32_767, 1, -1) + bytes(8)),
    "client id longer than the frame": _frame(pack(">hhih", 3, 4, 1, 32_767) + b"x"),
    "client id of length -2": _frame(pack(">hhih", 3, 4, 1, -2) + bytes(8)),
    "2^31 - 1 topics in Metadata": _frame(pack(">hhihi", 3, 4, 1, -1, 2**31 - 1)),
    "2^31 - 1 topics in Produce": _frame(pack(">hhihhhii", 0, 3, 1, -1, -1, 1, 1_000, 2**31 - 1)),
    "Metadata cut short": _frame(pack(">hhihi", 3, 4, 1, -1, 1) + b"\0\x09abc"),
}
"""Frames that no client library sends, by name."""


def connect(port: int, *, receive_buffer_bytes: int | None = None, source: str = HOST) -> socket.socket:
    """Open a connection. With a small receive buffer the kernel stores few bytes."""
    client = socket.socket()
    if receive_buffer_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    client.settimeout(_PATIENCE_S)
    client.bind((source, 0))
    client.connect((HOST, port))
    return client


def greeted(port: int, *, receive_buffer_bytes: int | None = None, source: str = HOST) -> socket.socket:
    """Open a connection and send ApiVersions first, as each client library does.

    Raises:
        ConnectionError: there was no answer.
    """
    client = connect(port, receive_buffer_bytes=receive_buffer_bytes, source=source)
    if not asked(client, wire.request("ApiVersions", 0, correlation_id=1)):
        client.close()
        raise ConnectionError("no answer to ApiVersions")
    return client


def asked(client: socket.socket, request: bytes = fetch()) -> bytes:
    """The whole answer to a request; empty when the connection ended or no answer came in 10 s."""
    try:
        client.sendall(request)
        return answered(client)
    except OSError:
        return b""


def answered(client: socket.socket) -> bytes:
    """The next whole answer; empty when the connection ended or none came in 10 s."""
    try:
        head = client.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        size = int.from_bytes(head, "big")
        body = client.recv(size, socket.MSG_WAITALL)
    except OSError:
        return b""
    return head + body if len(body) == size else b""


def reaction_s(port: int, sent: bytes, patience_s: float) -> float | None:
    """Seconds until an answer or the end of the connection; None if neither came in time."""
    with connect(port) as client:
        client.sendall(sent)
        begun_s = time.monotonic()
        client.settimeout(patience_s)
        try:
            client.recv(65_536)
        except TimeoutError:
            return None
        except ConnectionError:
            pass
        return time.monotonic() - begun_s


def ended(clients: list[socket.socket]) -> int:
    """How many of these connections the other side has closed; none of them expects an answer."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN | select.POLLRDHUP)
    return len(poll.poll(0))


def leaks_port(port: int, broker_port: int) -> bool:
    """Whether Metadata names the broker's own port.

    Raises:
        ValueError: no answer came.
    """
    with greeted(port) as client:
        frame = asked(client, wire.request("Metadata", 4, topics=[]))
    if not frame:
        raise ValueError("no answer to Metadata")
    body = wire.decode_response("Metadata", 4, frame)
    return any(broker.port == broker_port for broker in body.brokers)


def accepted(port: int, offered_per_s: int, seconds: float, source: str) -> int:
    """The number of answered connections. One address opens `offered_per_s` connections in each second."""
    counts = []
    lock = threading.Lock()

    def one() -> None:
        with contextlib.suppress(OSError), greeted(port, source=source) as client:
            client.settimeout(seconds)
            if asked(client):
                with lock:
                    counts.append(time.monotonic() - begun_s <= seconds)

    threads = []
    begun_s = time.monotonic()
    for number in range(int(offered_per_s * seconds)):
        time.sleep(max(0.0, begun_s + number / offered_per_s - time.monotonic()))
        threads.append(threading.Thread(target=one))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return sum(counts)


@contextmanager
def good_client(port: int) -> Iterator[dict[str, int]]:
    """Send one request after the other during the block; counts of answered and lost requests."""
    done = threading.Event()
    counts = {"answered": 0, "lost": 0}

    def ask() -> None:
        client = greeted(port)
        while not done.wait(0.005):
            if asked(client):
                counts["answered"] += 1
            else:
                counts["lost"] += 1
                client.close()
                with contextlib.suppress(OSError):
                    client = greeted(port)
        client.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield counts
    finally:
        done.set()
        thread.join()
