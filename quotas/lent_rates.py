"""The limits that guarantees and lending give to counters, once per interval; the arithmetic is in `quotas.lending`.

An entity's demand is its use since the last division. If its counter made a client wait since then, or if its bucket
is nearly full, the demand is above its limit. In a fleet each counter includes the records of all members, so each
member knows the same use.

A division knows only counters that were used. New and returning counters are also counted in one shared counter until
the next division (`RateQuotas.shared_by_new`). Otherwise each new name could use the whole rest of the capacity. A
tier that has a brake, or loses for slow brokers, has a shared counter of its own. There a counter is *young* until
`YOUNG_FOR` divisions have found it used, because a known counter passes one request of any size, and a client can
invent any number of names.
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
"""A limit does not change by less than this part: changes cost time, and smaller ones are within a rate's error."""


LENT_BURST_S: Final = 1.0
"""The burst of a counter whose quota has none. With Kafka's window a client may use ten seconds of its limit in one
second and is then muted for ten. So it would not be visible whether a guarantee is kept."""

_NEW_BURST_S: Final = 0.2
"""The burst of the counter that new counters share. They may all begin at once. From the next division on they have
buckets of their own."""

_DIVISIONS_BEFORE_A_BRAKE: Final = 10
"""The mean use of a tier over so many divisions is its use when a brake begins."""

_LEAST_OF_TIER: Final = 0.001
"""The part of the capacity that a brake always leaves to a tier."""


MOST_SHARES: Final = 50
"""The number of counters whose shares a division keeps one by one."""

_NEARLY_FULL_MS: Final = 500.0
"""A client wants more if its bucket would be full after this much more time at the limit. A bucket with only a
request or two in it does not count: otherwise a client below its limit would keep a part that nothing uses."""


YOUNG_FOR: Final = 3
"""Divisions. Names that live shorter together pass no more than the rest that is left for them."""

_OF_ONE_COUNTER: Final = frozenset({Rule.USER_CLIENT, Rule.USER, Rule.CLIENT})
"""A guarantee of such a rule is for one counter, so invented names do not have it."""


class LentCounter(Protocol):
    """A counter whose limit is divided.

    Attributes:
        good_until_ms: until then the result of a look-up is valid; minus infinity: the counter was dropped.
        shared: whether clients without a counter of their own share it.
        match: its limit, with `Match.lent`.
        version: the version of all limits when `match` was found.
        owed_until_ms: the end of the longest wait that it has computed.
        blocked_until_ms: no request of it passes before this time.
    """

    good_until_ms: float
    shared: bool
    match: Match
    version: int
    owed_until_ms: int
    blocked_until_ms: float

    @property
    def recorded(self) -> float:
        """The sum of all records so far, by this process and others."""

    def bind(self, match: Match, version: int, *, now_ms: int) -> None:
        """Puts a limit in force."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One counter at the last division.

    Attributes:
        recorded: see `LentCounter.recorded`.
        used_per_s: its use between the last two divisions.
        wanting_until_ms: the end of the longest wait that it has computed.
        divided: it has a share of the capacity.
        came: it had no share or is young, and was looked up since.
        tier: the tier in which its share was divided; without meaning if it has no share.
        young_for: the number of further divisions that have to find it used.
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
    """The result of the last division for one counter; per second, in the unit of the quota.

    Attributes:
        name: the counter's name.
        guarantee: the part of its guarantee that is in force.
        used: its use since the division before.
        limit: its limit from now on; infinite: none.
    """

    name: Hashable
    guarantee: float
    used: float
    limit: float

    @property
    def lent(self) -> float:
        """The part of the guarantee that others may use."""
        return max(0.0, self.guarantee - self.used)

    @property
    def borrowed(self) -> float:
        """The use beyond the guarantee."""
        return max(0.0, self.used - self.guarantee)

    @property
    def reclaimed(self) -> float:
        """The part of the use that the division took back."""
        return max(0.0, self.used - self.limit)


@dataclass(frozen=True, slots=True)
class TierUse:
    """The sums of `Share` over the clients of a tier, and the tier's loss for slow brokers.

    Attributes:
        lent, borrowed, reclaimed: sums over its clients; see `Share`.
        shed: the part of its share that it loses for slow brokers, or would lose if that were enforced.
    """

    lent: float = 0.0
    borrowed: float = 0.0
    reclaimed: float = 0.0
    shed: float = 0.0


@dataclass(frozen=True, slots=True)
class Lent:
    """The sums of a division, for metrics; per second, in the unit of the quota.

    Attributes:
        capacity: the whole capacity.
        guaranteed: the use within guarantees.
        lent: the use beyond guarantees.
        waiting: how many counters want more than they get.
        by_tier: the use of each tier.
        braked: for each tier with a brake, the most that it may use.
        shed: the same for each tier that loses for slow brokers, or would lose if that were enforced.
        shares: shares of at most `MOST_SHARES` counters; first those with a guarantee, then those with the most use.
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
"""The name of a counter, its claim, and its use per second since the last division."""


