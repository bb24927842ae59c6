"""Receive buffers of TLS, and the number of records in them. Pure.

Inside TLS 1.3 a key update looks like 27 bytes of data, and costs OpenSSL 40 microseconds that no setting limits. A
chunk of many tiny records is therefore decrypted in small pieces, so that a client that sends nothing else is
found out before it has cost others anything (hazard H23).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

_HEADER_BYTES: Final = 5

RECORD_BYTES: Final = 16_384
"""Plain bytes in the largest record."""

SLICE_BYTES: Final = 65_536
"""What is decrypted or encrypted at once. OpenSSL keeps buffers of this size for as long as a connection lasts."""

PLAIN_BYTES: Final = 2 * SLICE_BYTES
FULL_BYTES: Final = PLAIN_BYTES - RECORD_BYTES  # what may be in it when one more record is decrypted
_HELLO_BYTES: Final = 4_096
_LONGEST_HELLO_BYTES: Final = 16_384
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MESSAGE_HEADER_BYTES: Final = 4


class RecordWalk:
    """Where the records of one connection begin.

    Attributes:
        skip: bytes from the end of what has been seen to the beginning of the next record.
        first: as far into the chunk counted last its first whole header stands, or would.
    """

    __slots__ = ("_head", "first", "skip")

    def __init__(self, skip: int = 0) -> None:
        self.skip = self.first = skip
        self._head = b""

    def count(self, received: memoryview) -> int:
        """How many records begin in these bytes; one whose header is not complete is counted with the next ones."""
        size = len(received)
        at = self.skip
        records = 0
        if self._head:
            missing = _HEADER_BYTES - len(self._head)
            self._head += bytes(received[:missing])
            if len(self._head) < _HEADER_BYTES:
                return 0
            at = missing + (self._head[3] << 8 | self._head[4])
            self._head = b""
            records = 1
        self.first = at
        last = size - _HEADER_BYTES
        while at <= last:
            at += _HEADER_BYTES + (received[at + 3] << 8 | received[at + 4])
            records += 1
        if at < size:
            self._head = bytes(received[at:])
            at = size
        self.skip = at - size
        return records


class Hello(Enum):
    """What the first bytes of a client are."""

    PART = auto()
    WHOLE = auto()
    NOT_HELLO = auto()  # records of TLS, and not a ClientHello of a sensible size
    NOT_TLS = auto()


class HelloWalk:
    """Finds the end of a ClientHello, which may be in several records; no byte is looked at twice.

    Until it is whole OpenSSL sees nothing of it, and neither does it take a place in a queue (hazard K09).
    """

    __slots__ = ("_at", "_message", "_missing")

    def __init__(self) -> None:
        self._at = 0  # where the next record begins
        self._message = b""  # the header of the handshake message
        self._missing = _MESSAGE_HEADER_BYTES  # of the message, beyond the records before that

    def look(self, received: bytes) -> Hello:
        """What all that has been received is."""
        while len(received) > self._at:
            first = received[self._at : self._at + _HEADER_BYTES]
            if first[0] != _HANDSHAKE or (len(first) > 1 and first[1] != 3):
                return Hello.NOT_HELLO if 20 <= first[0] <= 24 or self._at else Hello.NOT_TLS
            if len(first) < _HEADER_BYTES:
                return Hello.PART
            size = first[3] << 8 | first[4]
            if not size or self._at + size > _LONGEST_HELLO_BYTES:
                return Hello.NOT_HELLO
            begin, end = self._at + _HEADER_BYTES, self._at + _HEADER_BYTES + size
            if not self._message and len(received) > begin and received[begin] != _CLIENT_HELLO:
                return Hello.NOT_HELLO
            if len(received) < end:
                return Hello.PART
            self._count(received[begin : min(end, begin + _MESSAGE_HEADER_BYTES)], size)
            if self._missing <= 0:
                return Hello.WHOLE
            if self._missing > _LONGEST_HELLO_BYTES:
                return Hello.NOT_HELLO
            self._at = end
        return Hello.PART

    def _count(self, first: bytes, size: int) -> None:
        had = len(self._message)
        if had < _MESSAGE_HEADER_BYTES:
            self._message += first[: _MESSAGE_HEADER_BYTES - had]
            if len(self._message) == _MESSAGE_HEADER_BYTES:
                self._missing += int.from_bytes(self._message[1:], "big")
        self._missing -= size


class ReceiveBuffer:
    """Where sockets are read into, and decrypted: one for all connections of a loop, since it is taken at once.

    Attributes:
        whole: received bytes.
        hello: the part of it that is for connections before their handshake.
        plain: decrypted bytes.
    """

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(SLICE_BYTES))
        self.hello = self.whole[:_HELLO_BYTES]
        self.plain = memoryview(bytearray(PLAIN_BYTES))
