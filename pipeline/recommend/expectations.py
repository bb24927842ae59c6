"""What a plan would have done over the days that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from pipeline.plans.plan import Plan
from pipeline.recommend.recommendation import ClientHistory, entity_of
from pipeline.replay.candidates import of_plan
from pipeline.replay.demand import KEY_OF_API
from pipeline.replay.dispatch import Algorithm, Model, ReplaySettings
from pipeline.replay.simulation import simulate
from pipeline.storage.compacted_days import CompactedDays, collected
from pipeline.storage.entity_days import Scope
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi


def with_expectations(plan: Plan, rows: Iterable[Any]) -> Plan:
    """The plan with what it would have done.

    Args:
        plan: any.
        rows: mappings with user, client_id, api, units and throttled_units, summed over the history.
    """
    shares: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    for row in rows:
        key = KEY_OF_API[UsageApi(row["api"])]
        entity = entity_of(ClientHistory(row["user"], row["client_id"], UsageApi(row["api"]), key, ()))
        if entity is not None and row["units"] > 0:
            shares[entity, key] = row["throttled_units"] / row["units"]

    entries = (
        replace(entry, expected_throttled=shares.get((entry.entity, entry.key))) for entry in plan.entries
    )
    return replace(plan, entries=tuple(entries))


def expected_shares(
    days: CompactedDays, plan: Plan, window_num: int, window_ms: int, scope: Scope, mutations: Algorithm
) -> Iterator[Any]:
    """The plan replayed: mutations as the gateway decides them, all else in the model of the required rates."""
    from pyspark.sql import functions

    rate = ReplaySettings(model=Model.DEFERRAL, window_num=max(1, window_num - 1), window_ms=window_ms)
    bucket = ReplaySettings(window_num=window_num, window_ms=window_ms, mutations=mutations)
    others = [api for api in UsageApi if api is not UsageApi.MUTATION]
    for apis, settings in ((others, rate), ([UsageApi.MUTATION], bucket)):
        replayed = simulate(days, of_plan(plan), settings, scope=scope, apis=apis)
        result = replayed.where("quota is not null")
        sums = (functions.sum(name).alias(name) for name in ("units", "throttled_units"))
        yield from collected(result.groupBy("user", "client_id", "api").agg(*sums))
