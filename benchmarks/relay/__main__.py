"""``python -m benchmarks.relay``: the command line."""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.relay.load import LoadRunner, NullBroker, Row
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT, NativePrograms, compile_native
from benchmarks.relay.paths import (
    BARE_RELAY,
    DIRECT,
    GATEWAY,
    HAPROXY,
    RunningPath,
    Starter,
    relay_starter,
    start_direct,
    start_gateway,
    start_haproxy,
    start_target,
)
from benchmarks.relay.processes import ProcessDied, allow_many_descriptors, free_port
from benchmarks.relay.report import mark_different_bytes, render, summarize
from benchmarks.relay.workloads import IDLE_CONNECTIONS, WORKLOADS

RESULTS: Final = ROOT / "benchmarks" / "results"


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    parser.add_argument(
        "--quick", action="store_true", help="two short rounds, under 90 s; for a look, not for quoting"
    )
    parser.add_argument("--kafka", action="store_true", help="a real Kafka and the Java perf tools instead")
    parser.add_argument(
        "--only", metavar="KEY", action="append", help="only these workloads (also: latency, idle)"
    )
    parser.add_argument(
        "--without", metavar="PATH", action="append", default=[], help="leave a path out, by its name"
    )
    parser.add_argument("--broker-port", type=int, help="port of the null broker (for --target)")
    parser.add_argument(
        "--target",
        metavar="NAME:PORT:PID",
        help="also measure a proxy started by hand in front of --broker-port (start it when told to)",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for relay.json and relay.md")
    return parser.parse_args(argv)


def starters(programs: NativePrograms, without: list[str]) -> dict[str, Starter]:
    """The paths to measure, by name, in the order of even rounds."""
    known: dict[str, Starter] = {
        DIRECT: start_direct,
        BARE_RELAY: relay_starter(programs),
        HAPROXY: start_haproxy,
        GATEWAY: start_gateway,
    }
    unknown = set(without) - set(known)
    if unknown:
        raise SystemExit(f"no such path: {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: start for name, start in known.items() if name not in without}


class Bench:
    """One run against the null broker."""

    def __init__(self, options: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.cores = sorted(os.sched_getaffinity(0))
        self.load_core, self.proxy_core = self.cores[0], self.cores[-1]
        if self.load_core == self.proxy_core:
            print("only one core: proxy and load share it, and the numbers say little", file=sys.stderr)
        os.sched_setaffinity(0, {self.load_core})
        self._folder = folder
        self._stack = stack
        self._options = options
        programs = compile_native()
        self._starters = starters(programs, options.without)
        port = options.broker_port or free_port()
        self.broker = NullBroker(programs, port=port, core=self.load_core, folder=folder)
        stack.callback(self.broker.process.stop)
        self.runner = LoadRunner(programs, self.broker, core=self.load_core, folder=folder)
        self.rounds = 2 if options.quick else options.rounds
        self.rows: list[Row] = []

    def wanted(self, key: str) -> bool:
        return not self._options.only or key in self._options.only

    def start(self, name: str) -> RunningPath:
        path = self._starters[name](self.broker.port, self.proxy_core, self._folder)
        if path.proxy is not None:
            self._stack.callback(path.proxy.stop)
        self.runner.wait_until_open(path)
        return path

    def measure_idle(self) -> None:
        """Before anything else has made the proxies grow; each reading in a process of its own."""
        for number in range(1 if self._options.quick else 3):
            for name in [name for name in self._starters if name != DIRECT]:
                path = self.start(name)
                assert path.proxy is not None
                self.keep(self.runner.idle_memory(path, IDLE_CONNECTIONS), number)
                path.proxy.stop()

    def measure_windows(self) -> list[str]:
        paths = [self.start(name) for name in self._starters]
        if self._options.target:
            name, port, pid = self._options.target.split(":")
            paths.append(start_target(name, int(port), int(pid)))
            self.runner.wait_until_open(paths[-1])
        for number in range(self.rounds):
            for workload in WORKLOADS:
                for path in paths if number % 2 == 0 else reversed(paths):
                    if self.wanted(workload.key):
                        self.keep(self.runner.closed_loop(path, workload), number)
            for path in paths if number % 2 == 0 else reversed(paths):
                if self.wanted("latency"):
                    self.keep(self.runner.fixed_rate(path), number)
        return [path.name for path in paths]

    def keep(self, row: Row, number: int) -> None:
        row["round"] = number
        self.rows.append(row)
        said = f"{row['figure']:.3f}" if "figure" in row else f"{row.get('p50_ns', 0) / 1000:.0f} us"
        if row["workload"] == "idle":
            said = f"{row['per_connection_bytes'] / 1024:.1f} KiB"
        trouble = f"  INVALID: {row['invalid']}" if row["invalid"] else ""
        print(f"round {number + 1}  {row['workload']:<16} {row['path']:<20} {said}{trouble}", flush=True)


def run_null_broker(options: argparse.Namespace) -> dict[str, Any]:
    """Runs everything against the null broker and returns the document to keep."""
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
        bench = Bench(options, Path(folder), stack)
        if bench.wanted("idle"):
            bench.measure_idle()
        paths = bench.measure_windows()
    mark_different_bytes(bench.rows)
    machine["load_average_after"] = load_average()
    return {
        "command": " ".join(["python -m benchmarks.relay", *sys.argv[1:]]),
        "started": started,
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine,
        "load_core": bench.load_core,
        "proxy_core": bench.proxy_core,
        "rounds": bench.rounds,
        "paths": paths,
        "summary": summarize(bench.rows, paths),
        "rows": bench.rows,
    }


def keep_results(document: dict[str, Any], page: str, folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = document.pop("rows")
    head = json.dumps(document, indent=1)
    # One window per line: a new run gives a readable difference.
    body = ",\n  ".join(json.dumps(row) for row in rows)
    (folder / f"{name}.json").write_text(f'{head[:-2]},\n "rows": [\n  {body}\n ]\n}}\n')
    (folder / f"{name}.md").write_text(page)


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    allow_many_descriptors()
    try:
        if options.kafka:
            raise SystemExit("not there yet")
        document = run_null_broker(options)
    except ProcessDied as exc:
        print(exc, file=sys.stderr)
        return 1
    page = render(document)
    keep_results(document, page, options.output, "relay")
    print(f"\n{page}\n{document['seconds']} s; written to {options.output}")
    return 1 if document["summary"]["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
