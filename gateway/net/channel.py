"""ClientChannel: the I/O of one client connection. Two transports, one timer, one boundary for exceptions.

The session makes all decisions: bytes go into it and chunks come out. After every call `_pump` reads, arms the timer
and closes as the session requires.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, Protocol, cast

import structlog

from gateway.net.accepted_socket import AcceptedSocket
from gateway.net.back_pressure import BackPressure
from gateway.net.batch_scheduler import BatchScheduler
from gateway.net.fitted_reads import MOST_READ_BYTES, FittedReads, bound_unsent, room_bytes
from gateway.net.lingering import Lingering
from gateway.net.long_work import SMALL_BYTES, LongWork
from gateway.net.peer_close import peer_gone
from gateway.net.stalled_write import StalledWriteDetector, reset_on_close
from gateway.observability.events import CloseCause, Side
from gateway.observability.traces import TraceSink
from gateway.runtime.clock import NowMs
from gateway.runtime.eager import Eager
from gateway.session.announced import AnnouncedLimits
from gateway.session.chunk_relay import NEVER_MS, TO_PUMP, ChunkRelay
from gateway.session.client_quotas import ClientQuotas
from gateway.session.memory_budget import MemoryBudget
from gateway.session.mute import MuteReason
from gateway.session.routes import Routes, SaslListener
from gateway.session.session import ClientSession
from gateway.session.settings import SessionSettings
from gateway.session.user_places import UserPlaces
from gateway.upstream.connector import Connector, UpstreamChannel
from gateway.upstream.keepalive import watch_connected
from gateway.upstream.proxy_header import Endpoints
from protocol.errors import ProtocolError, UpstreamDesync
from quotas.ip_limits import network_of

HIGH_WATER_BYTES: Final = 512 * 1024
"""With this many bytes unsent to the broker, the client is not read. Towards a client, one unsent byte is enough."""

FULL_READ_BYTES: Final = 256_000
"""A read of this size is a full one: uvloop then reads again in the same turn, up to 32 times."""

FIRST_LOOK_MS: Final = 5_000
"""`PeerCloseDetector` checks twice in this time. A timer that is due later is armed only after its first check."""

FULL_READS_PER_TURN: Final = 4
"""After so many full reads other connections have their turn."""

_SIDES: Final = {MuteReason.CLIENT_FULL: Side.CLIENT, MuteReason.UPSTREAM_FULL: Side.UPSTREAM}

# Plain numbers: an operation on members of an enum costs a microsecond.
_BACK_PRESSURE: Final = int(MuteReason.CLIENT_FULL | MuteReason.UPSTREAM_FULL)
_CLIENT_FULL: Final = int(MuteReason.CLIENT_FULL)
_DRAINING: Final = int(MuteReason.DRAINING)
_HALF_CLOSED: Final = int(MuteReason.HALF_CLOSED)
_WAITING: Final = int(MuteReason.THROTTLED | MuteReason.AWAITING_TURN)

# Looking up a member by its class costs a third of a microsecond.
_CLIENT_CLOSED: Final = CloseCause.CLIENT_CLOSED
_CONNECTING: Final = MuteReason.CONNECTING
_UPSTREAM: Final = Side.UPSTREAM
_UPSTREAM_CLOSED: Final = CloseCause.UPSTREAM_CLOSED

_UNREACHABLE: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})

_log = structlog.get_logger("gateway.channel")


class ChannelOwner(Protocol):
    """The part of a listener that its channels need."""

    name: str
    loop: asyncio.AbstractEventLoop
    now_ms: NowMs
    connector: Connector
    settings: SessionSettings
    lingering: Lingering
    scheduler: BatchScheduler
    long_work: LongWork
    back_pressure: BackPressure
    memory: MemoryBudget
    announced: AnnouncedLimits
    spreads: bool

    def closed(self, channel: ClientChannel, cause: CloseCause) -> None:
        """Remove a channel that has ended."""

    def refused(self, cause: CloseCause, *, detail: str, **names: Any) -> None:
        """Log that a peer's bytes broke the format."""


