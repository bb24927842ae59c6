"""ClientSession: everything decided about one client connection. Pure: no socket, no clock, no timer.

The four-call contract: `receive_from_client`, `receive_from_upstream`, `on_timer` and the events of the shell
(`upstream_connected`, `client_half_closed`, `mute`, `unmute`) take `now_ms`; after any of them the shell
takes the chunks out of `to_upstream` and `to_client`, looks at `reading_client`, `reading_upstream` and
`close_cause`, and arms its timer for `wake_at_ms`. They raise `ProtocolError` when a peer broke the format.

Rules: bytes are relayed as they arrive, frames are held only when a handler collects them; replies leave in
request order; a mute takes effect between two frames, back pressure at once.
"""

from __future__ import annotations

from typing import Final

from gateway.close_cause import CloseCause
from gateway.in_flight import Answer, CollectedAnswer, InFlight, OnReply, Pending
from gateway.mute import MuteReason
from gateway.routes import Route, Routes, find_route
from gateway.session_settings import SessionSettings
from protocol.errors import MalformedBody, ProtocolError, Truncated
from protocol.headers import (
    HEAD,
    HEAD_BYTES,
    MIN_REQUEST_BYTES,
    read_client_id,
    refuse_size,
    unsupported,
)

NEVER_MS: Final = 2**62
_LONGEST_HEAD_BYTES: Final = 128 * 1024


_BACK_PRESSURE: Final = int(MuteReason.CONNECTING | MuteReason.UPSTREAM_FULL | MuteReason.CLIENT_FULL)
_IN_FLIGHT_FULL: Final = int(MuteReason.IN_FLIGHT_FULL)
_THROTTLED: Final = int(MuteReason.THROTTLED)
_HALF_CLOSED: Final = int(MuteReason.HALF_CLOSED)


