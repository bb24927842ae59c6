"""Makes a plan of quotas from the rates that clients required. Pure: no Spark, no files, no clock.

The *required rate* of a client's day is the least quota with which at most the target share of its units would have
waited (`pipeline.replay.kernels.deferral`). One of two rules combines the days of a client into one rate, and a
margin is added. A quota in force that lies within [lower, upper] is left alone, so that quotas do not change with
every day's noise.

If a client was muted for more than a little of the time, its real demand is not known. Its quota is then only raised,
by a guess, and the guess has an upper limit. `entry_of` is the rule, and the backtest judges the same function.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias

from pipeline.plans.plan import Action, Basis, CapacityCheck, Plan, PlanEntry
from quotas.entities import BURST_KEYS, DEFAULT, Family, QuotaEntity, QuotaKey, counted
from quotas.limits import validate_entity
from quotas.usage_record import OTHER, UsageApi

_WHOLE: Final = frozenset(
    {QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.CONNECTION_CREATION_RATE}
)
_SEES_ALL: Final = frozenset({UsageApi.MUTATION, UsageApi.CONNECT, UsageApi.USER_CONNECT})
"""APIs whose refused requests are recorded: throttling hides no demand."""


class Rule(StrEnum):
    """How the days of a history become one required rate."""

    DECAYED = "decayed"
    """90th percentile of the days; each counts half as much as the next. Follows drift, forgets a burst in days."""
    LARGEST = "largest"
    """The largest day: for clients with one busy day a week."""


HISTORY_DAYS: Final = 7
"""The number of days that a recommendation uses by default."""
_QUANTILE: Final = 0.9
_HALF_LIFE_DAYS: Final = 1.0
_MOST_BURSTS: Final = 4.0


@dataclass(frozen=True, slots=True)
class ClientDay:
    """One day of one client. Each of its counters has a quota of its own, so the largest required rate counts."""

    date: str
    required_rate: float
    active_s: int
    censored_s: int
    quota: float | None
    """The last limit in force."""
    gateways: int = 1
    """The number of counters: gateways or fleets, or their brokers."""
    observed: bool = False
    """Whether the quota was in mode observe. Then the client's behaviour does not result from it."""
    beside: float = 0.0
    """The share of its throttle times that limits other than its quota caused."""
    left_out: bool = False
    """Whether its required rate is not known. Then only the quota of the day counts."""


@dataclass(frozen=True, slots=True)
class ClientHistory:
    """A client as its use is counted. An empty user or client id is shared (`quotas.resolution.TrackerKey`)."""

    user: str
    client_id: str
    api: UsageApi
    key: QuotaKey
    days: tuple[ClientDay, ...]
    planned: float | None = None
    """The quota that an earlier plan would have set if the records are from before that plan; None: as recorded."""


@dataclass(frozen=True, slots=True)
class RecommendationSettings:
    """How to recommend.

    Attributes:
        target: share of units that may wait.
        rule: see `Rule`.
        margin: factor on the required rate.
        bump: factor on the quota in force of a client whose demand is not known.
        ceiling: a guess is at most this many times the client's largest recorded required rate. If a client is far
            below its quota, the quota was not the reason for its mutes.
        largest_change: a quota in force is multiplied or divided by at most this in one plan.
        censored_from: from this share of muted among active seconds on, a client's demand counts as not known.
        overrides: the number of clients of each kind that get quotas of their own; a default covers the others. None:
            every client gets its own.
    """

    target: float = 0.01
    rule: Rule = Rule.DECAYED
    margin: float = 1.25
    bump: float = 1.2
    ceiling: float = 4.0
    largest_change: float = 4.0
    censored_from: float = 0.01
    overrides: int | None = None


def recommend(
    histories: Iterable[ClientHistory],
    settings: RecommendationSettings,
    basis: Basis,
    *,
    made_at: str,
    capacity: Mapping[QuotaKey, float] | None = None,
    peaks: Mapping[QuotaKey, float] | None = None,
) -> Plan:
    """A plan for these clients, ordered by key and then by value, largest first.

    Args:
        histories: one of each client.
        settings: how to recommend.
        basis: the data that the histories were made of.
        made_at: ISO time, for the plan.
        capacity: what the cluster can take, in the key's unit per second.
        peaks: the most that all clients together used.
    """
    found = recommended(histories, settings, capacity or {}, peaks or {})
    return plan_of(found, settings, basis, made_at=made_at, capacity=capacity, peaks=peaks)


