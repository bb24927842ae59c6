"""``python -m benchmarks.peers``: hostile clients against Sluice, HAProxy, Kroxylicious, and without a proxy.

Each proxy is restarted for each row, in front of the same scripted broker and with the same clients
(`campaigns/peers/clients.py`). Counts, memory and CPU time of the proxy do not depend on the machine's load. Times
do, and the page says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.connections.paths import start_null_broker
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine
from benchmarks.relay.native_build import ROOT, compile_native
from benchmarks.relay.paths import GATEWAY, HAPROXY, RunningPath, await_answer
from benchmarks.relay.peers import KROXYLICIOUS, KROXYLICIOUS_CONFIG, kroxylicious_command
from benchmarks.relay.processes import (
    PinnedProcess,
    ProcessDied,
    allow_many_descriptors,
    choose_cores,
    free_port,
)
from campaigns.peers.clients import (
    HOSTILE,
    accepted,
    answered,
    asked,
    connect,
    ended,
    good_client,
    greeted,
    leaks_port,
    reaction_s,
)
from campaigns.peers.page import DIRECT, page
from testkit import wire
from testkit.broker import FETCH, BrokerConnection, Request, ScriptedBroker, answer
from testkit.frames import fetch

RESULTS: Final = ROOT / "benchmarks" / "results"
DEADLINE_S: Final = 3
RATE_PER_S: Final = 10
DESCRIPTORS: Final = 256
_ANSWER_BYTES: Final = 8 << 20
_MIB: Final = 1 << 20

SLUICE_CONFIG: Final = """\
[upstream]
bootstrap = ["127.0.0.1:{upstream}"]
[admin]
bind = "127.0.0.1:{admin}"
[quota_store]
kind = "memory"
[[listeners]]
name = "bench"
bind = "127.0.0.1:{port}"
first_broker_port = {nodes}
broker_ports = 2
[limits]
first_frame_timeout_ms = {deadline_ms}
frame_timeout_ms = {deadline_ms}
{limit}"""
SLUICE_RATE: Final = "[[quotas]]\ndefault_ip = true\nconnection_creation_rate = {rate}\n"

# No maxconn: HAProxy takes it from the limit of descriptors, as its manual recommends.
HAPROXY_CONFIG: Final = """\
global
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen bench
  bind 127.0.0.1:{port}
{limit}  tcp-request inspect-delay {deadline}s
  tcp-request content accept if {{ req.len ge 14 }}
  tcp-request content reject if WAIT_END
  server broker 127.0.0.1:{upstream}
"""
HAPROXY_RATE: Final = """\
  stick-table type ip size 100k expire 30s store conn_rate(1s)
  tcp-request connection track-sc0 src
  tcp-request connection reject if {{ sc0_conn_rate gt {rate} }}
