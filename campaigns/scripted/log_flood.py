"""``python -m campaigns.scripted.log_flood``: floods of bad connections, and the log lines about them.

*junk*: connections that do not speak Kafka, one after the other in four threads. *refused*: connections from
addresses without allowed connections, 64 at a time, with the gateway on its own core. *log*: the gateway's log alone
with ten thousand lines a second, for machines that open fewer connections. Every bad connection stands for one line.
If the log omits the line, the count in a later line must include it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gateway.observability.logging_setup import flooded, report_suppressed, setup
from testkit.broker import ScriptedBroker
from testkit.gateway import gateway_process
from testkit.raw_client import HOST

GOAL_LINES_PER_S: Final = 20
GOAL_PER_S: Final = 10_000
_AT_ONCE: Final = 64
_BATCH: Final = 100
_BIND_ADDRESS_NO_PORT: Final = 24
"""IP_BIND_ADDRESS_NO_PORT of Linux, which Python's socket module lacks."""

_JUNK: Final = b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"
_SECOND: Final = re.compile(r"time=\"?(\S{19})")
_SUPPRESSED: Final = re.compile(r"suppressed=(\d+)")
_EVENT: Final = re.compile(r"event=(\S+)")


def flood(port: int, seconds: float) -> int:
    """Connect, send junk and wait for the end, one connection after the other; the number of connections."""
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        with socket.create_connection((HOST, port), timeout=60) as client:
            client.sendall(_JUNK)
            while client.recv(4_096):
                pass
        count += 1
    return count


def busiest_second(lines: list[str], event: str) -> int:
    """The most lines of one event in a second by their own timestamps."""
    seconds = Counter(
        found[1] for line in lines if f"event={event}" in line and (found := _SECOND.search(line))
    )
    return max(seconds.values(), default=0)


def accounted(lines: list[str], event: str) -> int:
    """The number of lines of an event, plus the omitted lines that they count."""
    # A summary line at the end may name the event, too. It counts omitted lines, but is no line of the event itself.
    written = [line for line in lines if (found := _EVENT.search(line)) and found[1] == event]
    left_out = [int(found) for line in lines if event in line for found in _SUPPRESSED.findall(line)]
    return len(written) + sum(left_out)


@dataclass(frozen=True, slots=True)
class Flood:
    """A flood and its log.

    Attributes:
        count: number of bad connections.
        seconds: duration of the flood.
        lines: the whole log.
    """

    count: int
    seconds: float
    lines: list[str]

    @property
    def event(self) -> str:
        """The event of the bad connections: the one with the most lines, including omitted ones."""
        events = {found[1] for line in self.lines if (found := _EVENT.search(line))}
        return max(events, key=lambda name: accounted(self.lines, name))

    @property
    def most(self) -> int:
        """The most lines of the event in a second."""
        return busiest_second(self.lines, self.event)

    @property
    def per_s(self) -> float:
        """Bad connections a second."""
        return self.count / self.seconds

    @property
    def not_counted(self) -> int:
        """Bad connections that have no line and are in no count."""
        return self.count - accounted(self.lines, self.event)


async def run(floods: Callable[[int], int], *, prefix: Sequence[str] = (), tables: str = "") -> Flood:
    """Run a flood against a gateway; the flood with the whole log.

    Args:
        floods: connects to a port; returns the number of bad connections.
        prefix: words to put before the gateway's command line.
        tables: additional tables of the gateway's configuration.
    """
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ScriptedBroker() as broker,
            gateway_process(Path(folder), broker.port, prefix=prefix, tables=tables) as gateway,
        ):
            log = gateway.process.stderr
            assert log is not None

            async def read() -> None:
                while line := await log.readline():
                    lines.append(line.decode())

            reading = asyncio.create_task(read())
            begun_s = time.monotonic()
            count = await asyncio.to_thread(floods, gateway.port)
            seconds = time.monotonic() - begun_s
            gateway.signal(signal.SIGTERM)
            await gateway.process.wait()
            await reading
    return Flood(count, seconds, lines)


def junk(port: int, seconds: float) -> int:
    """Send junk in four threads; the number of connections."""
    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(lambda _: flood(port, seconds), range(4)))


def refused(port: int, count: int, core: int) -> int:
    """Open connections from 250 addresses on one core, and wait for the end of each; the number of connections."""
    os.sched_setaffinity(0, {core})  # of this thread
    for first in range(0, count, _AT_ONCE):
        clients = []
        for number in range(first, first + _AT_ONCE):
            clients.append(client := socket.socket())
            client.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            client.bind((f"127.0.1.{1 + number % 250}", 0))
            client.connect((HOST, port))
        for client in clients:
            assert client.recv(1) == b""
            client.close()
    return first + _AT_ONCE


def log_alone(count: int) -> Flood:
    """Log ten thousand lines a second in this process."""
    output = io.StringIO()
    limiter = setup(stream=output)
    logger = structlog.get_logger()
    begun_s = time.monotonic()
    for number in range(count):
        if number % _BATCH == 0:
            time.sleep(max(0.0, begun_s + number / GOAL_PER_S - time.monotonic()))
        if not flooded("connection_refused"):
            logger.info("connection_refused", peer="127.0.0.1:1", cause="ip_count")
    seconds = time.monotonic() - begun_s
    report_suppressed(limiter)
    return Flood(count, seconds, output.getvalue().splitlines(keepends=True))


def main() -> int:
    """Run it; 1 when the log had too many lines or did not account for all connections."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--refused", type=int, default=200_000)
    parser.add_argument("--lines", type=int, default=150_000)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    found = {
        "junk": asyncio.run(run(lambda port: junk(port, options.seconds))),
        "refused": asyncio.run(
            run(
                lambda port: refused(port, options.refused, cores[0]),
                prefix=("taskset", "-c", str(cores[-1])),
                tables="[connections]\nmax_connections_per_ip = 0\n",
            )
        ),
        "log": log_alone(options.lines),
    }
    for name, each in found.items():
        print(
            f"{name}: {each.count:,} in {each.seconds:.1f} s, {each.most} lines in a second, "
            f"{each.not_counted} not counted"
        )
    most = max(each.most for each in found.values())
    not_counted = max((each.not_counted for each in found.values()), key=abs)
    count = found["junk"].count + found["refused"].count
    print(
        f"**{count:,} bad connections, at most {found['refused'].per_s:,.0f} a second, and in the log alone "
        f"{found['log'].per_s:,.0f} a second: at most {most} lines in a second, {not_counted} not counted**"
    )
    return int(most > GOAL_LINES_PER_S or not_counted != 0)


if __name__ == "__main__":
    sys.exit(main())
