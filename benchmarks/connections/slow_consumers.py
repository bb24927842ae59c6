"""``python -m benchmarks.connections.slow_consumers``: 500 consumers that read slowly or not at all.

Each consumer fetches 50 MB. It reads nothing until every buffer is full, then it reads a little four times a second.
Resident memory is measured all the time. A consumer's cost is the growth since before the first consumer, including
its connection. Then as many other consumers connect and read nothing at all. At the deadline the gateway must have
closed each of them, and its connection to the broker. The gateway runs from sources and with the compiled core
(`make compiled` first), without TLS and with it.
"""

import argparse
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.__main__ import RESULTS
from benchmarks.connections.churn import descriptors
from benchmarks.connections.paths import start_null_broker, start_sluice
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import compile_native
from benchmarks.relay.processes import (
    PinnedProcess,
    ProcessDied,
    allow_many_descriptors,
    choose_cores,
    free_port,
)
from testkit import wire
from testkit.raw_client import HOST
from testkit.tls import Pki

CONSUMERS: Final = 500
ANSWER_BYTES: Final = 50_000_000
SECONDS: Final = 20
STILL_S: Final = 5.0
READ_BYTES: Final = 32_768
GOAL_KIB: Final = 64
GOAL_TLS_KIB: Final = 1_024
GOAL_FREED_S: Final = 2.0
WRITE_TIMEOUT_S: Final = 10
PHASES: Final = ("still", "reading")
_PERIOD_S: Final = 0.25
_GONE_S: Final = 12.0
"""A gateway is done with closed consumers when it closed no descriptor for so long: last bytes may take 10 s."""
_RECEIVE_BUFFER_BYTES: Final = 65_536
"""receive.buffer.bytes of Java clients."""
_SEND_BUFFER_BYTES: Final = 102_400
"""socket.send.buffer.bytes of brokers. These buffers use memory of the broker's machine, which here is this one."""

_TLS_LISTENER: Final = """
[[listeners]]
name = "tls"
bind = "127.0.0.1:{port}"
first_broker_port = {first}
broker_ports = 3
security_protocol = "SSL"
[listeners.tls]
certificate = "{certificate}"
key = "{key}"
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How consumers connect to the gateway.

    Attributes:
        port: port of its listener.
        tls: a context that trusts it; None without TLS.
    """

    port: int
    tls: ssl.SSLContext | None = None

    @property
    def goal_kib(self) -> int:
        """The most memory that a consumer may cost."""
        return GOAL_KIB if self.tls is None else GOAL_TLS_KIB


def connect(way: Way, answer_bytes: int) -> socket.socket:
    """A consumer that has sent a Fetch with an answer of `answer_bytes`."""
    consumer = socket.socket()
    consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    consumer.settimeout(60)
    consumer.connect((HOST, way.port))
    if way.tls is not None:
        consumer = way.tls.wrap_socket(consumer, server_hostname=HOST)
    asked = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": answer_bytes, "topics": []}
    consumer.sendall(wire.request("Fetch", 12, correlation_id=1, client_id="slow", **asked))
    return consumer


def read_whole(consumer: socket.socket) -> None:
    """Read one answer as fast as it arrives."""
    with consumer.makefile("rb") as answer:
        answer.read(int.from_bytes(answer.read(4), "big"))


def freed_s(gateway: PinnedProcess, way: Way, consumers: int) -> float:
    """Seconds until the gateway has closed all consumers, from when each has its connection to the broker."""
    before = 0
    while before != (before := descriptors(gateway.pid)):
        time.sleep(_GONE_S)
    with ExitStack() as stack:
        for _ in range(consumers):
            stack.enter_context(connect(way, ANSWER_BYTES))
        await_descriptors(gateway, lambda now: now >= before + 2 * consumers)
        begun_s = time.monotonic()
        await_descriptors(gateway, lambda now: now <= before)
        return time.monotonic() - begun_s


