"""The controller mutation quota (KIP-599; Kafka's ControllerMutationQuotaManager).

Topics are charged one by one, in the order of the request. A *strict* charge checks the debt first. If there is a
debt, the topic is refused and costs nothing. Otherwise it is accepted whatever its size. A *permissive* charge, for
clients too old to know error 89, always accepts and checks the debt afterwards. So a strict request that causes a
debt is not throttled itself, but the same request from an old client is.

A client's groups have counters of their own (`quotas/group_quotas.py`). If one of them refuses a topic, no counter is
charged for it. Every other topic is charged to each counter. The client waits for the longest time.

The number of counters is bounded. A counter may be forgotten only when its bucket is full, because otherwise clients
could lose a debt that way. If every counter has a debt, clients of one kind share a counter (`quotas/trackers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Container, ItemsView, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quotas.entities import QuotaKey
from quotas.group_quotas import GroupCounters, GroupKey
from quotas.limits import Limits
from quotas.mutation_meters import Meter, MutationAlgorithm, meter_factory
from quotas.rate import SampledRate
from quotas.rate_quotas import CounterState
from quotas.resolution import Match, Rule, TrackerKey, match_of_tracker, matches_of_groups, resolve
from quotas.set_aside import SetAside, bind_alike
from quotas.throttle_stats import METRIC_WINDOW_MS, METRIC_WINDOW_NUM, ThrottleStats, average_throttle_ms
from quotas.trackers import UNLIMITED, Kind, SharedBy, TrackerTable

KEY: Final = QuotaKey.CONTROLLER_MUTATION_RATE


class ValidateOnly(StrEnum):
    """The cost of a request that only validates: nothing, as in KIP-599, or the full cost, as in KRaft."""

    KIP = "kip"
    KRAFT = "kraft"


@dataclass(frozen=True, slots=True)
class MutationSettings:
    """How mutations are measured. There is no longest throttle: Kafka has none for this quota."""

    window_num: int = 11  # controller.quota.window.num
    window_ms: int = 1_000  # controller.quota.window.size.seconds
    algorithm: MutationAlgorithm = MutationAlgorithm.TOKEN_BUCKET
    validate_only: ValidateOnly = ValidateOnly.KIP
    max_trackers: int = 10_000
    idle_expiry_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class MutationDecision:
    """The decision about one topic."""

    accepted: bool
    throttle_time_ms: int  # 0 for an accepted strict charge even if it causes a debt
    permits: float
    tracker_key: TrackerKey
    rule: Rule
    limit: float | None  # the configured one, permits per second; None is unlimited
    charged: float = 0.0  # permits taken, 0 when refused, free or not counted
    shared: bool = False  # charged to the counter that overflowing clients of this kind share
    kind: Kind = ""
    groups: tuple[str, ...] = ()  # the groups whose counters were charged too
    group: str = ""  # the group whose counter refused it or needs the wait; "": the client's own counter
    own: bool = True  # whether the client's own counter was charged, if any was
    alone: int = 0  # the number of a decision that a worker made without its supervisor

    @property
    def is_limited(self) -> bool:
        """Whether permits were charged to a counter with a limit."""
        return self.charged > 0 and (self.limit is not None or bool(self.groups))


@dataclass(frozen=True, slots=True)
class RequestDecision:
    """The decisions about one request, topic by topic in the given order."""

    topics: tuple[MutationDecision, ...]
    throttle_time_ms: int  # of the last violation, at decided_ms
    decided_ms: int

    def throttle_time_ms_at(self, *, now_ms: int) -> int:
        """The rest of the throttle when the response is sent: time spent waiting for the broker counts."""
        return max(0, self.throttle_time_ms - (now_ms - self.decided_ms))


@dataclass(frozen=True, slots=True)
class TrackerSnapshot:
    """One counter, for metrics."""

    user: str
    client_id: str
    rule: Rule
    limit: float | None  # permits per second; None when unlimited, or when limits differ
    tokens: float | None  # None when unlimited
    mutation_rate: float  # permits per second over Kafka's metric windows
    throttle_time_ms: float | None  # average over the same windows, None when nothing was throttled
    throttled_total: int  # requests
    throttled_ms_total: int
    refused_total: int  # topics
    would_throttle_total: int  # throttles that observe mode did not enforce
    other: bool  # the row of all clients without a counter of their own; with it totals add up


class MutationTracker:
    """One counter. Only the exchange of a fleet uses it directly; other code uses `MutationQuotas`."""

    __slots__ = (
        "_aside",
        "_forgotten",
        "_settled",
        "kind",
        "last_ms",
        "match",
        "meter",
        "rate",
        "shared",
        "throttles",
        "version",
    )

    def __init__(self, meter: Meter, forgotten: ThrottleStats, *, shared: bool, now_ms: int) -> None:
        self.meter = meter
        self.shared = shared
        self.kind: Kind = ""
        self.last_ms = now_ms
        self.match = Match(None, Rule.NONE, TrackerKey("", ""))
        self.version = 0  # the version of the limits when `match` was found
        self.rate = SampledRate(METRIC_WINDOW_NUM, METRIC_WINDOW_MS, now_ms=now_ms)
        self.throttles = ThrottleStats()
        self._settled = 0.0  # the part of the charges here that the other members of a fleet know
        self._aside: SetAside | None = None  # while only a part of the limit is in force
        self._forgotten = forgotten

    def untold(self, *, now_ms: int) -> float:
        """The permits that were charged here, were not regained yet, and were not sent; below 0: refunded."""
        recorded = self.rate.recorded
        untold = recorded - self._settled
        taken = max(0.0, self.meter.taken(now_ms=now_ms))
        if untold > taken:  # other members would count permits that were regained meanwhile as a debt
            untold = taken
            self._settled = recorded - untold
        return untold

    @property
    def group(self) -> str:
        """The group whose counter this is; "": a client's counter, or one that clients share."""
        beside = self.match.beside
        return beside.group if beside is not None and isinstance(beside.group, str) else ""

    @property
    def stirred(self) -> bool:
        """Whether other members may need a message."""
        return self.rate.recorded != self._settled

    def near(self, untold: float, members: int, *, now_ms: int) -> bool:
        """Always: mutations are rare, and each one counts."""
        return True

    def settle(self, told: float) -> None:
        """Counts permits as sent to the other members."""
        self._settled += told

    def delivered(self, told: float, *, now_ms: int) -> None:
        """Does nothing: no mutation waits for messages."""

    def record_others(self, value: float, *, now_ms: int) -> None:
        """Takes the permits that another member of the fleet has charged, even if that causes a debt."""
        self.last_ms = now_ms
        if self._aside is not None:
            self._aside.add(value, 0.0, now_ms=now_ms)
        else:
            self.meter.record(value, now_ms=now_ms)

    def give_back(self, permits: float, *, now_ms: int) -> None:
        """Refunds permits that were charged here; a part of them may have been put aside since."""
        taken = max(0.0, self.meter.taken(now_ms=now_ms))
        self.meter.record(-permits, now_ms=now_ms)
        self.rate.record(-permits, now_ms=now_ms)
        if self._aside is not None and permits > taken:
            self._aside.add(taken - permits, 0.0, now_ms=now_ms)

    @property
    def recorded_here(self) -> float:
        """All permits charged here so far, minus refunds, without those that other members charged."""
        return self.rate.recorded

    @property
    def left_until_ms(self) -> int:
        """Always 0: closed connections leave no mute of this counter behind."""
        return 0

    def state(self, *, now_ms: int) -> CounterState:
        """The counter's state, for the new process in an upgrade."""
        return CounterState(fill=self.level(now_ms=now_ms)[0])

    def take_over(self, state: CounterState, *, now_ms: int) -> None:
        """Raises this counter to at least the state of the old process's counter."""
        self.raise_to(state.fill, 0.0, now_ms=now_ms)

    def level(self, *, now_ms: int) -> tuple[float, float]:
        """The permits that are taken, and 0: only byte rates have the second number."""
        taken = self.meter.taken(now_ms=now_ms)
        return max(0.0, taken if self._aside is None else taken + self._aside.fill(now_ms=now_ms)), 0.0

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None:
        """Raises this counter to at least the level of another member's counter; see `level`."""
        more = total - self.level(now_ms=now_ms)[0]
        if more > 0:
            self.record_others(more, now_ms=now_ms)

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        share = self.match.share
        limited = self.match.limit is not None and match.limit is not None
        self.match = match
        self.version = version
        limit = UNLIMITED if match.limit is None else match.limit
        rest = 0.0 if match.limit is None else match.limit / match.share - match.limit
        if match.share == share:
            self.meter.rate_per_s = limit
            if self._aside is not None and match.limit is not None:
                self._aside.change(rest, 0.0, now_ms=now_ms)
            return
        aside = self._put_aside(now_ms)
        part = max(0.0, match.share - share) / (1 - share) if share < 1 else 0.0
        back = aside.change(rest, part, now_ms=now_ms)
        if limited:
            part = min(1.0, match.share / share)
            aside.add(self.meter.taken(now_ms=now_ms) * (1 - part), 0.0, now_ms=now_ms)
            self.meter.divide(limit, part, now_ms=now_ms)
            self.meter.record(back, now_ms=now_ms)
        else:
            self.meter.rate_per_s = limit
        self._aside = None if match.share == 1.0 or match.limit is None else aside

    def _put_aside(self, now_ms: int) -> SetAside:
        aside = self._aside
        if aside is None:
            told = SampledRate(METRIC_WINDOW_NUM, METRIC_WINDOW_MS, now_ms=now_ms)
            aside = self._aside = SetAside(0.0, told, now_ms=now_ms)
        return aside

    @property
    def limit_per_s(self) -> SharedBy:
        return self.match.shared_by

    def absorb(self, other: MutationTracker, *, now_ms: int) -> None:
        bind_alike(self, other, now_ms=now_ms)
        self.meter.record(other.meter.taken(now_ms=now_ms), now_ms=now_ms)
        if other._aside is not None:
            self._put_aside(now_ms).add(other._aside.fill(now_ms=now_ms), 0.0, now_ms=now_ms)

    def forgettable(self, *, now_ms: int) -> bool:
        if self.match.limit is None:
            return True
        empty = self._aside is None or not self._aside.fill(now_ms=now_ms)
        return empty and self.meter.full(now_ms=now_ms)

    def forget(self) -> None:
        self._forgotten.add_totals(self.throttles)


