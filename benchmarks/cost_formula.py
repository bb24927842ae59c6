"""``python -m benchmarks.cost_formula``: the CPU cost of a load as a formula, checked on other loads.

The compiled gateway runs with byte quotas and usage records, in front of the null broker. The formula is

    CPU seconds = a x requests + b x GB in + c x GB out

It is fitted by least squares of relative errors on six mixes of many connections, and checked on three others. The
cost of a connection and the memory of an idle connection are measured too. Rounds take turns; each figure is the
median of its rounds. At the end a client that sends at fixed times measures the latency that the gateway adds, while
other clients use none and about half of a core. The benchmark needs a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.load import LoadRunner, NullBroker, Row, read_json_line
from benchmarks.relay.machine import describe_machine, load_average
from benchmarks.relay.native_build import ROOT, compile_native
from benchmarks.relay.paths import RunningPath, start_direct, start_gateway
from benchmarks.relay.processes import PinnedProcess, allow_many_descriptors, choose_cores, free_port

RESULTS: Final = ROOT / "benchmarks" / "results"
GOAL: Final = 0.15
"""The largest relative error of the formula for a load that it was not fitted on."""

TERMS: Final = ("requests", "gb_in", "gb_out")
_CONNECTIONS: Final = 2_000
_PATIENCE_S: Final = 120.0
_BUSY: Final = (0.0, 0.25)
"""Shares of a core by the formula. Requests at fixed times wake the gateway more often, so it is really busy about
twice as long. On a machine with two cores, the core of the clients and the broker cannot produce more load."""
_OTHERS_BYTES: Final = 65_536
"""Large, so that the core of the clients and the broker has less to do than that of the gateway."""
_PROBE: Final = (256, 100, 2_000, 250)
"""Bytes, warm-up, requests and requests a second of the client whose latency is measured."""


@dataclass(frozen=True, slots=True)
class Clients:
    """A number of equal clients, each with one connection and one request at a time: ``produce`` or ``fetch``."""

    count: int
    verb: str
    frame_bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Mix:
    """Clients that run at the same time. The formula is fitted or checked on the mix."""

    clients: tuple[Clients, ...]
    fitted: bool = True

    def __str__(self) -> str:
        return " and ".join(
            f"{each.count} x {each.verb} of {_size(each.frame_bytes)}" for each in self.clients
        )


MIXES: Final = (
    Mix((Clients(20, "produce", 256, 2_000),)),
    Mix((Clients(20, "produce", 16_384, 1_000),)),
    Mix((Clients(10, "produce", 1_000_000, 100),)),
    Mix((Clients(20, "fetch", 4_096, 2_000),)),
    Mix((Clients(20, "fetch", 65_536, 500),)),
    Mix((Clients(10, "fetch", 1_000_000, 100),)),
    Mix((Clients(20, "produce", 4_096, 1_000), Clients(5, "fetch", 65_536, 1_000)), fitted=False),
    Mix((Clients(10, "produce", 100_000, 200), Clients(20, "fetch", 16_384, 1_000)), fitted=False),
    Mix((Clients(30, "produce", 1_024, 1_000), Clients(5, "fetch", 500_000, 100)), fitted=False),
)


def fit(rows: Sequence[tuple[Sequence[float], float]]) -> list[float]:
    """Coefficients of at least 0 with the least sum of squares of relative errors, one coefficient after the other.

    Args:
        rows: the amount of each term, and the measured CPU seconds.
    """
    scaled = [[amount / cpu_s for amount in amounts] for amounts, cpu_s in rows]
    found = [0.0] * len(scaled[0])
    for _ in range(10_000):
        for at in range(len(found)):
            rest = [
                1 - sum(c * x for c, x in zip(found, row, strict=True)) + found[at] * row[at]
                for row in scaled
            ]
            top = sum(row[at] * left for row, left in zip(scaled, rest, strict=True))
            found[at] = max(0.0, top / sum(row[at] ** 2 for row in scaled))
    return found


def estimate(formula: Sequence[float], amounts: Sequence[float]) -> float:
    """CPU seconds by the formula."""
    return sum(each * amount for each, amount in zip(formula, amounts, strict=True))


class Bench:
    """The gateway on a core of its own, the null broker and the clients on another one."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        cores = choose_cores()
        cores.take_load()
        allow_many_descriptors()
        programs = compile_native()
        self._load = str(programs.load)
        self._core = cores.load
        self._log = folder / "load.log"
        broker = NullBroker(programs, port=free_port(), core=cores.load, folder=folder)
        stack.callback(broker.process.stop)
        self.runner = LoadRunner(programs, broker, core=cores.load, folder=folder)
        self.direct = start_direct(broker.port, cores.proxy, folder)
        self.gateway = start_gateway(
            broker.port, cores.proxy, folder, byte_quotas=True, usage=True, compiled=True
        )
        stack.callback(self._proxy.stop)
        self.runner.wait_until_open(self.gateway)

    @property
    def _proxy(self) -> PinnedProcess:
        assert self.gateway.proxy is not None
        return self.gateway.proxy

    def _start(self, path: RunningPath, mode: str, *words: object) -> PinnedProcess:
        argv = [self._load, mode, str(path.port), "bench", *map(str, words)]
        return PinnedProcess(argv, core=self._core, log=self._log, piped=True)

    def measure(self, mix: Mix) -> dict[str, Any]:
        """One window of a mix: requests, bytes and the CPU seconds of the gateway."""
        with ExitStack() as stack:
            loads = []
            for each in mix.clients:
                for _ in range(each.count):
                    words = each.verb, each.frame_bytes, 1, each.requests // 5, each.requests
                    loads.append(self._start(self.gateway, "closed", *words))
                    stack.callback(loads[-1].stop)
            for load in loads:
                read_json_line(load, _PATIENCE_S)
            began_s, cpu_s = time.monotonic(), self._proxy.cpu_s()
            for load in loads:
                _go(load)
            rows = [read_json_line(load, _PATIENCE_S) for load in loads]
            cpu_s, took_s = self._proxy.cpu_s() - cpu_s, time.monotonic() - began_s
        assert not any(row["throttled"] for row in rows)
        return {
            "mix": str(mix),
            "requests": sum(row["requests"] for row in rows),
            "gb_in": sum(row["request_bytes"] for row in rows) / 1e9,
            "gb_out": sum(row["reply_bytes"] for row in rows) / 1e9,
            "cpu_s": cpu_s,
            "busy": cpu_s / took_s,
        }

    def connections_cpu_s(self) -> float:
        """CPU seconds of new connections with three requests each."""
        cpu_s = self._proxy.cpu_s()
        load = self._start(self.gateway, "idle", _CONNECTIONS)
        try:
            read_json_line(load, _PATIENCE_S)
            return (self._proxy.cpu_s() - cpu_s) / _CONNECTIONS
        finally:
            load.stop()

    def memory(self) -> dict[str, Any]:
        """Memory of the gateway and of an idle connection. Call it before the other measurements."""
        row = self.runner.idle_memory(self.gateway, _CONNECTIONS)
        return {"process_bytes": row["rss_before_bytes"], "connection_bytes": row["per_connection_bytes"]}

    def latency(self, busy: float, request_s: float) -> dict[str, Any]:
        """Latencies of a client that sends at fixed times, directly and through the gateway, beside other clients."""
        with self._others(busy, request_s):
            cpu_s, began_s = self._proxy.cpu_s(), time.monotonic()
            through = self._probe(self.gateway)
            used = (self._proxy.cpu_s() - cpu_s) / (time.monotonic() - began_s)
            direct = self._probe(self.direct)
        names = ("p50_ns", "p99_ns", "p999_ns")
        return {"asked": busy, "busy": used} | {name: through[name] - direct[name] for name in names}

    def _probe(self, path: RunningPath) -> Row:
        load = self._start(path, "rate", *_PROBE)
        try:
            read_json_line(load, _PATIENCE_S)
            _go(load)
            return read_json_line(load, _PATIENCE_S)
        finally:
            load.stop()

    @contextmanager
    def _others(self, busy: float, request_s: float) -> Iterator[None]:
        """Twenty clients that produce at fixed times, so that the gateway uses the share `busy` of a core."""
        per_s = round(busy / request_s / 20)
        with ExitStack() as stack:
            for _ in range(20 if per_s else 0):
                load = self._start(self.gateway, "rate", _OTHERS_BYTES, per_s, 60 * per_s, per_s)
                stack.callback(load.stop)
                read_json_line(load, _PATIENCE_S)
                _go(load)
            yield


