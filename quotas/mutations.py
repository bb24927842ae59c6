"""The controller mutation quota (KIP-599; Kafka's ControllerMutationQuotaManager).

Topics are charged one by one, in the order of the request. A *strict* charge looks first: in debt the topic
is refused and costs nothing, otherwise it is accepted whatever its size. A *permissive* charge, for clients
too old to know error 89, always accepts and looks afterwards. So a strict request that goes into debt is not
throttled itself, and the same request from an old client is.

A client's groups have counters of their own (`quotas/group_quotas.py`). A topic that one of them refuses is charged
to none, and every other topic to each. The longest wait is the client's.

The number of counters is bounded. Only one that is full may be forgotten, since forgetting a debt would be a
way to get rid of it; when every counter holds a debt, clients of one kind share one (`quotas/trackers.py`).
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
    """What a request that only validates costs: nothing, as KIP-599 says, or the same, as KRaft does."""

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
    """What was decided for one topic."""

    accepted: bool
    throttle_time_ms: int  # 0 for an accepted strict charge even when it went into debt
    permits: float
    tracker_key: TrackerKey
    rule: Rule
    limit: float | None  # the configured one, permits per second; None is unlimited
    charged: float = 0.0  # permits taken, 0 when refused, free or not counted
    shared: bool = False  # charged to the counter that overflowing clients of this kind share
    kind: Kind = ""
    groups: tuple[str, ...] = ()  # whose counters were charged too
    group: str = ""  # whose counter has refused it or asked for the wait; "": the client's own
    own: bool = True  # whether the client's own counter was charged, if any was

    @property
    def is_limited(self) -> bool:
        """Whether something was charged that a limit counts."""
        return self.charged > 0 and (self.limit is not None or bool(self.groups))


@dataclass(frozen=True, slots=True)
class RequestDecision:
    """What was decided for one request, topic by topic in the order given."""

    topics: tuple[MutationDecision, ...]
    throttle_time_ms: int  # of the last violation, at decided_ms
    decided_ms: int

    def throttle_time_ms_at(self, *, now_ms: int) -> int:
        """What is left of the throttle when the answer leaves: time spent waiting for the broker counts."""
        return max(0, self.throttle_time_ms - (now_ms - self.decided_ms))


@dataclass(frozen=True, slots=True)
class TrackerSnapshot:
    """One counter, for metrics."""

    user: str
    client_id: str
    rule: Rule
    limit: float | None  # permits per second; None when unlimited, or of no one limit
    tokens: float | None  # None when unlimited
    mutation_rate: float  # permits per second over Kafka's metric windows
    throttle_time_ms: float | None  # average over the same windows, None when nothing was throttled
    throttled_total: int  # requests
    throttled_ms_total: int
    refused_total: int  # topics
    would_throttle_total: int  # what observe mode let through
    other: bool  # the one row for all that have no counter of their own, so that totals add up


class MutationTracker:
    """One counter; for the exchange of a fleet. Others use `MutationQuotas`."""

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
        self.version = 0  # of the limits that `match` was found in
        self.rate = SampledRate(METRIC_WINDOW_NUM, METRIC_WINDOW_MS, now_ms=now_ms)
        self.throttles = ThrottleStats()
        self._settled = 0.0  # of what was charged here: what the other members of a fleet know
        self._aside: SetAside | None = None  # while only a part of the limit is in force
        self._forgotten = forgotten

    def untold(self, *, now_ms: int) -> float:
        """The permits that were charged here, are not back yet, and were not sent; below 0: given back."""
        recorded = self.rate.recorded
        untold = recorded - self._settled
        taken = max(0.0, self.meter.taken(now_ms=now_ms))
        if untold > taken:  # others would take what has come back since for a debt
            untold = taken
            self._settled = recorded - untold
        return untold

    @property
    def group(self) -> str:
        """Whose counter it is; "": a client's, or one that clients share."""
        beside = self.match.beside
        return beside.group if beside is not None and isinstance(beside.group, str) else ""

    @property
    def stirred(self) -> bool:
        """Whether others may need a message."""
        return self.rate.recorded != self._settled

    def near(self, untold: float, members: int, *, now_ms: int) -> bool:
        """Always: mutations are rare, and each one counts."""
        return True

    def settle(self, told: float) -> None:
        """So much was sent to the others."""
        self._settled += told

    def delivered(self, told: float, *, now_ms: int) -> None:
        """No mutation waits for messages."""

    def record_others(self, value: float, *, now_ms: int) -> None:
        """Takes the permits that another member of the fleet has charged, as a debt where there are none."""
        self.last_ms = now_ms
        if self._aside is not None:
            self._aside.add(value, 0.0, now_ms=now_ms)
        else:
            self.meter.record(value, now_ms=now_ms)

    def give_back(self, permits: float, *, now_ms: int) -> None:
        """Takes back what was charged here; a part of it may have been put aside since."""
        taken = max(0.0, self.meter.taken(now_ms=now_ms))
        self.meter.record(-permits, now_ms=now_ms)
        self.rate.record(-permits, now_ms=now_ms)
        if self._aside is not None and permits > taken:
            self._aside.add(taken - permits, 0.0, now_ms=now_ms)

    @property
    def recorded_here(self) -> float:
        """All permits that were ever charged here, less those given back; what others charged is left out."""
        return self.rate.recorded

    @property
    def left_until_ms(self) -> int:
        """Nothing of this counter's is left behind by connections."""
        return 0

    def state(self, *, now_ms: int) -> CounterState:
        """Where it stands, for the process that replaces this one."""
        return CounterState(fill=self.level(now_ms=now_ms)[0])

    def take_over(self, state: CounterState, *, now_ms: int) -> None:
        """Stand at least where the counter of the process stands that this one replaces."""
        self.raise_to(state.fill, 0.0, now_ms=now_ms)

    def level(self, *, now_ms: int) -> tuple[float, float]:
        """The permits that are taken; the second is of byte rates."""
        taken = self.meter.taken(now_ms=now_ms)
        return max(0.0, taken if self._aside is None else taken + self._aside.fill(now_ms=now_ms)), 0.0

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None:
        """Stands at least where the counter of another member stands; see `level`."""
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
            permits: partitions created or deleted. 0 is a topic that the broker will refuse anyway: always
                accepted, nothing is looked at.
            strict: whether the client can read error 89.
            kind: which clients it shares a counter with when there are too many; None: those of its user.
            address: where the client comes from; "": it is not known, so it is in no group by address.
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
            # Not charged, as if it had been refused: no debt piles up that would be due later.
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
            validate_only: the request's flag; what it costs is a setting.
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
        """Gives permits back for a topic that the broker refused; nothing when none were taken.

        Args:
            decision: what `charge` answered.
            permits: how many, at most what was charged; None is all of them.
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
            return  # it was full and forgotten; there is nothing to give back to
        tracker.give_back(amount, now_ms=now_ms)

    def is_limited(self, user: str, client_id: str, address: str = "") -> bool:
        """Whether this client has a limit that is enforced, and not only observed or switched off."""
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
        """How long the debts last that make this client wait, 0 when there is none. Charges nothing."""
        if not self.enabled:  # a debt outlives that
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
        """How long a permissive request has to wait before it is decided, 0 for not at all.

        A client that cannot be refused goes into debt by one more request on each new connection. Within one window
        of debt that is Kafka's own behaviour; beyond it the debt is worked off first.
        """
        debt_ms = self.throttle_time_ms(user, client_id, kind=kind, address=address, now_ms=now_ms)
        return max(0, debt_ms - self.window_ms)

    @property
    def window_ms(self) -> int:
        """How long the windows of a counter are together."""
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
        """Counts a request that this quota made wait, once `quotas.combine` has counted it for this family.

        Args:
            user, client_id, kind: as for `charge`.
            throttle_time_ms: > 0.
            group: whose counter asked for it; "": the client's own.
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
        """Limit, tokens and whether it is only observed, of a counter; no limit and None without one.

        Args:
            tracker_key: of a client's own counter.
            group: the counter is that of this group; "": it is the client's own.
            now_ms: the present.
        """
        tracker = self.groups.find(GroupKey(None, group)) if group else self._trackers.find_own(tracker_key)
        if tracker is None or tracker.match.limit is None:
            return None, None, False
        return tracker.match.whole_limit, tracker.meter.tokens(now_ms=now_ms), tracker.match.observe

    def expire(self, *, now_ms: int) -> None:
        """Forgets clients that have long been silent; for every now and then, see `TrackerTable.expire`."""
        self._trackers.expire(now_ms=now_ms)
        self.groups.expire(now_ms=now_ms)

    @property
    def counters(self) -> int:
        """How many clients have a counter of their own."""
        return len(self._trackers.own())

    def own(self) -> ItemsView[TrackerKey, MutationTracker]:
        """The counters of one client or group of clients each, for the exchange of a fleet."""
        return self._trackers.own()

    def stirred(self) -> list[tuple[TrackerKey, MutationTracker]]:
        """Those that others need a message about."""
        return [item for item in self._trackers.own() if item[1].stirred]

    def counter_of(self, key: TrackerKey, kind: Kind, *, now_ms: int) -> MutationTracker | None:
        """The counter for what others have charged; None when nothing limits it here, or none is left for it."""
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
        """The permits charged lately, by counter; 0 for all others. One by one: see `RateQuotas.loads`."""
        for key, tracker in list(self._trackers.own()):
            yield key, _recent_charges(tracker, now_ms)

    def snapshot(self, *, only: Container[TrackerKey] | None = None, now_ms: int) -> list[TrackerSnapshot]:
        """Every counter; last, when there is anything to show, the one row for all others.

        Args:
            only: counters to give a row of their own; None is all. The rest is added up in the last row.
            now_ms: the present.
        """
        return [row for row in self.rows(only=only, now_ms=now_ms) if row is not None]

    def rows(
        self, *, only: Container[TrackerKey] | None = None, now_ms: int
    ) -> Iterator[TrackerSnapshot | None]:
        """The same, counter by counter; None for one without a row. Other work may be done in between."""
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
            # It may have been used since this began.
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
        # While the key is off Kafka leaves its sensors alone, so a debt outlives its quota's removal.
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
    """Which of these makes its clients wait for longest, and for how long; None: none does."""
    asking, longest_ms = None, 0
    for each in counters:
        if each.match.limit is not None and not each.match.observe:
            wait_ms = each.meter.throttle_time_ms(now_ms=now_ms)
            if wait_ms > longest_ms:
                asking, longest_ms = each, wait_ms
    return asking, longest_ms


def _observed_debt(tracker: MutationTracker, now_ms: int) -> bool:
    """Whether this one would make its clients wait, and only observes; it is counted."""
    match = tracker.match
    if not match.observe or match.limit is None or not tracker.meter.throttle_time_ms(now_ms=now_ms):
        return False
    tracker.throttles.would_throttle_total += 1
    return True


def _recent_charges(tracker: MutationTracker, now_ms: int) -> float:
    return tracker.rate.held if now_ms - tracker.last_ms < METRIC_WINDOW_NUM * METRIC_WINDOW_MS else 0.0
