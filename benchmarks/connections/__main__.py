"""``python -m benchmarks.connections``: cost of an admitted, refused and throttled connection, beside HAProxy."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.paths import (
    COMPILED,
    GATEWAY,
    GATEWAY_COMPILED,
    HAPROXY,
    UVLOOP_RELAY,
    await_answer,
    compile_crowd,
    start_haproxy,
    start_null_broker,
    start_sluice,
    start_uvloop_relay,
)
from benchmarks.keep import command_line
from benchmarks.pairs import Ratio, paired_ratio
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT, compile_native
from benchmarks.relay.paths import RunningPath
from benchmarks.relay.processes import Cores, allow_many_descriptors, choose_cores, machine_busy_s

RESULTS: Final = ROOT / "benchmarks" / "results"
SOURCES: Final = 64
GOAL: Final = 2.0
"""Workloads with admitted connections: at most this many times HAProxy's CPU."""

_WHO: Final = (GATEWAY, GATEWAY_COMPILED, UVLOOP_RELAY, HAPROXY)
Row = dict[str, Any]

# Every address is tracked, and none reaches a limit.
_OPEN: Final = (
    "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = 1000000000\n"
    "[connections]\nmax_connections_per_ip = 100000"
)
# 127.0.0.1 checks whether the proxy answers; the crowd uses other addresses.
_COUNT: Final = (
    '[connections]\nmax_connections_per_ip = 0\nmax_connections_per_ip_overrides = {"127.0.0.1" = 1000}'
)
_RATE: Final = '[[quotas]]\nip = "127.0.1.0/24"\nconnection_creation_rate = 1\n[connections]\nmax_held = '


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind of connection.

    Attributes:
        key, title: names in the raw data and in the table.
        verb: what each client does.
        count: connections in one window.
        at_a_time: connections open at the same time.
        let_in: whether the proxy admits them.
        paths: the configuration of each proxy, by the proxy's name.
    """

    key: str
    title: str
    verb: str
    count: int
    at_a_time: int
    let_in: bool
    paths: dict[str, str]


ADMITTED: Final = "admitted"
WORKLOADS: Final = (
    Workload(
        ADMITTED, "let in, silent, closed", "silent", 12_000, 16, True, {GATEWAY: "open", HAPROXY: "open"}
    ),
    Workload(
        "served",
        "let in, one request, closed",
        "request",
        8_000,
        16,
        True,
        {GATEWAY: "open", UVLOOP_RELAY: "open", HAPROXY: "open"},
    ),
    Workload(
        "refused",
        "refused (count of the address; HAProxy: conn_rate)",
        "silent",
        20_000,
        16,
        False,
        {GATEWAY: "count", HAPROXY: "reject"},
    ),
    Workload(
        "reset", "over the rate, no further one may wait", "silent", 20_000, 16, False, {GATEWAY: "full"}
    ),
    Workload(
        "held", "over the rate, kept a second, closed", "silent", 6_000, 3_000, False, {GATEWAY: "hold"}
    ),
)
"""`at_a_time` is small where possible, so that the kernel's backlog does not affect the result."""


def open_paths(stack: ExitStack, cores: Cores, folder: Path) -> dict[str, dict[str, RunningPath]]:
    """Every proxy in every configuration, running."""
    broker, port = start_null_broker(compile_native(), cores.load, folder)
    stack.callback(broker.stop)
    found: dict[str, dict[str, RunningPath]] = {GATEWAY: {}, HAPROXY: {}}
    gateways = {GATEWAY: False}
    if COMPILED.exists():
        found[GATEWAY_COMPILED] = {}
        gateways[GATEWAY_COMPILED] = True
    configurations = {"open": _OPEN, "count": _COUNT, "full": f"{_RATE}1", "hold": f"{_RATE}5000"}
    for (who, compiled), (key, tables) in product(gateways.items(), configurations.items()):
        sluice = start_sluice(
            f"127.0.0.1:{port}", cores.proxy, folder, tables=tables, name=f"{who} {key}", compiled=compiled
        )
        stack.callback(sluice.process.stop)
        found[who][key] = sluice.path
    # The rate is looked up for each connection in both.
    rules = {"open": "sc0_conn_rate gt 1000000000", "reject": "sc0_conn_rate gt 0 } !{ src 127.0.0.1"}
    for key, reject_if in rules.items():
        path = start_haproxy(port, cores.proxy, folder, reject_if=reject_if, name=f"{HAPROXY} {key}")
        assert path.proxy is not None
        stack.callback(path.proxy.stop)
        found[HAPROXY][key] = path
    relay = start_uvloop_relay(port, cores.proxy, folder)
    assert relay.proxy is not None
    stack.callback(relay.proxy.stop)
    await_answer(relay)
    found[UVLOOP_RELAY] = {"open": relay}
    return found