class ClientChannel:
    """One client connection and its upstream leg.

    Attributes:
        session: the state of the connection and all decisions.
        broker_id: the broker that the client requested by port or by name; None: any.
        ip: the peer's address, by which connections are counted.
        endpoints: see `UpstreamUser`.
    """

    __slots__ = (
        "_client",
        "_client_ended",
        "_closed",
        "_connecting",
        "_fits_until_bytes",
        "_fitted",
        "_full_reads",
        "_loop",
        "_meter",
        "_now_ms",
        "_outlived",
        "_owner",
        "_reading",
        "_relay",
        "_stepping",
        "_timer",
        "_transport",
        "_upstream",
        "_upstream_reading",
        "_upstream_watched",
        "_write_watches",
        "broker_id",
        "endpoints",
        "ip",
        "session",
    )

    def __init__(
        self,
        session: ClientSession,
        owner: ChannelOwner,
        broker_id: int | None,
        client: socket.socket,
        *,
        ip: str = "",
    ) -> None:
        self.ip = ip
        self._client = client
        self.endpoints: Endpoints | None = None
        self.session = session
        self._meter = session.meter
        self.broker_id = broker_id
        self._owner = owner
        self._loop = owner.loop
        self._now_ms = owner.now_ms
        self._relay = ChunkRelay(session, owner.loop.time)
        self._transport: asyncio.Transport | None = None
        self._upstream: asyncio.Transport | None = None
        self._connecting: Eager | None = None
        self._reading = True
        self._upstream_reading = True
        self._upstream_watched = False  # the kernel detects a broker that has vanished
        self._stepping = False
        self._full_reads = 0  # consecutive ones: a read that is not full is the last one of its turn
        self._fitted = False  # whether `FittedReads` reads from the broker
        self._fits_until_bytes = 0  # of bytes from the broker: up to here the client's socket has room
        self._timer: asyncio.TimerHandle | None = None
        self._outlived = False
        self._write_watches: dict[MuteReason, StalledWriteDetector] = {}
        self._closed = False
        self._client_ended = False  # it has closed its side, and was not only refused

    def lead_to(self, broker_id: int | None) -> None:
        """Set the broker that the client named in its TLS handshake."""
        self.broker_id = broker_id
        self.session.lead_to(broker_id)

    # -- the client's transport ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with the client's transport."""
        # uvloop's transports have the methods without the base class.
        self._transport = transport = cast("asyncio.Transport", transport)
        if self._closed:
            # The gateway began to drain after this socket was accepted.
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)
        self._relay.to_client = transport.write
        self._run(self._begin)

    def _begin(self) -> None:
        if self.session.authentication is None:
            self.session.user_known(now_ms=self._now_ms())
        if self.session.muted:
            # uvloop begins to read after `connection_made`; an earlier pause would have no effect.
            self._loop.call_soon(self._run, self._pump_if_open)
        else:
            self._pump()

    def _pump_if_open(self) -> None:
        if not self._closed:
            self._pump()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if len(data) >= FULL_READ_BYTES:
            self._read_much(self._transport)
        elif self._full_reads:
            self._full_reads = 0
        try:
            taken = self._relay.request(data)
            if taken:
                if taken == TO_PUMP:
                    self._pump()
                return
            meter = self._meter
            if meter is not None and meter.on:
                meter.event_ns = perf_counter_ns()
            self.session.receive_from_client(data, now_ms=self._now_ms())
            self._pump()
            if meter is not None and meter.on:
                meter.spend(perf_counter_ns())
        except Exception as exc:  # noqa: BLE001  (the boundary: see _failed)
            self._failed(exc)

    def eof_received(self) -> bool:
        """Note that the client has closed its side; keep the other direction open for outstanding replies."""
        self._client_ended = True
        self._run(self._half_closed)
        return not self._closed

    def _half_closed(self) -> None:
        self.session.client_half_closed()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel after the client's leg has ended."""
        self._transport = self._relay.to_client = None
        # Only the kernel's own deadlines end a connection like this: see `keepalive`.
        unreachable = isinstance(exc, OSError) and exc.errno in _UNREACHABLE
        self.close(CloseCause.CLIENT_UNREACHABLE if unreachable else _CLIENT_CLOSED)

    def unread_fd(self) -> int | None:
        """See `peer_close.Watched`."""
        return None if self._reading else self._client_fd()

    def _client_fd(self) -> int | None:
        fd = self._client.fileno()
        return fd if fd >= 0 else None  # negative: the connection broke, and `connection_lost` follows

    @property
    def leaves_with_fin(self) -> bool:
        """See `peer_close.Watched`. A throttled client has its replies; others may wait for some (hazard B07)."""
        muted = self.session.muted
        return bool(muted & _WAITING) and not muted & _HALF_CLOSED

    def client_gone(self) -> None:
        """See `peer_close.Watched`. Bytes that wait for the end of a mute are dropped (hazard C16)."""
        self.close(_CLIENT_CLOSED)

    def pause_writing(self) -> None:
        """Stop reading from broker and client: the client reads more slowly than the gateway writes."""
        self._hold_up(MuteReason.CLIENT_FULL)
        self._follow_upstream()
        self._fit_reads(True)

    def resume_writing(self) -> None:
        """Read again, after the client has caught up."""
        self._go_on(MuteReason.CLIENT_FULL)
        self._unmute(MuteReason.CLIENT_FULL)
        self._follow_upstream()

    def outlive_look(self) -> None:
        """See `peer_close.Watched`. Saves a timer and five system calls for connections with a single request."""
        self._run(self._outlive_look)

    def _outlive_look(self) -> None:
        if self._closed:
            return
        if not self._outlived:
            self._outlived = True
            if self._timer is None and self._relay.armed_ms < NEVER_MS:
                self._arm()
        if self._upstream is not None and not self._upstream_watched:
            self._upstream_watched = True
            connection = self._upstream.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):  # the connection may have ended already
                    watch_connected(connection.fileno(), connection.family)

    # -- the broker's transport ------------------------------------------------------------------------------

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        """See `UpstreamUser`."""
        if self._closed:
            transport.abort()
            return
        self._upstream = transport
        self._relay.to_upstream = transport.write
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._follow_upstream()
        self.session.unsent(_UPSTREAM, 0)
        self._unmute(_CONNECTING)

    def upstream_failed(self, cause: CloseCause) -> None:
        """See `UpstreamUser`."""
        self.close(cause)

    def upstream_received(self, data: bytes) -> None:
        """See `UpstreamUser`."""
        if len(data) >= FULL_READ_BYTES and not self._fitted:
            self._read_much(self._upstream)
            if self.session.bytes_from_upstream > self._fits_until_bytes:
                self._look_for_room()
        elif self._full_reads:
            self._full_reads = 0
        try:
            taken = self._relay.reply(data)
            if taken:
                if taken == TO_PUMP:
                    self._pump()
                return
            meter = self._meter
            if meter is not None and meter.on:
                meter.event_ns = perf_counter_ns()
            self.session.receive_from_upstream(data, now_ms=self._now_ms())
            self._pump()
            if meter is not None and meter.on:
                meter.spend(perf_counter_ns())
        except Exception as exc:  # noqa: BLE001  (the boundary: see _failed)
            self._failed(exc)

    def upstream_lost(self) -> None:
        """See `UpstreamUser`."""
        self._upstream = self._relay.to_upstream = None
        if not self.session.closing_later:  # brokers close after a refusal; its reply is still delayed
            self.close(_UPSTREAM_CLOSED)

    def upstream_writable(self, writable: bool) -> None:
        """See `UpstreamUser`."""
        if writable:
            self._go_on(MuteReason.UPSTREAM_FULL)
            self._unmute(MuteReason.UPSTREAM_FULL)
        else:
            # Called from within a write; the writer checks the mute afterwards.
            self._hold_up(MuteReason.UPSTREAM_FULL)

    def _read_much(self, transport: asyncio.Transport | None) -> None:
        self._full_reads += 1
        if self._full_reads == FULL_READS_PER_TURN and transport is not None:
            self._full_reads = 0
            self._read_later(transport)

    def _read_later(self, transport: asyncio.Transport) -> None:
        transport.pause_reading()
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._closed:
            return
        for transport, reading in (
            (self._transport, self._reading),
            (self._upstream, self._upstream_reading),
        ):
            if transport is not None and reading and not transport.is_closing():
                transport.resume_reading()

    def _look_for_room(self) -> None:
        """Fit reads if the client's socket has no room for two reads; otherwise set when to check again."""
        if self._transport is not None:
            room = room_bytes(self._transport)
            if room is not None and not self._fits_until_bytes:
                bound_unsent(self._transport)
            # If the kernel does not report the room, reads are fitted once the client has not taken some bytes.
            left_bytes = 2 * MOST_READ_BYTES if room is None else room - 2 * MOST_READ_BYTES
            self._fits_until_bytes = self.session.bytes_from_upstream + left_bytes
            self._fit_reads(left_bytes < 0)

    def _fit_reads(self, fitted: bool) -> None:
        upstream, client = self._upstream, self._transport
        if fitted is self._fitted or upstream is None or client is None or upstream.is_closing():
            return
        if upstream.get_extra_info("ssl_object") is None:  # with TLS, `ReceiveBuffer` bounds the reads
            self._fitted = fitted
            protocol = FittedReads(self, client) if fitted else UpstreamChannel(self)
            upstream.set_protocol(cast("asyncio.BaseProtocol", protocol))

    def read_full(self) -> None:
        """See `FittedUser`."""
        if self._upstream is not None:
            self._read_later(self._upstream)

    def client_has_room(self) -> None:
        """See `FittedUser`."""
        self._fits_until_bytes = 0
        self._fit_reads(False)

    def _hold_up(self, reason: MuteReason) -> None:
        """Begin back pressure, which is measured and watched until `_go_on` or the end of the channel."""
        upstream = reason is MuteReason.UPSTREAM_FULL
        transport = self._upstream if upstream else self._transport
        if not self._closed and not self.session.muted & reason:
            self._owner.back_pressure.begin(_SIDES[reason], now_ms=self._now_ms())
            if transport is not None:
                stalled = partial(self._stalled, upstream)
                self._write_watches[reason] = StalledWriteDetector(
                    self._owner, transport, stalled, upstream=upstream
                )
        self.session.mute(reason)
        if transport is not None and not self._closed:
            self.session.unsent(_SIDES[reason], transport.get_write_buffer_size())

    def _stalled(self, upstream: bool) -> None:
        if not upstream and self._transport is not None:
            reset_on_close(self._transport)
        self.close(CloseCause.UPSTREAM_STALLED if upstream else CloseCause.WRITE_TIMEOUT, abort=not upstream)

    def _go_on(self, reason: MuteReason) -> None:
        if not self._closed and self.session.muted & reason:
            self._owner.back_pressure.end(_SIDES[reason], now_ms=self._now_ms())
            self.session.unsent(_SIDES[reason], 0)
        watch = self._write_watches.pop(reason, None)
        if watch is not None:
            watch.stop()

    # -- carrying out ----------------------------------------------------------------------------------------

    def _run(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as exc:  # noqa: BLE001  (the boundary: see _failed)
            self._failed(exc)

    def _failed(self, exc: Exception) -> None:
        """The only exception boundary. Malformed bytes of a broker and bugs of the gateway close this channel.

        A bug is logged with a traceback. For malformed bytes of a client see `ClientSession.refuse`.
        """
        if isinstance(exc, UpstreamDesync):
            cause = CloseCause.UPSTREAM_DESYNC
        elif isinstance(exc, ProtocolError):
            cause = CloseCause.UPSTREAM_MALFORMED
        else:
            cause = CloseCause.INTERNAL_ERROR
            _log.error("channel_failed", **self._names(), exc_info=exc)
        if cause is not CloseCause.INTERNAL_ERROR:
            self._owner.refused(cause, detail=str(exc), **self._names())
        self.close(cause, abort=True)

    def _names(self) -> dict[str, Any]:
        return {"listener": self.session.listener, "peer": self.session.peer}

    def _pump(self) -> None:
        """Write the session's chunks to both sides, then read, arm the timer and close as the session requires."""
        session = self.session
        chunks = session.to_upstream
        if chunks:
            upstream = self._upstream
            if upstream is None:
                self._connect()
            else:
                if len(chunks) == 1:
                    upstream.write(chunks[0])
                else:
                    upstream.writelines(chunks)
                chunks.clear()
        chunks = session.to_client
        if chunks and self._transport is not None:
            if len(chunks) == 1:
                self._transport.write(chunks[0])
            else:
                self._transport.writelines(chunks)
            chunks.clear()
        if session.muted or not self._reading:
            self._follow_mute()
        if session.close_cause is not None:
            self.close(session.close_cause)
        elif session.wake_at_ms < self._relay.armed_ms:
            self._arm()

    def _follow_mute(self) -> None:
        session = self.session
        refusal = session.refusal
        if refusal is not None:
            session.refusal = None
            self._owner.refused(CloseCause(refusal.cause), detail=str(refusal), **self._names())
        reading = session.reading_client
        if reading is not self._reading and self._transport is not None:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        self._follow_upstream()
        if session.steps and not self._stepping:
            self._add_step()
        if session.muted & _DRAINING and session.drained:
            session.close(CloseCause.DRAINED)

    def _add_step(self, *, begun: bool = False) -> None:
        self._stepping = True
        put_off_bytes = self.session.put_off_bytes
        if 0 < put_off_bytes <= SMALL_BYTES:
            self._owner.long_work.add_small(self._take_step, put_off_bytes)
        else:
            # The rest of a frame's work comes before other connections' work, because it takes memory. The next frame
            # of this connection comes after it: else who sends thousands together would have all turns.
            self._owner.long_work.add(self._take_step, first=begun)

    def _take_step(self) -> None:
        """Run one step of long work for this client; its time counts as the client's, as for any other event."""
        self._stepping = False
        session, meter = self.session, self._meter
        if self._closed or not session.steps:
            return
        if meter is not None and meter.on:
            meter.event_ns = perf_counter_ns()

        def step() -> None:
            work = session.steps[0]
            session.take_step(now_ms=self._now_ms())
            if session.steps:
                self._add_step(begun=work in session.steps)
            self._pump()

        self._run(step)
        if meter is not None and meter.on:
            meter.spend(perf_counter_ns())

    def memory_freed(self) -> None:
        """See `ClientSession`."""
        self._unmute(MuteReason.MEMORY_FULL)

    def _unmute(self, reason: MuteReason) -> None:
        def step() -> None:
            self.session.unmute(reason, now_ms=self._now_ms())
            self._pump()

        self._run(step)

    def _follow_upstream(self) -> None:
        """Read from the broker, or do not, as the client and the session take it."""
        session, upstream = self.session, self._upstream
        reading = not session.muted & _CLIENT_FULL and not session.holds_upstream
        if upstream is None or reading is self._upstream_reading or upstream.is_closing():
            return
        self._upstream_reading = reading
        if reading:
            upstream.resume_reading()
        else:
            upstream.pause_reading()

    def _connect(self) -> None:
        """Connect to the broker, with the first bytes for it and not earlier (hazard B20)."""
        if self._connecting is None:
            self.session.mute(_CONNECTING)
            self.session.unsent(_UPSTREAM, sum(map(len, self.session.to_upstream)))
            owner = self._owner
            self._connecting = owner.connector.begin(self, self.broker_id, spread=owner.spreads)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._relay.armed_ms = wake_at_ms = self.session.wake_at_ms
        delay_ms = max(0, wake_at_ms - self._now_ms())
        if delay_ms > FIRST_LOOK_MS and not self._outlived:
            self._timer = None  # `outlive_look` arms it later
            return
        self._timer = self._loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._owner.scheduler.add(partial(self._run, self._due))

    def _due(self) -> None:
        self._relay.armed_ms = NEVER_MS
        if self._closed:
            return
        fd = self._client_fd() if self.leaves_with_fin else None
        if fd is not None and peer_gone(fd):
            # The client left since the last check or read: its waiting bytes must not continue (hazards C16, F06).
            self.client_gone()
            return
        self.session.on_timer(now_ms=self._now_ms())
        self._pump()

    # -- ending ----------------------------------------------------------------------------------------------

    def on_output_ready(self) -> None:
        """See `ClientSession`."""
        self._run(self._pump)

    def drain(self) -> None:
        """Take no further request; close as soon as everything taken is answered."""
        self.session.drain()
        self._run(self._pump)

    def close(self, cause: CloseCause, *, abort: bool = False) -> None:
        """End both legs, once; the first cause counts. With `abort`, unsent bytes are dropped."""
        if self._closed:
            return
        if self.session.muted & _BACK_PRESSURE:
            for reason in _SIDES:
                self._go_on(reason)
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        upstream, self._upstream = self._upstream, None
        self._relay.to_upstream = None
        session, lingering = self.session, self._owner.lingering
        if upstream is not None:
            # Whole requests still reach the broker, since with acks=0 the client gets no reply. The broker must not
            # take half a request for a whole one (hazard A08).
            if session.mid_request:
                upstream.abort()
            elif session.responses.idle and not session.responses.unanswered:
                upstream.close()  # the broker has replied to all requests
            else:
                lingering.close(upstream)
        transport = self._transport
        if transport is not None:
            if abort:
                transport.abort()
            else:
                lingering.close(transport, self._client, ended=self._client_ended)
        self._owner.closed(self, cause)


class ChannelFactory:
    """Creates the sessions and channels of one listener's clients."""

    def __init__(
        self,
        routes: Routes,
        *,
        quotas: ClientQuotas | None = None,
        sasl: SaslListener | None = None,
        traces: TraceSink | None = None,
        upstream: str = "",
        users: UserPlaces | None = None,
    ) -> None:
        """Create a factory.

        Args:
            routes: the handlers of requests.
            quotas: byte rates and request time; None: not enforced.
            sasl: the routes before and after authentication; None: clients do not authenticate.
            traces: for mutations and logins; None: no traces.
            upstream: the name of the listener's upstream.
            users: counts connections of users; None: they are not counted.
        """
        self._users = users
        self._routes = routes
        self._upstream = upstream
        self._quotas = quotas
        self._sasl = sasl
        self._traces = traces

    def __call__(self, owner: ChannelOwner, accepted: AcceptedSocket) -> ClientChannel:
        """Create the channel of an admitted socket, which the caller attaches to the socket."""
        session = ClientSession(
            self._routes,
            owner.settings,
            listener=owner.name,
            peer=accepted.peer,
            network=network_of(accepted.ip),
            address=accepted.ip,
            broker_id=accepted.broker_id,
            quotas=self._quotas,
            sasl=self._sasl,
            memory=owner.memory,
            announced=owner.announced.of(self._upstream, accepted.broker_id),
            traces=self._traces,
            users=self._users,
            now_ms=owner.now_ms(),
        )
        channel = ClientChannel(session, owner, accepted.broker_id, accepted.sock, ip=accepted.ip)
        session.on_output_ready = channel.on_output_ready
        session.on_memory_freed = channel.memory_freed
        session.begins_now = owner.long_work.begins_now
        if owner.connector.sends_header:
            channel.endpoints = accepted.endpoints
        return channel
