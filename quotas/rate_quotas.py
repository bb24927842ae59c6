"""The quotas counted by a sampled Rate: byte rates (KIP-13) and request time (KIP-124).

This is the gateway's hot path: every Produce request, every Fetch response and the time of every request is recorded
here. While the limits stay the same, looking up a counter is one dictionary access. While a client stays within its
limit, recording is a few additions. ``benchmarks/accounting.py`` measures both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, ItemsView, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import getsizeof
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from quotas.bound_queue import BoundQueue
from quotas.entities import QuotaKey
from quotas.lending import TIERS
from quotas.lent_rates import Lender
from quotas.limits import Limits
from quotas.rate import MAX_THROTTLE_MS, SampledRate, clamp_throttle_ms
from quotas.resolution import Match, Rule, TrackerKey, match_of_tracker, resolve
from quotas.set_aside import SetAside, bind_alike
from quotas.throttle_stats import ThrottleStats, average_throttle_ms
from quotas.trackers import UNLIMITED, Kind, SharedBy, TrackerTable

Scope: TypeAlias = int | None

AnyKey = TypeVar("AnyKey")

# After this time a client that shares a counter is looked up again: it may get a counter of its own.
_SHARED_RECHECK_MS: Final = 1_000

PERCENT_SECONDS_PER_NS: Final = 100 / 1e9

ANY_SHARE: Final = 2**60
"""Stands for an unbounded share. It is not None, because an optional number is an object in compiled code."""

_DIVISION_MS: Final = 1_000
"""The interval between two divisions of a capacity."""

_BOUND_WINDOWS: Final = 2
_URGENT_PART: Final = 64
"""Use above this part (1/64) of what may pass at once is sent to the fleet at once. A client within its limit uses
less in an interval."""
_MOST_MS_PER_UNIT: Final = 1e12  # for a limit near 0, so that no product is infinite


class ScopedKey(NamedTuple):
    """A tracker key within a scope: None counts for the whole gateway, a broker id for that broker alone."""

    scope: Scope
    tracker_key: TrackerKey


@dataclass(frozen=True, slots=True)
class RateSettings:
    """How a Rate quota is measured."""

    window_num: int = 11  # quota.window.num
    window_ms: int = 1_000  # quota.window.size.seconds
    max_trackers: int = 20_000
    idle_expiry_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class RateSnapshot:
    """One counter, for metrics. Rates are in the key's unit per second."""

    scope: Scope
    user: str
    client_id: str
    rule: Rule
    limit: float | None
    tokens: float | None  # left in the bucket, below 0 a debt; None without a bucket
    rate: float
    utilisation: float | None  # rate over limit, None when unlimited
    throttle_time_ms: float | None  # average over Kafka's metric windows, None when nothing was throttled
    throttled_total: int
    throttled_ms_total: int
    would_throttle_total: int  # requests that observe mode did not throttle
    other: bool  # the row of all clients without a counter of their own; with it totals add up


class CounterState(NamedTuple):
    """The state of a counter, for the new process in an upgrade; times are of the machine's monotonic clock.

    Attributes:
        samples: see `SampledRate.samples`; empty for a mutation counter.
        fill: the use in the bucket, in units of the quota.
        owed_until_ms, left_until_ms, last_value: see `RateTracker`.
        bound_ms: the bucket's size, as time at the limit; 0: the old process's version does not report it.
        debt: the part of `fill` above that size.
    """

    samples: Sequence[tuple[int, int, float]] = ()
    fill: float = 0.0
    owed_until_ms: int = 0
    left_until_ms: int = 0
    last_value: float = 0.0
    bound_ms: float = 0.0
    debt: float = 0.0


class Urgent:
    """Counters whose use since the last message is so high that the next message should not wait for the interval.

    Attributes:
        found: these counters with their keys, each once per message; the message's sender clears the list.
        wake: called when a counter is added.
        members: the members of the fleet. From 2 on, a counter delays requests while too much of its use is unknown
            to the other members.
        exchange_ms: the time from one message about a counter to the next, plus its delivery.
        again_ms: a request that waits for the other members is tried again after this time.
        beside: returns the shared counters that also count a counter's use now; see `RateQuotas.shared_by_new`.
    """

    __slots__ = ("again_ms", "beside", "exchange_ms", "found", "members", "wake")

    def __init__(self) -> None:
        self.found: list[tuple[Any, RateTracker]] = []
        self.wake: Callable[[], None] = _nobody
        self.members = 1
        self.exchange_ms = 0
        self.again_ms = 0
        self.beside: Callable[[RateTracker, int], tuple[RateTracker, ...]] = _nothing

    def add(self, key: Any, tracker: RateTracker) -> None:
        """Add a counter, and wake the sender."""
        self.found.append((key, tracker))
        self.wake()


def _nobody() -> None:
    """Do nothing: there is no fleet."""


def _nothing(_tracker: RateTracker, _now_ms: int) -> tuple[RateTracker, ...]:
    """No shared counter: no capacity is divided."""
    return ()


