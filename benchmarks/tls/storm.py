"""``python -m benchmarks.tls.storm``: the effect of a storm of TLS handshakes on connected clients.

An established client with TLS sends requests at a low, fixed rate: alone, and while other clients begin 300
handshakes a second. The proxy limits the rate of handshakes. The gateway runs with two cores and with one, and
HAProxy runs with the same limit. With two cores, the gateway's loop uses the proxy's core, and its handshake thread
uses the free time of both cores. At the end idle connections are opened: the proxy must close them at the handshake
deadline.

The proxy has one core. On the other core the established client, its TLS and the broker have priority over the storm,
because 300 handshakes cost the client side as much CPU as the proxy. Otherwise the established client's wait for its
own core would count against the proxy. All processes, including proxy and storm, have real-time priority over other
programs of the machine: a storm that is blocked would come in bursts. Priorities are the same with and without a
storm.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.paths import Sluice
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.load import LoadRunner, NullBroker, Row, read_json_line
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import NativePrograms, compile_native
from benchmarks.relay.paths import GATEWAY, RunningPath
from benchmarks.relay.processes import (
    Cores,
    PinnedProcess,
    allow_many_descriptors,
    choose_cores,
    free_port,
    machine_busy_s,
)
from benchmarks.tls.__main__ import RESULTS
from benchmarks.tls.paths import (
    HAPROXY,
    make_certificate,
    start_originating_haproxy,
    start_sluice,
    start_terminating_haproxy,
)
from testkit.priorities import part_threads, run_first

PER_SECOND: Final = 300
SECONDS: Final = 30
LET_THROUGH_PER_S: Final = 200
P99_GOAL: Final = 1.5
SILENT: Final = 300
DEADLINE_MS: Final = 10_000
DEADLINE_GOAL_S: Final = 1.0
ONE_CORE: Final = "Sluice, one core"
_LATENCY_PER_SECOND: Final = 193  # out of step with 300: at 200 each or no request would meet a handshake
_FRAME_BYTES: Final = 256
CLIENT_FIRST: Final = 2  # before the storm and the thread for handshakes, which have 1
NAMES: Final = (GATEWAY, ONE_CORE, HAPROXY)
_LEAST_STORM: Final = 0.9
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class Way:
    """One proxy under the storm.

    Attributes:
        storm_port: the port for the storm's handshakes.
        client_port: where the established client connects; HAProxy adds TLS for it.
        proxy: the process whose CPU is measured.
    """

    name: str
    storm_port: int
    client_port: int
    proxy: PinnedProcess


class Storm:
    """All ways, and measurements of them."""

    def __init__(self, stack: ExitStack, cores: Cores, folder: Path, options: argparse.Namespace) -> None:
        self._cores, self._folder, self._options = cores, folder, options
        self._programs: NativePrograms = compile_native()
        certificate = make_certificate("ECDSA P-256", folder)
        broker = NullBroker(self._programs, port=free_port(), core=cores.load, folder=folder)
        stack.callback(broker.process.stop)
        self.sluice: Sluice = start_sluice(
            broker.port,
            cores.proxy,
            folder,
            listener=certificate,
            max_handshakes_per_second=LET_THROUGH_PER_S,
            handshake_timeout_ms=DEADLINE_MS,
            cores=sorted({cores.load, cores.proxy}),
        )
        alone = start_sluice(
            broker.port,
            cores.proxy,
            folder,
            listener=certificate,
            max_handshakes_per_second=LET_THROUGH_PER_S,
            name=ONE_CORE,
        )
        haproxy = start_terminating_haproxy(
            certificate,
            broker.port,
            cores.proxy,
            folder,
            max_handshakes_per_second=LET_THROUGH_PER_S,
        )
        runner = LoadRunner(self._programs, broker, core=cores.load, folder=folder)
        self.ways: list[Way] = []
        self.first = run_first(broker.process.pid, priority=CLIENT_FIRST)
        for path in (haproxy, alone.path, self.sluice.path):
            assert path.proxy is not None
            stack.callback(path.proxy.stop)
            proxy_acceptor = start_originating_haproxy(
                path.port, certificate, cores.load, folder, name=f"TLS to {path.name}"
            )
            assert proxy_acceptor.proxy is not None
            stack.callback(proxy_acceptor.proxy.stop)
            runner.wait_until_open(RunningPath(path.name, proxy_acceptor.port, path.proxy), timeout_s=90)
            run_first(path.proxy.pid)
            run_first(path.proxy.pid, proxy_acceptor.proxy.pid, priority=CLIENT_FIRST, all_threads=False)
            if path.name == GATEWAY:
                part_threads(path.proxy.pid, first={cores.proxy}, others={cores.load, cores.proxy})
            self.ways.append(Way(path.name, path.port, proxy_acceptor.port, path.proxy))

    def window(self, way: Way, *, storm: bool) -> Row:
        """The latencies of the established client for some seconds; repeated if the storm was too weak."""
        for _ in range(_TRIES):
            row = self._window(way, storm=storm)
            if not storm or row["storm"]["begun_per_s"] >= _LEAST_STORM * self._options.per_second:
                break
        return row

    def _window(self, way: Way, *, storm: bool) -> Row:
        seconds = self._options.seconds
        count = _LATENCY_PER_SECOND * seconds
        numbers = map(str, (_FRAME_BYTES, 200, count, _LATENCY_PER_SECOND))
        argv = [str(self._programs.load), "rate", str(way.client_port), "bench", *numbers]
        load = PinnedProcess(argv, core=self._cores.load, log=self._folder / "load.log", piped=True)
        try:
            read_json_line(load, 30)
            run_first(load.pid, priority=CLIENT_FIRST)
            cpu_s, busy_s, began = way.proxy.cpu_s(), machine_busy_s()[0], time.monotonic()
            beside = self._begin_storm(way) if storm else None
            stdin, _ = load.pipes()
            stdin.write(b"go\n")
            stdin.flush()
            row = read_json_line(load, seconds + 60)
            took_s = time.monotonic() - began
            row["cpu_share"] = (way.proxy.cpu_s() - cpu_s) / took_s
            row["machine_cores"] = (machine_busy_s()[0] - busy_s) / took_s
            if beside is not None:
                told, _ = beside.communicate(timeout=120)
                row["storm"] = json.loads(told)
        finally:
            load.stop()
        return row | {"campaign": "storm", "disturbed": storm, "path": way.name}

    def _begin_storm(self, way: Way) -> subprocess.Popen[str]:
        words = ("storm", str(way.storm_port), str(self._options.per_second), str(self._options.seconds))
        storm = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tls.handshakes", *words],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        run_first(storm.pid)
        return storm

    def silent(self) -> Row:
        """Open connections that send nothing; how many the gateway's metric says it closed at the deadline."""
        program = [sys.executable, "-m", "benchmarks.tls.handshakes", "silent", str(self.sluice.path.port)]
        before = self._timeouts()
        said = subprocess.run(
            [*program, str(self._options.silent)], capture_output=True, text=True, check=True, timeout=120
        )
        row: Row = {"campaign": "silent", "path": GATEWAY, **json.loads(said.stdout)}
        return row | {"counted": int(self._timeouts() - before)}

    def _timeouts(self) -> float:
        return self.sluice.metric("gateway_tls_handshake_failures_total", reason="timeout")


