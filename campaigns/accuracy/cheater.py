"""A client that ignores its quota: eight connections, pipelined requests, throttle_time_ms ignored.

It uses raw sockets and counts whole frames, as the quota does.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from struct import unpack
from typing import Final

from kafka.record.memory_records import MemoryRecordsBuilder

from testkit import wire

CONNECTIONS: Final = 8
PIPELINED: Final = 4
REQUEST_BYTES: Final = 16_000

Leader = tuple[int, str, int]
"""Partition, and host and port of its leader."""


async def cheat(bootstrap: str, topic: str, client_id: str, verb: str, got: Callable[[int], None]) -> None:
    """Run until cancelled, on connections to the leaders of all partitions in turn.

    Args:
        bootstrap: host:port of any broker.
        topic: the topic to write, or to read repeatedly from its beginning.
        client_id: client id of its requests.
        verb: produce or fetch.
        got: called with the size of each frame that was answered or received.
    """
    leaders = itertools.cycle(await _leaders(bootstrap, topic))
    await asyncio.gather(
        *(
            _connection(leader, topic, client_id, verb, got)
            for leader in itertools.islice(leaders, CONNECTIONS)
        )
    )


async def _leaders(bootstrap: str, topic: str) -> list[Leader]:
    host, port = bootstrap.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(wire.request("Metadata", 8, topics=[{"name": topic}], allow_auto_topic_creation=False))
        body = wire.decode_response("Metadata", 8, await _frame(reader))
    finally:
        writer.close()
    brokers = {broker.node_id: (broker.host, broker.port) for broker in body.brokers}
    return [(found.partition_index, *brokers[found.leader_id]) for found in body.topics[0].partitions]


async def _connection(
    leader: Leader, topic: str, client_id: str, verb: str, got: Callable[[int], None]
) -> None:
    partition, host, port = leader
    frame = (
        _produce(topic, partition, client_id) if verb == "produce" else _fetch(topic, partition, client_id)
    )
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(frame * PIPELINED)
    while True:
        reply = await _frame(reader)
        got(len(frame if verb == "produce" else reply) - 4)
        writer.write(frame)
        await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(unpack(">i", size)[0])


def _produce(topic: str, partition: int, client_id: str) -> bytes:
    records = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * REQUEST_BYTES)
    records.append(timestamp=1_700_000_000_000, key=None, value=bytes(REQUEST_BYTES))
    records.close()
    return wire.request(
        "Produce",
        7,
        client_id=client_id,
        acks=1,
        timeout_ms=60_000,
        topic_data=[
            {"name": topic, "partition_data": [{"index": partition, "records": bytes(records.buffer())}]}
        ],
    )


def _fetch(topic: str, partition: int, client_id: str) -> bytes:
    wanted = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": REQUEST_BYTES}
    return wire.request(
        "Fetch",
        11,
        client_id=client_id,
        replica_id=-1,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=REQUEST_BYTES,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [wanted]}],
    )
