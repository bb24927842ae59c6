"""Whether brokers are slow, and how much of a capacity they can take then. Pure.

`BrokerTimes` measures how long brokers take to answer a Produce request. A client can make its own requests slow: it
does not read, it breaks the in-sync replicas of its topic, it sends in drips. So each client counts once, with its
fastest request of a window, and the lower median of all clients is the signal: up to half of the clients may lie, and
it is not above the slowest of the others. Below three clients there is no signal. A request that does not come in one
piece is not measured. A Fetch is not either: brokers let it wait.

`Overload` makes a part of the capacity of it: multiplicative decrease below what was used when brokers became slow,
less where they are only a little slower than they should be (TIMELY: Mittal et al., *RTT-based Congestion Control for
the Datacenter*, SIGCOMM 2015: no further decrease while times fall), then half of the way back with each window, and
small steps beyond (BIC: Xu, Harfoush and Rhee, *Binary Increase Congestion Control*, INFOCOM 2004).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from quotas.lent_rates import Lender

LEAST_CLIENTS: Final = 3
"""That a signal needs."""

LEAST_USABLE: Final = 0.05
"""Of a capacity: brokers that take nothing at all would never look fast again."""

_SAMPLES_PER_CLIENT: Final = 4
_MAX_CLIENTS: Final = 10_000
_DECREASE: Final = 0.5
"""Of what was used, where brokers are infinitely slow."""

_FALLING: Final = 0.98
"""Times that are below this part of the ones before are falling."""

_STEP: Final = 0.015
"""Of the usable part: how fast it grows where no bound is known, and less the nearer the target is."""

_NEAR: Final = 0.1
"""Of the usable part: nearer to what was too much, it grows by steps."""


class Sample:
    """One request that is measured.

    Attributes:
        began_ms: when its broker could begin with it; None: that is not known.
        answered_ms: when its reply came; None: it has not.
        dropped: there will be no reply.
    """

    __slots__ = ("_after", "_sent_ms", "answered_ms", "dropped")

    def __init__(self, sent_ms: int | None, after: Sample | None) -> None:
        """Sent at a time, unless that is None, or at once behind another one on the same connection."""
        self._sent_ms = sent_ms
        self._after = after
        self.answered_ms: int | None = None
        self.dropped = False

    @property
    def began_ms(self) -> int | None:
        """See the class: brokers answer the requests of a connection one after the other."""
        return self._sent_ms if self._after is None else self._after.answered_ms

    def answer(self, *, now_ms: int) -> None:
        """Its reply is here."""
        self.answered_ms = now_ms
        # Else a connection that always has requests would keep all that it ever sent.
        self._sent_ms, self._after = self.began_ms, None

    def took_ms(self, *, now_ms: int) -> int | None:
        """How long its broker took, or has taken until now; None: not known."""
        began_ms = self.began_ms
        if self.dropped or began_ms is None:
            return None
        return max(0, (now_ms if self.answered_ms is None else self.answered_ms) - began_ms)


class BrokerTimes:
    """The times of one window after the other."""

    def __init__(self) -> None:
        """Nothing has been sent."""
        self._samples: dict[Hashable, list[Sample]] = {}

    def send(self, client: Hashable, before: Sample | None, *, idle: bool, now_ms: int) -> Sample | None:
        """A request is sent to its broker; None: it is not measured.

        Args:
            client: its user, or its address where there is none.
            before: of the request before it on its connection, if that one is measured and has no reply.
            idle: its connection awaits no reply.
            now_ms: the time.
        """
        samples = self._samples.get(client)
        if samples is None:
            if len(self._samples) >= _MAX_CLIENTS:
                return None
            samples = self._samples[client] = []
        if len(samples) >= _SAMPLES_PER_CLIENT:
            return None
        sample = Sample(now_ms if idle else None, None if idle else before)
        samples.append(sample)
        return sample

    def close(self, *, now_ms: int) -> tuple[float | None, int]:
        """End a window; requests without a reply are measured on.

        Returns:
            The median in milliseconds, None below `LEAST_CLIENTS`; and how many clients were measured.
        """
        fastest = []
        left = {}
        for client, samples in self._samples.items():
            answered = [each for each in samples if each.answered_ms is not None]
            # What has no reply counts only where nothing has: it may have been sent a moment ago.
            took = [each.took_ms(now_ms=now_ms) for each in answered or samples]
            known = [each for each in took if each is not None]
            if known:
                fastest.append(min(known) if answered else max(known))
            open_ones = [each for each in samples if each.answered_ms is None and not each.dropped]
            if open_ones:
                left[client] = open_ones
        self._samples = left
        if len(fastest) < LEAST_CLIENTS:
            return None, len(fastest)
        return sorted(fastest)[(len(fastest) - 1) // 2], len(fastest)


class Overload:
    """The part of a capacity that brokers can take, window by window.

    Attributes:
        times: where requests are measured.
        target_ms: brokers that take longer are slow.
        enforce: clients lose what brokers can't take; otherwise it is only computed.
        broker_time_ms: of the last window; None: there was no signal.
        clients: that were measured in it.
        slow: whether brokers were slow in it.
        usable: the part, at most 1.
    """

    def __init__(self, target_ms: int, *, enforce: bool) -> None:
        """All of it can be used.

        Args:
            target_ms: see the class, > 0.
            enforce: see the class.
        """
        self.times = BrokerTimes()
        self.target_ms = target_ms
        self.enforce = enforce
        self.broker_time_ms: float | None = None
        self.clients = 0
        self.slow = False
        self.usable = 1.0
        self._too_much: float | None = None

    def close(self, lenders: Iterable[Lender | None], *, now_ms: int) -> None:
        """End a window, and have what can be used divided from now on.

        Args:
            lenders: of all capacities.
            now_ms: the time.
        """
        divided = [lender for lender in lenders if lender is not None]
        time_ms, self.clients = self.times.close(now_ms=now_ms)
        self.step(time_ms, max((lender.used_part for lender in divided), default=0.0))
        for lender in divided:
            lender.usable_part = self.usable
            lender.sheds = self.enforce

    def step(self, time_ms: float | None, used: float) -> None:
        """Follow the signal of one window.

        Args:
            time_ms: of brokers; None: there is no signal, and they count as fast.
            used: the part of the capacity that was used in it, of the one that was used most.
        """
        before_ms, self.broker_time_ms = self.broker_time_ms, time_ms
        self.slow = time_ms is not None and time_ms > self.target_ms
        if time_ms is None or not self.slow:
            self._grow(1.0 if time_ms is None else 1 - time_ms / self.target_ms)
        elif before_ms is None or time_ms >= _FALLING * before_ms:
            too_slow = 1 - self.target_ms / time_ms
            self._too_much = min(1.0, used)
            self.usable = max(LEAST_USABLE, self._too_much * (1 - _DECREASE * too_slow))

    def _grow(self, headroom: float) -> None:
        if self._too_much is not None and self._too_much - self.usable > _NEAR * self.usable:
            self.usable += headroom * (self._too_much - self.usable) / 2
            return
        self._too_much = None
        self.usable = min(1.0, self.usable * (1 + _STEP * headroom))