def paths_of(workload: Workload, running: dict[str, dict[str, RunningPath]]) -> list[tuple[str, RunningPath]]:
    """The proxies that take turns in a workload: the compiled gateway wherever the gateway from sources does."""
    configurations = {GATEWAY_COMPILED: workload.paths[GATEWAY]} | workload.paths
    return [(who, running[who][key]) for who, key in configurations.items() if who in running]


def measure(crowd: Path, workload: Workload, path: RunningPath, count: int) -> Row:
    """Measure one window of fixed work."""
    assert path.proxy is not None
    command = [
        str(crowd),
        "cycles",
        str(path.port),
        str(SOURCES),
        str(count),
        str(workload.at_a_time),
        workload.verb,
    ]
    busy_s, _ = machine_busy_s()
    cpu_s = path.proxy.cpu_s()
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    cpu_s = path.proxy.cpu_s() - cpu_s
    said: Row = json.loads(done.stdout)
    said |= {
        "workload": workload.key,
        "cpu_s": cpu_s,
        "figure": cpu_s / count * 1e6,
        "machine_busy_s": machine_busy_s()[0] - busy_s,
    }
    said["invalid"] = fault(workload, said, count)
    return said


def fault(workload: Workload, said: Row, count: int) -> str:
    """Why a window does not count; empty when it does."""
    if said["failed"] or said["opened"] != count:
        return f"opened {said['opened']} of {count}, {said['failed']} failed"
    if workload.let_in and (said["reset"] or said["ended"] != count):
        return f"{said['reset']} of {count} reset"
    if workload.verb == "request" and said["replied"] != count:
        return f"{said['replied']} replies of {count}"
    return ""


