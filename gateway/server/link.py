"""The link between supervisor and worker: messages and questions, in order. [io]

A frame is its length in four bytes and a pickle. Both ends are the same program and the socket has no name, so no
other process can write to it. `Link` lives on the loop. `BlockingLink` sends a question to the loop at the other end
and blocks until the answer: for the few questions whose answer decides the next step of a handler.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, cast

import structlog

from gateway.quota_admin.store.interface import StoreError

BLOCKED_S: Final = 0.25
"""The longest that a blocking question may block its worker's loop, with all its clients.

An answer takes a turn of the supervisor's loop, whose steps are bounded to some milliseconds. This bound allows for
many steps, and is less than a broker sometimes takes. A handler charges in the middle of a step, so that nothing
happens between its check and its charge. If a question let other clients continue meanwhile, that would not hold.
"""

MOST_UNSENT_BYTES: Final = 8 * 1024 * 1024
"""The most unsent bytes to a process that does not read; beyond that, `tell_now` drops messages."""

_LENGTH: Final = struct.Struct("!I")
_READ_BYTES: Final = 1 << 16

Handlers: TypeAlias = Mapping[str, Callable[..., Any]]
"""Functions for messages and questions, called in the order of the frames. A coroutine's result is the answer."""

_log = structlog.get_logger("gateway.link")


class LinkLost(ConnectionError):
    """The other process is gone, or does not answer."""


