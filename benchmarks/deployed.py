"""``python -m benchmarks.deployed``: CPU per request with one port by SNI, and with two clusters; 10 minutes.

Both are compared with a gateway with a port per broker and one cluster, all with TLS, in one run. Each generation
restarts all gateways, since two processes of the same program differ by about one percent. Inside a round the
gateways take turns every few milliseconds, so other load on the machine slows all of them alike.
The benchmark compares the CPU time of the processes within a round. So neither the load of other programs nor the
duration of a window matters. A second gateway with the base configuration shows how precise the comparison is.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.keep import keep_results
from benchmarks.pairs import Ratio, ratio_of
from benchmarks.process_tree import cpu_of, cpu_of_each
from benchmarks.relay.load import NullBroker
from benchmarks.relay.machine import describe_machine
from benchmarks.relay.native_build import ROOT, compile_native
from benchmarks.relay.paths import with_compiled_core
from benchmarks.relay.processes import PinnedProcess, choose_cores, free_port
from benchmarks.tls.handshakes import context
from benchmarks.tls.paths import Certificate, make_certificate
from testkit.frames import produce
from testkit.process_group import children

NAME: Final = "deployed"
BASE: Final = "ports, one cluster"
AGAIN: Final = "the same again"
NAMES: Final = "one port by SNI"
CLUSTERS: Final = "two clusters"
_ABOUT: Final = {
    AGAIN: "a second process with the same configuration: the error of the measurement",
    NAMES: "`[listeners.sni]`, the broker named in the TLS hello",
    CLUSTERS: "the load for one of `[[clusters]]`, then for the other",
}
_CONNECTIONS: Final = 4
_TOGETHER: Final = 4
_BATCHES: Final = 10
_TURNS: Final = 40
_WARM_UP_ROUNDS: Final = 4
_PATIENCE_S: Final = 60.0
_IDLE_S: Final = 2.0
_LEVEL: Final = 1.02

_LISTENER: Final = """
[[{prefix}listeners]]
name = "bench"
bind = "127.0.0.1:{port}"
security_protocol = "SSL"
{place}
[{prefix}listeners.tls]
certificate = "{certificate}"
key = "{key}"
"""
_CLUSTER: Final = """
[{prefix}upstream]
bootstrap = ["127.0.0.1:{broker}"]
[{prefix}quota_store]
kind = "memory"
[[{prefix}quotas]]
client_id = "bench"
producer_byte_rate = 1000000000000
"""
_PORTS: Final = 'advertised_host = "127.0.0.1"\nfirst_broker_port = {first}\nbroker_ports = 2'
_SNI: Final = 'sni = { bootstrap_name = "kafka.test", broker_name = "b{node}.kafka.test" }'


class Gateway:
    """A gateway and open connections to its broker."""

    def __init__(
        self, kind: str, compiled: bool, certificate: Certificate, broker: int, core: int, folder: Path
    ):
        """Start it.

        Args:
            kind: one of the names above.
            compiled: with the compiled core.
            certificate: certificate of its listeners.
            broker: port of the broker.
            core: the core on which it runs.
            folder: for its files.
        """
        admin = free_port()
        text = f'[admin]\nbind = "127.0.0.1:{admin}"\n'
        self._ports: list[int] = []
        for name in ("a", "b") if kind == CLUSTERS else ("",):
            first = free_port(block=4)
            prefix = "clusters." if name else ""
            text += f'[[clusters]]\nname = "{name}"\n' if name else ""
            text += _CLUSTER.format(prefix=prefix, broker=broker)
            place = _SNI if kind == NAMES else _PORTS.format(first=first + 1)
            files = {"certificate": certificate.certificate, "key": certificate.key}
            text += _LISTENER.format(prefix=prefix, port=first, place=place, **files)
            # The broker has id 1.
            self._ports.append(first if kind == NAMES else first + 2)
        file = folder / f"{admin}.toml"
        file.write_text(text)
        argv = [str(Path(sys.executable).with_name("sluice")), "serve", "--config", str(file)]
        self.process = PinnedProcess(
            with_compiled_core(argv) if compiled else argv, core=core, log=folder / f"{admin}.log"
        )
        self._connections: list[list[ssl.SSLSocket]] = [[] for _ in self._ports]

    def connect(self) -> None:
        """Wait until the gateway serves and open all connections."""
        deadline = time.monotonic() + _PATIENCE_S
        client = context()
        for port, connections in zip(self._ports, self._connections, strict=True):
            while len(connections) < _CONNECTIONS:
                try:
                    plain = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
                    connections.append(client.wrap_socket(plain, server_hostname="b1.kafka.test"))
                except OSError:
                    if time.monotonic() > deadline or not self.process.running:
                        raise self.process.died() from None
                    time.sleep(0.1)

    def turn(self, batch: bytes, at: int) -> float:
        """CPU seconds of the process that serves a few batches, with the clusters in turn.

        Args:
            batch: requests.
            at: number of the turn.
        """
        cluster = at * len(self._ports) // _TURNS
        connections, pid = self._connections[cluster], self._serving()[cluster]
        before_s = cpu_of(pid)
        for _ in range(_BATCHES):
            for connection in connections:
                connection.sendall(batch)
            for connection in connections:
                if not _read_replies(connection):
                    raise self.process.died()
        return cpu_of(pid) - before_s

    def _serving(self) -> list[int]:
        own = self.process.pid
        return [own] if len(self._ports) == 1 else sorted(children(own))

    def idle_pct(self) -> float:
        """CPU of all its processes while the connections are idle, in percent of a core."""
        before, began = sum(cpu_of_each(self.process.pid).values()), time.monotonic()
        time.sleep(_IDLE_S)
        used_s = sum(cpu_of_each(self.process.pid).values()) - before
        return used_s / (time.monotonic() - began) * 100

    def stop(self) -> None:
        """Stop the gateway and close the connections."""
        for connection in (each for connections in self._connections for each in connections):
            connection.close()
        self.process.stop(patience_s=_PATIENCE_S)


def _read_replies(connection: ssl.SSLSocket) -> bool:
    """Read the replies; False if the connection has ended."""
    received = b""
    for _ in range(_TOGETHER):
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            more = connection.recv(65_536)
            if not more:
                return False
            received += more
        received = received[4 + int.from_bytes(received[:4], "big") :]
    return not received


@dataclass(frozen=True, slots=True)
class Result:
    """Results of a run.

    Attributes:
        figures: microseconds per request: a row for each round, by kind.
        idle: percent of a core of all processes without load: a row for each generation, by kind.
    """

    figures: Sequence[dict[str, float]]
    idle: Sequence[dict[str, float]]

    def ratio(self, kind: str) -> Ratio:
        """CPU in multiples of `BASE`, or for kinds other than `AGAIN` of the mean of `BASE` and `AGAIN`."""
        base = (BASE,) if kind == AGAIN else (BASE, AGAIN)
        return ratio_of([row[kind] / statistics.mean(row[each] for each in base) for row in self.figures])

    def within(self) -> bool:
        """Whether the intervals of SNI and of two clusters are below 1.02."""
        return all(self.ratio(kind).high <= _LEVEL for kind in (NAMES, CLUSTERS))


def measure(generations: int, rounds: int, *, compiled: bool) -> Result:
    """Run all of it."""
    cores = choose_cores()
    cores.take_load()
    programs = compile_native()
    figures: list[dict[str, float]] = []
    idle: list[dict[str, float]] = []
    batch = b"".join(produce(at, size=100, client_id="bench") for at in range(_TOGETHER))
    for generation in range(generations):
        with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
            folder = Path(made)
            broker = NullBroker(programs, port=free_port(), core=cores.load, folder=folder)
            stack.callback(broker.process.stop)
            certificate = make_certificate("ECDSA P-256", folder)
            gateways = {}
            for kind in random.sample((BASE, AGAIN, NAMES, CLUSTERS), 4):
                gateways[kind] = Gateway(kind, compiled, certificate, broker.port, cores.proxy, folder)
                stack.callback(gateways[kind].stop)
            for gateway in gateways.values():
                gateway.connect()
                for at in (0, _TURNS - 1):  # at once: idle new connections are closed
                    gateway.turn(batch, at)
            for number in range(-_WARM_UP_ROUNDS, rounds):
                row = _round(gateways, batch)
                if number >= 0:
                    figures.append(row)
            idle.append({kind: gateway.idle_pct() for kind, gateway in gateways.items()})
        so_far = Result(figures, idle)
        print(generation + 1, {kind: str(so_far.ratio(kind)) for kind in _ABOUT}, flush=True)
    return Result(figures, idle)


def _round(gateways: Mapping[str, Gateway], batch: bytes) -> dict[str, float]:
    """Microseconds of CPU per request, by kind."""
    used_s = dict.fromkeys(gateways, 0.0)
    for at in range(_TURNS):
        for kind in random.sample(list(gateways), len(gateways)):
            used_s[kind] += gateways[kind].turn(batch, at)
    requests = _TURNS * _BATCHES * _CONNECTIONS * _TOGETHER
    return {kind: used / requests * 1e6 for kind, used in used_s.items()}


def page(result: Result, *, compiled: bool) -> str:
    """The page of results."""
    lines = [
        "# CPU per request with one port by SNI, and with two clusters",
        "",
        f"Made by `python -m benchmarks.deployed{' --compiled' if compiled else ''}`. Small Produce requests over "
        f"TLS with a byte rate that is never reached, {_TOGETHER} in a write, {_CONNECTIONS} connections.",
        f"{len(result.figures)} rounds in {len(result.idle)} generations of processes. A ratio is the median of "
        "the ratios within a round, with its interval of 95 %.",
        "",
        f"| Beside {BASE} | CPU, times | Interval | What it is |",
        "|---|---|---|---|",
    ]
    for kind, about in _ABOUT.items():
        found = result.ratio(kind)
        lines.append(f"| {kind} | {found.median:.3f} | {found.low:.3f} to {found.high:.3f} | {about} |")
    idle = {kind: statistics.median(row[kind] for row in result.idle) for kind in (BASE, CLUSTERS)}
    lines += [
        "",
        f"Without load all processes of two clusters take {idle[CLUSTERS]:.2f} % of a core, and those of one cluster "
        f"{idle[BASE]:.2f} %. This does not grow with requests, so it is not in the ratios.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure and keep the results; 1 if SNI or two clusters cost more than 2 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.deployed", description=__doc__)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=40, help="of each generation")
    parser.add_argument("--more", action="store_true", help="add to the rounds of the results that are kept")
    parser.add_argument("--compiled", action="store_true", help="with the compiled core: make compiled first")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    result = measure(options.generations, options.rounds, compiled=options.compiled)
    name = NAME + ("-compiled" if options.compiled else "")
    if options.more:
        kept = json.loads((options.output / f"{name}.json").read_text())
        result = Result([*kept["rows"], *result.figures], [*kept["idle"], *result.idle])
    text = page(result, compiled=options.compiled)
    print(text)
    document = {"machine": describe_machine(), "idle": list(result.idle), "rows": list(result.figures)}
    keep_results(document, text, options.output, name)
    return 0 if result.within() else 1


if __name__ == "__main__":
    sys.exit(main())