class Lender:
    """Divides the capacity of one key.

    Attributes:
        capacity: the capacity per second.
        observe: the division is only computed.
        division: the last division.
        last: the sums of the last division; None: there was none.
        usable_part: the part of the capacity that brokers can take; see `quotas.overload`.
        sheds: whether tiers lose the rest. Otherwise the loss is only computed.
        slow_since_ms: the time from which brokers can't take the whole capacity; None: they can.
    """

    def __init__(
        self, limits: Limits, key: QuotaKey, capacity: float, *, observe: bool = False, now_ms: int
    ) -> None:
        """Starts without known use: every client may use the whole capacity.

        Args:
            limits: the limits with the guarantees, weights and tiers.
            key: a key of `GUARANTEE_KEYS`.
            capacity: the capacity per second, > 0.
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
        self._used_by_known = 0.0  # use of the counters that the previous division knew
        self._shared_by_old = [0.0] * TIERS  # shares of the counters that are not young
        self._used_by_tier: deque[tuple[float, ...]] = deque(maxlen=_DIVISIONS_BEFORE_A_BRAKE)
        self._of_tiers: dict[int, Division] = {}  # of tiers that have a brake, or lose for slow brokers
        self._most_of_tiers: dict[int, float] = {}
        self._usable_of_tiers: dict[int, float] = {}
        self.usable_part = 1.0
        self.sheds = False
        self.slow_since_ms: int | None = None
        self._shed: dict[int, float] = {}
        self._lost: dict[int, float] = {}  # the part of a tier's share that it loses for slow brokers
        self._cuts: dict[int, Cut] = {}

    def lend(self, match: Match, name: Hashable) -> Match:
        """The limit that the last division gives to a client.

        Args:
            match: its configured limit.
            name: the name of its counter.
        """
        if self.observe:
            return match
        seen = self._seen.get(name)
        claim = replace(self._claim(match), demand=0.0 if seen is None else seen.used_per_s)
        # A counter that changes its tier keeps the old one until the next division: others use the new tier's rest.
        if seen is not None and seen.divided:
            return self._lent(match, claim, seen.tier)
        lent = self._lent(match, claim, claim.tier)
        if claim.guarantee and match.rule in _OF_ONE_COUNTER:
            # The rest is for the counter that new counters share. A counter with a guarantee is not counted there.
            kept = max(claim.guarantee * self.division.guarantees_kept, self.division.floor)
            return replace(lent, limit=min(kept, lent.limit or kept))
        return lent

    def is_new(self, match: Match, name: Hashable) -> bool:
        """Whether a counter is also counted in the one that new counters share, until the next division.

        Args:
            match: its limit, as `lend` returned it.
            name: the counter's name.
        """
        seen = self._seen.get(name)
        if seen is not None and seen.divided:
            return False
        self._come(name, seen)
        return not match.observe and _can_be_new(match)

    def is_young(self, match: Match, name: Hashable) -> bool:
        """Whether a counter is also counted in the one that young counters of its tier share; see `is_new`."""
        seen = self._seen.get(name)
        if seen is not None and seen.divided and not seen.young_for:
            return False
        self._come(name, seen)
        return not match.observe and _can_be_new(match)

    def _come(self, name: Hashable, seen: _Seen | None) -> None:
        if seen is not None and not seen.came:
            self._seen[name] = replace(seen, came=True)

    def used_by(self, tier: int) -> float | None:
        """The recent use of a tier, per second, for `quotas.lending.Brake`. None: it is not known yet."""
        if not self._used_by_tier:
            return None
        return math.fsum(each[tier] for each in self._used_by_tier) / len(self._used_by_tier)

    def replaces(self, before: Lender) -> None:
        """Takes over the use of tiers from the lender before, when the settings change."""
        self._used_by_tier.extend(before._used_by_tier)

    @property
    def left(self) -> Match:
        """The limit of all new counters together until the next division: the part that known counters leave."""
        capacity = self.capacity * self._limits.share
        usable = capacity * (self.usable_part if self.sheds else 1.0)
        return self._of_new(max(usable - self._used_by_known, LEAST_PART * capacity))

    @property
    def left_of_tiers(self) -> Mapping[int, Match]:
        """By tier, the limit of all young counters together: the part that the tier's other counters do not have.

        Only tiers that have a brake, or lose for slow brokers, are in it.
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
        # The cut makes no difference if the use of others leaves even less of the capacity.
        cut = self._cuts.get(tier) if under.ceiling < claim.ceiling and limit >= under.ceiling else None
        burst_s = LENT_BURST_S if match.burst_s is None else match.burst_s
        # A client without a quota has none that is only observed, so the mode of all quotas decides.
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
        """Divide the capacity again, and put the limits in force, one counter at a time.

        Args:
            counters: all counters of the key, with their names.
            new_waited: tiers whose new counters had to wait for the shared counter. They want more than they used.
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
            # A counter that is older than this lender is not new.
            came = counter.good_until_ms < math.inf if before is None else before.came
            recorded = counter.recorded
            wanting_until_ms = float(counter.owed_until_ms)
            if counter.blocked_until_ms > now_ms - _NEARLY_FULL_MS:
                wanting_until_ms = max(wanting_until_ms, counter.blocked_until_ms)
            used_per_s = last_per_s = 0.0
            # Records from before this lender knew the counter, or of an earlier counter of the name, are not recent.
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
                # Each request of a new or young counter has to call `is_new` or `is_young`.
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
            # A name that lives for less than a division has use too, but that does not show its demand.
            passed_per_s = recorded / elapsed_s if before is None and came else used_per_s
            active.append((name, counter, match, passed_per_s))
            if not (young_for and _can_be_new(match)):
                old.append(claims[-1])
        self._seen = seen
        self._divided_ms = now_ms
        capacity = self.capacity * self._limits.share
        # At the first division it is not known when the counters' records were made.
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
                # If a quota has changed meanwhile, the next request finds it.
                counter.bind(lent, counter.version, now_ms=now_ms)

    def _brake(self, claims: Sequence[Claim], now_ms: int) -> None:
        """Divide the part that each brake leaves to its tier."""
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
        """The part of the capacity that was used before the last division."""
        return 0.0 if self.last is None else (self.last.guaranteed + self.last.lent) / self.last.capacity

    def _divide(self, capacity: float, claims: Sequence[Claim]) -> None:
        """Divide the part that brokers can take. A brake that leaves less stays in force."""
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
        # Tiers that lose nothing do not get the loss of the others. A tier without clients now keeps its limits.
        for tier, share in enumerate(shares):
            if share:
                most = max(self._shed.get(tier, share), _LEAST_OF_TIER * capacity)
                self._leave(tier, most, braked)
                if tier in self._shed or tier not in self._cuts:
                    part = min(1.0, most / share)
                    self._cuts[tier] = Cut(CutBy.OVERLOAD, tier, part, from_ms=self.slow_since_ms)
        self.division = divide(capacity, [self._under_brake(claim, claim.tier) for claim in braked])

    def _under_brake(self, claim: Claim, tier: int) -> Claim:
        """The claim, with the limit that its tier's own division gives it as the ceiling."""
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
        # All counters are one step, so `limit` is not computed when the division gave all counters all they want.
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
    """Whether the counter may belong to an invented name: it has no guarantee of its own."""
    return match.lent is not None and (not match.lent.guarantee or match.rule not in _OF_ONE_COUNTER)