class MutationQuotas:
    """Charges controller mutations to clients and their groups.

    Attributes:
        groups: counters of groups.
    """

    def __init__(self, limits: Limits, settings: MutationSettings) -> None:
        """Starts with no counters.

        Args:
            limits: read at every charge, so changes apply at once.
            settings: fixed for the life of this object.
        """
        self._limits = limits
        self._settings = settings
        self._make_meter = meter_factory(
            settings.algorithm, window_num=settings.window_num, window_ms=settings.window_ms
        )
        self._forgotten = ThrottleStats()
        self._trackers: TrackerTable[TrackerKey, MutationTracker] = TrackerTable(
            self._make_tracker, max_trackers=settings.max_trackers, idle_expiry_ms=settings.idle_expiry_ms
        )
        self.groups: GroupCounters[MutationTracker] = GroupCounters(limits, KEY, self._make_group_tracker)

    @property
    def enabled(self) -> bool:
        """Whether any client or group has a quota; without one nothing is charged, as in Kafka."""
        return self._limits.enabled(KEY) or self.groups.enabled

    def charge(
        self,
        user: str,
        client_id: str,
        permits: float,
        *,
        strict: bool,
        kind: Kind | None = None,
        address: str = "",
        now_ms: int,
    ) -> MutationDecision:
        """Decides one topic, and takes its permits when it is accepted.

        Args:
            user: the principal's name.
            client_id: of this request, "" for none.
            permits: partitions created or deleted. 0 is a topic that the broker will refuse anyway; it is always
                accepted, and no counter is checked.
            strict: whether the client can read error 89.
            kind: the kind of clients that it shares a counter with when the table is full; None: those of its user.
            address: the client's address; "": it is not known, so no group by address applies.
            now_ms: the present.

        Raises:
            ValueError: permits is negative or not finite.
        """
        if not 0 <= permits < math.inf:
            raise ValueError(f"permits must be a finite number >= 0, not {permits}")
        match = resolve(self._limits, KEY, user, client_id)
        names = match.tracker_key, match.rule, match.whole_limit
        if permits == 0 or not self.enabled:
            return MutationDecision(True, 0, permits, *names)
        kind = user if kind is None else kind
        counters: tuple[MutationTracker, ...] = ()
        groups: tuple[str, ...] = ()
        if self.groups.enabled:
            counters = self.groups.trackers(user, client_id, address, now_ms=now_ms)
        shared = False
        if self._limits.enabled(KEY):
            own = self._tracker(match, kind, now_ms=now_ms)
            shared = own.shared
            counters = (own, *counters)
        if strict:
            asking, throttle_time_ms = _longest(counters, now_ms)
            if asking is not None:
                asking.throttles.refused_total += 1
                group = asking.group
                return MutationDecision(False, throttle_time_ms, permits, *names, shared=shared, group=group)
            # An observed counter in debt is not charged, as if it had refused the topic. Otherwise its debt would
            # grow, and clients would have to pay it when the quota is enforced.
            counters = tuple([each for each in counters if not _observed_debt(each, now_ms)])
        if not counters:
            return MutationDecision(True, 0, permits, *names)
        for each in counters:
            each.last_ms = now_ms
            each.meter.record(permits, now_ms=now_ms)
            each.rate.record(permits, now_ms=now_ms)
        if self.groups.enabled:
            groups = tuple([each.group for each in counters if each.group])
        throttle_time_ms, group = 0, ""
        if not strict:
            for each in counters:
                _observed_debt(each, now_ms)
            asking, throttle_time_ms = _longest(counters, now_ms)
            group = "" if asking is None else asking.group
        own_too = len(groups) < len(counters)
        return MutationDecision(
            True, throttle_time_ms, permits, *names, permits, shared, kind, groups, group, own_too
        )

    def charge_request(
        self,
        user: str,
        client_id: str,
        permits: Sequence[float],
        *,
        strict: bool,
        validate_only: bool = False,
        kind: Kind | None = None,
        address: str = "",
        now_ms: int,
    ) -> RequestDecision:
        """Decides the topics of one request in the given order; accepting some and refusing others is normal.

        Args:
            user: the principal's name.
            client_id: of this request, "" for none.
            permits: per topic; 0 for one that the broker will refuse anyway.
            strict: whether the client can read error 89.
            validate_only: the request's flag; `MutationSettings.validate_only` decides the cost.
            kind, address: as for `charge`.
            now_ms: the present.
        """
        if validate_only and self._settings.validate_only is ValidateOnly.KIP:
            permits = [0.0] * len(permits)
        topics = tuple(
            self.charge(user, client_id, each, strict=strict, kind=kind, address=address, now_ms=now_ms)
            for each in permits
        )
        violations = [topic.throttle_time_ms for topic in topics if topic.throttle_time_ms > 0]
        return RequestDecision(topics, violations[-1] if violations else 0, now_ms)

    def refund(self, decision: MutationDecision, permits: float | None = None, *, now_ms: int) -> None:
        """Gives permits back for a topic that the broker refused; does nothing when none were taken.

        Args:
            decision: the result of `charge`.
            permits: how many, at most the charge; None is all of them.
            now_ms: the present.
        """
        amount = decision.charged if permits is None else min(permits, decision.charged)
        if amount <= 0:
            return
        for group in decision.groups:
            counter = self.groups.find(GroupKey(None, group))
            if counter is not None:
                counter.give_back(amount, now_ms=now_ms)
        if not decision.own:
            return
        tracker = (
            self._trackers.find_shared(UNLIMITED if decision.limit is None else decision.limit, decision.kind)
            if decision.shared
            else self._trackers.find_own(decision.tracker_key)
        )
        if tracker is None:
            return  # the counter's bucket was full, and the counter was forgotten
        tracker.give_back(amount, now_ms=now_ms)

    def is_limited(self, user: str, client_id: str, address: str = "") -> bool:
        """Whether this client has an enforced limit, which is not only observed or switched off."""
        if not self.enabled:
            return False
        match = resolve(self._limits, KEY, user, client_id)
        if match.limit is not None and not match.observe:
            return True
        return self.groups.enabled and any(
            not each.observe for each in matches_of_groups(self._limits, KEY, user, client_id, address)
        )

    def throttle_time_ms(
        self, user: str, client_id: str, *, kind: Kind | None = None, address: str = "", now_ms: int
    ) -> int:
        """How long this client has to wait for its debts, 0 when there are none. Charges nothing."""
        if not self.enabled:  # a debt may outlive the quotas
            return 0
        counters = self.groups.trackers(user, client_id, address, now_ms=now_ms)
        match = resolve(self._limits, KEY, user, client_id)
        if match.limit is not None:
            own = self._trackers.find(match.tracker_key, match.shared_by, user if kind is None else kind)
            if own is not None:
                own.bind(match, self._limits.version, now_ms=now_ms)
                counters = (own, *counters)
        return _longest(counters, now_ms)[1]

    def held_ms(
        self, user: str, client_id: str, *, kind: Kind | None = None, address: str = "", now_ms: int
    ) -> int:
        """How long a permissive request has to wait before it is decided, 0 for no wait.

        A client that cannot be refused increases its debt by one request on each new connection. Up to a debt of one
        window this is Kafka's own behaviour. With a larger debt the request waits until the debt is one window again.
        """
        debt_ms = self.throttle_time_ms(user, client_id, kind=kind, address=address, now_ms=now_ms)
        return max(0, debt_ms - self.window_ms)

    @property
    def window_ms(self) -> int:
        """The length of all windows of a counter together."""
        return self._settings.window_num * self._settings.window_ms

    def count_throttle(
        self,
        user: str,
        client_id: str,
        throttle_time_ms: int,
        *,
        kind: Kind | None = None,
        group: str = "",
        now_ms: int,
    ) -> None:
        """Counts a request that waited for this quota, after `quotas.combine` has counted it for this family.

        Args:
            user, client_id, kind: as for `charge`.
            throttle_time_ms: > 0.
            group: the group whose counter needed the wait; "": the client's own counter.
            now_ms: the present.
        """
        if group:
            tracker = self.groups.find(GroupKey(None, group))
        else:
            match = resolve(self._limits, KEY, user, client_id)
            tracker = self._trackers.find(match.tracker_key, match.shared_by, user if kind is None else kind)
        if tracker is not None:
            tracker.throttles.record(throttle_time_ms, now_ms=now_ms)

    def level(
        self, tracker_key: TrackerKey, group: str = "", *, now_ms: int
    ) -> tuple[float | None, float | None, bool]:
        """Limit and tokens of a counter, and whether it is only observed; None, None, False without a limit.

        Args:
            tracker_key: the key of a client's own counter.
            group: the group whose counter it is; "": the client's own counter.
            now_ms: the present.
        """
        tracker = self.groups.find(GroupKey(None, group)) if group else self._trackers.find_own(tracker_key)
        if tracker is None or tracker.match.limit is None:
            return None, None, False
        return tracker.match.whole_limit, tracker.meter.tokens(now_ms=now_ms), tracker.match.observe

    def expire(self, *, now_ms: int) -> None:
        """Forgets clients that have long been silent. Call it from time to time; see `TrackerTable.expire`."""
        self._trackers.expire(now_ms=now_ms)
        self.groups.expire(now_ms=now_ms)

    @property
    def counters(self) -> int:
        """How many clients have a counter of their own."""
        return len(self._trackers.own())

    def own(self) -> ItemsView[TrackerKey, MutationTracker]:
        """The counters that are not shared, for the exchange of a fleet."""
        return self._trackers.own()

    def stirred(self) -> list[tuple[TrackerKey, MutationTracker]]:
        """The counters that other members need a message about."""
        return [item for item in self._trackers.own() if item[1].stirred]

    def counter_of(self, key: TrackerKey, kind: Kind, *, now_ms: int) -> MutationTracker | None:
        """The counter to which charges of other members are added; see `RateQuotas.counter_of`."""
        tracker = self._trackers.find_own(key)
        version = self._limits.version
        if tracker is not None and tracker.version == version:
            return None if tracker.match.limit is None else tracker
        match = match_of_tracker(self._limits, KEY, key)
        if match.limit is None:
            return None
        if tracker is None:
            tracker = self._trackers.find_or_make(key, match.shared_by, kind, now_ms=now_ms)
            if tracker.shared:
                return None
        tracker.bind(match, version, now_ms=now_ms)
        return tracker

    def loads(self, *, now_ms: int) -> Iterator[tuple[TrackerKey, float]]:
        """The recently charged permits of each counter, one at a time: see `RateQuotas.loads`."""
        for key, tracker in list(self._trackers.own()):
            yield key, _recent_charges(tracker, now_ms)

    def snapshot(self, *, only: Container[TrackerKey] | None = None, now_ms: int) -> list[TrackerSnapshot]:
        """A row for each counter, and a last row for all others if there are any.

        Args:
            only: the counters that get a row of their own; None means all. The last row adds up the rest.
            now_ms: the present.
        """
        return [row for row in self.rows(only=only, now_ms=now_ms) if row is not None]

    def rows(
        self, *, only: Container[TrackerKey] | None = None, now_ms: int
    ) -> Iterator[TrackerSnapshot | None]:
        """As `snapshot`, one counter at a time; None for one without a row. Other work may be done in between."""
        shared = list(self._trackers.shared())
        totals = ThrottleStats()
        for each in [self._forgotten, *(tracker.throttles for tracker in shared)]:
            totals.add_totals(each)
        charged = sum(each.rate.rate(now_ms=now_ms) for each in shared if _recent_charges(each, now_ms))
        least = min(
            (each.meter.tokens(now_ms=now_ms) for each in shared if each.match.limit is not None),
            default=None,
        )
        hidden = False
        for key, tracker in list(self._trackers.own()):
            # The counter may have been used since this generator began.
            at_ms = max(now_ms, tracker.last_ms)
            if only is None or key in only:
                yield self._snapshot(key, tracker, now_ms=at_ms)
                continue
            hidden = True
            totals.add_totals(tracker.throttles)
            if _recent_charges(tracker, at_ms):
                charged += tracker.rate.rate(now_ms=at_ms)
            yield None
        if shared or hidden or not totals.is_empty():
            alone = len(shared) == 1 and not hidden
            match = shared[0].match if alone else Match(None, Rule.NONE, TrackerKey("", ""))
            yield _snapshot_other(match, least, charged, totals, shared, now_ms=now_ms)

    def _make_tracker(self, key: TrackerKey | None, limit: float, now_ms: int) -> MutationTracker:
        return MutationTracker(
            self._make_meter(limit, now_ms), self._forgotten, shared=key is None, now_ms=now_ms
        )

    def _make_group_tracker(self, _key: GroupKey, now_ms: int) -> MutationTracker:
        return MutationTracker(
            self._make_meter(UNLIMITED, now_ms), self._forgotten, shared=False, now_ms=now_ms
        )

    def _tracker(self, match: Match, kind: Kind, *, now_ms: int) -> MutationTracker:
        tracker = self._trackers.find_or_make(match.tracker_key, match.shared_by, kind, now_ms=now_ms)
        tracker.bind(match, self._limits.version, now_ms=now_ms)
        tracker.last_ms = now_ms
        return tracker

    def _snapshot(self, key: TrackerKey, tracker: MutationTracker, *, now_ms: int) -> TrackerSnapshot:
        # While the key is off, Kafka does not change its sensors. So a debt outlives the removal of its quota.
        if tracker.version != self._limits.version and self._limits.enabled(KEY):
            tracker.bind(match_of_tracker(self._limits, KEY, key), self._limits.version, now_ms=now_ms)
        match = tracker.match
        return TrackerSnapshot(
            user=key.user,
            client_id=key.client_id,
            rule=match.rule,
            limit=match.limit,
            tokens=None if match.limit is None else tracker.meter.tokens(now_ms=now_ms),
            mutation_rate=max(0.0, tracker.rate.rate(now_ms=now_ms)),
            throttle_time_ms=average_throttle_ms([tracker.throttles], now_ms=now_ms),
            throttled_total=tracker.throttles.throttled_total,
            throttled_ms_total=tracker.throttles.throttled_ms_total,
            refused_total=tracker.throttles.refused_total,
            would_throttle_total=tracker.throttles.would_throttle_total,
            other=False,
        )


