"""Clients that use a new connection for each request, or hundreds at once: no more than the stated bound passes.

The bound is quota x (time + 2 windows) + one request, whatever the number of connections
(docs/reference/quota-semantics.md). A window is three samples of a second here, so that an attack takes seconds. What
passed is counted at the broker, or by what the attacker got.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pytest
from kafka.record.memory_records import MemoryRecordsBuilder

from embedded_kafka.kafka import KafkaCluster
from testkit import wire
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

QUOTA: Final = 20_000
WINDOW_S: Final = 3
BATCH_BYTES: Final = 8_000
ATTACK_S: Final = 5.0
LONGEST_S: Final = 30.0
"""Attacks continue until they have got enough to say something: on a busy machine answers come late."""

PATIENCE_S: Final = 2.0 * WINDOW_S
"""How long an attacker waits for an answer: within the window that it may have to wait for, it would get nothing."""


@dataclass(frozen=True)
class Attack:
    """One client id that attacks.

    Attributes:
        name: of the client, and of its topic.
        version: of its requests.
        connections: that many at once, each ended after its requests.
        requests: sent on each at once.
        acks: of Produce.
        piece_bytes: how much of the beginning is written at a time; 0: all at once.
    """

    name: str
    version: int
    connections: int = 1
    requests: int = 1
    acks: int = 1
    piece_bytes: int = 0


PRODUCERS: Final = (
    Attack("debt-produce-3", 3),
    Attack("debt-produce-9", 9, connections=20),
    Attack("debt-produce-crowd", 12, connections=60),
    Attack("debt-produce-acks0", 7, connections=20, acks=0),
    Attack("debt-produce-ahead", 8, connections=5, requests=20),
    Attack("debt-produce-pieces", 9, connections=5, piece_bytes=25),
)
FETCHERS: Final = (
    Attack("debt-fetch-4", 4),
    Attack("debt-fetch-11", 11, connections=20),
    Attack("debt-fetch-crowd", 12, connections=60),
    Attack("debt-fetch-ahead", 7, connections=5, requests=20),
    Attack("debt-fetch-pieces", 12, connections=5, piece_bytes=25),
)


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    tables = f"[client_quota]\nwindow_num = {WINDOW_S}\n"
    for key, attacks in (("producer_byte_rate", PRODUCERS), ("consumer_byte_rate", FETCHERS)):
        for attack in attacks:
            tables += f'[[quotas]]\nclient_id = "{attack.name}"\n{key} = {QUOTA}\n'
    return start_gateway(kafka, GatewayOptions(tables=tables))


def batch() -> bytes:
    """One record of `BATCH_BYTES`."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * BATCH_BYTES)
    builder.append(timestamp=None, key=None, value=bytes(BATCH_BYTES))
    builder.close()
    return bytes(builder.buffer())


def produce(attack: Attack) -> bytes:
    """A request of one batch."""
    partitions = [{"index": 0, "records": batch()}]
    return wire.request(
        "Produce",
        attack.version,
        client_id=attack.name,
        acks=attack.acks,
        timeout_ms=20_000,
        topic_data=[{"name": attack.name, "partition_data": partitions}],
    )


def fetch(attack: Attack) -> bytes:
    """A request for all there is."""
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    more: dict[str, Any] = {"session_id": 0, "session_epoch": -1} if attack.version >= 7 else {}
    return wire.request(
        "Fetch",
        attack.version,
        client_id=attack.name,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[{"topic": attack.name, "partitions": [partition]}],
        **more,
    )


