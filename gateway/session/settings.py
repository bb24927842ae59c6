"""Bounds of one client connection. Their defaults are the configuration's (`config.sections`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Bounds of one session; times in ms, sizes in bytes.

    Attributes:
        max_frame_bytes: largest request payload of any API; Kafka's socket.request.max.bytes.
        queued_max_request_bytes: of all connections together; see `gateway.session.memory_budget`.
        announced_max_request_bytes: to one broker; see `gateway.session.announced`.
        max_in_flight_requests: requests without a reply; reading stops there.
        max_response_bytes: largest response frame a broker may announce.
        max_mute_ms: longest mute that is issued at once; the rest of a longer one is due later (hazard C07).
        first_frame_timeout_ms: from accept to the first request head.
        frame_timeout_ms, min_frame_bytes_per_s: a frame must be whole after the first plus size / second.
        idle_timeout_ms: nothing received, nothing pending; `frame_timeout_ms` before authentication.
        write_timeout_ms, min_write_bytes_per_s: a client with unread replies must take at least that much in each
            such period.
        upstream_write_timeout_ms: a broker that takes nothing at all of what waits for it for so long is given up;
            longer than clients wait themselves, since a broker may come to (hazards B11, D11).
        failed_authentication_delay_ms: from a failed authentication to its answer and the end (KIP-306).
    """

    max_frame_bytes: int
    queued_max_request_bytes: int
    announced_max_request_bytes: int
    max_in_flight_requests: int
    max_response_bytes: int
    max_mute_ms: int
    first_frame_timeout_ms: int
    frame_timeout_ms: int
    min_frame_bytes_per_s: int
    idle_timeout_ms: int
    write_timeout_ms: int
    min_write_bytes_per_s: int
    upstream_write_timeout_ms: int
    failed_authentication_delay_ms: int
