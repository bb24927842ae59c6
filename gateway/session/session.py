"""ClientSession: everything decided about one client connection. Pure: no socket, no clock, no timer.

The four-call contract: `receive_from_client`, `receive_from_upstream`, `on_timer` and the events of the shell
(`upstream_connected`, `client_half_closed`, `mute`, `unmute`) take `now_ms`; after any of them the shell
takes the chunks out of `to_upstream` and `to_client`, looks at `reading_client`, `reading_upstream` and
`close_cause`, and arms its timer for `wake_at_ms`. What comes from the broker raises `ProtocolError` when it breaks
the format; what comes from the client sets `refusal`, and the connection ends once it has its earlier replies.

Rules: bytes are relayed as they arrive, frames are held only when a handler collects them; replies leave in
request order; a mute takes effect between two frames, back pressure at once.
"""

from __future__ import annotations

from typing import Final

from gateway.observability.close_cause import CloseCause
from gateway.session.client_quotas import TimedRequest
from gateway.session.in_flight import Answer, CollectedAnswer, LocalAnswer, OnReply, Pending
from gateway.session.mute import MuteReason
from gateway.session.request_side import NEVER_MS, RequestSide
from gateway.session.routes import HeadDecision
from protocol.api_keys import Api
from protocol.errors import ProtocolError
from protocol.headers import HEAD, HEAD_BYTES, MIN_REQUEST_BYTES, correlation_id_of, read_client_id
from quotas.combine import ThrottledBy, combine
from quotas.rate_quotas import RateTracker

__all__ = ["NEVER_MS", "ClientSession"]

_BACK_PRESSURE: Final = int(MuteReason.CONNECTING | MuteReason.UPSTREAM_FULL | MuteReason.CLIENT_FULL)
_IN_FLIGHT_FULL: Final = int(MuteReason.IN_FLIGHT_FULL)
_THROTTLED: Final = int(MuteReason.THROTTLED)
_INPUT_ENDED: Final = int(MuteReason.HALF_CLOSED | MuteReason.DRAINING)
"""Nothing more is taken from the client; what was received before is still served."""


