"""The two ends: clients that send in pieces and read irregularly, and a broker that answers in random chunks.

Both run on one loop and share only the counts of this module. Each end knows which frame must come next and reports
any other frame.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter, deque
from dataclasses import dataclass, field
from struct import Struct, unpack_from
from typing import Final, cast

from campaigns.order.frames import Kind, correlation_id, kinds
from testkit.broker import Request, ScriptedBroker

_SIZE: Final = Struct(">i")
_REQUEST_HEAD: Final = Struct(">ihhi")
_REPLY_HEAD: Final = Struct(">ii")
_MOST_IN_FLIGHT: Final = 300
_MOST_AT_ONCE: Final = 120
_CONNECTION_SHIFT: Final = 40


@dataclass
class Counts:
    """Counts and faults of both ends.

    Attributes:
        left: requests still to be sent.
        sent, answered, at_broker: numbers of frames.
        chunks: number of pieces that either end wrote.
        wrong: the first few frames that were out of order, lost or changed, in words.
        of_kind: number of requests by name of their kind.
    """

    left: int
    sent: int = 0
    answered: int = 0
    at_broker: int = 0
    chunks: int = 0
    wrong: list[str] = field(default_factory=list)
    of_kind: Counter[str] = field(default_factory=Counter)

    def fault(self, text: str) -> None:
        """Note a fault."""
        if len(self.wrong) < 20:
            self.wrong.append(text)


class Pieces:
    """Writes a stream in pieces of random sizes, some at once and some later, in its order."""

    def __init__(self, transport: asyncio.Transport, dice: random.Random, counts: Counts) -> None:
        self._transport = transport
        self._dice = dice
        self._counts = counts
        self._waiting = bytearray()
        self._timer: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Append the data to the waiting bytes."""
        self._waiting += data
        if self._timer is None:
            self._go_on()

    def _go_on(self) -> None:
        self._timer = None
        dice = self._dice
        while self._waiting:
            if self._transport.is_closing():
                return
            chance = dice.random()
            if chance < 0.6:
                size = len(self._waiting)
            elif chance < 0.9:
                size = dice.randrange(1, len(self._waiting) + 1)
            else:
                size = min(dice.randrange(1, 16), len(self._waiting))
            self._transport.write(bytes(self._waiting[:size]))
            self._counts.chunks += 1
            del self._waiting[:size]
            if self._waiting:
                delay_s = dice.choice((0.0, 0.0, 0.0005, 0.002, 0.005, 0.02))
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)
                return


class Broker(asyncio.Protocol):
    """One connection of the broker: every request is checked and answered."""

    known: Final = {(kind.request[5], kind.request[7], len(kind.request)): kind for kind in kinds()}

    def __init__(self, counts: Counts, dice: random.Random, cluster: ScriptedBroker) -> None:
        self._counts = counts
        self._dice = dice
        self._cluster = cluster
        self._partial = b""
        self._next = -1
        self._transport: asyncio.Transport
        self._out: Pieces

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._out = Pieces(self._transport, self._dice, self._counts)

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        at, end, replies = 0, len(data), []
        while end - at >= 4:
            size = 4 + _SIZE.unpack_from(data, at)[0]
            if end - at < size:
                break
            reply = self._answer(data[at : at + size])
            if reply:
                replies.append(reply)
            at += size
        self._partial = data[at:]
        if replies:
            self._out.write(b"".join(replies))
        if self._dice.random() < 0.01:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._dice.random() * 0.01, self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _answer(self, frame: bytes) -> bytes:
        _, api_key, version, correlation = _REQUEST_HEAD.unpack_from(frame)
        kind = self.known.get((api_key, version, len(frame)))
        if kind is None:
            # The gateway's own requests, on separate connections.
            return self._cluster.reply_to(_parsed(frame))
        number = kind.number_of_request(frame)
        if self._next < 0:
            self._next = number >> _CONNECTION_SHIFT << _CONNECTION_SHIFT
        if number != self._next or correlation != correlation_id(number):
            self._counts.fault(f"broker: {kind.name} {number:#x} where {self._next:#x} was to come")
        self._next = number + 1
        self._counts.at_broker += 1
        return kind.reply_frame(correlation, number) if kind.reply else b""


class Client(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, connection: int, client_id: bytes, counts: Counts, dice: random.Random) -> None:
        self.done = asyncio.Event()
        self._connection = connection
        self._client_id = client_id
        self._counts = counts
        self._dice = dice
        self._kinds = kinds()
        self._shares = [kind.share for kind in self._kinds]
        self._next = connection << _CONNECTION_SHIFT
        self._local = 0
        self._owed: deque[tuple[Kind, int, int]] = deque()
        self._partial = b""
        self._ended = False
        self._transport: asyncio.Transport
        self._out: Pieces

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._out = Pieces(self._transport, self._dice, self._counts)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ended:
            self._counts.fault(f"client {self._connection}: closed with {len(self._owed)} replies due")
            self.done.set()

    def _send(self) -> None:
        room = min(_MOST_IN_FLIGHT - len(self._owed), self._counts.left)
        if room <= 0:
            return
        count = self._dice.randrange(1, min(_MOST_AT_ONCE, room) + 1)
        self._counts.left -= count
        frames = []
        for kind in self._dice.choices(self._kinds, self._shares, k=count):
            if kind.forwarded:
                number, self._next = self._next, self._next + 1
            else:
                self._local += 1
                number = -self._local
            frames.append(kind.request_frame(self._client_id, number))
            if kind.reply or not kind.forwarded:
                self._owed.append((kind, correlation_id(number), number))
            self._counts.of_kind[kind.name] += 1
        self._counts.sent += count
        self._out.write(b"".join(frames))
        if not self._owed:
            # If all requests are without acks, no reply triggers the next ones.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._send()
        if not self._owed and not self._counts.left:
            self._ended = True
            self.done.set()

    def data_received(self, data: bytes) -> None:
        data = self._partial + data
        at, end, owed = 0, len(data), self._owed
        while end - at >= 8:
            size, correlation = _REPLY_HEAD.unpack_from(data, at)
            if end - at < 4 + size:
                break
            if not owed:
                self._counts.fault(f"client {self._connection}: a reply that is not due")
                self._transport.abort()
                return
            kind, expected, number = owed.popleft()
            if correlation != expected:
                self._counts.fault(f"client {self._connection}: reply to another request than {kind.name}")
            elif kind.forwarded and kind.number_of_reply(data[at : at + 4 + size]) != number:
                self._counts.fault(f"client {self._connection}: {kind.name} without its number {number}")
            self._counts.answered += 1
            at += 4 + size
        self._partial = data[at:]
        if self._dice.random() < 0.01:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(self._dice.random() * 0.01, self._read_on)
        if len(owed) < _MOST_IN_FLIGHT // 2 or self._dice.random() < 0.3:
            self._go_on()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection; all requests were answered."""
        self._transport.close()


def _parsed(frame: bytes) -> Request:
    api_key, api_version, correlation, length = unpack_from(">hhih", frame, 4)
    return Request(api_key, api_version, correlation, frame[14 : 14 + length].decode(), frame)


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Set TCP_NODELAY, so that pieces are sent separately."""
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
