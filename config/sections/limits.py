"""[limits]: bounds of client connections, quotas aside."""

from __future__ import annotations

from config.section_base import MAX_INT32, Bytes, Count, Milliseconds, Section


class LimitSettings(Section, frozen=True):
    """Bounds of each client connection, and of what all of them hold.

    Attributes:
        max_frame_bytes: largest request; 100 MiB is Kafka's socket.request.max.bytes.
        queued_max_request_bytes: what all connections together hold back: requests and answers that are seen whole,
            replies that wait for earlier ones, bytes that a peer does not take. Kafka's queued.max.request.bytes;
            connections that would hold more are not read on.
        announced_max_request_bytes: what requests under way may have announced to one broker and not sent yet: a
            broker makes room for a request when it has read its size. A request that does not fit is collected
            first. Where the brokers' queued.max.request.bytes is lower, that counts.
        max_in_flight_requests: requests without a reply; reading stops there. Producers have 5 by default.
        max_response_bytes: largest response a broker may announce; Kafka has no bound but the INT of the size.
        max_mute_ms: longest mute that is issued at once; the rest of a longer one is due later. Java producers give
            a batch up after 120 s (hazard C07).
        first_frame_timeout_ms: from accept to the first request head; clients send one as soon as they are connected.
        frame_timeout_ms: a frame must be whole after this time plus its size / `min_frame_bytes_per_s`. 30 s is
            what most clients wait for an answer.
        min_frame_bytes_per_s: slower than any link in use, and too fast for an attack by single bytes (hazard B02).
        idle_timeout_ms: nothing received, nothing pending; Kafka's connections.max.idle.ms.
        write_timeout_ms: the period in which a client with unread replies must take `min_write_bytes_per_s`.
        min_write_bytes_per_s: a slow consumer takes far more, one that reads single bytes less (hazard B10).
        upstream_write_timeout_ms: a broker that takes nothing for so long is given up; longer than clients wait
            themselves, since a broker may come to (hazards B11, D11).
    """

    max_frame_bytes: Bytes = 104_857_600
    queued_max_request_bytes: Bytes = 268_435_456
    announced_max_request_bytes: Bytes = 134_217_728
    max_in_flight_requests: Count = 1000
    max_response_bytes: Bytes = MAX_INT32
    max_mute_ms: Milliseconds = 110_000
    first_frame_timeout_ms: Milliseconds = 10_000
    frame_timeout_ms: Milliseconds = 30_000
    min_frame_bytes_per_s: Count = 16_384
    idle_timeout_ms: Milliseconds = 600_000
    write_timeout_ms: Milliseconds = 30_000
    min_write_bytes_per_s: Count = 1_024
    upstream_write_timeout_ms: Milliseconds = 180_000
