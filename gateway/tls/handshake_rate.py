"""Limits how many TLS handshakes start per second, before any cryptography (hazards H22 and K09).

A handshake costs the gateway about a millisecond and its client only a few bytes. So handshakes start one by one, at
even intervals (`handshake_steps.py` spreads their computations as well). A connection whose hello arrives too early
waits unread. Addresses take turns, whatever the number of their connections. Connections of one address start in the
order of their hellos. The protected listener has its own queue, which gets a quarter of the permits if it needs them.

Only as many connections may wait as can begin before their deadline. Beyond that a connection is refused at once, so
that its client tries again: the new one, or the last one of the address with the most connections. A connection that
is closed, or whose deadline passes, leaves the queue at no cost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from quotas.group_sizes import GroupSizes

_GRAIN_S: Final = 0.002  # the resolution of timers
_LOOKED_AT: Final = 100
_UNBOUND_PER_S: Final = 10_000
_CATCH_UP_S: Final = 0.1
"""If timers are late while connections wait, permits for at most this time are made up for."""

_WAITS: Final = 0.8
"""The part of the time before its deadline that a connection may wait. The rest is for its handshake."""

_PROTECTED_EVERY: Final = 4
"""Every fourth permit is for the protected listener, while both queues have connections."""


class _Waiting(NamedTuple):
    network: str
    begin: Callable[[bool], bool]
    refuse: Callable[[], object]


class _Queue:
    """Waiting connections by network. The networks take turns."""

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
        """Remove the last connection of the network with the most; None if the given one would then have as many."""
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
    """The rate limiter of all listeners.

    Attributes:
        per_second: the limit; may change at any time; None: unlimited.
        delayed: number of connections that had to wait so far.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, per_second: int | None, max_waiting: int) -> None:
        """Start without waiting connections.

        Args:
            loop: provides time and timers.
            per_second: see the class.
            max_waiting: the most waiting connections, whatever their deadlines.
        """
        self.per_second = per_second
        self.delayed = 0
        self._loop = loop
        self._max_waiting = max_waiting
        self._common, self._protected = _Queue(), _Queue()
        self._permits = 0  # permits given while both queues had connections
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Number of waiting connections."""
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
            begin: called with whether the connection had to wait. Returns whether the handshake has begun; if not,
                the next connection gets the permit.
            refuse: called, perhaps later, if there is no place for the connection.
            network: the unit that takes turns: an address, or an IPv6 network that counts as one client.
            left_s: time until the deadline.
            protected: whether the protected listener accepted the connection.
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
        """Remove a connection from its queue, if it waits."""
        self._common.discard(connection)
        self._protected.discard(connection)

    def stop(self) -> None:
        """Forget all waiting connections."""
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
        # A few at a time, so that no client waits for more of them. Connections that have ended cost almost nothing.
        left = 1 + (self.per_second or _UNBOUND_PER_S) // 500
        for _ in range(_LOOKED_AT + left):
            if not left or not self.waiting or not self._take_permit(waited_s=_CATCH_UP_S):
                break
            if self._pop().begin(True):
                left -= 1
            elif self.per_second is not None:
                self._next_s -= 1 / self.per_second
        self._arm()
