"""``python -m benchmarks.accounting``: what a byte-rate quota and usage records cost per frame, by number of clients.

To measure the compiled core:
``SLUICE_COMPILED=1 PYTHONPATH=build/compiled/sluice:. python -P -m benchmarks.accounting``.

As frames pass: each client has its own session and client id. The sessions relay a Produce of 256 B and its response
in random order: with a quota, with usage records and without either, in turn. The difference within a round is the
cost of the quota or of the records. By name: the counter is looked up for every frame, as for a connection whose
client ids change. A bare dictionary of counters is measured for comparison. The clock moves, so samples begin and
expire as in production. There are so many clients that a client's data has left the processor's cache before its next
frame. The limit is never reached, except in the row that says so.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.pairs import Ratio, ratio_of
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT
from benchmarks.session import reply, request
from gateway.runtime.compiled_core import core_name
from gateway.usage.table import UsageTable
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings
from testkit.core import GatewayCore

_KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
_FRAME_BYTES: Final = 256
_FRAMES_PER_MS: Final = 20  # how fast the clock moves: 20,000 frames a second
_ENOUGH: Final = 1e12
_GOAL_US: Final = 0.5
_GOAL_CLIENTS: Final = 10_000

_TITLES: Final = {
    "without": "a frame without either",
    "with": "with the quota",
    "recorded": "with usage records",
    "by_name": "by name",
    "over_limit": "by name, over the limit",
    "dictionary": "bare dictionary",
}

Run = Callable[[], float]
"""Runs one round and returns the CPU time per frame in microseconds."""


def main() -> None:
    """Run the benchmark, keep the results and print the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accounting", description=__doc__)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()

    started, before = datetime.now(UTC), load_average()
    rows = [_measure(clients, options.frames, options.rounds) for clients in (100, _GOAL_CLIENTS)]
    machine = describe_machine() | {"load_average_before": before, "load_average_after": load_average()}
    document: dict[str, Any] = {
        "command": f"python -m benchmarks.accounting --frames {options.frames} --rounds {options.rounds}",
        "started": started.isoformat(timespec="seconds"),
        "core": core_name(),
        "machine": machine,
        "rows": rows,
    }
    page = _page(document)
    name = "accounting-compiled" if "compiled" in core_name() else "accounting"
    keep_results(document, page, options.output, name)
    print(page)


def _measure(clients: int, frames: int, rounds: int) -> dict[str, Any]:
    rng = random.Random(clients)
    order = [rng.randrange(clients) for _ in range(frames)]
    runs: dict[str, Run] = {
        "without": _relayed(clients, order, None),
        "with": _relayed(clients, order, _ENOUGH),
        "recorded": _relayed(clients, order, None, UsageTable()),
        "by_name": _looked_up(clients, order, _ENOUGH),
        "over_limit": _looked_up(clients, order, 1.0),
        "dictionary": _dictionary(clients, order),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            us = run()
            if number:  # the first round creates the counters
                taken[name].append(us)

    def added(name: str) -> dict[str, Any]:
        pairs = zip(taken[name], taken["without"], strict=True)
        return ratio_of([us - without for us, without in pairs]).as_dict()

    return {"clients": clients, "adds": added("with"), "records_add": added("recorded")} | {
        name: ratio_of(us).as_dict() for name, us in taken.items()
    }


def _relayed(clients: int, order: Sequence[int], limit: float | None, usage: UsageTable | None = None) -> Run:
    core = GatewayCore(producer_byte_rate=limit, usage=usage)
    requests = [request(0, _FRAME_BYTES, client_id=f"client-{i}".encode()) for i in range(clients)]
    answer = reply(0)
    each = [(core.new_session(), sent) for sent in requests]
    played = [each[i] for i in order]
    began_ms = core.clock.now_ms

    def run() -> float:
        nonlocal began_ms
        if usage is not None:  # each round belongs to a new usage record
            for row in usage.take_listed(now_ms=began_ms):
                usage.values(row, begin_ms=began_ms, now_ms=began_ms)
        relayed = True
        began = time.process_time()
        for i, (session, sent) in enumerate(played):
            now_ms = began_ms + i // _FRAMES_PER_MS
            relayed &= session.relay_request(sent, now_ms=now_ms)
            relayed &= session.relay_reply(answer, now_ms=now_ms)
        elapsed = time.process_time() - began
        began_ms += len(played) // _FRAMES_PER_MS
        assert relayed
        return elapsed / len(played) * 1e6

    return run


def _names(clients: int, order: Sequence[int]) -> list[tuple[str, str]]:
    names = [(f"user-{i % 100}", f"client-{i}") for i in range(clients)]
    return [names[i] for i in order]


def _looked_up(clients: int, order: Sequence[int], limit: float) -> Run:
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT, DEFAULT), _KEY, limit)
    quotas = ByteRateQuotas(limits, _KEY, RateSettings())
    played = _names(clients, order)
    began_ms = 0

    def run() -> float:
        nonlocal began_ms
        began = time.process_time()
        for i, (user, client_id) in enumerate(played):
            now_ms = began_ms + i // _FRAMES_PER_MS
            tracker = quotas.tracker(user, client_id, now_ms=now_ms)
            if tracker is not None:
                tracker.record(_FRAME_BYTES, now_ms=now_ms)
        elapsed = time.process_time() - began
        began_ms += len(played) // _FRAMES_PER_MS
        return elapsed / len(played) * 1e6

    return run


def _dictionary(clients: int, order: Sequence[int]) -> Run:
    counters: dict[tuple[str, str], float] = {}
    played = _names(clients, order)

    def run() -> float:
        began = time.process_time()
        for i, (user, client_id) in enumerate(played):
            _ = i // _FRAMES_PER_MS
            key = (user, client_id)
            counters[key] = counters.get(key, 0) + _FRAME_BYTES
        return (time.process_time() - began) / len(played) * 1e6

    return run


def _page(document: dict[str, Any]) -> str:
    machine = document["machine"]
    lines = [
        "# What a byte-rate quota and usage records cost per frame",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}, {document['core']}.",
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}. Load average before "
        f"{machine['load_average_before']}, after {machine['load_average_after']}.",
        "",
        "CPU time of a frame in us: the median of all rounds and its interval of 95 %. As frames pass: a Produce of "
        "256 B and its reply through sessions of as many clients; added: with less without, within a round. "
        "By name: the counter is looked up for every frame.",
        "",
        f"| clients | the quota adds | usage records add | {' | '.join(_TITLES.values())} |",
        f"|---|---|---|{'---|' * len(_TITLES)}",
    ]
    for row in document["rows"]:
        cells = [_ratio(row["adds"]), _ratio(row["records_add"]), *(_ratio(row[name]) for name in _TITLES)]
        lines.append(f"| {row['clients']:,} | {' | '.join(map(str, cells))} |")
    if "compiled" in document["core"]:
        goal = "met" if document["rows"][-1]["adds"]["high"] <= _GOAL_US else "missed"
        lines += ["", f"Goal as frames pass, {_GOAL_CLIENTS:,} clients: {_GOAL_US} us ({goal})."]
    return "\n".join(lines) + "\n"


def _ratio(kept: dict[str, Any]) -> Ratio:
    return Ratio(**kept)


if __name__ == "__main__":
    main()
