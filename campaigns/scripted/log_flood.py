"""``python -m campaigns.scripted.log_flood``: connections that send no Kafka, and what the log says of them.

Every bad connection is worth one line. A line that is left out must be in the count that a later line carries.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from testkit.broker import ScriptedBroker
from testkit.gateway import gateway_process
from testkit.raw_client import HOST

GOAL_LINES_PER_S: Final = 20
_JUNK: Final = b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"
_SECOND: Final = re.compile(r"time=\"?(\S{19})")
_SUPPRESSED: Final = re.compile(r"suppressed=(\d+)")
_EVENT: Final = re.compile(r"event=(\S+)")


def flood(port: int, seconds: float) -> int:
    """Connect, send junk and wait for the end, one connection after the other; how many."""
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
    """The most lines of one event within a second of their own clock."""
    seconds = Counter(
        found[1] for line in lines if f"event={event}" in line and (found := _SECOND.search(line))
    )
    return max(seconds.values(), default=0)


def accounted(lines: list[str], event: str) -> int:
    """Lines of an event, and those that they say were left out."""
    # The line at the end that names what was left out since the last line counts those alone.
    written = [line for line in lines if (found := _EVENT.search(line)) and found[1] == event]
    left_out = [int(found) for line in lines if event in line for found in _SUPPRESSED.findall(line)]
    return len(written) + sum(left_out)


async def run(seconds: float) -> tuple[int, list[str], float]:
    """The flood; how many connections were bad, the whole log, and the CPU seconds of the gateway."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedBroker() as broker, gateway_process(Path(folder), broker.port) as gateway:
            log = gateway.process.stderr
            assert log is not None
            loop = asyncio.get_running_loop()

            async def read() -> None:
                while line := await log.readline():
                    lines.append(line.decode())

            reading = asyncio.create_task(read())
            before_s = gateway.cpu_s()
            with ThreadPoolExecutor(4) as threads:
                floods = [loop.run_in_executor(threads, flood, gateway.port, seconds) for _ in range(4)]
                count = sum(await asyncio.gather(*floods))
            cpu_s = gateway.cpu_s() - before_s
            gateway.signal(signal.SIGTERM)
            await gateway.process.wait()
            await reading
    return count, lines, cpu_s


def main() -> int:
    """Run it; 1 when the log had too many lines or did not count all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    count, lines, cpu_s = asyncio.run(run(parser.parse_args().seconds))
    events = Counter(found[1] for line in lines if (found := _EVENT.search(line)))
    event = max(events, key=lambda name: accounted(lines, name))
    most, said = busiest_second(lines, event), accounted(lines, event)
    print(dict(events))
    print(
        f"**{count:,} bad connections: {events[event]} lines, at most {most} in a second, "
        f"{count - said} not counted; {cpu_s * 1000 / count:.2f} ms of CPU each**"
    )
    return int(most > GOAL_LINES_PER_S or said != count)


if __name__ == "__main__":
    sys.exit(main())