def summarize(rows: list[Row]) -> dict[str, Any]:
    """Medians of the rounds for each proxy."""
    found: dict[str, Any] = {"silent": [row for row in rows if row["campaign"] == "silent"]}
    for name in NAMES:
        windows = [row for row in rows if row["campaign"] == "storm" and row["path"] == name]
        if not windows:
            continue
        told: dict[str, Any] = {}
        for state in ("alone", "storm"):
            chosen = [row for row in windows if row["disturbed"] == (state == "storm")]
            told[state] = {
                key: statistics.median(row[key] for row in chosen)
                for key in ("p50_ns", "p90_ns", "p99_ns", "cpu_share", "machine_cores")
            }
        storms = [row["storm"] for row in windows if row["disturbed"]]
        told["begun_per_s"] = statistics.median(each["begun_per_s"] for each in storms)
        told["done_per_s"] = statistics.median(each["done_per_s"] for each in storms)
        told["done"] = sum(each["done"] for each in storms)
        told["refused"] = sum(each["refused"] for each in storms)
        told["longest_s"] = max(each["longest_s"] for each in storms)
        # Compared with the calmest round alone: with a disturbed one any storm would look harmless.
        calmest_ns = min(row["p99_ns"] for row in windows if not row["disturbed"])
        told["ratio"] = told["storm"]["p99_ns"] / calmest_ns
        by_round: dict[int, dict[bool, float]] = {}
        for row in windows:
            by_round.setdefault(row["round"], {})[row["disturbed"]] = row["p99_ns"]
        told["paired_ratio"] = statistics.median(each[True] / each[False] for each in by_round.values())
        found[name] = told
    return found


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine, found = document["machine"], document["summary"]
    met = "met" if found[GATEWAY]["ratio"] <= P99_GOAL else "missed"
    first = "real-time priority" if document["first"] else "no priority (not allowed to give it)"
    lines = [
        "# A storm of TLS handshakes",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['kernel']}, Python {machine['python']}.",
        f"Load average before {machine['load_average_before']}, after {machine['load_average_after']}.",
        "",
        f"An established client with TLS ({_LATENCY_PER_SECOND} requests of {_FRAME_BYTES} B per second, open loop), "
        f"alone and while others begin {document['per_second']} handshakes a second for {document['seconds']} s "
        f"(ECDSA P-256, {LET_THROUGH_PER_S} a second let through; HAProxy: `maxsslrate`). Medians of "
        f"{document['rounds']} rounds, the proxies in turn. The proxy has one core; the client (a process of its "
        "own), its TLS and the broker have the other, and the storm has what they leave of it. All of them have "
        f"{first}: other programs of the machine do not hold them up. Sluice's thread for handshakes has what is "
        'left of both cores, with no more priority than the storm; with "one core" there is none and '
        f"they are done on the loop. Goal: p99 at most {P99_GOAL} times. "
        '"Busy": cores of the machine, other programs included.',
        "",
        "| | | p50 | p90 | p99 | handshakes per s | proxy's cores | busy | p99 to its calmest alone | in a round |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in NAMES if name in found]
    for name in names:
        told = found[name]
        for state in ("alone", "storm"):
            row = told[state]
            micros = " | ".join(f"{row[key] / 1000:.0f} us" for key in ("p50_ns", "p90_ns", "p99_ns"))
            rate = f"{told['done_per_s']:.0f}" if state == "storm" else "0"
            ratio = f"{told['ratio']:.2f} | {told['paired_ratio']:.2f}" if state == "storm" else "- | -"
            cores = f"{row['cpu_share']:.2f} | {row['machine_cores']:.2f}"
            lines.append(f"| {name} | {state} | {micros} | {rate} | {cores} | {ratio} |")
    own = found[GATEWAY]
    lines.append("")
    for name in names:
        windows = [row for row in document["rows"] if row["campaign"] == "storm" and row["path"] == name]
        rounds = [
            " to ".join(f"{row['p99_ns'] / 1000:.0f}" for row in windows if row["round"] == number)
            for number in range(document["rounds"])
        ]
        lines.append(f"- {name}: p99 round by round, alone to storm, {', '.join(rounds)} us.")
    lines += [
        "",
        f"p99 {own['ratio']:.2f} times, {met}. Begun {own['begun_per_s']:.0f} a second; {own['done']} came in, "
        f"{own['refused']} ended at their deadline or gave up; of those that came in none waited longer than "
        f"{own['longest_s']:.1f} s.",
        "",
    ]
    for row in found["silent"]:
        late_s = row["last_s"] - DEADLINE_MS / 1000
        early_ms = abs(row["first_s"] * 1000 - DEADLINE_MS)
        kept = "met" if early_ms <= 1000 and late_s <= DEADLINE_GOAL_S else "missed"
        lines.append(
            f"{row['count']} connections that say nothing end after {row['first_s']:.2f} to {row['last_s']:.2f} s "
            f"(deadline {DEADLINE_MS / 1000:.0f} s, goal within {DEADLINE_GOAL_S:.0f} s: {kept}); "
            f"the gateway counts {row['counted']} of them as timed out."
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls.storm", description=__doc__)
    parser.add_argument("--per-second", type=int, default=PER_SECOND)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of one window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=NAMES, help="the gateway, and these beside it")
    parser.add_argument("--silent", type=int, default=SILENT)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    allow_many_descriptors()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.tls.storm"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    cores = choose_cores()
    cores.take_load()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="tls-storm-") as name, ExitStack() as stack:
        campaign = Storm(stack, cores, Path(name), options)
        for number in range(options.rounds):
            for way in campaign.ways[:: 1 if number % 2 else -1]:
                if options.only and way.name not in (GATEWAY, *options.only):
                    continue
                for storm in (False, True):
                    row = campaign.window(way, storm=storm) | {"round": number}
                    rows.append(row)
                    print(
                        f"round {number + 1}  {way.name:<12} {'storm' if storm else 'alone'}  "
                        f"p50 {row['p50_ns'] / 1000:.0f} us, p99 {row['p99_ns'] / 1000:.0f} us, "
                        f"{row['cpu_share']:.2f} cores, busy {row['machine_cores']:.2f}  {row.get('storm', '')}",
                        flush=True,
                    )
        rows.append(campaign.silent() | {"round": 0})
        document["first"] = campaign.first
    document["machine"]["load_average_after"] = load_average()
    document |= {
        "seconds": options.seconds,
        "per_second": options.per_second,
        "rounds": options.rounds,
        "summary": summarize(rows),
        "rows": rows,
    }
    page = render(document)
    keep_results(document, page, options.output, "tls-storm")
    print(f"\n{page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
