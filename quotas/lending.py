"""Guarantees, and what of a capacity is lent beyond them: weighted max-min fair shares.

An entity has a guarantee, a ceiling and a weight, as in mClock (Gulati, Merchant, Varman: *mClock: Handling
Throughput Variability for Hypervisor IO Scheduling*, OSDI 2010: reservation, limit, weight). What the
guarantees leave of the capacity is divided by weight, and none gets more than it wants (weighted max-min fairness;
Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2).

A division is a function of what the counters show, so all processes of a fleet come to nearly the same one without a
message. While guarantees fit into the capacity, no limit is below its guarantee: a lender has it back with its next
request, and the borrowers follow with the next division. Until then entities may add to their use. All limits beyond
guarantees together are at most three times the capacity meanwhile, however many entities there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from quotas.entities import QuotaKey

TIERS: Final = 4
"""0 to 3, the most important first."""

DEFAULT_TIER: Final = 2

LEAST_PART: Final = 0.05
"""Of the capacity, for all entities together: a client that gets no answer at all would reconnect, and a debt at a
limit near 0 would last for hours."""


MOST_BRAKE_S: Final = 24 * 3_600
"""One that is forgotten ends by itself after a day."""


@dataclass(frozen=True, slots=True)
class Brake:
    """What an operator leaves to a tier.

    Attributes:
        part: of what the tier used when this began, above 0 and at most 1.
        until_ms: its end, on the clock of the quotas.
        by: its author.
        used: by quota, what the tier used then, per second. A quota that is not in it has no brake.
    """

    part: float
    until_ms: int
    by: str
    used: Mapping[QuotaKey, float] = field(default_factory=dict)


class CutBy(StrEnum):
    """What leaves a tier less than its share of the capacity."""

    BRAKE = "brake"
    OVERLOAD = "overload"


@dataclass(frozen=True, slots=True)
class Cut:
    """Why the clients of a tier have less than their shares of the capacity.

    Attributes:
        by: see `CutBy`.
        tier: which.
        part: what is left, at most 1: of its use when the brake began, or of its share without the overload.
        from_ms: since when brokers are slow; None: it is a brake.
        until_ms: when the brake ends; None: it is no brake.
        author: of the brake.
    """

    by: CutBy
    tier: int
    part: float
    from_ms: int | None = None
    until_ms: int | None = None
    author: str = ""

    def shifted(self, by_ms: int) -> Cut:
        """The same with times on a clock that is ahead by so much."""
        from_ms, until_ms = (None if each is None else each + by_ms for each in (self.from_ms, self.until_ms))
        return replace(self, from_ms=from_ms, until_ms=until_ms)


@dataclass(frozen=True, slots=True)
class Claim:
    """What one entity may have, and what it wants; per second, in the unit of the quota.

    Attributes:
        guarantee: what it gets in any case; 0: nothing.
        ceiling: what it never gets more than, at least the guarantee; infinite: there is none.
        weight: its part of the surplus, > 0.
        tier: its importance, below `TIERS`; divides nothing unless it has a brake.
        demand: what it uses; infinite: it wants more than its limit lets through.
    """

    guarantee: float = 0.0
    ceiling: float = math.inf
    weight: float = 1.0
    tier: int = DEFAULT_TIER
    demand: float = math.inf

    @property
    def wanted(self) -> float:
        """What it would use if nothing else did."""
        return min(self.demand, self.ceiling)

    @property
    def certain(self) -> float:
        """What it uses of its guarantee."""
        return min(self.guarantee, self.wanted)


@dataclass(frozen=True, slots=True)
class Division:
    """How a capacity is divided; `limit` says what that means for one entity.

    Attributes:
        level: what an entity of weight 1 gets beyond its guarantee; infinite: all that it wants.
        spare: what is left then.
        part: of what is left, or of the capacity if nothing is, for each entity; up to there it may use it at once.
        guarantees_kept: which part of guarantees is in force.
        floor: no limit is below, unless its ceiling is.
    """

    level: float = math.inf
    spare: float = math.inf
    part: float = math.inf
    guarantees_kept: float = 1.0
    floor: float = 0.0

    def limit(self, claim: Claim) -> float:
        """The limit in force for an entity; infinite: none. More than it gets now, where it wants less."""
        guarantee = claim.guarantee * self.guarantees_kept
        most = claim.wanted + self.spare if self.level == math.inf else guarantee + claim.weight * self.level
        # With all of that at once, many that double their use would use what is left many times, and a lender that
        # returns has its guarantee at once and the rest when the others have given it back.
        growing = min(most, max(2 * claim.wanted, self.part))
        return min(max(guarantee, growing, self.floor), claim.ceiling)

    def share(self, claim: Claim) -> float:
        """What the entity gets of what it wants."""
        return min(self.limit(claim), claim.wanted)


def divide(capacity: float, claims: Sequence[Claim]) -> Division:
    """Divide a capacity.

    Args:
        capacity: per second, > 0.
        claims: of all that use it.

    Returns:
        The division. Guarantees that add up to more than the capacity are cut alike.
    """
    certain = math.fsum(claim.certain for claim in claims)
    floor = LEAST_PART * capacity / max(1, len(claims))
    if certain > capacity:
        part = _level(capacity, ((claim.certain, claim.guarantee) for claim in claims if claim.guarantee))
        return Division(0.0, 0.0, 0.0, min(1.0, part), floor)
    level = _level(capacity - certain, ((claim.wanted - claim.certain, claim.weight) for claim in claims))
    if level < math.inf:
        return Division(level, 0.0, capacity / len(claims), floor=floor)
    spare = max(0.0, capacity - math.fsum(claim.wanted for claim in claims))
    return Division(level, spare, spare / max(1, len(claims)), floor=floor)


def shed(shares: Sequence[float], certain_of_tier_0: float, usable: float) -> dict[int, float]:
    """What tiers may use where their shares are more than can be used: the lowest lose first.

    Args:
        shares: by tier, what its entities get.
        certain_of_tier_0: what tier 0 uses of its guarantees, and keeps.
        usable: by all tiers together.

    Returns:
        By tier, of those that lose. Each keeps `LEAST_PART` of its share.
    """
    excess = math.fsum(shares) - usable
    most = {}
    for tier in reversed(range(TIERS)):
        if excess <= 0:
            break
        least = max(LEAST_PART * shares[tier], 0.0 if tier else certain_of_tier_0)
        most[tier] = max(shares[tier] - excess, min(least, shares[tier]))
        excess -= shares[tier] - most[tier]
    return most


def _level(amount: float, vessels: Iterable[tuple[float, float]]) -> float:
    """Up to where an amount fills vessels, each of a volume and a width; infinite: it fills them all."""
    tops = sorted((volume / width, width) for volume, width in vessels)
    # How wide those are that are not full below a top; added up from the end, so that no rounding is left there.
    widths = list(itertools.accumulate(width for _, width in reversed(tops)))
    level = 0.0
    for (top, _), width in zip(tops, reversed(widths), strict=True):
        step = (top - level) * width if top > level else 0.0
        if step > amount:
            return level + amount / width
        amount -= step
        level = top
    return math.inf