def _frame(*values: Any) -> bytes:
    data = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Link(asyncio.Protocol):
    """One end, on the loop.

    Attributes:
        lost: the other process is gone, or this end was closed.
        closed: set then.
    """

    def __init__(self, handlers: Handlers, on_lost: Callable[[], None]) -> None:
        """Not open yet.

        Args:
            handlers: for messages and questions of the other end.
            on_lost: called once when the other process is gone.
        """
        self.lost = False
        self.closed = asyncio.Event()
        self._handlers = handlers
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._last_id = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, sock: socket.socket) -> None:
        """Use this socket from now on."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=sock)

    def tell_now(self, what: str, *values: Any) -> None:
        """Send a message that only matters at this moment; drop it if the other process has stopped reading."""
        if self._transport is not None and self._transport.get_write_buffer_size() < MOST_UNSENT_BYTES:
            self.tell(what, *values)

    def tell(self, what: str, *values: Any) -> None:
        """Send a message without an answer; does nothing if the other process is gone."""
        if self._transport is not None and not self.lost:
            self._transport.write(_frame(0, what, values))

    async def ask(self, what: str, *values: Any) -> Any:
        """Ask, and wait for the answer.

        Raises:
            LinkLost: the other process is gone.
            StoreError: the other end raised it.
        """
        if self._transport is None or self.lost:
            raise LinkLost("the other process is gone")
        self._last_id += 1
        asked = self._last_id
        answer = self._answers[asked] = asyncio.get_running_loop().create_future()
        self._transport.write(_frame(asked, what, values))
        try:
            return await answer
        finally:
            self._answers.pop(asked, None)

    def close(self) -> None:
        """Close the link from this side, once all messages are sent."""
        if self._transport is not None:
            self._transport.close()

    # -- asyncio.Protocol ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # uvloop's transports are no subclass of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._received += data
        at = 0
        try:
            while len(self._received) - at >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(self._received, at)
                end = at + _LENGTH.size + size
                if len(self._received) < end:
                    break
                frame = pickle.loads(memoryview(self._received)[at + _LENGTH.size : end])
                at = end
                self._take(*frame)
        finally:  # a frame is not taken twice, even if its handler raises
            del self._received[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost = True
        self.closed.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(LinkLost("the other process is gone"))
        self._on_lost()

    def _take(self, asked: int, what: str | None, values: Any) -> None:
        if what is None:
            answer = self._answers.get(asked)
            if answer is not None and not answer.done():
                done, value = values
                answer.set_result(value) if done else answer.set_exception(value)
            return
        try:
            value = self._handlers[what](*values)
        except StoreError as exc:
            self._answer(asked, done=False, value=exc)
            return
        if inspect.iscoroutine(value):
            task = asyncio.get_running_loop().create_task(self._answer_later(asked, value))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(asked, done=True, value=value)

    async def _answer_later(self, asked: int, coroutine: Any) -> None:
        try:
            value = await coroutine
        except (StoreError, LinkLost) as exc:
            self._answer(asked, done=False, value=exc)
        except Exception as exc:  # noqa: BLE001  (a bug of ours; the asking process must get an answer)
            _log.error("link_failed", exc_info=exc)
            self._answer(asked, done=False, value=LinkLost("the other process failed"))
        else:
            self._answer(asked, done=True, value=value)

    def _answer(self, asked: int, *, done: bool, value: Any) -> None:
        if asked and self._transport is not None and not self.lost:
            self._transport.write(_frame(asked, None, (done, value)))


class BlockingLink:
    """Asks a `Link` at the other end, and blocks the loop until the answer arrives.

    After a timeout nothing is asked until the late answer has arrived, so that a process that hangs blocks this one
    once and not at each question. The same applies to a full socket. A partly sent frame is completed first.
    """

    def __init__(self, sock: socket.socket, *, within_s: float = BLOCKED_S) -> None:
        """Use this socket.

        Args:
            sock: used by this process only.
            within_s: the longest wait for an answer.
        """
        self._sock = sock
        self._within_s = within_s
        self._received = bytearray()
        self._last_id = 0
        self._answered_id = 0
        self._broken = False
        self._full = False
        self._unsent = b""  # the rest of a frame
        self._value: tuple[bool, Any] = (True, None)
        self._if_late: Callable[[Any], None] | None = None

    def tell(self, what: str, *values: Any) -> None:
        """Send a message without an answer.

        Raises:
            LinkLost: the other process is gone, or does not read.
        """
        self._catch_up()
        self._send(_frame(0, what, values))

    def ask(self, what: str, *values: Any, if_late: Callable[[Any], None] | None = None) -> Any:
        """Ask, and wait for the answer.

        Args:
            what, values: the question.
            if_late: called with an answer that came too late, before the next message is sent.

        Raises:
            LinkLost: no answer came in time.
        """
        self._catch_up()
        self._send(_frame(self._last_id + 1, what, values))
        self._last_id += 1
        self._sock.settimeout(self._within_s)
        try:
            while self._answered_id < self._last_id:
                self._receive()
        except OSError as exc:
            self._if_late = if_late
            raise LinkLost(str(exc) or type(exc).__name__) from exc
        done, value = self._value
        if not done:
            raise value
        return value

    def _catch_up(self) -> None:
        if self._broken:
            raise LinkLost("the other process is gone")
        if self._unsent:
            self._send(self._unsent)
            if self._unsent:
                raise LinkLost("the other process stands still")
        if self._answered_id == self._last_id:
            return
        self._sock.settimeout(0)
        try:
            while self._answered_id < self._last_id:
                self._receive()
        except OSError as exc:
            raise LinkLost("the other process stands still") from exc
        if_late, self._if_late = self._if_late, None
        done, value = self._value
        if if_late is not None and done:
            if_late(value)

    def _send(self, data: bytes) -> None:
        """Send data, or at least a part; the rest is sent before the next message."""
        end_s = time.monotonic() + (0 if self._full else self._within_s)
        sent = 0
        try:
            while sent < len(data):
                self._sock.settimeout(max(0.0, end_s - time.monotonic()))
                sent += self._sock.send(data[sent:])
        except (BlockingIOError, TimeoutError) as exc:
            self._full = True
            if not sent:
                raise LinkLost("the other process stands still") from exc
        except OSError as exc:
            self._broken = True
            raise LinkLost(str(exc) or type(exc).__name__) from exc
        else:
            self._full = False
        self._unsent = data[sent:]

    def _receive(self) -> None:
        """Read from the socket, and take the answers."""
        received = self._received
        data = self._sock.recv(_READ_BYTES)
        if not data:
            self._broken = True
            raise LinkLost("the other process is gone")
        received += data
        while len(received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(received)
            end = _LENGTH.size + size
            if len(received) < end:
                break
            self._answered_id, _, self._value = pickle.loads(bytes(received[_LENGTH.size : end]))
            del received[:end]
