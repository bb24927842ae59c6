"""``python -m benchmarks.connections.slowloris``: 5,000 clients that hold a connection and hardly use it, for 60 s.

There are three kinds of slow clients in equal parts. The first kind sends nothing. The second sends a request's head,
one byte every five seconds. The third has made a normal request and then sends the next one as slowly. A closed
client connects again at once. The gateway must close each client at the configured deadline. Meanwhile a normal
client's latency and the gateway's memory are measured.
"""

import argparse
import heapq
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.__main__ import RESULTS, keep
from benchmarks.connections.churn import measure_client
from benchmarks.connections.paths import start_null_broker, start_sluice
from benchmarks.keep import command_line
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import compile_native
from benchmarks.relay.processes import allow_many_descriptors, choose_cores

CLIENTS: Final = 5_000
SECONDS: Final = 60
FIRST_FRAME_S: Final = 10.0
FRAME_S: Final = 30.0
MEMORY_GOAL_MIB: Final = 100
P99_GOAL: Final = 1.2
_WINDOW_S: Final = 8
_BYTE_EVERY_S: Final = 5.0
_ANNOUNCED: Final = 1_000
_API_VERSIONS: Final = bytes([0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xFF, 0xFF])
_PRODUCE: Final = _ANNOUNCED.to_bytes(4, "big") + bytes([0, 0, 0, 9, 0, 0, 0, 8, 0, 1, ord("s"), 0, 0, 0, 1])


class Kind(Enum):
    """What a client does with its connection."""

    SILENT = "silent"
    HEAD = "head byte by byte"
    SECOND = "second request byte by byte"


class Slow:
    """One slow client."""

    def __init__(self, kind: Kind, number: int) -> None:
        self.kind = kind
        self.source = f"127.0.3.{1 + number % 250}"
        self.sock: socket.socket
        self.since_s = 0.0
        self.deadline_s = 0.0
        self.sent = 0
        self.life = 0

    def connect(self, port: int) -> None:
        self.sock = socket.socket()
        self.sock.bind((self.source, 0))
        self.sock.settimeout(20)
        self.sock.connect(("127.0.0.1", port))
        self.since_s = time.monotonic()
        self.deadline_s = self.since_s + FIRST_FRAME_S
        self.sent = 0
        self.life += 1
        if self.kind is Kind.SECOND:
            self.sock.sendall(_API_VERSIONS)
            size = int.from_bytes(self.sock.recv(4, socket.MSG_WAITALL), "big")
            self.sock.recv(size, socket.MSG_WAITALL)
            self.sock.sendall(_PRODUCE)
            self.deadline_s = time.monotonic() + FRAME_S + (_ANNOUNCED + 4 - len(_PRODUCE)) / 16_384
        self.sock.setblocking(False)

    def dribble(self) -> None:
        """Send one more byte."""
        if self.kind is Kind.HEAD and self.sent < 14:
            self.sock.send(_API_VERSIONS[self.sent : self.sent + 1])
        elif self.kind is Kind.SECOND:
            self.sock.send(b"\0")
        self.sent += 1


