"""Finds throttle_time_ms in a response and raises it in place (KIP-219).

The value is never lowered: a larger value of the broker stays (hazard C10). Responses without the field are not
changed; muting the channel is then the only throttle.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from protocol.api_keys import Api, ThrottlePlace
from protocol.api_versions import answered_in
from protocol.headers import response_body_offset
from protocol.primitives import read_array_length, read_int32, skip, skip_tags
from protocol.produce import throttle_time_offset

_INT32: Final = Struct(">i")
MAX_THROTTLE_TIME_MS: Final = 2**31 - 1

_BODY_BYTES_BEFORE: Final = {ThrottlePlace.FIRST: 0, ThrottlePlace.AFTER_ERROR_CODE: 2}
_FIXED_PLACES: Final = frozenset(_BODY_BYTES_BEFORE)


def in_head(api: Api) -> bool:
    """Whether the field is within the first bytes of the response."""
    return api.throttle_place in _FIXED_PLACES


def behind_head(api: Api) -> bool:
    """Whether there is such a field, and finding it needs the whole response."""
    return api.throttle_place is not ThrottlePlace.NOWHERE and not in_head(api)


def offset(frame: bytes | bytearray, api: Api) -> int | None:
    """Offset of throttle_time_ms in a response frame (size included), None when this version has none.

    For fields near the start (`in_head`) the first bytes of the frame are enough, otherwise the whole frame is
    needed.

    Raises:
        ProtocolError: the response ends before the field.
    """
    place = api.throttle_place
    if place is ThrottlePlace.NOWHERE:
        return None
    at = response_body_offset(frame, flexible_header=api.flexible_header)
    if place in _FIXED_PLACES:
        at += _BODY_BYTES_BEFORE[place]
    elif place is ThrottlePlace.AFTER_RESPONSES:
        at = throttle_time_offset(bytes(frame), api)
    elif place is ThrottlePlace.AFTER_API_KEYS:
        if answered_in(frame, api).version == 0:
            return None  # A response with UNSUPPORTED_VERSION is of version 0, which has no such field.
        count, at = read_array_length(frame, at + 2, compact=api.flexible)
        for _ in range(max(count, 0)):
            at = skip(frame, at, 6)
            at = skip_tags(frame, at) if api.flexible else at
    else:
        at = _last_field(frame, api)
    skip(frame, at, 4)
    return at


def _last_field(frame: bytes | bytearray, api: Api) -> int:
    """Delegation-token responses end with the field; a flexible one with an empty tag section after it."""
    behind = 4 + (1 if api.flexible else 0)
    return skip(frame, 8, len(frame) - 8 - behind)


def read(frame: bytes | bytearray, api: Api) -> int:
    """The broker's throttle_time_ms, 0 when this version has no such field."""
    at = offset(frame, api)
    return 0 if at is None else read_int32(frame, at)[0]


def patch(frame: bytearray, api: Api, throttle_time_ms: int) -> int:
    """Raise throttle_time_ms in place to at least `throttle_time_ms`.

    Args:
        frame: a response frame from its size on; whole, or only its head when `in_head(api)`.
        api: the version of the response.
        throttle_time_ms: the gateway's time, >= 0; cut at 2^31-1.

    Returns:
        The larger of the gateway's and the broker's time, for which the caller mutes the client.
    """
    at = offset(frame, api)
    if at is None:
        return throttle_time_ms
    from_upstream = _INT32.unpack_from(frame, at)[0]
    ours = min(throttle_time_ms, MAX_THROTTLE_TIME_MS)
    if from_upstream >= ours:
        return int(from_upstream)
    _INT32.pack_into(frame, at, ours)
    return ours
