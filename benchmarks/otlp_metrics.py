"""The CPU cost of OTLP metrics: a busy second with one export, compared with a second without.

    python -m benchmarks.otlp_metrics [--clients 1000] [--rounds 10] [--write]

Sessions relay small Produce requests for about a second of CPU, in turns of a millisecond, with and without an export
of all series. The collector is a separate process. The measured CPU is that of the whole process, including the
thread that exports. The shortest interval is one export a second; the default is one a minute. Goal: at most 1
percent more CPU at the default.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import platform
import statistics
import sys
import time
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from benchmarks.keep import keep_results
from benchmarks.traces import Produces
from gateway.observability.otlp_metrics import OtlpMetrics
from testkit.raw_client import HOST

RESULTS: Final = Path(__file__).with_name("results")
GOAL: Final = 1.01
_OF_A_CLIENT: Final = 14
"""Series that a client with a byte rate each way has."""
_TURN: Final = 100


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _collect(port: Connection) -> None:
    server = HTTPServer((HOST, 0), _Handler)
    port.send(server.server_address[1])
    server.serve_forever()


def families_of(clients: int) -> list[Metric]:
    """The metrics' series for `clients` clients."""
    found: list[Metric] = []
    for at in range(_OF_A_CLIENT):
        kind = CounterMetricFamily if at % 3 == 0 else GaugeMetricFamily
        family = kind(f"gateway_made_up_{at}", "Made up.", labels=["user", "client_id", "rule"])
        for client in range(clients):
            family.add_metric([f"user-{client}", f"application-{client}", "user_client"], client * 1.5)
        found.append(family)
    return found


async def _second(produces: Produces, turns: int, otlp: OtlpMetrics | None) -> float:
    """CPU seconds of the process."""
    began = time.process_time()
    if otlp is not None:
        otlp.start()
    ending = None if otlp is None else asyncio.ensure_future(otlp.stop())  # makes one export
    for _ in range(turns):
        produces(_TURN)
        await asyncio.sleep(0)
    if ending is not None:
        await ending
    return time.process_time() - began


def main() -> int:
    """Run the benchmark and print a table; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description="What metrics by OTLP cost.")
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    collector = context.Process(target=_collect, args=(there,), daemon=True)
    collector.start()
    endpoint = f"http://{HOST}:{here.recv()}/v1/metrics"
    sys.setswitchinterval(0.0005)  # as the gateway does
    families = families_of(options.clients)
    produces = Produces(None)
    spent = produces(5_000) / 5_000
    turns = int(1 / spent / _TURN)
    ratios = []
    for at in range(options.rounds):
        cpu = {}
        for on in (True, False) if at % 2 else (False, True):
            cpu[on] = asyncio.run(_one(produces, turns, endpoint if on else None, families))
        ratios.append(cpu[True] / cpu[False])
    collector.terminate()
    ratio = statistics.median(ratios)
    document: dict[str, Any] = {
        "python": platform.python_version(),
        "series": options.clients * _OF_A_CLIENT,
        "rounds": options.rounds,
        "ratio_1s": round(ratio, 3),
        "ratio_60s": round(1 + (ratio - 1) / 60, 4),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }
    print(document)
    if options.write:
        keep_results(document, _page(document), RESULTS, "otlp-metrics")
    kept = document["ratio_60s"] <= GOAL
    print(f"goal {'kept' if kept else 'missed'}: at most {GOAL} at the default interval")
    return int(not kept)


async def _one(produces: Produces, turns: int, endpoint: str | None, families: list[Metric]) -> float:
    async def shown() -> AsyncIterator[Metric]:
        for family in families:
            yield family
            await asyncio.sleep(0)

    otlp = None if endpoint is None else OtlpMetrics(endpoint, shown, interval_ms=60_000, resource={})
    return await _second(produces, turns, otlp)


def _page(document: dict[str, Any]) -> str:
    lines = [
        "# What metrics by OTLP cost",
        "",
        "CPU of a process that relays small Produces for a second, with one export in it, beside one without",
        f"(`python -m benchmarks.otlp_metrics --write`). {document['series']} series, {document['rounds']} rounds in "
        "turns, median.",
        "",
        "| Interval | CPU, ratio | Lowest and highest round |",
        "|---|---|---|",
        f"| 1 s | {document['ratio_1s']} | {document['lowest']}, {document['highest']} |",
        f"| 60 s (default), computed from it | {document['ratio_60s']} | |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
