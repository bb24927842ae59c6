"""Whether brokers are slow or short, and how much of a capacity they can take then. Pure.

`BrokerTimes` measures Produce requests: how long brokers take, which part of the responses reports that brokers can't
store the records, and whether requests pile up.

A client can make its own requests slow or make them fail. For example it does not read, it breaks the in-sync
replicas of its topic, or it sends a few bytes at a time. So each client counts once in a window: with its fastest
request, its part of failed responses, and the shortest queue in front of one of its requests. The signal is the lower
median of all clients. Even if half of the clients lie, it is not above the worst of the others. Of two clients it is
the faster one. One client alone is no signal: it could take capacity from clients that only fetch.

A request that does not arrive in one piece is not measured. Other APIs are not measured either: brokers delay
responses to Fetch and to members of groups on purpose, and Metadata and FindCoordinator cost them nearly nothing.

`Overload` computes the usable part of the capacity from the signal:

* When brokers are slow, the part falls by a factor below the use at which they became slow. The factor is closer to 1
  if the signal is only a little above its target. While times fall there is no further decrease (TIMELY: Mittal et
  al., *RTT-based Congestion Control for the Datacenter*, SIGCOMM 2015).
* Then each window takes half of the way back. Beyond that use the part grows by small steps, and far beyond it by
  large ones (BIC: Xu, Harfoush and Rhee, *Binary Increase Congestion Control*, INFOCOM 2004).
* While requests pile up, the part does not grow. It does not shrink for that reason alone, because clients that begin
  to send more look the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from quotas.lent_rates import Lender

LEAST_CLIENTS: Final = 2
"""The clients that a signal needs. Of two, one may lie."""

LEAST_USABLE: Final = 0.05
"""The least usable part of a capacity. Brokers that get no requests at all would never be measured as fast again."""

LEAST_FOR_ERRORS: Final = 0.5
"""The least part that errors alone leave. Lost replicas do not come back when clients send less."""

_SAMPLES_PER_CLIENT: Final = 4
_MAX_CLIENTS: Final = 10_000
_DECREASE: Final = 0.5
"""The part of the use that is taken away when brokers are infinitely slow."""

_FALLING: Final = 0.98
"""Times below this part of those in the window before are falling."""

_STALLED: Final = 0.5
"""If brokers take less than this part of the usable capacity, they stall. The use then does not show what is too
much."""

_STEP: Final = 0.015
"""How fast the usable part grows near the use that was too much, per window. It grows less near the target."""

_REFUTED: Final = 1.5
"""If brokers are fast with this many times the use that made them slow, they can take more now, or another cause had
made them slow."""

_FAST: Final = 0.4
"""As `_STEP`, if no use is known to be too much. A few percent grow to the whole capacity in ten windows."""

_RISES: Final = 0.1
"""In units of the target. If times rise by more than this between two windows, the use is nearly too much."""

_CAUTIOUS: Final = 0.5
"""Factor of the growth after a decrease for errors alone. Errors start all at once, while times rise gradually."""

_NEAR: Final = 0.1
"""If the use that was too much is nearer than this part of the usable part, the part grows by steps."""


class Sample:
    """One request that is measured.

    Attributes:
        began_ms: when its broker could begin with it; None: not known.
        answered_ms: when its response arrived; None: not yet.
        short: its response reports that brokers can't store the records.
        dropped: there will be no response.
    """

    __slots__ = ("_after", "_sent_ms", "answered_ms", "dropped", "short")

    def __init__(self, sent_ms: int | None, after: Sample | None) -> None:
        """Args: sent_ms: when it was sent; None if it waits. after: the request before it on its connection."""
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
        """Records that the response has arrived."""
        self.answered_ms = now_ms
        # Otherwise a connection that is never idle would keep references to all its earlier requests.
        self._sent_ms, self._after = self.began_ms, None

    def took_ms(self, *, now_ms: int) -> int | None:
        """How long its broker took, or has taken until now; None: not known."""
        began_ms = self.began_ms
        if self.dropped or began_ms is None:
            return None
        return max(0, (now_ms if self.answered_ms is None else self.answered_ms) - began_ms)


class Health(NamedTuple):
    """The signals of a window: lower medians of clients, see the module. None: too few clients.

    Attributes:
        time_ms: the time that brokers took for a request they stored.
        clients: the number of clients whose requests have a time.
        errors: the part of responses that report that brokers can't store the records, 0 to 1.
        growing: requests were behind a longer queue than in the window before.
    """

    time_ms: float | None = None
    clients: int = 0
    errors: float | None = None
    growing: bool = False


class Connection(Protocol):
    """A connection that carries requests to a broker."""

    @property
    def oldest(self) -> object | None:
        """Its oldest request without a response; None: there is none, or it does not show how long brokers take."""


class _Client:
    """The requests of one client in a window.

    Attributes:
        samples: its measured requests.
        ahead: the fewest unanswered requests in front of one of its requests; None: it sent none.
        connection: one of its connections; None: no connection is observed.
        oldest: the oldest request on that connection when the window before ended.
        seen_ms: when that request was first observed.
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
        # Requests without a response count only if none has one, because they may have been sent a moment ago.
        # Errors do not count: they arrive at once, or after a timeout that the client has chosen.
        took = [each.took_ms(now_ms=now_ms) for each in stored or (() if answered else self.samples)]
        known = [each for each in took if each is not None]
        oldest = None if self.connection is None else self.connection.oldest
        if oldest is not self.oldest:
            self.oldest, self.seen_ms = oldest, now_ms
        elif oldest is not None and not answered:
            # A client that waits for responses may send nothing more. Most of its requests are not measured.
            known.append(now_ms - self.seen_ms)
        if not known:
            return None
        return min(known) if stored else max(known)

    def left(self) -> _Client | None:
        """The client with its unanswered requests, for the next window; None: all are answered."""
        left = _Client()
        left.samples = [each for each in self.samples if each.answered_ms is None and not each.dropped]
        if self.oldest is not None:
            left.connection, left.oldest, left.seen_ms = self.connection, self.oldest, self.seen_ms
        return left if left.samples or left.connection is not None else None


