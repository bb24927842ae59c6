"""``python -m benchmarks.tls``: CPU and memory cost of TLS on either side, for the gateway and for HAProxy."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.paths import Sluice
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.load import NullBroker, Row
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT, NativePrograms, compile_native
from benchmarks.relay.paths import COMPILED, GATEWAY, RunningPath
from benchmarks.relay.processes import (
    Budget,
    Cores,
    ProcessDied,
    allow_many_descriptors,
    choose_cores,
    free_port,
    machine_busy_s,
)
from benchmarks.relay.report import circumstances, usable
from benchmarks.relay.workloads import IDLE_CONNECTIONS, PER_GB, WORKLOADS, Workload
from benchmarks.tls.handshakes import shake_hands
from benchmarks.tls.paths import (
    BARE,
    HAPROXY,
    KEYS,
    THREADED,
    Certificate,
    LoadThroughOthers,
    make_certificate,
    start_bare_server,
    start_haproxy,
    start_originating_haproxy,
    start_sluice,
    start_terminating_haproxy,
)
from testkit.priorities import part_threads

RESULTS: Final = ROOT / "benchmarks" / "results"
GB_GOAL: Final = 1.3
HANDSHAKE_GOAL: Final = 1.5
IDLE: Final = "idle"
IDLE_GOAL_KIB: Final = 24.0
HANDSHAKES: Final = 200
PASSES: Final = 3
CALM_CORES: Final = 0.25
TRIES: Final = 6
_RUN_SECONDS: Final = 420.0
_START_SECONDS: Final = 90.0  # also on a busy machine

SIDES: Final = {
    "clients": "TLS with clients, plaintext with the broker",
    "brokers": "plaintext with clients, TLS with the broker",
}
SHAKEN: Final = {"bare": "handshake, closed", "ask": "handshake, one request, closed"}


class TlsBench:
    """The paths, and rounds of windows through them."""

    def __init__(self, stack: ExitStack, cores: Cores, folder: Path, *, compiled: bool) -> None:
        self._stack, self._cores, self._folder, self._compiled = stack, cores, folder, compiled
        self._programs: NativePrograms = compile_native()
        self._certificates = {kind: make_certificate(kind, folder) for kind in KEYS}
        self._broker = NullBroker(self._programs, port=free_port(), core=cores.load, folder=folder)
        stack.callback(self._broker.process.stop)
        self._besides: list[RunningPath] = []
        self._runner = LoadThroughOthers(
            self._programs, self._broker, self._besides, core=cores.load, folder=folder
        )
        self.rows: list[Row] = []
        self.agreed: dict[str, Any] = {}

    def _keep(self, path: RunningPath, *, beside: bool = False) -> RunningPath:
        assert path.proxy is not None
        self._stack.callback(path.proxy.stop)
        if beside:
            self._besides.append(path)
        return path

    def transfer_paths(self, side: str) -> list[RunningPath]:
        """The paths of the load for each proxy. HAProxy on the load's core adds or removes TLS for them."""
        certificate = self._certificates["RSA 2048"]
        if side == "clients":
            proxies = [*self._terminating(certificate)]
            found = []
            for proxy in proxies:
                proxy_acceptor = self._originating(proxy.port, certificate, self._cores.load, beside=True)
                found.append(RunningPath(proxy.name, proxy_acceptor.port, proxy.proxy))
        else:
            port = free_port()
            self._keep(
                start_haproxy(
                    f"ssl crt {certificate.both}",
                    "",
                    self._cores.load,
                    self._folder,
                    listen_port=port,
                    upstream_port=self._broker.port,
                    name="broker's TLS",
                ),
                beside=True,
            )
            found = [
                self._originating(port, certificate, self._cores.proxy),
                self._sluice(upstream_port=port, upstream=certificate).path,
            ]
        for path in found:
            self._runner.wait_until_open(path, timeout_s=_START_SECONDS)
        return found

    def _originating(
        self, port: int, certificate: Certificate, core: int, *, beside: bool = False
    ) -> RunningPath:
        made = start_originating_haproxy(port, certificate, core, self._folder, name=HAPROXY)
        return self._keep(made, beside=beside)

    def _sluice(
        self, upstream_port: int, *, listener: Certificate | None = None, upstream: Certificate | None = None
    ) -> Sluice:
        made = start_sluice(
            upstream_port,
            self._cores.proxy,
            self._folder,
            listener=listener,
            upstream=upstream,
            compiled=self._compiled,
        )
        self._keep(made.path)
        return made

    def _threaded(self, certificate: Certificate) -> RunningPath:
        both = sorted({self._cores.load, self._cores.proxy})
        made = start_sluice(
            self._broker.port,
            self._cores.proxy,
            self._folder,
            listener=certificate,
            cores=both,
            name=THREADED,
            compiled=self._compiled,
        )
        return self._keep(made.path)

    def _terminating(self, certificate: Certificate) -> list[RunningPath]:
        return [
            self._keep(
                start_terminating_haproxy(certificate, self._broker.port, self._cores.proxy, self._folder)
            ),
            self._sluice(self._broker.port, listener=certificate).path,
        ]

    def handshake_paths(self, kind: str) -> list[RunningPath]:
        """Proxies to which clients connect with TLS directly."""
        certificate = self._certificates[kind]
        paths = self._terminating(certificate)
        paths.append(threaded := self._threaded(certificate))
        paths.append(self._keep(start_bare_server(certificate, self._cores.proxy, self._folder)))
        for path in paths:
            self._until_open(path)
        assert threaded.proxy is not None
        part_threads(threaded.proxy.pid, first={self._cores.proxy}, others={self._cores.load})
        return paths

    def _until_open(self, path: RunningPath) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.agreed[f"{path.name}, {path.port}"] = shake_hands(path.port, 20, ask=path.name != BARE)
            except OSError as exc:
                if time.monotonic() > deadline:
                    raise ProcessDied(f"{path.name} does not answer: {exc}") from exc
                time.sleep(0.1)
            else:
                return

    def measure_idle(self, number: int) -> None:
        """Memory per idle connection with TLS, each proxy in a new process."""
        for path in self._terminating(self._certificates["RSA 2048"]):
            self._until_open(path)
            assert path.proxy is not None
            row = self._runner.idle_memory(path, IDLE_CONNECTIONS)
            path.proxy.stop()
            row |= {"workload": f"{IDLE}/clients", "figure": row["per_connection_bytes"] / 1024}
            self._take(row | {"round": number})

    def transfer(self, side: str, workload: Workload, path: RunningPath, number: int) -> None:
        """One window of the relay's load."""
        row = self._runner.closed_loop(path, workload)
        self._take(row | {"workload": f"{side}/{workload.key}", "round": number})

    def shake(self, kind: str, verb: str, path: RunningPath, number: int) -> None:
        """The least disturbed of several windows of handshakes; the figure is CPU-ms per handshake."""
        tries = []
        for _ in range(TRIES):
            tries.append(self._shake_once(path, ask=verb == "ask"))
            if tries[-1]["strangers_cores"] < CALM_CORES:
                break
        calmest = min(tries, key=lambda row: row["strangers_cores"])
        self._take(calmest | {"workload": f"{kind}/{verb}", "path": path.name, "round": number})

    def _shake_once(self, path: RunningPath, *, ask: bool) -> Row:
        assert path.proxy is not None
        before, own_s, busy_s = path.proxy.cpu_s(), time.process_time(), machine_busy_s()[0]
        began = time.monotonic()
        shake_hands(path.port, HANDSHAKES, ask=ask)
        time.sleep(0.05)  # the proxy closes the last connection
        cpu_s = path.proxy.cpu_s() - before
        known_s = cpu_s + time.process_time() - own_s
        strangers_s = max(0.0, machine_busy_s()[0] - busy_s - known_s)
        return {
            "cpu_s": cpu_s,
            "strangers_cores": strangers_s / (time.monotonic() - began),
            "figure": 1000 * cpu_s / HANDSHAKES,
            "invalid": None,
        }

    def _take(self, row: Row) -> None:
        self.rows.append(row)
        trouble = f"  INVALID: {row['invalid']}" if row["invalid"] else ""
        print(
            f"round {row['round'] + 1}  {row['workload']:<24} {row['path']:<12} {row['figure']:.3f}{trouble}",
            flush=True,
        )


