"""``python -m benchmarks.workers``: the cost of workers compared with one process, in one run.

The benchmark measures CPU per request with 400 connections of small Produce requests, how even the workers' shares
are, and the cost of connections. For comparison HAProxy's connections are measured, too; it also counts the rate of
each address. Throughput is measured with a cheap load: eight connections of ``relay/native/load.c`` with 64 requests
of 256 B in a write, whose own CPU time is measured. The gateway may use all cores and shares one of them with the
load. With ``--one-core`` all its processes share one core, take turns, and each turn costs more.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import uvloop
from kafka.record.memory_records import MemoryRecordsBuilder

from benchmarks.connections.paths import (
    HAPROXY,
    Sluice,
    compile_crowd,
    start_haproxy,
    start_null_broker,
    start_sluice,
)
from benchmarks.process_tree import cpu_of, cpu_of_each, family
from benchmarks.relay.machine import load_average
from benchmarks.relay.native_build import ROOT, compile_native
from benchmarks.relay.processes import allow_many_descriptors, choose_cores
from testkit import wire
from testkit.process_group import children

RESULTS: Final = ROOT / "benchmarks" / "results" / "workers.json"
_OPEN: Final = "[connections]\nmax_connections_per_ip = 100000\n"
_QUOTA: Final = '[[quotas]]\nclient_id = "bench"\nproducer_byte_rate = 1000000000000\n'
_SOURCES: Final = 64
_AT_A_TIME: Final = 16
_ABOUT_HEADER: Final = 4
_DENSE: Final = 8
"""Connections whose requests come 64 in a write."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway under test.

    Attributes:
        workers: number of workers.
        sluice: the running process and its children.
    """

    workers: int
    sluice: Sluice

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds of each process so far."""
        return cpu_of_each(self.sluice.process.pid)

    def serving(self) -> list[int]:
        """The processes that serve clients."""
        own = self.sluice.process.pid
        if self.workers == 1:
            return [own]
        (nursery,) = children(own)
        return children(nursery)


class _Client(asyncio.Protocol):
    """Sends a request, waits for the whole answer, and repeats this."""

    def __init__(self, request: bytes, times: int, done: asyncio.Future[None]) -> None:
        self._request, self._left, self._done = request, times, done
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._received += data
        size = int.from_bytes(self._received[:_ABOUT_HEADER], "big") + _ABOUT_HEADER
        if len(self._received) < max(size, _ABOUT_HEADER + 1):
            return
        self._received = self._received[size:]
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        elif not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("the gateway closed a connection"))


def _produce() -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1_000)
    builder.append(timestamp=1_700_000_000_000, key=None, value=b"v" * 100)
    builder.close()
    data = [{"name": "bench", "partition_data": [{"index": 0, "records": bytes(builder.buffer())}]}]
    return wire.request(
        "Produce",
        9,
        correlation_id=1,
        client_id="bench",
        transactional_id=None,
        acks=1,
        timeout_ms=1_000,
        topic_data=data,
    )


async def _load(port: int, connections: int, warm_up: int, times: int, gateway: Gateway) -> dict[str, Any]:
    """One window. All connections are open from before its begin until after its end."""
    loop = asyncio.get_running_loop()
    request = _produce()
    clients: list[Any] = []

    async def each(count: int) -> None:
        waiting = []
        for transport, client in clients:
            client._done, client._left = loop.create_future(), count
            waiting.append(client._done)
            transport.write(request)
        await asyncio.gather(*waiting)

    for _ in range(connections):
        done = loop.create_future()
        clients.append(await loop.create_connection(lambda d=done: _Client(request, 1, d), "127.0.0.1", port))
        await done
    await each(warm_up)
    before, began_s = gateway.cpu_s(), time.monotonic()
    await each(times)
    elapsed_s, after = time.monotonic() - began_s, gateway.cpu_s()
    for transport, client in clients:
        client._done = loop.create_future()
        client._done.set_result(None)
        transport.close()
    used = {pid: after[pid] - before[pid] for pid in after}
    shares = [used[pid] for pid in gateway.serving()]
    requests = connections * times
    return {
        "requests": requests,
        "cpu_us_per_request": sum(used.values()) / requests * 1e6,
        "requests_per_s": requests / elapsed_s,
        "widest_share_pct": (max(shares) - min(shares)) / statistics.mean(shares) * 100,
    }


def _connect(crowd: Path, port: int, count: int, proxy: int) -> dict[str, Any]:
    """One window of connections that each make one request, through this process and its children."""
    arguments = ["cycles", port, _SOURCES, count, _AT_A_TIME, "request"]
    before, began_s = cpu_of_each(proxy), time.monotonic()
    done = subprocess.run(
        [str(crowd), *map(str, arguments)], capture_output=True, text=True, check=True, timeout=300
    )
    elapsed_s, after = time.monotonic() - began_s, cpu_of_each(proxy)
    said = json.loads(done.stdout)
    assert said["replied"] == count, said
    used_s = sum(after.values()) - sum(before.values())
    return {
        "connections": count,
        "per_s": count / elapsed_s,
        "cpu_ms_per_1000": used_s / count * 1e6,
        "supervisor_ms_per_1000": (after[proxy] - before[proxy]) / count * 1e6,
    }


