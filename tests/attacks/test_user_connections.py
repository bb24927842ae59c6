"""One user that connects from everywhere, too fast, or only to leave again. The sockets are real."""

from __future__ import annotations

import asyncio

import pytest

from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from testkit.crowd import connect, connect_all, is_served
from testkit.gateway import RunningGateway, broker_and_gateway
from testkit.raw_client import until
from tests.attacks.test_fairness import HONEST

pytestmark = pytest.mark.asyncio


def users(running: RunningGateway) -> dict[str, int]:
    return dict(running.gateway.user_connections.by_user)


def waiting(running: RunningGateway) -> int:
    return sum(bool(each.session.muted & MuteReason.AWAITING_TURN) for each in running.channels)


@pytest.mark.slow
async def test_a_user_that_connects_from_200_addresses_has_its_count_once() -> None:
    async with broker_and_gateway(quotas=[{"default_user": True, "connection_count": 20}]) as (broker, running):
        clients = await asyncio.gather(*(connect(running.port, f"127.0.3.{each}") for each in range(1, 201)))
        await running.ended_by(CloseCause.USER_CONNECTION_COUNT, 180)
        assert users(running) == {"ANONYMOUS": 20}
        served = await asyncio.gather(*map(is_served, clients))
        assert sum(served) == 20
        # Of those that were refused the broker saw nothing.
        assert len(broker.client_connections) == 20
        for client, open_yet in zip(clients, served, strict=True):
            if open_yet:
                client.close()
        await until(lambda: not running.channels)
        assert await is_served(await connect(running.port, HONEST))


@pytest.mark.slow
async def test_a_storm_of_one_user_is_served_in_turn_and_no_client_is_refused() -> None:
    async with broker_and_gateway(quotas=[{"user": "ANONYMOUS", "connection_creation_rate": 40}]) as (_, running):
        clients = [each for at in range(1, 6) for each in await connect_all(running.port, 30, f"127.0.4.{at}")]
        await until(lambda: running.opened == 150)
        assert all(await asyncio.gather(*map(is_served, clients)))
        assert waiting(running) == 0
        assert running.closed(CloseCause.USER_CONNECTION_RATE) == 0


async def test_a_client_that_waits_is_not_read() -> None:
    async with broker_and_gateway(quotas=[{"user": "ANONYMOUS", "connection_creation_rate": 1}]) as (_, running):
        clients = await connect_all(running.port, 30)
        flood = asyncio.ensure_future(clients[-1].send(bytes(64 * 1024 * 1024)))
        await until(lambda: waiting(running) > 20)
        await until(lambda: not any(each._transport.is_reading() for each in running.channels if each.session.muted))
        last = running.channels[-1].session
        assert last.muted
        assert last.bytes_from_client < 1024 * 1024
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


@pytest.mark.slow
async def test_clients_that_leave_while_they_wait_use_up_no_rate() -> None:
    async with broker_and_gateway(quotas=[{"user": "ANONYMOUS", "connection_creation_rate": 1}]) as (_, running):
        for client in (await connect_all(running.port, 10, "127.0.5.2"))[3:]:
            client.close()
        # Their end is looked for before their turn is taken.
        await until(lambda: running.opened == 10 and len(running.channels) == 3)
        tracker = running.gateway.user_connections.rates.tracker("ANONYMOUS", "", now_ms=running.gateway._now_ms())
        assert tracker is not None
        assert tracker.recorded == 3


@pytest.mark.slow
async def test_a_user_that_connects_and_leaves_at_once_keeps_no_place_and_no_turn() -> None:
    async with broker_and_gateway(
        quotas=[{"user": "ANONYMOUS", "connection_creation_rate": 4}], connections={"max_held": 40}
    ) as (_, running):
        for _ in range(10):
            for client in await connect_all(running.port, 30, "127.0.5.1"):
                client.close()
        await until(lambda: running.opened == 300 and not running.channels)
        assert users(running) == {}
        assert running.gateway.user_connections.held == 0
        assert await is_served(await connect(running.port, HONEST))