def attack(port: int, clients: int, seconds: float, ramp_s: float) -> dict[str, Any]:
    """Open the connections within `ramp_s` seconds, then keep them for `seconds`.

    Returns:
        How late each close was, by kind; the number of closes; the number of closes still due at the end.
    """
    kinds = list(Kind)
    late: dict[Kind, list[float]] = {kind: [] for kind in kinds}
    with selectors.DefaultSelector() as selector:
        agenda: list[tuple[float, int, int]] = []
        crowd = [Slow(kinds[number % 3], number) for number in range(clients)]
        began = time.monotonic()

        def begin(number: int) -> None:
            slow = crowd[number]
            slow.connect(port)
            selector.register(slow.sock, selectors.EVENT_READ, number)
            heapq.heappush(agenda, (time.monotonic() + _BYTE_EVERY_S, number, slow.life))

        arrived = 0
        end = began + ramp_s + seconds
        overdue = 0
        while (now := time.monotonic()) < end:
            while arrived < clients and now - began >= ramp_s * arrived / clients:
                begin(arrived)
                arrived += 1
                if arrived == clients:
                    print(json.dumps({"connected_s": round(time.monotonic() - began, 2)}), flush=True)
            while agenda and agenda[0][0] <= now:
                _, number, life = heapq.heappop(agenda)
                if crowd[number].life == life:
                    try:
                        crowd[number].dribble()
                    except OSError:
                        continue  # the loop is about to read its end
                    heapq.heappush(agenda, (now + _BYTE_EVERY_S, number, life))
            for key, _ in selector.select(0.01):
                slow = crowd[key.data]
                late[slow.kind].append(time.monotonic() - slow.deadline_s)
                selector.unregister(slow.sock)
                slow.sock.close()
                if now < end - 1:
                    begin(key.data)
        overdue = sum(1 for slow in crowd if slow.sock.fileno() >= 0 and slow.deadline_s < now - 1)
        for slow in crowd:
            slow.sock.close()
    return {
        "overdue": overdue,
        "late_s": {
            kind.value: {
                "closes": len(values),
                "earliest": round(min(values), 3),
                "median": round(sorted(values)[len(values) // 2], 3),
                "latest": round(max(values), 3),
            }
            for kind, values in late.items()
            if values
        },
    }


def middle(rows: list[dict[str, Any]], key: str) -> float:
    """The median over the windows."""
    return statistics.median(row[key] for row in rows)


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine, found = document["machine"], document["summary"]
    grown = found["rss_mib"][1] - found["rss_mib"][0]
    lines = [
        "# Slow clients by the thousand",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['kernel']}, Python {machine['python']}.",
        f"Load average before {machine['load_average_before']}, after {machine['load_average_after']}.",
        "",
        f"{found['clients']:,} slow clients for {found['seconds']} s, {found['came']}; {found['overdue']} were open "
        "a second after their deadline at the end. Deadlines are measured by the client, whose own delays count.",
        "",
        "| kind | closed | earliest | median | latest | goal |",
        "|---|---|---|---|---|---|",
    ]
    for kind, late in found["late_s"].items():
        met = "met" if late["latest"] <= 1 and late["earliest"] >= -1 else "missed"
        lines.append(
            f"| {kind} | {late['closes']:,} | {late['earliest']:+.2f} s | {late['median']:+.2f} s | "
            f"{late['latest']:+.2f} s | within 1 s, {met} |"
        )
    ratio = found["p99_us"][1] / found["p99_us"][0]
    lines += [
        "",
        f"Resident memory {found['rss_mib'][0]:.1f} MiB before, {found['rss_mib'][1]:.1f} MiB at most: "
        f"{grown:+.1f} MiB (goal +{MEMORY_GOAL_MIB}, {'met' if grown <= MEMORY_GOAL_MIB else 'missed'}).",
        f"A good client's p99, median of windows of {_WINDOW_S} s: {found['p99_us'][0]:.0f} us alone, "
        f"{found['p99_us'][1]:.0f} us meanwhile, {ratio:.2f} times (goal {P99_GOAL}, "
        f"{'met' if ratio <= P99_GOAL else 'missed'}); p50 "
        f"{found['p50_us'][0]:.0f} and {found['p50_us'][1]:.0f} us. The gateway used {found['cpu_share']:.2f} of a "
        "core.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections.slowloris", description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--at-once", action="store_true", help="all slow clients come, and so end, together")
    parser.add_argument("--attack", metavar="PORT", type=int, help="only be the slow clients")
    options = parser.parse_args()
    allow_many_descriptors()
    if options.attack:
        os.nice(39)  # these clients share a core with the normal client and must not affect its latency
        ramp_s = 0.0 if options.at_once else FIRST_FRAME_S
        print(json.dumps(attack(options.attack, options.clients, options.seconds, ramp_s)))
        return 0
    document: dict[str, Any] = {
        "command": command_line("benchmarks.connections.slowloris"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    programs, cores = compile_native(), choose_cores()
    cores.take_load()
    with tempfile.TemporaryDirectory(prefix="slowloris-") as name, ExitStack() as stack:
        folder = Path(name)
        broker, port = start_null_broker(programs, cores.load, folder)
        stack.callback(broker.stop)
        sluice = start_sluice(
            f"127.0.0.1:{port}",
            cores.proxy,
            folder,
            limits=f"first_frame_timeout_ms = {FIRST_FRAME_S * 1000:.0f}\nframe_timeout_ms = {FRAME_S * 1000:.0f}",
        )
        stack.callback(sluice.process.stop)
        windows = max(1, options.seconds // (_WINDOW_S + 2))
        alone = [
            measure_client(programs, sluice.path, cores.load, folder, _WINDOW_S, None) for _ in range(windows)
        ]
        rss = [sluice.process.rss_bytes()]
        attackers = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "benchmarks.connections.slowloris",
                    "--attack",
                    str(sluice.path.port),
                ),
                *("--clients", str(options.clients), "--seconds", str(options.seconds)),
                *(["--at-once"] if options.at_once else []),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert attackers.stdout is not None
        print(attackers.stdout.readline().strip(), flush=True)
        meanwhile = []
        for _ in range(windows):
            meanwhile.append(measure_client(programs, sluice.path, cores.load, folder, _WINDOW_S, None))
            rss.append(sluice.process.rss_bytes())
        while attackers.poll() is None:
            rss.append(sluice.process.rss_bytes())
            time.sleep(0.5)
        told = json.loads(attackers.stdout.readline())
        closed = {
            cause: sluice.metric("gateway_connections_closed_total", cause=cause)
            for cause in ("first_frame_timeout", "frame_timeout")
        }
    document["machine"]["load_average_after"] = load_average()
    document["summary"] = told | {
        "clients": options.clients,
        "seconds": options.seconds,
        "came": "all at once" if options.at_once else f"coming one by one within {FIRST_FRAME_S:.0f} s",
        "rss_mib": [rss[0] / 2**20, max(rss) / 2**20],
        "p50_us": [middle(rows, "p50_ns") / 1000 for rows in (alone, meanwhile)],
        "p99_us": [middle(rows, "p99_ns") / 1000 for rows in (alone, meanwhile)],
        "cpu_share": middle(meanwhile, "cpu_share"),
        "closed": closed,
    }
    document["rows"] = [row | {"meanwhile": rows is meanwhile} for rows in (alone, meanwhile) for row in rows]
    page = render(document)
    keep(document, page, options.output, f"connections-slowloris{'-at-once' if options.at_once else ''}")
    print(f"\n{page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