Recommended: TypeAlias = tuple[PlanEntry, int]
"""A client's quota, and the number of counters that count the client."""


def recommended(
    histories: Iterable[ClientHistory],
    settings: RecommendationSettings,
    capacity: Mapping[QuotaKey, float],
    peaks: Mapping[QuotaKey, float],
) -> Iterator[Recommended]:
    """The quotas of all clients that can have one; see `recommend` for the arguments."""
    for history in histories:
        key = history.key
        entry = entry_of(history, settings, limit=capacity.get(key), peak=peaks.get(key))
        if entry is not None:
            yield entry, max(day.gateways for day in history.days)


def plan_of(
    found: Iterable[Recommended],
    settings: RecommendationSettings,
    basis: Basis,
    *,
    made_at: str,
    capacity: Mapping[QuotaKey, float] | None = None,
    peaks: Mapping[QuotaKey, float] | None = None,
) -> Plan:
    """Makes a plan of quotas, which come in any order; see `recommend` for the other arguments."""
    by_key: dict[QuotaKey, list[Recommended]] = {}
    for entry, counters in found:
        by_key.setdefault(entry.key, []).append((entry, counters))
    entries: list[PlanEntry] = []
    checks: list[CapacityCheck] = []
    for key in QuotaKey:
        largest_first = sorted(by_key.get(key, ()), key=lambda pair: (-pair[0].value, str(pair[0].entity)))
        if not largest_first:
            continue
        chosen, covered = _with_default(largest_first, settings)
        entries += chosen
        # Each client under the default may use all of it, in every gateway that it uses.
        allocated = sum(entry.value * gateways for entry, gateways in [*covered[0], *covered[1]])
        checks.append(_check(key, allocated, (peaks or {}).get(key, 0.0), (capacity or {}).get(key)))
    return Plan(made_at, basis, tuple(checks), tuple(entries))


def with_bursts(plan: Plan, burst_s: float) -> Plan:
    """Adds a bucket of `burst_s` seconds to each byte rate of the plan, for which the rates were calculated."""
    entries: list[PlanEntry] = []
    for entry in plan.entries:
        entries.append(entry)
        if entry.key in BURST_KEYS:
            reason = f"{entry.key} {amount(entry.value, entry.key)} was found for a bucket of {burst_s:g} s"
            entries.append(
                replace(
                    entry,
                    key=BURST_KEYS[entry.key],
                    action=Action.SET,
                    value=burst_s,
                    old=None,
                    lower=burst_s,
                    upper=burst_s,
                    reason=reason,
                )
            )
    return replace(plan, entries=tuple(entries))


def entity_of(history: ClientHistory) -> QuotaEntity | None:
    """The entity of a client's quota. None without a name, and for the sum of clients beyond the record's cap."""
    if history.client_id == OTHER or not (history.user or history.client_id):
        return None
    entity = QuotaEntity(user=history.user or None, client_id=history.client_id or None)
    if history.api is UsageApi.CONNECT:
        entity = QuotaEntity(ip=history.client_id)
    # In records with hashed names an address is a hash, for which no quota can be set.
    return entity if validate_entity(entity) is None else None


def required_rate_of(days: Sequence[ClientDay], rule: Rule) -> float:
    """Combines the required rates of several days into one; 0 if no day has one."""
    ordered = sorted((day for day in days if day.required_rate > 0), key=lambda day: day.required_rate)
    if not ordered:
        return 0.0
    if rule is Rule.LARGEST:
        return ordered[-1].required_rate
    last = max(datetime.date.fromisoformat(day.date) for day in days)
    weights = [
        0.5 ** ((last - datetime.date.fromisoformat(day.date)).days / _HALF_LIFE_DAYS) for day in ordered
    ]
    reached, wanted = 0.0, _QUANTILE * sum(weights)
    for day, weight in zip(ordered, weights, strict=True):
        reached += weight
        if reached >= wanted:
            return day.required_rate
    return ordered[-1].required_rate


def least_active_s(api: UsageApi, burst_s: float, margin: float) -> float:
    """How many active seconds a client must have for a quota if it was active on one day only.

    If it used a constant rate for some seconds, the required rate is that rate * seconds / (burst_s + seconds). With
    the margin it is at least the rate from burst_s / (margin - 1) seconds on.

    Args:
        api: the API. Refused requests of some APIs are recorded, and their quotas are for bursts: 0.
        burst_s: the part of the quota that can be used at once, in seconds of quota.
        margin: factor on the required rate.
    """
    if api in _SEES_ALL:
        return 0.0
    return burst_s * min(_MOST_BURSTS, 1 / (margin - 1) if margin > 1 else _MOST_BURSTS)


