"""Attacks that make a gateway use memory or block its event loop. Each function is one attack, until cancelled."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import ssl
import string
from collections.abc import Awaitable, Callable
from functools import cache
from struct import pack
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from campaigns.adversary.honest_client import HONEST
from campaigns.adversary.requests import number
from campaigns.adversary.script import make_script
from campaigns.adversary.stage import FLOODER, Stage
from gateway.session.announced import PASS_ON_BYTES
from testkit import wire

Attack: TypeAlias = Callable[[Stage], Awaitable[None]]

_MIB: Final = 1 << 20
_PAUSE_S: Final = 1.0
_PATIENCE_S: Final = 30.0
_DESCRIBE_CONFIGS: Final = 32
_ANNOUNCED_BYTES: Final = 100_000_000


async def answers_behind_a_fetch(stage: Stage) -> None:
    """Large requests that the gateway itself refuses, sent behind a Fetch that waits (hazard K17)."""
    refused = _large_alteration()
    waits = wire.request("Fetch", 4, max_wait_ms=600_000, min_bytes=1_000_000_000, max_bytes=1, topics=[])
    while True:
        async with _Connection(stage) as connection:
            await connection.send(waits)
            for at in range(400):
                await connection.send(number(refused, at))


@cache
def _large_alteration() -> bytes:
    name = "n" * 32_000
    entries = [
        {
            "entity": [{"entity_type": "client-id", "entity_name": f"{name}{at}"}],
            "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
        }
        for at in range(250)
    ]
    return wire.request("AlterClientQuotas", 1, entries=entries, validate_only=False)


async def empty_names(stage: Stage) -> None:
    """A request of millions of empty elements (hazard K06)."""
    count = 2_000_000
    header = wire.head(_DESCRIBE_CONFIGS, 4, flexible=True)
    frame = wire.framed(header + wire.uvarint(count + 1) + b"\x02\x01\x00\x00" * count + b"\x00\x00\x00")
    while True:
        async with _Connection(stage) as connection:
            await connection.send(frame)
            await connection.receive()
        await asyncio.sleep(_PAUSE_S)


async def long_client_ids(stage: Stage) -> None:
    """Client ids of 32 kB with one character that makes Python use four times the memory for each (hazard K07)."""
    for at in itertools.count():
        async with _Connection(stage) as connection:
            for of in range(100):
                client_id = f"{at}-{of}-𝔸" + "x" * 32_000
                await connection.send(wire.request("Fetch", 4, max_wait_ms=0, topics=[], client_id=client_id))
                await connection.receive()


async def many_coordinators(stage: Stage) -> None:
    """FindCoordinator requests with 100,000 keys (hazard K12)."""
    frame = _find_coordinators(100_000)
    while True:
        async with _Connection(stage) as connection:
            await connection.send(frame)
            await connection.receive()
        await asyncio.sleep(_PAUSE_S)


@cache
def _find_coordinators(count: int) -> bytes:
    keys = [f"group-{at}" for at in range(count)]
    return wire.request("FindCoordinator", 4, key_type=0, coordinator_keys=keys)


async def announced_sizes(stage: Stage) -> None:
    """Request heads of 35 bytes that announce 100 MB each, with the honest client's id (hazards M01, M02)."""
    await _announce(stage, 35)


async def announced_parts(stage: Stage) -> None:
    """The same, with the first 64 KiB of each request: enough for the gateway to start forwarding it (hazard M02)."""
    await _announce(stage, PASS_ON_BYTES)


async def _announce(stage: Stage, sent_bytes: int) -> None:
    # Forwarded bytes are charged to their client id. So the honest client's id is used only if nothing is forwarded.
    client_id = HONEST if sent_bytes < PASS_ON_BYTES else "attacker"
    head = wire.head(0, 9, client_id=client_id, flexible=True) + b"\0\0\1" + pack(">i", 1_000) + b"\2"
    frame = (pack(">i", _ANNOUNCED_BYTES) + head).ljust(sent_bytes, b"r")[:sent_bytes]
    while True:
        connections = [_Connection(stage) for _ in range(100)]
        try:
            for connection in connections:
                await connection.open()
                await connection.send(frame)
            await asyncio.sleep(_PAUSE_S)
        finally:
            for connection in connections:
                connection.close()


async def unknown_versions(stage: Stage) -> None:
    """ApiVersions requests that the gateway answers itself, sent as fast as it answers them (hazard M03)."""
    frame = wire.framed(wire.head(18, 99, flexible=True, client_id=FLOODER) + b"\x04abc\x041.0\x00")
    while True:
        async with _Connection(stage) as connection:
            for _ in range(1_000):
                await connection.send(frame * 64)
                await connection.receive()


