"""Sockets of load balancers, from accept to the end of their PROXY header (hazards H24 to H27).

The header is read on the socket itself, before any decision about the client's address. The gateway peeks at the
received bytes and takes only the header out of the kernel, so that TLS or Kafka gets its first byte. A waiting socket
has no transport and no buffer except the header's. It has a deadline and a reserved slot. The number of waiting
sockets is bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from config.sections.listeners import ProxyProtocolSettings
from gateway.net.accepted_socket import AcceptedSocket
from gateway.runtime.lateness import LATE_MS
from protocol.proxy_protocol import NoProxyHeader, ProxyHeader, ProxyHeaderReader, ProxyProtocolError
from quotas.connections import AdmissionCause
from quotas.ip_limits import normalise

OnHeader: TypeAlias = Callable[[AcceptedSocket, ProxyHeader], None]
OnRefused: TypeAlias = Callable[[AcceptedSocket, AdmissionCause], None]

_REMEMBERED: Final = 1_024


@dataclass(slots=True)
class _Waiting:
    """One socket without its header."""

    reader: ProxyHeaderReader
    deadline: asyncio.TimerHandle | None = None


class ProxyProtocolAcceptor:
    """The sockets of one listener whose header is being read.

    Attributes:
        waiting: sockets whose header is incomplete.
    """

    def __init__(
        self,
        settings: ProxyProtocolSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        on_header: OnHeader,
        on_refused: OnRefused,
    ) -> None:
        """Create an acceptor.

        Args:
            settings: of the listener.
            loop: watches the sockets.
            on_header: takes over a socket with its header.
            on_refused: takes over a socket that is to be closed.
        """
        self.waiting: dict[AcceptedSocket, _Waiting] = {}
        self._settings = settings
        self._loop = loop
        self._on_header = on_header
        self._on_refused = on_refused
        self._trusted = [ipaddress.ip_network(each) for each in settings.trusted]
        self._trusts = lru_cache(_REMEMBERED)(self._look_up)

    def trusts(self, ip: str) -> bool:
        """Whether this peer is a trusted load balancer."""
        return self._trusts(ip)

    def _look_up(self, ip: str) -> bool:
        address = ipaddress.ip_address(normalise(ip))
        return any(address in network for network in self._trusted)

    def wait(self, accepted: AcceptedSocket) -> None:
        """Read the header of a socket with a reserved slot. Often it has already arrived."""
        if len(self.waiting) >= self._settings.max_waiting:
            self._on_refused(accepted, AdmissionCause.PROXY_FULL)
            return
        accepted.sock.setblocking(False)
        waiting = self.waiting[accepted] = _Waiting(ProxyHeaderReader())
        self._read(accepted)
        if accepted in self.waiting:
            self._loop.add_reader(accepted.sock.fileno(), self._read, accepted)
            self._arm(accepted, waiting)

    def _arm(self, accepted: AcceptedSocket, waiting: _Waiting) -> None:
        timeout_ms = self._settings.timeout_ms
        due_ms = self._loop.time() * 1000 + timeout_ms
        waiting.deadline = self._loop.call_later(
            timeout_ms / 1000, self._timed_out, accepted, waiting, due_ms
        )

    def _timed_out(self, accepted: AcceptedSocket, waiting: _Waiting, due_ms: float) -> None:
        if self._loop.time() * 1000 - due_ms >= LATE_MS:
            self._arm(accepted, waiting)
        else:
            self._refuse(accepted, AdmissionCause.PROXY_TIMEOUT)

    def stop(self) -> list[AcceptedSocket]:
        """Stop watching all sockets.

        Returns:
            The sockets, which the caller closes and whose slots it frees.
        """
        accepted_sockets = list(self.waiting)
        for accepted in accepted_sockets:
            self._forget(accepted)
        return accepted_sockets

    def _read(self, accepted: AcceptedSocket) -> None:
        reader, sock = self.waiting[accepted].reader, accepted.sock
        try:
            data = sock.recv(reader.most, socket.MSG_PEEK)
            if not data:
                self._refuse(accepted, AdmissionCause.PROXY_CLOSED)
                return
            taken = reader.feed(data)
            if len(sock.recv(taken)) != taken:
                raise ConnectionError("what was there is gone")
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._refuse(accepted, AdmissionCause.PROXY_CLOSED)
        except NoProxyHeader:
            self._refuse(accepted, AdmissionCause.PROXY_MISSING)
        except ProxyProtocolError:
            self._refuse(accepted, AdmissionCause.PROXY_INVALID)
        else:
            if reader.header is not None:
                self._forget(accepted)
                self._on_header(accepted, reader.header)

    def _refuse(self, accepted: AcceptedSocket, cause: AdmissionCause) -> None:
        self._forget(accepted)
        self._on_refused(accepted, cause)

    def _forget(self, accepted: AcceptedSocket) -> None:
        waiting = self.waiting.pop(accepted)
        if waiting.deadline is not None:
            waiting.deadline.cancel()
            # The descriptor's number may belong to another connection once this one is closed (hazard H27).
            self._loop.remove_reader(accepted.sock.fileno())
