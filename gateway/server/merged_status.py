"""Merges /metrics, /status.json and /why of all processes of a gateway. [io]"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.observability.capacity_notices import MOST_EPISODES
from gateway.observability.events import CloseCause
from gateway.observability.status import MAX_ROWS, MAX_WAITING, MUTATION_FIELDS, RATE_FIELDS, Built, urgency
from gateway.observability.throttle_journal import JournalClient, Throttles
from gateway.runtime.slices import Slices, in_slices
from gateway.server.merged_metrics import SUPERVISORS, Departed, merging, unpacking
from gateway.server.workers import Worker, WorkerPool

_ADDED: Final = ("throttled", "refused", "would_throttle")


class MergedMetrics(Collector):
    """The metrics of all processes; call `prepare` before each `collect`."""

    def __init__(self, own: Collector, pool: WorkerPool, prepare: Callable[[], Awaitable[None]]) -> None:
        """Merge the metrics of these.

        Args:
            own: the supervisor's metrics.
            pool: the workers.
            prepare: prepares the supervisor's metrics.
        """
        self._own = own
        self._pool = pool
        self._prepare_own = prepare
        self._departed = Departed()
        self._merged: list[Metric] = []
        pool.on_lost.append(self._lost)

    async def prepare(self) -> None:
        """Collect the metrics of the workers, and merge them with the supervisor's."""
        await self._prepare_own()
        answers = await self._pool.ask_all("metrics")
        asked = {number: self._pool.workers[number] for number in answers}
        found = {
            number: await in_slices(unpacking(parts), Slices(every=1)) for number, parts in answers.items()
        }
        # A worker that was lost meanwhile is among the departed, by its last answer.
        there = {
            number: each for number, each in found.items() if self._pool.workers.get(number) is asked[number]
        }
        others = self._departed.others(there)
        self._merged = await in_slices(merging(self._own.collect(), others), Slices())

    def collect(self) -> Iterator[Metric]:
        """All series, as of the last `prepare`."""
        yield from self._merged

    def _lost(self, worker: Worker) -> None:
        self._departed.lost(
            worker.number, CloseCause.DRAINED if self._pool.stopping else CloseCause.WORKER_LOST
        )


class MergedStatus:
    """Snapshots of the whole gateway."""

    def __init__(self, own: Callable[[], Awaitable[Built]], pool: WorkerPool) -> None:
        """Merge the snapshots of these.

        Args:
            own: makes the supervisor's snapshot.
            pool: the workers, which send theirs.
        """
        self._own = own
        self._pool = pool

    async def build(self) -> Built:
        """See `Status.build`."""
        own = await self._own()
        told = await self._pool.ask_all("status")
        began_s = time.perf_counter()
        text = json.dumps(
            _merged(json.loads(own.text), {number: json.loads(text) for number, text in told.items()})
        )
        return Built(text.encode(), own.spent_s + time.perf_counter() - began_s)

    async def throttles(self, what: str, *values: Any) -> list[tuple[JournalClient, Throttles]]:
        """Entries of the workers' journals; takes a method name of `ThrottleJournal` and its arguments."""
        answers = await self._pool.ask_all("throttles", what, values)
        return [entry for entries in answers.values() for entry in entries]


def _merged(own: dict[str, Any], others: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    series: dict[str, dict[str, list[Any]]] = {}
    clients: dict[tuple[Any, ...], dict[str, Any]] = {}
    waiting: list[dict[str, Any]] = []
    journal_entries = 0
    for at, each in enumerate((own, *others.values())):
        for name, samples in each["series"].items():
            if at and name.startswith(SUPERVISORS):
                continue
            known = series.setdefault(name, {})
            for labels, value in samples:
                sample = known.setdefault(json.dumps(labels, sort_keys=True), [labels, 0])
                sample[1] += value
        for client in each["clients"]:
            _add_client(clients, client)
        waiting += each["waiting"]
        journal_entries += each["members"][0]["journal_entries"]
    ranked = sorted(clients.values(), key=urgency, reverse=True)
    waiting.sort(key=lambda entry: int(entry["last_ms"]), reverse=True)
    (member,) = own["members"]
    workers = [_worker_json(number, each["series"]) for number, each in sorted(others.items())]
    capacities = [each["capacity"] for each in (own, *others.values())]
    return own | {
        "capacity": {name: _most_used(name, capacities) for name in sorted(set().union(*capacities))},
        "overload": _slowest([each["overload"] for each in (own, *others.values())]),
        "members": [member | {"journal_entries": journal_entries, "workers": workers}],
        "client_count": len(clients),
        "waiting": waiting[:MAX_WAITING],
        "series": {name: list(samples.values()) for name, samples in series.items()},
        "clients": ranked[:MAX_ROWS],
    }


def _most_used(name: str, capacities: Sequence[Mapping[str, Any]]) -> Any:
    """The division by the process that knows the most usage: workers share theirs, the supervisor gets none."""
    known = [each[name] for each in capacities if name in each]
    found = max(known, key=lambda each: float(each["guaranteed"] + each["lent"]))
    return {**found, "tiers": [_tier(each) for each in zip(*(each["tiers"] for each in known), strict=True)]}


def _tier(known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A tier, with the highest reported usage and the lowest remaining capacity."""
    found = dict(max(known, key=lambda each: float(each["used"])))
    found["shed"] = max(each["shed"] for each in known)
    for limit in ("brake", "overload"):
        found[limit] = min((each[limit] for each in known if each[limit] is not None), default=None)
    return found


def _slowest(overloads: Sequence[Mapping[str, Any] | None]) -> Any:
    """The process with the least usable capacity, with the episodes of all: each worker measures its own clients."""
    known = [each for each in overloads if each is not None]
    if not known:
        return None
    episodes = [episode for each in known for episode in each["episodes"]]
    episodes.sort(key=lambda episode: (episode["until_ms"] is None, episode["from_ms"]), reverse=True)
    slowest = min(known, key=lambda each: (float(each["usable"]), -each["clients"]))
    return {**slowest, "episodes": episodes[:MOST_EPISODES]}


def _worker_json(number: int, series: Mapping[str, Any]) -> dict[str, Any]:
    def total(name: str, **labels: str) -> float:
        return float(sum(value for has, value in series.get(name, ()) if labels.items() <= has.items()))

    return {
        "worker": number,
        "connections": total("gateway_connections_active"),
        "muted": total("gateway_channels_muted", reason="throttled"),
        "throttled": total("gateway_throttled_requests_total"),
    }


def _add_client(clients: dict[tuple[Any, ...], dict[str, Any]], client: dict[str, Any]) -> None:
    key = (client["user"], client["client_id"], client.get("broker"), client.get("other"))
    mine = clients.setdefault(key, client)
    if mine is client:
        return
    for name, cells in client.items():
        if isinstance(cells, list):
            fields = MUTATION_FIELDS if name == "controller_mutation" else RATE_FIELDS
            before = mine.get(name)
            mine[name] = cells if before is None else list(map(_cell, fields, before, cells))


def _cell(field: str, mine: Any, other: Any) -> Any:
    if mine is None or other is None:
        return other if mine is None else mine
    if field == "rule":
        return mine
    # Each process knows the whole counter.
    return mine + other if field in _ADDED else max(mine, other)