async def never_read(stage: Stage) -> None:
    """Fetches whose responses the client does not read, and halves of large requests."""
    name, _ = stage.readable
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50_000_000}
    topics = [{"topic": name, "partitions": [partition]}]
    half = wire.head(0, 9, flexible=True) + bytes(4 * _MIB)
    while True:
        connections = [_Connection(stage, receive_buffer_bytes=4_096) for _ in range(60)]
        try:
            for at, connection in enumerate(connections):
                await connection.open()
                frame = wire.request("Fetch", 11, client_id=f"deaf-{at}", max_bytes=50_000_000, topics=topics)
                await connection.send(frame * 4)
                if at % 4 == 0:
                    await connection.send(pack(">i", 64 * _MIB) + half)
            await asyncio.sleep(10)
        finally:
            for connection in connections:
                connection.close()


async def silent_at_the_admin_port(stage: Stage) -> None:
    """Connections to the admin port that send nothing (hazard K20)."""
    while True:
        connections = [_Connection(stage, admin=True) for _ in range(300)]
        try:
            for connection in connections:
                await connection.open()
            await asyncio.sleep(20)
        finally:
            for connection in connections:
                connection.close()


async def json_of_small_things(stage: Stage) -> None:
    """Bodies that become far larger when they are parsed (hazard K21)."""
    bodies = [b"[" + b"[]," * 9_999_999 + b"[]]", b'{"quotas": [' + b'{"a":1},' * 3_000_000 + b"{}]}"]
    for body in itertools.cycle(bodies):
        head = (
            "POST /quotas/import HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"X-Sluice: 1\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with _Connection(stage, admin=True) as connection:
            await connection.send(head.encode() + body)
            await connection.receive()
        await asyncio.sleep(5 * _PAUSE_S)


async def random_scripts(stage: Stage) -> None:
    """Random scripts of the adversary campaign."""
    letters = random.Random(string.ascii_letters)
    while True:
        _, found = await stage.start(make_script(letters.randrange(1 << 30)))
        del found


ATTACKS: Final[dict[str, tuple[Attack, int]]] = {
    "answers behind a fetch": (answers_behind_a_fetch, 2),
    "empty names": (empty_names, 1),
    "long client ids": (long_client_ids, 2),
    "many coordinators": (many_coordinators, 1),
    "announced sizes": (announced_sizes, 2),
    "announced parts": (announced_parts, 2),
    "unknown versions": (unknown_versions, 2),
    "never read": (never_read, 1),
    "silent at the admin port": (silent_at_the_admin_port, 1),
    "JSON of small things": (json_of_small_things, 1),
    "random scripts": (random_scripts, 4),
}
"""Name -> the attack, and how many instances of it run at the same time."""

ADMIN_ATTACKS: Final = frozenset({"silent at the admin port", "JSON of small things"})
"""Attacks on the admin port, which a broker does not have."""


async def attack(stage: Stage, each: Attack) -> None:
    """Repeat the attack when the gateway breaks it off."""
    while True:
        try:
            await each(stage)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.1)


class _Connection:
    """A socket that sends the given bytes, with a timeout."""

    def __init__(self, stage: Stage, *, admin: bool = False, receive_buffer_bytes: int | None = None) -> None:
        admin_address = urlsplit(stage.admin)
        self._address = (
            (str(admin_address.hostname), int(admin_address.port or 0)) if admin else stage.plain[0]
        )
        ca = None if admin else stage.ca
        self._context = None if ca is None else ssl.create_default_context(cafile=ca)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._sock = socket.socket()
        self._sock.setblocking(False)
        if receive_buffer_bytes is not None:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)

    async def open(self) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            await asyncio.get_running_loop().sock_connect(self._sock, self._address)
            if self._context is not None:
                host, _ = self._address
                self._streams = await asyncio.open_connection(
                    sock=self._sock, ssl=self._context, server_hostname=host
                )

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            if self._streams is None:
                await asyncio.get_running_loop().sock_sendall(self._sock, data)
            else:
                self._streams[1].write(data)
                await self._streams[1].drain()

    async def receive(self) -> None:
        """Wait for any bytes."""
        async with asyncio.timeout(_PATIENCE_S):
            if self._streams is None:
                received = await asyncio.get_running_loop().sock_recv(self._sock, _MIB)
            else:
                received = await self._streams[0].read(_MIB)
            if not received:
                raise ConnectionError("closed")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
        else:
            self._sock.close()

    async def __aenter__(self) -> _Connection:
        await self.open()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.close()