class RateTracker:
    """One counter. Get it from `RateQuotas.tracker` for every event: limits may have changed, and the call is cheap.

    Kafka's Rate decides how long a connection is muted. It forgets a record after one window of S samples. It does
    not bound the sum over many connections, because each of them passes one more request. So the counter has a second
    measure, a leaky bucket. Every unit fills the bucket by the unit's time at the limit, and the bucket empties with
    time. While it contains more than two windows (2 x S samples), nothing passes. In any span of time the counter
    thus passes at most limit x (time + 2 windows), plus the one request that exceeded it (hazards K03, K04).

    If the quota has a burst (`Match.burst_s`), the bucket alone decides, and its size is the burst in seconds. The
    counter then passes at most limit x (time + burst) plus one request. A silent client collects no more than the
    burst. If the quota is only observed, an excess is counted and forgotten, because no client has waited for it.

    In a fleet (`Urgent.members`) the other members learn late what passes here. So a counter passes at most an equal
    part of the rest. Then it waits until its messages are delivered (`most_alone`).

    Attributes:
        key: the key of its clients; None: the counter is shared.
        blocked_until_ms: no request of this counter passes before this time.
        queue: the connections that wait at the bound; None: no connection waits.
        owed_until_ms: the end of the longest wait that the Rate has computed.
        left_until_ms: the latest end of a mute whose connection has closed; see `ThrottleState`.
        fetches: Fetch requests in flight, whose responses will be recorded.
        parts: requests of which a part was recorded, and the rest will be.
        asked: the most bytes that these responses may have together.
        last_value: the last recorded Fetch response or request time, as an estimate of the next.
        window_ms: how long a record is remembered: S samples.
    """

    __slots__ = (
        "_allowance",
        "_allowance_s",
        "_aside",
        "_bound_ms",
        "_cap_ms",
        "_forgotten",
        "_holds",
        "_is_urgent",
        "_limit",
        "_meter",
        "_most_alone",
        "_most_at_once",
        "_ms_per_unit",
        "_observe",
        "_on_way",
        "_others",
        "_quiet",
        "_settled",
        "_urgent",
        "_urgent_from",
        "asked",
        "blocked_until_ms",
        "fetches",
        "good_until_ms",
        "key",
        "kind",
        "last_value",
        "left_until_ms",
        "match",
        "owed_until_ms",
        "parts",
        "queue",
        "shared",
        "throttles",
        "version",
        "window_ms",
    )

    def __init__(
        self,
        settings: RateSettings,
        cap_ms: int,
        forgotten: ThrottleStats,
        urgent: Urgent,
        *,
        key: object | None,
        now_ms: int,
    ) -> None:
        # The attributes that every record uses come first: see `SampledRate`.
        self.good_until_ms: float = math.inf  # until then the result of a look-up is valid
        self._meter = SampledRate(settings.window_num, settings.window_ms, now_ms=now_ms)
        self._limit = UNLIMITED
        self._allowance = UNLIMITED
        self._settled = 0.0  # the part of all records that other members have made, or know
        self._urgent_from = math.inf  # unsent use from which other members soon need a message
        self.window_ms = settings.window_num * settings.window_ms
        self._bound_ms = float(_BOUND_WINDOWS * self.window_ms)
        self.blocked_until_ms = now_ms - self._bound_ms  # the value of an empty bucket
        self._ms_per_unit = 0.0  # 0: not bounded
        self.key = key
        self._allowance_s = (settings.window_num - 1) * settings.window_ms / 1000
        self._most_at_once = UNLIMITED  # after a silence; below it no average exceeds the limit
        self._others = 0.0  # the part of all records that clients of this process did not cause
        self._quiet = 0.0  # below this total the use that other members do not know cannot matter
        self._urgent = urgent
        self._is_urgent = False  # added to `urgent`, and not examined since
        self._on_way = 0.0  # sent, but perhaps not delivered yet
        self._most_alone = math.inf  # result of the last call of `most_alone`
        self._holds = False  # requests wait until messages are delivered
        self._aside: SetAside | None = None  # while only a part of the limit is in force
        self.queue: BoundQueue | None = None
        self.owed_until_ms = 0
        self.left_until_ms = 0
        self.fetches = 0
        self.parts = 0
        self.asked = 0
        self.last_value = 0.0
        self._cap_ms = cap_ms
        self._forgotten = forgotten
        self.throttles = ThrottleStats()
        self.shared = key is None
        self.kind: Kind = ""
        self.match = Match(None, Rule.NONE, TrackerKey("", ""))
        self.bind(self.match, 0, now_ms=now_ms)

    @property
    def last_ms(self) -> int:
        """The time of the last record."""
        return self._meter.last_ms

    @property
    def recorded(self) -> float:
        """The sum of all records so far, by this member and others."""
        return self._meter.recorded

    @property
    def limit_per_s(self) -> SharedBy:
        """See `Tracked`."""
        return self.match.shared_by

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        """Puts a limit in force, also for earlier records."""
        old = self.match
        self.match = match
        self.version = version
        self._limit = UNLIMITED if match.limit is None else match.limit
        self._observe = match.observe
        burst_s = match.burst_s
        self._most_at_once = _allowance(self._limit, self._allowance_s if burst_s is None else burst_s)
        self._allowance = self._most_at_once if burst_s is None else math.inf
        self._quiet = 0.0
        self._holds = False
        self._urgent_from = self._most_alone = math.inf
        if self._urgent.members > 1:
            self._urgent_from = self._most_at_once / _URGENT_PART
            self._most_alone = self._most_at_once / self._urgent.members
        unbounded = match.limit is None or (match.observe and burst_s is None)
        ms_per_unit = 0.0 if unbounded else min(1000 / self._limit, _MOST_MS_PER_UNIT)
        alike = match.share == old.share and burst_s == old.burst_s and match.observe == old.observe
        if ms_per_unit == self._ms_per_unit and alike:
            return
        if self.queue is not None:  # its costs were computed with the old limit
            self.blocked_until_ms -= self.queue.promised_ms
            self.queue = None
        fill = self._fill(self.blocked_until_ms, now_ms)
        if burst_s != old.burst_s:
            fill = self._resize(fill, now_ms)
        elif match.lent is not None and match.limit is not None and old.limit is not None:
            # When the limit shrinks because the lender uses its guarantee again, the bucket stays full to the same
            # part: the use was within the limit when it was recorded. A debt keeps its amount and is paid at the new
            # limit. Otherwise each swing of the limit would forgive a part of it.
            debt = max(0.0, fill - old.limit * self._bound_ms / 1000)
            fill = (fill - debt) * match.limit / old.limit + debt
        if self._ms_per_unit and not _same(match.whole_limit, old.whole_limit):
            self.left_until_ms = self.owed_until_ms = 0
        if match.share != old.share and match.limit is not None and old.limit is not None:
            fill = self._divide(fill, old.share, match.share, now_ms)
        self.blocked_until_ms = now_ms - self._bound_ms + fill * ms_per_unit
        self._ms_per_unit = ms_per_unit
        if match.share == 1.0 or match.limit is None:
            self._aside = None
        else:
            self._put_aside(now_ms).change(self._rest_of_limit(), 0.0, now_ms=now_ms)

    def _resize(self, fill: float, now_ms: int) -> float:
        """The fill in the bucket's new size: the part that fits, plus the debt, which is all above the old size."""
        burst_s = self.match.burst_s
        debt = min(fill, max(0.0, self.blocked_until_ms - now_ms) / self._ms_per_unit) if fill else 0.0
        self._bound_ms = _BOUND_WINDOWS * self.window_ms if burst_s is None else burst_s * 1000
        self.blocked_until_ms = now_ms - self._bound_ms  # empty
        if burst_s is None or self.match.limit is None:
            return fill
        return min(fill - debt, self._limit * burst_s) + debt

    def _put_aside(self, now_ms: int) -> SetAside:
        aside = self._aside
        if aside is None:
            windows = self._meter.windows
            aside = self._aside = SetAside(0.0, SampledRate(*windows, now_ms=now_ms), now_ms=now_ms)
        return aside

    def _rest_of_limit(self) -> float:
        return self._limit / self.match.share - self._limit

    def _divide(self, fill: float, old: float, new: float, now_ms: int) -> float:
        """The bucket's part of a fill when another share of the limit comes into force; see `SetAside`."""
        aside = self._put_aside(now_ms)
        back = max(0.0, new - old) / (1 - old) if old < 1 else 0.0
        filled = aside.change(self._rest_of_limit(), back, now_ms=now_ms)
        if new < old:
            part = new / old
            self._meter.keep(part, now_ms=now_ms)
            aside.add(fill * (1 - part), 0.0, now_ms=now_ms)
            return fill * part
        told = _times(aside.told.samples(now_ms=now_ms), back)
        aside.told.keep(1 - back, now_ms=now_ms)
        self._count_others(math.fsum(value for _, _, value in told))
        self._meter.join(told, now_ms=now_ms)
        return fill + filled

    def _count_others(self, value: float) -> None:
        self._settled += value
        self._others += value

    def record(self, value: float, waiter: object = None, *, now_ms: int) -> int:
        """Counts a value, and returns how long the client has to wait for it.

        Args:
            value: bytes, or the unit that the key counts.
            waiter: the connection, which gets a place in the queue at the bound; None: it needs no place.
            now_ms: the present.

        Returns:
            throttle_time_ms: until the average is within the limit and the next request may pass. A key with a cap
            waits for the average alone, at most until the cap. With a burst, it is the excess over the bucket's size
            divided by the limit. Observe mode only counts and returns 0.
        """
        meter = self._meter
        throttle_time_ms = meter.record_and_check(value, self._limit, self._allowance, now_ms=now_ms)
        if meter._total + meter._gone - self._settled >= self._urgent_from:
            self._be_urgent(now_ms)
        blocked_ms = self.blocked_until_ms
        empty_ms = now_ms - self._bound_ms
        if blocked_ms < empty_ms:
            blocked_ms = empty_ms
        blocked_ms += value * self._ms_per_unit
        self.blocked_until_ms = blocked_ms
        if blocked_ms > now_ms and (self._cap_ms == MAX_THROTTLE_MS or self._observe):
            if self._observe:
                self.blocked_until_ms = float(now_ms)
                self.throttles.would_throttle_total += 1
                return 0
            self.owed_until_ms = max(self.owed_until_ms, now_ms + throttle_time_ms)
            return max(throttle_time_ms, self._tell(value, waiter, now_ms=now_ms))
        if not throttle_time_ms:
            return 0
        self.owed_until_ms = max(self.owed_until_ms, now_ms + throttle_time_ms)
        if self._observe:
            self.throttles.would_throttle_total += 1
            return 0
        return min(throttle_time_ms, self._cap_ms)

    def wait_ms(
        self, waiter: object, value: float | None = None, *, most_held_ms: float | None = None, now_ms: int
    ) -> int:
        """How long a request has to wait before it may pass; 0: it passes now. See `BoundQueue`.

        Args:
            waiter: its connection.
            value: the value that will be recorded for it; None: about as much as the last one.
            most_held_ms: the gateway sends a longer wait to the client instead of delaying the request; None: it
                delays every request itself.
            now_ms: the present.
        """
        queue = self.queue
        if queue is None:
            if now_ms >= self.blocked_until_ms or self._observe:
                return 0
            queue = self.queue = BoundQueue()
        elif self._holds and (hold_ms := self.hold_ms(now_ms=now_ms)):
            return hold_ms
        self.blocked_until_ms -= queue.settle(None, now_ms=now_ms)
        cost_ms = self._next_cost_ms(self.last_value) if value is None else value * self._ms_per_unit
        promised_ms = queue.promised_ms
        wait_ms = queue.wait_ms(
            waiter,
            cost_ms,
            self.blocked_until_ms,
            most_held_ms=math.inf if most_held_ms is None else most_held_ms,
            now_ms=now_ms,
        )
        self.blocked_until_ms += queue.promised_ms - promised_ms
        if not queue:
            self.queue = None
        return clamp_throttle_ms(wait_ms)

    def empties(self, waiter: object, *, now_ms: int) -> int:
        """Whether a response must be emptied, because other connections have used up the bound meanwhile.

        Returns:
            0 if the response may pass. Otherwise the milliseconds after which the client should try again; it is then
            the first in the queue.
        """
        queue = self.queue
        if queue is not None:
            self.blocked_until_ms -= queue.settle(waiter, now_ms=now_ms)
        if now_ms >= self.blocked_until_ms or self._observe:
            return 0
        if queue is None:
            queue = self.queue = BoundQueue()
        cost_ms = self._next_cost_ms(self.last_value)
        wait_ms = queue.tell(waiter, cost_ms, self.blocked_until_ms, emptied=True, now_ms=now_ms)
        return clamp_throttle_ms(wait_ms)

    def owe_at_most(self, most_ms: int, *, now_ms: int) -> None:
        """Forgets the part of a debt that takes longer than this to pay."""
        self.blocked_until_ms = min(self.blocked_until_ms, float(now_ms + most_ms))

    def leave(self, waiter: object) -> None:
        """Frees the place of a connection that has ended, or that another counter counts now."""
        queue = self.queue
        if queue is not None:
            queue.leave(waiter)
            self.blocked_until_ms -= queue.settle(waiter, now_ms=0)

    def _next_cost_ms(self, value: float) -> float:
        """The estimated cost of the next request. Very large requests are rare, so they do not raise it further."""
        return min(value, self._most_at_once) * self._ms_per_unit

    def _tell(self, value: float, waiter: object, *, now_ms: int) -> int:
        if waiter is None:
            return clamp_throttle_ms(math.ceil(self.blocked_until_ms - now_ms))
        if self.queue is None:
            self.queue = BoundQueue()
        cost_ms = self._next_cost_ms(value)
        return clamp_throttle_ms(self.queue.tell(waiter, cost_ms, self.blocked_until_ms, now_ms=now_ms))

    def _pour(self, value: float, now_ms: int) -> None:
        empty_ms = now_ms - self._bound_ms
        self.blocked_until_ms = max(self.blocked_until_ms, empty_ms) + value * self._ms_per_unit

    def record_unchecked(self, value: float, *, now_ms: int) -> None:
        """Counts a value without a wait: no response can carry one any more, or not yet. The next request waits."""
        self._meter.record(value, now_ms=now_ms)
        self._pour(value, now_ms)

    def record_part(self, value: float, *, now_ms: int) -> None:
        """Counts a part of a request. `record` counts the last part and returns the wait for the whole request."""
        self.record_unchecked(value, now_ms=now_ms)
        self._look_for_urgency(now_ms)

    def expect(self, value: float, *, now_ms: int) -> None:
        """Takes from the average the part of the last record that has not arrived yet; `arrived` adds it again.

        The bucket keeps counting it, because other requests must not pass meanwhile.
        """
        self._meter.record(-value, now_ms=now_ms)

    def arrived(self, value: float, *, now_ms: int) -> None:
        """Counts an expected part that has arrived."""
        self._meter.record(value, now_ms=now_ms)
        self._look_for_urgency(now_ms)

    def give_up(self, value: float, *, since_ms: int, now_ms: int) -> None:
        """Takes back an expected part that will not arrive.

        Args:
            value: the part that the average has not counted.
            since_ms: when it was recorded. The part that has drained from the bucket since then is not returned.
            now_ms: the present.
        """
        if not self._ms_per_unit:
            return
        back_ms = value * self._ms_per_unit - (now_ms - since_ms)
        if back_ms > 0:
            self.blocked_until_ms -= back_ms
        # The mute of a closed connection ends when the part that arrived is paid for.
        still_ms = max(self._average_ms(now_ms), self.blocked_until_ms - now_ms)
        self.owed_until_ms = min(self.owed_until_ms, now_ms + max(0, math.ceil(still_ms)))

    def _look_for_urgency(self, now_ms: int) -> None:
        if self._meter.recorded - self._settled >= self._urgent_from:
            self._be_urgent(now_ms)

    def untold(self, *, now_ms: int) -> float:
        """The use that was recorded here, is still remembered, and was not sent to the other members of the fleet."""
        meter = self._meter
        recorded = meter.recorded
        untold = recorded - self._settled
        # Forgotten use need not be sent. Until the current sample ends, nothing of it has been forgotten.
        held = meter.held if now_ms < meter._next_ms else meter.total(now_ms=now_ms)
        if untold > held or untold < 0:  # below 0: sums are rounded
            untold = max(0.0, min(untold, held))
            self._settled = recorded - untold
        return untold

    def _be_urgent(self, now_ms: int) -> None:
        self._look_alone(now_ms)
        much = self._unheard - self._on_way >= self._most_at_once / _URGENT_PART
        if not self._is_urgent and (self._holds or (much and self._meter.recorded >= self._quiet)):
            self._is_urgent = True
            self._urgent.add(self.key, self)
            self._look_alone(now_ms)

    def _look_alone(self, now_ms: int) -> None:
        """Delays requests if the other members do not know enough of the use here; else sets when to look again."""
        most = self._most_alone = self.most_alone(now_ms=now_ms)
        self._holds = self._unheard > most
        if self._holds:
            self._urgent_from = math.inf
            if self.queue is None:  # so that requests call `wait_ms`
                self.queue = BoundQueue()
        elif self._is_urgent:
            self._urgent_from = most - self._on_way
        else:
            self._urgent_from = min(self._most_at_once / _URGENT_PART, most - self._on_way)

    @property
    def _unheard(self) -> float:
        """The use here that other members may not know yet."""
        return max(0.0, self._meter.recorded - self._settled) + self._on_way

    def most_alone(self, *, now_ms: int) -> float:
        """How much may pass here before the other members know of it, in units of the quota.

        Each of n members passes an n-th of the rest of the limit that it knows of. So all members together exceed the
        limit by at most the amount that may pass at once, however late their messages are. The amount that the limit
        allows in one exchange may always pass: a client within the limit waits for no message.
        """
        urgent = self._urgent
        if urgent.members < 2 or self._observe or not self._ms_per_unit:
            return math.inf
        room = self._room(now_ms) + self._unheard
        return max(urgent.exchange_ms / self._ms_per_unit, room / urgent.members)

    def hold_ms(self, *, now_ms: int) -> int:
        """When to try again if requests wait until other members know the use here; 0: requests do not wait."""
        if self._holds:
            self._look_alone(now_ms)
        return self._urgent.again_ms if self._holds else 0

    def free_ms(self, *, now_ms: int) -> int:
        """The time from which requests pass."""
        until_ms = now_ms + max(self.throttle_time_ms(now_ms=now_ms), self.hold_ms(now_ms=now_ms))
        return max(until_ms, math.ceil(self.blocked_until_ms))

    def near(self, untold: float, members: int, *, now_ms: int) -> bool:
        """Whether other members need the unsent use now, because it can matter to their decisions.

        Each member keeps less unsent use than a fourth of its share of the rest of the limit that it knows of. Then
        all members together keep less than a third of the real rest: nothing when the limit is reached. The use of a
        new counter always matters: the members share what is left to all new counters.

        Args:
            untold: the unsent use; see the method of that name.
            members: the number of members of the fleet.
            now_ms: the present.
        """
        self._is_urgent = False
        self._look_alone(now_ms)
        if untold > 0 and self._urgent.beside(self, now_ms):
            return True
        room = self._room(now_ms)
        if untold * 4 * members >= room:
            return True
        # A record raises the unsent use and lowers the rest of the limit.
        self._quiet = self._meter.recorded + (room - untold * 4 * members) / (4 * members + 1)
        return False

    def _room(self, now_ms: int) -> float:
        """How much may pass until the average or the bucket reaches its limit."""
        room = self._most_at_once - (self._meter.held if self.match.burst_s is None else 0.0)
        if self._ms_per_unit:
            room = min(room, (now_ms - self.blocked_until_ms) / self._ms_per_unit)
        return room

    def settle(self, told: float) -> None:
        """Counts use as sent to the other members."""
        self._settled += told
        self._quiet = 0.0
        self._on_way += told
        self._is_urgent = False
        if not self._holds:
            self._urgent_from = min(self._most_at_once / _URGENT_PART, self._most_alone - self._on_way)

    def delivered(self, told: float, *, now_ms: int) -> None:
        """Counts sent use as delivered: this member has read back its own message."""
        self._on_way = max(0.0, self._on_way - told)
        self._look_alone(now_ms)

    def record_others(self, value: float, *, now_ms: int) -> None:
        """Counts the use that another member of the fleet has recorded. The next request here waits for it."""
        if self._aside is not None:
            self._aside.add(value, value, now_ms=now_ms)
            return
        self._count_others(value)
        self.record_unchecked(value, now_ms=now_ms)
        if self._urgent.members > 1:
            self._look_alone(now_ms)  # the rest of the limit has shrunk
        for shared in self._urgent.beside(self, now_ms):
            shared.record_others(value, now_ms=max(now_ms, shared.last_ms))

    def level(self, *, now_ms: int) -> tuple[float, float]:
        """The total in the average's window, and the fill of the bucket, in units of the quota."""
        total, fill = self._meter.total(now_ms=now_ms), self._fill(self.blocked_until_ms, now_ms)
        if self._aside is not None:
            total += self._aside.told.total(now_ms=now_ms)
            fill += self._aside.fill(now_ms=now_ms)
        return max(0.0, total), fill

    def _fill(self, blocked_until_ms: float, now_ms: int) -> float:
        """The fill of a bucket that is blocked until this time."""
        held_ms = blocked_until_ms - (now_ms - self._bound_ms)
        return held_ms / self._ms_per_unit if held_ms > 0 and self._ms_per_unit else 0.0

    def _fill_to(self, fill: float, now_ms: int) -> None:
        """Raises the bucket to at least this fill."""
        self._quiet = 0.0
        empty_ms = now_ms - self._bound_ms
        self.blocked_until_ms = max(self.blocked_until_ms, empty_ms + fill * self._ms_per_unit)

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None:
        """Raises this counter to at least the level of another member's counter; see `level`."""
        held, filled = self.level(now_ms=now_ms)
        more = max(0.0, total - held)
        if self._aside is not None:
            self._aside.add(max(0.0, fill - filled), more, now_ms=now_ms)
            return
        if more > 0:
            self._count_others(more)
            self._meter.record(more, now_ms=now_ms)
        self._fill_to(fill, now_ms)

    @property
    def recorded_here(self) -> float:
        """The sum of all records of this process's clients so far, without those of other members."""
        return self._meter.recorded - self._others

    def state(self, *, now_ms: int) -> CounterState:
        """The counter's state, for the new process in an upgrade."""
        promised_ms = 0.0 if self.queue is None else self.queue.promised_ms
        fill = self._fill(self.blocked_until_ms - promised_ms, now_ms)
        samples = self._meter.samples(now_ms=now_ms)
        if self._aside is not None:  # as if each other member had the same use as this process
            fill += self._aside.fill(now_ms=now_ms)
            samples = _times(samples, 1 / self.match.share)
        debt = max(0.0, fill - self._bound_ms / self._ms_per_unit) if self._ms_per_unit else 0.0
        return CounterState(
            samples, fill, self.owed_until_ms, self.left_until_ms, self.last_value, self._bound_ms, debt
        )

    def take_over(self, state: CounterState, *, now_ms: int) -> None:
        """Raises this counter to at least the state of the old process's counter."""
        share = self.match.share if self._aside is not None else 1.0
        more = self._meter.take_over(_times(state.samples, share), now_ms=now_ms)
        # The samples taken over include this meter's earlier records. All of them count as settled use of others.
        self._settled = self._meter.recorded if more else self._settled
        self._others = self._meter.recorded if more else self._others
        fill = self._fitting(state)
        self._fill_to(fill * share, now_ms)
        if self._aside is not None:
            rest = fill * (1 - share) - self._aside.fill(now_ms=now_ms)
            self._aside.add(max(0.0, rest), 0.0, now_ms=now_ms)
        self.owed_until_ms = max(self.owed_until_ms, state.owed_until_ms)
        self.left_until_ms = max(self.left_until_ms, state.left_until_ms)
        self.last_value = self.last_value or state.last_value

    def _fitting(self, state: CounterState) -> float:
        """The part of another process's fill that fits this bucket, in units of the quota; see `_resize`."""
        if self.match.burst_s is None or self.match.limit is None or state.bound_ms == self._bound_ms:
            return state.fill
        limit = self.match.limit / self.match.share
        debt = state.debt
        if not state.bound_ms:  # a version without bursts
            debt = max(0.0, state.fill - limit * _BOUND_WINDOWS * self.window_ms / 1000)
        return min(state.fill - debt, limit * self.match.burst_s) + debt

    def throttle_time_ms(self, *, now_ms: int) -> int:
        """How long a client has to wait now. Records nothing; 0 in observe mode."""
        if self._observe:
            return 0
        return min(self._average_ms(now_ms), self._cap_ms)

    def _average_ms(self, now_ms: int) -> int:
        """The wait by Kafka's window; 0 if the quota has a burst."""
        return (
            0 if self.match.burst_s is not None else self._meter.throttle_time_ms(self._limit, now_ms=now_ms)
        )

    def rate(self, *, now_ms: int) -> float:
        """The average per second."""
        return self._meter.rate(now_ms=now_ms)

    def reading(self, *, now_ms: int) -> tuple[float, float, int, int, float | None]:
        """The numbers that decide a wait now.

        Returns:
            The rate, the total that it is computed from, the milliseconds that it covers, the milliseconds for which
            nothing passes, and `tokens`.
        """
        meter = self._meter
        window_ms = meter.window_size_ms(now_ms=now_ms)
        held = meter.held
        blocked_ms = max(0, math.ceil(self.blocked_until_ms - now_ms))
        return held / (window_ms / 1000), held, window_ms, blocked_ms, self.tokens(now_ms=now_ms)

    def tokens(self, *, now_ms: int) -> float | None:
        """The tokens left in the bucket, below 0 a debt; None: the quota has no burst."""
        if self.match.burst_s is None or self.match.limit is None:
            return None
        return self._most_at_once - self._fill(self.blocked_until_ms, now_ms)

    def load(self, *, now_ms: int) -> float:
        """Roughly the part of the limit that is in use. Cheap enough for thousands of counters at once."""
        return self.rough_rate(now_ms=now_ms) / self._limit

    def rough_rate(self, *, now_ms: int) -> float:
        """The average per second, too high for up to one window; cheap."""
        # A window after the last event all samples are forgotten.
        idle = now_ms - self.last_ms >= self.window_ms
        return 0.0 if idle or not self._allowance_s else self._meter.held / self._allowance_s

    def max_in_window(self) -> int | None:
        """The most that passes unthrottled when nothing has been used; None if this counter throttles nothing."""
        if self.match.limit is None or self._observe:
            return None
        if self._urgent.members > 1:
            return int(min(self._most_at_once, self._most_alone))
        return int(self._most_at_once)

    def room_beside(self, fetches: int, asked: int, *, now_ms: int) -> int:
        """How large one more Fetch response may be, beside others in flight, so that none of them waits.

        Args:
            fetches: the number of others; each response may be as large as the last one, whatever was requested.
            asked: the most that these requests allow together.
            now_ms: the present.

        Returns:
            The size in units of the quota. 0 if requests are queued, or if the last response was larger than the
            result. `ANY_SHARE` if the counter throttles nothing.
        """
        if self.match.limit is None or self._observe:
            return ANY_SHARE
        if self.queue is not None:
            return 0
        room = self._room(now_ms)
        if self._urgent.members > 1:
            room = min(room, self._most_alone - self._unheard)
        left = room - max(asked, fetches * self.last_value)
        if left < self.last_value or left <= 0:
            return 0
        return int(left) if left < ANY_SHARE else ANY_SHARE

    def forgettable(self, *, now_ms: int) -> bool:
        """Whether a new counter would decide the same as this one, now and when requests under way are recorded."""
        if self.match.limit is None:
            return True
        if self.parts:
            return False
        empty = self.blocked_until_ms <= now_ms - self._bound_ms and self.left_until_ms <= now_ms
        empty = empty and (self._aside is None or not self._aside.fill(now_ms=now_ms))
        return empty and self._meter.total(now_ms=now_ms) <= 0

    def absorb(self, other: RateTracker, *, now_ms: int) -> None:
        """Counts the use of another counter with the same limit as if it were recorded now."""
        bind_alike(self, other, now_ms=now_ms)
        held = other._meter.total(now_ms=now_ms)
        self._count_others(held)
        self._quiet = 0.0
        self._meter.record(held, now_ms=now_ms)
        empty_ms = now_ms - self._bound_ms
        held_ms = max(0.0, other.blocked_until_ms - empty_ms)
        self.blocked_until_ms = max(self.blocked_until_ms, empty_ms) + held_ms
        self.left_until_ms = max(self.left_until_ms, other.left_until_ms)
        if other._aside is not None:
            aside = other._aside
            told = aside.told.total(now_ms=now_ms)
            self._put_aside(now_ms).add(aside.fill(now_ms=now_ms), told, now_ms=now_ms)

    def forget(self) -> None:
        """The table dropped this counter: its totals are kept, and sessions that hold it look up another."""
        self.good_until_ms = -math.inf
        self._forgotten.add_totals(self.throttles)


