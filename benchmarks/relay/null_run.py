"""A run against the null broker: idle memory first, then rounds of load."""

import argparse
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.relay.load import LoadRunner, NullBroker, Row
from benchmarks.relay.native_build import NativePrograms
from benchmarks.relay.paths import (
    BARE_RELAY,
    COMPILED,
    DIRECT,
    GATEWAY,
    GATEWAY_COMPILED,
    GATEWAY_WITH_BYTE_QUOTAS,
    GATEWAY_WITH_LIMITS,
    GATEWAY_WITH_TOPICS,
    GATEWAY_WITH_USAGE,
    HAPROXY,
    OF_OTHER_CHECKOUT,
    UVLOOP_RELAY,
    RunningPath,
    Starter,
    start_direct,
    start_gateway,
    start_haproxy,
    start_relay,
    start_target,
    start_uvloop_relay,
)
from benchmarks.relay.peers import GO_PROXY, KROXYLICIOUS, start_go_proxy, start_kroxylicious
from benchmarks.relay.processes import QUICK_SECONDS, RUN_SECONDS, Budget, Cores, free_port
from benchmarks.relay.workloads import IDLE_CONNECTIONS, LATENCY_REQUESTS, WORKLOADS


def starters(
    programs: NativePrograms,
    without: list[str],
    *,
    quotas: bool,
    usage: bool = False,
    topics: bool = False,
    limits: bool = False,
    peers: bool = False,
    compiled: bool = False,
    against: Path | None = None,
) -> dict[str, Starter]:
    """The paths to measure, by name, in the order of even rounds.

    Args:
        programs: contains the bare relay.
        without: names of paths to leave out.
        quotas: the gateway with byte rates in addition to the gateway without, and no bare relays.
        usage: the same with usage records.
        topics: the same with usage records, and with those by topic.
        limits: the same with byte rates, and with all limits that Kafka lacks.
        peers: other projects' proxies, too.
        compiled: the gateways of `quotas`, `limits`, `usage` and `topics` with the compiled core.
        against: another checkout, whose gateway is measured beside each of this checkout's.
    """
    gateway = partial(start_gateway, compiled=compiled)
    known: dict[str, Starter] = {
        DIRECT: start_direct,
        BARE_RELAY: partial(start_relay, programs),
        UVLOOP_RELAY: start_uvloop_relay,
        HAPROXY: start_haproxy,
        GATEWAY: gateway,
    }
    if quotas or limits or usage or topics:
        del known[BARE_RELAY], known[UVLOOP_RELAY]
    elif COMPILED.exists():
        known[GATEWAY_COMPILED] = partial(start_gateway, compiled=True)
    if usage or topics:
        known[GATEWAY_WITH_USAGE] = partial(gateway, usage=True)
    if topics:
        known[GATEWAY_WITH_TOPICS] = partial(gateway, topics=True)
    if limits:
        known[GATEWAY_WITH_LIMITS] = partial(gateway, every_limit=True)
    if quotas or limits:
        known[GATEWAY_WITH_BYTE_QUOTAS] = partial(gateway, byte_quotas=True)
    if peers:
        known |= {KROXYLICIOUS: start_kroxylicious, GO_PROXY: start_go_proxy}
    if against is not None:
        known |= {
            name + OF_OTHER_CHECKOUT: partial(start, checkout=against)
            for name, start in [
                (GATEWAY, gateway),
                (GATEWAY_WITH_USAGE, partial(gateway, usage=True)),
                (GATEWAY_WITH_LIMITS, partial(gateway, every_limit=True)),
                (GATEWAY_WITH_BYTE_QUOTAS, partial(gateway, byte_quotas=True)),
            ]
            if name in known
        }
    unknown = set(without) - set(known)
    if unknown:
        raise SystemExit(f"no such path: {', '.join(unknown)}; there are {', '.join(known)}")
    return {name: start for name, start in known.items() if name not in without}


class Bench:
    """One run against the null broker."""

    def __init__(
        self,
        options: argparse.Namespace,
        folder: Path,
        stack: ExitStack,
        cores: Cores,
        programs: NativePrograms,
    ) -> None:
        self.cores = cores
        self._folder = folder
        self._stack = stack
        self._options = options
        self._starters = starters(
            programs,
            options.without,
            quotas=options.quotas,
            usage=options.usage,
            topics=options.topics,
            limits=options.limits,
            peers=options.peers,
            compiled=options.compiled,
            against=options.against,
        )
        port = options.broker_port or free_port()
        self.broker = NullBroker(programs, port=port, core=cores.load, folder=folder)
        stack.callback(self.broker.process.stop)
        self.runner = LoadRunner(programs, self.broker, core=cores.load, folder=folder)
        self._rounds = 2 if options.quick else options.rounds
        self._budget = Budget(QUICK_SECONDS if options.quick else RUN_SECONDS)
        self.rounds_done = 0
        self.workloads = [w.half() for w in WORKLOADS if w.goal] if options.quick else list(WORKLOADS)
        if options.limits:
            # The capacity is divided once per second. Until then a client is new and costs more.
            self.workloads = [replace(each, warm_up=each.requests) for each in self.workloads]
        self.latency_requests = LATENCY_REQUESTS // (2 if options.quick else 1)
        self.rows: list[Row] = []

    def wanted(self, key: str) -> bool:
        return not self._options.only or key in self._options.only

    def start(self, name: str) -> RunningPath:
        path = replace(self._starters[name](self.broker.port, self.cores.proxy, self._folder), name=name)
        if path.proxy is not None:
            self._stack.callback(path.proxy.stop)
        self.runner.wait_until_open(path)
        return path

    def measure_idle(self) -> None:
        """Measure idle memory before the load makes the proxies grow; each measurement has its own process."""
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
        for number in self._budget.rounds(self._rounds):
            self.rounds_done = number + 1
            for workload in self.workloads:
                for path in paths if number % 2 == 0 else reversed(paths):
                    if self.wanted(workload.key):
                        self.keep(self.runner.closed_loop(path, workload), number)
            for path in paths if number % 2 == 0 else reversed(paths):
                if self.wanted("latency"):
                    self.keep(self.runner.fixed_rate(path, requests=self.latency_requests), number)
        return [path.name for path in paths]

    def keep(self, row: Row, number: int) -> None:
        row["round"] = number
        self.rows.append(row)
        said = f"{row['figure']:.3f}" if "figure" in row else f"{row.get('p50_ns', 0) / 1000:.0f} us"
        if row["workload"] == "idle":
            said = f"{row['per_connection_bytes'] / 1024:.1f} KiB"
        trouble = f"  INVALID: {row['invalid']}" if row["invalid"] else ""
        print(f"round {number + 1}  {row['workload']:<16} {row['path']:<20} {said}{trouble}", flush=True)
