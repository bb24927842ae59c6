"""Accepts sockets of one listener and admits connections by KIP-612 and KIP-402, in place of the loop's accept.

uvloop accepts greedily, and at the end of the file descriptors it accepts and closes silently; so the
listening sockets are watched for readability and accepted from here, a bounded number of times per turn of the loop
(hazards B23, F01, F02). Admission is decided on the accepted socket before TLS and before one byte is read:

    ADMIT   handed over.
    WAIT    over the gateway's or this listener's rate, or no slot: no port of this listener accepts until the wait
            is over. Connections in the kernel's backlog keep waiting there. None is refused.
    HOLD    over the address's rate: kept unread for the throttle time, then closed or looked at again.
    REFUSE  closed.

Behind load balancers (`proxy_acceptor.py`) the limits that need no address are applied at accept, those of an address
once the header has named the client.

A throttled socket has no transport, so what its client sends stays in the kernel, bounded by the receive buffer
(B16).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import structlog

from config.sections.listeners import ProxyProtocolSettings
from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.listening import ListeningSockets
from gateway.net.proxy_acceptor import ProxyProtocolAcceptor
from gateway.net.stalled_write import RESET_ON_CLOSE
from gateway.observability.events import ConnectionObserver
from gateway.observability.logging_setup import flooded
from gateway.observability.throttle_journal import Reading, ThrottleJournal
from gateway.runtime.clock import NowMs
from gateway.upstream.topology import Address
from gateway.usage.connections import ConnectionUsage
from protocol.proxy_protocol import ProxyHeader
from quotas.connections import ADMIT, Admission, AdmissionCause, AdmissionDecision, ConnectionQuotas
from quotas.ip_limits import network_of, normalise

ACCEPTS_PER_TURN: Final = 4
_RETRY_ACCEPT_MS: Final = 100
_OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_UNDER_ATTACK: Final = frozenset(
    {AdmissionCause.HELD_FULL, AdmissionCause.PROXY_FULL, AdmissionCause.PROXY_UNTRUSTED}
)

_log = structlog.get_logger("gateway.acceptor")


OnAdmitted: TypeAlias = Callable[[AcceptedSocket], None]
OnSlotFreed: TypeAlias = Callable[[], None]


class Acceptor:
    """The ports of one listener, its waiting socket and its throttled sockets.

    Attributes:
        `held`: throttled sockets, unread for now.
        accepted: sockets taken from the kernel so far, whatever became of them.
        waits_since_ms: since when one waits for a slot while none is accepted; None: none waits.
    """

    def __init__(
        self,
        listener: str,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: NowMs,
        quotas: ConnectionQuotas,
        observer: ConnectionObserver,
        on_admitted: OnAdmitted,
        on_slot_freed: OnSlotFreed | None = None,
        proxy: ProxyProtocolSettings | None = None,
        write_timeout_ms: int = 30_000,
        usage: ConnectionUsage | None = None,
        journal: ThrottleJournal | None = None,
        accepts_per_turn: int = ACCEPTS_PER_TURN,
        listening: ListeningSockets | None = None,
    ) -> None:
        """Make it; nothing is bound yet.

        Args:
            listener: name in `quotas`, metrics and logs.
            loop: watches the sockets.
            now_ms: the clock.
            quotas: decides; shared by all listeners.
            observer: notified of delays, throttles and refusals.
            on_admitted: takes over a socket that is counted already.
            on_slot_freed: called when a socket that had a slot is closed without having been admitted; None: a socket
                that waits here gets the slot.
            proxy: the load balancers that all connections come from; None: there are none.
            write_timeout_ms: of the sessions; see `keepalive`.
            usage: the usage records; None: none are kept.
            journal: of throttles; None: none is kept.
            accepts_per_turn: at most so many sockets in a turn of the loop.
            listening: makes listening sockets; None: none is taken over.
        """
        self.held: dict[AcceptedSocket, tuple[Admission, asyncio.TimerHandle]] = {}
        self.accepted = 0
        self.waits_since_ms: int | None = None
        self._write_timeout_ms = write_timeout_ms
        self._listener = listener
        self._loop = loop
        self._accepts_per_turn = accepts_per_turn
        self._now_ms = now_ms
        self._quotas = quotas
        self._observer = observer
        self._on_admitted = on_admitted
        self._usage = usage
        self._journal = journal
        self._on_slot_freed = on_slot_freed or self.slot_freed
        self._proxy_acceptor = (
            None
            if proxy is None
            else ProxyProtocolAcceptor(
                proxy, loop=loop, on_header=self._header_read, on_refused=self._refuse_reserved
            )
        )
        self._sockets: dict[int | None, socket.socket] = {}
        self._addresses: dict[int | None, Address] = {}
        self._listening = listening or ListeningSockets()
        self._waiting: AcceptedSocket | None = None
        self._blocked_since_ms = 0
        self._wake: asyncio.TimerHandle | None = None
        self._paused = False
        self._suspended = False

    # -- ports -----------------------------------------------------------------------------------------------

    def listen(self, address: Address, broker_id: int | None) -> None:
        """Accept clients on one more port.

        Args:
            address: where to bind; a listening socket is ready when this returns.
            broker_id: the broker these clients want, None for the bootstrap port.

        Raises:
            OSError: the port cannot be bound; the message names it.
        """
        listening = self._listening.open(address, write_timeout_ms=self._write_timeout_ms)
        self._sockets[broker_id] = listening
        self._addresses[broker_id] = address
        if self._listening.held and not self._paused:
            self._paused = True
            self._listening.when_released(self._go_on)
        if not self._paused:
            self._loop.add_reader(listening.fileno(), self._accept, listening, broker_id)

    def stop_listening(self, broker_id: int | None) -> None:
        """Close one port; connections that came in by it stay."""
        listening = self._sockets.pop(broker_id, None)
        if listening is not None:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    @property
    def open_sockets(self) -> Iterator[tuple[Address, socket.socket]]:
        """What listens, and where it was configured to."""
        for broker_id, listening in self._sockets.items():
            yield self._addresses[broker_id], listening

    def suspend(self) -> AcceptedSocket | None:
        """Accept nothing until `resume`; the socket that waits for its turn is the caller's."""
        waiting, self._waiting = self._waiting, None
        self.waits_since_ms = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._suspended = True
        self._pause(0)
        return waiting

    def resume(self, waiting: AcceptedSocket | None = None) -> None:
        """Accept again, first this socket, which has waited here or in the process that this one replaces."""
        self._suspended = False
        if self._wake is not None:
            self._wake.cancel()
        if waiting is not None:
            if self._waiting is not None:  # a throttled one; there is one place
                self._waiting.sock.close()
            self._waiting = waiting
            self.waits_since_ms = self._blocked_since_ms = self._now_ms()
            self._pause(0)
        self._go_on()

    def stop(self) -> None:
        """Close all ports, and every socket that has not been admitted."""
        for broker_id in list(self._sockets):
            self.stop_listening(broker_id)
        if self._wake is not None:
            self._wake.cancel()
        if self._waiting is not None:
            self._waiting.sock.close()
            self._waiting = self.waits_since_ms = None
        for accepted, (admission, timer) in self.held.items():
            timer.cancel()
            self._quotas.abandon_hold(admission)
            accepted.sock.close()
        self.held.clear()
        for accepted in self._proxy_acceptor.stop() if self._proxy_acceptor is not None else ():
            self._quotas.cancel_reservation(self._listener)
            accepted.sock.close()

    @property
    def awaiting_header(self) -> int:
        """Sockets whose PROXY header has not been read."""
        return 0 if self._proxy_acceptor is None else len(self._proxy_acceptor.waiting)

    @property
    def ports(self) -> dict[int | None, int]:
        """Broker id (None: bootstrap) -> bound port."""
        return {broker_id: bound.getsockname()[1] for broker_id, bound in self._sockets.items()}

    # -- accepting -------------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket, broker_id: int | None) -> None:
        for _ in range(self._accepts_per_turn):
            if self._paused:
                return
            try:
                sock, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as exc:
                if exc.errno not in _OUT_OF_RESOURCES:
                    continue  # this one connection broke before it was accepted
                self._observer.accept_failed(self._listener)
                _log.error("accept_failed", listener=self._listener, error=exc.strerror)
                # Level-triggered: watching on would spin until a descriptor is free.
                self._pause(_RETRY_ACCEPT_MS)
                return
            self.accepted += 1
            accepted = AcceptedSocket(sock, peer[0], peer[1], broker_id)
            if self._proxy_acceptor is not None and not self._proxy_acceptor.trusts(accepted.ip):
                # Not even counted: strangers must not use up the rate of those who come through the balancer.
                self._refuse(accepted, AdmissionCause.PROXY_UNTRUSTED)
                continue
            now_ms = self._now_ms()
            self._follow(accepted, self._admit(accepted, now_ms, waited=False), now_ms)

    def _admit(self, accepted: AcceptedSocket, now_ms: int, *, waited: bool) -> Admission:
        if self._proxy_acceptor is not None:
            return self._quotas.reserve(self._listener, now_ms=now_ms, waited=waited)
        return self._quotas.admit(self._listener, accepted.ip, now_ms=now_ms, waited=waited)

    def _header_read(self, accepted: AcceptedSocket, header: ProxyHeader) -> None:
        """The PROXY header is complete; without a source the connection is the load balancer's own."""
        accepted.proxy = accepted.peer
        if header.source is not None:
            (accepted.ip, accepted.port), accepted.connected_to = header.source, header.destination
        now_ms = self._now_ms()
        admission = self._quotas.admit_reserved(self._listener, accepted.ip, now_ms=now_ms)
        self._follow(accepted, admission, now_ms)
        if admission.decision is not ADMIT:
            self._on_slot_freed()

    def _refuse_reserved(self, accepted: AcceptedSocket, cause: AdmissionCause) -> None:
        self._quotas.cancel_reservation(self._listener)
        self._record(accepted, Admission(AdmissionDecision.REFUSE, cause))
        self._refuse(accepted, cause)
        self._on_slot_freed()

    def _follow(self, accepted: AcceptedSocket, admission: Admission, now_ms: int) -> None:
        decision = admission.decision
        if self._proxy_acceptor is None or accepted.proxy is not None or decision is not ADMIT:
            self._record(accepted, admission)
        if decision is ADMIT and self._proxy_acceptor is not None and accepted.proxy is None:
            self._proxy_acceptor.wait(accepted)
        elif decision is ADMIT:
            if admission.wait_ms:
                self._observer.connection_would_be_held(self._listener, admission.wait_ms)
            self._on_admitted(accepted)
        elif decision is AdmissionDecision.WAIT:
            self._waiting = accepted
            self.waits_since_ms = self._blocked_since_ms = now_ms
            self._observer.accept_delayed(self._listener, admission.cause, admission.wait_ms)
            self._pause(admission.wait_ms)
        elif decision is AdmissionDecision.HOLD:
            self._hold(accepted, admission)
        else:
            self._refuse(accepted, admission.cause)

    def _record(self, accepted: AcceptedSocket, admission: Admission) -> None:
        if self._usage is not None:
            accepted.recorded = self._usage.decided(
                self._listener, accepted.ip, admission, counted=accepted.recorded
            )

    def _hold(self, accepted: AcceptedSocket, admission: Admission) -> None:
        self._observer.connection_held(self._listener, admission.wait_ms)
        if not flooded("connection_held"):
            _log.info(
                "connection_held", listener=self._listener, peer=accepted.peer, hold_ms=admission.wait_ms
            )
        self._note("held", accepted.ip, admission.wait_ms)
        self._close_later(accepted, admission)

    def _note(self, outcome: str, ip: str, wait_ms: int) -> None:
        if self._journal is None:
            return
        limit = self._quotas.ip_limit(ip)
        limited = limit.entity is not None
        self._journal.connection_throttled(
            normalise(ip),
            network_of(ip),
            outcome,
            float(limit.rate_per_s) if limited else None,
            limit.entity,
            wait_ms,
            Reading(rate=self._quotas.ip_rate(ip, now_ms=self._now_ms()) if limited else None),
        )

    def _close_later(self, accepted: AcceptedSocket, admission: Admission) -> None:
        delay_ms = max(0, admission.held_until_ms + 1 - self._now_ms())
        timer = self._loop.call_later(delay_ms / 1000, self._after_hold, accepted)
        self.held[accepted] = (admission, timer)

    def _after_hold(self, accepted: AcceptedSocket) -> None:
        admission, _ = self.held.pop(accepted)
        now_ms = self._now_ms()
        after = self._quotas.after_hold(self._listener, accepted.ip, admission, now_ms=now_ms)
        if after.decision is AdmissionDecision.HOLD:
            self._close_later(accepted, after)
        else:
            self._follow(accepted, after, now_ms)

    def _refuse(self, accepted: AcceptedSocket, cause: AdmissionCause) -> None:
        self._observer.connection_refused(self._listener, cause)
        if cause is AdmissionCause.IP_COUNT:
            self._note("refused", accepted.ip, 0)
        if not flooded("connection_refused"):
            _log.info("connection_refused", listener=self._listener, peer=accepted.peer, cause=cause.value)
        if cause in _UNDER_ATTACK:
            # Under attack: leave nothing behind in the kernel either (hazard B15).
            accepted.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        accepted.sock.close()

    # -- waiting ---------------------------------------------------------------------------------------------

    def _pause(self, wait_ms: int) -> None:
        """Accept none for so long; 0: until a slot is free (`slot_freed`)."""
        if not self._paused:
            self._paused = True
            for listening in self._sockets.values():
                self._loop.remove_reader(listening.fileno())
        if wait_ms > 0:
            self._wake = self._loop.call_later(wait_ms / 1000, self._go_on)

    def slot_freed(self) -> None:
        """A connection has ended, or the limits have changed: a socket that waits for a slot may have it now."""
        if self._paused and self._wake is None and not self._suspended and not self._listening.held:
            self._go_on()

    def _go_on(self) -> None:
        self._wake = None
        if self._suspended:  # the end of a hold wanted another try
            return
        now_ms = self._now_ms()
        accepted, self._waiting = self._waiting, None
        if accepted is not None:
            self._observer.accept_blocked(self._listener, now_ms - self._blocked_since_ms)
            admission = self._admit(accepted, now_ms, waited=True)
            if admission.decision is AdmissionDecision.WAIT:
                self._waiting = accepted
                self._blocked_since_ms = now_ms
                return
            self.waits_since_ms = None
            self._follow(accepted, admission, now_ms)
        self._paused = False
        for broker_id, listening in self._sockets.items():
            self._loop.add_reader(listening.fileno(), self._accept, listening, broker_id)