class NewCountersTracker(RateTracker):
    """A counter that all new counters share: their bytes are counted here too.

    Nothing passes while it is blocked. Waiting requests have places and try again once a second. It sends no throttle
    time to clients: its fill is not the debt of the client that sent the last request.

    Attributes:
        waited: whether any request had to wait since the last division.
    """

    __slots__ = ("waited",)

    def __init__(self, settings: RateSettings, *, now_ms: int) -> None:
        """Limits nothing before `leave_to_new`."""
        super().__init__(settings, _DIVISION_MS, ThrottleStats(), Urgent(), key=Rule.CAPACITY, now_ms=now_ms)
        self.waited = False

    def leave_to_new(self, match: Match, version: int, *, known: bool, now_ms: int) -> None:
        """Puts in force the limit that a division leaves to new counters. The first waiting request passes now.

        Args:
            match: the limit.
            version: the version of the limits.
            known: whether the division now knows the waiting counters, so that they do not try again here.
            now_ms: the present.
        """
        now_ms = max(now_ms, self.last_ms)
        queue = None if known else self.queue
        self.bind(match, version, now_ms=now_ms)
        self.queue = queue  # all places have about the same cost, so their order stays
        self.owe_at_most(0, now_ms=now_ms)
        self.waited = False

    def wait_ms(
        self, waiter: object, value: float | None = None, *, most_held_ms: float | None = None, now_ms: int
    ) -> int:
        """See `RateTracker`. The wait is a second at most; then the request tries again."""
        wait_ms = super().wait_ms(waiter, value, now_ms=now_ms)
        self.waited = self.waited or wait_ms > 0
        return min(wait_ms, _DIVISION_MS)

    def empties(self, waiter: object, *, now_ms: int) -> int:
        """See `RateTracker`. The connection gets no place, because its client tries again soon."""
        if now_ms >= self.blocked_until_ms or self._observe:
            return 0
        self.waited = True
        return min(math.ceil(self.blocked_until_ms - now_ms), _DIVISION_MS)


