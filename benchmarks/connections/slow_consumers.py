"""``python -m benchmarks.connections.slow_consumers``: memory while 200 consumers fetch answers of 50 MB slowly.

Each consumer first stands still until every buffer is full, then reads a little four times a second. Resident memory
is taken all the time; what a consumer costs is the growth since before the first one came, its connection and all.
Once as sources, and once with the compiled core (`make compiled` first).
"""

import argparse
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.__main__ import RESULTS
from benchmarks.connections.paths import start_null_broker, start_sluice
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import compile_native
from benchmarks.relay.processes import PinnedProcess, allow_many_descriptors, choose_cores
from testkit import wire

CONSUMERS: Final = 200
ANSWER_BYTES: Final = 50_000_000
SECONDS: Final = 20
STILL_S: Final = 5.0
READ_BYTES: Final = 32_768
GOAL_KIB: Final = 64
PHASES: Final = ("still", "reading")
_PERIOD_S: Final = 0.25
_RECEIVE_BUFFER_BYTES: Final = 65_536
"""receive.buffer.bytes of Java clients."""


def connect(port: int, answer_bytes: int) -> socket.socket:
    """A consumer that has asked for so much."""
    consumer = socket.socket()
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    consumer.settimeout(60)
    consumer.connect(("127.0.0.1", port))
    asked = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": answer_bytes, "topics": []}
    consumer.sendall(wire.request("Fetch", 12, correlation_id=1, client_id="slow", **asked))
    return consumer


def read_whole(consumer: socket.socket) -> None:
    """One answer, as fast as it comes."""
    left = int.from_bytes(consumer.recv(4, socket.MSG_WAITALL), "big")
    while left:
        left -= len(consumer.recv(min(left, 1 << 20)))


def watch(gateway: PinnedProcess, port: int, consumers: int, seconds: float) -> dict[str, Any]:
    """Memory before, while they stand still, and while they read; and how much they read."""
    for _ in range(20):  # what the process allocates once
        with connect(port, 1_000_000) as consumer:
            read_whole(consumer)
    before = gateway.rss_bytes()
    rss: dict[str, list[int]] = {"still": [before], "reading": []}
    read_bytes = 0
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(port, ANSWER_BYTES)) for _ in range(consumers)]
        end_s = time.monotonic() + STILL_S
        while time.monotonic() < end_s:
            rss["still"].append(gateway.rss_bytes())
            time.sleep(0.05)
        cpu_s = gateway.cpu_s()
        for consumer in crowd:
            consumer.setblocking(False)
        end_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            for consumer in crowd:
                try:
                    read_bytes += len(consumer.recv(READ_BYTES))
                except BlockingIOError:
                    continue
            rss["reading"].append(gateway.rss_bytes())
            time.sleep(max(0.0, now_s + _PERIOD_S - time.monotonic()))
        cpu_s = gateway.cpu_s() - cpu_s
    return {
        "rss_before_bytes": before,
        "kib_each": {
            phase: {
                "median": (statistics.median(values) - before) / consumers / 1024,
                "most": (max(values) - before) / consumers / 1024,
            }
            for phase, values in rss.items()
        },
        "read_bytes": read_bytes,
        "cpu_s_per_gb": cpu_s / read_bytes * 1e9,
    }


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine = document["machine"]
    lines = [
        "# Memory for slow consumers",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"uvloop {machine['packages']['uvloop']}.",
        "",
        f"{document['consumers']} consumers, each with an answer of {ANSWER_BYTES // 1_000_000} MB, a receive "
        f"buffer of 64 KiB and {READ_BYTES / _PERIOD_S / 1024:.0f} KiB per second. Growth of the gateway's resident "
        f"memory by consumer, in KiB; the goal is {GOAL_KIB} at most.",
        "",
        "| | reading nothing: median | most | reading slowly: median | most | MB read | CPU-s per GB |",
        "|---|---|---|---|---|---|---|",
    ]
    for core, summary in document["cores"].items():
        kib = [summary["kib_each"][phase][which] for phase in PHASES for which in ("median", "most")]
        figures = [*(f"{each:.1f}" for each in kib), f"{summary['read_bytes'] / 1e6:.0f}"]
        lines.append(f"| {core} | {' | '.join(figures)} | {summary['cpu_s_per_gb']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.connections.slow_consumers", description=__doc__
    )
    parser.add_argument("--consumers", type=int, default=CONSUMERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    allow_many_descriptors()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.connections.slow_consumers"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "consumers": options.consumers,
    }
    cores = choose_cores()
    cores.take_load()
    with tempfile.TemporaryDirectory(prefix="slow-consumers-") as path, ExitStack() as stack:
        folder = Path(path)
        broker, port = start_null_broker(compile_native(), cores.load, folder)
        stack.callback(broker.stop)
        document["cores"] = {}
        for compiled in (False, True):
            with ExitStack() as one:
                sluice = start_sluice(f"127.0.0.1:{port}", cores.proxy, folder, compiled=compiled)
                one.callback(sluice.process.stop)
                summary = watch(sluice.process, sluice.path.port, options.consumers, options.seconds)
            document["cores"]["compiled" if compiled else "sources"] = summary
    document["machine"]["load_average_after"] = load_average()
    page = render(document)
    keep_results(document, page, options.output, "connections-slow-consumers")
    print(page)
    kib = [each["most"] for core in document["cores"].values() for each in core["kib_each"].values()]
    return int(max(kib) > GOAL_KIB)


if __name__ == "__main__":
    sys.exit(main())