def amount(value: float, key: QuotaKey) -> str:
    """A quota as text, such as ``12.3 MB/s``."""
    if key in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
        for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
            if value >= size:
                return f"{value / size:.3g} {unit}/s"
        return f"{value:.0f} B/s"
    unit = {
        QuotaKey.REQUEST_PERCENTAGE: " %",
        QuotaKey.CONTROLLER_MUTATION_RATE: " partitions/s",
        QuotaKey.CONNECTION_CREATION_RATE: " connections/s",
    }.get(key, " requests/s")
    return f"{value:.4g}{unit}"


def entry_of(
    history: ClientHistory, settings: RecommendationSettings, *, limit: float | None, peak: float | None
) -> PlanEntry | None:
    """Decides a client's quota. None for a client that cannot have a quota, or that used nothing.

    Args:
        history: the client's days.
        settings: how to recommend.
        limit: what the cluster can take; no quota is above it.
        peak: the most that all clients together used. Without a limit no guess is above it.
    """
    entity = entity_of(history)
    kept = [day for day in history.days if not day.left_out]
    used = [day for day in kept if day.required_rate > 0]
    if entity is None or not used:
        return None
    key = history.key
    days = len(kept)
    busiest = max(used, key=lambda day: day.required_rate)
    required = required_rate_of(kept, settings.rule)
    latest_first = sorted(history.days, key=lambda day: day.date, reverse=True)
    recorded = latest_first[0].quota
    old = recorded if history.planned is None else history.planned
    # A gateway that was isolated from its fleet recorded only a share of the quota during that time.
    old = None if old is None else _whole(old, key)
    # A quota that was removed meanwhile still explains the mutes of the days on which it was in force.
    held_to = next(
        (_whole(day.quota, key) for day in latest_first if day.quota is not None and not day.observed), None
    )
    active_s = sum(day.active_s for day in kept)
    censored = sum(day.censored_s for day in kept) / max(1, active_s)
    value = lower = _rounded_up(required * settings.margin, key)
    most = f"most {amount(busiest.required_rate, key)}, {busiest.date}"
    reason = (
        f"needed {amount(required, key)} by its last {days} day{'s' * (days > 1)} ({most}) for "
        f"{1 - settings.target:.4g} of its use not to wait; +{settings.margin - 1:.0%}"
    )
    # Mutes count for a raise only as far as the quota itself caused them.
    beside = sum(day.censored_s * day.beside for day in kept) / max(1, sum(day.censored_s for day in kept))
    unknown = censored >= settings.censored_from and history.api not in _SEES_ALL
    if unknown and censored * (1 - beside) < settings.censored_from:
        reason = (
            f"was muted in {censored:.1%} of its active seconds, {beside:.0%} of that by other limits than its quota "
            f"(groups, topics, records, a capacity){'' if old is None else ': not lowered'}; {reason}"
        )
        value = value if old is None else max(value, old)
        lower = min(value, required)
    elif unknown and held_to is not None:
        bumped = _rounded_up(held_to * settings.bump, key)
        end, why = _end_of_guesses(busiest.required_rate, settings, limit, peak, key)
        guess = bumped if bumped <= end else max(held_to, min(bumped, _rounded_up(end, key)))
        if guess >= value:
            value = lower = guess
        how = f"raised from {amount(held_to, key)}" if bumped <= end else f"not raised above {why}"
        reason = (
            f"was muted in {censored:.1%} of its active seconds, so what it wanted is not known: {how}"
            f"{'' if recorded is not None else ', lifted meanwhile'}; {reason}"
        )
    else:
        lower = min(value, required)
    in_force = history.planned is not None or not latest_first[0].observed
    if (
        old is not None
        and in_force
        and not old / settings.largest_change <= value <= old * settings.largest_change
    ):
        bound = old * settings.largest_change if value > old else old / settings.largest_change
        reason = (
            f"{amount(value, key)} is more than may be changed at once, {settings.largest_change:g} times: "
            f"on the way from {amount(old, key)}; {reason}"
        )
        value = lower = _rounded_up(bound, key)
    if limit is not None and value > limit:
        reason = f"{amount(value, key)} is more than the cluster can take: {amount(limit, key)}; {reason}"
        value = max(1.0, float(math.floor(limit))) if key in _WHOLE else limit
    lower = min(lower, value)
    upper = max(value, value * (1 + 1 / days))
    if limit is not None:
        upper = min(upper, max(value, limit))
    action = Action.SET
    if old is not None and lower <= old <= upper:
        action, value = Action.KEEP, old
        reason = (
            f"stays at {amount(old, key)}: a quota from {amount(lower, key)} to {amount(upper, key)} is not changed; "
            f"{reason}"
        )
    return PlanEntry(entity, key, action, value, old, lower, upper, None, days, censored, reason)


