"""The effect of a plan on the days from which it was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from pipeline.recommend.recommendation import ClientHistory, entity_of
from pipeline.recommend.waiting import shares_waiting
from pipeline.replay.candidates import Candidates
from pipeline.replay.demand import KEY_OF_API
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi

Shares: TypeAlias = dict[tuple[QuotaEntity, QuotaKey], float]
"""The share of units that would have waited, by entity and key."""


def shares_of(candidates: Candidates, rows: Iterable[Mapping[str, Any]]) -> Shares:
    """The shares that would have waited with a plan.

    Args:
        candidates: the plan.
        rows: of `required_rates.ClientDays.read`: all rows of each client and API.
    """
    found: dict[tuple[QuotaEntity, QuotaKey], list[tuple[float, float, list[float]]]] = {}
    for row in rows:
        api = UsageApi(row["api"])
        key = KEY_OF_API[api]
        entity = entity_of(ClientHistory(row["user"], row["client_id"], api, key, ()))
        quota = candidates.limit_of(api, row["user"], row["client_id"])
        if entity is not None and quota is not None:
            found.setdefault((entity, key), []).append((quota, row["units"], row["required"]))

    shares: Shares = {}
    for place, days in found.items():
        quotas, units, required = (np.array(each) for each in zip(*days, strict=True))
        waited = shares_waiting(required, quotas[:, None])[:, 0] * units
        shares[place] = float(waited.sum() / units.sum())
    return shares
