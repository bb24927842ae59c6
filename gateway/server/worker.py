"""The worker's side of the link: what it receives from its supervisor and sends to it. [io]

The supervisor hands over accepted sockets; everything else uses the link. When the supervisor is gone, the worker
drains: it would get no more connections, and its present connections lose nothing.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import structlog

from config import Config
from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.listening import PlainSocket
from gateway.server.link import BlockingLink, Link, LinkLost
from gateway.server.nursery import WorkerSockets
from gateway.upstream.topology import Found
from quotas.lending import Brake
from quotas.limits import Enforcement

HANDOVER_BYTES: Final = 1024
"""The longest message with a socket: names of listeners and addresses are short."""

TICK_S: Final = 0.1
"""The interval of signs of life, and of messages with recorded usage."""

_RECEIVED_PER_TURN: Final = 8

_log = structlog.get_logger("gateway.worker")


FoundBrokers: TypeAlias = Mapping[str, Found]
"""By the name of the upstream."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker starts with.

    Attributes:
        config: in force, with this worker's share of the divided limits.
        mode: the mode of enforcement.
        brokers: the brokers that the supervisor knows, also those that it misses.
    """

    config: Config
    mode: Enforcement
    brokers: FoundBrokers


def share_of(config: Config, workers: int) -> Config:
    """A worker's configuration: byte budgets and handshakes per second of the gateway are divided by workers."""
    limits, connections = config.limits, config.connections
    divided = {
        name: max(1, getattr(limits, name) // workers)
        for name in ("queued_max_request_bytes", "announced_max_request_bytes")
    }
    handshakes = max(1, connections.max_tls_handshakes_per_second // workers)
    return config.model_copy(
        update={
            "limits": limits.model_copy(update=divided),
            "connections": connections.model_copy(update={"max_tls_handshakes_per_second": handshakes}),
        }
    )


def handover_message(listener: str, accepted: AcceptedSocket) -> bytes:
    """The message that accompanies an accepted socket."""
    values = (
        listener,
        accepted.sock.family,
        accepted.ip,
        accepted.port,
        accepted.broker_id,
        accepted.proxy,
        accepted.connected_to,
    )
    return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)


def _accepted(message: bytes, descriptor: int) -> tuple[str, AcceptedSocket]:
    listener, family, ip, port, broker_id, proxy, connected_to = pickle.loads(message)
    sock = PlainSocket(family, socket.SOCK_STREAM, 0, fileno=descriptor)
    sock.setblocking(False)
    return listener, AcceptedSocket(sock, ip, port, broker_id, proxy, connected_to)


class Reports:
    """Reports ended connections to the supervisor, which frees their places. See `Places`."""

    def __init__(self, link: Link) -> None:
        """Use this link."""
        self._link = link
        self._ended: list[tuple[str, str]] = []

    def release(self, listener: str, ip: str) -> None:
        """A connection has ended."""
        if not self._ended:
            asyncio.get_running_loop().call_soon(self.flush)
        self._ended.append((listener, ip))

    def must_close_one(self, _listener: str) -> bool:
        """Never: the supervisor counts, and decides."""
        return False

    def flush(self) -> None:
        """Report the connections that have ended."""
        ended, self._ended = self._ended, []
        if ended:
            self._link.tell("ended", ended)


class _Operations(Protocol):
    def set_mode(self, mode: Enforcement, *, by: str) -> None: ...
    def set_brakes(self, brakes: Mapping[int, Brake], *, by: str) -> None: ...
    def put_in_force(self, plan: Any, *, by: str) -> None: ...


class _Tls(Protocol):
    def look_now(self) -> None: ...


class _Listener(Protocol):
    @property
    def idle_since_ms(self) -> int | None: ...
    def adopt(self, accepted: AcceptedSocket) -> None: ...
    def evict_one(self) -> bool: ...


class Worked(Protocol):
    """A worker's gateway, as its link uses it."""

    @property
    def operations(self) -> _Operations: ...
    @property
    def tls(self) -> _Tls: ...
    def learn_brokers(self, brokers: FoundBrokers) -> None:
        """Note brokers that another process has found: clients may connect to them here at once."""

    def listener(self, name: str) -> _Listener: ...


class WorkerSide:
    """See the module.

    Attributes:
        number: of this worker.
        link, asking: see `gateway.server.link`.
        places: reports the ends of connections.
        on_tick: called ten times a second while the worker serves.
        drain, hurry: set when the worker must drain, and when it must close connections at once.
        gently: how to drain; see `Gateway.drain`.
        handlers: for messages and questions of the supervisor; other modules add theirs before `serve`.
    """

    def __init__(self, number: int, sockets: WorkerSockets) -> None:
        """Nothing is received yet.

        Args:
            number: see above.
            sockets: the worker's end.
        """
        self.number = number
        self.drain = asyncio.Event()
        self.hurry = asyncio.Event()
        self.gently = False
        self.handlers: dict[str, Callable[..., Any]] = {"drain": self._drain, "hurry": self.hurry.set}
        self.link = Link(self.handlers, self._supervisor_lost)
        self.asking = BlockingLink(sockets.asking)
        self.places = Reports(self.link)
        self._sockets = sockets
        self._worked: Worked | None = None
        self._tick: asyncio.TimerHandle | None = None
        self.on_tick: list[Callable[[], None]] = []

    async def begin(self) -> Start:
        """Open the link and receive the start configuration.

        Raises:
            LinkLost: the supervisor is gone.
        """
        await self.link.open(self._sockets.link)
        start = await self.link.ask("begin")
        assert isinstance(start, Start)
        return start

    def open_port(self, listener: str, broker_id: int, found: Found) -> bool:
        """Have the supervisor open a broker's port, and make the broker known to the other workers.

        Returns:
            Whether the port is open.
        """
        try:
            return bool(self.asking.ask("open_port", listener, broker_id, found))
        except LinkLost:
            return False

    def serve(self, worked: Worked) -> None:
        """Take sockets from now on, and send signs of life."""
        self._worked = worked
        operations = worked.operations
        self.handlers |= {
            "mode": lambda mode, by: operations.set_mode(mode, by=by),
            "brakes": lambda brakes, by: operations.set_brakes(brakes, by=by),
            "reload": self._reload,
            "brokers": worked.learn_brokers,
            "idle_since": lambda name: worked.listener(name).idle_since_ms,
            "evict": self._evict,
        }
        self._sockets.handover.setblocking(False)
        asyncio.get_running_loop().add_reader(self._sockets.handover.fileno(), self._receive)
        self.link.tell("ready")
        self._alive()

    def close(self) -> None:
        """Close the link, once all messages have left."""
        asyncio.get_running_loop().remove_reader(self._sockets.handover.fileno())
        if self._tick is not None:
            self._tick.cancel()
        self.link.close()

    def _drain(self, gently: bool) -> None:
        self.gently = gently
        self.drain.set()

    def _reload(self, plan: Any, by: str) -> None:
        assert self._worked is not None
        self._worked.operations.put_in_force(plan, by=by)
        self._worked.tls.look_now()

    def _evict(self, name: str) -> bool:
        assert self._worked is not None
        evicted = self._worked.listener(name).evict_one()
        # The place is freed before the answer, as otherwise the supervisor would evict another connection.
        self.places.flush()
        return evicted

    def _alive(self) -> None:
        # First, so that what fails in one tick does not end them.
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._alive)
        self.link.tell("alive")
        for each in self.on_tick:
            each()

    def _receive(self) -> None:
        for listener, accepted in self._received():
            assert self._worked is not None
            self._worked.listener(listener).adopt(accepted)

    def _received(self) -> Iterator[tuple[str, AcceptedSocket]]:
        for _ in range(_RECEIVED_PER_TURN):
            try:
                message, descriptors, _, _ = socket.recv_fds(self._sockets.handover, HANDOVER_BYTES, 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                message, descriptors = b"", []
            if not message:
                asyncio.get_running_loop().remove_reader(self._sockets.handover.fileno())
                return
            if descriptors:
                yield _accepted(message, descriptors[0])
            else:  # this process has no free descriptors
                listener, _, ip, *_ = pickle.loads(message)
                self.places.release(listener, ip)

    def _supervisor_lost(self) -> None:
        if not self.drain.is_set():
            _log.error("supervisor_lost", worker=self.number, pid=os.getpid())
        self.drain.set()