def _end_of_guesses(
    seen: float, settings: RecommendationSettings, limit: float | None, peak: float | None, key: QuotaKey
) -> tuple[float, str]:
    """The limit above which no quota is raised by a guess, and the reason for it as text."""
    ends = [
        (
            settings.ceiling * seen,
            f"{settings.ceiling:g} times the {amount(seen, key)} that it was seen to need",
        )
    ]
    if limit is not None:
        ends.append((limit, f"the {amount(limit, key)} that the cluster can take"))
    elif peak:
        ends.append((peak, f"the {amount(peak, key)} that all used together (--capacity says what they may)"))
    return min(ends)


def _rounded_up(value: float, key: QuotaKey) -> float:
    return _whole(math.ceil(value * 100) / 100, key)


def _whole(value: float, key: QuotaKey) -> float:
    """A value rounded up if quotas of this key must be whole numbers."""
    return float(math.ceil(value)) if key in _WHOLE else value


_Entries = list[Recommended]


def _with_default(
    recommended: _Entries, settings: RecommendationSettings
) -> tuple[list[PlanEntry], tuple[_Entries, _Entries]]:
    """The plan's entries; the entries of clients with quotas of their own; and those of clients under a default."""
    if settings.overrides is None:
        return [entry for entry, _ in recommended], (recommended, [])
    chosen: list[PlanEntry] = []
    own: _Entries = []
    covered: _Entries = []
    families = sorted({str(entry.entity.family) for entry, _ in recommended})
    for family in families:
        of_family = [pair for pair in recommended if pair[0].entity.family == family]
        own += of_family[: settings.overrides]
        rest = of_family[settings.overrides :]
        if rest:
            default = _default_entry(rest)
            chosen.append(default)
            covered += [(default, gateways) for _, gateways in rest]
        largest = [entry for entry, _ in of_family[: settings.overrides]]
        chosen += [_made_its_own(entry) for entry in largest] if rest else largest
    return chosen, (own, covered)


def _made_its_own(entry: PlanEntry) -> PlanEntry:
    """Sets a kept quota explicitly. It may come from a default that the plan changes, which records do not show."""
    if entry.action is not Action.KEEP:
        return entry
    return replace(entry, action=Action.SET, reason=f"its own, whatever the default is; {entry.reason}")


def _default_entry(rest: Sequence[tuple[PlanEntry, int]]) -> PlanEntry:
    entries = [entry for entry, _ in rest]
    largest = max(entries, key=lambda entry: entry.value)
    entity = largest.entity
    key = largest.key
    return PlanEntry(
        entity=QuotaEntity(
            user=None if entity.user is None else DEFAULT,
            client_id=None if entity.client_id is None else DEFAULT,
            ip=DEFAULT if entity.family is Family.IP else None,
        ),
        key=key,
        action=Action.SET,
        value=largest.value,
        old=None,
        lower=largest.lower,
        upper=largest.upper,
        expected_throttled=None,
        days=largest.days,
        censored=max(entry.censored for entry in entries),
        reason=(
            f"covers {counted(len(entries), 'client')} without a quota of their own, and clients not seen yet; the "
            "largest, "
            f"{entity}: {largest.reason}"
        ),
    )


def _check(key: QuotaKey, allocated: float, peak: float, limit: float | None) -> CapacityCheck:
    ratio = allocated / peak if peak > 0 else 0.0
    note = f"quotas add up to {amount(allocated, key)}"
    if peak > 0:
        note += f", {ratio:.3g} times the most that all used together in ten seconds ({amount(peak, key)})"
    fits = limit is None or peak <= limit
    if limit is not None:
        note += f"; the cluster can take {amount(limit, key)}"
        if not fits:
            note += ": less than was used, so these quotas do not protect it"
        elif allocated > limit:
            note += f", so it holds as long as not more than {limit / allocated:.0%} of the quotas are used at once"
    return CapacityCheck(key, limit, allocated, peak, ratio, fits, note)
