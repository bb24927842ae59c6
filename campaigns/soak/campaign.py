"""Runs faults for a given time, and measures the gateway each minute.

In each minute all faults come once, in a new order. Then the gateway serves only its four steady clients for some
seconds. The campaign then reads its resident memory, descriptors, tasks of its loop, and counts of connections.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from campaigns.soak import counted_gateway
from campaigns.soak.faults import QUOTAS, Stage, act, minute_of
from testkit.broker import ScriptedBroker
from testkit.faults.schedule import Schedule, rounds_of
from testkit.frames import produce
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, Ended, RawClient

_CYCLE_S: Final = 60.0
_QUIET_S: Final = 8.0
_STEADY: Final = 4
_PAUSE_S: Final = 0.02
_RETRY_S: Final = 0.1
_WARM: Final = 6
"""The first 1/6 of the readings is the warm-up and not in the slope: tables and heaps grow to their size."""

_SERIES: Final = re.compile(
    r"^gateway_connections_(opened|closed|active)(?:_total)?\{[^}]*\} (\S+)$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A gateway at the end of a minute.

    Attributes:
        at_s: seconds since the begin.
        rss_bytes: resident memory.
        descriptors: open descriptors.
        tasks: tasks of its loop.
        opened, closed, active: its own counts of connections.
    """

    at_s: float
    rss_bytes: int
    descriptors: int
    tasks: int
    opened: int
    closed: int
    active: int


@dataclass(slots=True)
class Steady:
    """Counts of the steady clients.

    Attributes:
        answered: answered requests.
        ended: connections that a fault ended.
        wrong: answers that did not belong to their request.
    """

    answered: int = 0
    ended: int = 0
    wrong: int = 0


async def ask_until(done: asyncio.Event, port: int, name: str, count: Steady) -> None:
    """Run one steady client: one request after the other, on a new connection after each fault."""
    number = 0
    while not done.is_set():
        try:
            async with await RawClient.connect(port) as client:
                while not done.is_set():
                    number += 1
                    await client.send(produce(number, size=100, client_id=name))
                    reply = await client.receive_frame()
                    count.answered += 1
                    count.wrong += int.from_bytes(reply[4:8]) != number
                    await asyncio.sleep(_PAUSE_S)
        except (Ended, OSError, TimeoutError):
            count.ended += 1
            await asyncio.sleep(_RETRY_S)


def _number_in(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


async def read(gateway: GatewayProcess, tasks: Path, begun_s: float) -> Reading:
    """Measure the gateway now."""
    url = f"http://{HOST}:{gateway.admin_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as found:
        text = await found.text()
    counts = dict.fromkeys(("opened", "closed", "active"), 0)
    for name, value in _SERIES.findall(text):
        counts[name] += int(float(value))
    # Until then the scrape's own connection is counted.
    await asyncio.sleep(1)
    return Reading(
        round(time.monotonic() - begun_s, 1),
        gateway.rss_bytes(),
        gateway.open_files(),
        _number_in(tasks),
        **counts,
    )


async def soak(
    minutes: float, seed: int, schedule: Schedule | None = None, cycle_s: float = _CYCLE_S
) -> tuple[list[Reading], Steady, list[str]]:
    """Run it; a reading of each minute, the counts of the steady clients, and log lines of errors.

    Args:
        minutes: no new minute begins after this time.
        seed: seed of the drawn faults, and of random choices within a fault.
        schedule: a schedule whose rounds are the minutes, instead of drawn ones.
        cycle_s: length of a minute.
    """
    rounds = rounds_of(
        schedule, lambda number: minute_of(seed, number), range(math.ceil(minutes * 60 / cycle_s))
    )
    readings: list[Reading] = []
    count, errors = Steady(), []
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        tasks = folder / "tasks"
        os.environ["TASKS"] = str(tasks)
        async with (
            ScriptedBroker() as broker,
            gateway_process(
                folder,
                broker.port,
                prefix=(sys.executable,),
                program=Path(counted_gateway.__file__),
                tables=QUOTAS.format(folder=folder),
            ) as gateway,
        ):
            log = gateway.process.stderr
            assert log is not None

            async def follow() -> None:
                while line := await log.readline():
                    if b"level=error" in line or b"Traceback" in line:
                        errors.append(line.decode().strip())

            following = asyncio.create_task(follow())
            done = asyncio.Event()
            steady = [
                asyncio.create_task(ask_until(done, gateway.port, f"steady-{at}", count))
                for at in range(_STEADY)
            ]
            begun_s = time.monotonic()
            for number, faults in rounds:
                if (at_s := time.monotonic() - begun_s) >= minutes * 60:
                    break
                before = len(errors)
                stage = Stage(gateway, broker, folder / "gateway.toml", random.Random(f"{seed}/{number}"))
                for fault in faults:
                    try:
                        await act(stage, fault)
                    except (Ended, OSError, TimeoutError, aiohttp.ClientError) as exc:
                        errors.append(f"{fault.what}: {exc!r}")
                await asyncio.sleep(max(_QUIET_S, at_s + cycle_s - (time.monotonic() - begun_s)))
                readings.append(await read(gateway, tasks, begun_s))
                print(readings[-1], len(errors), flush=True)
                if len(errors) > before:
                    print(Schedule(seed, {number: faults}), end="", flush=True)
                # The scripted broker keeps each request, which is meant for tests of seconds.
                broker.connections[:] = [each for each in broker.connections if not each.ended.is_set()]
                for connection in broker.connections:
                    connection.requests.clear()
            done.set()
            await asyncio.gather(*steady)
            gateway.process.terminate()
            await gateway.process.wait()
            await following
    return readings, count, errors


def slope_mib(readings: Sequence[Reading]) -> float:
    """Growth of memory in ten minutes, by a line through the readings after the warm-up."""
    rest = readings[len(readings) // _WARM :]
    if len(rest) < 2:
        return float("nan")
    fit = statistics.linear_regression([each.at_s for each in rest], [each.rss_bytes for each in rest])
    return fit.slope * 600 / 2**20


def summarize(readings: Sequence[Reading]) -> dict[str, float]:
    """Figures of the row R35, which compare the first reading after the warm-up with the last one."""
    first, last = readings[len(readings) // _WARM], readings[-1]
    return {
        "rss_mib_in_10_minutes": slope_mib(readings),
        "rss_mib_first": first.rss_bytes / 2**20,
        "rss_mib_last": last.rss_bytes / 2**20,
        "descriptors_more": last.descriptors - first.descriptors,
        "tasks_more": last.tasks - first.tasks,
        "connections_not_accounted": sum(abs(each.opened - each.closed - each.active) for each in readings),
        "opened": last.opened,
    }
