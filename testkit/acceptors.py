"""An acceptor with real sockets on a loop whose iterations only the test runs."""

from __future__ import annotations

import socket
from collections import Counter
from contextlib import ExitStack
from typing import Any

from config.sections.listeners import ProxyProtocolSettings
from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.acceptor import Acceptor
from quotas.connections import AdmissionCause, ConnectionLimits, ConnectionQuotas, ListenerLimits
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Limits
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop
from testkit.observer import SilentObserver
from testkit.raw_client import HOST


class Seen(SilentObserver):
    """Records the acceptor's reports."""

    def __init__(self) -> None:
        self.delayed: list[tuple[AdmissionCause, int]] = []
        self.blocked_ms = 0
        self.held: list[int] = []
        self.would_hold: list[int] = []
        self.refused: Counter[AdmissionCause] = Counter()
        self.failures = 0

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        self.delayed.append((cause, wait_ms))

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        self.blocked_ms += blocked_ms

    def connection_held(self, listener: str, hold_ms: int) -> None:
        self.held.append(hold_ms)

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        self.would_hold.append(hold_ms)

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        self.refused[cause] += 1

    def accept_failed(self, listener: str) -> None:
        self.failures += 1


class Client:
    """The client's side of a connection."""

    def __init__(self, port: int, source: str) -> None:
        self.sock = socket.socket()
        self.sock.bind((source, 0))
        self.sock.settimeout(60)
        self.sock.connect((HOST, port))
        self.sock.setblocking(False)

    @property
    def ended(self) -> str | None:
        """How the other side ended the connection; None: it did not."""
        try:
            return "closed" if self.sock.recv(1) == b"" else None
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return "reset"


class ListeningAcceptor:
    """Listeners that share their quotas; admitted sockets are kept."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        ip_rate: int | None = None,
        window_num: int = 11,
        proxy: ProxyProtocolSettings | None = None,
        **limits: Any,
    ) -> None:
        self.loop = FakeLoop(clock)
        self.limits = Limits()
        if ip_rate is not None:
            self.limits.set(QuotaEntity(ip=DEFAULT), QuotaKey.CONNECTION_CREATION_RATE, ip_rate)
        limits.setdefault("listeners", {"EXT": ListenerLimits()})
        self.connection_limits = ConnectionLimits(**limits)
        self.quotas = ConnectionQuotas(
            self.limits, self.connection_limits, window_num=window_num, now_ms=clock.now_ms
        )
        self.seen = Seen()
        self.admitted: list[AcceptedSocket] = []
        self.acceptors: dict[str, Acceptor] = {}
        self.stack = ExitStack()
        for name in self.connection_limits.listeners:
            acceptor = Acceptor(
                name,
                loop=self.loop,  # type: ignore[arg-type]
                now_ms=self.loop.now_ms,
                quotas=self.quotas,
                observer=self.seen,
                on_admitted=self.admitted.append,
                proxy=proxy,
            )
            acceptor.listen((HOST, 0), None)
            self.acceptors[name] = acceptor
            self.stack.callback(acceptor.stop)

    @property
    def acceptor(self) -> Acceptor:
        return self.acceptors["EXT"]

    def connect(self, count: int = 1, *, listener: str = "EXT", source: str = HOST) -> list[Client]:
        """Opens connections, and lets the acceptor process them."""
        clients = self.connect_unseen(count, listener=listener, source=source)
        self.loop.run()
        return clients

    def connect_unseen(self, count: int = 1, *, listener: str = "EXT", source: str = HOST) -> list[Client]:
        port = self.acceptors[listener].ports[None]
        assert port is not None
        clients = [Client(port, source) for _ in range(count)]
        for client in clients:
            self.stack.callback(client.sock.close)
        return clients

    def release(self, listener: str = "EXT") -> None:
        """Ends the oldest admitted connection."""
        accepted = self.admitted.pop(0)
        accepted.sock.close()
        self.quotas.release(listener, accepted.ip)
        for acceptor in self.acceptors.values():
            acceptor.slot_freed()
        self.loop.run()

    def close(self) -> None:
        for accepted in self.admitted:
            accepted.sock.close()
        self.stack.close()
