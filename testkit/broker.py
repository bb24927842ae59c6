"""A scripted broker on a real loopback socket.

It answers ApiVersions, Metadata and DescribeConfigs like a small cluster. It answers every other request with the
request's own frame as the body (an echo, so that a reply to the wrong request is noticed). A script replaces the
response for one API or for all of them::

    broker.script(FETCH, truncate(keep=20, reset=True))

The broker recognizes the gateway's own requests by their client id. Scripts apply to them only with
`scripts_discovery`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from struct import error, pack, unpack_from
from typing import Any, Final, TypeAlias, cast

from gateway.upstream.discovery import CLIENT_ID as DISCOVERY_CLIENT_ID
from testkit import wire

PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DESCRIBE_CONFIGS: Final = 32

EVERY_API: Final = -1
HOST: Final = "127.0.0.1"
_SYN_SENT: Final = "02"


@dataclass(frozen=True, slots=True)
class Request:
    """One request frame and the fields of its head."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    frame: bytes


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as in a Metadata response."""

    node_id: int
    host: str
    port: int


Script: TypeAlias = "Callable[[BrokerConnection, Request], None]"


class BrokerConnection(asyncio.Protocol):
    """One connection that the broker accepted.

    Attributes:
        requests: whole requests, in order.
        received_bytes: all bytes that were received, including those of incomplete requests.
        ended: set when the connection has ended.
        reset: whether it ended with an error instead of a FIN.
        half_closed: whether a FIN was received.
        waiting: requests that a script keeps for later.
        unreadable: a frame with an incomplete head, because of which the broker ended the connection.
    """

    def __init__(self, broker: ScriptedBroker) -> None:
        self.broker = broker
        self.requests: list[Request] = []
        self.received_bytes = 0
        self.ended = asyncio.Event()
        self.reset = False
        self.half_closed = False
        self.waiting: list[Request] = []
        self.unreadable = b""
        self.transport: asyncio.Transport
        self._partial = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.broker.connections.append(self)
        if self.broker.full:
            self.transport.close()
        if self.broker.never_reads:
            # uvloop ignores this call within connection_made.
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.broker.counts_only:
            return
        self._partial += data
        while len(self._partial) >= 4:
            size = unpack_from(">i", self._partial)[0]
            if len(self._partial) < 4 + size:
                return
            frame = bytes(self._partial[: 4 + size])
            del self._partial[: 4 + size]
            try:
                request = _parsed(frame)
            except error:
                self.unreadable = frame
                self.abort()
                return
            self.requests.append(request)
            self.broker.handle(self, request)

    def eof_received(self) -> bool:
        self.half_closed = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reset = exc is not None
        self.ended.set()

    @property
    def partial(self) -> bytes:
        """Bytes of an incomplete request."""
        return bytes(self._partial)

    @property
    def of_discovery(self) -> bool:
        """Whether the gateway itself sends requests here."""
        return any(request.client_id == DISCOVERY_CLIENT_ID for request in self.requests)

    def send(self, data: bytes) -> None:
        """Sends raw bytes."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """Resets the connection."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or self.ended.is_set():
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.transport.abort()


_DEFAULT_CONFIG: Final = 5
"""The source of a setting's value (KIP-226)."""


@dataclass
class ScriptedBroker:
    """A scripted broker; see the module's docstring.

    Attributes:
        node_id: its own id.
        nodes: the cluster in Metadata responses; empty: only this broker.
        cluster_id, controller_id: as in Metadata responses; without a controller it is the first node.
        offers: the APIs in ApiVersions responses, with their lowest and highest versions.
        connections: in the order of acceptance, including ended ones.
        never_reads: whether new connections are not read.
        full: whether new connections are closed at once, as above `max.connections.per.ip`.
        counts_only: whether received bytes are counted but not parsed.
        configs: the settings in DescribeConfigs responses.
        scripts_discovery: whether scripts also apply to the gateway's own requests.
        tls: the context of its listener; None: plaintext.
    """

    node_id: int = 1
    nodes: list[Node] = field(default_factory=list)
    cluster_id: str | None = "scripted"
    controller_id: int | None = None
    offers: dict[int, tuple[int, int]] = field(
        default_factory=lambda: dict.fromkeys(
            (PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS, DESCRIBE_CONFIGS), (0, 20)
        )
    )
    connections: list[BrokerConnection] = field(default_factory=list)
    never_reads: bool = False
    full: bool = False
    counts_only: bool = False
    configs: dict[str, str] = field(default_factory=lambda: {"num.partitions": "1"})
    scripts_discovery: bool = False
    tls: ssl.SSLContext | None = None
    port: int = 0
    _scripts: dict[int, Script] = field(default_factory=dict)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> ScriptedBroker:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens, after a restart on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: BrokerConnection(self), HOST, self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stops listening and resets every connection, as when a broker is killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        open_connections = [connection for connection in self.connections if not connection.ended.is_set()]
        for connection in open_connections:
            connection.abort()
        for connection in open_connections:
            await connection.ended.wait()
        await asyncio.sleep(0)

    def script(self, api_key: int, script: Script) -> None:
        """Uses a script for an API from now on; EVERY_API: for all APIs without a script of their own."""
        self._scripts[api_key] = script

    def handle(self, connection: BrokerConnection, request: Request) -> None:
        """Answers one request."""
        script: Script | None = None
        if self.scripts_discovery or request.client_id != DISCOVERY_CLIENT_ID:
            script = self._scripts.get(request.api_key) or self._scripts.get(EVERY_API)
        (script or answer)(connection, request)

    @property
    def client_connections(self) -> list[BrokerConnection]:
        """Connections for clients, including ended ones."""
        return [connection for connection in self.connections if not connection.of_discovery]

    def reply_to(self, request: Request) -> bytes:
        """The frame that a correct broker would send."""
        known = {
            METADATA: self._metadata,
            API_VERSIONS: self._api_versions,
            DESCRIBE_CONFIGS: self._describe_configs,
            CREATE_TOPICS: self._create_topics,
        }
        reply = known.get(request.api_key)
        return reply(request) if reply else echo(request)

    def _metadata(self, request: Request) -> bytes:
        nodes = self.nodes or [Node(self.node_id, HOST, self.port)]
        return wire.response(
            "Metadata",
            request.api_version,
            correlation_id=request.correlation_id,
            brokers=[{"node_id": node.node_id, "host": node.host, "port": node.port} for node in nodes],
            cluster_id=self.cluster_id,
            controller_id=nodes[0].node_id if self.controller_id is None else self.controller_id,
            topics=[],
        )

    def _api_versions(self, request: Request) -> bytes:
        keys = [
            {"api_key": key, "min_version": lowest, "max_version": highest}
            for key, (lowest, highest) in self.offers.items()
        ]
        return wire.response(
            "ApiVersions",
            request.api_version,
            correlation_id=request.correlation_id,
            error_code=0,
            api_keys=keys,
        )

    def _describe_configs(self, request: Request) -> bytes:
        configs: list[dict[str, Any]] = [
            {"name": name, "value": value, "config_source": _DEFAULT_CONFIG}
            for name, value in self.configs.items()
        ]
        return wire.response(
            "DescribeConfigs",
            request.api_version,
            correlation_id=request.correlation_id,
            results=[{"resource_type": 4, "resource_name": str(self.node_id), "configs": configs}],
        )

    def _create_topics(self, request: Request) -> bytes:
        body = wire.decode_request("CreateTopics", request.api_version, request.frame)
        return wire.response(
            "CreateTopics",
            request.api_version,
            correlation_id=request.correlation_id,
            topics=[{"name": topic.name, "error_code": 0} for topic in body.topics],
        )


