"""MemoryBudget: bounds the bytes that all connections buffer together. Pure.

It counts collected requests and replies, bytes that wait behind a mute, the gateway's own replies that wait for
earlier ones, and bytes that a transport has not sent. Relayed bytes are not kept and not counted.

When the budget (Kafka's queued.max.request.bytes) is used up, a connection that collects more than `SMALL_BYTES` is
no longer read. One connection at a time, the one with the fewest missing bytes, may continue anyway. So incomplete
requests cannot fill the budget for good, and a short request does not wait for a long one. The memory in use is at
most the budget, one whole frame, and for each connection `SMALL_BYTES` and the bytes just received.

While connections wait, the gateway closes those whose clients could send or take bytes and hardly do: see `press`. A
request above `LARGE_BYTES` that was collected whole and then waits for a quota is kept while the budget has room and
no other connection waits for it. Otherwise clients without a quota left could fill the budget with such requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

SMALL_BYTES: Final = 64 * 1024
"""A frame is always collected up to this size, so that small requests do not wait for large ones."""

LARGE_BYTES: Final = 256 * 1024
"""A whole request with more bytes that waits for a quota gives way to others."""

PATIENCE_MS: Final = 5_000
"""Time between two checks of large connections while others wait."""


class Holder(Protocol):
    """The part of a session that the memory budget needs."""

    accounted_bytes: int

    @property
    def missing_bytes(self) -> int:
        """How many bytes are missing of the frame that the session collects."""

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """How many bytes the client has sent and has taken so far."""

    def give_way(self, sent_bytes: int, taken_bytes: int, elapsed_ms: int, *, foremost: bool) -> None:
        """Close the connection, for which others wait, if its client has moved too few bytes in the elapsed time.

        A muted client is not slow to send, except that a throttle does not excuse the foremost connection. A request
        that was collected whole and waits for a quota gives way at once.
        """

    def memory_freed(self) -> None:
        """Let the connection continue."""


class MemoryBudget:
    """See the module.

    Attributes:
        limit_bytes: the budget; may change at any time.
        used_bytes: bytes in memory now; can be above the limit, see the module.
        later: runs a function after the current event; the shell sets it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.later: Callable[[Callable[[], None]], None] = lambda step: step()
        self._waiting: dict[Holder, None] = {}
        self._foremost: Holder | None = None  # the connection that may continue above the limit
        self._moved: dict[Holder, tuple[int, int]] = {}  # of the large connections, at the last check
        self._large: dict[Holder, None] = {}  # the connections with more than `SMALL_BYTES`
        self._looked_at_ms = 0
        self._looking = False

    @property
    def full(self) -> bool:
        """Whether the budget is used up."""
        return self.used_bytes >= self.limit_bytes

    @property
    def half_free(self) -> bool:
        """Whether less than half of the budget is used. Bytes that can wait at their sender use only this half."""
        return self.used_bytes < self.limit_bytes // 2

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiting)

    def account(self, holder: Holder, held_bytes: int, *, behind_bytes: int = 0) -> None:
        """Set how many bytes a connection keeps now.

        Args:
            holder: the connection.
            held_bytes: all its kept bytes.
            behind_bytes: the part of them that arrived behind a mute and was not taken yet.
        """
        held_before = holder.accounted_bytes
        self.used_bytes += held_bytes - held_before
        holder.accounted_bytes = held_bytes
        if held_bytes > SMALL_BYTES:
            self._large[holder] = None
        elif held_before > SMALL_BYTES:
            del self._large[holder]
        has_ended = holder is self._foremost and held_bytes - behind_bytes <= SMALL_BYTES
        if has_ended:
            self._foremost = None
        if has_ended or held_bytes < held_before:
            self._look()

    def must_wait(self, holder: Holder, collected_bytes: int) -> bool:
        """Whether a connection that has collected this much must wait; if so, `memory_freed` ends the wait."""
        if collected_bytes <= SMALL_BYTES or not self.full or holder is self._foremost:
            return False
        foremost = self._foremost
        if holder.missing_bytes < foremost.missing_bytes if foremost else not self._waiting:
            self._foremost = holder
            return False
        self._waiting[holder] = None
        return True

    def press(self, *, now_ms: int) -> None:
        """Close large connections that have moved too few bytes. Waiting connections call this each `PATIENCE_MS`.

        Otherwise a few clients could block all others by sending the beginnings of large requests and no more, or by
        not taking their replies.
        """
        elapsed_ms = now_ms - self._looked_at_ms
        if elapsed_ms < PATIENCE_MS:
            return
        self._looked_at_ms = now_ms
        before, self._moved = self._moved, {each: each.moved_bytes for each in self._large}
        # After a longer time than this, no connection has waited in between.
        if self.full and elapsed_ms < 2 * PATIENCE_MS:
            for holder, (sent_bytes, taken_bytes) in list(self._moved.items()):
                if holder in before and self.full:
                    sent_before, taken_before = before[holder]
                    holder.give_way(
                        sent_bytes - sent_before,
                        taken_bytes - taken_before,
                        elapsed_ms,
                        foremost=holder is self._foremost,
                    )

    def leave(self, holder: Holder) -> None:
        """Remove a connection that has ended."""
        self._moved.pop(holder, None)
        self._waiting.pop(holder, None)
        if holder is self._foremost:
            self._foremost = None
        self.account(holder, 0)
        self._look()

    def _look(self) -> None:
        if self._waiting and not self._looking and (self._foremost is None or not self.full):
            self._looking = True
            self.later(self._next)

    def _next(self) -> None:
        """Let the waiting connection with the fewest missing bytes continue, then check again."""
        self._looking = False
        if not self._waiting or (self._foremost is not None and self.full):
            return
        chosen = min(self._waiting, key=lambda holder: holder.missing_bytes)
        del self._waiting[chosen]
        if self.full:
            self._foremost = chosen
        chosen.memory_freed()
        self._look()