def _waited(tracker: NewCountersTracker | None) -> bool:
    return tracker is not None and tracker.waited


def _as_lent(match: Match, tracker: RateTracker) -> Match:
    """The match with the limit of the counter's last division, if nothing else of the claim has changed."""
    if match.lent is None or match.lent != tracker.match.lent:
        return match
    return replace(match, limit=tracker.match.limit)


def _same(limit: float | None, other: float | None) -> bool:
    """Whether two whole limits are equal, apart from rounding of their shares."""
    if limit is None or other is None:
        return limit is other
    return math.isclose(limit, other)


def _times(samples: Sequence[tuple[int, int, float]], factor: float) -> list[tuple[int, int, float]]:
    return [(start_ms, last_ms, value * factor) for start_ms, last_ms, value in samples]


def stirred(items: Iterable[tuple[AnyKey, RateTracker]]) -> list[tuple[AnyKey, RateTracker]]:
    """The counters, with their keys, that other members may need a message about."""
    found = []
    for item in items:
        tracker = item[1]
        meter = tracker._meter
        # `SampledRate.recorded`, without a call for each.
        recorded = meter._total + meter._gone
        if recorded >= tracker._quiet and recorded != tracker._settled:
            found.append(item)
    return found


@lru_cache(maxsize=1024)
def _allowance(limit_per_s: float, allowance_s: float) -> float:
    """The product, as one shared object for all counters with this limit: one cache miss less per record."""
    return limit_per_s * allowance_s


