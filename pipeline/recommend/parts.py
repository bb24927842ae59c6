"""Recommends part by part. Each part has some clients with all their days, and is independent of the others.

The driver gets the contents of the plan only, not the days from which it was made.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.client_tables.tables import ClientPart
from pipeline.plans.plan import Plan, TooLittle
from pipeline.recommend.expectations import Shares, shares_of
from pipeline.recommend.recommendation import (
    RecommendationSettings,
    Recommended,
    recommended,
)
from pipeline.recommend.required_rates import ClientApi, ClientDays, gather, known_enough
from pipeline.replay.candidates import of_plan, unpacked
from pipeline.spark.runner import Runner
from quotas.entities import QuotaKey


@dataclass(frozen=True, slots=True)
class Found:
    """Quotas of clients in any order, and clients of which too little is known."""

    quotas: list[Recommended]
    too_little: dict[ClientApi, TooLittle]


def recommend_parts(
    runner: Runner,
    days: ClientDays,
    settings: RecommendationSettings,
    *,
    capacity: Mapping[QuotaKey, float],
    peaks: Mapping[QuotaKey, float],
) -> Found:
    """Recommends a quota for each client that can have one.

    Args:
        runner: runs the parts.
        days: the clients' days.
        settings: how to recommend.
        capacity: what the cluster can take, in the key's unit per second.
        peaks: the most that all clients together used.
    """

    def of_part(part: ClientPart) -> Iterator[Found]:
        histories, unknown = gather(days.read(part), days.left)
        enough, brief = known_enough(histories, days.windows, settings.margin)
        yield Found(list(recommended(enough, settings, capacity, peaks)), unknown | brief)

    found = Found([], {})
    for some in runner.run(of_part, days.parts):
        found.quotas.extend(some.quotas)
        found.too_little.update(some.too_little)
    return found


def expect_parts(runner: Runner, days: ClientDays, plan: Plan) -> Plan:
    """Adds to a plan the shares that would have waited under it, on the days from which it was made.

    Args:
        runner: runs the parts.
        days: the clients' days.
        plan: any plan.
    """
    packed = pickle.dumps(of_plan(plan))

    def of_part(part: ClientPart) -> Iterator[Shares]:
        left = days.left
        kept = (
            row
            for row in days.read(part)
            if not left.why(row["user"], row["client_id"], row["date"].isoformat())
        )
        yield shares_of(unpacked(packed), kept)

    shares: Shares = {}
    for some in runner.run(of_part, days.parts):
        shares |= some
    entries = (
        replace(entry, expected_throttled=shares.get((entry.entity, entry.key))) for entry in plan.entries
    )
    return replace(plan, entries=tuple(entries))
