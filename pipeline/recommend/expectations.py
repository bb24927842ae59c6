"""What a plan would have done on the days that it was made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.plans.plan import Plan
from pipeline.recommend.recommendation import ClientHistory, entity_of
from pipeline.recommend.waiting import shares_waiting
from pipeline.replay.candidates import limits_of
from pipeline.replay.demand import KEY_OF_API
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi


def with_expectations(plan: Plan, rows: Iterable[Mapping[str, Any]]) -> Plan:
    """The plan with the shares that would have waited with it.

    Args:
        plan: any.
        rows: of `required_rates.client_days`.
    """
    limits = limits_of(plan)
    found: dict[tuple[QuotaEntity, QuotaKey], list[tuple[float, float, list[float]]]] = {}
    for row in rows:
        api = UsageApi(row["api"])
        key = KEY_OF_API[api]
        entity = entity_of(ClientHistory(row["user"], row["client_id"], api, key, ()))
        quota = limits(api, row["user"], row["client_id"])
        if entity is not None and quota is not None:
            found.setdefault((entity, key), []).append((quota, row["units"], row["required"]))

    shares = {}
    for place, days in found.items():
        quotas, units, required = (np.array(each) for each in zip(*days, strict=True))
        waited = shares_waiting(required, quotas[:, None])[:, 0] * units
        shares[place] = float(waited.sum() / units.sum())
    entries = (
        replace(entry, expected_throttled=shares.get((entry.entity, entry.key))) for entry in plan.entries
    )
    return replace(plan, entries=tuple(entries))
