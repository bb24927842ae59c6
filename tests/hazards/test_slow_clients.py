"""Many slow clients at once: each ends at its own deadline, and nobody else notices (hazard B04).

The campaign with 5,000 of them is `python -m benchmarks.connections.slowloris`.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.observability.events import CloseCause
from testkit.frames import heartbeat
from testkit.gateway import broker_and_gateway
from testkit.raw_client import RawClient

pytestmark = pytest.mark.asyncio

SLOW_CLIENTS = 200
DEADLINE_MS = 1_000


async def dribble(client: RawClient) -> float:
    """One byte of a request now and then, until the gateway ends it; returns the seconds that took."""
    began = time.monotonic()
    frame = heartbeat(1)
    for number in range(100):
        try:
            await client.send(frame[number : number + 1])
        except OSError:
            break
        if not await client.silent_for(0.2):
            break
    return time.monotonic() - began


async def test_b04_slow_clients_end_at_their_deadline_while_a_good_one_is_served() -> None:
    async with (
        broker_and_gateway(first_frame_timeout_ms=DEADLINE_MS, frame_timeout_ms=DEADLINE_MS) as (_, running),
        await running.connect() as good,
    ):
        slow = [await running.connect() for _ in range(SLOW_CLIENTS)]
        ends = [asyncio.create_task(dribble(client)) for client in slow]
        served = 0
        while not all(end.done() for end in ends):
            served += 1
            await good.send(heartbeat(served))
            await good.receive_frame()
        await running.ended_by(CloseCause.FIRST_FRAME_TIMEOUT, SLOW_CLIENTS)
        took = [end.result() for end in ends]
        # Bytes that keep coming prolong nothing: the deadline is that of the connection.
        assert max(took) <= DEADLINE_MS / 1000 + 1
        assert served > 20
        assert len(running.channels) == 1
        for client in slow:
            client.close()
