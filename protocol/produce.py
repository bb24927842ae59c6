"""Produce requests, as far as a relay must know them: do they get a reply?

Records are never touched. Layout: v0-2 acks; v3-8 transactional id, acks; v9+ the same with a compact id behind a
tagged header. A misread acks=0 shifts every later reply (hazard A28), so the header is walked exactly.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.api_keys import Api
from protocol.errors import MalformedBody, Truncated
from protocol.headers import HEAD_BYTES
from protocol.primitives import Buffer, read_uvarint, skip, skip_string, skip_tags

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

MAX_BYTES_BEFORE_ACKS: Final = 131_072
"""Two strings of 32,767 bytes and as much again for tags; a client that hides acks deeper is after our memory."""

MAX_HEADER_TAGS: Final = 100
"""Walked again for every piece of the header that arrives, so that a client must not choose how many there are."""


def read_acks(frame: Buffer, at: int, end: int, client_id_length: int, api: Api) -> int | None:
    """The acks field of the Produce request whose size field stands at `at`.

    Args:
        frame: received bytes; may end before the field, and may hold more than this request.
        at: offset of the frame's size.
        end: how much of `frame` has been received; what stands behind it is not looked at.
        client_id_length: as read from the head, negative for null.
        api: the request's version.

    Returns:
        acks (0 means that no reply will come), or None while the field has not been received.

    Raises:
        ProtocolError: the header is malformed, or the frame ends before the field.
    """
    frame_end: int = at + 4 + _INT32.unpack_from(frame, at)[0]
    body_at = at + HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
    known_end = end if end < frame_end else frame_end
    # The common case without a walk: no header tags, null transactional id. Two bytes either way.
    if body_at + 4 <= known_end and api.version >= 3:
        nothing = 0 if api.version >= 9 else 0xFF
        if frame[body_at] == nothing and frame[body_at + 1] == nothing:
            acks: int = _INT16.unpack_from(frame, body_at + 2)[0]
            return acks
    try:
        acks_at = _walk_to_acks(memoryview(frame)[:known_end], body_at, api)
    except Truncated:
        if end >= frame_end:
            raise
        if end - at > MAX_BYTES_BEFORE_ACKS:
            raise MalformedBody("acks hidden behind too many bytes") from None
        return None
    return int(_INT16.unpack_from(frame, acks_at)[0])


def _walk_to_acks(received: memoryview, at: int, api: Api) -> int:
    """Offset of acks; `Truncated` when not all of it has been received."""
    if api.version >= 9:
        at = skip_tags(received, at, most=MAX_HEADER_TAGS)
        length, at = read_uvarint(received, at)
        at = skip(received, at, max(length - 1, 0))
    elif api.version >= 3:
        at = skip_string(received, at, compact=False)
    skip(received, at, 2)
    return at