def await_descriptors(gateway: PinnedProcess, reached: Callable[[int], bool]) -> None:
    """Wait until the gateway's number of descriptors is as required."""
    end_s = time.monotonic() + 6 * WRITE_TIMEOUT_S
    while not reached(now := descriptors(gateway.pid)):
        if time.monotonic() > end_s:
            raise ProcessDied(f"the gateway still has {now} descriptors")
        time.sleep(0.05)


def watch(gateway: PinnedProcess, way: Way, consumers: int, seconds: float) -> dict[str, Any]:
    """Memory before, while consumers do not read and while they read; how much they read; when others are closed."""
    for _ in range(20):  # allocations that the process makes once
        with connect(way, 1_000_000) as consumer:
            read_whole(consumer)
    before = gateway.rss_bytes()
    rss: dict[str, list[int]] = {"still": [before], "reading": []}
    read_bytes = 0
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(way, ANSWER_BYTES)) for _ in range(consumers)]
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
                except (BlockingIOError, ssl.SSLWantReadError):
                    continue
            rss["reading"].append(gateway.rss_bytes())
            time.sleep(max(0.0, now_s + _PERIOD_S - time.monotonic()))
        cpu_s = gateway.cpu_s() - cpu_s
    return {
        "goal_kib": way.goal_kib,
        "freed_s": freed_s(gateway, way, consumers),
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
        f"buffer of 64 KiB and at most {READ_BYTES / _PERIOD_S / 1024:.0f} KiB per second. Growth of the gateway's "
        f"resident memory by consumer, in KiB; the goal is at most {GOAL_KIB}, with TLS {GOAL_TLS_KIB}.",
        "",
        "*Closed*: as many consumers that never read; the time from when each has its broker until the gateway has "
        "closed all, and their connections to the broker. The deadline (`write_timeout_ms`) is "
        f"{WRITE_TIMEOUT_S} s; the goal is at most {GOAL_FREED_S:.0f} s more.",
        "",
        "| | reading nothing: median | most | reading slowly: median | most | MB read | CPU-s per GB | closed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for core, summary in document["cores"].items():
        kib = [summary["kib_each"][phase][which] for phase in PHASES for which in ("median", "most")]
        figures = [*(f"{each:.1f}" for each in kib), f"{summary['read_bytes'] / 1e6:.0f}"]
        lines.append(
            f"| {core} | {' | '.join(figures)} | {summary['cpu_s_per_gb']:.2f} | {summary['freed_s']:.2f} s |"
        )
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
    begun_s = time.monotonic()
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
        broker, port = start_null_broker(
            compile_native(), cores.load, folder, send_buffer_bytes=_SEND_BUFFER_BYTES
        )
        stack.callback(broker.stop)
        document["cores"] = {}
        pki = Pki(folder)
        for compiled, tls in product((False, True), (False, True)):
            tls_port = free_port(block=4)
            listener = _TLS_LISTENER.format(
                port=tls_port, first=tls_port + 1, certificate=pki.server.certificate, key=pki.server.key
            )
            with ExitStack() as one:
                sluice = start_sluice(
                    f"{HOST}:{port}",
                    cores.proxy,
                    folder,
                    compiled=compiled,
                    more_listeners=[listener],
                    limits=f"write_timeout_ms = {WRITE_TIMEOUT_S * 1_000}",
                )
                one.callback(sluice.process.stop)
                way = Way(tls_port, pki.trusting()) if tls else Way(sluice.path.port)
                summary = watch(sluice.process, way, options.consumers, options.seconds)
            document["cores"][("compiled" if compiled else "sources") + (", TLS" if tls else "")] = summary
            print(summary, file=sys.stderr, flush=True)
    document |= {"write_timeout_s": WRITE_TIMEOUT_S, "seconds": round(time.monotonic() - begun_s)}
    document["machine"]["load_average_after"] = load_average()
    page = render(document)
    keep_results(document, page, options.output, "connections-slow-consumers")
    print(page)
    return int(
        any(
            max(each["most"] for each in summary["kib_each"].values()) > summary["goal_kib"]
            or summary["freed_s"] > WRITE_TIMEOUT_S + GOAL_FREED_S
            for summary in document["cores"].values()
        )
    )


if __name__ == "__main__":
    sys.exit(main())
