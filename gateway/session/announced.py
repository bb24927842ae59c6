"""AnnouncedBytes: bounds the bytes that requests in progress have announced to a broker and not sent. Pure.

A broker allocates memory for a whole request as soon as it has read the request's size. A few hundred small heads
that announce 100 MB each would take all of its memory (hazard M02). So the gateway relays the beginning of a request
only if the missing bytes fit into this bound. Otherwise it first collects the request, within its memory budget, and
closes connections that have announced bytes and do not send them.

One kind of clients may announce as much as is still free. So it can take at most half of the bound alone (dynamic
thresholds with alpha = 1; Choudhury and Hahne, 1998).
"""

from __future__ import annotations

from typing import Final, Protocol

from quotas.trackers import Kind

PASS_ON_BYTES: Final = 64 * 1024
"""The gateway relays a request once this much of it, or all of it, has arrived."""


LOOK_MS: Final = 1_000
"""Least time between two checks of the connections with announced bytes."""


class Announcer(Protocol):
    """The part of a session that announces bytes to a broker."""

    def stop_announcing(self, *, now_ms: int) -> None:
        """Close the connection if its client sends nothing or too slowly: another request does not fit."""


class AnnouncedBytes:
    """The bound of one broker.

    Attributes:
        limits: the bounds of all brokers.
        upstream: the upstream of this broker.
        used_bytes: bytes that are announced now.
    """

    __slots__ = ("_announcers", "_looked_at_ms", "_of_kinds", "limits", "upstream", "used_bytes")

    def __init__(self, limits: AnnouncedLimits, upstream: str) -> None:
        self.limits = limits
        self.upstream = upstream
        self.used_bytes = 0
        self._of_kinds: dict[Kind, int] = {}
        self._announcers: dict[Announcer, None] = {}
        self._looked_at_ms = 0

    def fits(self, kind: Kind, rest_bytes: int) -> bool:
        """Whether a request of this kind of client may announce its missing bytes.

        A request always may if no other has announced bytes: no request is larger than the broker accepts.
        """
        used = self.used_bytes
        return not used or self._of_kinds.get(kind, 0) + rest_bytes <= self.limits.limit_bytes - used

    def press(self, *, now_ms: int) -> None:
        """Close the connections that have announced bytes and do not send them, since a request does not fit."""
        if now_ms >= self._looked_at_ms + LOOK_MS:
            self._looked_at_ms = now_ms
            for each in list(self._announcers):
                each.stop_announcing(now_ms=now_ms)

    def begin(self, announcer: Announcer, kind: Kind, rest_bytes: int) -> None:
        """Count the missing bytes of a request whose beginning is relayed."""
        self._announcers[announcer] = None
        self.used_bytes += rest_bytes
        self._of_kinds[kind] = self._of_kinds.get(kind, 0) + rest_bytes

    def end(self, announcer: Announcer, kind: Kind, rest_bytes: int) -> None:
        """Stop counting a request, once it is complete or its connection has ended."""
        del self._announcers[announcer]
        self.used_bytes -= rest_bytes
        left = self._of_kinds[kind] - rest_bytes
        if left:
            self._of_kinds[kind] = left
        else:
            del self._of_kinds[kind]


class AnnouncedLimits:
    """The bounds of all brokers, of all upstreams.

    Attributes:
        limit_bytes: the bound of each broker.
        collected: number of requests that were collected first because they did not fit.
    """

    __slots__ = (
        "_brokers",
        "_processes",
        "_queued_max_request_bytes",
        "_set_bytes",
        "collected",
        "limit_bytes",
    )

    def __init__(self, limit_bytes: int, *, processes: int = 1) -> None:
        """Start without announced bytes.

        Args:
            limit_bytes: the bound for this process.
            processes: number of this gateway's processes, among which the brokers' own bound is divided.
        """
        self.collected = 0
        self._processes = processes
        self._brokers: dict[tuple[str, int | None], AnnouncedBytes] = {}
        self._queued_max_request_bytes: dict[str, int] = {}
        self.set(limit_bytes)

    def of(self, upstream: str, broker_id: int | None) -> AnnouncedBytes:
        """The bound of a broker; id None stands for the brokers behind the bootstrap port."""
        found = self._brokers.get((upstream, broker_id))
        if found is None:
            found = self._brokers[upstream, broker_id] = AnnouncedBytes(self, upstream)
        return found

    @property
    def used_bytes(self) -> int:
        """Bytes that are announced now to all brokers together."""
        return sum(each.used_bytes for each in self._brokers.values())

    def set(self, limit_bytes: int) -> None:
        """Change the configured bound."""
        self._set_bytes = limit_bytes
        self._apply()

    def brokers_take(self, upstream: str, queued_max_request_bytes: int) -> None:
        """Set the bound of an upstream's brokers, their queued.max.request.bytes; 0 or less: they have no bound.

        The lowest bound of all upstreams applies to every broker.
        """
        self._queued_max_request_bytes[upstream] = queued_max_request_bytes
        self._apply()

    def _apply(self) -> None:
        known = [each for each in self._queued_max_request_bytes.values() if each > 0]
        self.limit_bytes = min([self._set_bytes, *(max(1, each // self._processes) for each in known)])