"""


@contextmanager
def scripted_broker() -> Iterator[ScriptedBroker]:
    """The broker, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    broker = ScriptedBroker()
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result()
    try:
        yield broker
    finally:
        asyncio.run_coroutine_threadsafe(broker.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def start(
    name: str, upstream: int, core: int, folder: Path, *, rate: bool = False, descriptors: int = 0
) -> RunningPath:
    """Start one proxy and wait until it answers.

    Args:
        name: the proxy; the direct path starts nothing.
        upstream: port of the broker.
        core: the only core it may run on.
        folder: for its configuration and its log.
        rate: whether to limit new connections of one address, where the proxy can.
        descriptors: the proxy's limit of descriptors; 0 for that of this process.
    """
    if name == DIRECT:
        return RunningPath(name, upstream, None)
    port, nodes, admin = free_port(), free_port(block=3), free_port()
    config = folder / f"{port}.config"
    if name == GATEWAY:
        limit = SLUICE_RATE.format(rate=RATE_PER_S) if rate else ""
        config.write_text(
            SLUICE_CONFIG.format(
                upstream=upstream,
                admin=admin,
                port=port,
                nodes=nodes,
                deadline_ms=DEADLINE_S * 1000,
                limit=limit,
            )
        )
        argv = [str(Path(sys.executable).with_name("sluice")), "serve", "--config", str(config)]
    elif name == HAPROXY:
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise SystemExit("the benchmark compares with HAProxy: apt-get install haproxy")
        limit = HAPROXY_RATE.format(rate=RATE_PER_S) if rate else ""
        config.write_text(
            HAPROXY_CONFIG.format(upstream=upstream, port=port, deadline=DEADLINE_S, limit=limit)
        )
        argv = [program, "-db", "-f", str(config)]
    else:
        argv, port = kroxylicious_command(upstream, folder)
    if descriptors:
        argv = ["prlimit", f"--nofile={descriptors}:{descriptors}", *argv]
    path = RunningPath(name, port, PinnedProcess(argv, core=core, log=folder / f"{port}.log"))
    await_answer(path, timeout_s=60)
    return path


def _alive(path: RunningPath, request: bytes = fetch()) -> bool:
    with contextlib.suppress(OSError), greeted(path.port) as client:
        return bool(asked(client, request))
    return False


def hostile_frames(path: RunningPath, broker: ScriptedBroker) -> dict[str, Any]:
    """R4."""
    within, silent, reached = 0, 0, []
    for name, sent in HOSTILE.items():
        known = len(broker.connections)
        took_s = reaction_s(path.port, sent, 1.0)
        time.sleep(0.05)
        within += took_s is not None and took_s <= 0.1
        silent += took_s is None
        if any(_received(each, sent) for each in broker.connections[known:]):
            reached.append(name)
    return {
        "n": len(HOSTILE),
        "ended_or_answered_within_100_ms": within,
        "silent_for_1_s": silent,
        "reached_the_broker": len(reached),
        "reached": reached,
        "serves_afterwards": _alive(path),
    }


def _received(connection: BrokerConnection, sent: bytes) -> bool:
    """Whether a broker's connection has the first bytes of a hostile frame; a proxy may change its correlation id."""
    received = b"".join(request.frame for request in connection.requests)
    received += connection.unreadable + connection.partial
    unreadable = connection.unreadable
    return sent[:8] in received or (unreadable != b"" and sent.startswith(unreadable))


def slow_clients(path: RunningPath, clients: int = 500) -> dict[str, Any]:
    """R5: half of the clients send four bytes, the others a head and a part of the body."""
    started = fetch()[:-4]
    before = path.proxy.rss_bytes() if path.proxy else 0
    with ExitStack() as stack:
        crowd = []
        for number in range(clients):
            crowd.append(stack.enter_context(connect(path.port)))
            crowd[-1].sendall(started if number % 2 else started[:4])
        time.sleep(1)
        grown = (path.proxy.rss_bytes() if path.proxy else 0) - before
        with good_client(path.port) as counts:
            time.sleep(DEADLINE_S + 2)
        return {
            "n": clients,
            "heads_cut_closed": ended(crowd[::2]),
            "bodies_missing_closed": ended(crowd[1::2]),
            "kib_each": grown / clients / 1024 if path.proxy else None,
            "good_answered": counts["answered"],
            "good_lost": counts["lost"],
        }


def _fetch_bytes(count: int) -> bytes:
    """A request that the null broker answers with `count` bytes."""
    asked_for = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": count, "topics": []}
    return wire.request("Fetch", 12, correlation_id=1, client_id="unread", **asked_for)


def unread_answers(path: RunningPath, clients: int = 100) -> dict[str, Any]:
    """R6: answers of 8 MiB that their clients do not read."""
    request = _fetch_bytes(_ANSWER_BYTES)
    with greeted(path.port) as client:  # allocations that the process makes once
        for _ in range(10):
            asked(client, request)
    before = path.proxy.rss_bytes() if path.proxy else 0
    most = before
    with ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(greeted(path.port, receive_buffer_bytes=65_536)).sendall(request)
        end_s = time.monotonic() + 4
        while path.proxy and time.monotonic() < end_s:
            most = max(most, path.proxy.rss_bytes())
            time.sleep(0.05)
        serves = _alive(path, _fetch_bytes(1_000))
    return {
        "n": clients,
        "answer_mib": _ANSWER_BYTES // _MIB,
        "kib_each": (most - before) / clients / 1024 if path.proxy else None,
        "serves_others": serves,
    }


def no_descriptors(path: RunningPath, established: int = 30, more: int = 400) -> dict[str, Any]:
    """R7: more connections than the proxy has descriptors for."""
    assert path.proxy is not None
    with ExitStack() as stack:
        good = [stack.enter_context(greeted(path.port)) for _ in range(established)]
        served = [client for client in good if asked(client)]
        with ExitStack() as crowd:
            for _ in range(more):
                with contextlib.suppress(OSError):
                    crowd.enter_context(connect(path.port))
            cpu_s = path.proxy.cpu_s()
            time.sleep(2)
            cpu_share = (path.proxy.cpu_s() - cpu_s) / 2
            alive = sum(bool(asked(client)) for client in served)
        begun_s, again_s = time.monotonic(), None
        while time.monotonic() - begun_s < 10:
            with contextlib.suppress(OSError), greeted(path.port) as client:
                if asked(client):
                    again_s = time.monotonic() - begun_s
                    break
            time.sleep(0.02)
    return {
        "n": more,
        "established": len(served),
        "established_lost": len(served) - alive,
        "cpu_of_a_core": cpu_share,
        "accepts_again_s": again_s,
    }


def connection_rate(path: RunningPath, seconds: float = 10) -> dict[str, Any]:
    """R8: one address opens 40 connections a second; 10 are allowed."""
    count = accepted(path.port, 4 * RATE_PER_S, seconds, "127.0.4.1")
    return {"n": int(4 * RATE_PER_S * seconds), "accepted": count, "to_limit": count / (RATE_PER_S * seconds)}


def leaks(path: RunningPath, broker: ScriptedBroker, times: int = 10) -> dict[str, Any]:
    """R17: answers to Metadata that name the broker's own port."""
    return {"n": times, "leaks": sum(leaks_port(path.port, broker.port) for _ in range(times))}


def drain(path: RunningPath, broker: ScriptedBroker, clients: int = 50) -> dict[str, Any]:
    """R19: the proxy is stopped while each client waits for an answer that takes the broker 1 s."""
    assert path.proxy is not None

    def late(connection: BrokerConnection, request: Request) -> None:
        asyncio.get_running_loop().call_later(1, answer, connection, request)

    with ExitStack() as stack:
        crowd = [stack.enter_context(greeted(path.port)) for _ in range(clients)]
        ready = sum(bool(asked(client)) for client in crowd)
        broker.script(FETCH, late)
        for client in crowd:
            client.sendall(fetch(2))
        time.sleep(0.4)
        begun_s = time.monotonic()
        # `haproxy -sf` sends this signal to the old process.
        os.kill(path.proxy.pid, signal.SIGUSR1 if path.name == HAPROXY else signal.SIGTERM)
        lost = sum(not answered(client) for client in crowd)
        while path.proxy.running and time.monotonic() - begun_s < 8:
            time.sleep(0.01)
        ended_s = None if path.proxy.running else time.monotonic() - begun_s
    return {"n": ready, "lost": lost, "exit_s": ended_s}


def broker_restart(name: str, core: int, folder: Path, load_core: int, times: int = 10) -> dict[str, Any]:
    """R15: time from the restarted null broker's first direct answer to its first answer through the proxy."""
    programs = compile_native()
    broker, port = start_null_broker(programs, load_core, folder)
    gaps = []
    with ExitStack() as stack:
        path = start(name, port, core, folder)
        stack.callback(_stop, path)
        for _ in range(times):
            broker.stop()
            time.sleep(0.5)
            broker = PinnedProcess(broker.argv, core=load_core, log=broker.log)
            _await_fetch(port)
            begun_s = time.monotonic()
            _await_fetch(path.port)
            gaps.append(time.monotonic() - begun_s)
        broker.stop()
    return {"n": times, "median_s": statistics.median(gaps), "longest_s": max(gaps)}


def _await_fetch(port: int) -> None:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), greeted(port) as client:
            if asked(client, _fetch_bytes(1_000)):
                return
        time.sleep(0.01)
    raise ProcessDied(f"port {port} does not answer")


