"""The order in which connections pass while a counter is at its bound (hazards K03, K04). Pure.

Kafka answers each request and then mutes its connection, so connections of one client take turns by themselves. At
the bound the gateway does not pass a request. Without an order, a request that arrives at the right moment would be
served, and some of many connections would wait for minutes. So waiting connections have places. A place belongs to a
request that waits here, or to a client that was sent a throttle time. The client keeps its place for a second after
that time.

Waiting requests pass in the order of their places. A request without a place, or with a later one, passes first only
if the others do not wait longer because of it. A client with a place may just have left, which the gateway notices
within two seconds. So a Produce that waits for longer, for one counter, asks once more before it is due (`LOOK_MS`).
If one has left, and none with a place before it is there, it is due when the counter falls below its bound.

A Fetch whose response had to be emptied is before all others. When that client fetches again, its cost is reserved
while the broker works on it, for a second at most. Otherwise connections to a slow broker would always lose against
those to fast ones.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

_RETURN_MS: Final = 1_000
_OVERDUE_MS: Final = 100
_AGAIN_MS: Final = 5

LOOK_MS: Final = 2_500
"""When a request looks that waits for longer."""


class _Place:
    """The place of a connection.

    Attributes:
        order: of service.
        cost_ms: the request's time at the limit.
        due_ms: when it should pass.
        held: whether it waits here.
        looked: whether it was asked to look, see `BoundQueue.may_look`.
        left: how many connections with a place had ended by then; None: it does not look now.
    """

    __slots__ = ("cost_ms", "due_ms", "held", "left", "looked", "order")

    def __init__(self, order: int, cost_ms: float) -> None:
        self.order = order
        self.cost_ms = cost_ms
        self.due_ms = 0.0
        self.held = False
        self.looked = False
        self.left: int | None = None

    @property
    def emptied(self) -> bool:
        """Whether the last response had to be emptied."""
        return self.order < 0


class BoundQueue:
    """The places of one counter, at most one for each connection. A call takes the time of a heap operation.

    Attributes:
        promised_ms: the time at the limit that is reserved for a Fetch whose last response was emptied. The counter
            adds it to its own.
    """

    __slots__ = (
        "_away",
        "_cost_ms",
        "_held",
        "_left",
        "_next",
        "_places",
        "_promised_to",
        "_promised_until_ms",
        "promised_ms",
    )

    def __init__(self) -> None:
        self._places: dict[object, _Place] = {}
        self._held: list[tuple[int, int, object]] = []
        self._away: list[tuple[float, int, object]] = []
        self._cost_ms = 0.0
        self._next = 0
        self._left = 0
        self.promised_ms = 0.0
        self._promised_to: object = None
        self._promised_until_ms = 0.0

    def __bool__(self) -> bool:
        """Whether there are places or a reservation."""
        return bool(self._places) or self.promised_ms > 0

    def wait_ms(
        self, waiter: object, cost_ms: float, free_ms: float, *, most_held_ms: float, now_ms: int
    ) -> int:
        """How long a request has to wait; 0: it passes now, and its place is removed.

        Args:
            waiter: the connection.
            cost_ms: the request's time at the limit.
            free_ms: when the counter falls below its bound, reservations included.
            most_held_ms: the gateway sends a longer wait to the client instead of delaying the request.
            now_ms: the present.
        """
        self._forget_overdue(now_ms)
        place = self._places.get(waiter)
        if place is not None and place.left is not None:
            if place.left != self._left and not any(
                each.order < place.order for each in self._places.values()
            ):
                place.due_ms = min(place.due_ms, free_ms)
            place.left = None
            if now_ms < place.due_ms:
                return math.ceil(place.due_ms - now_ms)
        first = self._first_held()
        if now_ms >= free_ms and (
            first is None
            or (place is not None and place.order <= first.order)
            or free_ms + cost_ms <= first.due_ms - _OVERDUE_MS
        ):
            self._remove(waiter)
            if place is not None and place.emptied and not self.promised_ms:
                self._promised_to, self._promised_until_ms = waiter, float(now_ms + _RETURN_MS)
                self.promised_ms = cost_ms
            return 0
        if place is None:
            place = self._add(waiter, cost_ms, emptied=False)
        due_ms = free_ms + (0.0 if place.emptied else self._cost_ms - place.cost_ms)
        if place.due_ms:  # no place was added before it since then
            due_ms = max(free_ms, min(due_ms, place.due_ms))
        # Its time has come, but others are before it. They are due in this turn of the event loop, too.
        place.due_ms = max(due_ms, now_ms + (1 if now_ms < free_ms else _AGAIN_MS))
        self._put(waiter, place, held=place.due_ms - now_ms <= most_held_ms)
        return math.ceil(place.due_ms - now_ms)

    def may_look(self, waiter: object) -> bool:
        """Whether a request that has to wait should ask once more before it is due; each may do so once."""
        place = self._places.get(waiter)
        if place is None or place.looked or len(self._places) < 2:
            return False
        place.looked, place.left = True, self._left
        return True

    def tell(
        self, waiter: object, cost_ms: float, free_ms: float, *, emptied: bool = False, now_ms: int
    ) -> int:
        """Milliseconds until a client's next request is due, after one that passed or whose response was emptied."""
        self._remove(waiter)
        place = self._add(waiter, cost_ms, emptied=emptied)
        place.due_ms = free_ms + (0.0 if emptied else self._cost_ms - cost_ms)
        self._put(waiter, place, held=False)
        return math.ceil(place.due_ms - now_ms)

    def leave(self, waiter: object) -> None:
        """Removes the place of a connection that has ended, or that another counter counts now."""
        self._left += self._remove(waiter)

    def _remove(self, waiter: object) -> bool:
        place = self._places.pop(waiter, None)
        if place is not None:
            self._cost_ms -= place.cost_ms
        return place is not None

    def settle(self, waiter: object | None, *, now_ms: int) -> float:
        """Ends the reservation if it is this connection's, whose response has arrived, or if it has expired.

        Returns:
            The reserved time that is free again, in ms.
        """
        if not self.promised_ms or (waiter is not self._promised_to and now_ms < self._promised_until_ms):
            return 0.0
        promised_ms, self.promised_ms, self._promised_to = self.promised_ms, 0.0, None
        return promised_ms

    def _add(self, waiter: object, cost_ms: float, *, emptied: bool) -> _Place:
        self._next += 1
        # Connections whose responses were emptied come first, and among them the one that has waited longest.
        place = _Place(self._next - (1 << 62 if emptied else 0), cost_ms)
        self._places[waiter] = place
        self._cost_ms += cost_ms
        return place

    def _put(self, waiter: object, place: _Place, *, held: bool) -> None:
        if not (held and place.held):
            place.held = held
            self._push(waiter, place)
        # Entries of closed connections are stale. They may be due in hours, so they are dropped here.
        if len(self._away) + len(self._held) > 64 + 4 * len(self._places):
            self._held, self._away = [], []
            for each in self._places.items():
                self._push(*each)

    def _push(self, waiter: object, place: _Place) -> None:
        self._next += 1
        if place.held:
            heapq.heappush(self._held, (place.order, self._next, waiter))
        else:
            heapq.heappush(self._away, (place.due_ms + _RETURN_MS, self._next, waiter))

    def _first_held(self) -> _Place | None:
        held = self._held
        while held:
            order, _, waiter = held[0]
            place = self._places.get(waiter)
            if place is not None and place.held and place.order == order:
                return place
            heapq.heappop(held)
        return None

    def _forget_overdue(self, now_ms: int) -> None:
        """Removes places of clients that have not sent another request in time.

        A request that waits here but is not tried again in time no longer delays others.
        """
        away = self._away
        while away and away[0][0] < now_ms:
            until_ms, _, waiter = heapq.heappop(away)
            place = self._places.get(waiter)
            if place is not None and not place.held and place.due_ms + _RETURN_MS <= until_ms:
                self._remove(waiter)
        first = self._first_held()
        while first is not None and first.due_ms + _OVERDUE_MS < now_ms:
            _, _, waiter = heapq.heappop(self._held)
            self._put(waiter, first, held=False)
            first = self._first_held()
