"""``python -m benchmarks.entity_memory``: memory of a client id's counters, by which quotas are set; ten seconds.

The quotas are defaults for all client ids, so each client id has its own counters. Client ids use each quota twice,
half a minute apart. The result is the memory that Python allocates, divided by the number of client ids.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine
from benchmarks.relay.native_build import ROOT
from gateway.runtime.compiled_core import core_name
from gateway.session.client_quotas import ClientQuotas
from quotas.entities import API_RATE_KEYS, BURST_KEYS, DEFAULT, GUARANTEE_KEYS, QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from testkit.core import GatewayCore

_CLIENTS: Final = 2_000
_ENOUGH: Final = 1e12
_EVERYBODY: Final = QuotaEntity(client_id=DEFAULT)
_GROUP: Final = QuotaEntity(group="everything")
_BYTES: Final = tuple(BURST_KEYS)
_RECORDS: Final = (QuotaKey.PRODUCER_RECORD_RATE, QuotaKey.CONSUMER_RECORD_RATE)

SETS: Final[dict[str, tuple[QuotaKey, ...]]] = {
    "nothing": (),
    "byte rates": _BYTES,
    "byte rates with bursts": (*_BYTES, *BURST_KEYS.values()),
    "byte rates, guarantees, weight, tier and a capacity": (
        *_BYTES,
        *GUARANTEE_KEYS.values(),
        QuotaKey.WEIGHT,
        QuotaKey.TIER,
    ),
    "records": _RECORDS,
    "requests of the eight families of APIs": API_RATE_KEYS,
    "all of these, and a group": (
        *_BYTES,
        *BURST_KEYS.values(),
        *GUARANTEE_KEYS.values(),
        QuotaKey.WEIGHT,
        QuotaKey.TIER,
        *_RECORDS,
        *API_RATE_KEYS,
    ),
}
_VALUES: Final = {QuotaKey.WEIGHT: 2.0, QuotaKey.TIER: 1.0, **dict.fromkeys(BURST_KEYS.values(), 60.0)}


def set_up(keys: Iterable[QuotaKey], *, group: bool) -> GatewayCore:
    """A gateway with these quotas of every client id."""
    core = GatewayCore()
    for key in keys:
        core.limits.set(_EVERYBODY, key, _VALUES.get(key, _ENOUGH))
    if QuotaKey.WEIGHT in keys:
        capacity = dict.fromkeys(_BYTES, _ENOUGH)
        core.client_quotas.set_capacity(capacity, observe=False, now_ms=core.clock.now_ms)
    if group:
        core.limits.set_groups(Groups([Group("everything", client_ids=("client-*",))]))
        for key in _BYTES:
            core.limits.set(_GROUP, key, _ENOUGH)
    return core


def use(quotas: ClientQuotas, client_id: str, *, now_ms: int) -> Iterator[None]:
    """One use of each quota that is set."""
    for rate in (quotas.produce, quotas.fetch, *quotas.further_rates.values()):
        tracker = rate.tracker("ANONYMOUS", client_id, kind="ANONYMOUS", now_ms=now_ms)
        if tracker is not None and tracker.match.limit is not None:
            tracker.record(1.0, now_ms=now_ms)
            yield
    for groups in (quotas.produce_groups, quotas.fetch_groups):
        for each in groups.trackers("ANONYMOUS", client_id, "", now_ms=now_ms):
            each.record(1.0, now_ms=now_ms)


def bytes_per_client(name: str, clients: int) -> tuple[float, int]:
    """The memory of a client id's counters in bytes, and how many counters it has."""
    core = set_up(SETS[name], group="group" in name)
    names = [f"client-{number}" for number in range(clients)]
    gc.collect()
    tracemalloc.start()
    counters = 0
    for turn in range(2):
        now_ms = core.clock.now_ms + 30_000 * turn
        counters = sum(1 for each in names for _ in use(core.client_quotas, each, now_ms=now_ms))
        for _ in core.client_quotas.divide(now_ms=now_ms):
            pass
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / clients, counters // clients


def main() -> None:
    """Measure, keep the page and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.entity_memory", description=__doc__)
    parser.add_argument("--clients", type=int, default=_CLIENTS)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.entity_memory"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "core": core_name(),
        "machine": describe_machine(),
        "clients": options.clients,
        "rows": [
            {"set": name, "bytes": round(taken), "counters": counters}
            for name in SETS
            for taken, counters in [bytes_per_client(name, options.clients)]
        ],
    }
    text = page(document)
    keep_results(document, text, options.output, "entity-memory")
    print(text)


def page(document: dict[str, Any]) -> str:
    """The page of the results."""
    lines = [
        "# Memory of a client id",
        "",
        f"`{document['command']}`, {document['started']}, commit {document['machine']['commit']}, "
        f"{document['core']}.",
        "",
        f"What Python allocates for the counters of {document['clients']:,} client ids, divided by their number. "
        "A client id that is silent for an hour has no counters any more.",
        "",
        "| Set for every client id | Counters | Bytes per client id |",
        "|---|---:|---:|",
        *(f"| {row['set']} | {row['counters']} | {row['bytes']:,} |" for row in document["rows"]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