def _go(load: PinnedProcess) -> None:
    stdin, _ = load.pipes()
    stdin.write(b"go\n")
    stdin.flush()


def judge(rows: Sequence[dict[str, Any]], connection_s: Sequence[float]) -> dict[str, Any]:
    """The formula fitted on all windows, and its error for each mix.

    Args:
        rows: results of `Bench.measure`.
        connection_s: CPU seconds of a connection, by round.
    """
    mixes = []
    for mix in MIXES:
        of_mix = [row for row in rows if row["mix"] == str(mix)]
        amounts = [statistics.median(row[term] for row in of_mix) for term in TERMS]
        cpu_s = [row["cpu_s"] for row in of_mix]
        mixes.append((mix, amounts, statistics.median(cpu_s), min(cpu_s), max(cpu_s)))
    formula = fit([(amounts, cpu_s) for mix, amounts, cpu_s, _, _ in mixes if mix.fitted])
    return {
        "formula": dict(zip(TERMS, formula, strict=True)) | {"connections": statistics.median(connection_s)},
        "mixes": [
            {
                "mix": str(mix),
                "fitted": mix.fitted,
                "cpu_s": cpu_s,
                "lowest": lowest / cpu_s,
                "highest": highest / cpu_s,
                "error": estimate(formula, amounts) / cpu_s - 1,
            }
            for mix, amounts, cpu_s, lowest, highest in mixes
        ],
    }