_MOST_BOUND_BYTES: Final = 16 * 1024 * 1024
"""Memory of client ids in the cache of look-ups. Clients choose their ids, up to 1 KiB each (hazard K07)."""


class RateQuotas:
    """The quotas of one key.

    Attributes:
        urgent: the counters whose use the other members of a fleet should know at once.
        lender: divides a capacity among the clients; None: the configured limits are in force.
    """

    def __init__(
        self, limits: Limits, key: QuotaKey, settings: RateSettings, *, cap_ms: int = MAX_THROTTLE_MS
    ) -> None:
        """Starts with no counters.

        Args:
            limits: changes apply at once.
            key: the key that this object enforces.
            settings: fixed for the life of this object.
            cap_ms: the longest wait for one request.
        """
        self._limits = limits
        self._key = key
        self._settings = settings
        self._cap_ms = cap_ms
        self._forgotten = ThrottleStats()
        self.urgent = Urgent()
        self.lender: Lender | None = None
        self._new: NewCountersTracker | None = None
        self._new_of_tiers: dict[int, NewCountersTracker] = {}  # of tiers with a brake, or slow brokers
        self._table: TrackerTable[ScopedKey, RateTracker] = TrackerTable(
            self._make, max_trackers=settings.max_trackers, idle_expiry_ms=settings.idle_expiry_ms
        )
        # A cache: the counter of each client that was looked up since the limits last changed.
        self._bound: dict[tuple[Scope, str, str, Kind], RateTracker] = {}
        self._bound_version = limits.version
        self._bound_bytes = 0  # of client ids in it

    def tracker(
        self, user: str, client_id: str, *, kind: Kind | None = None, scope: Scope = None, now_ms: int
    ) -> RateTracker | None:
        """The counter of a client; None when the key has no quota at all, so that nothing is counted.

        Args:
            user: the principal's name.
            client_id: of this request, "" for none.
            kind: the kind of clients that it shares a counter with when the table is full; None: those of its user.
            scope: a broker id to count per broker, None to count for the whole gateway.
            now_ms: the present.
        """
        if kind is None:
            kind = user
        if self._bound_version == self._limits.version:
            tracker = self._bound.get((scope, user, client_id, kind))
            if tracker is not None and now_ms < tracker.good_until_ms:
                return tracker
        return self._find(user, client_id, kind, scope, now_ms)

    def _in_force(self, match: Match, key: ScopedKey) -> Match:
        return match if self.lender is None else self.lender.lend(match, key)

    def lend(self, lender: Lender | None, *, now_ms: int) -> None:
        """Start to divide a capacity, or stop with None."""
        before, self.lender = self.lender, lender
        if before is not None and lender is not None:
            lender.replaces(before)
        self._new = None
        self._new_of_tiers = {}
        if lender is not None and not lender.observe:
            self._new = self._leave_to_new(None, lender.left, now_ms)
        self.urgent.beside = _nothing if self._new is None else self._beside

    def divide(self, *, now_ms: int) -> Iterator[None]:
        """Divides the capacity again, in steps between which other work may be done. See `Lender`."""
        lender, new = self.lender, self._new
        if lender is None or not self._limits.enabled(self._key):
            return
        of_tiers = self._new_of_tiers
        waited = [tier for tier in range(TIERS) if _waited(new) or _waited(of_tiers.get(tier))]
        shared = [(id(tracker), tracker) for tracker in self._table.shared()]
        yield from lender.divide([*self._table.own(), *shared], new_waited=waited, now_ms=now_ms)
        # A change of the limits between two steps sets another lender.
        if new is not None and self.lender is lender:
            self._leave_to_new(new, lender.left, now_ms, known=True)
            self._new_of_tiers = {
                tier: self._leave_to_new(of_tiers.get(tier), left, now_ms)
                for tier, left in lender.left_of_tiers.items()
            }

    def _leave_to_new(
        self, tracker: NewCountersTracker | None, left: Match, now_ms: int, *, known: bool = False
    ) -> NewCountersTracker:
        if tracker is None:
            tracker = NewCountersTracker(self._settings, now_ms=now_ms)
        tracker.leave_to_new(left, self._limits.version, known=known, now_ms=now_ms)
        return tracker

    def shared_by_new(self, tracker: RateTracker | None, *, now_ms: int) -> tuple[RateTracker, ...]:
        """The shared counters that also count a client's use, because no division knows its own counter yet.

        Args:
            tracker: the client's counter, which was looked up just now.
            now_ms: the present.

        Returns:
            The counter of all new counters, and that of its tier's young counters if the tier has a brake or loses
            for slow brokers. Empty if enough divisions have found the counter used.
        """
        lender = self.lender
        if tracker is None or lender is None or self._new is None:
            return ()
        name = id(tracker) if tracker.shared else tracker.key
        match = tracker.match
        found: list[RateTracker] = []
        if lender.is_new(match, name):
            found.append(self._new)
        if lender.is_young(match, name):
            of_tier = None if match.lent is None else self._new_of_tiers.get(match.lent.tier)
            if of_tier is not None:
                found.append(of_tier)
        elif not found and -math.inf < tracker.good_until_ms <= now_ms:
            # The counter has a guarantee. The next division knows it; until then a look-up gives the same result.
            tracker.good_until_ms = float(now_ms + _DIVISION_MS)
        return tuple(found)

    def _beside(self, tracker: RateTracker, now_ms: int) -> tuple[RateTracker, ...]:
        # What a silent counter still has to send is older than the shared counters' fill.
        recent = now_ms - tracker.last_ms < _DIVISION_MS
        return self.shared_by_new(tracker, now_ms=now_ms) if recent else ()

    def expire(self, *, now_ms: int) -> None:
        """Forgets clients that have long been silent. Call it from time to time; see `TrackerTable.expire`."""
        self._table.expire(now_ms=now_ms)

    @property
    def counters(self) -> int:
        """How many clients have a counter of their own."""
        return len(self._table.own())

    def own(self) -> ItemsView[ScopedKey, RateTracker]:
        """The counters that are not shared, for the exchange of a fleet."""
        return self._table.own()

    def stirred(self) -> list[tuple[ScopedKey, RateTracker]]:
        """The counters that other members may need a message about. It reads all counters ten times a second."""
        return stirred(self._table.own())

    def counter_of(self, key: ScopedKey, kind: Kind, *, now_ms: int) -> RateTracker | None:
        """The counter to which records of other members of a fleet are added.

        Args:
            key: the key of their counter.
            kind: the kind for a new counter; see `quotas.trackers`.
            now_ms: the present.

        Returns:
            None when no quota limits it here, or when the table has no room for a counter of its own.
        """
        tracker = self._table.find_own(key)
        version = self._limits.version
        if tracker is not None and tracker.version == version:
            return None if tracker.match.limit is None else tracker
        match = self._in_force(match_of_tracker(self._limits, self._key, key.tracker_key), key)
        if match.limit is None:
            return None
        if tracker is None:
            tracker = self._table.find_or_make(key, match.shared_by, kind, now_ms=now_ms)
            if tracker.shared:
                return None
        tracker.bind(_as_lent(match, tracker), version, now_ms=now_ms)
        return tracker

    def loads(self, *, now_ms: int) -> Iterator[tuple[ScopedKey, float]]:
        """Roughly the part of its limit that each counter uses; see `RateTracker.load`.

        It yields one counter at a time, so that other work can be done in between.
        """
        for key, tracker in list(self._table.own()):
            yield key, tracker.load(now_ms=now_ms)

    def snapshot(self, *, only: Container[ScopedKey] | None = None, now_ms: int) -> list[RateSnapshot]:
        """A row for each counter, and a last row for all others if there are any.

        Args:
            only: the counters that get a row of their own; None means all. The last row adds up the rest, and its
                rate is then approximate.
            now_ms: the present.
        """
        return [row for row in self.rows(only=only, now_ms=now_ms) if row is not None]

    def rows(self, *, only: Container[ScopedKey] | None = None, now_ms: int) -> Iterator[RateSnapshot | None]:
        """As `snapshot`, one counter at a time; None for one without a row. Other work may be done in between."""
        shared = list(self._table.shared())
        totals = ThrottleStats()
        for stats in [self._forgotten, *(tracker.throttles for tracker in shared)]:
            totals.add_totals(stats)
        rate = sum(tracker.rate(now_ms=now_ms) for tracker in shared)
        rest = len(shared)
        began_ms = now_ms
        for key, tracker in list(self._table.own()):
            # The counter may have been used since this generator began.
            now_ms = max(began_ms, tracker.last_ms)
            if only is not None and key not in only:
                rest += 1
                totals.add_totals(tracker.throttles)
                rate += tracker.rough_rate(now_ms=now_ms)
                yield None
                continue
            if tracker.version != self._limits.version and self._limits.enabled(self._key):
                match = self._in_force(match_of_tracker(self._limits, self._key, key.tracker_key), key)
                tracker.bind(_as_lent(match, tracker), self._limits.version, now_ms=now_ms)
            yield _row(
                key, [tracker], tracker.match, tracker.throttles, tracker.rate(now_ms=now_ms), now_ms=now_ms
            )
        if rest or not totals.is_empty():
            no_client = TrackerKey("", "")
            match = shared[0].match if rest == len(shared) == 1 else Match(None, Rule.NONE, no_client)
            key = ScopedKey(None, no_client)
            yield _row(key, shared, match, totals, rate, other=True, now_ms=began_ms)

    def _find(self, user: str, client_id: str, kind: Kind, scope: Scope, now_ms: int) -> RateTracker | None:
        version = self._limits.version
        # There may be more client ids than counters, for example many ids of one user. A full cache is dropped.
        if (
            self._bound_version != version
            or len(self._bound) >= 4 * self._settings.max_trackers
            or self._bound_bytes >= _MOST_BOUND_BYTES
        ):
            self._bound.clear()
            self._bound_bytes = 0
            self._bound_version = version
        if not self._limits.enabled(self._key):
            return None
        match = resolve(self._limits, self._key, user, client_id)
        key = ScopedKey(scope, match.tracker_key)
        match = self._in_force(match, key)
        tracker = self._table.find_or_make(key, match.shared_by, kind, now_ms=now_ms)
        tracker.bind(_as_lent(match, tracker), version, now_ms=now_ms)
        if tracker.shared:
            tracker.good_until_ms = float(now_ms + _SHARED_RECHECK_MS)
        elif self._new is None:
            tracker.good_until_ms = math.inf
        self._bound[scope, user, client_id, kind] = tracker
        self._bound_bytes += getsizeof(client_id)
        return tracker

    def _make(self, key: ScopedKey | None, limit: float, now_ms: int) -> RateTracker:
        tracker = RateTracker(
            self._settings, self._cap_ms, self._forgotten, self.urgent, key=key, now_ms=now_ms
        )
        if self._new is not None:
            tracker.good_until_ms = float(now_ms)
        return tracker


