"""A gateway during an upgrade: its ports, store, connection counts and counters. [io]

Both sides use this: the old process and the new one (`upgrade.py`, `predecessor.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.listening import PlainSocket
from gateway.runtime.clock import NowMs
from gateway.server.carried import Row
from gateway.server.control import Control
from gateway.upstream.topology import Address
from quotas.connections import ConnectionQuotas
from quotas.user_connections import UserConnections

TellUse: TypeAlias = Callable[[list[Row]], None]

LISTENER: Final = "listener"
ADMIN: Final = "admin"
CONTROL: Final = "control"


class _Listener(Protocol):
    def open_sockets(self) -> Iterator[tuple[Address, socket.socket]]: ...
    def suspend(self) -> AcceptedSocket | None: ...
    def resume(self, waiting: AcceptedSocket | None = None) -> None: ...
    def slot_freed(self) -> None: ...


class _Store(Protocol):
    read_only: str | None

    async def lend(self) -> bool: ...
    async def take_back(self) -> None: ...


class _Changes(Protocol):
    @property
    def mode(self) -> list[str]: ...
    async def take_mode(self, told: Sequence[str]) -> None: ...
    def tell_next(self, tell: Callable[[str, Sequence[Any]], None]) -> None: ...
    def tell(self, tell: Callable[[str, Sequence[Any]], None]) -> None: ...
    async def take(self, what: str, body: Sequence[Any]) -> None: ...
    def stop(self) -> None: ...


class _Carrier(Protocol):
    async def states(self) -> list[Row]: ...
    def take_states(self, rows: Sequence[Row]) -> None: ...
    def tell_use(self, tell: TellUse) -> None: ...
    def take_use(self, rows: Sequence[Row]) -> None: ...
    def tell_now(self) -> None: ...
    def earlier_left_fleet(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Replaceable:
    """See the module.

    Attributes:
        listeners: by name.
        connections: their counts and rates.
        users: the connections of users.
        store: the quota store, if only one process may have it open; None: several processes may.
        admin: the sockets of the admin port, when it is open.
        control: the control socket.
        admin_address: the configured address of the admin port.
        carrier: has the counters.
        changes: forwards changes of quotas and of their enforcement.
        now_ms: the clock.
    """

    listeners: Mapping[str, _Listener]
    connections: ConnectionQuotas
    users: UserConnections
    store: _Store | None
    admin: Callable[[], Sequence[socket.socket]]
    admin_address: Address
    control: Control
    carrier: _Carrier
    changes: _Changes
    now_ms: NowMs

    def sockets(self) -> Iterator[tuple[str, Address, socket.socket]]:
        """All listening sockets, with kind and address."""
        for listener in self.listeners.values():
            for address, sock in listener.open_sockets():
                yield LISTENER, address, sock
        for sock in self.admin():
            yield ADMIN, self.admin_address, sock
        if self.control.sock is not None:
            yield CONTROL, self.admin_address, self.control.sock

    async def lend(self) -> bool:
        """Let the other process open the store, and say whether the store was writable."""
        return self.store is not None and await self.store.lend()

    async def take_back(self) -> None:
        """Use the store again: the other process is gone."""
        if self.store is not None:
            await self.store.take_back()

    def suspend(self) -> dict[str, AcceptedSocket]:
        """Stop accepting clients; returns accepted sockets that still wait, by listener."""
        waiting = {name: listener.suspend() for name, listener in self.listeners.items()}
        return {name: accepted for name, accepted in waiting.items() if accepted is not None}

    def resume(self, waiting: Mapping[str, AcceptedSocket]) -> None:
        """Accept again."""
        for name, listener in self.listeners.items():
            listener.resume(waiting.get(name))


def waiting_row(listener: str, accepted: AcceptedSocket) -> list[Any]:
    """An accepted socket that still waits, as a row without its descriptor."""
    return [listener, accepted.sock.family, accepted.ip, accepted.port, accepted.broker_id, accepted.recorded]


def waiting_socket(row: list[Any], descriptor: int) -> tuple[str, AcceptedSocket]:
    """The accepted socket of such a row."""
    listener, family, ip, port, broker_id, recorded = row
    sock = PlainSocket(family, socket.SOCK_STREAM, 0, fileno=descriptor)
    return listener, AcceptedSocket(sock, ip, port, broker_id, recorded=recorded)
