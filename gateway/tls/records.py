"""Receive buffers of TLS, and the number of records in them. Pure.

In TLS 1.3 a key update looks like 27 bytes of data, and costs OpenSSL 40 microseconds, which no setting limits. So a
chunk of many tiny records is decrypted in small pieces. A client that sends only key updates is then detected before
it delays other clients (hazard H23).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

_HEADER_BYTES: Final = 5

RECORD_BYTES: Final = 16_384
"""Plain bytes in the largest record."""

SLICE_BYTES: Final = 65_536
"""Bytes that are decrypted or encrypted at once. OpenSSL keeps buffers of this size until a connection ends."""

PLAIN_BYTES: Final = 2 * SLICE_BYTES
FULL_BYTES: Final = PLAIN_BYTES - RECORD_BYTES  # with more plain bytes, no further record fits
_HELLO_BYTES: Final = 4_096
_LONGEST_HELLO_BYTES: Final = 16_384
_HANDSHAKE: Final = 22
_CLIENT_HELLO: Final = 1
_MESSAGE_HEADER_BYTES: Final = 4


class RecordWalk:
    """Finds where the records of one connection begin.

    Attributes:
        skip: bytes from the end of the counted bytes to the beginning of the next record.
        first: offset of the first complete header in the last counted chunk, perhaps beyond its end.
    """

    __slots__ = ("_head", "first", "skip")

    def __init__(self, skip: int = 0) -> None:
        self.skip = self.first = skip
        self._head = b""

    def count(self, received: memoryview) -> int:
        """How many records begin in these bytes. A record with an incomplete header is counted in the next call."""
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
    """The kind of a client's first bytes."""

    PART = auto()
    WHOLE = auto()
    NOT_HELLO = auto()  # TLS records, but no ClientHello of a possible size
    NOT_TLS = auto()


class HelloWalk:
    """Finds the end of a ClientHello, which may have several records. No record is parsed twice.

    Until the hello is complete, OpenSSL gets none of it, and it takes no place in a queue (hazard K09).
    """

    __slots__ = ("_at", "_message", "_missing")

    def __init__(self) -> None:
        self._at = 0  # where the next record begins
        self._message = b""  # the header of the handshake message
        self._missing = _MESSAGE_HEADER_BYTES  # missing bytes of the message, beyond the complete records

    def look(self, received: bytes) -> Hello:
        """The kind of all bytes received so far."""
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
    """The buffers for received and for decrypted bytes. All connections of a loop share it, as it is used at once.

    Attributes:
        whole: received bytes.
        hello: the part of `whole` that is used before the handshake.
        plain: decrypted bytes.
    """

    def __init__(self) -> None:
        self.whole = memoryview(bytearray(SLICE_BYTES))
        self.hello = self.whole[:_HELLO_BYTES]
        self.plain = memoryview(bytearray(PLAIN_BYTES))
