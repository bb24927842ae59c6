"""``python -m benchmarks.connections.churn``: what short connections leave behind, and their effect on others.

There are two campaigns. *cycles*: 100,000 connections are admitted and closed, a tenth of them with a request. The
gateway's descriptors, tasks and memory must stay constant. *disturbance*: an established client's p99, alone and
while other clients open and close 5,000 connections a second for 30 s.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.__main__ import RESULTS, keep
from benchmarks.connections.paths import (
    GATEWAY,
    HAPROXY,
    Sluice,
    compile_crowd,
    start_haproxy,
    start_null_broker,
    start_sluice,
)
from benchmarks.keep import command_line
from benchmarks.relay.load import read_json_line
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import NativePrograms, compile_native
from benchmarks.relay.paths import RunningPath
from benchmarks.relay.processes import Cores, PinnedProcess, allow_many_descriptors, choose_cores

CYCLES: Final = 100_000
PER_SECOND: Final = 5_000
SECONDS: Final = 30
P99_GOAL: Final = 1.5
_FRAME_BYTES: Final = 256
_LATENCY_PER_SECOND: Final = 200
_UNLIMITED: Final = "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = 1000000000\n"
Row = dict[str, Any]


def descriptors(pid: int) -> int:
    """Open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def run_cycles(sluice: Sluice, crowd: Path, cycles: int) -> list[Row]:
    """Run a tenth of the cycles as warm-up, then the rest in eight parts, with a measurement after each."""
    rows = []
    for part in range(9):
        count = cycles // 10 if part == 0 else cycles * 9 // 80
        for verb, share in (("silent", 0.9), ("request", 0.1)):
            command = [str(crowd), "cycles", str(sluice.path.port), "64", str(int(count * share)), "32", verb]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
        until_none_is_open(sluice)
        rows.append(
            {
                "campaign": "cycles",
                "part": part,
                "connections": sluice.metric("gateway_connections_opened_total"),
                "rss_bytes": sluice.process.rss_bytes(),
                "descriptors": descriptors(sluice.process.pid),
                "active": sluice.metric("gateway_connections_active"),
            }
        )
        print(f"cycles  {rows[-1]}", flush=True)
    return rows


def until_none_is_open(sluice: Sluice) -> None:
    """Waits until the gateway has seen the last close."""
    deadline = time.monotonic() + 20
    while sluice.metric("gateway_connections_active") and time.monotonic() < deadline:
        time.sleep(0.05)


def measure_client(
    programs: NativePrograms,
    path: RunningPath,
    core: int,
    folder: Path,
    seconds: int,
    crowd: list[str] | None,
) -> Row:
    """The latencies of one established client, and the connections that were opened meanwhile."""
    requests = _LATENCY_PER_SECOND * seconds
    load = PinnedProcess(
        [
            *(str(programs.load), "rate", str(path.port), "bench", str(_FRAME_BYTES)),
            *("200", str(requests), str(_LATENCY_PER_SECOND)),
        ],
        core=core,
        log=folder / "load.log",
        piped=True,
    )
    try:
        read_json_line(load, 20)  # the warm-up is over
        assert path.proxy is not None
        cpu_s = path.proxy.cpu_s()
        beside = None if crowd is None else subprocess.Popen(crowd, stdout=subprocess.PIPE, text=True)
        stdin, _ = load.pipes()
        stdin.write(b"go\n")
        stdin.flush()
        said = read_json_line(load, seconds + 60)
        said["cpu_share"] = (path.proxy.cpu_s() - cpu_s) / seconds
        if beside is not None:
            told, _ = beside.communicate(timeout=60)
            said["crowd"] = json.loads(told)
            said["opened_per_s"] = said["crowd"]["opened"] / seconds
    finally:
        load.stop()
    return said


def run_disturbance(
    programs: NativePrograms,
    paths: list[RunningPath],
    crowd: Path,
    cores: Cores,
    folder: Path,
    options: argparse.Namespace,
) -> list[Row]:
    """Measure each proxy in turn: alone, disturbed, alone again ..."""
    rows = []
    for number in range(2 * options.rounds + 1):
        disturbed = number % 2 == 1
        for path in paths:
            flood = ["nice", "-n", "39", str(crowd), "paced", str(path.port)]
            flood += ["64", str(PER_SECOND), str(options.seconds)]
            row = measure_client(
                programs, path, cores.load, folder, options.seconds, flood if disturbed else None
            )
            row |= {"campaign": "disturbance", "round": number, "disturbed": disturbed, "path": path.name}
            rows.append(row)
            time.sleep(1)
            print(
                f"{path.name:<12} {'disturbed' if disturbed else 'alone':<9} p50 {row['p50_ns'] / 1000:.0f} us, "
                f"p99 {row['p99_ns'] / 1000:.0f} us, {row.get('opened_per_s', 0):.0f} connections/s",
                flush=True,
            )
    return rows


