"""Kafka's primitive types, read at an offset and written into a bytearray.

Readers take `(buffer, at)` and return `(value, next)`. They raise `Truncated` when a field reaches past the
end and `TooManyElements` when an array is above its bound. No memory is allocated from an announced length.
Source: the protocol guide's primitive types; varints as `ByteUtils.readUnsignedVarint` (at most five bytes).
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

from protocol.errors import MalformedBody, TooManyElements, Truncated

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_ELEMENTS: Final = 10_000
"""The longest array that is parsed; Kafka itself refuses more than 10,000 partitions in one request."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


def read_int8(buffer: Buffer, at: int) -> tuple[int, int]:
    """Signed 8-bit integer."""
    if at >= len(buffer):
        raise Truncated
    value = buffer[at]
    return (value - 256 if value > 127 else value), at + 1


def read_int16(buffer: Buffer, at: int) -> tuple[int, int]:
    """Signed 16-bit integer."""
    if at + 2 > len(buffer):
        raise Truncated
    return _INT16.unpack_from(buffer, at)[0], at + 2


def read_int32(buffer: Buffer, at: int) -> tuple[int, int]:
    """Signed 32-bit integer."""
    if at + 4 > len(buffer):
        raise Truncated
    return _INT32.unpack_from(buffer, at)[0], at + 4


def skip(buffer: Buffer, at: int, length: int) -> int:
    """Offset after `length` bytes."""
    if length < 0 or at + length > len(buffer):
        raise Truncated
    return at + length


def read_uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """Unsigned varint, cut to 32 bits; a sixth byte is an error (hazard A25)."""
    value = 0
    shift = 0
    end = len(buffer)
    while True:
        if at >= end:
            raise Truncated
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFF, at
        shift += 7
        if shift > 28:
            raise MalformedBody("varint longer than five bytes")


def read_bytes_at(buffer: Buffer, at: int, length: int) -> tuple[bytes, int]:
    """`length` raw bytes."""
    end = skip(buffer, at, length)
    return bytes(buffer[at:end]), end


def read_nullable_string(buffer: Buffer, at: int, *, compact: bool) -> tuple[bytes | None, int]:
    """String as raw bytes, None for null. Any negative legacy length is null, as Kafka reads it."""
    if compact:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length, at = read_int16(buffer, at)
    if length < 0:
        return None, at
    if length > 32_767:
        raise MalformedBody("string longer than 32,767 bytes")
    return read_bytes_at(buffer, at, length)


def read_string(buffer: Buffer, at: int, *, compact: bool) -> tuple[bytes, int]:
    """String as raw bytes; null is an error."""
    value, at = read_nullable_string(buffer, at, compact=compact)
    if value is None:
        raise MalformedBody("null where a string is required")
    return value, at


def skip_string(buffer: Buffer, at: int, *, compact: bool) -> int:
    """Offset after a string, null or not."""
    if compact:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length, at = read_int16(buffer, at)
    return at if length < 0 else skip(buffer, at, length)


def read_array_length(buffer: Buffer, at: int, *, compact: bool, most: int = MAX_ELEMENTS) -> tuple[int, int]:
    """Number of elements, -1 for null. More than the remaining bytes is an error (CVE-2022-34917)."""
    if compact:
        length, at = read_uvarint(buffer, at)
        length -= 1
    else:
        length, at = read_int32(buffer, at)
        length = max(length, -1)
    if length > len(buffer) - at:
        raise MalformedBody("array longer than its frame")
    if length > most:
        raise TooManyElements
    return length, at


def skip_tags(buffer: Buffer, at: int, *, most: int = MAX_ELEMENTS) -> int:
    """Offset after a tagged-field section (KIP-482); the content of the tags does not matter."""
    if at < len(buffer) and buffer[at] == 0:
        return at + 1
    count, at = read_uvarint(buffer, at)
    if count > most:
        raise TooManyElements
    for _ in range(count):
        _, at = read_uvarint(buffer, at)
        size, at = read_uvarint(buffer, at)
        at = skip(buffer, at, size)
    return at


def write_int16(out: bytearray, value: int) -> None:
    """Append a signed 16-bit integer."""
    out += _INT16.pack(value)


def write_int32(out: bytearray, value: int) -> None:
    """Append a signed 32-bit integer."""
    out += _INT32.pack(value)


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_nullable_string(out: bytearray, value: bytes | None, *, compact: bool) -> None:
    """Append a string, or null for None."""
    if compact:
        write_uvarint(out, 0 if value is None else len(value) + 1)
    else:
        out += _INT16.pack(-1 if value is None else len(value))
    if value is not None:
        out += value


def write_array_length(out: bytearray, length: int, *, compact: bool) -> None:
    """Append the number of elements of a non-null array."""
    if compact:
        write_uvarint(out, length + 1)
    else:
        out += _INT32.pack(length)


def framed(payload: Buffer) -> bytes:
    """`payload` with its 4-byte size in front."""
    return _INT32.pack(len(payload)) + payload