def _snapshot_other(
    match: Match,
    tokens: float | None,
    rate: float,
    totals: ThrottleStats,
    shared: list[MutationTracker],
    *,
    now_ms: int,
) -> TrackerSnapshot:
    return TrackerSnapshot(
        user="",
        client_id="",
        rule=match.rule,
        limit=match.limit,
        tokens=tokens,
        mutation_rate=max(0.0, rate),
        throttle_time_ms=average_throttle_ms([each.throttles for each in shared], now_ms=now_ms),
        throttled_total=totals.throttled_total,
        throttled_ms_total=totals.throttled_ms_total,
        refused_total=totals.refused_total,
        would_throttle_total=totals.would_throttle_total,
        other=True,
    )


def _longest(counters: Iterable[MutationTracker], now_ms: int) -> tuple[MutationTracker | None, int]:
    """The counter with the longest wait, and that wait in ms; None: no counter makes its clients wait."""
    asking, longest_ms = None, 0
    for each in counters:
        if each.match.limit is not None and not each.match.observe:
            wait_ms = each.meter.throttle_time_ms(now_ms=now_ms)
            if wait_ms > longest_ms:
                asking, longest_ms = each, wait_ms
    return asking, longest_ms


def _observed_debt(tracker: MutationTracker, now_ms: int) -> bool:
    """Whether an observed counter would make its clients wait. If so, counts it in `would_throttle_total`."""
    match = tracker.match
    if not match.observe or match.limit is None or not tracker.meter.throttle_time_ms(now_ms=now_ms):
        return False
    tracker.throttles.would_throttle_total += 1
    return True


def _recent_charges(tracker: MutationTracker, now_ms: int) -> float:
    return tracker.rate.held if now_ms - tracker.last_ms < METRIC_WINDOW_NUM * METRIC_WINDOW_MS else 0.0
