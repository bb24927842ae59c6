"""StreamsGroupHeartbeat (KIP-1071) as far as it is refused; layout of StreamsGroupHeartbeatResponse v0."""

from __future__ import annotations

from protocol.error_codes import ErrorCode
from protocol.primitives import framed, write_int16, write_int32, write_nullable_string


def refused_heartbeat(correlation_id: int, error_code: ErrorCode, message: bytes) -> bytes:
    """The response frame that refuses a heartbeat: no member, no tasks."""
    out = bytearray()
    write_int32(out, correlation_id)
    out.append(0)  # no header tags
    write_int32(out, 0)  # throttle_time_ms
    write_int16(out, error_code)
    write_nullable_string(out, message, compact=True)
    write_nullable_string(out, b"", compact=True)  # member id
    for _ in range(4):  # member epoch, heartbeat interval, acceptable lag, offset interval
        write_int32(out, 0)
    out += bytes(4)  # no status, active, standby and warm-up tasks: null
    write_int32(out, 0)  # endpoint epoch
    out += bytes(2)  # no endpoints, no tags
    return framed(out)
