"""Hazards G02, G12, G16 of the quota API on real sockets: a store that hangs, a drain, very many quotas."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from config import Config
from config.sections.quota_admin import Authorize, QuotaAdminSettings
from gateway.quota_admin.store.interface import Alteration
from gateway.server.reload import plan
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import QuotaChange
from testkit import wire
from testkit.broker import ScriptedBroker
from testkit.frames import heartbeat
from testkit.gateway import RunningGateway, free_ports, gateway_config, running_gateway
from testkit.quota_frames import alter, describe, entry
from testkit.raw_client import RawClient, until

RATE = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")
SET_ALICE = alter(entry({"user": "alice"}, producer_byte_rate=5.0))


def anyone(config: Config) -> Config:
    return config.model_copy(update={"quota_admin": QuotaAdminSettings(authorize=Authorize.ANYONE)})


@asynccontextmanager
async def administered(*bootstrap: int) -> AsyncIterator[RunningGateway]:
    """A gateway whose clients may all change quotas."""
    async with running_gateway(config=anyone(gateway_config(bootstrap))) as running:
        yield running


@asynccontextmanager
async def one_client() -> AsyncIterator[tuple[RunningGateway, RawClient]]:
    """The same with its upstream, and a client of it."""
    async with ScriptedBroker() as broker, administered(broker.port) as running, await running.connect() as client:
        yield running, client


class HeldStore:
    """Holds alterations of a running gateway back until they are let go."""

    def __init__(self, running: RunningGateway) -> None:
        self._go = asyncio.Event()
        self.waiting = 0
        store = running.gateway.live_quotas.store
        self._write = store.write
        store.write = self._held  # type: ignore[method-assign]

    async def _held(self, alteration: Alteration) -> int:
        self.waiting += 1
        await self._go.wait()
        return await self._write(alteration)

    def let_go(self) -> None:
        self._go.set()


def codes(frame: bytes) -> list[int]:
    return [each.error_code for each in wire.decode_response("AlterClientQuotas", 1, frame).entries]


async def test_g16_quotas_are_changed_and_listed_while_the_upstream_is_down() -> None:
    async with administered(free_ports(1)) as running, await running.connect() as client:
        await client.send(SET_ALICE + describe())
        assert codes(await client.receive_frame()) == [0]
        body = wire.decode_response("DescribeClientQuotas", 1, await client.receive_frame())
        assert [value.value for entry in body.entries for value in entry.values] == [5.0]
        assert "not reached" in str(running.gateway.why_not_ready())


async def test_g16_an_alteration_under_way_holds_a_drain_up_and_is_answered() -> None:
    async with ScriptedBroker() as broker, administered(broker.port) as running:
        held = HeldStore(running)
        async with await running.connect() as client:
            await client.send(SET_ALICE)
            await until(lambda: held.waiting)
            draining = asyncio.create_task(running.gateway.drain(hurry=asyncio.Event()))
            await asyncio.sleep(0.05)
            assert not draining.done()
            held.let_go()
            assert codes(await client.receive_frame()) == [0]
            await draining


async def test_g16_an_alteration_that_comes_during_a_drain_is_refused_with_its_reason() -> None:
    async with one_client() as (running, client):
        # Received before the drain and looked at during it: the store is notified first.
        running.gateway.live_quotas.drain()
        await client.send(SET_ALICE)
        body = wire.decode_response("AlterClientQuotas", 1, await client.receive_frame())
        assert [(each.error_code, each.error_message) for each in body.entries] == [
            (56, "the gateway is shutting down")
        ]


async def test_g02_a_store_that_hangs_holds_up_nobody_but_who_asked() -> None:
    async with ScriptedBroker() as broker, administered(broker.port) as running:
        held = HeldStore(running)
        async with await running.connect() as asking, await running.connect() as other:
            await asking.send(SET_ALICE + heartbeat(7))
            await until(lambda: held.waiting)
            assert await asking.silent_for(0.1)
            await other.send(heartbeat(8))
            assert wire.correlation_id_of(await other.receive_frame()) == 8
            held.let_go()
            assert codes(await asking.receive_frame()) == [0]
            assert wire.correlation_id_of(await asking.receive_frame()) == 7


@pytest.mark.slow
async def test_g02_what_a_client_that_leaves_has_sent_ahead_goes_with_it() -> None:
    async with ScriptedBroker() as broker, administered(broker.port) as running:
        held = HeldStore(running)
        async with await running.connect() as client:
            await client.send(SET_ALICE + alter(entry({"user": "bob"}, producer_byte_rate=5.0)))
            await until(lambda: held.waiting)
            client.reset()
        await until(lambda: not running.channels)
        held.let_go()
        await running.gateway.alterations.finish()
        assert [entity for entity, _, _ in running.gateway.limits.items()] == [ALICE]
        assert held.waiting == 1


@pytest.mark.slow
async def test_g12_a_list_of_many_quotas_holds_up_nobody() -> None:
    async with ScriptedBroker() as broker, administered(broker.port) as running:
        many = [QuotaChange(QuotaEntity(user=f"user-{at}"), RATE, 5.0) for at in range(30_000)]
        running.gateway.live_quotas.quotas.apply(many)
        async with await running.connect() as asking, await running.connect() as other:
            await asking.send(describe(("user", 2, None)))
            listing = asyncio.create_task(asking.receive_frame())
            longest_ms, asked = 0.0, 0
            while not listing.done():
                began = time.perf_counter()
                await exchange(other)
                longest_ms = max(longest_ms, (time.perf_counter() - began) * 1000)
                asked += 1
            body: Any = wire.decode_response("DescribeClientQuotas", 1, await listing)
            assert len(body.entries) == 30_000
            # Two in a row would mean that the list was made in one piece; how long it takes depends on the machine.
            assert asked > 10, f"{asked} answers, the slowest after {longest_ms:.0f} ms"


async def test_g12_thousands_of_lists_sent_together_let_others_have_their_turn() -> None:
    """After the last step of a frame its connection had the next turn, too, until its last frame."""
    count, quotas = 1_000, [QuotaChange(QuotaEntity(user=f"user-{at}"), RATE, 5.0) for at in range(100)]
    async with ScriptedBroker() as broker, administered(broker.port) as running:
        running.gateway.live_quotas.quotas.apply(quotas)
        async with await running.connect() as greedy, await running.connect() as other:
            answered = 0

            async def read_all() -> None:
                nonlocal answered
                for _ in range(count):
                    await greedy.receive_frame()
                    answered += 1

            await greedy.send(describe(("user", 2, None)) * count)
            reading = asyncio.create_task(read_all())
            await until(lambda: answered)
            await other.send(describe(("user", 2, None)))
            await other.receive_frame()
            assert answered < count / 2
            reading.cancel()


async def exchange(client: RawClient) -> None:
    await client.send(heartbeat(9))
    assert wire.correlation_id_of(await client.receive_frame()) == 9


async def test_a_brokers_connection_limit_is_the_gateways_from_the_answer_on() -> None:
    async with one_client() as (running, client):
        config = {"name": "max.connections.per.ip", "config_operation": 0, "value": "1"}
        row = {"resource_type": 4, "resource_name": "1", "configs": [config]}
        await client.send(wire.request("IncrementalAlterConfigs", 1, resources=[row], validate_only=False))
        (result,) = wire.decode_response("IncrementalAlterConfigs", 1, await client.receive_frame()).responses
        assert result.error_code == 0
        assert running.gateway.connections.configured.max_connections_per_ip == 1
        async with await running.connect() as second:
            assert await second.receive_rest() == b""
        wanted = running.gateway.operations.config
        lower = wanted.connections.model_copy(update={"max_connections": 50})
        running.gateway.settings.apply(plan(wanted, wanted.model_copy(update={"connections": lower})))
        assert running.gateway.connections.configured.max_connections == 50
        assert running.gateway.connections.configured.max_connections_per_ip == 1, "wins over the file"
