"""Hundreds of clients and a broker misbehave at random: at the end nothing is left, and the counts add up."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path

import pytest

from gateway.observability.events import CloseCause
from testkit import broker as scripts
from testkit import wire
from testkit.broker import CREATE_TOPICS, EVERY_API, METADATA, PRODUCE, BrokerConnection, Request, ScriptedBroker
from testkit.frames import create_topics, fetch
from testkit.gateway import RunningGateway, broker_and_gateway, gateway_process
from testkit.raw_client import Ended, RawClient, until

CLIENTS = 300
AT_ONCE = 25
QUOTA = {"default_client_id": True, "controller_mutation_rate": 50.0}


def frames(dice: random.Random) -> list[bytes]:
    """Requests of all the ways that a frame can take."""
    topic = ("t", dice.randrange(40))
    made = []
    for number in range(dice.randrange(1, 12)):
        made.append(
            dice.choice(
                [
                    fetch(number),
                    wire.request("Metadata", 4, correlation_id=number, topics=[]),
                    wire.request("ApiVersions", 3, correlation_id=number),
                    wire.framed(wire.head(18, 99, flexible=True, correlation_id=number)),
                    wire.request("Produce", 3, correlation_id=number, acks=1, timeout_ms=1, topic_data=[]),
                    create_topics(number, topic, version=dice.choice([4, 7])),
                ]
            )
        )
    return made


def at_random(dice: random.Random) -> scripts.Script:
    """A broker that is honest most of the time."""
    evils = [
        scripts.close,
        scripts.reset,
        scripts.duplicate,
        scripts.ignore,
        scripts.wrong_correlation_id,
        scripts.truncate(dice.randrange(1, 30), with_reset=True),
        scripts.raw(b"\x00\x00\x00\x00"),
        scripts.huge(3_000_000),
    ]

    def script(connection: BrokerConnection, request: Request) -> None:
        act = scripts.answer if dice.random() < 0.9 else dice.choice(evils)
        act(connection, request)

    return script


async def misbehave(running: RunningGateway, dice: random.Random) -> None:
    """One client's life."""
    client = await running.connect()
    try:
        stream = b"".join(frames(dice))
        if dice.random() < 0.3:
            stream = stream[: dice.randrange(len(stream))]
        elif dice.random() < 0.2:  # not within a frame: its broker looks into all that it gets
            stream += dice.randbytes(40)
        await client.send(stream)
        for _ in range(dice.randrange(8)):
            async with asyncio.timeout(0.1):
                await client.receive_frame()
    except (Ended, OSError, TimeoutError):
        pass
    ending = dice.choice([client.close, client.reset, client.half_close])
    with contextlib.suppress(OSError):  # the gateway was faster
        ending()
    if ending == client.half_close:
        await client.silent_for(0.05)
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.integration)])
async def test_i16_counts_add_up_and_nothing_is_left_after_chaos(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.net.peer_close.INTERVAL_S", 0.1)
    dice = random.Random(seed)
    async with broker_and_gateway(quotas=[QUOTA], max_mute_ms=200) as (broker, running):
        broker.script(EVERY_API, at_random(dice))
        for api_key in (METADATA, PRODUCE, CREATE_TOPICS):
            broker.script(api_key, at_random(dice))
        await asyncio.sleep(0.05)
        open_files, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for _ in range(CLIENTS // AT_ONCE):
            await asyncio.gather(*(misbehave(running, dice) for _ in range(AT_ONCE)))
            running.check()
        # What is left waits for replies that this broker will never give, for clients that only closed one half.

        def all_ended() -> bool:
            for connection in broker.connections:  # some may still be on their way to it
                connection.abort()
            return not running.channels

        await until(all_ended)
        await until(lambda: all(connection.ended.is_set() for connection in broker.connections))
        assert running.opened == CLIENTS == sum(running.closed(cause) for cause in CloseCause)
        assert sum(running.closed(cause) > 0 for cause in CloseCause) >= 4, "chaos is meant to be varied"
        await until(lambda: len(os.listdir("/proc/self/fd")) <= open_files)
        assert len(asyncio.all_tasks()) <= tasks
        broker.script(EVERY_API, scripts.answer)
        async with await running.connect() as client:
            await client.send(fetch(7))
            assert wire.correlation_id_of(await client.receive_frame()) == 7


@pytest.mark.integration
async def test_a23_hostile_names_and_nonsense_leave_one_well_formed_log_line_for_each_event(tmp_path: Path) -> None:
    names = ["a\r\nevent=forged level=error", "\x1b[2J", "nul\0", 'quote"', "{0}%s", "\u2028"]
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port) as process:
        for name in names:
            for frame in (
                wire.request("CreateTopics", 4, client_id=name, topics=[], timeout_ms=1, validate_only=False)[:-1],
                wire.framed(wire.head(999, 0, flexible=False, client_id=name)),
                wire.framed(wire.head(19, 4, flexible=False, client_id=name) + b"\x7f\xff\xff\xff"),
                name.encode() * 10,
            ):
                async with await RawClient.connect(process.port) as client:
                    await client.send(frame)
                    await client.silent_for(0.02)
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    text = process.stderr.decode("ascii")
    assert text.isprintable() or all(line.isprintable() for line in text.split("\n"))
    lines = text.rstrip("\n").split("\n")
    assert len(lines) > len(names)
    assert [line for line in lines if not line.startswith(("event=", 'event="'))] == []
    assert "forged level" not in text.replace("\\nevent=forged level=error", "")
