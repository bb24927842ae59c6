"""Plays a script, and records the client's requests and replies in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import pack, unpack_from
from typing import Any, Final
from uuid import UUID

from campaigns.adversary.requests import encode, number, topic_name
from campaigns.adversary.script import SECONDS, Script, Step
from testkit import wire
from testkit.wire_client import now_ms

AUTO_PARTITIONS: Final = 3
"""Partitions of topics that Metadata creates: the broker's num.partitions."""

REPLY_S: Final = 0.2
"""How long a client waits for a reply before it continues. A muted client gets no reply for longer than that."""

STORM_S: Final = 1.0
"""How long it waits for the replies of many connections at once."""

_CONNECT_S: Final = 5.0
_FETCH_HEAD_BYTES: Final = 19


@dataclass(frozen=True, slots=True)
class Login:
    """How a client of one identity connects.

    Attributes:
        addresses: addresses of its listeners.
        name: the client id of "client", the user of "user"; also the prefix of its topics.
        password: password of the user; None if the listeners need none.
        write_topic: name and id of the topic that it produces to and that no other script uses.
        read_topics: the topics that it fetches from: one with small batches, and one with batches above the limit of
        a
            whole window.
    """

    addresses: tuple[tuple[str, int], ...]
    name: str
    password: str | None
    write_topic: tuple[str, UUID]
    read_topics: tuple[tuple[str, UUID], tuple[str, UUID]]

    def client_id(self, which: int) -> str | None:
        """The client id of a request: always the same if the quota is for it. Beyond 3, any number of names."""
        if self.password is None:
            return self.name
        names = (None, "", "é" * 40, self.name)
        return names[which] if which < len(names) else f"{self.name}-{which}"


@dataclass(slots=True)
class Outcome:
    """Requests and results of one client.

    Attributes:
        name: see `Login`.
        began_ms, ended_ms: from the first connection to the end of all, on this process's monotonic clock.
        fetched_bytes: bytes of Fetch answers, including incomplete answers.
        largest_fetch_bytes, largest_produce_bytes: largest single answer and request.
        most_permits: most permits of one request.
        deleted_partitions: partitions of topics whose deletion succeeded; a lower bound.
        faults: behaviour that no client may see, such as replies out of order.
        requests: number of sent requests.
        ports: local port of each opened connection.
    """

    name: str
    began_ms: float = 0.0
    ended_ms: float = 0.0
    fetched_bytes: int = 0
    largest_fetch_bytes: int = 0
    largest_produce_bytes: int = 0
    most_permits: int = 0
    deleted_partitions: int = 0
    faults: list[str] = field(default_factory=list)
    requests: int = 0
    ports: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.ended_ms - self.began_ms) / 1_000


@dataclass(frozen=True, slots=True)
class _Sent:
    api: str
    version: int
    correlation_id: int


