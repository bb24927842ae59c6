"""``python -m benchmarks.topic_partitions``: the CPU cost of counting by topic when a request has 1,000 partitions.

The same Produce requests pass four gateways: with usage records and with records by topic, each from sources and
compiled (`make compiled` first). The gateways take turns, with one request at a time. The result is the gateway's CPU
time per request, and the ratio within rounds. Exit code 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.connections.paths import start_null_broker
from benchmarks.keep import keep_results
from benchmarks.pairs import paired_ratio
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import compile_native
from benchmarks.relay.paths import RunningPath, await_answer, start_gateway
from benchmarks.relay.processes import choose_cores
from testkit import wire

RESULTS: Final = Path(__file__).resolve().parent / "results"
PARTITIONS: Final = 1_000
KINDS: Final = {
    "small, as long": ((120, 120), 1_500, 1.15),
    "small, at random": ((70, 170), 1_500, 1.15),
    "1 MB": ((500, 1_500), 400, 1.03),
}
"""Least and most bytes of a partition's records; requests in a window; the goal."""
_BATCH_HEAD: Final = struct.Struct(">qiib40xi")
"""Base offset, length, leader epoch, magic; number of records."""


def request(least_bytes: int, most_bytes: int) -> bytes:
    """A Produce to 1,000 partitions of one topic."""
    random = Random(1)
    partitions = []
    for index in range(PARTITIONS):
        size = random.randint(least_bytes, most_bytes)
        head = _BATCH_HEAD.pack(0, size - 12, 0, 2, 3)
        partitions.append({"index": index, "records": head.ljust(size, b"x")})
    topics = [{"name": "benchmark", "partition_data": partitions}]
    return wire.request("Produce", 9, client_id="bench", acks=1, timeout_ms=1_000, topic_data=topics)


def cpu_us_each(path: RunningPath, frame: bytes, requests: int) -> float:
    """CPU time of the gateway by request."""
    assert path.proxy is not None
    with socket.create_connection(("127.0.0.1", path.port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        before_s = 0.0
        for number in range(requests + requests // 10):
            if number == requests // 10:
                before_s = path.proxy.cpu_s()
            client.sendall(frame)
            size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
            assert len(client.recv(size, socket.MSG_WAITALL)) == size
        return (path.proxy.cpu_s() - before_s) / requests * 1e6


def measure(rounds: int) -> list[dict[str, Any]]:
    """Windows in turns."""
    cores = choose_cores()
    cores.take_load()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="topic-partitions-") as path, ExitStack() as stack:
        folder = Path(path)
        broker, port = start_null_broker(compile_native(), cores.load, folder)
        stack.callback(broker.stop)
        gateways: dict[str, RunningPath] = {}
        for compiled in (False, True):
            for topics in (False, True):
                name = f"{'compiled' if compiled else 'sources'}, {'topics' if topics else 'usage'}"
                gateway = start_gateway(
                    port, cores.proxy, folder, usage=True, topics=topics, compiled=compiled
                )
                assert gateway.proxy is not None
                stack.callback(gateway.proxy.stop)
                await_answer(gateway)
                gateways[name] = gateway
        for number in range(rounds):
            for kind, (span, requests, _) in KINDS.items():
                frame = request(*span)
                for name, gateway in gateways.items():
                    figure = cpu_us_each(gateway, frame, requests)
                    rows.append(
                        {"workload": kind, "path": name, "round": number, "figure": figure, "invalid": ""}
                    )
    return rows


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topic_partitions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    rows = measure(options.rounds)
    document = {
        "command": "python -m benchmarks.topic_partitions" + f" --rounds {options.rounds}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "load_average_after": load_average(),
        "rows": rows,
    }
    lines = [
        "# Counting by topic, 1,000 partitions in a request",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}; load average after "
        f"{document['load_average_after']}.",
        "",
        "CPU time by request with usage records by topic over that with usage records; median of the ratios within a "
        "round and its 95 % interval.",
        "",
        "| records of a partition | sources | compiled | goal |",
        "|---|---|---|---|",
    ]
    missed = False
    for kind, ((least, most), _, goal) in KINDS.items():
        sources, compiled = (
            paired_ratio(rows, kind, f"{core}, topics", f"{core}, usage") for core in ("sources", "compiled")
        )
        assert compiled is not None
        missed |= compiled.high > goal
        lines.append(f"| {kind}, {least} to {most} B | {sources} | {compiled} | {goal} |")
    page = "\n".join([*lines, ""])
    keep_results(document, page, options.output, "topic-partitions")
    print(page)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