class ClientSession(RequestSide):
    """One client connection and its upstream leg.

    Attributes:
        listener, peer: names for logs and metrics.
        broker_id: the broker behind the port the client came in by; None for the bootstrap port.
        meter: measures requests for the request quota; None when no client quotas are enforced.
        user: principal name; ANONYMOUS until somebody authenticates.
        authentication: the SASL exchange; None on a listener without SASL.
        to_upstream, to_client: chunks for the shell to write, in order.
        muted: set of `MuteReason`, as a number.
        owed_until_ms: when the rest of a throttle above the ceiling is over.
        produce_sensor, fetch_sensor: what the last one was counted by, for whom and as of which limits.
        wake_at_ms: when the shell must call `on_timer`; the shell may call it earlier.
        on_output_ready: called for a reply that neither peer's bytes nor a timer brought; the shell sets it.
        close_cause: set when the connection is to be closed.
        refusal: why the client's bytes are not taken any more; the shell takes it away once it is logged.
        idle_since_ms: when something was last received from either side.
        bytes_from_client, bytes_from_upstream: counted by the session, read by the metrics.
    """

    __slots__ = ()

    # -- the usual case --------------------------------------------------------------------------------------

    def passes_from_client(self, data: bytes, *, now_ms: int) -> bool:
        """Whether `data` is exactly one request, relayed as it is; if so it is noted, and the caller writes it.

        Nothing that `receive_from_client` does not do too, in fewer steps: small requests one at a time cost their
        relay a third less (benchmarks/results/relay.md). After True only `muted` and `wake_at_ms` can have changed.
        """
        if self.muted or self._relay_left or self._held or self._head or self._collecting is not None:
            return False
        if len(data) < HEAD_BYTES:
            return False
        size, number, correlation_id, client_id_length = HEAD.unpack_from(data, 0)
        route = self._routes.get(number)
        pending = self.in_flight.pending
        if (
            size + 4 != len(data)
            or route is None
            or not MIN_REQUEST_BYTES <= size <= route.max_request_bytes
            or client_id_length > size - MIN_REQUEST_BYTES
            or len(pending) >= self._settings.max_in_flight_requests - 1
        ):
            return False
        meter = self.meter
        if meter is not None:  # the quotas are asked too: `on` is as of the last chunk that was walked
            quotas = meter.quotas
            if meter.on or quotas.times_requests or quotas.version != quotas.limits.version:
                return False
        head = route.head
        if head is not None:
            try:
                decision = head.on_head(
                    self, route, data, 0, size, correlation_id, client_id_length, now_ms=now_ms
                )
            except ProtocolError:
                return False
            if decision is not HeadDecision.RELAY:
                return False
        elif route.collect is None:
            pending.append(Pending(correlation_id))
        else:
            return False
        route.requests += 1
        self.bytes_from_client += size + 4
        self.idle_since_ms = now_ms
        self._started = True
        self._frame_deadline_ms = NEVER_MS
        return True

    def passes_from_upstream(self, data: bytes, *, now_ms: int) -> bool:
        """Whether `data` is exactly one reply, relayed as it is; if so it is noted, and the caller writes it."""
        if self.muted or not self.in_flight.passes(data):
            return False
        self.bytes_from_upstream += len(data)
        self.idle_since_ms = now_ms
        return True

    # -- from the broker -------------------------------------------------------------------------------------

    def receive_from_upstream(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes; raises `UpstreamDesync` when they do not answer the requests in order."""
        self.bytes_from_upstream += len(data)
        self.idle_since_ms = now_ms
        in_flight = self.in_flight
        in_flight.receive(data, now_ms, self)
        if self.muted:
            if self.muted & _IN_FLIGHT_FULL and len(in_flight) <= self._most_in_flight // 2:
                self.muted &= ~_IN_FLIGHT_FULL
            self._close_if_served()
        if self._held and not self.muted & ~_INPUT_ENDED:
            self._resume(now_ms)

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """See `Timekeeper`."""
        assert self.meter is not None
        self.meter.answered(self.user, timed, self.broker_id, now_ms=now_ms)

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """See `Timekeeper`."""
        assert self.meter is not None
        if not self.meter.request_ms:
            self._most_in_flight = self._settings.max_in_flight_requests
            return reply
        # One at a time, as with Kafka: of requests sent ahead all would be served before the next wait.
        self._most_in_flight = 1
        sealed = bytearray(reply)
        final_ms = self.meter.seal(self.user, timed, self.broker_id, sealed, now_ms=now_ms)
        self.throttle(final_ms, now_ms=now_ms)
        return bytes(sealed)

    # -- verbs for handlers ----------------------------------------------------------------------------------

    def forward(self, frame: bytes, api: Api, answer: Answer | None = None) -> None:
        """Send a client's whole request upstream, at once or when more is known.

        Args:
            frame: with its size; may be another version than the client's.
            api: the version that the client gets its reply in.
            answer: what becomes of the reply; None: it is relayed.
        """
        pending = Pending(correlation_id_of(frame), answer)
        if self.meter is not None and self.meter.on:
            pending.timed = self.meter.start(api, self.client_id_of(frame))
        self.in_flight.pending.append(pending)
        self.to_upstream.append(frame)

    def ask_upstream(self, frame: bytes, correlation_id: int, on_reply: OnReply) -> None:
        """Send a question of our own on this client's upstream connection; its reply goes to `on_reply` alone."""
        self.in_flight.pending.append(Pending(correlation_id, CollectedAnswer(on_reply)))
        self.to_upstream.append(frame)

    def reply(self, frame: bytes) -> None:
        """Answer a request here; the frame waits for the replies of earlier requests (hazard A38)."""
        self.in_flight.reply(frame)

    def start_timing(self, frame: bytes, api: Api) -> TimedRequest | None:
        """A request that is answered here begins; None when nobody's time is measured (KIP-124)."""
        if self.meter is None or not self.meter.on:
            return None
        return self.meter.start(api, self.client_id_of(frame))

    def answer(self, reply: bytes, timed: TimedRequest | None, *, now_ms: int) -> None:
        """Answer a request here, at once; as `reply`, and its time is counted as that of a relayed one."""
        self.reply(self._sealed(reply, timed, now_ms))

    def defer(self) -> LocalAnswer:
        """Keep a place for a reply that takes its time; no further request is looked at before `fulfil`."""
        self.mute(MuteReason.AWAITING_REPLY)
        return self.in_flight.defer()

    def fulfil(self, place: LocalAnswer, reply: bytes, timed: TimedRequest | None, *, now_ms: int) -> None:
        """The reply for a place that was kept; not to be called from within an event of this session.

        The connection may have ended meanwhile; then nobody gets it.
        """
        self.in_flight.fill(place, self._sealed(reply, timed, now_ms))
        if len(self.in_flight) <= self._most_in_flight // 2:
            self.muted &= ~_IN_FLIGHT_FULL
        self.unmute(MuteReason.AWAITING_REPLY, now_ms=now_ms)
        self._close_if_served()
        if self.on_output_ready is not None:
            self.on_output_ready()

    def _sealed(self, reply: bytes, timed: TimedRequest | None, now_ms: int) -> bytes:
        if timed is None:
            return reply
        self.request_answered(timed, now_ms=now_ms)
        return self.seal_reply(timed, reply, now_ms=now_ms)

    def within_ceiling(self, throttle_time_ms: int, tracker: RateTracker, *, now_ms: int) -> int:
        """How much of a throttle may be issued at once; the rest is due at this connection's next requests.

        A counter forgets a request eleven windows after it, so the rest has to be remembered here (hazard C07).

        Args:
            throttle_time_ms: what the counter asks for; 0 for nothing.
            tracker: the counter; where nobody has to wait any more the rest is not due either.
            now_ms: the time.
        """
        if throttle_time_ms <= 0 and now_ms >= self.owed_until_ms:
            return 0
        if tracker.max_in_window() is not None:
            throttle_time_ms = max(throttle_time_ms, self.owed_until_ms - now_ms)
        if throttle_time_ms > self._settings.max_mute_ms:
            self.owed_until_ms = now_ms + throttle_time_ms
        return min(throttle_time_ms, self._settings.max_mute_ms)

    def is_longest(self, by: ThrottledBy, wanted_ms: int, final_ms: int) -> bool:
        """Whether a reply's wait is booked under its API's own quota.

        Args:
            by: that quota's family.
            wanted_ms: what it asks for, > 0.
            final_ms: what the reply says, the broker's own throttle time included.
        """
        request_ms = 0
        if self.meter is not None:
            self.meter.specific_ms, self.meter.specific_by = wanted_ms, by
            request_ms = self.meter.request_ms
        return combine(by, wanted_ms, request_ms=request_ms, upstream_ms=final_ms).by is by

    def throttle(self, throttle_time_ms: int, *, now_ms: int) -> int:
        """Read nothing more from the client for this long (KIP-219), and tell until when; a longer mute stays."""
        if throttle_time_ms <= 0:
            return now_ms
        until_ms = now_ms + min(throttle_time_ms, self._settings.max_mute_ms)
        if until_ms > self._throttled_until_ms:
            self._throttled_until_ms = until_ms
        self.muted |= _THROTTLED
        if self._throttled_until_ms < self.wake_at_ms:
            self.wake_at_ms = self._throttled_until_ms
        self._record_mute(now_ms)
        return self._throttled_until_ms

    def fail_later(self, reply: bytes | None, cause: CloseCause, delay_ms: int, *, now_ms: int) -> None:
        """Answer a failed authentication and close, both after a delay in which nothing is read (KIP-306).

        Args:
            reply: the answer, sent together with the close; None when the client gets none.
            cause: for the metrics.
            delay_ms: Kafka's connection.failed.authentication.delay.ms; 0 is at once.
            now_ms: the time.
        """
        self.mute(MuteReason.AUTHENTICATION_FAILED)
        self._held.clear()
        self._delayed_close = (now_ms + delay_ms, reply, cause)
        self._close_when_due(now_ms)
        self.wake_at_ms = min(self.wake_at_ms, now_ms + delay_ms)

    @property
    def closing_later(self) -> bool:
        """The answer to a failed authentication is held back, and the end with it."""
        return self._delayed_close is not None

    @property
    def failed_authentication_delay_ms(self) -> int:
        """See `SessionSettings`."""
        return self._settings.failed_authentication_delay_ms

    def authenticated(self) -> None:
        """The broker has accepted who the client says it is: from the next frame on it is that user's."""
        assert self.authentication is not None
        assert self.authentication.principal is not None
        self.user = self.authentication.principal
        if self._sasl is not None:
            self._routes = self._sasl.after
            self._sasl = None

    def confirm_next(self) -> None:
        """Whether the exchange is over is to be seen with the next request that is no part of one."""
        assert self._sasl is not None
        self._routes = self._sasl.confirming

    def _close_when_due(self, now_ms: int) -> None:
        if self._delayed_close is None or now_ms < self._delayed_close[0]:
            return
        _, reply, cause = self._delayed_close
        self._delayed_close = None
        if reply is not None:
            self.to_client.append(reply)
        self.close(cause)

    @staticmethod
    def client_id_of(frame: bytes) -> str:
        """The client id in a whole request frame; it may change from request to request."""
        return read_client_id(frame, HEAD_BYTES, HEAD.unpack_from(frame, 0)[3])

    def expect_first_frame(self, *, now_ms: int) -> None:
        """The client can send from now on; what came before, such as a handshake, had a deadline of its own."""
        self._frame_deadline_ms = now_ms + self._settings.first_frame_timeout_ms
        self.wake_at_ms = self._frame_deadline_ms
        self.idle_since_ms = now_ms

    # -- events of the shell ---------------------------------------------------------------------------------

    def mute(self, reason: MuteReason) -> None:
        """Add a reason; back pressure acts at once, everything else before the next frame."""
        self.muted |= int(reason)

    def unmute(self, reason: MuteReason, *, now_ms: int) -> None:
        """Take a reason away; held bytes go on when it was the last."""
        self.muted &= ~int(reason)
        if self._held and not self.muted & ~_INPUT_ENDED:
            self._resume(now_ms)

    def release(self, reason: MuteReason) -> None:
        """Take a reason away from within a handler; what is held goes on once the handler has returned."""
        self.muted &= ~int(reason)

    def put_back(self, frame: bytes) -> None:
        """Look at this whole request again, before all that came after it, once the client is read again.

        A client that has half-closed meanwhile counts as gone, as one that does so while it is throttled.
        """
        if self.muted & MuteReason.HALF_CLOSED:
            self._held.clear()
        else:
            self._held.insert(0, frame)

    def _resume(self, now_ms: int) -> None:
        ended = self.muted & _INPUT_ENDED
        self.muted &= ~ended
        held, self._held = self._held, []
        try:
            for data in held:
                if self._held:
                    self._held.append(data)
                else:
                    self._take_from_client(data, now_ms)
        except ProtocolError as exc:
            self.refuse(exc)
        self.muted |= ended
        self._close_if_served()

    def client_half_closed(self) -> None:
        """The client sends nothing more; what it sent whole is still served, as Kafka does (hazard B07).

        Frames held behind a throttle are dropped: the client is more likely gone than patient (hazard C16).
        """
        if self.muted & _THROTTLED:
            self._held.clear()
        if self._relay_left or self._head or self._collecting is not None:
            self.close(CloseCause.CLIENT_CLOSED)
        self._end_input(CloseCause.CLIENT_CLOSED)

    def drain(self) -> None:
        """Receive no further request; `drained` once every request received before has its reply.

        Requests held behind a mute are taken when it is over: a throttle is no shorter for a drain.
        """
        self.muted |= int(MuteReason.DRAINING)

    @property
    def drained(self) -> bool:
        """Nothing is owed to the client any more, the answer to a failed authentication included."""
        return self.in_flight.idle and not self._relay_left and not self._held and self._delayed_close is None

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
        self._close_when_due(now_ms)
        if self.muted & _THROTTLED and now_ms >= self._throttled_until_ms:
            self.unmute(MuteReason.THROTTLED, now_ms=now_ms)
        settings = self._settings
        if self._frame_deadline_ms <= now_ms:
            if self.muted:
                # The rest of the frame was not read because of us: the client gets its time again.
                self._frame_deadline_ms = now_ms + settings.frame_timeout_ms
            else:
                self.close(CloseCause.FRAME_TIMEOUT if self._started else CloseCause.FIRST_FRAME_TIMEOUT)
        patience_ms = settings.idle_timeout_ms if self._sasl is None else settings.frame_timeout_ms
        idle_at_ms = self.idle_since_ms + patience_ms
        if not self.in_flight.idle:
            # A long poll is not idleness (hazard B21), however long the broker takes.
            idle_at_ms = now_ms + settings.idle_timeout_ms
        elif idle_at_ms <= now_ms:
            self.close(CloseCause.IDLE_TIMEOUT)
        throttled_until_ms = self._throttled_until_ms if self.muted & _THROTTLED else NEVER_MS
        delay_ms = self._delayed_close[0] if self._delayed_close is not None else NEVER_MS
        self.wake_at_ms = min(throttled_until_ms, self._frame_deadline_ms, idle_at_ms, delay_ms)
