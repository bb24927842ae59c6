"""Bounds of one client connection. Their defaults are the configuration's (`config.sections`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Bounds of one session; times in ms, sizes in bytes.

    Attributes:
        max_frame_bytes: largest request payload of any API; Kafka's socket.request.max.bytes.
        queued_max_request_bytes: bound of all connections together; see `gateway.session.memory_budget`.
        announced_max_request_bytes: bound for one broker; see `gateway.session.announced`.
        max_in_flight_requests: with this many requests without a reply the client is not read.
        max_response_bytes: largest response frame a broker may announce.
        max_mute_ms: longest single mute; later requests wait for the rest of a longer one (hazard C07).
        first_frame_timeout_ms: from accept to the first request head.
        frame_timeout_ms, min_frame_bytes_per_s: a frame must be complete after the timeout plus its size / rate.
        idle_timeout_ms: longest time without received bytes and without pending replies. Before authentication
            `frame_timeout_ms` applies.
        write_timeout_ms, min_write_bytes_per_s: a client with unread replies must take at least this rate in each
            period of the timeout.
        upstream_write_timeout_ms: a connection to a broker that takes no waiting bytes for this long is given up.
            It is longer than clients wait themselves, since a broker may recover (hazards B11, D11).
        failed_authentication_delay_ms: from a failed authentication to its answer and the close (KIP-306).
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
