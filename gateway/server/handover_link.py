"""The link between a gateway and the process that is to replace it: JSON and descriptors, in order. [io]

The two may be different versions of the program. So there are no pickles, and unknown messages are ignored. The
socket has no name; only the process that was started with it has the other end.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

FORMAT: Final = 1
DESCRIPTOR: Final = "SLUICE_UPGRADE_FD"
"""The environment variable with the new process's end of the link."""

MOST_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""The most unsent bytes to a process that does not read; beyond that, rows sent with `only_now` are dropped."""

_MOST_BYTES: Final = 1 << 17
_ROWS_BYTES: Final = 1 << 15
_MOST_DESCRIPTORS: Final = 8
_PER_TURN: Final = 16


OnMessage: TypeAlias = Callable[[str, Any, Sequence[int]], None]
"""Takes a message: its kind, its body, and the descriptors that came with it, which the callee owns."""


class HandoverLink:
    """One end.

    Attributes:
        lost: the other process is gone, or this end was closed.
    """

    def __init__(self, sock: socket.socket, on_message: OnMessage, on_lost: Callable[[], None]) -> None:
        """Use this socket, from `open` on.

        Args:
            sock: of type SOCK_SEQPACKET, which keeps messages whole.
            on_message: takes messages; see `OnMessage`.
            on_lost: called once when the other process is gone.
        """
        self.lost = False
        self._sock = sock
        self._on_message = on_message
        self._on_lost = on_lost
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._unsent_bytes = 0
        self._all_sent = asyncio.Event()
        self._all_sent.set()
        self._loop = asyncio.get_running_loop()

    def open(self) -> None:
        """Take messages from now on."""
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock.fileno(), self._receive)

    def send(self, what: str, body: Any = None, descriptors: Sequence[int] = ()) -> None:
        """Send a message; does nothing if the other process is gone. Descriptors are copied at once.

        Args:
            what: the kind of message.
            body: as JSON at most 100 KB.
            descriptors: at most eight.
        """
        self._queue(json.dumps([what, body]), descriptors)

    def send_rows(self, what: str, rows: Iterable[Any], *, only_now: bool = False) -> None:
        """Send a list in as many messages as it takes.

        Args:
            what: the kind of message.
            rows: the list.
            only_now: the rows only matter at this moment: if the other process has stopped reading, drop them.
        """
        if only_now and self._unsent_bytes >= MOST_UNSENT_BYTES:
            return
        texts: list[str] = []
        size = 0
        for row in rows:
            texts.append(text := json.dumps(row))
            size += len(text) + 2
            if size >= _ROWS_BYTES:
                self._queue(f'["{what}", [{", ".join(texts)}]]', ())
                texts, size = [], 0
        if texts:
            self._queue(f'["{what}", [{", ".join(texts)}]]', ())

    def _queue(self, text: str, descriptors: Sequence[int]) -> None:
        if self.lost:
            return
        data = text.encode()
        self._unsent.append((data, [os.dup(each) for each in descriptors]))
        self._unsent_bytes += len(data)
        if len(self._unsent) == 1:
            self._all_sent.clear()
            self._send()

    async def flush(self) -> None:
        """Wait until everything is sent."""
        await self._all_sent.wait()

    def close(self) -> None:
        """Close the link from this side."""
        if not self.lost:
            self.lost = True
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            while self._unsent:
                _close_all(self._unsent.popleft()[1])
            self._unsent_bytes = 0
            self._all_sent.set()

    def _send(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                socket.send_fds(self._sock, [data], descriptors)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._sock.fileno(), self._send)
                return
            except OSError:
                self._end()
                return
            self._unsent.popleft()
            self._unsent_bytes -= len(data)
            _close_all(descriptors)
        self._all_sent.set()
        self._loop.remove_writer(self._sock.fileno())

    def _receive(self) -> None:
        for _ in range(_PER_TURN):
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._sock, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data, descriptors = b"", []
            if not data:
                self._end()
                return
            what, body = json.loads(data)
            self._on_message(what, body, descriptors)
            if self.lost:
                return

    def _end(self) -> None:
        if not self.lost:
            self.close()
            self._on_lost()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
