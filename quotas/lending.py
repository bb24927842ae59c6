"""Guarantees and lending: a capacity is divided into weighted max-min fair shares.

An entity has a guarantee, a ceiling and a weight, as in mClock (Gulati, Merchant, Varman: *mClock: Handling
Throughput Variability for Hypervisor IO Scheduling*, OSDI 2010: reservation, limit, weight). The capacity beyond the
guarantees is divided by weight, and no entity gets more than it wants (weighted max-min fairness; Bertsekas and
Gallager, *Data Networks*, 1992, section 6.5.2).

A division depends only on the counters, so all processes of a fleet compute nearly the same one without messages.
While guarantees fit into the capacity, no limit is below its guarantee. So a lender can use its guarantee again with
its next request, and the borrowers' limits shrink with the next division. Until then use may grow: all limits beyond
guarantees together are at most three times the capacity, for any number of entities.
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
"""Tiers are 0 to 3, the most important first."""

DEFAULT_TIER: Final = 2

LEAST_PART: Final = 0.05
"""The part of the capacity that all entities together always have. A client that gets no response at all would
reconnect, and a debt at a limit near 0 would last for hours."""


MOST_BRAKE_S: Final = 24 * 3_600
"""The longest time of a brake: one that an operator forgets ends after a day."""


@dataclass(frozen=True, slots=True)
class Brake:
    """A brake: an operator limits a tier to a part of its use.

    Attributes:
        part: the part of the tier's use when the brake began, above 0 and at most 1.
        until_ms: its end, on the clock of the quotas.
        by: its author.
        used: by quota, the tier's use per second when the brake began. A quota that is not in it has no brake.
    """

    part: float
    until_ms: int
    by: str
    used: Mapping[QuotaKey, float] = field(default_factory=dict)


class CutBy(StrEnum):
    """The reason why a tier has less than its share of the capacity."""

    BRAKE = "brake"
    OVERLOAD = "overload"


@dataclass(frozen=True, slots=True)
class Cut:
    """Why the clients of a tier have less than their shares of the capacity.

    Attributes:
        by: see `CutBy`.
        tier: the tier.
        part: the part that is left, at most 1: of its use when the brake began, or of its share without the overload.
        from_ms: when brokers became slow; None: it is a brake.
        until_ms: when the brake ends; None: it is no brake.
        author: the brake's author.
    """

    by: CutBy
    tier: int
    part: float
    from_ms: int | None = None
    until_ms: int | None = None
    author: str = ""

    def shifted(self, by_ms: int) -> Cut:
        """The same cut with times on a clock that is ahead by `by_ms`."""
        from_ms, until_ms = (None if each is None else each + by_ms for each in (self.from_ms, self.until_ms))
        return replace(self, from_ms=from_ms, until_ms=until_ms)


@dataclass(frozen=True, slots=True)
class Claim:
    """The settings of one entity, and its demand; per second, in the unit of the quota.

    Attributes:
        guarantee: the least that it can use; 0: no guarantee.
        ceiling: the most that it gets, at least the guarantee; infinite: no ceiling.
        weight: its part of the surplus, > 0.
        tier: its importance, below `TIERS`. Without brakes or slow brokers it does not affect the division.
        demand: its use; infinite: it wants more than its limit allows.
    """

    guarantee: float = 0.0
    ceiling: float = math.inf
    weight: float = 1.0
    tier: int = DEFAULT_TIER
    demand: float = math.inf

    @property
    def wanted(self) -> float:
        """What the entity would use if no other used anything."""
        return min(self.demand, self.ceiling)

    @property
    def certain(self) -> float:
        """The part of the guarantee that the entity uses."""
        return min(self.guarantee, self.wanted)


@dataclass(frozen=True, slots=True)
class Division:
    """How a capacity is divided. `limit` computes the limit of one entity.

    Attributes:
        level: what an entity of weight 1 gets beyond its guarantee; infinite: all that it wants.
        spare: the rest of the capacity if every entity gets all that it wants.
        part: an equal part for each entity, of the rest, or of the capacity if there is no rest. An entity may raise
            its use to this part at once.
        guarantees_kept: the part of each guarantee that is in force.
        floor: the least limit, except where a ceiling is lower.
    """

    level: float = math.inf
    spare: float = math.inf
    part: float = math.inf
    guarantees_kept: float = 1.0
    floor: float = 0.0

    def limit(self, claim: Claim) -> float:
        """The limit in force for an entity; infinite: none. It is above the entity's share if its demand is lower."""
        guarantee = claim.guarantee * self.guarantees_kept
        most = claim.wanted + self.spare if self.level == math.inf else guarantee + claim.weight * self.level
        # Growth is bounded: otherwise many entities that grow at the same time would each use the whole rest. A
        # lender that returns has its guarantee at once, and more when the others' limits have shrunk.
        growing = min(most, max(2 * claim.wanted, self.part))
        return min(max(guarantee, growing, self.floor), claim.ceiling)

    def share(self, claim: Claim) -> float:
        """The part of its demand that the entity gets."""
        return min(self.limit(claim), claim.wanted)


def divide(capacity: float, claims: Sequence[Claim]) -> Division:
    """Divide a capacity.

    Args:
        capacity: per second, > 0.
        claims: the claims of all entities that use it.

    Returns:
        The division. If the used guarantees exceed the capacity, all guarantees shrink by the same factor.
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
    """The most that tiers may use when their shares exceed the usable capacity: the least important lose first.

    Args:
        shares: by tier, the sum that its entities get.
        certain_of_tier_0: the part of its guarantees that tier 0 uses, and keeps.
        usable: the capacity that all tiers together can use.

    Returns:
        The most that each tier may use, for tiers that lose. Each keeps `LEAST_PART` of its share.
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
    """The level to which an amount fills vessels, each of a volume and a width; infinite: it fills them all."""
    tops = sorted((volume / width, width) for volume, width in vessels)
    # The total width of the vessels that are not full below each top. Summing from the end leaves no rounding there.
    widths = list(itertools.accumulate(width for _, width in reversed(tops)))
    level = 0.0
    for (top, _), width in zip(tops, reversed(widths), strict=True):
        step = (top - level) * width if top > level else 0.0
        if step > amount:
            return level + amount / width
        amount -= step
        level = top
    return math.inf
