"""The limits that guarantees and lending give to counters, once per interval; the arithmetic is in `quotas.lending`.

What an entity wants is what it used since the last division, or more than its limit if its counter asked anybody to
wait meanwhile or its bucket is nearly full. A counter of a fleet holds what all members record, so each member sees
the same use.

A division knows only counters that were used. Those that are new, or come back, also count in one counter that they
share until the next division (`RateQuotas.shared_by_new`): otherwise each new name would have what is left to itself.
A tier that has a brake, or loses for slow brokers, has such a counter of its own. There a counter is *young* until
`YOUNG_FOR` divisions have found it used: a known counter passes one request of any size, and names cost nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final, Protocol, TypeAlias

from quotas.entities import GUARANTEE_KEYS, QuotaKey
from quotas.lending import DEFAULT_TIER, LEAST_PART, TIERS, Claim, Cut, CutBy, Division, divide, shed
from quotas.limits import Limits
from quotas.resolution import Match, Rule, TrackerKey, entity_of

_SAME: Final = 0.002
"""A limit that would change by less stays: each change costs, and is within the error of a rate."""


LENT_BURST_S: Final = 1.0
"""Of a bucket where the quota has none. Kafka's window lets a client use ten seconds of its limit in one, and mutes
it for ten then: no guarantee could be seen to be kept."""

_NEW_BURST_S: Final = 0.2
"""Of the bucket that new counters share: they may all begin at once, and have buckets of their own from the next
division on."""

_DIVISIONS_BEFORE_A_BRAKE: Final = 10
"""Their mean is what a tier uses when its brake begins."""

_LEAST_OF_TIER: Final = 0.001
"""Of the capacity: what a brake leaves to a tier in any case."""


MOST_SHARES: Final = 50
"""Of which a division is remembered counter by counter."""

_NEARLY_FULL_MS: Final = 500.0
"""A bucket that is full after so much more use belongs to a client that wants more. One that holds a request or two
does not: a client that uses less than its limit would keep a part that nothing uses."""


YOUNG_FOR: Final = 3
"""Divisions. Names that live shorter pass no more together than is left for them."""

_OF_ONE_COUNTER: Final = frozenset({Rule.USER_CLIENT, Rule.USER, Rule.CLIENT})
"""A guarantee of such a rule is for one counter: names that are invented do not have it."""


class LentCounter(Protocol):
    """A counter whose limit is divided.

    Attributes:
        good_until_ms: a look-up before then need not be made again; minus infinity: the counter was dropped.
        shared: by clients that have none of their own.
        match: its limit, with `Match.lent`.
        version: of all limits, when this one was found.
        owed_until_ms: the end of the longest wait that it has asked for.
        blocked_until_ms: nothing of it passes before.
    """

    good_until_ms: float
    shared: bool
    match: Match
    version: int
    owed_until_ms: int
    blocked_until_ms: float

    @property
    def recorded(self) -> float:
        """All that was ever recorded, by this process or others."""

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        """Puts a limit in force."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One counter at the last division.

    Attributes:
        recorded: see there.
        used_per_s: between the two last divisions.
        wanting_until_ms: the end of the longest wait that it has asked for.
        divided: it has a share of the capacity.
        came: it had none or is young, and was looked up since.
        tier: in which its share was divided; of no account where it has none.
        young_for: so many more divisions have to find it used.
    """

    recorded: float
    used_per_s: float
    wanting_until_ms: float
    divided: bool
    came: bool = False
    tier: int = DEFAULT_TIER
    young_for: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """What the last division made of one counter; per second, in the unit of the quota.

    Attributes:
        name: of the counter.
        guarantee: what is in force of its guarantee.
        used: since the division before.
        limit: from now on; infinite: none.
    """

    name: Hashable
    guarantee: float
    used: float
    limit: float

    @property
    def lent(self) -> float:
        """What it leaves of its guarantee to others."""
        return max(0.0, self.guarantee - self.used)

    @property
    def borrowed(self) -> float:
        """What it used beyond its guarantee."""
        return max(0.0, self.used - self.guarantee)

    @property
    def reclaimed(self) -> float:
        """What the division took back of that."""
        return max(0.0, self.used - self.limit)


@dataclass(frozen=True, slots=True)
class TierUse:
    """The same of all clients of a tier together, and what slow brokers take from it.

    Attributes:
        lent, borrowed, reclaimed: sums of its clients; see `Share`.
        shed: of its share of the capacity, what it loses for slow brokers, or would if that were in force.
    """

    lent: float = 0.0
    borrowed: float = 0.0
    reclaimed: float = 0.0
    shed: float = 0.0


@dataclass(frozen=True, slots=True)
class Lent:
    """The sums of a division, for metrics; per second, in the unit of the quota.

    Attributes:
        capacity: what there is.
        guaranteed: what entities use of their guarantees.
        lent: what they use beyond.
        waiting: how many want more than they get.
        by_tier: what each tier uses.
        braked: what tiers with a brake may use.
        shed: what tiers may use that lose for slow brokers, or would if that were in force.
        shares: of at most `MOST_SHARES` counters; those with a guarantee first, then those that use most.
        tiers: what each tier lends, borrows and loses.
    """

    capacity: float
    guaranteed: float
    lent: float
    waiting: int
    by_tier: tuple[float, ...]
    braked: Mapping[int, float]
    shed: Mapping[int, float]
    shares: tuple[Share, ...] = ()
    tiers: tuple[TierUse, ...] = (TierUse(),) * TIERS


_Use: TypeAlias = tuple[Hashable, Claim, float]
"""The name of a counter, its claim, and what it used since the last division, per second."""


class Lender:
    """Divides the capacity of one key.

    Attributes:
        capacity: per second.
        observe: the division is only computed.
        division: the last one.
        last: its sums; None: there was none.
        usable_part: of the capacity, what brokers can take; see `quotas.overload`.
        sheds: whether tiers lose the rest. Otherwise it is only computed.
        slow_since_ms: since when brokers can't take all of it; None: they can.
    """

    def __init__(
        self, limits: Limits, key: QuotaKey, capacity: float, *, observe: bool = False, now_ms: int
    ) -> None:
        """Nothing is known to be used: everybody may have all of it.

        Args:
            limits: with the guarantees, weights and tiers.
            key: a key of `GUARANTEE_KEYS`.
            capacity: > 0.
            observe: see `Lender`.
            now_ms: the present.
        """
        self._limits = limits
        self._key = key
        self._guarantee_key = GUARANTEE_KEYS[key]
        self.capacity = capacity
        self.observe = observe
        self.division = Division(spare=capacity)
        self.last: Lent | None = None
        self._seen: dict[Hashable, _Seen] = {}
        self._divided_ms = now_ms
        self._used_by_known = 0.0  # by counters that the division before has seen
        self._shared_by_old = [0.0] * TIERS  # what counters have that are not young
        self._used_by_tier: deque[tuple[float, ...]] = deque(maxlen=_DIVISIONS_BEFORE_A_BRAKE)
        self._of_tiers: dict[int, Division] = {}  # that have a brake, or lose for slow brokers
        self._most_of_tiers: dict[int, float] = {}
        self._usable_of_tiers: dict[int, float] = {}
        self.usable_part = 1.0
        self.sheds = False
        self.slow_since_ms: int | None = None
        self._shed: dict[int, float] = {}
        self._lost: dict[int, float] = {}  # of their shares, by tiers that lose for slow brokers
        self._cuts: dict[int, Cut] = {}

    def lend(self, match: Match, name: Hashable) -> Match:
        """The limit that is in force for a client by the last division.

        Args:
            match: its configured limit.
            name: of its counter.
        """
        if self.observe:
            return match
        seen = self._seen.get(name)
        claim = replace(self._claim(match), demand=0.0 if seen is None else seen.used_per_s)
        # Until the next division in its tier of the last one: others have what is left of another tier.
        if seen is not None and seen.divided:
            return self._lent(match, claim, seen.tier)
        lent = self._lent(match, claim, claim.tier)
        if claim.guarantee and match.rule in _OF_ONE_COUNTER:
            # What is left is for the counter that new ones share, and this one does not count there.
            kept = max(claim.guarantee * self.division.guarantees_kept, self.division.floor)
            return replace(lent, limit=min(kept, lent.limit or kept))
        return lent

    def is_new(self, match: Match, name: Hashable) -> bool:
        """Whether a counter that is looked up counts in the one that new counters share, until the next division.

        Args:
            match: its limit, as `lend` gave it.
            name: of the counter.
        """
        seen = self._seen.get(name)
        if seen is not None and seen.divided:
            return False
        self._come(name, seen)
        return not match.observe and _can_be_new(match)

    def is_young(self, match: Match, name: Hashable) -> bool:
        """Whether it counts in the one that young counters of its tier share; see `is_new`."""
        seen = self._seen.get(name)
        if seen is not None and seen.divided and not seen.young_for:
            return False
        self._come(name, seen)
        return not match.observe and _can_be_new(match)

    def _come(self, name: Hashable, seen: _Seen | None) -> None:
        if seen is not None and not seen.came:
            self._seen[name] = replace(seen, came=True)

    def used_by(self, tier: int) -> float | None:
        """What a tier used lately, per second; for `quotas.lending.Brake`. None: it is not known yet."""
        if not self._used_by_tier:
            return None
        return math.fsum(each[tier] for each in self._used_by_tier) / len(self._used_by_tier)

    def replaces(self, before: Lender) -> None:
        """Other settings are in force from now on; what tiers used stays known."""
        self._used_by_tier.extend(before._used_by_tier)

    @property
    def left(self) -> Match:
        """The limit of all new counters together, until the next division: what those that are known did not use."""
        capacity = self.capacity * self._limits.share
        usable = capacity * (self.usable_part if self.sheds else 1.0)
        return self._of_new(max(usable - self._used_by_known, LEAST_PART * capacity))

    @property
    def left_of_tiers(self) -> Mapping[int, Match]:
        """By tier, the limit of all young counters together: what its others leave of what a brake, or slow brokers,
        leave to it. Tiers without either are not in it.
        """
        return {
            tier: self._of_new(max(usable - self._shared_by_old[tier], LEAST_PART * usable))
            for tier, usable in self._usable_of_tiers.items()
        }

    def _of_new(self, limit: float) -> Match:
        observe = self._limits.observes(None)
        return Match(limit, Rule.CAPACITY, TrackerKey("", ""), observe, burst_s=_NEW_BURST_S, lent=Claim())

    def _lent(self, match: Match, claim: Claim, tier: int) -> Match:
        under = self._under_brake(claim, tier)
        limit = self.division.limit(under)
        # Others may have so much of the capacity that the cut makes no difference.
        cut = self._cuts.get(tier) if under.ceiling < claim.ceiling and limit >= under.ceiling else None
        burst_s = LENT_BURST_S if match.burst_s is None else match.burst_s
        # No quota says of a client without one that it is only observed.
        observe = match.observe or self._limits.observes(None)
        claimed = replace(claim, demand=0.0)
        return replace(match, limit=limit, burst_s=burst_s, observe=observe, lent=claimed, cut=cut)

    def _claim(self, match: Match) -> Claim:
        limits = self._limits
        ceiling = math.inf if match.limit is None else match.limit
        entity = entity_of(match)
        if entity is None:
            return Claim(ceiling=ceiling, demand=0.0)
        guarantee = (limits.get(entity, self._guarantee_key) or 0.0) * limits.share
        weight = limits.get(entity, QuotaKey.WEIGHT)
        tier = limits.get(entity, QuotaKey.TIER)
        return Claim(
            min(guarantee, ceiling),
            ceiling,
            1.0 if weight is None else weight,
            DEFAULT_TIER if tier is None else int(tier),
            demand=0.0,
        )

    def divide(
        self,
        counters: Sequence[tuple[Hashable, LentCounter]],
        *,
        new_waited: Container[int] = (),
        now_ms: int,
    ) -> Iterator[None]:
        """Divide the capacity anew, and put the limits in force, counter by counter.

        Args:
            counters: all of the key, with what names them.
            new_waited: the tiers whose new counters had to wait for what they share: they want more than they used.
            now_ms: the present.
        """
        elapsed_s = (now_ms - self._divided_ms) / 1000
        if elapsed_s <= 0:
            return
        claims, old, active, idle = [], [], [], []
        used_by_known = 0.0
        seen = {}
        for name, counter in counters:
            yield
            before = self._seen.get(name)
            # A counter that was there before the capacity has not come now.
            came = counter.good_until_ms < math.inf if before is None else before.came
            recorded = counter.recorded
            wanting_until_ms = float(counter.owed_until_ms)
            if counter.blocked_until_ms > now_ms - _NEARLY_FULL_MS:
                wanting_until_ms = max(wanting_until_ms, counter.blocked_until_ms)
            used_per_s = last_per_s = 0.0
            # What a counter has recorded before it was seen first, or before its place was taken, is no use of now.
            if before is not None and recorded >= before.recorded:
                used_per_s = (recorded - before.recorded) / elapsed_s
                wanting_until_ms = max(wanting_until_ms, before.wanting_until_ms)
                last_per_s = before.used_per_s
                used_by_known += used_per_s
            divided = bool(used_per_s or last_per_s or wanting_until_ms > self._divided_ms or came)
            match = counter.match
            young_for = 0 if before is None else before.young_for
            if came and not (before is not None and before.divided):
                young_for = YOUNG_FOR
            elif used_per_s:
                young_for = max(0, young_for - 1)
            bounded = match.lent is not None and match.lent.tier in self._usable_of_tiers
            asked = not divided or (young_for > 0 and bounded)
            if not (counter.shared or self.observe or counter.good_until_ms == -math.inf):
                # Each look-up of a new one asks `is_new`, of a young one `is_young`.
                counter.good_until_ms = float(now_ms) if asked else math.inf
            if not divided:
                seen[name] = _Seen(recorded, used_per_s, wanting_until_ms, divided)
                if match.lent is not None and match.lent.guarantee:
                    idle.append((name, match.lent, 0.0))
                continue
            claim = match.lent or self._claim(match)
            seen[name] = _Seen(
                recorded, used_per_s, wanting_until_ms, divided, tier=claim.tier, young_for=young_for
            )
            wants_more = wanting_until_ms > self._divided_ms or (came and claim.tier in new_waited)
            demand = math.inf if wants_more and not match.observe else max(used_per_s, last_per_s)
            claims.append(replace(claim, demand=demand))
            # A name that lives for less than a division is used too, but it says nothing of what it wants next.
            passed_per_s = recorded / elapsed_s if before is None and came else used_per_s
            active.append((name, counter, match, passed_per_s))
            if not (young_for and _can_be_new(match)):
                old.append(claims[-1])
        self._seen = seen
        self._divided_ms = now_ms
        capacity = self.capacity * self._limits.share
        # At the first division it is not known when counters have recorded what they hold.
        is_known = self.last is not None or not counters
        self._brake(claims, now_ms)
        self._divide(capacity, claims)
        uses = [
            (name, claim, used_per_s) for claim, (name, _, _, used_per_s) in zip(claims, active, strict=True)
        ]
        self.last = self._sums(capacity, uses, idle)
        if is_known:
            self._used_by_tier.append(self.last.by_tier)
        self._used_by_known = used_by_known
        self._shared_by_old = [0.0] * TIERS
        for claim in old if self._usable_of_tiers else ():
            self._shared_by_old[claim.tier] += self.division.share(self._under_brake(claim, claim.tier))
        if self.observe:
            return
        for claim, (_, counter, match, _) in zip(claims, active, strict=True):
            yield
            lent = self._lent(match, claim, claim.tier)
            if counter.match is match and (
                match.limit is None
                or lent.cut != match.cut
                or not math.isclose(lent.limit or 0.0, match.limit, rel_tol=_SAME)
            ):
                # A quota that has changed is found with the next request.
                counter.bind(lent, counter.version, now_ms=now_ms)

    def _brake(self, claims: Sequence[Claim], now_ms: int) -> None:
        """Divide what brakes leave to their tiers."""
        self._of_tiers, self._most_of_tiers, self._usable_of_tiers, self._cuts = {}, {}, {}, {}
        for tier, brake in self._limits.brakes.items():
            used = brake.used.get(self._key)
            if used is None or brake.until_ms <= now_ms:
                continue
            most = max(brake.part * used, _LEAST_OF_TIER * self.capacity) * self._limits.share
            self._most_of_tiers[tier] = most
            self._cuts[tier] = Cut(CutBy.BRAKE, tier, brake.part, until_ms=brake.until_ms, author=brake.by)
            self._leave(tier, most, claims)

    def _leave(self, tier: int, usable: float, claims: Sequence[Claim]) -> None:
        self._of_tiers[tier] = divide(usable, [claim for claim in claims if claim.tier == tier])
        self._usable_of_tiers[tier] = usable

    @property
    def used_part(self) -> float:
        """Of the capacity, what was used before the last division."""
        return 0.0 if self.last is None else (self.last.guaranteed + self.last.lent) / self.last.capacity

    def _divide(self, capacity: float, claims: Sequence[Claim]) -> None:
        """Divide what the brokers can take. A brake that leaves less stays."""
        braked = [self._under_brake(claim, claim.tier) for claim in claims]
        self.division = divide(capacity, braked)
        self._shed, self._lost = {}, {}
        if self.usable_part >= 1:
            return
        shares = [0.0] * TIERS
        certain = 0.0
        for claim in braked:
            shares[claim.tier] += self.division.share(claim)
            if claim.tier == 0:
                certain += self.division.guarantees_kept * claim.certain
        self._shed = shed(shares, certain, self.usable_part * capacity)
        self._lost = {tier: shares[tier] - most for tier, most in self._shed.items()}
        if not self.sheds or not self._shed:
            return
        # The tiers that lose nothing do not get what the others lose. One that has no clients now keeps its limits.
        for tier, share in enumerate(shares):
            if share:
                most = max(self._shed.get(tier, share), _LEAST_OF_TIER * capacity)
                self._leave(tier, most, braked)
                if tier in self._shed or tier not in self._cuts:
                    part = min(1.0, most / share)
                    self._cuts[tier] = Cut(CutBy.OVERLOAD, tier, part, from_ms=self.slow_since_ms)
        self.division = divide(capacity, [self._under_brake(claim, claim.tier) for claim in braked])

    def _under_brake(self, claim: Claim, tier: int) -> Claim:
        """The claim with what a tier has left for it as its ceiling: others have the rest."""
        division = self._of_tiers.get(tier)
        if division is None:
            return claim
        ceiling = division.limit(claim)
        return replace(claim, ceiling=ceiling, guarantee=min(claim.guarantee, ceiling))

    def _sums(self, capacity: float, uses: list[_Use], idle: list[_Use]) -> Lent:
        by_tier = [0.0] * TIERS
        guaranteed = total = 0.0
        waiting = 0
        for _, claim, used_per_s in uses:
            guaranteed += min(claim.guarantee, used_per_s)
            total += used_per_s
            by_tier[claim.tier] += used_per_s
            waiting += claim.demand == math.inf
        tier_uses = self._tier_uses(uses + idle)
        largest = nlargest(
            MOST_SHARES, uses + idle, key=lambda use: (use[1].guarantee > 0, use[2], use[1].guarantee)
        )
        shares = tuple(self._share(*use) for use in largest)
        return Lent(
            capacity,
            guaranteed,
            total - guaranteed,
            waiting,
            tuple(by_tier),
            self._most_of_tiers,
            self._shed,
            shares,
            tier_uses,
        )

    def _share(self, name: Hashable, claim: Claim, used_per_s: float) -> Share:
        limit = self.division.limit(self._under_brake(claim, claim.tier))
        return Share(name, claim.guarantee * self.division.guarantees_kept, used_per_s, limit)

    def _tier_uses(self, uses: Iterable[_Use]) -> tuple[TierUse, ...]:
        # All counters in one step, so nothing is asked of those that the division has given all they want.
        kept = self.division.guarantees_kept
        divides = self.division.level < math.inf or bool(self._of_tiers)
        lent, borrowed, reclaimed = [0.0] * TIERS, [0.0] * TIERS, [0.0] * TIERS
        for _, claim, used_per_s in uses:
            tier = claim.tier
            beyond = used_per_s - claim.guarantee * kept
            if beyond <= 0:
                lent[tier] -= beyond
                continue
            borrowed[tier] += beyond
            if divides:
                limit = self.division.limit(self._under_brake(claim, tier))
                if used_per_s > limit:
                    reclaimed[tier] += used_per_s - limit
        return tuple(
            TierUse(lent[tier], borrowed[tier], reclaimed[tier], self._lost.get(tier, 0.0))
            for tier in range(TIERS)
        )


def _can_be_new(match: Match) -> bool:
    """Whether it may be of an invented name: it has no guarantee of its own."""
    return match.lent is not None and (not match.lent.guarantee or match.rule not in _OF_ONE_COUNTER)