def main() -> int:
    """Measure, fit and check; 1 when the formula's error is above the goal in a checked mix."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost_formula", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.cost_formula"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "rounds": options.rounds,
    }
    rows, connection_s, latency = [], [], []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = Bench(stack, Path(folder))
        document["memory"] = bench.memory()
        for number in range(options.rounds):
            for mix in MIXES if number % 2 == 0 else reversed(MIXES):
                rows.append(bench.measure(mix))
                print(f"round {number + 1}  {rows[-1]['mix']:<50} {rows[-1]['cpu_s']:.3f} s", flush=True)
            connection_s.append(bench.connections_cpu_s())
        judged = judge(rows, connection_s)
        request_s = judged["formula"]["requests"] + judged["formula"]["gb_in"] * _OTHERS_BYTES / 1e9
        for _ in range(options.rounds):
            latency += [bench.latency(busy, request_s) for busy in _BUSY]
    document |= judged | {"latency": latency, "load_average_after": load_average(), "rows": rows}
    text = page(document)
    keep_results(document, text, options.output, "cost-formula")
    print(text)
    return int(any(abs(each["error"]) > GOAL for each in document["mixes"] if not each["fitted"]))


def page(document: dict[str, Any]) -> str:
    """Markdown."""
    machine, formula = document["machine"], document["formula"]
    lines = [
        "# What a core carries",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}.",
        f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, Python {machine['python']}, uvloop "
        f"{machine['packages']['uvloop']}.",
        f"Load average before {machine['load_average_before']}, after {document['load_average_after']}. The compiled "
        f"gateway with byte quotas and usage records, {document['rounds']} rounds, medians.",
        "",
        "| CPU of the gateway | |",
        "|---|---|",
        f"| for a million requests | {formula['requests'] * 1e6:.1f} s |",
        f"| for a GB from clients | {formula['gb_in']:.2f} s |",
        f"| for a GB to clients | {formula['gb_out']:.2f} s |",
        f"| for a thousand new connections, with three requests each | {formula['connections'] * 1e3:.2f} s |",
        "",
        f"Memory: {document['memory']['process_bytes'] / 1e6:.0f} MB, and "
        f"{document['memory']['connection_bytes'] / 1024:.1f} KiB for an idle connection.",
        "",
        "The sum of the first three is fitted on six mixes and checked on three. Each client has one request in",
        "flight. The interval is that of all rounds.",
        "",
        "| Mix | CPU, s | Interval | The formula says | |",
        "|---|---|---|---|---|",
    ]
    for each in document["mixes"]:
        wrong = abs(each["error"]) > GOAL and not each["fitted"]
        lines.append(
            f"| {each['mix']} | {each['cpu_s']:.3f} | {each['lowest']:.2f} to {each['highest']:.2f} "
            f"| {each['error']:+.1%} | {'fitted' if each['fitted'] else 'checked'}{', **missed**' if wrong else ''} |"
        )
    lines += [
        "",
        f"Goal: at most {GOAL:.0%} in a mix that is checked.",
        "",
        "What the gateway adds to the latency of a client of 250 small requests a second, while 20 others use a part",
        "of its core:",
        "",
        "| Core in use | p50 | p99 | p99.9 |",
        "|---|---|---|---|",
    ]
    for asked in _BUSY:
        rows = [row for row in document["latency"] if row["asked"] == asked]
        cells = [f"{statistics.median(row[name] for row in rows) / 1e3:,.0f} us" for name in _PERCENTILES]
        lines.append(f"| {statistics.median(row['busy'] for row in rows):.0%} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_PERCENTILES: Final = ("p50_ns", "p99_ns", "p999_ns")


def _size(size: int) -> str:
    if size % 1_024 == 0:
        return f"{size // 1_024} KiB"
    return f"{size // 1_000} kB" if size >= 1_000 else f"{size} B"


if __name__ == "__main__":
    sys.exit(main())
