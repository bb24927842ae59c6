"""The client's half of a session: bytes from the client, frame by frame, to relay, collect or hold. Pure.

A frame that is relayed goes on as its bytes arrive, whole chunks as one write; only what a handler collects is held,
and never more than its cap. A mute stops the walk between two frames; the rest of the chunk waits in `_held`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from gateway.auth.authentication import Authentication, Unauthenticated
from gateway.observability.events import CloseCause
from gateway.session.client_quotas import CachedSensor, ClientQuotas
from gateway.session.in_flight import InFlight, Pending
from gateway.session.mute import MuteReason
from gateway.session.request_meter import RequestMeter
from gateway.session.routes import HeadDecision, Route, Routes, find_route
from gateway.session.sasl_routes import SaslListener
from gateway.session.settings import SessionSettings
from protocol.api_keys import Api
from protocol.errors import MalformedBody, ProtocolError, Truncated
from protocol.headers import HEAD, HEAD_BYTES, MIN_REQUEST_BYTES, refuse_size, unsupported

if TYPE_CHECKING:
    from gateway.session.session import ClientSession

NEVER_MS: Final = 2**62
_LONGEST_HEAD_BYTES: Final = 128 * 1024
_RELAY: Final = HeadDecision.RELAY
_IN_FLIGHT_FULL: Final = int(MuteReason.IN_FLIGHT_FULL)
_DRAINING: Final = int(MuteReason.DRAINING)


class RequestSide:
    """State of a session, and its walk through the client's bytes; `ClientSession` is the rest of it."""

    __slots__ = (
        "_client_id",
        "_client_id_bytes",
        "_collecting",
        "_collecting_bytes",
        "_collecting_route",
        "_delayed_close",
        "_end_cause",
        "_frame_deadline_ms",
        "_head",
        "_held",
        "_most_in_flight",
        "_relay_left",
        "_routes",
        "_sasl",
        "_settings",
        "_started",
        "_throttled_until_ms",
        "authentication",
        "broker_id",
        "bytes_from_client",
        "bytes_from_upstream",
        "close_cause",
        "fetch_sensor",
        "idle_since_ms",
        "in_flight",
        "listener",
        "meter",
        "muted",
        "on_output_ready",
        "owed_until_ms",
        "peer",
        "produce_sensor",
        "refusal",
        "to_client",
        "to_upstream",
        "user",
        "wake_at_ms",
    )

    def __init__(
        self,
        routes: Routes,
        settings: SessionSettings,
        *,
        listener: str,
        peer: str,
        broker_id: int | None = None,
        quotas: ClientQuotas | None = None,
        sasl: SaslListener | None = None,
        now_ms: int,
    ) -> None:
        self.listener = listener
        self.peer = peer
        self.user = "ANONYMOUS"
        self.to_upstream: list[bytes] = []
        self.to_client: list[bytes] = []
        self.on_output_ready: Callable[[], None] | None = None
        self.muted = 0
        self.close_cause: CloseCause | None = None
        self.refusal: ProtocolError | None = None
        self.broker_id = broker_id
        self.meter = None if quotas is None else RequestMeter(quotas, listener)
        self._client_id = ""
        self._client_id_bytes = b""
        self.in_flight = InFlight(self.to_client, max_response_bytes=settings.max_response_bytes)
        self.bytes_from_client = 0
        self.bytes_from_upstream = 0
        self._sasl = sasl  # while nobody has authenticated
        self.authentication = None if sasl is None else Authentication(sasl.rules)
        self._routes = routes if sasl is None else sasl.before
        self._settings = settings
        self._started = False
        self._relay_left = 0  # bytes of the current request that are still to be relayed
        self._head = bytearray()  # a request's first bytes, until its route is known
        self._collecting: bytearray | None = None
        self._collecting_bytes = 0
        self._collecting_route: Route | None = None
        self._held: list[bytes] = []  # received behind a mute
        self._end_cause: CloseCause | None = (
            None  # why nothing more is taken; the end comes with the last reply
        )
        self._most_in_flight = settings.max_in_flight_requests  # while requests are timed
        self._throttled_until_ms = 0
        self.produce_sensor: CachedSensor | None = None
        self.fetch_sensor: CachedSensor | None = None
        self.owed_until_ms = 0  # when a throttle above the ceiling is over
        self._delayed_close: tuple[int, bytes | None, CloseCause] | None = None
        self.idle_since_ms = now_ms
        self._frame_deadline_ms = now_ms + settings.first_frame_timeout_ms
        self.wake_at_ms = self._frame_deadline_ms

    def receive_from_client(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes; where they are not requests that may pass, `refusal` is set (see `refuse`)."""
        self.bytes_from_client += len(data)
        self.idle_since_ms = now_ms
        try:
            if self._held:
                self._held.append(data)
            elif self._relay_left or self._head or self._collecting is not None:
                self._take_from_client(data, now_ms)
            else:
                self._take_frames(data, 0, 0, now_ms)
        except ProtocolError as exc:
            self.refuse(exc)

    def refuse(self, error: ProtocolError) -> None:
        """The client's bytes make no sense from here on; what it asked before is still served, as Kafka does."""
        if self._end_cause is None:
            self.refusal = error
        self._held.clear()
        self._frame_deadline_ms = NEVER_MS
        self._end_input(CloseCause(error.cause))

    def _end_input(self, cause: CloseCause) -> None:
        """Nothing more is taken from the client; close once it has everything it is owed."""
        self.muted |= int(MuteReason.HALF_CLOSED)
        if self._end_cause is None:
            self._end_cause = cause
        self._close_if_served()

    def _close_if_served(self) -> None:
        # Leaving early is no way around the delay of a failure (KIP-306): it ends with the answer.
        if (
            self._end_cause is not None
            and self.in_flight.idle
            and not self._held
            and self._delayed_close is None
        ):
            self.close(self._end_cause)

    def close(self, cause: CloseCause) -> None:
        """Ask the shell to close both legs; the first cause counts."""
        if self.close_cause is None:
            self.close_cause = cause

    def ended(self) -> None:
        """Both legs are gone, and with them what is held behind a mute: nobody would get a reply."""
        self.on_output_ready = None
        self._held.clear()

    def _record_mute(self, now_ms: int) -> None:
        """Usage records tell that this client may have wanted more than it was seen to want."""
        rows = [each.row for each in (self.produce_sensor, self.fetch_sensor) if each is not None]
        if self.meter is not None:
            rows.append(self.meter.row)
        for row in rows:
            if row is not None:
                row.mute(self._throttled_until_ms, now_ms=now_ms)

    def _hold(self, data: bytes) -> None:
        """Keep what came in behind a mute, unless it came after the beginning of a drain."""
        if not self.muted & _DRAINING:
            self._held.append(data)

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
                self._hold(data)
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
        session = cast("ClientSession", self)
        meter = self.meter
        timing = False
        if meter is not None:
            quotas = meter.quotas
            if quotas.version != quotas.limits.version:
                quotas.refresh()
            # What it takes to authenticate is nobody's time, as in Kafka.
            meter.on = timing = quotas.times_requests and self._sasl is None
            if not timing:
                self._most_in_flight = self._settings.max_in_flight_requests
        most_in_flight = self._most_in_flight - 1
        try:
            while at < received:
                if self.muted:
                    self._relay(data, start, at)
                    self._hold(data[at:] if at else data)
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
                owed = len(pending)
                head = route.head
                if head is not None:
                    decision = head.on_head(
                        session, route, data, at, size, correlation_id, client_id_length, now_ms=now_ms
                    )
                elif route.collect is not None:
                    decision = HeadDecision.COLLECT
                else:
                    decision = _RELAY
                    pending.append(Pending(correlation_id))
                if decision is _RELAY:
                    if timing:
                        self._time(route.api, data, at, client_id_length, owed)
                    route.requests += 1
                    self._started = True
                    at += 4 + size
                    if owed >= most_in_flight and pending:  # empty behind acks=0: no reply would wake us
                        self.muted |= _IN_FLIGHT_FULL
                elif decision is HeadDecision.MORE:
                    if received - at >= min(size + 4, _LONGEST_HEAD_BYTES):
                        raise Truncated
                    break
                elif decision is HeadDecision.COLLECT:
                    self._relay(data, start, at)
                    end = at + 4 + size
                    if end > received:
                        self._collecting = bytearray(data[at:])
                        self._collecting_bytes = size + 4
                        self._collecting_route = route
                        self._expect_rest(size, now_ms)
                        return
                    frame = data[at:end]
                    at = start = end
                    self._handle(route, frame, now_ms)
        except ProtocolError:
            self._relay(data, start, at)
            raise
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
        self._handle(route, bytes(collecting), now_ms)
        return missing

    def _handle(self, route: Route, frame: bytes, now_ms: int) -> None:
        """Hand a whole request to its handler; it may mute, so the walk looks again before it goes on."""
        assert route.collect is not None
        route.requests += 1
        self._started = True
        route.collect.on_request(cast("ClientSession", self), route, frame, now_ms=now_ms)
        if len(self.in_flight) >= self._most_in_flight:
            self.muted |= _IN_FLIGHT_FULL

    def _time(self, api: Api, data: bytes, at: int, client_id_length: int, owed: int) -> None:
        """Have the time of a relayed request measured (KIP-124); acks=0 owes no reply and is exempt."""
        assert self.meter is not None
        if len(self.in_flight.pending) == owed:
            self.meter.exempt_event = True
        else:
            client_id = self.client_id_at(data, at, client_id_length) or ""
            self.in_flight.pending[-1].timed = self.meter.start(api, client_id)

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
            if self._sasl is None or number not in self._sasl.after:
                return unsupported(number)
            return Unauthenticated(f"api_key={number >> 16}")
        return MalformedBody(f"client id of {client_id_length} bytes in a frame of {size}")

    def client_id_at(self, data: bytes, at: int, length: int) -> str | None:
        """The client id of the request whose size stands at `at`, None when it has not been received whole."""
        if length <= 0:
            return ""
        end = at + HEAD_BYTES + length
        if end > len(data):
            return None
        raw = data[at + HEAD_BYTES : end]
        if raw != self._client_id_bytes:
            self._client_id_bytes = raw
            self._client_id = raw.decode("utf-8", "replace")
        return self._client_id