class Connection(asyncio.Protocol):
    """One connection: frames in, in the order of requests."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.due: deque[_Sent] = deque()
        self.idle = asyncio.Event()
        self.idle.set()
        self.open = False
        self.port = 0  # its own
        self.session = (0, 0)  # the fetch session: id and next epoch

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.port = int(transport.get_extra_info("sockname")[1])
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size = unpack_from(">i", self._buffer)[0] + 4
            if len(self._buffer) < size:
                return
            frame = bytes(self._buffer[:size])
            del self._buffer[:size]
            self._on_reply(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self.idle.set()
        if self.due and self.due[0].api == "Fetch":
            self._player.fetched(len(self._buffer))

    def _on_reply(self, frame: bytes) -> None:
        if not self.due:
            self._player.outcome.faults.append("a reply to no request")
            return
        sent = self.due.popleft()
        if not self.due:
            self.idle.set()
        if wire.correlation_id_of(frame) != sent.correlation_id:
            self._player.outcome.faults.append(f"{sent.api}: a reply to another request")
        if sent.api == "Fetch":
            self._player.fetched(len(frame))
            if sent.version >= 7 and len(frame) >= _FETCH_HEAD_BYTES:
                error_code, session_id = unpack_from(">hi", frame, 13 if sent.version >= 12 else 12)
                self.session = (session_id, 1) if not error_code else (0, 0)
        else:
            self._player.on_reply(sent.api, sent.version, frame)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def expect(self, sent: _Sent) -> None:
        self.due.append(sent)
        self.idle.clear()

    def stop_reading(self) -> None:
        if self._transport is not None and self.open:
            self._transport.pause_reading()

    def end(self, how: str) -> None:
        transport = self._transport
        if transport is None:
            return
        match how:
            case "half" if not transport.is_closing():
                # The next step reconnects, also if the gateway has just reset this connection and `write_eof` fails.
                self.open = False
                transport.write_eof()
            case "reset" if not transport.is_closing():
                sock: socket.socket = transport.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
                transport.abort()
            case "close":
                # This includes a closing connection: the gateway has closed it and does not read its remaining bytes.
                transport.abort()


def _other(step: Step, at: int) -> Step:
    """The request of this step. If it creates topics, it names other topics each time."""
    if not at or step["api"] != "CreateTopics":
        return step
    topics = [[name + 1_000 * at if isinstance(name, int) else name, count] for name, count in step["topics"]]
    return {**step, "topics": topics}


class Player:
    """Plays one script once."""

    def __init__(self, script: Script, login: Login, *, seconds: float = SECONDS) -> None:
        """Prepare to play, without connecting.

        Args:
            script: the script to play.
            login: the client's identity.
            seconds: how long to play at most.
        """
        self._seconds = seconds
        self.outcome = Outcome(login.name)
        self._script = script
        self._login = login
        self._slots: dict[int, Connection] = {}
        self._all: list[Connection] = []
        self._correlation_ids = itertools.count(100)
        self._encoded: tuple[Step, bytes] | None = None
        self._ids: dict[str, UUID] = {}
        self._names: dict[UUID, str] = {}
        # All partition counts that each topic may have had. Answers can be lost, so the real one is not known.
        self._asked: dict[str, set[int]] = defaultdict(set)

    async def play(self) -> Outcome:
        """Play from the first connection to the end of all."""
        outcome = self.outcome
        outcome.began_ms = now_ms()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    for step in self._script.steps:
                        # The gateway may refuse or end any connection of such a client.
                        with contextlib.suppress(OSError):
                            await self._do(step)
        finally:
            for connection in self._all:
                connection.end("close")
        outcome.ended_ms = now_ms()
        return outcome

    def fetched(self, count: int) -> None:
        """Count received bytes of one Fetch answer."""
        self.outcome.fetched_bytes += count
        self.outcome.largest_fetch_bytes = max(self.outcome.largest_fetch_bytes, count)

    def on_reply(self, api: str, version: int, frame: bytes) -> None:
        """Handle an answer to any API except Fetch."""
        if api == "CreateTopics" and version >= 7:
            for topic in wire.decode_response(api, version, frame).topics:
                if topic.error_code == 0:
                    self._ids[topic.name] = topic.topic_id
                    self._names[topic.topic_id] = topic.name
        elif api == "DeleteTopics":
            for result in wire.decode_response(api, version, frame).responses:
                name = result.name if version < 6 or result.name else self._names.get(result.topic_id, "")
                if result.error_code == 0:
                    self.outcome.deleted_partitions += min(self._asked.get(name, {0}))

    # -- steps -----------------------------------------------------------------------------------------------

    async def _do(self, step: Step) -> None:
        match step["do"]:
            case "pause":
                await asyncio.sleep(step["ms"] / 1_000)
            case "storm":
                await self._storm(step)
            case "send":
                await self._send(await self._connection(step["connection"]), step)
            case "junk":
                (await self._connection(step["connection"])).write(bytes.fromhex(step["hex"]))
            case "deaf":
                (await self._connection(step["connection"])).stop_reading()
            case "end":
                connection = self._slots.get(step["connection"])
                if connection is not None:
                    connection.end(step["how"])
                    if step["how"] != "half":
                        del self._slots[step["connection"]]

    async def _storm(self, step: Step) -> None:
        """Open many connections at once, send a request on each, and close them."""
        opened = await asyncio.gather(
            *(self._open(at) for at in range(step["connections"])), return_exceptions=True
        )
        connections = [each for each in opened if isinstance(each, Connection)]
        for at, connection in enumerate(connections):
            self._write(connection, _other(step, at))
        await self._replies(connections, STORM_S)
        for connection in connections:
            connection.end("close")

    async def _send(self, connection: Connection, step: Step) -> None:
        if "stops_at" in step:
            frame = self._frame(connection, step)
            connection.write(number(frame, next(self._correlation_ids))[: int(step["stops_at"] * len(frame))])
            await asyncio.sleep(0)
            connection.end("close")
            return
        if "cuts" in step:
            frame = self._next(connection, step)
            ends = [*(int(cut * len(frame)) for cut in step["cuts"]), len(frame)]
            for begin, end in itertools.pairwise([0, *ends]):
                connection.write(frame[begin:end])
                await asyncio.sleep(0.005)
        for at in range(step.get("copies", 0 if "cuts" in step else 1)):
            self._write(connection, _other(step, at))
        if step.get("waits"):
            await self._replies([connection])
        else:
            await asyncio.sleep(0)

    async def _replies(self, connections: Iterable[Connection], within_s: float = REPLY_S) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for connection in connections:
                    await connection.idle.wait()

    def _write(self, connection: Connection, step: Step) -> None:
        connection.write(self._next(connection, step))

    def _next(self, connection: Connection, step: Step) -> bytes:
        """The next frame of this step; its answer is expected from now on."""
        frame = number(self._frame(connection, step), correlation_id := next(self._correlation_ids))
        outcome = self.outcome
        outcome.requests += 1
        if step["api"] == "Produce":
            outcome.largest_produce_bytes = max(outcome.largest_produce_bytes, len(frame))
        if step.get("acks") != 0:
            connection.expect(_Sent(step["api"], step["version"], correlation_id))
        return frame

    def _frame(self, connection: Connection, step: Step) -> bytes:
        # Copies of a request are equal, except for Fetch, whose session continues.
        if self._encoded is not None and self._encoded[0] is step and step["api"] != "Fetch":
            return self._encoded[1]
        self._note(step)
        frame = encode(
            step,
            prefix=self._login.name,
            client_id=self._login.client_id(step["client"]),
            write_topic=self._login.write_topic,
            read_topic=self._login.read_topics[step.get("big", False)],
            ids=self._ids,
            session=self._session(connection, step),
        )
        self._encoded = step, frame
        return frame

    def _session(self, connection: Connection, step: Step) -> tuple[int, int]:
        if step["api"] != "Fetch" or step["session"] == "none":
            return 0, -1
        session_id, epoch = connection.session
        if step["session"] == "full" or not session_id:
            return 0, 0
        connection.session = session_id, epoch + 1
        return session_id, epoch

    def _note(self, step: Step) -> None:
        """Note the topics that this request may create or delete."""
        topics: list[Any] = step.get("topics") or []
        asked, prefix = self._asked, self._login.name
        match step["api"]:
            case "CreateTopics" | "CreatePartitions":
                own = [(name, count) for name, count in topics if isinstance(name, int)]
                counts = [(name, AUTO_PARTITIONS if count == -1 else count) for name, count in own]
                for name, count in counts:
                    asked[topic_name(prefix, name)].add(count)
                permits = sum(count for _, count in counts)
            case "Metadata":
                names = [name for name in topics if isinstance(name, int)]
                for name in names:
                    asked[topic_name(prefix, name)].add(AUTO_PARTITIONS)
                permits = AUTO_PARTITIONS * len(names)
            case "DeleteTopics":
                permits = sum(max(asked.get(topic_name(prefix, name), {0})) for name in topics)
            case _:
                return
        self.outcome.most_permits = max(self.outcome.most_permits, permits)

    # -- connections -----------------------------------------------------------------------------------------

    async def _connection(self, slot: int) -> Connection:
        connection = self._slots.get(slot)
        if connection is None or not connection.open:
            connection = self._slots[slot] = await self._open(slot)
        return connection

    async def _open(self, slot: int) -> Connection:
        host, port = self._login.addresses[self._script.listeners[slot % len(self._script.listeners)]]
        async with asyncio.timeout(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), host, port
            )
        self._all.append(connection)
        self.outcome.ports.append(connection.port)
        if self._login.password is not None:
            await self._log_in(connection)
        return connection

    async def _log_in(self, connection: Connection) -> None:
        message = f"\0{self._login.name}\0{self._login.password}".encode()
        for api, version, fields in (
            ("SaslHandshake", 1, {"mechanism": "PLAIN"}),
            ("SaslAuthenticate", 2, {"auth_bytes": message}),
        ):
            correlation_id = next(self._correlation_ids)
            frame = wire.request(api, version, correlation_id=correlation_id, client_id="a", **fields)
            connection.expect(_Sent(api, version, correlation_id))
            connection.write(frame)
        # The client is muted only if it is in debt. Then the login waits as well, and so does the script.
        await self._replies([connection])