def _throughput(program: Path, port: int, requests: int, gateway: Gateway, broker: int) -> dict[str, Any]:
    """One window of programs that write many requests at once, until the last one has all its replies."""
    argv = [str(program), "closed", str(port), "bench", "together", "256", "64", "2000", str(requests)]
    with ExitStack() as stack:
        loads = []
        for _ in range(_DENSE):
            load = stack.enter_context(
                subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(load.kill)
            loads.append((load, *_pipes(load)))
        for _, _, said in loads:
            json.loads(said.readline())
        others = [broker, *(load.pid for load, _, _ in loads)]
        before, others_before = gateway.cpu_s(), sum(map(cpu_of, others))
        began_s = time.monotonic()
        for _, ask, _ in loads:
            print("go", file=ask, flush=True)
        for _, _, said in loads:
            row = json.loads(said.readline())
            assert (row["requests"], row["throttled"]) == (requests, 0), row
        elapsed_s = time.monotonic() - began_s
        used_s = sum(gateway.cpu_s().values()) - sum(before.values())
        load_s = sum(map(cpu_of, others)) - others_before
    total = _DENSE * requests
    return {
        "dense_per_s": total / elapsed_s,
        "dense_cpu_us": used_s / total * 1e6,
        "dense_load_cpu_us": load_s / total * 1e6,
    }


def _pipes(process: "subprocess.Popen[str]") -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def main() -> None:
    """Measure in interleaved rounds, and keep the medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--requests", type=int, default=50, help="of each connection, in a window")
    parser.add_argument("--cycles", type=int, default=4_000, help="connections made, in a window")
    parser.add_argument(
        "--dense", type=int, default=40_000, help="requests, many in a write, of each of 8 connections"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one-core", action="store_true", help="the gateway may use one core only")
    parser.add_argument("--compiled", action="store_true", help="with the compiled core (`make compiled`)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    allow_many_descriptors()
    cores = choose_cores()
    everywhere = os.sched_getaffinity(0)
    cores.take_load()
    crowd = compile_crowd()
    rows: list[dict[str, Any]] = []
    load_before = load_average()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        programs = compile_native()
        broker, port = start_null_broker(programs, cores.load, folder)
        stack.callback(broker.stop)
        gateways = []
        for workers in options.workers:
            sluice = start_sluice(
                f"127.0.0.1:{port}",
                cores.proxy,
                folder,
                tables=f"[server]\nworkers = {workers}\n{_OPEN}{_QUOTA}",
                name=f"{workers} workers",
                compiled=options.compiled,
            )
            stack.callback(sluice.process.stop)
            gateway = Gateway(workers, sluice)
            if not options.one_core:
                for pid in family(sluice.process.pid):
                    os.sched_setaffinity(pid, everywhere)
            gateways.append(gateway)
        haproxy = start_haproxy(
            port, cores.proxy, folder, reject_if="sc0_conn_rate gt 1000000000", name=HAPROXY
        )
        assert haproxy.proxy is not None
        stack.callback(haproxy.proxy.stop)
        beside: list[dict[str, Any]] = []
        for number in range(options.rounds):
            for gateway in gateways:
                window = _load(
                    gateway.sluice.path.port,
                    options.connections,
                    5,
                    options.requests,
                    gateway,
                )
                row = {"workers": gateway.workers, "round": number, **uvloop.run(window)}
                row |= _connect(crowd, gateway.sluice.path.port, options.cycles, gateway.sluice.process.pid)
                row |= _throughput(
                    programs.load, gateway.sluice.path.port, options.dense, gateway, broker.pid
                )
                rows.append(row)
                print(json.dumps(row), flush=True)
            beside.append(_connect(crowd, haproxy.port, options.cycles, haproxy.proxy.pid))
            print(json.dumps({HAPROXY: beside[-1]}), flush=True)
    medians = {
        str(workers): {
            key: statistics.median(row[key] for row in rows if row["workers"] == workers)
            for key in rows[0]
            if key not in ("workers", "round")
        }
        for workers in options.workers
    }
    one = medians[str(options.workers[0])]
    for each in medians.values():
        for key in (
            "cpu_us_per_request",
            "cpu_ms_per_1000",
            "per_s",
            "requests_per_s",
            "dense_per_s",
            "dense_cpu_us",
        ):
            each[f"{key}_ratio"] = each[key] / one[key]
    haproxy_ms = statistics.median(row["cpu_ms_per_1000"] for row in beside)
    for each in medians.values():
        each["cpu_ms_per_1000_beside_haproxy"] = each["cpu_ms_per_1000"] / haproxy_ms
    document = {
        "compiled": options.compiled,
        "load_before": load_before,
        "load_after": load_average(),
        "medians": medians,
        "rows": rows,
        HAPROXY: beside,
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
