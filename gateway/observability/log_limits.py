"""Keeps a flood of one log event from filling the log.

At most a number of lines per second and event name; what was left out is counted and told with the event's next
line. Pure: time is an argument.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_WINDOW_MS: Final = 1000
_OVERFLOW: Final = "other events"


class EventLimiter:
    """Decides which lines are written.

    The limit holds in every second, wherever it begins: a line waits until the one written
    ``max_per_s`` lines before it is a second old.
    """

    def __init__(self, max_per_s: int = 20, *, max_events: int = 1024) -> None:
        """Starts with nothing counted.

        Args:
            max_per_s: lines per second and event name.
            max_events: names that are told apart; further ones share one limit, because names may come from
                elsewhere (another library's log texts).
        """
        self._max_per_s = max_per_s
        self._max_events = max_events
        self._written_ms: dict[str, deque[int]] = {}
        self._suppressed: dict[str, int] = {}

    def drop(self, event: str, *, now_ms: int) -> bool:
        """Counts a line as left out and says so if `admit` would; otherwise does nothing.

        For callers whose lines come in floods and cost something to put together.
        """
        written = self._written_ms.get(event)
        if written is None or len(written) < self._max_per_s or now_ms - written[0] >= _WINDOW_MS:
            return False
        self._suppressed[event] = self._suppressed.get(event, 0) + 1
        return True

    def admit(self, event: str, *, now_ms: int) -> int | None:
        """Whether a line may be written.

        Returns:
            How many lines of this event were left out since the last one written; None when this one is left out
            as well.
        """
        if event not in self._written_ms and len(self._written_ms) >= self._max_events:
            event = _OVERFLOW
        written = self._written_ms.get(event)
        if written is None:
            written = self._written_ms[event] = deque(maxlen=self._max_per_s)
        if len(written) == self._max_per_s and now_ms - written[0] < _WINDOW_MS:
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            return None
        written.append(now_ms)
        return self._suppressed.pop(event, 0)

    def take_suppressed(self) -> dict[str, int]:
        """Lines left out and not told yet, by event; they count as told from now on."""
        suppressed, self._suppressed = self._suppressed, {}
        return suppressed
