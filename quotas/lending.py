"""Guarantees, and what of a capacity is lent beyond them: weighted max-min fair shares.

An entity has a guarantee, a ceiling and a weight, as in mClock (Gulati, Merchant, Varman: *mClock: Handling
Throughput Variability for Hypervisor IO Scheduling*, OSDI 2010: reservation, limit, weight). What the
guarantees leave of the capacity is divided by weight, and none gets more than it wants (weighted max-min fairness;
Bertsekas and Gallager, *Data Networks*, 1992, section 6.5.2).

A division is a function of what the counters show, so all processes of a fleet come to nearly the same one without a
message. While guarantees fit into the capacity, no limit is below its guarantee: a lender has it back with its next
request, and the borrowers follow with the next division. Until then the capacity is exceeded by at most what entities
add to their use within one interval.

Where a cluster can take less than its capacity, the difference is taken from the lowest tiers first: all that they
have borrowed, then their guarantees. The guarantees of tier 0 stay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

TIERS: Final = 4
"""0 to 3. Tier 0 loses last."""

DEFAULT_TIER: Final = 2

LEAST_PART: Final = 0.05
"""What a tier keeps of what it had, and all entities of the capacity: a client that gets no answer at all would
reconnect, and a debt at a limit near 0 would last for hours."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one entity may have, and what it wants; per second, in the unit of the quota.

    Attributes:
        guarantee: what it gets in any case; 0: nothing.
        ceiling: what it never gets more than, at least the guarantee; infinite: there is none.
        weight: its part of the surplus, > 0.
        tier: who loses first, below `TIERS`.
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
        levels: by tier, what an entity of weight 1 gets beyond its guarantee; infinite: all that it wants.
        spare: what is left then.
        guarantees_kept: by tier, which part of guarantees is in force.
        floor: no limit is below, unless its ceiling is.
    """

    levels: tuple[float, ...] = (math.inf,) * TIERS
    spare: float = math.inf
    guarantees_kept: tuple[float, ...] = (1.0,) * TIERS
    floor: float = 0.0

    def limit(self, claim: Claim) -> float:
        """The limit in force for an entity; infinite: none. More than it gets now, where it wants less."""
        guarantee = claim.guarantee * self.guarantees_kept[claim.tier]
        level = self.levels[claim.tier]
        if level == math.inf:
            return min(max(guarantee, claim.wanted + self.spare, self.floor), claim.ceiling)
        return min(max(guarantee + claim.weight * level, self.floor), claim.ceiling)

    def share(self, claim: Claim) -> float:
        """What the entity gets of what it wants."""
        return min(self.limit(claim), claim.wanted)


def divide(capacity: float, claims: Sequence[Claim], *, usable: float = math.inf) -> Division:
    """Divide a capacity.

    Args:
        capacity: per second, > 0.
        claims: of all that use it.
        usable: how much the cluster can take at present; more than the capacity: all of it.

    Returns:
        The division. Guarantees that add up to more than the capacity are cut alike, whatever their tier.
    """
    certain = math.fsum(claim.certain for claim in claims)
    floor = LEAST_PART * capacity / max(1, len(claims))
    if certain > capacity:
        division = Division((0.0,) * TIERS, 0.0, (_part_of_guarantees(capacity, claims),) * TIERS, floor)
    else:
        level = _level_of_surplus(capacity - certain, claims)
        spare = 0.0
        if level == math.inf:
            spare = max(0.0, capacity - math.fsum(claim.wanted for claim in claims))
        division = Division((level,) * TIERS, spare, floor=floor)
    return division if usable >= capacity else _shed(division, claims, usable)


def _part_of_guarantees(amount: float, claims: Iterable[Claim]) -> float:
    return min(1.0, _level(amount, ((claim.certain, claim.guarantee) for claim in claims if claim.guarantee)))


def _level_of_surplus(amount: float, claims: Iterable[Claim]) -> float:
    return _level(amount, ((claim.wanted - claim.certain, claim.weight) for claim in claims))


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


def _shed(division: Division, claims: Sequence[Claim], usable: float) -> Division:
    """Take what the cluster cannot take from the lowest tiers first."""
    levels, guarantees = list(division.levels), list(division.guarantees_kept)
    excess = math.fsum(map(division.share, claims)) - usable
    for tier in reversed(range(TIERS)):
        of_tier = [claim for claim in claims if claim.tier == tier]
        shares = [division.share(claim) for claim in of_tier]
        safe = [min(share, claim.certain) for share, claim in zip(shares, of_tier, strict=True)]
        beyond = math.fsum(shares) - math.fsum(safe)
        if excess <= 0:
            break
        lent = max(beyond - excess, LEAST_PART * beyond)
        excess -= beyond - lent
        if excess > 0 and tier > 0:
            certain = math.fsum(safe)
            kept = max(certain - excess, LEAST_PART * certain)
            excess -= certain - kept
            part = guarantees[tier] = min(guarantees[tier], _part_of_guarantees(kept, of_tier))
            of_tier = [replace(claim, guarantee=part * claim.guarantee) for claim in of_tier]
        levels[tier] = min(levels[tier], _level_of_surplus(lent, of_tier) if beyond else 0.0)
    return Division(tuple(levels), 0.0, tuple(guarantees), division.floor)
