"""Divides a capacity among clients and teams by their required rates, as the gateway divides it by their use. Pure.

The division is `quotas.lending.divide` (weighted max-min with floors and ceilings). `shed` computes what tiers keep
when brokers carry less. The gateway computes both each second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.capacity.claims import Claimant, Claims
from quotas.entities import QuotaKey
from quotas.lending import TIERS, Claim, divide, shed


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one claimant; per second, in the unit of the quota.

    Attributes:
        claimant: the client or team.
        claim: its floor, ceiling, weight and tier; `demand` is its required rate.
        share: the part of the capacity that it gets.
    """

    claimant: Claimant
    claim: Claim
    share: float

    @property
    def missing(self) -> float:
        """The part of its required rate beyond its share."""
        return max(0.0, self.claim.demand - self.share)


@dataclass(frozen=True, slots=True)
class Tier:
    """The shares of a tier.

    Attributes:
        required, share: of all its clients.
        kept: the part of the share that it keeps when brokers carry less.
    """

    required: float
    share: float
    kept: float


@dataclass(frozen=True, slots=True)
class Shares:
    """A divided capacity.

    Attributes:
        capacity: per second.
        guarantees_kept: the part of all floors that the capacity can satisfy; 1: all.
        shares: of each claimant, the largest requirement first.
        tiers: tiers that have any client, by number.
    """

    capacity: float
    guarantees_kept: float
    shares: tuple[Share, ...]
    tiers: Mapping[int, Tier]

    @property
    def required(self) -> float:
        """The required rate of all claimants together."""
        return math.fsum(each.claim.demand for each in self.shares)


def divided(
    key: QuotaKey, capacity: float, required: Mapping[Claimant, float], claims: Claims, usable: float
) -> Shares:
    """Divides a capacity.

    Args:
        key: the quota.
        capacity: per second, > 0.
        required: the required rate of each claimant, per second.
        claims: floors, ceilings, weights and tiers.
        usable: the part of the capacity that brokers carry during a failure, for `Tier.kept`.
    """
    order = sorted(required, key=lambda each: (-required[each], str(each)))
    found = [claims.claim(each, key, required[each]) for each in order]
    division = divide(capacity, found)
    shares = [division.share(claim) for claim in found]
    by_tier = [
        math.fsum(share for share, claim in zip(shares, found, strict=True) if claim.tier == tier)
        for tier in range(TIERS)
    ]
    certain = math.fsum(claim.certain for claim in found if claim.tier == 0) * division.guarantees_kept
    kept = shed(by_tier, min(certain, by_tier[0]), usable * capacity)
    tiers = {
        tier: Tier(
            math.fsum(claim.demand for claim in found if claim.tier == tier),
            by_tier[tier],
            kept.get(tier, by_tier[tier]),
        )
        for tier in range(TIERS)
        if any(claim.tier == tier for claim in found)
    }
    return Shares(
        capacity,
        division.guarantees_kept,
        tuple(Share(*each) for each in zip(order, found, shares, strict=True)),
        tiers,
    )