def summarize(rows: list[Row]) -> dict[str, Any]:
    """Median of each path for each row of the page, the ratio, and the median of the ratios within one round."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == key]
        figures = {
            path: [row["figure"] for row in usable(row for row in own if row["path"] == path)]
            for path in (HAPROXY, GATEWAY, THREADED, BARE)
        }
        if not figures[HAPROXY] or not figures[GATEWAY]:
            continue
        medians = {path: statistics.median(values) for path, values in figures.items() if values}
        by_round: dict[int, dict[str, float]] = {}
        for row in own:
            if not row["invalid"]:
                by_round.setdefault(row["round"], {})[row["path"]] = row["figure"]
        paired = [
            each[GATEWAY] / each[HAPROXY] for each in by_round.values() if {GATEWAY, HAPROXY} <= each.keys()
        ]
        found[key] = {
            "medians": medians,
            "ratio": medians[GATEWAY] / medians[HAPROXY],
            "paired_ratio": statistics.median(paired) if paired else None,
        }
    return found


def render(document: dict[str, Any]) -> str:
    """The page."""
    summary = document["summary"]
    lines = [
        "# What TLS costs",
        "",
        *circumstances(document),
        "",
        f"Agreed on: {document['agreed']}. CPU of the proxy's process, user + system; ratios to HAProxy, which has",
        'one thread and the same OpenSSL, key and certificate. "In a round": median of the ratios within one round.',
        "One session ticket for each handshake, with HAProxy too (by OpenSSL's configuration; its default is two).",
        f"Idle: RSS per connection that has asked once, of {IDLE_CONNECTIONS:,}; fresh processes, median of three.",
        "HAProxy connects to the broker at once, the gateway with the first request.",
        f"Sluice's core is {document['core']}.",
        "Sluice has one core, as HAProxy has, and so no thread for handshakes; with a thread, as by default where",
        "it may use two cores, it has two.",
        '"Bare ssl": a server on uvloop with the standard library\'s TLS and nothing else, what no gateway can save.',
        "",
        "| | unit | HAProxy | Sluice | ratio | in a round | goal | Sluice with a thread | bare ssl |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    known = {workload.key: workload for workload in WORKLOADS}
    goal: float | None
    for key, entry in summary.items():
        group, _, name = key.partition("/")
        if group == IDLE:
            title, unit, goal = f"{SIDES[name]}: idle connection", "KiB (goal: of Sluice)", IDLE_GOAL_KIB
        elif group in SIDES:
            workload = known[name]
            title, unit = f"{SIDES[group]}: {workload.title}", workload.unit.value
            goal = GB_GOAL if workload.unit is PER_GB and group == "clients" else None
        else:
            title, unit = f"{group}: {SHAKEN[name]}", "CPU-ms each"
            goal = HANDSHAKE_GOAL if name == "bare" else None
        medians = entry["medians"]
        judged = medians[GATEWAY] if group == IDLE else entry["ratio"]
        verdict = "-" if goal is None else f"{goal:.2f}, {'met' if judged <= goal else 'missed'}"
        others = " | ".join(_beside(medians, path, goal) for path in (THREADED, BARE))
        lines.append(
            f"| {title} | {unit} | {medians[HAPROXY]:.3f} | {medians[GATEWAY]:.3f} | {entry['ratio']:.2f} | "
            f"{entry['paired_ratio']:.2f} | {verdict} | {others} |"
        )
    strangers = [row["strangers_cores"] for row in document["rows"] if "strangers_cores" in row]
    if strangers:
        calm = sum(each < CALM_CORES for each in strangers)
        lines += [
            "",
            f"{len(strangers)} windows of {HANDSHAKES} handshakes, {calm} of them with less than {CALM_CORES} cores "
            f"busy with anything else (others are tried again, up to {TRIES} times, and the calmest counts).",
        ]
    return "\n".join(lines) + "\n"


def _beside(medians: dict[str, float], path: str, goal: float | None) -> str:
    """A path's median and its ratio to HAProxy's; the configuration that users have must reach the goal, too."""
    if path not in medians:
        return "-"
    ratio = medians[path] / medians[HAPROXY]
    verdict = "" if goal is None or path == BARE else f", {'met' if ratio <= goal else 'missed'}"
    return f"{medians[path]:.3f} ({ratio:.2f}{verdict})"


def run(options: argparse.Namespace, stack: ExitStack, folder: Path) -> dict[str, Any]:
    cores = choose_cores()
    cores.take_load()
    compiled = COMPILED.exists() and not options.sources
    bench = TlsBench(stack, cores, folder, compiled=compiled)
    budget = Budget(_RUN_SECONDS)

    def wanted(key: str) -> bool:
        return not options.only or any(key.startswith(each) for each in options.only)

    if wanted(IDLE):
        for number in range(1 if options.quick else 3):
            bench.measure_idle(number)
    transfers = {side: bench.transfer_paths(side) for side in SIDES if wanted(side)}
    shaken = {kind: bench.handshake_paths(kind) for kind in KEYS if wanted(kind)}
    workloads = [each.half() if options.quick else each for each in WORKLOADS if each.key != "small_together"]
    number = 0
    for number in budget.rounds(2 if options.quick else options.rounds):
        order = 1 if number % 2 == 0 else -1
        for side, paths in transfers.items():
            for workload in workloads:
                for path in paths[::order]:
                    bench.transfer(side, workload, path, number)
        for kind, paths in shaken.items():
            for turn in range(PASSES * len(SHAKEN)):
                verb = list(SHAKEN)[turn % len(SHAKEN)]
                for path in paths[::order]:
                    if verb == "bare" or path.name != BARE:
                        bench.shake(kind, verb, path, number * PASSES + turn // len(SHAKEN))
    said = sorted({f"{each['version']} {each['cipher'][0]}" for each in bench.agreed.values()})
    return {
        "layout": f"proxy on core {cores.proxy}, everything else on core {cores.load}",
        "rounds": number + 1,
        "core": "compiled" if compiled else "of sources",
        "agreed": ", ".join(said) or "-",
        "summary": summarize(bench.rows),
        "rows": bench.rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tls", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument("--quick", action="store_true", help="two short rounds; for a look, not for quoting")
    parser.add_argument(
        "--only", action="append", help="clients, brokers, RSA, ECDSA or idle; one side, or one kind of key"
    )
    parser.add_argument("--sources", action="store_true", help="not the compiled core, although it was made")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for tls.json and tls.md")
    options = parser.parse_args()
    allow_many_descriptors()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.tls"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    try:
        with tempfile.TemporaryDirectory(prefix="tls-bench-") as folder, ExitStack() as stack:
            document |= run(options, stack, Path(folder))
    except ProcessDied as exc:
        print(exc, file=sys.stderr)
        return 1
    document["machine"]["load_average_after"] = load_average()
    page = render(document)
    keep_results(document, page, options.output, "tls")
    print(f"\n{page}\nwritten to {options.output}")
    return 1 if any(row["invalid"] for row in document["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
