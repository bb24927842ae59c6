"""``python -m campaigns.scripted.moving_brokers``: brokers are added, moved and removed; checks where requests go.

After each change a client asks for Metadata through the gateway. After the answer, the port of each broker in it must
lead to that broker. Each broker counts the requests for another broker.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from testkit import wire
from testkit.broker import FETCH, Node, ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, RawClient

GOAL_S: Final = 1.0
SEED: Final = 18


async def advertised(gateway: GatewayProcess) -> dict[int, int]:
    """The brokers in a new client's Metadata: their ids and ports."""
    async with await gateway.connect() as client:
        await client.send(wire.request("Metadata", 4, topics=[]))
        body = wire.decode_response("Metadata", 4, await client.receive_frame())
    return {broker.node_id: broker.port for broker in body.brokers}


async def served(port: int, name: str) -> None:
    """Send a request on a new connection and wait for its answer."""
    async with await RawClient.connect(port) as client:
        await client.send(fetch(client_id=name))
        await client.receive_frame()


async def campaign(changes: int) -> tuple[int, float, int]:
    """Make random changes; the number of served requests, their longest time, and the number at a wrong broker."""
    dice = random.Random(SEED)
    requests, longest_s = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            brokers = [await stack.enter_async_context(ScriptedBroker()) for _ in range(6)]
            seed, *pool = brokers
            where: dict[int, ScriptedBroker] = {0: seed}
            seed.nodes = [Node(0, HOST, seed.port)]
            gateway = await stack.enter_async_context(gateway_process(Path(folder), seed.port))
            meant: dict[str, ScriptedBroker] = {}
            for change in range(changes):
                # Each change and broker has its own client name, so requests cannot be confused.
                where = {0: seed} | dict(zip((1, 2, 3), dice.sample(pool, dice.randint(1, 3)), strict=False))
                nodes = [Node(node_id, HOST, broker.port) for node_id, broker in where.items()]
                for broker in brokers:
                    broker.nodes = nodes
                begun_s = time.monotonic()
                ports = await advertised(gateway)
                assert ports.keys() == where.keys()
                for node_id, port in ports.items():
                    meant[f"{change}-{node_id}"] = where[node_id]
                    await served(port, f"{change}-{node_id}")
                    requests += 1
                longest_s = max(longest_s, time.monotonic() - begun_s)
            wrong = sum(
                meant[request.client_id] is not broker
                for broker in brokers
                for connection in broker.client_connections
                for request in connection.requests
                if request.api_key == FETCH
            )
    return requests, longest_s, wrong


def main() -> int:
    """Run it; 1 when a broker was reached too late or a request reached another one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=500)
    changes = parser.parse_args().changes
    requests, longest_s, wrong = asyncio.run(campaign(changes))
    print(
        f"**{changes} changes, {requests:,} requests: all brokers reached at most {longest_s:.3f} s after a change, "
        f"{wrong} at a wrong broker**"
    )
    return int(longest_s > GOAL_S or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
