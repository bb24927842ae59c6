"""What a connection kept is let go of at its end without the garbage collector, whatever ended it."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.runtime import collector
from gateway.session.session import ClientSession
from protocol.api_keys import ApiKey
from testkit.broker import ScriptedBroker, silence
from testkit.frames import fetch
from testkit.gateway import running_gateway
from testkit.raw_client import until


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _kept_by(session: ClientSession) -> weakref.ref[Any]:
    """What lives as long as the session, which has no place for weak references itself."""

    def begins_now(_: int) -> bool:
        return True

    session.begins_now = begins_now
    return weakref.ref(begins_now)


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("how", ["closes", "resets", "sends junk", "leaves while connecting", "broker refuses"])
async def test_f16_an_ended_connection_leaves_nothing_to_the_collector(how: str) -> None:
    async with ScriptedBroker() as broker, running_gateway(broker.port) as running:
        await running.discovered()
        if how == "broker refuses":
            await broker.stop()
        async with await running.connect() as client:
            await until(lambda: running.channels)
            left = _kept_by(running.channels[0].session)
            await client.send(b"\xff" * 40 if how == "sends junk" else fetch(1))
            if how in ("closes", "resets"):
                await client.receive_frame()
            if how == "resets":
                client.reset()
            if how in ("closes", "leaves while connecting"):
                client.close()
            await until(lambda: left() is None)


@pytest.mark.slow
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("answered", [True, False])
async def test_an_ended_connection_with_a_byte_rate_leaves_nothing_to_the_collector(answered: bool) -> None:
    quotas = [{"client_id": "tests", "consumer_byte_rate": 1_000_000}]
    async with ScriptedBroker() as broker, running_gateway(broker.port, quotas=quotas) as running:
        await running.discovered()
        if not answered:
            broker.script(ApiKey.FETCH, silence)
        async with await running.connect() as client:
            await until(lambda: running.channels)
            left = _kept_by(running.channels[0].session)
            await client.send(fetch(1))
            if answered:
                await client.receive_frame()
            else:
                await until(lambda: any(each.requests for each in broker.client_connections))
            client.reset()
            await until(lambda: left() is None)


@pytest.mark.slow
def test_full_collections_pass_over_what_survived_an_earlier_one() -> None:
    collector.freeze_survivors()  # tests/conftest.py takes that back
    kept = [[at] for at in range(20_000)]
    gc.collect()
    assert len(gc.get_objects()) < len(kept) / 10
