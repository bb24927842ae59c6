"""``python -m campaigns.scripted.dead_broker``: one broker of two is dead, and the other must serve its clients.

The dead broker is a port whose queue is full, so the kernel drops every SYN, or a port on which no program listens.
The scoreboard judges how long clients wait.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from campaigns.scripted.moving_brokers import advertised
from testkit.broker import Node, ScriptedBroker, blackhole
from testkit.frames import fetch
from testkit.gateway import GatewayProcess, free_ports, gateway_process
from testkit.raw_client import HOST, RawClient

_PAUSE_S: Final = 0.01


async def close_time_s(port: int) -> float:
    """How long a client of the dead broker waits until its connection is closed, without an answer."""
    async with await RawClient.connect(port) as client:
        begun_s = time.monotonic()
        await client.send(fetch())
        rest = await client.receive_rest()
        assert rest == b""
        return time.monotonic() - begun_s


async def ask_until(done: asyncio.Event, port: int) -> tuple[int, int]:
    """Send requests of one client to the living broker; how many were sent and answered."""
    sent = answered = 0
    async with await RawClient.connect(port) as client:
        while not done.is_set():
            sent += 1
            await client.send(fetch(sent))
            await client.receive_frame()
            answered += 1
            await asyncio.sleep(_PAUSE_S)
    return sent, answered


async def run(gateway: GatewayProcess, clients: int) -> tuple[list[float], int, int]:
    """Run clients of the dead broker at the same time, beside five clients of the living one."""
    done = asyncio.Event()
    ports = await advertised(gateway)
    alive = [asyncio.create_task(ask_until(done, ports[0])) for _ in range(5)]
    try:
        closed = await asyncio.gather(*(close_time_s(ports[1]) for _ in range(clients)))
    finally:
        done.set()
    counts = await asyncio.gather(*alive)
    return list(closed), sum(sent for sent, _ in counts), sum(answered for _, answered in counts)


async def campaign(clients: int) -> tuple[list[float], list[float], int, int]:
    """Close times for a broker that drops SYNs and for one that refuses, and requests to the living one."""
    closes, sent, answered = [], 0, 0
    with blackhole() as hole:
        for dead in (hole, free_ports(1)):
            with tempfile.TemporaryDirectory() as folder:
                async with ScriptedBroker() as broker:
                    broker.nodes = [Node(0, HOST, broker.port), Node(1, HOST, dead)]
                    async with gateway_process(Path(folder), broker.port) as gateway:
                        found = await run(gateway, clients)
            closes.append(found[0])
            sent, answered = sent + found[1], answered + found[2]
    return closes[0], closes[1], sent, answered


def main() -> int:
    """Run it; 1 when a client of the other broker had no answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=100)
    hole, refused, sent, answered = asyncio.run(campaign(parser.parse_args().clients))
    print(
        f"**{len(hole) + len(refused)} clients of dead brokers: closed after at most {max(hole):.2f} s "
        f"without an answer to the connect, {max(refused):.2f} s refused; {sent:,} requests to the living one, "
        f"{sent - answered} not answered**"
    )
    return int(sent != answered)


if __name__ == "__main__":
    sys.exit(main())
