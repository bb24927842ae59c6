"""A capacity that is divided, and a brake, where several processes serve: workers, and the next one of an upgrade."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from testkit.broker import PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import produce, produce_reply
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, PATIENCE_S, Ended, RawClient
from tests.gateway.server.test_upgrade_of_settings import upgrade

pytestmark = pytest.mark.slow

CAPACITY: Final = 400_000
GUARANTEE: Final = 200_000
FRAME_BYTES: Final = 20_000  # so few requests that a busy machine has the time for them
TABLES: Final = f"""
[capacity]
producer_byte_rate = {CAPACITY}
[[quotas]]
default_client_id = true
producer_byte_rate = {CAPACITY}
tier = 3
[[quotas]]
client_id = "guaranteed"
producer_byte_rate = {CAPACITY}
producer_byte_guarantee = {GUARANTEE}
tier = 0
"""


def answer(connection: BrokerConnection, request: Request) -> None:
    connection.send(produce_reply(request.correlation_id, version=request.api_version))


class Load:
    """Clients that produce as fast as they may, one request after the other, and connect again when they have to."""

    def __init__(self, port: int) -> None:
        self.passed: Counter[str] = Counter()
        self._port = port

    async def produce(self, client_id: str) -> None:
        """For ever, as one client."""
        while True:
            with contextlib.suppress(OSError, Ended):
                async with await RawClient.connect(self._port) as client:
                    while True:
                        await client.send(produce(1, size=FRAME_BYTES, client_id=client_id))
                        await client.receive_frame()
                        self.passed[client_id] += FRAME_BYTES
            await asyncio.sleep(0.05)

    async def rates(self, seconds: float) -> dict[str, float]:
        """Bytes per second of each client from now on."""
        before, began_s = Counter(self.passed), time.monotonic()
        await asyncio.sleep(seconds)
        passed = {name: self.passed[name] - before[name] for name in self.passed}
        return {name: count / (time.monotonic() - began_s) for name, count in passed.items()}

    async def until(self, wanted: Callable[[dict[str, float]], bool], *, seconds: float) -> None:
        """Wait until the rates over so many seconds are as wanted."""
        async with asyncio.timeout(PATIENCE_S):
            while not wanted(await self.rates(seconds)):
                pass


def at_least(rate: float) -> Callable[[dict[str, float]], bool]:
    """Of all clients together."""
    return lambda rates: sum(rates.values()) >= rate


@asynccontextmanager
async def loaded(folder: Path, *client_ids: str, tables: str = TABLES) -> AsyncIterator[tuple[GatewayProcess, Load]]:
    """A gateway with these clients, which use what they may have."""
    async with (
        ScriptedBroker() as broker,
        gateway_process(folder, broker.port, tables=tables, drain_timeout_ms=500) as gateway,
    ):
        broker.script(PRODUCE, answer)
        load = Load(gateway.port)
        tasks = [asyncio.create_task(load.produce(each)) for each in client_ids]
        try:
            # A brake leaves a part of the last five seconds' use, in which nothing may be left of the first burst.
            await load.until(lambda rates: 0.8 <= sum(rates.values()) / CAPACITY <= 1.1, seconds=5)
            yield gateway, load
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def brakes(admin_port: int, **brake: Any) -> list[int]:
    """The tiers with a brake, once this one is set."""
    method = "PUT" if brake else "GET"
    url = f"http://{HOST}:{admin_port}/shed"
    async with aiohttp.ClientSession() as session, session.request(method, url, json=brake or None) as answer:
        assert answer.status == 200
        return [each["tier"] for each in (await answer.json())["tiers"]]


async def until_limit_of_tier_3(gateway: GatewayProcess, *, braked: bool) -> float:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            limit = await gateway.metric("gateway_produce_byte_limit_of_tier", tier="3")
            if (limit > 0) == braked:
                return limit
            await asyncio.sleep(0.1)


async def test_a_brake_is_for_all_workers_together(tmp_path: Path) -> None:
    """Each worker has some of eight clients, and all keep a part of what they used together."""
    names = [f"app-{at}" for at in range(8)]
    tables = f"[server]\nworkers = 2\n{TABLES}"
    async with loaded(tmp_path, *names, tables=tables) as (gateway, load):
        assert await brakes(gateway.admin_port, tier=3, percent=20, seconds=600) == [3]
        left = await until_limit_of_tier_3(gateway, braked=True)
        assert left <= 0.25 * CAPACITY
        await asyncio.sleep(2)
        # If the machine had no time for the clients, what they could have used comes in one burst.
        await load.until(lambda rates: 0.6 * left <= sum(rates.values()) <= 1.3 * left, seconds=4)
        assert await brakes(gateway.admin_port, tier=3, percent=None, seconds=None) == []
        await until_limit_of_tier_3(gateway, braked=False)
        await load.until(at_least(0.8 * CAPACITY), seconds=3)


async def test_a_capacity_is_divided_through_an_upgrade_and_a_brake_ends_with_it(tmp_path: Path) -> None:
    async with loaded(tmp_path, "guaranteed", "borrower") as (gateway, load):
        assert await brakes(gateway.admin_port, tier=3, percent=20, seconds=600) == [3]
        await until_limit_of_tier_3(gateway, braked=True)
        code, text = await upgrade(gateway.admin_port)
        assert code == 0, text
        assert await brakes(gateway.admin_port) == []
        assert await gateway.metric("gateway_produce_byte_capacity") == CAPACITY
        # All of it is divided again: the guarantee and half of the rest, and the other half.
        await load.until(
            lambda rates: (
                rates["guaranteed"] >= 0.98 * GUARANTEE
                and rates["borrower"] == pytest.approx((CAPACITY - GUARANTEE) / 2, rel=0.2)
                and 0.85 * CAPACITY <= sum(rates.values()) <= 1.15 * CAPACITY
            ),
            seconds=5,
        )
        os.kill(int(text.split()[1]), signal.SIGTERM)
        assert await gateway.exit_code(seconds=PATIENCE_S) == 0
