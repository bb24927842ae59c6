"""Produce requests, as far as a relay must know them: do they get a reply?

Records are never touched. Layout: v0-2 acks; v3-8 transactional id, acks; v9+ the same with a compact id behind a
tagged header. A misread acks=0 shifts every later reply (hazard A28), so the header is walked exactly.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.api_keys import Api
from protocol.errors import Truncated
from protocol.headers import HEAD_BYTES
from protocol.primitives import Buffer, read_uvarint, skip_string, skip_tags

_INT16: Final = Struct(">h")


def read_acks(frame: Buffer, at: int, end: int, client_id_length: int, api: Api) -> int | None:
    """The acks field of the Produce request whose size field stands at `at`.

    Args:
        frame: received bytes; may end before the field.
        at: offset of the frame's size.
        end: how much of `frame` has been received.
        client_id_length: as read from the head, negative for null.
        api: the request's version.

    Returns:
        acks (0 means that no reply will come), or None while the field has not been received.

    Raises:
        ProtocolError: the header is malformed.
    """
    at += HEAD_BYTES + (client_id_length if client_id_length > 0 else 0)
    try:
        if api.version >= 9:
            # The common case byte by byte: no header tags, null transactional id.
            if at + 4 <= end and frame[at] == 0 and frame[at + 1] == 0:
                at += 2
            else:
                at = skip_tags(frame, at)
                length, at = read_uvarint(frame, at)
                at += max(length - 1, 0)
        elif api.version >= 3:
            at = skip_string(frame, at, compact=False)
    except Truncated:
        return None
    if at + 2 > end:
        return None
    return int(_INT16.unpack_from(frame, at)[0])
