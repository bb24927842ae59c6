"""StreamsGroupHeartbeat (KIP-1071) as far as it is refused; layouts of StreamsGroupHeartbeatResponse v0 and v1."""

from __future__ import annotations

from typing import Final

from protocol.error_codes import ErrorCode
from protocol.primitives import framed, write_int16, write_int32, write_nullable_string

_LAG_IS_A_LONG: Final = 1
"""From this version on the acceptable lag is an int64, and a flag asks for the topology's description (KIP-1331)."""


def refused_heartbeat(version: int, correlation_id: int, error_code: ErrorCode, message: bytes) -> bytes:
    """The response frame that refuses a heartbeat: no member, no tasks."""
    out = bytearray()
    write_int32(out, correlation_id)
    out.append(0)  # no header tags
    write_int32(out, 0)  # throttle_time_ms
    write_int16(out, error_code)
    write_nullable_string(out, message, compact=True)
    write_nullable_string(out, b"", compact=True)  # member id
    for _ in range(2):  # member epoch, heartbeat interval
        write_int32(out, 0)
    if version < _LAG_IS_A_LONG:
        write_int32(out, 0)  # acceptable lag
    write_int32(out, 0)  # offset interval
    if version >= _LAG_IS_A_LONG:
        out += b"\xff" * 8  # acceptable lag: -1, none
    out += bytes(4)  # no status, active, standby and warm-up tasks: null
    if version >= _LAG_IS_A_LONG:
        out.append(0)  # the description of the topology is not asked for
    write_int32(out, 0)  # endpoint epoch
    out += bytes(2)  # no endpoints, no tags
    return framed(out)