class BrokerTimes:
    """Measures requests, window by window.

    Attributes:
        window: identifies the current window; each window has another object.
    """

    def __init__(self) -> None:
        """Starts without requests."""
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
        """Records that a request is sent to its broker.

        Args:
            client: its user, or its address without a user.
            before: the sample of the request before it on its connection, if that is measured and unanswered.
            idle: its connection has no unanswered request.
            ahead: the number of unanswered requests before it on its connection.
            now_ms: the time.

        Returns:
            The sample to report the response to. None: neither this request nor further ones of this client are
            measured in this window.
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
        """Observe the unanswered requests of a connection at the ends of windows, one connection per client.

        Args:
            connection: the connection on which a measured request is sent.
            client: the client of that request.
        """
        found = self._clients[client]
        if found.connection is None:
            found.connection = connection

    def close(self, *, now_ms: int) -> Health:
        """End a window; unanswered requests are still measured."""
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
    """The lower median; None for fewer than `LEAST_CLIENTS` values."""
    if len(values) < LEAST_CLIENTS:
        return None
    return sorted(values)[(len(values) - 1) // 2]


class Overload:
    """The part of a capacity that brokers can take, window by window.

    Attributes:
        times: measures the requests.
        target_ms: brokers that take longer are slow.
        target_errors: part of the responses; brokers that fail more often are short.
        enforce: clients lose the part that brokers can't take; otherwise it is only computed.
        health: the signals of the last window.
        slow: whether brokers were slow or short in the last window.
        usable: the usable part of the capacity, at most 1.
        since_ms: the time from which the usable part is below 1; None: it is 1.
    """

    def __init__(self, target_ms: int, *, target_errors: float = 0.1, enforce: bool) -> None:
        """Starts with the whole capacity usable.

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
        self._slow_with = 0.0  # the use when brokers were slow last; 0: use did not make them slow
        self._errors_first = False
        self._used = 0.0  # the use in the last window

    def close(self, lenders: Iterable[Lender | None], *, now_ms: int) -> None:
        """End a window, and give the new usable part to the lenders.

        Args:
            lenders: the lenders of all capacities.
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
        """As `follow`, if only the time is known."""
        self.follow(Health(time_ms), used)

    def follow(self, health: Health, used: float) -> None:
        """Adapt the usable part to the signals of one window. The worst signal counts.

        Args:
            health: the signals; without any signal the brokers count as fast.
            used: the used part of the capacity in the window; with several capacities, the largest part.
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
                # A part of the capacity that is not used shows nothing about the brokers.
                slowly = rises or used < _STALLED * self.usable
                self._grow((1 - pressure) * (_CAUTIOUS if self._errors_first else 1), slowly=slowly)
        elif before is None or health.growing or pressure >= _FALLING * before:
            least = LEAST_USABLE if of_time > 1 else min(self.usable, LEAST_FOR_ERRORS)
            left = 1 - _DECREASE * (1 - 1 / pressure)
            at_least = self.usable <= LEAST_USABLE
            # Brokers that stall take nothing in the rest of that window, so the use of the window before counts too.
            self._slow_with = used if was_slow else max(used, used_before)
            self._errors_first = of_time <= 1
            if was_slow and used < _STALLED * self.usable:
                self.usable *= left
            else:
                self._too_much = min(1.0, self._slow_with)
                self.usable = self._too_much * left
            self.usable = max(least, self.usable)
            if self._slow_with <= LEAST_USABLE or (at_least and was_slow):
                # Brokers are slow even with the least use, so use does not make them slow.
                self._slow_with = 0.0

    def _of_errors(self, part: float | None) -> float:
        """The errors in units of their target; flatter beyond it, because a client has few responses in a window."""
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