async def once(address: tuple[str, int], attack: Attack, frame: bytes, got: list[int]) -> None:
    """One connection; adds the sizes of its replies to `got`."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        data = frame * attack.requests
        step = attack.piece_bytes
        for at in range(0, 4 * step, max(step, 1)):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(data[4 * step :])
        await writer.drain()
        for _ in range(attack.requests if attack.acks else 0):
            size = int.from_bytes(await reader.readexactly(4), "big")
            got.append(size + 4)
            await reader.readexactly(size)
    finally:
        writer.close()


async def go_on(address: tuple[str, int], attack: Attack, frame: bytes, until: float, enough: int) -> int:
    """Attack until then, and until it has got enough; returns the bytes of all replies with records."""
    got: list[int] = []
    latest = until + LONGEST_S

    def with_records() -> int:
        return sum(size for size in got if size > BATCH_BYTES)

    async def one_after_the_other() -> None:
        while (now := time.monotonic()) < until or (now < latest and with_records() < enough):
            with suppress(OSError, EOFError, TimeoutError):
                await asyncio.wait_for(once(address, attack, frame, got), PATIENCE_S)
            await asyncio.sleep(0.02)

    await asyncio.gather(*(one_after_the_other() for _ in range(attack.connections)))
    return with_records()


async def all_at_once(
    address: tuple[str, int], attacks: tuple[Attack, ...], frame_of: Callable[[Attack], bytes], *, enough: int = 0
) -> tuple[list[int], list[float]]:
    """Bytes that each got, and how long each request of an honest client beside them took, in seconds."""
    until = time.monotonic() + ATTACK_S
    honest = Attack("debt-honest", 9)
    took: list[float] = []

    async def behave() -> None:
        while time.monotonic() < until:
            before = time.monotonic()
            await asyncio.wait_for(once(address, honest, produce(honest), []), 60)
            took.append(time.monotonic() - before)
            await asyncio.sleep(0.05)

    running: list[Awaitable[int]] = [go_on(address, each, frame_of(each), until, enough) for each in attacks]
    task = asyncio.create_task(behave())
    received = await asyncio.gather(*running)
    await task
    return list(received), took


def create(broker: WireClient, names: list[str]) -> None:
    """Topics of one partition."""
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    broker.ask("CreateTopics", 4, topics=topics, timeout_ms=30_000, validate_only=False)
    eventually(lambda: min(stored(broker, name) for name in names) >= 0)


def stored(broker: WireClient, topic: str) -> int:
    """How many batches of one record the topic holds."""
    partition = {"partition_index": 0, "timestamp": -1}
    topics = [{"name": topic, "partitions": [partition]}]
    reply = broker.ask("ListOffsets", 3, replica_id=-1, isolation_level=0, topics=topics)
    return int(reply.body.topics[0].partitions[0].offset)


def has(broker: WireClient, topic: str, batches: int) -> bool:
    """Whether the topic holds so many."""
    return stored(broker, topic) == batches


def bound(seconds: float, largest: int) -> float:
    """The most that may have passed."""
    return QUOTA * (seconds + 2 * WINDOW_S) + largest


def test_k04_producers_that_connect_anew_for_each_request_keep_to_the_bound(
    gateway: GatewayProcess, kafka: KafkaCluster
) -> None:
    with WireClient(kafka.brokers[1]) as broker:
        create(broker, [attack.name for attack in PRODUCERS] + ["debt-honest"])
        before = {attack: stored(broker, attack.name) for attack in PRODUCERS}
        began = time.monotonic()
        _, took = asyncio.run(all_at_once(gateway.behind_tap(1), PRODUCERS, produce))
        size = len(produce(PRODUCERS[0])) - 4
        total = 0
        for attack in PRODUCERS:
            passed = (stored(broker, attack.name) - before[attack]) * size
            assert passed <= bound(time.monotonic() - began, size), attack
            total += passed
        assert total >= len(PRODUCERS) * QUOTA * WINDOW_S, "the attackers hardly tried"
        assert took, "no honest request was answered"


def test_k03_consumers_that_connect_anew_for_each_request_keep_to_the_bound(
    gateway: GatewayProcess, kafka: KafkaCluster
) -> None:
    with WireClient(kafka.brokers[1]) as broker:
        create(broker, [attack.name for attack in FETCHERS] + ["debt-honest"])
        for attack in FETCHERS:
            for _ in range(20 - stored(broker, attack.name)):
                broker.send_bytes(produce(Attack(attack.name, 9, acks=0)))
            eventually(partial(has, broker, attack.name, 20))
        began = time.monotonic()
        enough = QUOTA * WINDOW_S
        received, took = asyncio.run(all_at_once(gateway.behind_tap(1), FETCHERS, fetch, enough=enough))
        seconds = time.monotonic() - began
        most = 20 * (BATCH_BYTES + 200)
        for attack, got in zip(FETCHERS, received, strict=True):
            assert got <= bound(seconds, most), attack
        assert min(received) >= enough, f"the attackers hardly tried: {received}"
        assert took, "no honest request was answered"
