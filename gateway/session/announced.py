"""AnnouncedBytes: bounds the bytes that requests in progress have announced to a broker and not sent. Pure.

A broker makes room for a whole request as soon as it has read its size. Some hundred heads of a few bytes, each of
which announces 100 MB, thus take all of its memory (hazard M02). So a request that has not come whole is passed on
only while the rest of it fits here; otherwise the gateway collects it first, as far as its memory budget allows.
Where one does not fit, those that have announced and send nothing have to end.

The bound of one kind of clients is what the others have left free, so that half is the most that one of them takes
alone (dynamic thresholds with alpha = 1; Choudhury and Hahne, 1998).
"""

from __future__ import annotations

from typing import Final, Protocol

from quotas.trackers import Kind

PASS_ON_BYTES: Final = 64 * 1024
"""A request is passed on when so much of it is here, or all of it."""


LOOK_MS: Final = 1_000
"""Announcing connections are not looked at more often."""


class Announcer(Protocol):
    """A session, as far as it announces."""

    def stop_announcing(self, *, now_ms: int) -> None:
        """Another one's request does not fit: end, if the client sends nothing, or too slowly."""


class AnnouncedBytes:
    """The bound of one broker.

    Attributes:
        limits: of all brokers.
        upstream: of this one.
        used_bytes: what is announced now.
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
        """Whether a request of such a client may announce so much more than has come of it.

        One alone always may: no request is larger than the broker takes.
        """
        used = self.used_bytes
        return not used or self._of_kinds.get(kind, 0) + rest_bytes <= self.limits.limit_bytes - used

    def press(self, *, now_ms: int) -> None:
        """A request does not fit: those that have announced and do not send end."""
        if now_ms >= self._looked_at_ms + LOOK_MS:
            self._looked_at_ms = now_ms
            for each in list(self._announcers):
                each.stop_announcing(now_ms=now_ms)

    def begin(self, announcer: Announcer, kind: Kind, rest_bytes: int) -> None:
        """A request is passed on of which so much is missing."""
        self._announcers[announcer] = None
        self.used_bytes += rest_bytes
        self._of_kinds[kind] = self._of_kinds.get(kind, 0) + rest_bytes

    def end(self, announcer: Announcer, kind: Kind, rest_bytes: int) -> None:
        """It has come whole, or its connection has ended."""
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
        limit_bytes: of each.
        collected: requests that had to come whole since they did not fit.
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
        """Nothing is announced yet.

        Args:
            limit_bytes: of this process.
            processes: of this gateway, between which the brokers' own bound is divided.
        """
        self.collected = 0
        self._processes = processes
        self._brokers: dict[tuple[str, int | None], AnnouncedBytes] = {}
        self._queued_max_request_bytes: dict[str, int] = {}
        self.set(limit_bytes)

    def of(self, upstream: str, broker_id: int | None) -> AnnouncedBytes:
        """The bound of a broker; None: of those behind the bootstrap port."""
        found = self._brokers.get((upstream, broker_id))
        if found is None:
            found = self._brokers[upstream, broker_id] = AnnouncedBytes(self, upstream)
        return found

    @property
    def used_bytes(self) -> int:
        """What is announced now, to all brokers together."""
        return sum(each.used_bytes for each in self._brokers.values())

    def set(self, limit_bytes: int) -> None:
        """What is configured, from now on."""
        self._set_bytes = limit_bytes
        self._apply()

    def brokers_take(self, upstream: str, queued_max_request_bytes: int) -> None:
        """Brokers are set to bear no more than this, by queued.max.request.bytes; 0 or less: they have no bound.

        The lowest of all upstreams counts for each.
        """
        self._queued_max_request_bytes[upstream] = queued_max_request_bytes
        self._apply()

    def _apply(self) -> None:
        known = [each for each in self._queued_max_request_bytes.values() if each > 0]
        self.limit_bytes = min([self._set_bytes, *(max(1, each // self._processes) for each in known)])
