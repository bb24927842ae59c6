"""``python -m benchmarks.store``: a gateway with a hundred thousand quotas in its store: start, alter, look up.

Exit code 1 when a goal is missed; the result is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
import uvloop

from benchmarks import store_topic
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from gateway.quota_admin.store.interface import Alteration
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.sqlite_store import SqliteStore
from quotas.entities import QuotaEntity, QuotaKey
from quotas.ip_limits import IpLimits
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings
from quotas.resolution import resolve
from testkit.broker import ScriptedBroker
from testkit.gateway import free_ports

RESULTS: Final = Path(__file__).resolve().parent / "results"
READY_S: Final = 2.5
ALTER_MS: Final = 50.0
LOOK_UP_US: Final = 2.0

_KEY: Final = QuotaKey.PRODUCER_BYTE_RATE
_CALLS: Final = 200_000
_ROUNDS: Final = 5


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--entities", type=int, nargs="+", default=[100, 10_000, 100_000])
    parser.add_argument("--alterations", type=int, default=300)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--topic", action="store_true", help="the store in a topic too, with three brokers")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    load_before = load_average()
    rows = []
    for entities in options.entities:
        with tempfile.TemporaryDirectory(prefix="store-") as folder:
            row: dict[str, Any] = {"entities": entities}
            row |= uvloop.run(_alterations(Path(folder), entities, options.alterations))
            row |= uvloop.run(_starts(Path(folder), options.starts))
        row |= {"look_up_us": _look_ups(entities) | _address_look_ups(entities)}
        rows.append(row)
        print(row, flush=True)
    topic = store_topic.run(options.entities, options.alterations) if options.topic else []
    document = {
        "command": "python -m benchmarks.store --entities "
        + " ".join(map(str, options.entities))
        + " --topic" * options.topic,
        "started": started,
        "machine": describe_machine()
        | {"load_average_before": load_before, "load_average_after": load_average()},
        "rows": rows,
        "topic": topic,
    }
    page = render(document)
    keep_results(document, page, options.output, "store")
    print(page)
    most = rows[-1]
    return int(
        statistics.median(most["ready_s"]) > READY_S
        or most["alter_ms"]["p99"] > ALTER_MS
        or max(row["look_up_us"][what] for row in rows for what in ("get", "tracker", "address")) > LOOK_UP_US
    )


def _entity(number: int) -> QuotaEntity:
    return QuotaEntity(user=f"user-{number % 1000}", client_id=f"client-{number}")


async def _alterations(folder: Path, entities: int, count: int) -> dict[str, Any]:
    """Fill a store, then alter single quotas; how long each takes, and how long the loop is blocked."""
    store = SqliteStore(
        folder / "data", now_ms=lambda: time.time_ns() // 10**6, max_quotas=10**6, max_history=10_000
    )
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: 0)
    await live.open()
    changes = tuple(QuotaChange(_entity(at), _KEY, 1000.0 + at) for at in range(entities))
    began = time.perf_counter()
    await live.alter(Alteration("benchmark", "import", changes))
    fill_s = time.perf_counter() - began
    dice = random.Random(entities)
    times = []
    stalls: list[float] = []
    watching = asyncio.create_task(_watch(stalls))
    for _ in range(count):
        change = QuotaChange(_entity(dice.randrange(entities)), _KEY, float(dice.randrange(1, 10**9)))
        began = time.perf_counter()
        await live.alter(Alteration("benchmark", "alter", (change,)))
        times.append((time.perf_counter() - began) * 1000)
    watching.cancel()
    await live.close()
    times.sort()
    return {
        "fill_s": round(fill_s, 3),
        "alter_ms": {
            "p50": round(times[len(times) // 2], 2),
            "p99": round(times[int(len(times) * 0.99)], 2),
            "max": round(times[-1], 2),
        },
        "loop_stall_max_ms": round(max(stalls) * 1000, 2),
        "file_bytes": (folder / "data" / "quotas.db").stat().st_size,
    }


async def _watch(stalls: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        stalls.append(time.perf_counter() - began - 0.001)


async def _starts(folder: Path, count: int) -> dict[str, Any]:
    """Time from the start of the process until /readyz reports that it can serve clients."""
    ready: list[tuple[float, float]] = []
    empty: list[tuple[float, float]] = []
    async with ScriptedBroker() as broker:
        for _ in range(count):
            ready.append(await _start(folder, folder / "data", broker.port))
            empty.append(await _start(folder, folder / "empty", broker.port))
    return {
        "ready_s": [round(wall, 3) for wall, _ in ready],
        "ready_cpu_s": [round(cpu, 2) for _, cpu in ready],
        "ready_empty_s": [round(wall, 3) for wall, _ in empty],
        "ready_empty_cpu_s": [round(cpu, 2) for _, cpu in empty],
    }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _start(folder: Path, data: Path, broker: int) -> tuple[float, float]:
    first = free_ports(6)
    file = folder / "gateway.toml"
    file.write_text(
        f'[upstream]\nbootstrap = ["127.0.0.1:{broker}"]\n[admin]\nbind = "127.0.0.1:{first}"\n'
        f'[[listeners]]\nname = "a"\nbind = "127.0.0.1:{first + 1}"\nbroker_ports = 3\n'
        f'[quota_store]\ndata_dir = "{data}"\n'
    )
    program = Path(sys.executable).with_name("sluice")
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        program,
        "serve",
        "--config",
        file,
        # An installed package has its bytecode.
        env={name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        while not await _ready(first):  # noqa: ASYNC110  (another process's event)
            await asyncio.sleep(0.005)
        return time.perf_counter() - began, _cpu_s(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _ready(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        return b" 200 " in await reader.readline()
    finally:
        writer.close()


def _look_ups(entities: int) -> dict[str, float]:
    """Microseconds of one look-up, the best of some rounds: other programs only ever make one slower."""
    limits = Limits()
    quotas = LayeredQuotas(limits)
    quotas.apply(QuotaChange(_entity(at), _KEY, 1000.0 + at) for at in range(entities))
    dice = random.Random(entities)
    asked = [dice.randrange(entities) for _ in range(_CALLS)]
    known = [_entity(at) for at in asked]
    clients = [(str(each.user), str(each.client_id)) for each in known]
    quotas = ByteRateQuotas(limits, _KEY, RateSettings(max_trackers=10_000))
    hot = clients[:5_000]
    for user, client_id in hot:
        quotas.tracker(user, client_id, now_ms=1)

    def get() -> None:
        for each in known:
            limits.get(each, _KEY)

    def tracker() -> None:
        for _ in range(_CALLS // len(hot)):
            for user, client_id in hot:
                quotas.tracker(user, client_id, now_ms=1)

    def first() -> None:
        for user, client_id in clients:
            resolve(limits, _KEY, user, client_id)

    return {"get": _best(get), "tracker": _best(tracker), "resolve": _best(first)}


def _address_look_ups(entities: int) -> dict[str, float]:
    """The same for connection rates: half of the quotas are for addresses, half for blocks of two lengths."""
    limits = Limits()
    for at in range(entities):
        low, high, first = at & 255, at >> 8 & 255, at >> 16
        name = f"{20 + first}.{high}.{low}.0/{24 + at % 4}" if at % 2 else f"{10 + first}.{high}.{low}.7"
        limits.put(QuotaEntity(ip=name), QuotaKey.CONNECTION_CREATION_RATE, 5.0)
    clients = [f"172.{at >> 16}.{at >> 8 & 255}.{at & 255}" for at in range(_CALLS)]
    hot = clients[:2_000]
    known = IpLimits(limits)

    def address() -> None:
        for _ in range(_CALLS // len(hot)):
            for client in hot:
                known.limit(client)

    def new_address() -> None:
        fresh = IpLimits(limits)
        for client in clients:
            fresh.limit(client)

    return {"address": _best(address), "new_address": _best(new_address)}


def _best(run: Callable[[], None]) -> float:
    found = []
    for _ in range(_ROUNDS):
        began = time.process_time()
        run()
        found.append((time.process_time() - began) / _CALLS * 1e6)
    return round(min(found), 3)


def render(document: dict[str, Any]) -> str:
    """The page."""
    machine, most = document["machine"], document["rows"][-1]
    lines = [
        "# The quota store with a hundred thousand quotas",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}; load average before and after: "
        f"{machine['load_average_before']}, {machine['load_average_after']}, with other load on the machine.",
        "",
        f"**{most['entities']:,} quotas: start to ready {statistics.median(most['ready_s']):.2f} s (goal {READY_S}), "
        f"an alteration {most['alter_ms']['p50']} ms, p99 {most['alter_ms']['p99']} ms (goal {ALTER_MS:.0f}), "
        f"a look-up {most['look_up_us']['tracker']} us (goal {LOOK_UP_US:.0f}).**",
        "",
        "| quotas | start to ready, median of | with none | all set at once | alter p50 / p99 / max "
        "| longest stall of the loop meanwhile | `Limits.get` | counter of a client | first look after a change "
        "| rate of an address | of a new one | file |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in document["rows"]:
        alter, look_up = row["alter_ms"], row["look_up_us"]
        lines.append(
            f"| {row['entities']:,} | {_median(row, 'ready')} ({len(row['ready_s'])}) "
            f"| {_median(row, 'ready_empty')} | {row['fill_s']:.2f} s "
            f"| {alter['p50']} / {alter['p99']} / {alter['max']} ms | {row['loop_stall_max_ms']} ms "
            f"| {look_up['get']} us | {look_up['tracker']} us | {look_up['resolve']} us "
            f"| {look_up['address']} us | {look_up['new_address']} us "
            f"| {row['file_bytes'] / 1e6:.1f} MB |"
        )
    lines += [
        "",
        "* Start: from the start of `sluice serve` to the first 200 of /readyz; the broker behind it is a scripted "
        'one. Python itself and its imports are the row\'s "with none".',
        "* Alter: one quota through `LiveQuotas`, on the disk and in force when it returns (WAL, synchronous=FULL).",
        "* Look-ups are CPU time, best of five rounds. The counter of a client is what each frame asks for; what it "
        "found is kept until a quota changes, and only the first look of a client after that walks the eight levels.",
        "* Addresses are with as many connection rates, half of them of blocks; a new one's text is read first.",
    ]
    if document["topic"]:
        lines += [
            "",
            "## In a topic, three brokers and two gateways' stores on the same two cores",
            "",
            "| quotas | all set at once | read by another | alter p50 / p99 / max | in force in both |",
            "|---|---|---|---|---|",
        ]
    for row in document["topic"]:
        alter, both = row["alter_ms"], row["everywhere_ms"]
        lines.append(
            f"| {row['entities']:,} | {row['fill_s']} s | {row['read_s']} s "
            f"| {alter['p50']} / {alter['p99']} / {alter['max']} ms "
            f"| {both['p50']} / {both['p99']} / {both['max']} ms |"
        )
    return "\n".join(lines) + "\n"


def _median(row: dict[str, Any], what: str) -> str:
    wall, cpu = (statistics.median(row[f"{what}{kind}"]) for kind in ("_s", "_cpu_s"))
    return f"{wall:.2f} s, CPU {cpu:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