def summarize(rows: list[Row]) -> dict[str, Any]:
    """Median per workload and proxy, and its ratio to HAProxy within a round."""
    found: dict[str, Any] = {}
    for workload in WORKLOADS:
        figures: dict[str, Any] = {}
        for who in _WHO:
            values = [
                row["figure"]
                for row in rows
                if row["workload"] == workload.key and row["path"] == who and not row["invalid"]
            ]
            if values:
                figures[who] = {
                    "cpu_ms_per_1000": statistics.median(values),
                    "per_cpu_second": 1e6 / statistics.median(values),
                    "lowest": min(values),
                    "highest": max(values),
                    "windows": len(values),
                }
        for who, figure in figures.items():
            ratio = paired_ratio(rows, workload.key, who, HAPROXY)
            if ratio is not None:
                figure["ratio"] = ratio.as_dict()
        found[workload.key] = figures
    return {"workloads": found, "invalid": sum(1 for row in rows if row["invalid"])}


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine = document["machine"]
    summary = document["summary"]["workloads"]
    lines = [
        "# What a connection costs",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, "
        f"uvloop {machine['packages']['uvloop']}, {machine['haproxy']}.",
        f"Load average before {machine['load_average_before']}, after {machine['load_average_after']}. "
        f"{document['rounds']} interleaved rounds, medians; proxy on one core, crowd and null broker on the other. "
        f"{len(document['rows'])} windows, {document['summary']['invalid']} invalid.",
        "",
        "CPU of the proxy's process, user + system, in ms for 1,000 connections from 64 addresses. In brackets: "
        "HAProxy = 1.00, the median of the ratios within one round and its interval of 95 % (of fewer than 6 "
        "rounds: lowest and highest). A goal is met when the upper end of the interval is. HAProxy: `maxconn` and a "
        "stick-table with `conn_rate`, one thread; it connects to the broker at once, the gateway with the first "
        "byte.",
        "",
        f"| | {' | '.join(_WHO)} | goal |",
        "|---" * (len(_WHO) + 2) + "|",
    ]
    for workload in WORKLOADS:
        figures = summary[workload.key]
        cells = [workload.title, *(_cell(figures.get(who)) for who in _WHO)]
        ratio = figures.get(GATEWAY_COMPILED, figures.get(GATEWAY, {})).get("ratio")
        met = ratio is not None and ratio["high"] <= GOAL
        cells.append(f"{GOAL:.2f}, {'met' if met else 'missed'}" if workload.let_in and figures else "-")
        lines.append(f"| {' | '.join(cells)} |")
    admitted = summary[ADMITTED].get(GATEWAY)
    lines.append("")
    for key in ("refused", "reset", "held"):
        entry = summary[key].get(GATEWAY)
        if entry and admitted:
            share = entry["cpu_ms_per_1000"] / admitted["cpu_ms_per_1000"]
            goal = f" (goal 0.50, {'met' if share <= 0.5 else 'missed'})" if key != "held" else ""
            lines.append(f"{key}: {share:.2f} of what letting in costs{goal}.")
    return "\n".join(lines) + "\n"


def _cell(figure: dict[str, Any] | None) -> str:
    if figure is None:
        return "-"
    ratio = figure.get("ratio")
    return f"{figure['cpu_ms_per_1000']:.1f}" + (f" ({Ratio(**ratio)})" if ratio is not None else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--quick", action="store_true", help="one short round; for a look, not for quoting")
    parser.add_argument("--only", metavar="KEY", action="append", help="only these workloads")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for connections.json and .md")
    options = parser.parse_args()
    allow_many_descriptors()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.connections"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    crowd, cores = compile_crowd(), choose_cores()
    cores.take_load()
    rounds = 1 if options.quick else options.rounds
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="connections-bench-") as folder, ExitStack() as stack:
        paths = open_paths(stack, cores, Path(folder))
        for number in range(rounds):
            for workload in WORKLOADS:
                if options.only and workload.key not in options.only:
                    continue
                count = workload.count // (4 if options.quick and workload.key != "held" else 1)
                who = paths_of(workload, paths)
                for name, path in who if number % 2 == 0 else reversed(who):
                    row = measure(crowd, workload, path, count)
                    row |= {"path": name, "round": number}
                    rows.append(row)
                    trouble = f"  INVALID: {row['invalid']}" if row["invalid"] else ""
                    print(
                        f"round {number + 1}  {workload.key:<9} {name:<17} {row['figure']:.1f}{trouble}",
                        flush=True,
                    )
    document["machine"]["load_average_after"] = load_average()
    document |= {"rounds": rounds, "summary": summarize(rows), "rows": rows}
    page = render(document)
    keep(document, page, options.output, "connections")
    print(f"\n{page}")
    return 1 if document["summary"]["invalid"] else 0


def keep(document: dict[str, Any], page: str, folder: Path, name: str) -> None:
    """Writes the raw data, one row per line, and the page."""
    folder.mkdir(parents=True, exist_ok=True)
    head = json.dumps({key: value for key, value in document.items() if key != "rows"}, indent=1)
    body = ",\n  ".join(json.dumps(row) for row in document["rows"])
    (folder / f"{name}.json").write_text(f'{head[:-2]},\n "rows": [\n  {body}\n ]\n}}\n')
    (folder / f"{name}.md").write_text(page)


if __name__ == "__main__":
    sys.exit(main())
