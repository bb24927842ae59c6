"""Accepts sockets of one listener and admits connections by KIP-612 and KIP-402, in place of the loop's accept.

uvloop accepts without a bound, and without free file descriptors it accepts and closes silently. So this module
watches the listening sockets for readability and accepts a bounded number of sockets per turn of the loop (hazards
B23, F01, F02). It decides on the accepted socket, before TLS and before a byte is read:

    ADMIT   The socket is handed over.
    WAIT    Over the gateway's or this listener's rate, or no free slot: no port of this listener accepts until the
            wait is over. Connections wait in the kernel's backlog. None is refused.
    HOLD    Over the address's rate: the socket stays unread for the throttle time, then is closed or decided again.
    REFUSE  The socket is closed.

Behind load balancers (`proxy_acceptor.py`) the limits that need no address are applied at accept. Those of an address
are applied once the header has named the client.

A throttled socket has no transport, so the bytes that its client sends stay in the kernel, bounded by the receive
buffer (hazard B16).
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
        accepted: number of sockets accepted so far, whatever the decision.
        waits_since_ms: when the waiting socket, which blocks accepting, began to wait; None: no socket waits.
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
        """Create an acceptor without ports.

        Args:
            listener: the listener's name in `quotas`, metrics and logs.
            loop: watches the sockets.
            now_ms: the clock.
            quotas: decides; shared by all listeners.
            observer: notified of delays, throttles and refusals.
            on_admitted: takes over an admitted socket, which is already counted.
            on_slot_freed: called when a socket with a slot is closed without being admitted; None: a socket that
                waits here gets the slot.
            proxy: the load balancers from which all connections come; None: no load balancers.
            write_timeout_ms: of the sessions; see `keepalive`.
            usage: the usage records; None: no usage records are kept.
            journal: the journal of throttles; None: no journal is kept.
            accepts_per_turn: the most sockets accepted in a turn of the loop.
            listening: creates listening sockets; None: no socket is inherited.
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
            address: where to bind. The socket is listening when this returns.
            broker_id: the broker for clients of this port, None for the bootstrap port.

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
        """Close one port; its connections stay."""
        listening = self._sockets.pop(broker_id, None)
        if listening is not None:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    @property
    def open_sockets(self) -> Iterator[tuple[Address, socket.socket]]:
        """The listening sockets, each with its configured address."""
        for broker_id, listening in self._sockets.items():
            yield self._addresses[broker_id], listening

    def suspend(self) -> AcceptedSocket | None:
        """Stop accepting until `resume`. The caller takes over the returned waiting socket."""
        waiting, self._waiting = self._waiting, None
        self.waits_since_ms = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._suspended = True
        self._pause(0)
        return waiting

    def resume(self, waiting: AcceptedSocket | None = None) -> None:
        """Accept again, beginning with this socket, which has waited here or in the old process."""
        self._suspended = False
        if self._wake is not None:
            self._wake.cancel()
        if waiting is not None:
            if self._waiting is not None:  # a socket whose hold has ended; only one can wait
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
        """Number of sockets whose PROXY header has not been read."""
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
                    continue  # this connection broke before it was accepted
                self._observer.accept_failed(self._listener)
                _log.error("accept_failed", listener=self._listener, error=exc.strerror)
                # The watch is level-triggered: without a pause it would call this again and again.
                self._pause(_RETRY_ACCEPT_MS)
                return
            self.accepted += 1
            accepted = AcceptedSocket(sock, peer[0], peer[1], broker_id)
            if self._proxy_acceptor is not None and not self._proxy_acceptor.trusts(accepted.ip):
                # Not counted: unknown peers must not use up the rate of clients behind the load balancer.
                self._refuse(accepted, AdmissionCause.PROXY_UNTRUSTED)
                continue
            now_ms = self._now_ms()
            self._follow(accepted, self._admit(accepted, now_ms, waited=False), now_ms)

    def _admit(self, accepted: AcceptedSocket, now_ms: int, *, waited: bool) -> Admission:
        if self._proxy_acceptor is not None:
            return self._quotas.reserve(self._listener, now_ms=now_ms, waited=waited)
        return self._quotas.admit(self._listener, accepted.ip, now_ms=now_ms, waited=waited)

    def _header_read(self, accepted: AcceptedSocket, header: ProxyHeader) -> None:
        """Take the complete PROXY header. A header without a source is for the load balancer's own connection."""
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
            # In an attack the kernel must not keep state for the connection either (hazard B15).
            accepted.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        accepted.sock.close()

    # -- waiting ---------------------------------------------------------------------------------------------

    def _pause(self, wait_ms: int) -> None:
        """Stop accepting for this time; 0: until a slot is free (`slot_freed`)."""
        if not self._paused:
            self._paused = True
            for listening in self._sockets.values():
                self._loop.remove_reader(listening.fileno())
        if wait_ms > 0:
            self._wake = self._loop.call_later(wait_ms / 1000, self._go_on)

    def slot_freed(self) -> None:
        """Let the waiting socket try again, because a connection has ended or the limits have changed."""
        if self._paused and self._wake is None and not self._suspended and not self._listening.held:
            self._go_on()

    def _go_on(self) -> None:
        self._wake = None
        if self._suspended:  # scheduled for a socket whose hold has ended meanwhile
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
