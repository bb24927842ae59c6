"""The current state as one JSON snapshot, for the status page and `sluice top`.

Every number is one of /metrics: rows of clients are those of `QuotaMetrics`, the others are taken from the families
of other collectors. The text is built in slices. The number of series per client bounds its length.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from prometheus_client.core import Metric

from gateway.observability.capacity_notices import cut_json
from gateway.observability.quota_metrics import OTHER, QuotaMetrics, label_value
from gateway.observability.throttle_journal import JournalClient, ThrottleJournal, Throttles
from gateway.runtime.slices import Slices, in_slices
from quotas.entities import OTHER_CLIENTS, client_name, counter_name
from quotas.lending import Claim
from quotas.mutations import TrackerSnapshot
from quotas.rate_quotas import RateSnapshot
from quotas.resolution import TrackerKey

MAX_ROWS: Final = 1_000
MAX_WAITING: Final = 100
_LOOKED_AT: Final = 1_000

RATE_FIELDS: Final = (
    "rule",
    "rate",
    "limit",
    "utilisation",
    "throttled",
    "would_throttle",
    "throttle_time_s",
)
MUTATION_FIELDS: Final = (
    "rule",
    "rate",
    "limit",
    "tokens",
    "throttled",
    "refused",
    "would_throttle",
    "throttle_time_s",
)


class Built(NamedTuple):
    """A snapshot as JSON, and the time that it took."""

    text: bytes
    spent_s: float


class Status:
    """See the module."""

    def __init__(
        self,
        quotas: QuotaMetrics,
        journal: ThrottleJournal,
        *,
        families: Iterable[Callable[[], Iterator[Metric]]],
        gateway: Mapping[str, Any],
        state: Callable[[], Mapping[str, Any]],
        capacity: Callable[[], Mapping[str, Any]] = dict,
        overload: Callable[[], Mapping[str, Any] | None] = lambda: None,
        wall_ms: Callable[[], int],
        max_rows: int = MAX_ROWS,
    ) -> None:
        """Reads nothing yet.

        Args:
            quotas: the rows of clients.
            journal: the throttles of clients.
            families: functions that return families which are not per client, each a part of /metrics.
            gateway: facts that do not change.
            state: returns the facts that change: few, and cheap.
            capacity: see `capacity_json`.
            overload: see `overload_json`.
            wall_ms: the wall clock.
            max_rows: the most clients; those nearest to their limits are shown.
        """
        self._quotas = quotas
        self._journal = journal
        self._families = tuple(families)
        self._gateway = gateway
        self._state = state
        self._capacity = capacity
        self._overload = overload
        self._wall_ms = wall_ms
        self._max_rows = max_rows

    async def build(self) -> Built:
        """The snapshot of this moment. The loop does other work after each millisecond or so."""
        slices = Slices(every=4)
        series: dict[str, list[list[Any]]] = {}
        for collect in self._families:
            for family in collect():
                for sample in family.samples:
                    series.setdefault(sample.name, []).append([sample.labels, sample.value])
                if slices.over:
                    await slices.next()
        clients: dict[tuple[str, ...], dict[str, Any]] = {}
        looked = await in_slices(self._quotas.look(), slices)
        for rates, rows in zip(self._quotas.rates, looked.rates, strict=True):
            for names, rate, totals in rows:
                _client(clients, names)[rates.name] = _rate_cells(names[2], rate, totals)
                if slices.over:
                    await slices.next()
        for names, row, totals in looked.mutations:
            _client(clients, names)[self._quotas.mutations.name] = _mutation_cells(names[2], row, totals)
            if slices.over:
                await slices.next()
        parts = []
        ranked = sorted(clients.values(), key=urgency, reverse=True)
        for client in ranked[: self._max_rows]:
            name = OTHER_CLIENTS if "other" in client else counter_name(client["user"], client["client_id"])
            parts.append(json.dumps({"name": name, **client}))
            if slices.over:
                await slices.next()
        wall_ms = self._wall_ms()
        head = {
            "at_ms": wall_ms,
            # There is one member today. Each has its own state; rows of clients will name their member.
            "members": [{**self._gateway, **self._state()}],
            "rate_fields": RATE_FIELDS,
            "mutation_fields": MUTATION_FIELDS,
            "capacity": self._capacity(),
            "overload": self._overload(),
            "client_count": len(clients),
            "waiting": [waiting_json(*each) for each in self._waiting(wall_ms)],
            "series": series,
        }
        text = f'{json.dumps(head)[:-1]}, "clients": [{", ".join(parts)}]}}'
        return Built(text.encode(), slices.spent_s)

    def _waiting(self, wall_ms: int) -> list[tuple[JournalClient, Throttles]]:
        """The clients of the journal that are throttled now."""
        latest = islice(self._journal.latest(), _LOOKED_AT)
        return list(islice((each for each in latest if each[1].until_ms > wall_ms), MAX_WAITING))


def _client(clients: dict[tuple[str, ...], dict[str, Any]], names: list[str]) -> dict[str, Any]:
    user, client_id, rule, *broker = names
    other = rule == OTHER
    key = (OTHER,) if other else (user, client_id, *broker)
    found = clients.get(key)
    if found is None:
        found = clients[key] = {"user": user, "client_id": client_id}
        if other:
            found["other"] = True
        if broker and not other:
            found["broker"] = broker[0]
    return found


def _rate_cells(rule: str, row: RateSnapshot | None, totals: tuple[int, ...]) -> list[Any]:
    if row is None:
        return [rule, None, None, None, *totals, None]
    waited_s = None if row.throttle_time_ms is None else row.throttle_time_ms / 1000
    return [rule, row.rate, row.limit, row.utilisation, *totals, waited_s]


def _mutation_cells(rule: str, row: TrackerSnapshot | None, totals: tuple[int, ...]) -> list[Any]:
    if row is None:
        return [rule, None, None, None, *totals, None]
    waited_s = None if row.throttle_time_ms is None else row.throttle_time_ms / 1000
    return [rule, row.mutation_rate, row.limit, row.tokens, *totals, waited_s]


def urgency(client: Mapping[str, Any]) -> tuple[float, float]:
    """A sort key: how near the client is to a limit, then its use."""
    used = rate = 0.0
    for name in ("produce", "fetch", "request"):
        cells = client.get(name)
        if cells is not None:
            used = max(used, cells[3] or 0.0)
            rate = max(rate, cells[1] or 0.0)
    mutations = client.get("controller_mutation")
    if mutations is not None and mutations[1] is not None:
        used = max(used, mutations[1] / mutations[2] if mutations[2] else 0.0)
        rate = max(rate, mutations[1])
    return used, rate


def waiting_json(client: JournalClient, entry: Throttles) -> dict[str, Any]:
    """A client and its last throttle."""
    name = client_name(ip=client.ip) if client.ip else client_name(client.user, client.client_id)
    return {
        "name": name,
        "user": client.user,
        "client_id": client.client_id,
        "ip": client.ip,
        **throttles_json(entry),
    }


def throttles_json(entry: Throttles) -> dict[str, Any]:
    """An entry of the journal."""
    return {
        "first_ms": entry.first_ms,
        "last_ms": entry.last_ms,
        "by": entry.by,
        "api": entry.api,
        "rule": entry.rule.value,
        "entity": None if entry.entity is None else str(entry.entity),
        "limit": entry.limit,
        "lent": None if entry.lent is None else lent_json(entry.lent),
        "cut": None if entry.cut is None else cut_json(entry.cut),
        "counter": counter_json(entry.counter),
        "shared": entry.shared,
        "measured": entry.reading._asdict(),
        "told_ms": entry.told_ms,
        "total_ms": entry.total_ms,
        "count": entry.count,
        "until_ms": entry.until_ms,
    }


def lent_json(claim: Claim) -> dict[str, Any]:
    """A client's claim on a capacity; a ceiling of null: all of it."""
    ceiling = None if claim.ceiling == math.inf else claim.ceiling
    return {"guarantee": claim.guarantee, "ceiling": ceiling, "weight": claim.weight, "tier": claim.tier}


def counter_json(key: TrackerKey) -> dict[str, str]:
    """The clients that a counter counts together; an empty name stands for all."""
    user, client_id = label_value(key.user), label_value(key.client_id)
    return {"name": counter_name(user, client_id), "user": user, "client_id": client_id}
