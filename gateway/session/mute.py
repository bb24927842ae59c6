"""MuteReason: why a client is not read. A set, so that the end of one reason does not end another."""

from __future__ import annotations

from enum import IntFlag


class MuteReason(IntFlag):
    """Why nothing more is read from the client; reading resumes when the set is empty."""

    CONNECTING = 1
    UPSTREAM_FULL = 2
    CLIENT_FULL = 4
    IN_FLIGHT_FULL = 8
    AWAITING_REPLY = 16
    THROTTLED = 32
    HALF_CLOSED = 64
    DRAINING = 128
    AUTHENTICATION_FAILED = 256
    AWAITING_FETCH = 512
    WORKING = 1024
    REPLIES_FULL = 2048
    MEMORY_FULL = 4096
    AWAITING_TURN = 8192
