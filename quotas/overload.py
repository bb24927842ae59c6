"""Whether brokers are slow or short, and how much of a capacity they can take then. Pure.

`BrokerTimes` looks at Produce requests: how long brokers take, which part of their answers says that they can't store
what they get, and whether requests pile up. A client can make its own requests slow or fail: it does not read, it
breaks the in-sync replicas of its topic, it sends in drips. So each client counts once in a window, by its fastest
request, its part of failed answers, and the shortest queue that a request of it met. The lower median of all clients
is the signal: up to half of the clients may lie, and it is not above the worst of the others. Of two clients it is
the faster one. One alone is no signal: it could take from all others that only fetch. A request that does not come in
one piece is not measured. No other API is: brokers let a Fetch and members of groups wait, and answers to Metadata
and FindCoordinator cost them nearly nothing.

`Overload` makes a part of the capacity of it: multiplicative decrease below what was used when brokers became slow,
less where they are only a little worse than they should be (TIMELY: Mittal et al., *RTT-based Congestion Control for
the Datacenter*, SIGCOMM 2015: no further decrease while times fall), then half of the way back with each window, and
small steps beyond, and large ones far beyond (BIC: Xu, Harfoush and Rhee, *Binary Increase Congestion Control*,
INFOCOM 2004). While requests pile up the part does not grow. It does not shrink for that alone: clients that begin to
send more look the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from quotas.lent_rates import Lender

LEAST_CLIENTS: Final = 2
"""That a signal needs: of two, one may lie."""

LEAST_USABLE: Final = 0.05
"""Of a capacity: brokers that take nothing at all would never look fast again."""

LEAST_FOR_ERRORS: Final = 0.5
"""Of a capacity: replicas that are lost stay lost when clients send less, so errors alone take no more."""

_SAMPLES_PER_CLIENT: Final = 4
_MAX_CLIENTS: Final = 10_000
_DECREASE: Final = 0.5
"""Of what was used, where brokers are infinitely slow."""

_FALLING: Final = 0.98
"""Times that are below this part of the ones before are falling."""

_STALLED: Final = 0.5
"""Brokers that took less of what they might be sent stand still: what was used then says nothing of too much."""

_STEP: Final = 0.015
"""Of the usable part: how fast it grows near what was too much, and less the nearer the target is."""

_REFUTED: Final = 1.5
"""Brokers that are fast with so many times what made them slow can take more now, or something else had done it."""

_FAST: Final = 0.4
"""As `_STEP`, where nothing is known to be too much: a few percent grow to all of the capacity in ten windows."""

_RISES: Final = 0.1
"""Of the target: times that rise by more between two windows say that what is too much is near."""

_CAUTIOUS: Final = 0.5
"""Growth after a decrease for errors alone: they come all at once, where times rise before they are too long."""

_NEAR: Final = 0.1
"""Of the usable part: nearer to what was too much, it grows by steps."""


class Sample:
    """One request that is measured.

    Attributes:
        began_ms: when its broker could begin with it; None: that is not known.
        answered_ms: when its reply came; None: it has not.
        short: its reply says that brokers can't store what they get.
        dropped: there will be no reply.
    """

    __slots__ = ("_after", "_sent_ms", "answered_ms", "dropped", "short")

    def __init__(self, sent_ms: int | None, after: Sample | None) -> None:
        """Sent at a time, unless that is None, or at once behind another one on the same connection."""
        self._sent_ms = sent_ms
        self._after = after
        self.answered_ms: int | None = None
        self.short = False
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


class Health(NamedTuple):
    """What a window says of the brokers: lower medians of clients, as the module says. None: too few of them.

    Attributes:
        time_ms: that brokers took for a request they stored.
        clients: whose requests have a time.
        errors: part of the answers that say that brokers can't store what they get, 0 to 1.
        growing: requests met a longer queue than in the window before.
    """

    time_ms: float | None = None
    clients: int = 0
    errors: float | None = None
    growing: bool = False


class Connection(Protocol):
    """What carries requests to a broker."""

    @property
    def oldest(self) -> object | None:
        """Its oldest request without a reply; None: there is none, or it does not say how long brokers take."""


class _Client:
    """What one client sent in a window.

    Attributes:
        samples: its measured requests.
        ahead: the fewest requests without a reply that one of it found on its connection; None: it sent none.
        connection: one that it sends on; None: none is looked at.
        oldest: the oldest request on it when the window before ended.
        seen_ms: when that was seen first.
    """

    __slots__ = ("ahead", "connection", "oldest", "samples", "seen_ms")

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.ahead: int | None = None
        self.connection: Connection | None = None
        self.oldest: object | None = None
        self.seen_ms = 0

    def took_ms(self, *, now_ms: int) -> int | None:
        """How long brokers took for its requests, at the end of a window; None: not known."""
        answered = [each for each in self.samples if each.answered_ms is not None]
        stored = [each for each in answered if not each.short]
        # What has no reply counts only where nothing has: it may have been sent a moment ago. An error comes at
        # once, or when a time is over that the client has chosen.
        took = [each.took_ms(now_ms=now_ms) for each in stored or (() if answered else self.samples)]
        known = [each for each in took if each is not None]
        oldest = None if self.connection is None else self.connection.oldest
        if oldest is not self.oldest:
            self.oldest, self.seen_ms = oldest, now_ms
        elif oldest is not None and not answered:
            # A client that awaits replies may send nothing more. What it awaits is mostly not measured.
            known.append(now_ms - self.seen_ms)
        if not known:
            return None
        return min(known) if stored else max(known)

    def left(self) -> _Client | None:
        """It, for the next window: with what has no reply; None: everything has."""
        left = _Client()
        left.samples = [each for each in self.samples if each.answered_ms is None and not each.dropped]
        if self.oldest is not None:
            left.connection, left.oldest, left.seen_ms = self.connection, self.oldest, self.seen_ms
        return left if left.samples or left.connection is not None else None


class BrokerTimes:
    """The requests of one window after the other.

    Attributes:
        window: stands for the present one; another object for each.
    """

    def __init__(self) -> None:
        """Nothing has been sent."""
        self.window = object()
        self._clients: dict[Hashable, _Client] = {}
        self._ahead_before: dict[Hashable, int] = {}

    def send(
        self,
        client: Hashable,
        before: Sample | None,
        *,
        idle: bool,
        ahead: int = 0,
        now_ms: int,
    ) -> Sample | None:
        """A request is sent to its broker; None: its time is not measured, nor that of others in this window.

        Args:
            client: its user, or its address where there is none.
            before: of the request before it on its connection, if that one is measured and has no reply.
            idle: its connection awaits no reply.
            ahead: how many requests without a reply are before it on its connection.
            now_ms: the time.
        """
        found = self._clients.get(client)
        if found is None:
            if len(self._clients) >= _MAX_CLIENTS:
                return None
            found = self._clients[client] = _Client()
        if found.ahead is None or ahead < found.ahead:
            found.ahead = ahead
        if len(found.samples) >= _SAMPLES_PER_CLIENT:
            return None
        sample = Sample(now_ms if idle else None, None if idle else before)
        found.samples.append(sample)
        return sample

    def look_at(self, connection: Connection, client: Hashable) -> None:
        """Look at what is left on a connection when windows end; for each client it is one connection at a time.

        Args:
            connection: on which a measured request is sent.
            client: of that request.
        """
        found = self._clients[client]
        if found.connection is None:
            found.connection = connection

    def close(self, *, now_ms: int) -> Health:
        """End a window; requests without a reply are measured on."""
        fastest, failed, grew = [], [], []
        left, ahead = {}, {}
        for name, client in self._clients.items():
            answered = [each for each in client.samples if each.answered_ms is not None]
            if answered:
                failed.append(sum(each.short for each in answered) / len(answered))
            took_ms = client.took_ms(now_ms=now_ms)
            if took_ms is not None:
                fastest.append(took_ms)
            if client.ahead is not None:
                ahead[name] = client.ahead
                before = self._ahead_before.get(name)
                if before is not None:
                    grew.append(client.ahead > before)
            if (still := client.left()) is not None:
                left[name] = still
        self._clients, self._ahead_before = left, ahead
        self.window = object()
        return Health(_lower_median(fastest), len(fastest), _lower_median(failed), bool(_lower_median(grew)))


def _lower_median(values: Sequence[float]) -> float | None:
    """Of at least `LEAST_CLIENTS`."""
    if len(values) < LEAST_CLIENTS:
        return None
    return sorted(values)[(len(values) - 1) // 2]


class Overload:
    """The part of a capacity that brokers can take, window by window.

    Attributes:
        times: where requests are measured.
        target_ms: brokers that take longer are slow.
        target_errors: part of the answers; brokers that fail more often are short.
        enforce: clients lose what brokers can't take; otherwise it is only computed.
        health: of the last window.
        slow: whether brokers were slow or short in it.
        usable: the part, at most 1.
        since_ms: since when not all of it can be used; None: all of it can.
    """

    def __init__(self, target_ms: int, *, target_errors: float = 0.1, enforce: bool) -> None:
        """All of it can be used.

        Args:
            target_ms: see the class, > 0.
            target_errors: see the class, > 0.
            enforce: see the class.
        """
        self.times = BrokerTimes()
        self.target_ms = target_ms
        self.target_errors = target_errors
        self.enforce = enforce
        self.health = Health()
        self.slow = False
        self.usable = 1.0
        self.since_ms: int | None = None
        self._pressure: float | None = None
        self._too_much: float | None = None
        self._slow_with = 0.0  # of what was used when they were slow last; 0: use did not make them slow
        self._errors_first = False
        self._used = 0.0  # in the last window

    def close(self, lenders: Iterable[Lender | None], *, now_ms: int) -> None:
        """End a window, and have what can be used divided from now on.

        Args:
            lenders: of all capacities.
            now_ms: the time.
        """
        divided = [lender for lender in lenders if lender is not None]
        health = self.times.close(now_ms=now_ms)
        self.follow(health, max((lender.used_part for lender in divided), default=0.0))
        if self.usable >= 1:
            self.since_ms = None
        elif self.since_ms is None:
            self.since_ms = now_ms
        for lender in divided:
            lender.usable_part = self.usable
            lender.sheds = self.enforce
            lender.slow_since_ms = self.since_ms

    def step(self, time_ms: float | None, used: float) -> None:
        """As `follow`, where the time is all that is known."""
        self.follow(Health(time_ms), used)

    def follow(self, health: Health, used: float) -> None:
        """Follow the signals of one window: the worst one counts.

        Args:
            health: without any signal the brokers count as fast.
            used: the part of the capacity that was used in it, of the one that was used most.
        """
        self.health = health
        of_time = 0.0 if health.time_ms is None else health.time_ms / self.target_ms
        pressure = max(of_time, self._of_errors(health.errors))
        before, self._pressure = self._pressure, pressure
        used_before, self._used = self._used, used
        was_slow, self.slow = self.slow, pressure > 1
        if not self.slow:
            if not health.growing:
                rises = before is not None and pressure - before > _RISES
                # Of what is not used nothing is known.
                slowly = rises or used < _STALLED * self.usable
                self._grow((1 - pressure) * (_CAUTIOUS if self._errors_first else 1), slowly=slowly)
        elif before is None or health.growing or pressure >= _FALLING * before:
            least = LEAST_USABLE if of_time > 1 else min(self.usable, LEAST_FOR_ERRORS)
            left = 1 - _DECREASE * (1 - 1 / pressure)
            at_least = self.usable <= LEAST_USABLE
            # Brokers that stall take nothing for the rest of their first window.
            self._slow_with = used if was_slow else max(used, used_before)
            self._errors_first = of_time <= 1
            if was_slow and used < _STALLED * self.usable:
                self.usable *= left
            else:
                self._too_much = min(1.0, self._slow_with)
                self.usable = self._too_much * left
            self.usable = max(least, self.usable)
            if self._slow_with <= LEAST_USABLE or (at_least and was_slow):
                # They are slow with the least that is left, so use does not make them slow.
                self._slow_with = 0.0

    def _of_errors(self, part: float | None) -> float:
        """As the time is in units of its target; beyond it less steep, as a client has few answers in a window."""
        if part is None or part <= self.target_errors:
            return 0.0 if part is None else part / self.target_errors
        return 1 + part - self.target_errors

    def _grow(self, headroom: float, *, slowly: bool) -> None:
        known = self._too_much
        if known is not None and known - self.usable > _NEAR * self.usable:
            self.usable += headroom * (known - self.usable) / 2
            return
        self._too_much = None
        step = _STEP if slowly or self.usable < _REFUTED * self._slow_with else _FAST
        self.usable = min(1.0, self.usable * (1 + step * headroom))
