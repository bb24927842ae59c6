"""MemoryBudget: bounds the bytes that all connections buffer together. Pure.

In memory are requests and answers that are collected, what waits behind a mute, replies of our own that wait for
earlier ones, and what a transport has not sent. What is relayed passes and is not counted.

When the budget is used up (Kafka's queued.max.request.bytes), a connection that collects more than `SMALL_BYTES` is
not read on. One at a time may continue all the same, the one that misses the least: so the budget cannot be filled
with beginnings that never end, and a short request does not wait for a long one. At most the budget is in memory,
one whole frame above it, and `SMALL_BYTES` and what was just received for each connection.

While some wait, a connection whose client could send or take bytes and hardly does has to end: see `press`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

SMALL_BYTES: Final = 64 * 1024
"""Up to here a frame is collected whatever others hold: small requests do not wait for large ones."""


PATIENCE_MS: Final = 5_000
"""Between two looks at those that hold much while others wait."""


class Holder(Protocol):
    """A session, as far as its bytes are concerned."""

    accounted_bytes: int

    @property
    def missing_bytes(self) -> int:
        """How much of what it collects has not come."""

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """What its client has sent, and what it has taken, until now."""

    def give_way(self, sent_bytes: int, taken_bytes: int, elapsed_ms: int, *, foremost: bool) -> None:
        """Others wait: end, unless so much in so much time is enough; a throttle is no excuse for the foremost."""

    def memory_freed(self) -> None:
        """It may continue."""


class MemoryBudget:
    """See the module.

    Attributes:
        limit_bytes: may change at any time.
        used_bytes: what is in memory now; it may be above the limit, see the module.
        later: runs a step when the present event is over; the shell sets it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.later: Callable[[Callable[[], None]], None] = lambda step: step()
        self._waiting: dict[Holder, None] = {}
        self._foremost: Holder | None = None  # it may continue above the limit
        self._moved: dict[Holder, tuple[int, int]] = {}  # of those that hold much, at the last look
        self._large: dict[Holder, None] = {}  # those that hold much
        self._looked_at_ms = 0
        self._looking = False

    @property
    def full(self) -> bool:
        """Whether the budget is used up."""
        return self.used_bytes >= self.limit_bytes

    @property
    def half_free(self) -> bool:
        """Whether less than half of it is used: what can as well wait at its sender is to leave room for the rest."""
        return self.used_bytes < self.limit_bytes // 2

    @property
    def waiting(self) -> int:
        """How many connections wait for bytes of others."""
        return len(self._waiting)

    def account(self, holder: Holder, held_bytes: int, *, behind_bytes: int = 0) -> None:
        """What a connection holds now.

        Args:
            holder: the connection.
            held_bytes: all of it.
            behind_bytes: of these, what has come behind what it collects and is not looked at yet.
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
        """Whether a connection that has collected so much must not be read on; it is called when it may."""
        if collected_bytes <= SMALL_BYTES or not self.full or holder is self._foremost:
            return False
        foremost = self._foremost
        if holder.missing_bytes < foremost.missing_bytes if foremost else not self._waiting:
            self._foremost = holder
            return False
        self._waiting[holder] = None
        return True

    def press(self, *, now_ms: int) -> None:
        """One that waits asks, every `PATIENCE_MS`: those that hold much and have moved too little since then end.

        Else some that hold the beginnings of large requests and send nothing more, or do not take their answers,
        would keep all others out.
        """
        elapsed_ms = now_ms - self._looked_at_ms
        if elapsed_ms < PATIENCE_MS:
            return
        self._looked_at_ms = now_ms
        before, self._moved = self._moved, {each: each.moved_bytes for each in self._large}
        # No connection waited between two looks that lie far apart.
        if self.full and elapsed_ms < 2 * PATIENCE_MS:
            for holder, (sent_bytes, taken_bytes) in list(self._moved.items()):
                if holder in before:
                    sent_before, taken_before = before[holder]
                    holder.give_way(
                        sent_bytes - sent_before,
                        taken_bytes - taken_before,
                        elapsed_ms,
                        foremost=holder is self._foremost,
                    )

    def leave(self, holder: Holder) -> None:
        """The connection has ended."""
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
        """Let the connection continue that misses the least; look again when that one has continued."""
        self._looking = False
        if not self._waiting or (self._foremost is not None and self.full):
            return
        chosen = min(self._waiting, key=lambda holder: holder.missing_bytes)
        del self._waiting[chosen]
        if self.full:
            self._foremost = chosen
        chosen.memory_freed()
        self._look()