def _stop(path: RunningPath) -> None:
    if path.proxy is not None:
        path.proxy.stop()


def measured(name: str, row: str, core: int, load_core: int, folder: Path) -> dict[str, Any]:
    """Measure one row of one proxy. If the proxy has no such feature, the row says so in words."""
    if name == DIRECT and row in {"R7", "R8", "R19"}:
        return {"without": "no proxy"}
    if name == KROXYLICIOUS and row == "R8":
        return {"without": "has none"}
    if row == "R15":
        return broker_restart(name, core, folder, load_core)
    with ExitStack() as stack:
        broker = stack.enter_context(scripted_broker())
        upstream = broker.port
        if row == "R6":
            null, upstream = start_null_broker(compile_native(), load_core, folder)
            stack.callback(null.stop)
            await_answer(RunningPath(DIRECT, upstream, None))
        path = start(
            name, upstream, core, folder, rate=row == "R8", descriptors=DESCRIPTORS if row == "R7" else 0
        )
        stack.callback(_stop, path)
        rows: dict[str, Callable[[], dict[str, Any]]] = {
            "R4": lambda: hostile_frames(path, broker),
            "R5": lambda: slow_clients(path),
            "R6": lambda: unread_answers(path),
            "R7": lambda: no_descriptors(path),
            "R8": lambda: connection_rate(path),
            "R17": lambda: leaks(path, broker),
            "R19": lambda: drain(path, broker),
        }
        return rows[row]()