class ByteRateQuotas(RateQuotas):
    """producer_byte_rate or consumer_byte_rate (KIP-13; Kafka's ClientQuotaManager).

    A Produce counts the bytes of the whole frame without its length prefix, also if the broker refuses it. The wait
    is not capped: one frame far over the quota can cost minutes. The caller may bound each mute, because
    `RateTracker.blocked_until_ms` keeps the debt.
    """

    def __init__(self, limits: Limits, key: QuotaKey, settings: RateSettings) -> None:
        """Starts with no counters; see `RateQuotas` for the arguments.

        Raises:
            ValueError: the key is not a byte rate.
        """
        if key not in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
            raise ValueError(f"{key} is no byte rate")
        super().__init__(limits, key, settings)


class RequestTimeQuotas(RateQuotas):
    """request_percentage (KIP-124; Kafka's ClientRequestQuotaManager).

    Unit: percent of one thread; 100 is one core that is always busy. The caller measures the time of a request and
    passes it in nanoseconds. The wait is capped at one sample's time. So a client far over its quota gets the same
    short wait again and again, until the counter is blocked.
    """

    def __init__(self, limits: Limits, settings: RateSettings) -> None:
        """Starts with no counters; see `RateQuotas` for the arguments."""
        super().__init__(limits, QuotaKey.REQUEST_PERCENTAGE, settings, cap_ms=settings.window_ms)
        self.exempt_ns = 0  # time of requests that are exempt from the quota

    def record(
        self,
        user: str,
        client_id: str,
        time_ns: int,
        *,
        kind: Kind | None = None,
        scope: Scope = None,
        now_ms: int,
    ) -> int:
        """Counts the time of a request, and returns how long its client has to wait."""
        tracker = self.tracker(user, client_id, kind=kind, scope=scope, now_ms=now_ms)
        if tracker is None:
            return 0
        tracker.last_value = time_ns * PERCENT_SECONDS_PER_NS
        return tracker.record(tracker.last_value, now_ms=now_ms)

    def record_exempt(self, time_ns: int) -> None:
        """Counts the time of a request without a wait: acks=0, cluster actions."""
        self.exempt_ns += time_ns


def _row(
    key: ScopedKey,
    trackers: list[RateTracker],
    match: Match,
    totals: ThrottleStats,
    rate: float,
    *,
    other: bool = False,
    now_ms: int,
) -> RateSnapshot:
    rate = max(0.0, rate)
    return RateSnapshot(
        scope=key.scope,
        user=key.tracker_key.user,
        client_id=key.tracker_key.client_id,
        rule=match.rule,
        limit=match.limit,
        tokens=None if other else trackers[0].tokens(now_ms=now_ms),
        rate=rate,
        utilisation=None if match.limit is None else rate / match.limit,
        throttle_time_ms=average_throttle_ms([tracker.throttles for tracker in trackers], now_ms=now_ms),
        throttled_total=totals.throttled_total,
        throttled_ms_total=totals.throttled_ms_total,
        would_throttle_total=totals.would_throttle_total,
        other=other,
    )
