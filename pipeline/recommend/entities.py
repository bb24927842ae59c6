"""A plan for users, client ids, prefixes or teams, from the use of all their clients together on compacted days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.client_tables.rows import client_rows
from pipeline.plans.plan import Basis, LeftOut, Plan, PlanEntry
from pipeline.recommend.doubt import Doubt, LeftDays
from pipeline.recommend.recommendation import RecommendationSettings, recommend
from pipeline.recommend.required_rates import Windows, days_of, gather, known_enough
from pipeline.recommend.waiting import shares_waiting
from pipeline.replay.demand import KEY_OF_API
from pipeline.storage.compacted_days import ELEMENTS_AT_ONCE, compacted_table, published_days
from pipeline.storage.compacted_files import pieces_of, read_entities
from pipeline.storage.counting import fleets_of
from pipeline.storage.entity_days import ENTITY, Scope
from pipeline.storage.layout import CompactedDay
from pipeline.teams.folding import READ, folded, naming_of, with_no_quota
from pipeline.teams.members import Entities, Members
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import GROUP_KEYS
from quotas.usage_record import UsageApi

_ELEMENTS_AT_ONCE: Final = 4_000_000
"""Recorded seconds of a day in one part of its entities. Each takes up to 460 bytes while they are added and their
required rates are computed."""


@dataclass(frozen=True, slots=True)
class EntityDays:
    """Use of entities on some days.

    Attributes:
        out: the pipeline's folder.
        days: the days.
        scope: whether brokers count together, and gateways of a fleet.
        entities: the kind of entity that quotas are for.
        members: of teams, and their prefixes.
        all_gateways: whether all gateways count together, even of different fleets.
    """

    out: str
    days: Sequence[CompactedDay]
    scope: Scope
    entities: Entities
    members: Members
    all_gateways: bool = False

    def read(self) -> Iterator[pa.RecordBatch]:
        """Rows of client_day under the names of entities, one part of a day's entities at a time."""
        for day in self.days:
            for together in self.of_day(day):
                for batch in client_rows(iter([together])):
                    yield batch.filter(pc.equal(batch.column("table"), "client_day"))

    def of_day(self, day: CompactedDay) -> Iterator[pa.RecordBatch]:
        """Rows of entities with the sums of their members second by second, one part of the entities at a time."""
        table = compacted_table(self.out)
        fleets = fleets_of(published_days(self.out)) if self.scope is Scope.FLEET else {}
        naming = naming_of(self.entities, self.members)
        apis = [
            api for api in UsageApi if self.entities is not Entities.TEAM or KEY_OF_API[api] in GROUP_KEYS
        ]
        pieces = sorted(pieces_of(table.paths(table.in_order().of(date=day.date))))
        parts = 1 + day.rows // _ELEMENTS_AT_ONCE
        for part in range(parts):
            rows = read_entities(
                pieces,
                ENTITY,
                READ,
                brokers_apart=self.scope is Scope.BROKER,
                fleets=fleets,
                apis=apis,
                most_elements=ELEMENTS_AT_ONCE,
            )
            if self.all_gateways:
                rows = map(_of_one_gateway, rows)
            together = folded(rows, naming, part=part, parts=parts)
            if together is not None:
                yield from with_no_quota(together)


def _of_one_gateway(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("gw")
    return batch.set_column(at, "gw", pa.repeat(pa.scalar("", pa.string()), batch.num_rows))


def plan_of_entities(
    known: EntityDays,
    settings: RecommendationSettings,
    windows: Windows,
    basis: Basis,
    doubts: Sequence[Doubt],
    *,
    made_at: str,
    capacity: Mapping[QuotaKey, float],
    peaks: Mapping[QuotaKey, float],
) -> Plan:
    """A plan of quotas for entities.

    Args:
        known: their use.
        settings, basis, made_at, capacity, peaks: see `recommend`.
        windows: how quotas are measured.
        doubts: each removes its day from all entities, since any entity may have clients at any gateway.
    """
    rows = list(days_of(known.read(), settings.target, windows))
    why: dict[str, tuple[str, ...]] = {}
    for doubt in doubts:
        why[doubt.date] = (*why.get(doubt.date, ()), doubt.gateway or "all gateways")
    names = {(row["user"], row["client_id"]) for row in rows}
    left_out = tuple(LeftOut(doubt.gateway, doubt.date, doubt.reason, len(names)) for doubt in doubts)
    histories, unknown = gather(rows, LeftDays(dict.fromkeys(names, why), left_out))
    enough, brief = known_enough(histories, windows, settings.margin)
    too_little = tuple(each for _, each in sorted((unknown | brief).items()))
    plan = recommend(enough, settings, basis, made_at=made_at, capacity=capacity, peaks=peaks)
    shares = _shares_waiting(plan, [row for row in rows if row["date"].isoformat() not in why])
    entries = [
        replace(entry, expected_throttled=shares.get((entry.entity, entry.key))) for entry in plan.entries
    ]
    if known.entities is Entities.TEAM:
        entries = [_of_group(entry) for entry in entries]
        too_little = tuple(
            replace(each, client=each.client.replace("user=", "group=", 1)) for each in too_little
        )
    return replace(plan, entries=tuple(entries), left_out=left_out, too_little=too_little)


def _of_group(entry: PlanEntry) -> PlanEntry:
    """The quota of a team, whose name is in the user's place, as the quota of its group."""
    return replace(entry, entity=QuotaEntity(group=entry.entity.user))


def _shares_waiting(
    plan: Plan, rows: Sequence[Mapping[str, Any]]
) -> dict[tuple[QuotaEntity, QuotaKey], float]:
    """The share of units that would have waited under each quota of a plan."""
    quotas = {(entry.entity, entry.key): entry.value for entry in plan.entries}
    found: dict[tuple[QuotaEntity, QuotaKey], list[Mapping[str, Any]]] = {}
    for row in rows:
        place = (
            QuotaEntity(user=row["user"] or None, client_id=row["client_id"] or None),
            KEY_OF_API[row["api"]],
        )
        if place in quotas:
            found.setdefault(place, []).append(row)
    shares = {}
    for place, days in found.items():
        units = np.array([row["units"] for row in days])
        required = np.array([row["required"] for row in days])
        waited = shares_waiting(required, np.full((len(days), 1), quotas[place]))[:, 0] * units
        shares[place] = float(waited.sum() / units.sum())
    return shares
