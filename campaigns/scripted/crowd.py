"""``python -m campaigns.scripted.crowd``: a million client ids, then a million addresses; memory, series, scrapes.

Every client id produces once, under a default quota for client ids. Before them a client gets a debt that lasts for
hours, and after them it must still wait. The addresses are in the loopback network, and each makes one connection.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from testkit.broker import PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import produce, produce_reply
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, until

GOAL_MIB: Final = 200
GOAL_SERIES: Final = 10_000
GOAL_SCRAPE_MS: Final = 250
_AT_ONCE: Final = 500
_THREADS: Final = 4
_NAME: Final = "c0000000"
_SILENT_S: Final = 2.0
_QUOTAS: Final = """
[[quotas]]
default_client_id = true
producer_byte_rate = 1_000_000_000
[[quotas]]
default_ip = true
connection_creation_rate = 1_000_000
[[quotas]]
client_id = "debtor"
producer_byte_rate = 100
"""


@dataclass(frozen=True, slots=True)
class Found:
    """Cost of the crowd.

    Attributes:
        mib: largest growth of resident memory.
        series: number of series in the longest scrape.
        scrape_ms: largest CPU time of a scrape.
        debtor_waits: whether the client with the debt still waited at the end.
    """

    mib: float
    series: int
    scrape_ms: float
    debtor_waits: bool


def answer(connection: BrokerConnection, request: Request) -> None:
    """A reply with a field for the throttle time."""
    connection.send(produce_reply(request.correlation_id))


async def produce_under_names(gateway: GatewayProcess, broker: ScriptedBroker, count: int) -> None:
    """One Produce without acknowledgement for each name, all on one connection."""
    template = produce(1, acks=0, size=10, client_id=_NAME)
    at = template.index(_NAME.encode())
    head, rest = template[:at], template[at + len(_NAME) :]
    before = sum(connection.received_bytes for connection in broker.connections)
    async with await gateway.connect() as client:
        for first in range(0, count, _AT_ONCE):
            names = range(first, min(first + _AT_ONCE, count))
            await client.send(b"".join(head + b"c%07d" % name + rest for name in names))
        wanted = before + count * len(template)
        await until(
            lambda: sum(connection.received_bytes for connection in broker.connections) >= wanted, seconds=600
        )


def connect_from(port: int, numbers: range) -> None:
    """Open one connection from each of these addresses and close it at once."""
    for number in numbers:
        source = f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"
        with socket.create_connection((HOST, port), timeout=60, source_address=(source, 0)) as client:
            client.shutdown(socket.SHUT_WR)
            client.recv(1)


async def scrape(gateway: GatewayProcess) -> tuple[int, float]:
    """The number of series, and the CPU milliseconds that one scrape takes: the mean of ten."""
    before_s = gateway.cpu_s()
    async with aiohttp.ClientSession() as session:
        for _ in range(10):
            async with session.get(f"http://{HOST}:{gateway.admin_port}/metrics") as answer:
                text = await answer.text()
    cost_ms = (gateway.cpu_s() - before_s) * 100
    return sum(bool(line) and not line.startswith("#") for line in text.splitlines()), cost_ms


async def waits(gateway: GatewayProcess) -> bool:
    """Whether a new connection of the client with the debt gets no answer for a while."""
    async with await gateway.connect() as client:
        await client.send(produce(2, size=10, client_id="debtor"))
        return await client.silent_for(_SILENT_S)


async def campaign(names: int, addresses: int) -> Found:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ScriptedBroker() as broker,
            gateway_process(Path(folder), broker.port, tables=_QUOTAS) as gateway,
        ):
            broker.script(PRODUCE, answer)
            async with await gateway.connect() as client:
                await client.send(produce(1, size=1_000_000, client_id="debtor"))
                await client.receive_frame()
            async with await gateway.connect() as client:
                await client.send(produce(1, size=10, client_id="first"))
                await client.receive_frame()
            found = [await scrape(gateway)]
            before = gateway.rss_bytes()
            broker.counts_only = True
            await produce_under_names(gateway, broker, names)
            broker.counts_only = False
            most = gateway.rss_bytes()
            found.append(await scrape(gateway))
            await asyncio.gather(
                *(
                    asyncio.to_thread(connect_from, gateway.port, range(first, addresses, _THREADS))
                    for first in range(_THREADS)
                )
            )
            most = max(most, gateway.rss_bytes())
            found.append(await scrape(gateway))
            return Found(
                (max(most, gateway.rss_bytes()) - before) / 2**20,
                max(series for series, _ in found),
                max(cost_ms for _, cost_ms in found),
                await waits(gateway),
            )


def main() -> int:
    """Run it; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", type=int, default=1_000_000)
    parser.add_argument("--addresses", type=int, default=1_000_000)
    options = parser.parse_args()
    found = asyncio.run(campaign(options.names, options.addresses))
    print(
        f"**{options.names:,} client ids and {options.addresses:,} addresses: {found.mib:.1f} MiB more, "
        f"{found.series:,} series, {found.scrape_ms:.0f} ms of CPU for a scrape; "
        f"debts forgiven: {int(not found.debtor_waits)}**"
    )
    return int(
        found.mib > GOAL_MIB
        or found.series > GOAL_SERIES
        or found.scrape_ms > GOAL_SCRAPE_MS
        or not found.debtor_waits
    )


if __name__ == "__main__":
    sys.exit(main())