def disturbance(rows: list[Row], path: str) -> dict[str, float]:
    """One proxy's medians."""
    own = [row for row in rows if row["path"] == path]
    alone = statistics.median(row["p99_ns"] for row in own if not row["disturbed"]) / 1000
    disturbed = statistics.median(row["p99_ns"] for row in own if row["disturbed"]) / 1000
    return {
        "alone_p99_us": alone,
        "disturbed_p99_us": disturbed,
        "ratio": disturbed / alone,
        "opened_per_s": statistics.median(row["opened_per_s"] for row in own if row["disturbed"]),
        "cpu_share": statistics.median(row["cpu_share"] for row in own if row["disturbed"]),
    }


def summarize(rows: list[Row]) -> dict[str, Any]:
    """The numbers for the page."""
    found: dict[str, Any] = {}
    cycles = [row for row in rows if row["campaign"] == "cycles"]
    if cycles:
        first, last = cycles[0], cycles[-1]
        more = last["connections"] - first["connections"]
        found["cycles"] = {
            "connections": last["connections"],
            "descriptors": [first["descriptors"], last["descriptors"]],
            "rss_mib": [round(each["rss_bytes"] / 2**20, 1) for each in (first, last)],
            "rss_bytes_per_connection": (last["rss_bytes"] - first["rss_bytes"]) / more,
            "active": last["active"],
        }
    taken = [row for row in rows if row["campaign"] == "disturbance"]
    if taken:
        found["disturbance"] = {
            path: disturbance(taken, path) for path in dict.fromkeys(r["path"] for r in taken)
        }
    return found


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine, summary = document["machine"], document["summary"]
    lines = [
        "# Connections that come and go",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores, {machine['kernel']}, Python {machine['python']}.",
        f"Load average before {machine['load_average_before']}, after {machine['load_average_after']}.",
        "",
    ]
    if "cycles" in summary:
        found = summary["cycles"]
        lines += [
            f"**{found['connections']:,.0f} connections**, nine of ten silent, one with a request. After the first "
            f"tenth and at the end: descriptors {found['descriptors'][0]} and {found['descriptors'][1]}, resident "
            f"memory {found['rss_mib'][0]} and {found['rss_mib'][1]} MiB ({found['rss_bytes_per_connection']:.1f} "
            f"bytes for each connection), {found['active']:.0f} connections still counted.",
            "",
        ]
    if "disturbance" in summary:
        lines += [
            f"**An established client** ({_LATENCY_PER_SECOND} requests of {_FRAME_BYTES} B per second, open loop), "
            f"alone and while {PER_SECOND:,} connections a second come and go through the same proxy for "
            f"{document['seconds']} s. Crowd, client and broker share the other core, the crowd with the least "
            f"priority. Goal: {P99_GOAL} times, for the gateway. Medians of the rounds.",
            "",
            "| | p99 alone | p99 disturbed | ratio | connections per s | cores used |",
            "|---|---|---|---|---|---|",
        ]
        for path, found in summary["disturbance"].items():
            met = f", {'met' if found['ratio'] <= P99_GOAL else 'missed'}" if path == GATEWAY else ""
            lines.append(
                f"| {path} | {found['alone_p99_us']:.0f} us | {found['disturbed_p99_us']:.0f} us | "
                f"{found['ratio']:.2f}{met} | {found['opened_per_s']:,.0f} | {found['cpu_share']:.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections.churn", description=__doc__)
    parser.add_argument("--cycles", type=int, default=CYCLES)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of one window of the disturbance")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["cycles", "disturbance"])
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    allow_many_descriptors()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.connections.churn"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    crowd, programs, cores = compile_crowd(), compile_native(), choose_cores()
    cores.take_load()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="churn-") as name, ExitStack() as stack:
        folder = Path(name)
        broker, port = start_null_broker(programs, cores.load, folder)
        stack.callback(broker.stop)
        for campaign in ("cycles", "disturbance"):
            if options.only not in (None, campaign):
                continue
            sluice = start_sluice(f"127.0.0.1:{port}", cores.proxy, folder, tables=_UNLIMITED)
            stack.callback(sluice.process.stop)
            if campaign == "cycles":
                rows += run_cycles(sluice, crowd, options.cycles)
                continue
            haproxy = start_haproxy(
                port, cores.proxy, folder, reject_if="sc0_conn_rate gt 1000000000", name=HAPROXY
            )
            assert haproxy.proxy is not None
            stack.callback(haproxy.proxy.stop)
            rows += run_disturbance(programs, [sluice.path, haproxy], crowd, cores, folder, options)
    document["machine"]["load_average_after"] = load_average()
    document |= {"seconds": options.seconds, "summary": summarize(rows), "rows": rows}
    page = render(document)
    keep(document, page, options.output, "connections-churn")
    print(f"\n{page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
