"""What a byte-rate quota costs per frame, by number of active entities, next to a bare dictionary of counters.

    python benchmarks/accounting.py [--entities 10000] [--records 400000] [--rounds 5] [--json FILE]

Both count the same frames of the same clients in the same random order, round by round in turn. The clock
moves, so samples begin and are forgotten as in life. CPU time of the best round: neighbours on a shared
machine only ever make a round slower. The limit is never reached (one run more shows what a
client over its limit costs). Goal: at most 1.5 us per frame at 10,000 active entities.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings

KEY = QuotaKey.PRODUCER_BYTE_RATE
FRAME_BYTES = 1_000
RECORDS_PER_MS = 20  # how fast the clock moves: 20,000 frames a second

Clients = list[tuple[str, str]]


def main() -> int:
    """Runs the benchmark and prints one line per number of entities; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description="What a byte-rate quota costs per frame.")
    parser.add_argument("--entities", type=int, nargs="+", default=[100, 10_000])
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the raw results here")
    options = parser.parse_args()

    results = [_measure(entities, options.records, options.rounds) for entities in options.entities]
    for result in results:
        print(
            f"entities={result['entities']:>6}  quota {result['quota_us']:.3f} us/frame"
            f"  over limit {result['over_limit_us']:.3f} us/frame  bare dict {result['dict_us']:.3f} us/frame"
            f"  ratio {result['ratio']:.1f}"
        )
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")
    return int(any(result["quota_us"] > 1.5 for result in results))


def _measure(entities: int, records: int, rounds: int) -> dict[str, float]:
    rng = random.Random(entities)
    clients = [(f"user-{i % 100}", f"client-{i}") for i in range(entities)]
    order = [clients[rng.randrange(entities)] for _ in range(records)]
    within, over, bare = _quota_run(1e12), _quota_run(1.0), _dict_run()
    times: dict[str, list[float]] = {"quota": [], "over": [], "dict": []}
    for _ in range(rounds):
        for name, run in (("dict", bare), ("quota", within), ("over", over)):
            times[name].append(run(order) / records * 1e6)
    best = {name: min(values) for name, values in times.items()}
    return {
        "entities": entities,
        "records": records,
        "quota_us": best["quota"],
        "over_limit_us": best["over"],
        "dict_us": best["dict"],
        "ratio": best["quota"] / best["dict"],
    }


def _quota_run(limit: float) -> Callable[[Clients], float]:
    limits = Limits()
    limits.set(QuotaEntity(DEFAULT, DEFAULT), KEY, limit)
    quotas = ByteRateQuotas(limits, KEY, RateSettings())
    started_ms = 0

    def run(order: Clients) -> float:
        nonlocal started_ms
        started = time.process_time()
        for i, (user, client_id) in enumerate(order):
            now_ms = started_ms + i // RECORDS_PER_MS
            tracker = quotas.tracker(user, client_id, now_ms=now_ms)
            if tracker is not None:
                tracker.record(FRAME_BYTES, now_ms=now_ms)
        elapsed = time.process_time() - started
        started_ms += len(order) // RECORDS_PER_MS
        return elapsed

    return run


def _dict_run() -> Callable[[Clients], float]:
    counters: dict[tuple[str, str], float] = {}
    started_ms = 0

    def run(order: Clients) -> float:
        nonlocal started_ms
        started = time.process_time()
        last_ms = 0
        for i, (user, client_id) in enumerate(order):
            last_ms = started_ms + i // RECORDS_PER_MS
            key = (user, client_id)
            counters[key] = counters.get(key, 0) + FRAME_BYTES
        elapsed = time.process_time() - started
        started_ms = last_ms
        return elapsed

    return run


if __name__ == "__main__":
    sys.exit(main())
