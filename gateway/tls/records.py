"""What TLS is received into, and how many records it is, counted without looking into them. Pure.

Inside TLS 1.3 a key update looks like 27 bytes of data, and costs OpenSSL 40 microseconds that no setting limits. A
chunk of many tiny records is therefore decrypted in small pieces, so that a client that sends nothing else is
found out before it has cost others anything (hazard H23).
"""

from __future__ import annotations

from typing import Final

_HEADER_BYTES: Final = 5

RECORD_BYTES: Final = 16_384
"""Plain bytes in the largest record."""

SLICE_BYTES: Final = 65_536
"""What is decrypted or encrypted at once. OpenSSL keeps buffers of this size for as long as a connection lasts."""

PLAIN_BYTES: Final = 2 * SLICE_BYTES
FULL_BYTES: Final = PLAIN_BYTES - RECORD_BYTES  # what may be in it when one more record is decrypted
_HELLO_BYTES: Final = 4_096


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
