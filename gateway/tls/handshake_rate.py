"""Limits how many TLS handshakes start per second, before any cryptography (hazards H22 and K09).

A handshake costs the gateway about a millisecond and its client only a few bytes, so they are paced: one by one,
evenly (`handshake_steps.py` sees to it that their computations are spread too). A connection whose whole hello comes
too early waits unread. Addresses take turns, whatever the number of their connections; within an address it is the
order of hellos. The protected listener has a queue of its own, which gets a quarter of the permits if it needs them.

None waits in vain: only as many may wait as begin before the deadline. Beyond that a connection is refused, at once,
so that its client tries again: the newcomer, or the last one of the address that has most of them. One that is
closed, or whose deadline passes, leaves the queue and has cost nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from quotas.group_sizes import GroupSizes

_GRAIN_S: Final = 0.002  # timers are no finer
_LOOKED_AT: Final = 100
_UNBOUND_PER_S: Final = 10_000
_CATCH_UP_S: Final = 0.1
"""How much of the time that late timers have lost, while a connection waited, is made good."""

_WAITS: Final = 0.8
"""Which part of the time that is left before its deadline a connection may wait; the rest is for its handshake."""

_PROTECTED_EVERY: Final = 4
"""One permit of so many is the protected listener's, while both queues have connections."""


class _Waiting(NamedTuple):
    network: str
    begin: Callable[[bool], bool]
    refuse: Callable[[], object]


class _Queue:
    """Connections that wait, by their networks; these take turns."""

    def __init__(self) -> None:
        self._by_network: OrderedDict[str, OrderedDict[Hashable, _Waiting]] = OrderedDict()
        self._networks: dict[Hashable, str] = {}
        self._sizes: GroupSizes[str] = GroupSizes()

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, connection: Hashable, waiting: _Waiting) -> None:
        self._networks[connection] = waiting.network
        self._by_network.setdefault(waiting.network, OrderedDict())[connection] = waiting
        self._sizes.add(waiting.network)

    def pop(self) -> _Waiting:
        network, connections = next(iter(self._by_network.items()))
        self._by_network.move_to_end(network)
        return self._remove(next(iter(connections)))

    def make_place_for(self, network: str) -> _Waiting | None:
        """Takes out the last connection of the network that has most; None when this one would have as many then."""
        if self._sizes.largest < self._sizes[network] + 2:
            return None
        return self._remove(next(reversed(self._by_network[self._sizes.largest_group()])))

    def discard(self, connection: Hashable) -> None:
        if connection in self._networks:
            self._remove(connection)

    def _remove(self, connection: Hashable) -> _Waiting:
        network = self._networks.pop(connection)
        connections = self._by_network[network]
        waiting = connections.pop(connection)
        if not connections:
            del self._by_network[network]
        self._sizes.remove(network)
        return waiting


class HandshakeRateLimiter:
    """Shared by all listeners.

    Attributes:
        per_second: the limit; may change at any time; None: unlimited.
        delayed: how many had to wait so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, per_second: int | None, max_waiting: int) -> None:
        """Nothing waits yet.

        Args:
            loop: gives time and timers.
            per_second: see above.
            max_waiting: never more than so many wait, whatever the deadlines.
        """
        self.per_second = per_second
        self.delayed = 0
        self._loop = loop
        self._max_waiting = max_waiting
        self._common, self._protected = _Queue(), _Queue()
        self._permits = 0  # given while both had connections
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Connections that wait."""
        return len(self._common) + len(self._protected)

    def request(
        self,
        connection: Hashable,
        begin: Callable[[bool], bool],
        refuse: Callable[[], object],
        *,
        network: str,
        left_s: float,
        protected: bool = False,
    ) -> None:
        """Begin a handshake now, or as soon as the rate allows.

        Args:
            connection: for `cancel`.
            begin: called with whether it had to wait; returns whether the handshake has begun: otherwise the next
                connection gets the permit.
            refuse: called, perhaps later, when there is no place for it.
            network: what takes its turn: an address, or the IPv6 network that counts as one client.
            left_s: until its deadline.
            protected: whether it came by the protected listener.
        """
        if not self.waiting and self._take_permit():
            begin(False)
            return
        queue = self._protected if protected else self._common
        if len(queue) >= self._places(left_s, protected=protected):
            displaced = queue.make_place_for(network)
            if displaced is None:
                refuse()
                return
            displaced.refuse()
        self.delayed += 1
        queue.add(connection, _Waiting(network, begin, refuse))
        self._arm()

    def cancel(self, connection: Hashable) -> None:
        """Wait no more; nothing happens if it did not."""
        self._common.discard(connection)
        self._protected.discard(connection)

    def stop(self) -> None:
        """Forget all that wait."""
        self._common, self._protected = _Queue(), _Queue()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _places(self, left_s: float, *, protected: bool) -> float:
        share = 1 / _PROTECTED_EVERY if protected else 1 - 1 / _PROTECTED_EVERY
        most = self._max_waiting * share
        if self.per_second is None:
            return most
        other = self._common if protected else self._protected
        return min(most, self.per_second * (share if other else 1.0) * left_s * _WAITS)

    def _take_permit(self, *, waited_s: float = 0.0) -> bool:
        if self.per_second is None:
            return True
        now_s = self._loop.time()
        if self._next_s - now_s > _GRAIN_S:
            return False
        self._next_s = max(self._next_s, now_s - waited_s) + 1 / self.per_second
        return True

    def _pop(self) -> _Waiting:
        if not self._common or not self._protected:
            return (self._common or self._protected).pop()
        self._permits += 1
        return (self._common if self._permits % _PROTECTED_EVERY else self._protected).pop()

    def _arm(self) -> None:
        if self._timer is None and self.waiting:
            wait_s = max(_GRAIN_S / 2, self._next_s - self._loop.time() - _GRAIN_S)
            self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # A few at a time, so that no client waits for more than these; those that have gone cost next to nothing.
        left = 1 + (self.per_second or _UNBOUND_PER_S) // 500
        for _ in range(_LOOKED_AT + left):
            if not left or not self.waiting or not self._take_permit(waited_s=_CATCH_UP_S):
                break
            if self._pop().begin(True):
                left -= 1
            elif self.per_second is not None:
                self._next_s -= 1 / self.per_second
        self._arm()
