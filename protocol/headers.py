"""Request heads: size, api key, version, correlation id, client id.

`size int32, api_key int16, api_version int16, correlation_id int32, client_id nullable string [, tags]`.
The client id is a legacy string in every header version, flexible or not.
Source: RequestHeader of Kafka's message definitions; sizes as `SocketServer` and `NetworkReceive` check them.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.errors import (
    FrameTooLarge,
    InvalidFrameSize,
    NotKafka,
    ProtocolError,
    TlsOnPlaintext,
    Truncated,
    UnsupportedRequest,
)
from protocol.primitives import Buffer, skip, skip_tags

HEAD: Final = Struct(">iIih")
"""Frame size, api (key << 16 | version, read as one number), correlation id, client id length."""

HEAD_BYTES: Final = HEAD.size
CLIENT_ID_AT: Final = HEAD_BYTES - 2
"""The offset of the client id, which begins with its length."""

MIN_REQUEST_BYTES: Final = 10
"""Smallest payload: key, version, correlation id and a null client id."""

REPLY_HEAD: Final = Struct(">ii")
"""Frame size and correlation id of a response."""


def api_number(api_key: int, api_version: int) -> int:
    """The two int16 as the one number that `HEAD` reads."""
    return (api_key & 0xFFFF) << 16 | api_version & 0xFFFF


def split_api_number(number: int) -> tuple[int, int]:
    """(api key, api version), both signed."""
    key, version = number >> 16, number & 0xFFFF
    return (key - 65_536 if key > 32_767 else key), (version - 65_536 if version > 32_767 else version)


_GREETINGS: Final = {
    b"GET ",
    b"POST",
    b"PUT ",
    b"HEAD",
    b"OPTI",
    b"CONN",
    b"PRI ",
    b"SSH-",
    b"PROX",
    b"\r\n\r\n",
    b"*1\r\n",
    b"*2\r\n",
    b"PING",
}


def refuse_size(size: int, max_frame_bytes: int) -> ProtocolError:
    """The most specific error for a frame whose announced size cannot be a request's.

    A TLS ClientHello or an HTTP request, read as a size, is above 300 million (hazards A06, A07).
    """
    first_bytes = (size & 0xFFFFFFFF).to_bytes(4, "big")
    if first_bytes[:2] == b"\x16\x03":
        return TlsOnPlaintext()
    if first_bytes in _GREETINGS:
        return NotKafka()
    if size > max_frame_bytes:
        return FrameTooLarge(f"{size} bytes, limit {max_frame_bytes}")
    if size < 0 and first_bytes[0] == 0x80:
        return NotKafka()
    return InvalidFrameSize(f"{size} bytes")


def correlation_id_of(frame: Buffer) -> int:
    """The correlation id of a whole request frame (size included)."""
    return correlation_id_at(frame, 0)


def correlation_id_at(data: Buffer, at: int) -> int:
    """The correlation id of the request frame whose size is at `at`."""
    return int(HEAD.unpack_from(data, at)[2])


def read_client_id(frame: Buffer, at: int, length: int) -> str:
    """The client id as Kafka reads it: null is "", bad UTF-8 is replaced (hazards A19, A22)."""
    if length <= 0:
        return ""
    end = at + length
    if end > len(frame):
        raise Truncated
    return bytes(frame[at:end]).decode("utf-8", "replace")


def body_offset(frame: Buffer, *, flexible: bool) -> int:
    """The offset of a whole request frame's body; `frame[0]` is the first byte of the size.

    Raises:
        Truncated: the client id or the tags reach past the end.
    """
    if len(frame) < HEAD_BYTES:
        raise Truncated
    length = HEAD.unpack_from(frame, 0)[3]
    at = HEAD_BYTES + max(length, 0)
    if at > len(frame):
        raise Truncated
    return skip_tags(frame, at) if flexible else at


def response_body_offset(frame: Buffer, *, flexible_header: bool) -> int:
    """The offset of a response frame's body, after size, correlation id and tags."""
    at = skip(frame, 0, REPLY_HEAD.size)
    return skip_tags(frame, at) if flexible_header else at


def unsupported(number: int) -> UnsupportedRequest:
    """The error for an api number without a route."""
    key, version = split_api_number(number)
    return UnsupportedRequest(f"api_key={key} api_version={version}")
