"""The faults of a soak: actions of brokers, clients and operators, each for some seconds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from pathlib import Path
from typing import Final

import aiohttp

from testkit.broker import FETCH, PRODUCE, BrokerConnection, Request, ScriptedBroker, huge, ignore, truncate
from testkit.faults.effects import Stopped
from testkit.faults.schedule import Fault, Kind
from testkit.frames import fetch, produce, produce_reply
from testkit.gateway import GatewayProcess
from testkit.raw_client import HOST, Ended, RawClient

QUOTAS: Final = """
[quota_store]
data_dir = "{folder}/store"
max_history = 200
[usage]
kind = "files"
directory = "{folder}/usage"
rotate_seconds = 5
keep_bytes = 10_000_000
[[quotas]]
default_client_id = true
producer_byte_rate = 1_000_000
[[quotas]]
client_id = "debtor"
producer_byte_rate = 1_000
"""
_RATES: Final = ("producer_byte_rate = 1_000_000", "producer_byte_rate = 1_000_001")
_CLIENTS: Final = 20
_NAMES: Final = 200
_ANSWER_BYTES: Final = 2 << 20
_JUNK: Final = b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n"


class Stage:
    """The gateway process and its surroundings, on which faults act.

    Attributes:
        gateway: the process.
        broker: its only broker.
        config: the gateway's configuration file.
        dice: seeded random generator.
    """

    def __init__(
        self, gateway: GatewayProcess, broker: ScriptedBroker, config: Path, dice: random.Random
    ) -> None:
        self.gateway, self.broker, self.config, self.dice = gateway, broker, config, dice
        broker.script(PRODUCE, answer)

    def name(self) -> str:
        """One of a fixed number of client ids."""
        return f"client-{self.dice.randrange(_NAMES)}"


def answer(connection: BrokerConnection, request: Request) -> None:
    """A reply with a field for the throttle time."""
    connection.send(produce_reply(request.correlation_id))


async def broker_killed(stage: Stage, seconds: float) -> None:
    """The broker resets all connections, and accepts none for a while."""
    await stage.broker.stop()
    await asyncio.sleep(seconds)
    await stage.broker.start()


async def broker_silent(stage: Stage, seconds: float) -> None:
    """The broker reads and never answers, then resets its connections."""
    stage.broker.script(PRODUCE, ignore)
    await asyncio.sleep(seconds)
    for connection in stage.broker.connections:
        connection.abort()
    stage.broker.script(PRODUCE, answer)


async def answers_torn(stage: Stage) -> None:
    """The broker closes connections in the middle of answers."""
    stage.broker.script(FETCH, truncate(20, with_reset=stage.dice.random() < 0.5))
    await asyncio.gather(*(_ask_once(stage) for _ in range(_CLIENTS)))


async def answers_unread(stage: Stage) -> None:
    """Clients ask for large answers, do not read them, and leave."""
    stage.broker.script(FETCH, huge(_ANSWER_BYTES))
    await asyncio.gather(*(_never_read(stage) for _ in range(_CLIENTS)))


async def clients_leave(stage: Stage) -> None:
    """Clients disconnect in the middle of a request, with a FIN or a reset."""
    await asyncio.gather(*(_leave(stage) for _ in range(5 * _CLIENTS)))


async def throttled_leave(stage: Stage) -> None:
    """Clients disconnect while they are throttled."""
    for _ in range(3):
        client = await RawClient.connect(stage.gateway.port)
        with client.sock, contextlib.suppress(OSError, TimeoutError):
            await client.send(produce(1, size=20_000, client_id="debtor"))
            await client.send(produce(2, size=20_000, client_id="debtor"))
            await asyncio.sleep(stage.dice.uniform(0.1, 1))


async def junk(stage: Stage) -> None:
    """Connections that do not speak Kafka."""
    for _ in range(2 * _CLIENTS):
        async with await RawClient.connect(stage.gateway.port) as client:
            with contextlib.suppress(OSError):
                await client.send(_JUNK)
            await client.receive_rest()


async def storm(stage: Stage) -> None:
    """Clients connect and disconnect without sending a byte."""
    for _ in range(500):
        (await RawClient.connect(stage.gateway.port)).close()
        await asyncio.sleep(0.002)


async def reloads(stage: Stage) -> None:
    """An operator changes the file and sends SIGHUP."""
    for at in range(3):
        text = stage.config.read_text(encoding="utf-8")
        old, new = _RATES if _RATES[0] + "\n" in text else reversed(_RATES)
        stage.config.write_text(text.replace(old + "\n", new + "\n"), encoding="utf-8")
        stage.gateway.signal(signal.SIGHUP)
        await asyncio.sleep(0.5 + at / 10)


async def paused(stage: Stage, seconds: float) -> None:
    """The process is stopped for some seconds."""
    with Stopped([stage.gateway.process.pid]):
        await asyncio.sleep(seconds)


async def quotas_set(stage: Stage) -> None:
    """An operator imports quotas."""
    lines = "".join(
        json.dumps(
            {
                "entity": [{"type": "user", "name": f"user-{at}"}],
                "quota": "consumer_byte_rate",
                "limit": stage.dice.randrange(10**6, 10**9),
            }
        )
        + "\n"
        for at in range(_NAMES)
    )
    url = f"http://{HOST}:{stage.gateway.admin_port}/quotas/import?dry_run=false"
    headers = {"Content-Type": "application/x-ndjson"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=lines.encode(), headers=headers) as found,
    ):
        found.raise_for_status()


async def scraped(stage: Stage) -> None:
    """Forty scrapers, more than the admin port serves at a time; some disconnect before their answer."""
    url = f"http://{HOST}:{stage.gateway.admin_port}/metrics"

    async def scrape(timeout_s: float) -> None:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as found:
                await found.read()

    await asyncio.gather(*(scrape(stage.dice.choice((0.02, 10.0))) for _ in range(2 * _CLIENTS)))


_LASTING: Final = {"broker-kill": broker_killed, "broker-silent": broker_silent, "pause": paused}
_AT_ONCE: Final = {
    "answers-torn": answers_torn,
    "answers-unread": answers_unread,
    "clients-leave": clients_leave,
    "throttled-leave": throttled_leave,
    "junk": junk,
    "storm": storm,
    "reloads": reloads,
    "quotas-set": quotas_set,
    "scraped": scraped,
}
KINDS: Final = {
    kind.what: kind
    for kind in (
        Kind("broker-kill", for_ms=(2_000,)),
        Kind("broker-silent", for_ms=(3_000,)),
        Kind("pause", for_ms=range(500, 2_001)),
        *map(Kind, _AT_ONCE),
    )
}


def minute_of(seed: int, number: int) -> tuple[Fault, ...]:
    """All kinds of faults once, one after the other in random order."""
    dice = random.Random(f"{seed}-{number}")
    kinds = list(KINDS.values())
    dice.shuffle(kinds)
    return tuple(kind.draw(dice, (0,)) for kind in kinds)


async def act(stage: Stage, fault: Fault) -> None:
    """Play one fault until it is over."""
    if fault.what in _LASTING:
        await _LASTING[fault.what](stage, fault.for_ms / 1_000)
    else:
        await _AT_ONCE[fault.what](stage)


async def _ask_once(stage: Stage) -> None:
    async with await RawClient.connect(stage.gateway.port) as client:
        with contextlib.suppress(OSError):
            await client.send(fetch(client_id=stage.name()))
        await client.receive_rest()


async def _never_read(stage: Stage) -> None:
    async with await RawClient.connect(stage.gateway.port, receive_buffer_bytes=4_096) as client:
        with contextlib.suppress(OSError):
            await client.send(fetch(client_id=stage.name()))
        await asyncio.sleep(3)


async def _leave(stage: Stage) -> None:
    client = await RawClient.connect(stage.gateway.port)
    request = produce(1, size=1_000, client_id=stage.name())
    try:
        await client.send(request[: stage.dice.randrange(1, len(request) + 1)])
        await asyncio.sleep(stage.dice.uniform(0, 0.5))
    except (OSError, Ended):
        pass
    finally:
        if stage.dice.random() < 0.5:
            client.reset()
        else:
            client.close()
