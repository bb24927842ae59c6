"""[limits]: bounds of client connections other than quotas."""

from __future__ import annotations

from config.section_base import MAX_INT32, Bytes, Count, Milliseconds, Section


class LimitSettings(Section, frozen=True):
    """Bounds of each client connection, and of the memory that all of them use together.

    Attributes:
        max_frame_bytes: largest request. 100 MiB is Kafka's socket.request.max.bytes.
        queued_max_request_bytes: how much all connections together may buffer: requests and answers that are
            read whole, replies that wait for earlier replies, and bytes that a peer does not take.
            Connections that would buffer more are not read. Kafka's queued.max.request.bytes.
        announced_max_request_bytes: how much the requests under way may have announced to one broker and not
            sent yet. A broker allocates memory for a request as soon as it has read its size. The gateway
            first buffers a request that does not fit. If the brokers' queued.max.request.bytes is lower, that
            value counts.
        max_in_flight_requests: maximum number of requests without a reply on one connection. Then the gateway
            reads no further ones. Producers have 5 by default.
        max_response_bytes: largest response that a broker may announce. Kafka has no bound except the INT of
            the size.
        max_mute_ms: longest mute at one time. The rest of a longer wait is due at the next request. Java
            producers give up a batch after 120 s.
        first_frame_timeout_ms: time from the connection to the first request head. Clients send one as soon
            as they are connected.
        frame_timeout_ms: a request's head must be complete after this time. Its first bytes beyond the head, and then
            the rest, get as much again, plus their size divided by `min_frame_bytes_per_s`. Most clients wait 30 s
            for an answer.
        min_frame_bytes_per_s: slower than any link in use, and too fast for an attack with single bytes.
        idle_timeout_ms: a connection that received nothing and waits for nothing is closed after this time.
            Kafka's connections.max.idle.ms.
        write_timeout_ms: the period in which a client with unread replies must take `min_write_bytes_per_s`.
        min_write_bytes_per_s: a slow consumer takes far more than this. A client that reads single bytes
            takes less.
        upstream_write_timeout_ms: a broker that takes no bytes for this time is given up. The time is longer
            than clients wait, because a broker may recover.
    """

    max_frame_bytes: Bytes = 104_857_600
    queued_max_request_bytes: Bytes = 268_435_456
    announced_max_request_bytes: Bytes = 134_217_728
    max_in_flight_requests: Count = 1000
    max_response_bytes: Bytes = MAX_INT32
    max_mute_ms: Milliseconds = 110_000  # hazard C07
    first_frame_timeout_ms: Milliseconds = 10_000
    frame_timeout_ms: Milliseconds = 30_000
    min_frame_bytes_per_s: Count = 16_384  # hazard B02
    idle_timeout_ms: Milliseconds = 600_000
    write_timeout_ms: Milliseconds = 30_000
    min_write_bytes_per_s: Count = 1_024  # hazard B10
    upstream_write_timeout_ms: Milliseconds = 180_000  # hazards B11, D11
