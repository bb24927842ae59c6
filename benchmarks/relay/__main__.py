"""``python -m benchmarks.relay``: the command line."""

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT, NativePrograms, compile_native
from benchmarks.relay.null_run import Bench
from benchmarks.relay.processes import (
    RUN_SECONDS,
    Budget,
    Cores,
    ProcessDied,
    allow_many_descriptors,
    choose_cores,
)
from benchmarks.relay.report import mark_different_bytes, render, summarize
from benchmarks.relay.report_kafka import render_kafka, summarize_kafka

RESULTS: Final = ROOT / "benchmarks" / "results"


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relay", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (default 6)")
    parser.add_argument(
        "--quick", action="store_true", help="two short rounds, under 90 s; for a look, not for quoting"
    )
    parser.add_argument("--kafka", action="store_true", help="a real Kafka and the Java perf tools instead")
    parser.add_argument(
        "--quotas",
        action="store_true",
        help="the gateway with byte rates on for every frame beside the one without; kept apart",
    )
    parser.add_argument(
        "--limits",
        action="store_true",
        help="the gateway with all limits that Kafka lacks, and with byte rates, beside the one without; kept apart",
    )
    parser.add_argument(
        "--usage",
        action="store_true",
        help="the gateway with usage records beside the one without; kept apart",
    )
    parser.add_argument(
        "--topics",
        action="store_true",
        help="the gateway with usage records by topic beside those without topics; kept apart",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="with one of these: gateways with the compiled core (`make compiled` first)",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="Kroxylicious and a TCP proxy in Go, too; fetched once, by Maven and Go",
    )
    parser.add_argument(
        "--only", metavar="KEY", action="append", help="only these workloads (also: latency, idle)"
    )
    parser.add_argument(
        "--without", metavar="PATH", action="append", default=[], help="leave a path out, by its name"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="also the gateway of another checkout, with its own .venv: before and after in one run",
    )
    parser.add_argument("--broker-port", type=int, help="port of the null broker (for --target)")
    parser.add_argument(
        "--target",
        metavar="NAME:PORT:PID",
        help="also measure a proxy started by hand in front of --broker-port (start it when asked to)",
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for relay.json and relay.md")
    options = parser.parse_args(argv)
    if options.compiled and not (options.quotas or options.limits or options.usage or options.topics):
        parser.error("--compiled goes with --quotas, --limits, --usage or --topics; else both are measured")
    return options


Document = dict[str, Any]


def run_null_broker(
    options: argparse.Namespace, cores: Cores, programs: NativePrograms, folder: Path, stack: ExitStack
) -> Document:
    """Everything against the null broker."""
    cores.take_load()
    bench = Bench(options, folder, stack, cores, programs)
    if bench.wanted("idle"):
        bench.measure_idle()
    paths = bench.measure_windows()
    mark_different_bytes(bench.rows)
    summary = summarize(bench.rows, paths)
    return {
        "layout": f"proxy on core {cores.proxy}, load and null broker on core {cores.load}",
        "rounds": bench.rounds_done,
        "paths": paths,
        "summary": summary,
        "rows": bench.rows,
    }


def run_kafka(
    options: argparse.Namespace, cores: Cores, programs: NativePrograms, folder: Path, stack: ExitStack
) -> Document:
    """A real Kafka and the Java perf tools."""
    # Here, because the null broker's run needs neither Java nor the broker's jars.
    from benchmarks.relay.real_kafka import JOBS, KafkaBench, description

    records = 150_000 if options.quick else 400_000
    rounds = 1 if options.quick else options.rounds
    budget = Budget(RUN_SECONDS)
    bench = KafkaBench(programs, core=cores.proxy, folder=folder, stack=stack)
    bench.prepare(records)
    paths = bench.open_paths(options.without)
    rows = []
    for number in budget.rounds(rounds):
        for job in JOBS:
            for path in paths if number % 2 == 0 else reversed(paths):
                row = bench.run(job, path, records) | {"round": number}
                rows.append(row)
                print(
                    f"round {number + 1}  {job.key:<13} {path.name:<20} {row['figure']:.3f} CPU-s per GB, "
                    f"{row['mb_per_s']:.0f} MB/s",
                    flush=True,
                )
    names = [path.name for path in paths]
    return {
        "layout": f"proxy on core {cores.proxy}, broker and tools on any core",
        "kafka": description(),
        "rounds": number + 1,
        "paths": names,
        "summary": summarize_kafka(rows, names, JOBS),
        "rows": rows,
    }


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    allow_many_descriptors()
    document: Document = {
        "command": command_line("benchmarks.relay"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    began, programs, cores = time.monotonic(), compile_native(), choose_cores()
    run = run_kafka if options.kafka else run_null_broker
    try:
        with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
            document |= run(options, cores, programs, Path(folder), stack)
    except ProcessDied as exc:
        print(exc, file=sys.stderr)
        return 1
    document["machine"]["load_average_after"] = load_average()
    document |= {
        "load_core": cores.load,
        "proxy_core": cores.proxy,
        "seconds": round(time.monotonic() - began, 1),
    }
    page = render_kafka(document) if options.kafka else render(document)
    kinds = [
        kind
        for kind in ("kafka", "quotas", "limits", "topics", "usage", "compiled")
        if getattr(options, kind)
    ]
    name = "-".join(["relay", *kinds])
    keep_results(document, page, options.output, name)
    print(f"\n{page}\n{document['seconds']} s; written to {options.output}")
    return 1 if document["summary"]["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