class ClientSession:
    """One client connection and its upstream leg.

    Attributes:
        listener, peer: names for logs and metrics.
        user: principal name; ANONYMOUS until somebody authenticates.
        to_upstream, to_client: chunks for the shell to write, in order.
        muted: set of `MuteReason`, as a number.
        wake_at_ms: when the shell must call `on_timer`; the shell may call it earlier.
        close_cause: set when the connection is to be closed.
        bytes_from_client, bytes_from_upstream: counted by the session, read by the metrics.
    """

    __slots__ = (
        "_collecting",
        "_collecting_bytes",
        "_collecting_route",
        "_frame_deadline_ms",
        "_head",
        "_held",
        "_idle_since_ms",
        "_relay_left",
        "_routes",
        "_settings",
        "_started",
        "_throttled_until_ms",
        "bytes_from_client",
        "bytes_from_upstream",
        "close_cause",
        "in_flight",
        "listener",
        "muted",
        "peer",
        "to_client",
        "to_upstream",
        "upstream_muted",
        "user",
        "wake_at_ms",
    )

    def __init__(
        self, routes: Routes, settings: SessionSettings, *, listener: str, peer: str, now_ms: int
    ) -> None:
        self.listener = listener
        self.peer = peer
        self.user = "ANONYMOUS"
        self.to_upstream: list[bytes] = []
        self.to_client: list[bytes] = []
        self.muted = 0
        self.upstream_muted = False
        self.close_cause: CloseCause | None = None
        self.in_flight = InFlight(
            self.to_client, self.throttle, max_response_bytes=settings.max_response_bytes
        )
        self.bytes_from_client = 0
        self.bytes_from_upstream = 0
        self._routes = routes
        self._settings = settings
        self._started = False
        self._relay_left = 0  # bytes of the current request that are still to be relayed
        self._head = bytearray()  # a request's first bytes, until its route is known
        self._collecting: bytearray | None = None
        self._collecting_bytes = 0
        self._collecting_route: Route | None = None
        self._held: list[bytes] = []  # received behind a mute
        self._throttled_until_ms = 0
        self._idle_since_ms = now_ms
        self._frame_deadline_ms = now_ms + settings.first_frame_timeout_ms
        self.wake_at_ms = self._frame_deadline_ms

    # -- from the client -------------------------------------------------------------------------------------

    def receive_from_client(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes; raises `ProtocolError` when they are not requests that may pass."""
        self.bytes_from_client += len(data)
        self._idle_since_ms = now_ms
        if self._held:
            self._held.append(data)
            return
        self._take_from_client(data, now_ms)

    def _take_from_client(self, data: bytes, now_ms: int) -> None:
        start = at = 0
        if self._relay_left:
            received = len(data)
            if self._relay_left > received:
                self._relay_left -= received
                self.to_upstream.append(data)
                return
            at = self._relay_left
            self._relay_left = 0
        elif self._head or self._collecting is not None:
            if self.muted:
                self._held.append(data)
                return
            if self._collecting is None:
                self._head += data
                data = bytes(self._head)
                self._head.clear()
            else:
                start = at = self._collect_more(data, now_ms)
                if self._collecting is not None:
                    return
        self._take_frames(data, start, at, now_ms)

    def _take_frames(self, data: bytes, start: int, at: int, now_ms: int) -> None:
        """Walk the frames that start in `data[at:]`; `data[start:at]` is the end of an earlier, relayed one."""
        received = len(data)
        routes = self._routes
        pending = self.in_flight.pending
        most_in_flight = self._settings.max_in_flight_requests
        while at < received:
            if self.muted:
                self._relay(data, start, at)
                self._held.append(data[at:] if at else data)
                # What is held back by us has its time once it is looked at.
                self._frame_deadline_ms = NEVER_MS
                return
            if received - at < HEAD_BYTES:
                break
            size, number, correlation_id, client_id_length = HEAD.unpack_from(data, at)
            route = routes.get(number) or find_route(routes, number)
            if (
                route is None
                or not MIN_REQUEST_BYTES <= size <= route.max_request_bytes
                or client_id_length > size - MIN_REQUEST_BYTES
            ):
                raise self._refusal(size, number, client_id_length)
            if route.head is not None:
                if not route.head.on_head(self, route, data, at, client_id_length, now_ms=now_ms):
                    if received - at >= min(size + 4, _LONGEST_HEAD_BYTES):
                        raise Truncated
                    break
            elif route.collect is not None:
                self._relay(data, start, at)
                end = at + 4 + size
                if end > received:
                    self._collecting = bytearray(data[at:])
                    self._collecting_bytes = size + 4
                    self._collecting_route = route
                    self._expect_rest(size, now_ms)
                    return
                route.requests += 1
                self._started = True
                frame = data[at:end]
                at = start = end
                route.collect.on_request(self, route, frame, now_ms=now_ms)
                if len(pending) >= most_in_flight:
                    self.muted |= _IN_FLIGHT_FULL
                continue
            else:
                pending.append(Pending(correlation_id))
            route.requests += 1
            self._started = True
            at += 4 + size
            if len(pending) >= most_in_flight:
                self.muted |= _IN_FLIGHT_FULL
        if at > received:
            self._relay_left = at - received
            self._expect_rest(self._relay_left, now_ms)
            at = received
        self._relay(data, start, at)
        if at < received:
            self._keep_head(data, at, now_ms)
        elif not self._relay_left:
            self._frame_deadline_ms = NEVER_MS

    def _relay(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self.to_upstream.append(data if end - start == len(data) else data[start:end])

    def _keep_head(self, data: bytes, at: int, now_ms: int) -> None:
        """Keep an incomplete head; refuse already now what its four size bytes show to be impossible."""
        self._head += data[at:]
        if len(self._head) >= 4:
            size = int.from_bytes(self._head[:4], "big", signed=True)
            # The largest payload of any route is only known with its key; this bound is refused whatever follows.
            limit = self._settings.max_frame_bytes
            if size < MIN_REQUEST_BYTES or size > limit:
                raise refuse_size(size, limit)
        if at or self._frame_deadline_ms == NEVER_MS:
            # With `at` this is a new frame behind the end of another, whose deadline does not concern it.
            self._expect_rest(0, now_ms)

    def _collect_more(self, data: bytes, now_ms: int) -> int:
        """Add to the request that is collected; handle it when it is whole. Returns where the next frame starts."""
        collecting, route = self._collecting, self._collecting_route
        assert collecting is not None
        assert route is not None
        missing = self._collecting_bytes - len(collecting)
        collecting += data[:missing]
        if len(collecting) < self._collecting_bytes:
            return len(data)
        self._collecting = None
        self._frame_deadline_ms = NEVER_MS
        route.requests += 1
        self._started = True
        assert route.collect is not None
        route.collect.on_request(self, route, bytes(collecting), now_ms=now_ms)
        if len(self.in_flight) >= self._settings.max_in_flight_requests:
            self.muted |= _IN_FLIGHT_FULL
        return missing

    def _expect_rest(self, missing_bytes: int, now_ms: int) -> None:
        settings = self._settings
        deadline_ms = (
            now_ms + settings.frame_timeout_ms + missing_bytes * 1000 // settings.min_frame_bytes_per_s
        )
        self._frame_deadline_ms = deadline_ms
        if deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def _refusal(self, size: int, number: int, client_id_length: int) -> ProtocolError:
        route = self._routes.get(number) or find_route(self._routes, number)
        limit = self._settings.max_frame_bytes if route is None else route.max_request_bytes
        if not MIN_REQUEST_BYTES <= size <= limit:
            return refuse_size(size, limit)
        if route is None:
            return unsupported(number)
        return MalformedBody(f"client id of {client_id_length} bytes in a frame of {size}")

    # -- from the broker -------------------------------------------------------------------------------------

    def receive_from_upstream(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes; raises `UpstreamDesync` when they do not answer the requests in order."""
        self.bytes_from_upstream += len(data)
        self._idle_since_ms = now_ms
        in_flight = self.in_flight
        in_flight.receive(data, now_ms)
        if self.muted:
            if self.muted & _IN_FLIGHT_FULL and len(in_flight) <= self._settings.max_in_flight_requests // 2:
                self.muted &= ~_IN_FLIGHT_FULL
            if self.muted & _HALF_CLOSED and in_flight.idle and not self._held:
                self.close(CloseCause.CLIENT_CLOSED)
        if self._held and not self.muted & ~_HALF_CLOSED:
            self._resume(now_ms)

    # -- verbs for handlers ----------------------------------------------------------------------------------

    def forward(self, frame: bytes, correlation_id: int, answer: Answer | None = None) -> None:
        """Send a whole request frame upstream; `answer` says what becomes of its reply (None: relayed)."""
        self.in_flight.pending.append(Pending(correlation_id, answer))
        self.to_upstream.append(frame)

    def ask_upstream(self, frame: bytes, correlation_id: int, on_reply: OnReply) -> None:
        """Send a question of our own on this client's upstream connection; its reply goes to `on_reply` alone."""
        self.forward(frame, correlation_id, CollectedAnswer(on_reply))

    def reply(self, frame: bytes) -> None:
        """Answer a request here; the frame waits for the replies of earlier requests (hazard A38)."""
        self.in_flight.reply(frame)

    def throttle(self, throttle_time_ms: int, *, now_ms: int) -> None:
        """Read nothing more from the client for this long (KIP-219); a longer mute under way stays."""
        if throttle_time_ms <= 0:
            return
        until_ms = now_ms + min(throttle_time_ms, self._settings.max_mute_ms)
        if until_ms > self._throttled_until_ms:
            self._throttled_until_ms = until_ms
        self.muted |= _THROTTLED
        if self._throttled_until_ms < self.wake_at_ms:
            self.wake_at_ms = self._throttled_until_ms

    def close(self, cause: CloseCause) -> None:
        """Ask the shell to close both legs; the first cause counts."""
        if self.close_cause is None:
            self.close_cause = cause

    @staticmethod
    def client_id_of(frame: bytes) -> str:
        """The client id in a whole request frame; it may change from request to request."""
        return read_client_id(frame, HEAD_BYTES, HEAD.unpack_from(frame, 0)[3])

    # -- events of the shell ---------------------------------------------------------------------------------

    def mute(self, reason: MuteReason) -> None:
        """Add a reason; back pressure acts at once, everything else before the next frame."""
        self.muted |= int(reason)

    def unmute(self, reason: MuteReason, *, now_ms: int) -> None:
        """Take a reason away; held bytes go on when it was the last."""
        self.muted &= ~int(reason)
        if self._held and not self.muted & ~_HALF_CLOSED:
            self._resume(now_ms)

    def release(self, reason: MuteReason) -> None:
        """Take a reason away from within a handler; what is held goes on once the handler has returned."""
        self.muted &= ~int(reason)

    def _resume(self, now_ms: int) -> None:
        half_closed = self.muted & _HALF_CLOSED
        self.muted &= ~half_closed
        held, self._held = self._held, []
        for data in held:
            if self._held:
                self._held.append(data)
            else:
                self._take_from_client(data, now_ms)
        self.muted |= half_closed
        if half_closed and self.in_flight.idle and not self._held:
            self.close(CloseCause.CLIENT_CLOSED)

    def client_half_closed(self) -> None:
        """The client sends nothing more; what it sent whole is still served, as Kafka does (hazard B07).

        Frames held behind a throttle are dropped: the client is more likely gone than patient (hazard C16).
        """
        if self.muted & _THROTTLED:
            self._held.clear()
        cut_off = self._relay_left or self._head or self._collecting is not None
        if cut_off or (self.in_flight.idle and not self._held):
            self.close(CloseCause.CLIENT_CLOSED)
        self.muted |= _HALF_CLOSED

    def drain(self) -> None:
        """Take no further request; `drained` once every request already taken has its reply."""
        self.muted |= int(MuteReason.DRAINING)
        self._held.clear()

    @property
    def drained(self) -> bool:
        """Nothing is owed to the client any more."""
        return self.in_flight.idle and not self._relay_left

    @property
    def mid_request(self) -> bool:
        """A request has been relayed in part."""
        return self._relay_left > 0

    @property
    def reading_client(self) -> bool:
        """Whether the shell should read from the client: a mute lets the current relayed frame end first."""
        muted = self.muted
        return not muted or (self._relay_left > 0 and not muted & _BACK_PRESSURE)

    def on_timer(self, *, now_ms: int) -> None:
        """Do what is due, and set `wake_at_ms` to what comes next."""
        if self.muted & _THROTTLED and now_ms >= self._throttled_until_ms:
            self.unmute(MuteReason.THROTTLED, now_ms=now_ms)
        settings = self._settings
        if self._frame_deadline_ms <= now_ms:
            if self.muted:
                # The rest of the frame was not read because of us: the client gets its time again.
                self._frame_deadline_ms = now_ms + settings.frame_timeout_ms
            else:
                self.close(CloseCause.FRAME_TIMEOUT if self._started else CloseCause.FIRST_FRAME_TIMEOUT)
        idle_at_ms = self._idle_since_ms + settings.idle_timeout_ms
        if not self.in_flight.idle:
            # A long poll is not idleness (hazard B21), however long the broker takes.
            idle_at_ms = now_ms + settings.idle_timeout_ms
        elif idle_at_ms <= now_ms:
            self.close(CloseCause.IDLE_TIMEOUT)
        throttled_until_ms = self._throttled_until_ms if self.muted & _THROTTLED else NEVER_MS
        self.wake_at_ms = min(throttled_until_ms, self._frame_deadline_ms, idle_at_ms)