def main() -> int:
    """Run it and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--rows", nargs="+", default=["R4", "R5", "R6", "R7", "R8", "R15", "R17", "R19"])
    options = parser.parse_args()
    allow_many_descriptors()
    machine, cores = describe_machine(), choose_cores()
    begun_s = time.monotonic()
    document: dict[str, Any] = {
        "command": command_line("benchmarks.peers"),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "kroxylicious": KROXYLICIOUS,
        "configurations": {
            KROXYLICIOUS: KROXYLICIOUS_CONFIG.format(
                upstream_port="BROKER", listen_port="PORT", node_port="NODE"
            ),
            GATEWAY: SLUICE_CONFIG.format(
                upstream="BROKER",
                admin="ADMIN",
                port="PORT",
                nodes="NODES",
                deadline_ms=DEADLINE_S * 1000,
                limit=SLUICE_RATE.format(rate=RATE_PER_S),
            ),
            HAPROXY: HAPROXY_CONFIG.format(
                upstream="BROKER",
                port="PORT",
                deadline=DEADLINE_S,
                limit=HAPROXY_RATE.format(rate=RATE_PER_S),
            ),
        },
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        for row in options.rows:
            for name in (GATEWAY, HAPROXY, KROXYLICIOUS, DIRECT):
                try:
                    found = measured(name, row, cores.proxy, cores.load, Path(folder))
                except (ProcessDied, OSError, ValueError) as error:
                    found = {"failed": str(error).splitlines()[0]}
                document["rows"].append({"row": row, "peer": name, **found})
                print(document["rows"][-1], flush=True)
            document["seconds"] = round(time.monotonic() - begun_s)
            keep_results(document, page(document), options.output, "peers")
    failed = sum("failed" in row for row in document["rows"])
    print(f"**{len(document['rows'])} measurements of {len(options.rows)} rows, {failed} failed**")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