def echo(request: Request) -> bytes:
    """A reply whose body is the request."""
    return wire.framed(pack(">i", request.correlation_id) + request.frame)


@contextmanager
def blackhole() -> Iterator[int]:
    """A port whose queue of connections is full: the kernel drops every further SYN."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        # The one that has room is connected before others try; a busy kernel may take a moment for it.
        fillers = [socket.create_connection((HOST, port))]
        for _ in range(2):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
            fillers.append(filler)
        try:
            yield port
        finally:
            for filler in fillers:
                filler.close()


def connecting_to(port: int) -> int:
    """The number of sockets of this machine that wait for the answer to their SYN to a loopback port."""
    wanted = f"0100007F:{port:04X}"
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    return sum(line.split()[2:4] == [wanted, _SYN_SENT] for line in lines)


# -- scripts -------------------------------------------------------------------------------------------------


def answer(connection: BrokerConnection, request: Request) -> None:
    """Answers like a correct broker. For Produce frames with acks=0 the test has to choose `silence`."""
    connection.send(connection.broker.reply_to(request))


def silence(connection: BrokerConnection, request: Request) -> None:
    """Keeps the request in `connection.waiting` and does not answer."""
    connection.waiting.append(request)


def ignore(_connection: BrokerConnection, _request: Request) -> None:
    """Never answers, and keeps nothing."""


def close(connection: BrokerConnection, _request: Request) -> None:
    """Closes with FIN instead of answering."""
    connection.transport.close()


def reset(connection: BrokerConnection, _request: Request) -> None:
    """Closes with RST instead of answering."""
    connection.abort()


def duplicate(connection: BrokerConnection, request: Request) -> None:
    """Answers twice."""
    reply = connection.broker.reply_to(request)
    connection.send(reply + reply)


def swap(connection: BrokerConnection, request: Request) -> None:
    """Answers every two requests in the wrong order."""
    connection.waiting.append(request)
    if len(connection.waiting) == 2:
        for waiting in reversed(connection.waiting):
            connection.send(connection.broker.reply_to(waiting))
        connection.waiting.clear()


def wrong_correlation_id(connection: BrokerConnection, request: Request) -> None:
    """Answers with the correlation id of another request."""
    reply = bytearray(connection.broker.reply_to(request))
    reply[4:8] = pack(">i", request.correlation_id ^ 0x55)
    connection.send(bytes(reply))


def truncate(keep: int, *, with_reset: bool = False) -> Script:
    """Sends the first bytes of the first response, then FIN or RST."""

    def script(connection: BrokerConnection, request: Request) -> None:
        if len(connection.requests) > 1:
            return
        connection.send(connection.broker.reply_to(request)[:keep])
        if with_reset:
            # Later, so that the bytes are sent first: a reset discards unsent bytes.
            asyncio.get_running_loop().call_later(0.02, connection.abort)
        else:
            connection.transport.close()

    return script


def raw(data: bytes) -> Script:
    """Sends these bytes in response to any request."""

    def script(connection: BrokerConnection, _request: Request) -> None:
        connection.send(data)

    return script


def slow(seconds: float) -> Script:
    """Answers correctly after a delay."""

    def script(connection: BrokerConnection, request: Request) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, connection.send, connection.broker.reply_to(request))

    return script


def huge(body_bytes: int) -> Script:
    """Answers with a body of this size."""

    def script(connection: BrokerConnection, request: Request) -> None:
        connection.send(pack(">ii", body_bytes + 4, request.correlation_id) + bytes(body_bytes))

    return script


def _parsed(frame: bytes) -> Request:
    api_key, api_version, correlation_id, length = unpack_from(">hhih", frame, 4)
    client_id = frame[14 : 14 + max(length, 0)].decode("utf-8", "replace")
    return Request(api_key, api_version, correlation_id, client_id, frame)
