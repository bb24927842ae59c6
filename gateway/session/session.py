"""ClientSession: all decisions about one client connection. Pure: no socket, no clock, no timer.

The contract with the shell, the channel:

1. The shell calls `receive_from_client`, `receive_from_upstream`, `on_timer`, or an event (`mute`, `unmute`,
   `client_half_closed`, `drain`), with `now_ms` where time matters.
2. After each call the shell takes the chunks out of `to_upstream` and `to_client`, looks at `reading_client`,
   `refusal` and `close_cause`, and arms its timer for `wake_at_ms`.
3. While `steps` is not empty, the shell calls `take_step`, in turns with other connections.

`relay_request` and `relay_reply` do the same in fewer steps, for a chunk of at most one frame that is relayed.
Malformed bytes from the broker raise `ProtocolError`. Malformed bytes from the client set `refusal`, and the
connection ends after the replies to the client's earlier requests.

Bytes are relayed as they arrive. Frames are kept only when a handler collects them, up to that handler's limit.
Replies leave in request order. A mute takes effect between two frames, back pressure at once. Bytes that arrive
during a mute wait in `_held`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.auth.authentication import Authentication, Unauthenticated
from gateway.observability.events import CloseCause, Side
from gateway.observability.traces import Attribute, OpenTraces, Trace, TraceSink
from gateway.runtime.lateness import LATE_MS
from gateway.session.announced import PASS_ON_BYTES, AnnouncedBytes, AnnouncedLimits
from gateway.session.api_limits import ApiLimit
from gateway.session.chunk_relay import NEVER_MS, ChunkTaker
from gateway.session.client_quotas import ClientQuotas
from gateway.session.memory_budget import LARGE_BYTES, PATIENCE_MS, SMALL_BYTES, MemoryBudget
from gateway.session.mute import MuteReason
from gateway.session.parser import RequestParser
from gateway.session.parts import Watch
from gateway.session.request_meter import RequestMeter
from gateway.session.response_queue import (
    Answer,
    CollectedAnswer,
    LocalAnswer,
    OnReply,
    Pending,
    ResponseQueue,
    TimedRequest,
)
from gateway.session.routes import (
    HeadDecision,
    HeadOutcome,
    RewrittenHead,
    Route,
    Routes,
    SaslListener,
    Session,
)
from gateway.session.settings import SessionSettings
from gateway.session.throttle_state import CachedSensor, ThrottleState
from gateway.session.user_places import CAUSES, UserLimit, UserPlaces
from protocol import throttle
from protocol.api_keys import Api, ApiKey
from protocol.errors import ProtocolError
from protocol.headers import HEAD, HEAD_BYTES, correlation_id_of, read_client_id
from protocol.produce import shows_shortage
from protocol.steps import Steps, put_off
from quotas.combine import ThrottledBy, combine
from quotas.connections import AdmissionDecision
from quotas.entities import cut_name
from quotas.rate_quotas import RateTracker
from quotas.trackers import Kind

_ANONYMOUS: Final = "ANONYMOUS"
_NO_REPLY: Final = HeadDecision.NO_REPLY
_COLLECT: Final = HeadDecision.COLLECT
_MORE: Final = HeadDecision.MORE
_WHOLE: Final = HeadDecision.WHOLE
# Plain numbers: an operation on members of an enum costs a microsecond.
_AWAITS_BROKER: Final = int(MuteReason.CONNECTING | MuteReason.UPSTREAM_FULL)
_BACK_PRESSURE: Final = int(MuteReason.CONNECTING | MuteReason.UPSTREAM_FULL | MuteReason.CLIENT_FULL)
_CLIENT_CLOSED: Final = CloseCause.CLIENT_CLOSED
_UPSTREAM: Final = Side.UPSTREAM
_HALF_CLOSED: Final = int(MuteReason.HALF_CLOSED)
_DRAINING: Final = int(MuteReason.DRAINING)
_IN_FLIGHT_FULL: Final = int(MuteReason.IN_FLIGHT_FULL)
_THROTTLED: Final = int(MuteReason.THROTTLED)
_INPUT_ENDED: Final = int(MuteReason.HALF_CLOSED | MuteReason.DRAINING)
"""The session takes no further bytes from the client, and still serves the requests received before."""
_WORKING: Final = int(MuteReason.WORKING)
_REPLIES_FULL: Final = int(MuteReason.REPLIES_FULL)
_MEMORY_FULL: Final = int(MuteReason.MEMORY_FULL)
_AWAITING_TURN: Final = int(MuteReason.AWAITING_TURN)
_IN_HAND: Final = int(MuteReason.WORKING | MuteReason.AWAITING_REPLY)

MAX_LOCAL_REPLY_BYTES: Final = 1024 * 1024
"""The gateway's own replies that wait behind a broker's. With more of them the client is not read (hazard K17)."""

MAX_HELD_BYTES: Final = 1024 * 1024 + 64 * 1024
"""A client whose request waits is read up to this size: the largest default request of Java's producer, and heads."""

SMALL_PIECE_BYTES: Final = 16 * 1024

MAX_REQUESTS_BEFORE_LOGIN: Final = 64
"""Before the login no user can be charged for time, so the number is limited. Real clients send fewer than ten."""


def _at_once(_frame_bytes: int) -> bool:
    return True


class ClientSession(Session, ChunkTaker):
    """One client connection and its upstream leg. `routes.Session` describes the part that handlers use.

    Attributes:
        listener, peer, address, broker_id, user, authentication, responses, throttling: see `routes.Session`.
        meter: measures requests for the request quota; None when no client quotas are enforced.
        to_upstream, to_client: chunks for the shell to write, in order.
        muted: set of `MuteReason`, as a number.
        wake_at_ms: when the shell must call `on_timer`; the shell may call it earlier.
        on_output_ready: called when a reply is ready outside of any call of the shell; the shell sets it.
        close_cause: set when the connection is to be closed.
        refusal: why the session refuses the client's bytes; the shell resets it after logging it.
        steps: long work in progress, of which the shell takes one step at a time.
        put_off_bytes: size of the frame if the walk through it has not begun; otherwise 0.
        accounted_bytes: bytes that the memory budget counts for this connection.
        on_memory_freed: called when a client that is muted for memory may be read again; the shell sets it.
        begins_now: whether the walk through a frame of this size begins at once; the shell sets it.
        idle_since_ms: when bytes were last received from either side.
        bytes_from_client, bytes_from_upstream: counted by the session, read by the metrics.
    """

    __slots__ = (
        "_announced",
        "_announced_bytes",
        "_announced_kind",
        "_anonymous_kind",
        "_answering",
        "_delayed_close",
        "_end_cause",
        "_frame_deadline_ms",
        "_held",
        "_holding",
        "_in_hand",
        "_in_hand_bytes",
        "_logging_in",
        "_memory",
        "_open_traces",
        "_parser",
        "_put_back",
        "_rest_has_reply",
        "_rewritten",
        "_sasl",
        "_settings",
        "_started",
        "_trace_sink",
        "_turn_ms",
        "_unsent_bytes",
        "_users",
        "_watched",
        "accounted_bytes",
        "address",
        "authentication",
        "begins_now",
        "broker_id",
        "bytes_from_client",
        "bytes_from_upstream",
        "close_cause",
        "idle_since_ms",
        "listener",
        "meter",
        "muted",
        "on_memory_freed",
        "on_output_ready",
        "peer",
        "put_off_bytes",
        "refusal",
        "responses",
        "steps",
        "throttling",
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
        network: str = "",
        address: str = "",
        broker_id: int | None = None,
        quotas: ClientQuotas | None = None,
        sasl: SaslListener | None = None,
        memory: MemoryBudget | None = None,
        announced: AnnouncedBytes | None = None,
        traces: TraceSink | None = None,
        users: UserPlaces | None = None,
        now_ms: int,
    ) -> None:
        self._users = users
        self._turn_ms = NEVER_MS  # when a connection that waits for its turn tries again
        self.listener = listener
        self.peer = peer
        self.address = address
        self.user = _ANONYMOUS
        self._anonymous_kind = (listener, network)
        self.to_upstream: list[bytes] = []
        self.to_client: list[bytes] = []
        self.on_output_ready: Callable[[], None] | None = None
        self.muted = 0
        self.close_cause: CloseCause | None = None
        self.refusal: ProtocolError | None = None
        self.broker_id = broker_id
        self.meter = None if quotas is None else RequestMeter(quotas, listener, address)
        self.responses = ResponseQueue(self.to_client, max_response_bytes=settings.max_response_bytes)
        self.throttling = ThrottleState(settings)
        self.bytes_from_client = 0
        self.bytes_from_upstream = 0
        self._sasl = sasl  # until the client has authenticated
        self._logging_in = 0  # requests before the authentication
        self.authentication: Authentication | None = None if sasl is None else Authentication(sasl.rules)
        self._parser = RequestParser(
            routes if sasl is None else sasl.before,
            routes_after_login=None if sasl is None else sasl.after,
            max_frame_bytes=settings.max_frame_bytes,
        )
        self._settings = settings
        self._started = False
        self._memory = memory or MemoryBudget(settings.queued_max_request_bytes)
        self._announced = announced or AnnouncedLimits(settings.announced_max_request_bytes).of("", broker_id)
        self._announced_bytes = 0  # bytes missing of the relayed request when its first bytes were passed on
        self._announced_kind: Kind = ""
        self._rest_has_reply = True  # whether the partly relayed request has a reply
        self._trace_sink = traces
        self._open_traces: OpenTraces | None = None
        self.accounted_bytes = 0
        self._in_hand: TimedRequest | None = None  # the request that a handler is working on
        self._answering: TimedRequest | None = (
            None  # the same request, after its time is counted and before its reply is queued
        )
        self._in_hand_bytes = 0
        self._watched: Watch | None = None  # watches the rest of the relayed request
        self._unsent_bytes = [0, 0]  # to the client, to the broker
        self.steps: list[Steps[Any]] = []  # at most two, so no deque: an empty one takes 600 bytes
        self.put_off_bytes = 0
        self.on_memory_freed: Callable[[], None] | None = None
        self.begins_now: Callable[[int], bool] = _at_once
        self._held: list[bytes] = []
        self._rewritten: RewrittenHead | None = None  # decided in `relay_request`, for `_take_requests`
        self._put_back = False  # whether the next request has been counted already
        self._holding = False  # whether a request waits for a quota, without a throttle time sent for it
        self._end_cause: CloseCause | None = None  # why the input has ended; the close follows the last reply
        self._delayed_close: tuple[int, bytes | None, CloseCause] | None = None
        self.idle_since_ms = now_ms
        self._frame_deadline_ms = now_ms + settings.first_frame_timeout_ms
        self.wake_at_ms = self._frame_deadline_ms

    def lead_to(self, broker_id: int | None) -> None:
        """Set the broker that the client named, before its first request.

        Args:
            broker_id: a broker of the cluster, or None for any.
        """
        self.broker_id = broker_id
        self._announced = self._announced.limits.of(self._announced.upstream, broker_id)

    # -- the usual case --------------------------------------------------------------------------------------

    def relay_request(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is one unchanged request, or a piece of one; the caller then writes it upstream.

        This is a shortcut for `receive_from_client`. It makes relaying small single requests a third cheaper
        (benchmarks/results/relay.md). After True the caller looks at `muted` and `wake_at_ms`. After False it calls
        `receive_from_client` with the same data, at the same time.

        Returns:
            Whether `data` was taken.
        """
        parser, meter = self._parser, self.meter
        if self.muted or self._held:
            return False
        received = len(data)
        if parser.mid_frame:
            left = parser.relay_left - received
            if left < 0 or self._watched is not None or (meter is not None and meter.on):
                return False
            parser.relay_more(received)
            if not left:
                self._frame_deadline_ms = NEVER_MS
                self._end_announcement()
            self.bytes_from_client += received
            self.idle_since_ms = now_ms
            return True
        try:
            route = parser.read_head(data, 0)
            if route is None:
                return False
            left = parser.frame_end - received
            if left and (left < 0 or not self._may_begin(received, left, now_ms)):
                return False
            pending = self.responses.pending
            if len(pending) >= self._settings.max_in_flight_requests - 1:
                return False
            if meter is not None:  # also check the quotas: `on` is only updated by `_begin_chunk`
                quotas = meter.quotas
                if (
                    meter.on
                    or quotas.version != quotas.limits.version
                    or (quotas.watches and (quotas.times_requests or route.api.key in quotas.limited_apis))
                ):
                    return False
            head = route.head
            outcome: HeadOutcome | None = None
            if head is not None:
                outcome = head.on_head(self, route, parser, data, 0, now_ms=now_ms)
                if isinstance(outcome, Pending):
                    pending.append(outcome)
                elif outcome is _NO_REPLY:
                    self.responses.unanswered = True
                else:
                    if isinstance(outcome, RewrittenHead):
                        self._rewritten = outcome
                    return False
            elif route.collect is None:
                pending.append(Pending(parser.correlation_id))
            else:
                return False
        except ProtocolError:
            return False
        route.requests += 1
        self.bytes_from_client += received
        self.idle_since_ms = now_ms
        self._started = True
        if left:
            self._relay_rest(left, outcome is not _NO_REPLY, now_ms)
        else:
            self._frame_deadline_ms = NEVER_MS
        return True

    def relay_reply(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is one unchanged reply, or a piece of one; the caller then writes it to the client."""
        if self.muted or not self.responses.relay(data, now_ms=now_ms):
            return False
        self.bytes_from_upstream += len(data)
        self.idle_since_ms = now_ms
        return True

    # -- from the client -------------------------------------------------------------------------------------

    def receive_from_client(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes. If they contain a request that may not pass, `refusal` is set (see `refuse`)."""
        self.bytes_from_client += len(data)
        self.idle_since_ms = now_ms
        if self.muted & _HALF_CLOSED:
            return  # after a refusal nothing may pass, not even the rest of a partly relayed request
        try:
            if self._held:
                self._hold_more(data)
            elif self._parser.mid_frame:
                self._take_from_client(data, now_ms)
            else:
                self._take_requests(data, 0, 0, now_ms)
        except ProtocolError as exc:
            self.refuse(exc)
        if (
            self.accounted_bytes
            or self.muted
            or self.responses.local_bytes
            or (self._parser.mid_frame and not self._parser.relay_left)
        ):
            self._account()

    def _take_from_client(self, data: bytes, now_ms: int) -> None:
        """Take bytes that may continue a frame or a head whose beginning has been received."""
        parser = self._parser
        start = at = 0
        if parser.relay_left:
            if self._watched is not None:
                # Before the relay: if this raises, the piece is not sent and the broker never gets a whole request.
                self._watched.take(data, 0, min(parser.relay_left, len(data)), now_ms=now_ms)
            at = parser.relay_more(len(data))
            if parser.relay_left:
                self.to_upstream.append(data)
                return
            self._end_watch(now_ms)
            self._end_announcement()
        elif parser.mid_frame:
            if self.muted == _DRAINING and parser.begun:
                self._take_last(parser.of_request(data), now_ms)
                return
            if self.muted:
                self._hold(data)
                return
            route = parser.collecting
            if route is None:
                joined = parser.keep_more(data)
                if joined is None:
                    return
                data = joined
            else:
                frame = parser.collect_more(data)
                if frame is None:
                    return
                start = at = parser.frame_end
                self._frame_deadline_ms = NEVER_MS
                self._handle(route, frame, now_ms)
        self._take_requests(data, start, at, now_ms)

    def _take_last(self, data: bytes, now_ms: int) -> None:
        """Take more of a request that began before the drain."""
        self.muted &= ~_DRAINING
        try:
            self._take_from_client(data, now_ms)
        finally:
            self.muted |= _DRAINING

    def _take_requests(self, data: bytes, start: int, at: int, now_ms: int) -> None:
        """Take the requests that start in `data[at:]`; `data[start:at]` ends an earlier, relayed request."""
        received = len(data)
        client_id = None
        parser = self._parser
        pending = self.responses.pending
        timing = self._begin_chunk()
        limited = self._limited_apis()
        most_in_flight = self.throttling.most_in_flight - 1
        wanted_bytes = HEAD_BYTES
        reply: Pending | None = None
        try:
            while at < received:
                if self.muted:
                    self._relay(data, start, at)
                    self._hold(data[at:] if at else data)
                    # No deadline for bytes that the session itself delays; they get one when they are taken.
                    self._frame_deadline_ms = NEVER_MS
                    return
                route = parser.read_head(data, at)
                if route is None:
                    break
                if timing:
                    client_id = self.client_id_at(data, at, parser.client_id_length)
                    if client_id is None:
                        wanted_bytes = HEAD_BYTES + parser.client_id_length
                        break
                    if self._hold_for_time(route.api, client_id, now_ms):
                        continue
                limit = None if limited is None else limited.get(route.api.key)
                if limit is not None:
                    client_id = self.client_id_at(data, at, parser.client_id_length)
                    if client_id is None:
                        wanted_bytes = HEAD_BYTES + parser.client_id_length
                        break
                    if self._hold_for_api(limit, route.api, client_id, now_ms):
                        continue
                owed = len(pending)
                head = route.head
                missing_bytes = parser.frame_end - received
                if missing_bytes > 0 and head is None and route.collect is not None:
                    if limit is not None:  # it counts when it is whole, and must ask the limit then
                        wanted_bytes = parser.size + 4
                        break
                elif missing_bytes > 0 and not self._may_begin(received - at, missing_bytes, now_ms):
                    # Wait for the whole request if it may not be announced, otherwise for `PASS_ON_BYTES`.
                    wanted_bytes = parser.size + 4
                    if received - at < PASS_ON_BYTES:
                        wanted_bytes = min(wanted_bytes, PASS_ON_BYTES)
                    else:
                        self._announced.limits.collected += 1
                    break
                outcome: HeadOutcome
                if head is not None:
                    rewritten, self._rewritten = self._rewritten, None
                    outcome = rewritten or head.on_head(self, route, parser, data, at, now_ms=now_ms)
                elif route.collect is not None:
                    outcome = _COLLECT
                else:
                    outcome = Pending(parser.correlation_id)
                if isinstance(outcome, Pending):
                    reply = outcome
                    pending.append(outcome)
                elif outcome is _NO_REPLY:
                    reply = None
                    self.responses.unanswered = True
                elif isinstance(outcome, RewrittenHead):
                    self._relay(data, start, at)
                    self.to_upstream.append(outcome.head)
                    start = at + len(outcome.head)
                    self._started = True
                    reply = outcome.reply
                    pending.append(reply)
                elif outcome is _MORE:
                    wanted_bytes = parser.more_of_head(received - at)
                    break
                elif outcome is _WHOLE:
                    wanted_bytes = parser.size + 4
                    break
                else:
                    if outcome is _COLLECT:
                        self._relay(data, start, at)
                        frame = parser.collect(route, data, at)
                        if frame is None:
                            self._expect_rest(parser.size, now_ms)
                            return
                        at = start = parser.frame_end
                        self._handle(route, frame, now_ms)
                    continue
                if timing:
                    self.throttling.held_for_time = False
                    self._time(route.api, client_id or "", reply)
                if limit is not None and reply is not None:
                    reply.timed = self._charge_api(limit, route.api, client_id or "", reply.timed, now_ms)
                route.requests += 1
                at = parser.frame_end
                if owed >= most_in_flight and pending:  # empty after acks=0: no reply would unmute
                    self.muted |= _IN_FLIGHT_FULL
        except ProtocolError:
            self._relay(data, start, at)
            raise
        self._end_chunk(data, start, at, wanted_bytes, reply is not None, now_ms)

    def _may_begin(self, received_bytes: int, missing_bytes: int, now_ms: int) -> bool:
        """Whether the beginning of a request may be relayed, given its received and its missing bytes."""
        if received_bytes < PASS_ON_BYTES:
            return False
        announced = self._announced
        if announced.fits(self.kind, missing_bytes):
            return True
        announced.press(now_ms=now_ms)
        return announced.fits(self.kind, missing_bytes)

    def _relay_rest(self, missing_bytes: int, has_reply: bool, now_ms: int) -> None:
        """Expect the missing bytes of the last request, whose beginning is relayed."""
        self._rest_has_reply = has_reply
        self._parser.relay_rest(missing_bytes)
        self._expect_rest(missing_bytes, now_ms)
        self._announced_bytes = missing_bytes
        self._announced_kind = self.kind
        self._announced.begin(self, self._announced_kind, missing_bytes)

    def _end_announcement(self) -> None:
        """Stop counting the relayed request as announced: it is complete, or its connection has ended."""
        if self._announced_bytes:
            self._announced.end(self, self._announced_kind, self._announced_bytes)
            self._announced_bytes = 0

    def _begin_chunk(self) -> bool:
        """Refresh the quotas once per chunk. Returns whether requests are timed."""
        meter = self.meter
        if meter is None:
            return False
        quotas = meter.quotas
        if quotas.version != quotas.limits.version:
            quotas.refresh()
        # Requests of the authentication are not timed, as in Kafka.
        meter.on = quotas.times_requests and self._sasl is None
        if not meter.on:
            self.throttling.many_at_once()
        return meter.on

    def _end_chunk(
        self, data: bytes, start: int, at: int, wanted_bytes: int, has_reply: bool, now_ms: int
    ) -> None:
        """Relay the rest of a chunk, and keep an incomplete head at its end."""
        received = len(data)
        if at > received:
            self._relay_rest(at - received, has_reply, now_ms)
            self._relay(data, start, received)
            return
        self._relay(data, start, at)
        if at == received:
            self._frame_deadline_ms = NEVER_MS
            return
        self._parser.keep(data, at, wanted_bytes)
        if at or self._frame_deadline_ms == NEVER_MS or wanted_bytes > HEAD_BYTES:
            # If `at` is not 0, this is a new frame, to which the earlier frame's deadline does not apply.
            self._expect_rest(wanted_bytes if wanted_bytes > HEAD_BYTES else 0, now_ms)

    def _relay(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self._started = True
            self.to_upstream.append(data if end - start == len(data) else data[start:end])

    def _hold(self, data: bytes) -> None:
        """Keep bytes that arrived during a mute; during a drain only those of a request that had begun before."""
        if not self.muted & _DRAINING:
            self._held.append(data)
        elif self._parser.begun:
            self._held.append(self._parser.of_request(data))

    def _hold_more(self, data: bytes) -> None:
        """Keep bytes that arrived behind waiting bytes. Small pieces are joined, to have fewer objects."""
        if len(self._held[-1]) < SMALL_PIECE_BYTES:
            self._held[-1] += data
        else:
            self._held.append(data)

    def _handle(self, route: Route, frame: bytes, now_ms: int) -> None:
        """Hand a whole request to its handler. The handler may mute, so the caller checks `muted` afterwards."""
        assert route.collect is not None
        route.requests += 1
        self._started = True
        self._in_hand_bytes = len(frame)
        if self._sasl is not None:
            self._logging_in += 1
            if self._logging_in > MAX_REQUESTS_BEFORE_LOGIN:
                raise Unauthenticated(f"more than {MAX_REQUESTS_BEFORE_LOGIN} requests before the login")
        meter = self.meter
        timed = meter is not None and meter.on
        self.throttling.held_for_time = False
        self._in_hand = meter.take_up(route.api, self.client_id_of(frame)) if meter and timed else None
        limited = self._limited_apis()
        limit = None if limited is None else limited.get(route.api.key)
        if limit is not None:
            self._in_hand = self._charge_api(
                limit, route.api, self.client_id_of(frame), self._in_hand, now_ms
            )
        route.collect.on_request(self, route, frame, now_ms=now_ms)
        if len(self.responses) >= self.throttling.most_in_flight:
            self.muted |= _IN_FLIGHT_FULL

    def _hold_for_time(self, api: Api, client_id: str, now_ms: int) -> bool:
        """Mute the client if its requests, on all its connections, have used up their time (KIP-124)."""
        assert self.meter is not None
        throttling = self.throttling
        if throttling.held_for_time:  # until the request passes: in pieces it is looked at several times
            return False
        wait_ms = self.meter.quotas.request_wait_ms(
            api.key, self.user, client_id, self.broker_id, kind=self.kind, address=self.address, now_ms=now_ms
        )
        self._holding = throttling.held_for_time = wait_ms > 0
        self.throttle(wait_ms, now_ms=now_ms)
        return wait_ms > 0

    def _limited_apis(self) -> Mapping[ApiKey, ApiLimit] | None:
        """The APIs that have a limit of requests; None if no limit applies to this connection."""
        meter = self.meter
        if meter is None or not meter.quotas.watches or self._sasl is not None:
            return None
        return meter.quotas.limited_apis

    def _hold_for_api(self, limit: ApiLimit, api: Api, client_id: str, now_ms: int) -> bool:
        """Mute the client while an API's limit lets none of its requests pass, on all its connections."""
        assert self.meter is not None
        quotas, throttling = self.meter.quotas, self.throttling
        tracker = quotas.api_counter(
            limit, self.user, client_id, self.broker_id, kind=self.kind, now_ms=now_ms
        )
        if tracker is None or self._put_back:
            return False
        waited = throttling.held_by_api is tracker
        wait_ms = limit.wait_ms(tracker, throttling, waited=waited, now_ms=now_ms)
        if wait_ms <= 0:
            return False
        if not limit.family.keep_members:
            throttling.counted_by(limit.family.key, tracker)
        throttling.held_by_api = tracker
        throttling.held_for_time = self.times_requests  # the request quota was checked before
        self._holding = True
        self._throttle_for_api(limit, tracker, api, client_id, wait_ms, again=waited, now_ms=now_ms)
        return True

    def _charge_api(
        self, limit: ApiLimit, api: Api, client_id: str, timed: TimedRequest | None, now_ms: int
    ) -> TimedRequest | None:
        """Count a request that passes. If its client has to wait, the result makes the reply say so."""
        assert self.meter is not None
        if self._put_back:  # it was counted when it first arrived
            self._put_back = False
            return timed
        quotas, throttling = self.meter.quotas, self.throttling
        held_by, throttling.held_by_api = throttling.held_by_api, None
        tracker = quotas.api_counter(
            limit, self.user, client_id, self.broker_id, kind=self.kind, now_ms=now_ms
        )
        if tracker is None:
            return timed
        row = quotas.api_row(limit, self.listener, self.user, client_id, self.broker_id, tracker)
        if row is not None:
            row.use(throttling.serial, now_ms=now_ms)
            row.count(1)
        wanted_ms = limit.record(tracker, throttling, now_ms=now_ms)
        if wanted_ms <= 0:
            return timed
        if not limit.family.keep_members:
            throttling.counted_by(limit.family.key, tracker)
        if timed is None:
            timed = TimedRequest(api, client_id, 0, measured=False)
        timed.by = limit.family.by
        timed.until_ms = self._throttle_for_api(
            limit, tracker, api, client_id, wanted_ms, again=held_by is tracker, now_ms=now_ms
        )
        return timed

    def _throttle_for_api(
        self,
        limit: ApiLimit,
        tracker: RateTracker,
        api: Api,
        client_id: str,
        wanted_ms: int,
        *,
        again: bool,
        now_ms: int,
    ) -> int:
        """Mute the client and record the wait. Returns when the wait for this limit ends."""
        assert self.meter is not None
        quotas = self.meter.quotas
        wait_ms = min(wanted_ms, self.throttling.max_mute_ms)
        self.throttle(wait_ms, now_ms=now_ms)
        row = quotas.api_row(limit, self.listener, self.user, client_id, self.broker_id, tracker)
        if row is not None:
            row.mute(now_ms + wait_ms, now_ms=now_ms)
        quotas.record_throttle(
            api.key,
            limit.family.by,
            tracker,
            wait_ms,
            user=self.user,
            client_id=client_id,
            kind=self.kind,
            now_ms=now_ms,
            row=row,
            again=again,
        )
        return now_ms + wait_ms

    def _time(self, api: Api, client_id: str, reply: Pending | None) -> None:
        """Have the time of a relayed request measured (KIP-124); acks=0 has no reply and is exempt."""
        assert self.meter is not None
        if reply is None:
            self.meter.exempt_event = True
        else:
            sample = None if reply.timed is None else reply.timed.sample
            reply.timed = self.meter.start(api, client_id)
            reply.timed.sample = sample

    def _expect_rest(self, missing_bytes: int, now_ms: int) -> None:
        settings = self._settings
        deadline_ms = (
            now_ms + settings.frame_timeout_ms + missing_bytes * 1000 // settings.min_frame_bytes_per_s
        )
        self._frame_deadline_ms = deadline_ms
        if deadline_ms < self.wake_at_ms:
            self.wake_at_ms = deadline_ms

    def refuse(self, error: ProtocolError) -> None:
        """See `Session`."""
        if self._end_cause is None:
            self.refusal = error
        self._held.clear()
        self._frame_deadline_ms = NEVER_MS
        self._end_input(CloseCause(error.cause))

    def _end_input(self, cause: CloseCause) -> None:
        """Take no further bytes from the client, and close once it has all its replies."""
        if not self._held:
            self._give_up_rest()
        self.muted |= _HALF_CLOSED
        if self._end_cause is None:
            self._end_cause = cause
        self._close_if_served()

    def _give_up_rest(self) -> None:
        """Expect no reply to the incomplete request: its rest will not arrive (hazard K15)."""
        self._frame_deadline_ms = NEVER_MS
        parser, pending = self._parser, self.responses.pending
        # With acks=0 the request has no reply: the last pending one is another request's, perhaps of the same id.
        if (
            parser.relay_left
            and self._rest_has_reply
            and pending
            and pending[-1].correlation_id == parser.correlation_id
        ):
            pending.pop()

    def _close_if_served(self) -> None:
        # A half-close does not shorten the delay of a failed authentication (KIP-306).
        if (
            self._end_cause is not None
            and self.responses.idle
            and not self._held
            and not self.steps
            and self._delayed_close is None
        ):
            self.close(self._end_cause)

    def close(self, cause: CloseCause) -> None:
        """Make the shell close both legs; the first cause counts."""
        if self.close_cause is None:
            self.close_cause = cause

    def ended(self, *, now_ms: int) -> None:
        """Clean up after both legs have closed. Waiting bytes are dropped: no reply could be delivered."""
        self.on_output_ready = self.on_memory_freed = None
        self._held.clear()
        self._end_watch(now_ms)
        self._end_announcement()
        self.responses.ended(now_ms=now_ms)
        self.throttling.leave()
        if self._users is not None:
            self._users.leave(self.throttling.serial)
        self.steps.clear()
        self._memory.leave(self)
        self._memory = MemoryBudget(NEVER_MS)  # work that is still done is not counted
        if self.meter is not None:
            self.meter.left(self.user, self.broker_id, kind=self.kind, now_ms=now_ms)
        if self._open_traces is not None:
            self._open_traces.connection_ended(now_ms=now_ms)

    # -- traces ----------------------------------------------------------------------------------------------

    def begin_trace(self, name: str, *, now_ms: int) -> Trace | None:
        """See `Session`."""
        if self._trace_sink is None:
            return None
        if self._open_traces is None:
            self._open_traces = OpenTraces(self._trace_sink)
        attributes: dict[str, Attribute] = {"sluice.listener": self.listener, "client.address": self.peer}
        return self._open_traces.begin(name, attributes, now_ms=now_ms)

    # -- long work -------------------------------------------------------------------------------------------

    def run(self, steps: Steps[None]) -> None:
        """See `Session`."""
        if not self.begins_now(self._in_hand_bytes):
            self.go_on_later(put_off(steps), put_off_bytes=self._in_hand_bytes)
            return
        try:
            next(steps)
        except StopIteration:
            return
        self.go_on_later(steps)

    def go_on_later(self, steps: Steps[Any], *, put_off_bytes: int = 0) -> None:
        """See `Timekeeper`. The client is not read while its steps run."""
        self.put_off_bytes = 0 if self.steps else put_off_bytes
        self.steps.append(steps)
        self.muted |= _WORKING

    def take_step(self, *, now_ms: int) -> None:
        """Take one step of the work in progress; raises the errors of `receive_from_upstream`."""
        steps = self.steps[0]
        self.put_off_bytes = 0
        of_reply = steps is self.responses.stalled
        try:
            steps.send(now_ms)
            if len(self.steps) > 1:
                self.steps.append(self.steps.pop(0))
            return
        except StopIteration as end:
            self.steps.pop(0)
            if of_reply:
                self.responses.resume(end.value, now_ms, self)
        except ProtocolError as exc:
            self.steps.pop(0)
            if of_reply:
                raise
            self.refuse(exc)
        if not self.steps:
            self.unmute(MuteReason.WORKING, now_ms=now_ms)
        self._replied(now_ms)

    @property
    def holds_upstream(self) -> bool:
        """Whether the shell should not read from the broker for now."""
        return self.responses.stalled is not None or bool(
            self.muted & _MEMORY_FULL and self.responses.collected_bytes > SMALL_BYTES
        )

    # -- memory ----------------------------------------------------------------------------------------------

    def unsent(self, side: Side, unsent_bytes: int) -> None:
        """Note how many bytes wait in a transport, or for one."""
        self._unsent_bytes[side is _UPSTREAM] = unsent_bytes
        self._account()

    def memory_freed(self) -> None:
        """See `Holder`."""
        if self.on_memory_freed is not None:
            self.on_memory_freed()

    @property
    def missing_bytes(self) -> int:
        """See `Holder`."""
        return max(self._parser.missing_bytes, self.responses.missing_bytes)

    @property
    def moved_bytes(self) -> tuple[int, int]:
        """See `Holder`."""
        return self.bytes_from_client, self.bytes_from_upstream - self._unsent_bytes[0]

    def give_way(self, sent_bytes: int, taken_bytes: int, elapsed_ms: int, *, foremost: bool) -> None:
        """See `Holder`. A client that the gateway does not read is not slow to send."""
        if self._holds_whole:
            self._drop_whole()
            self.memory_freed()
            return
        enough_bytes = self._settings.min_frame_bytes_per_s * elapsed_ms // 1000
        unread = self.muted & _AWAITS_BROKER if foremost else self.muted
        missing_bytes = 0 if unread else self._parser.missing_bytes
        unsent_bytes = self._unsent_bytes[0]
        if unsent_bytes > SMALL_BYTES and taken_bytes < min(unsent_bytes, enough_bytes):
            self._make_room(CloseCause.WRITE_TIMEOUT)
        elif sent_bytes < min(missing_bytes, enough_bytes):
            self._make_room(CloseCause.FRAME_TIMEOUT)

    def stop_announcing(self, *, now_ms: int) -> None:
        """See `Announcer`. A client that the gateway does not read, because of back pressure, is not slow."""
        if self.muted & _BACK_PRESSURE:
            return
        # The deadline is for the whole request; `left_ms` of it is for the missing bytes.
        left_ms = self._parser.relay_left * 1000 // self._settings.min_frame_bytes_per_s
        if now_ms >= min(self.idle_since_ms + PATIENCE_MS, self._frame_deadline_ms - left_ms):
            self._make_room(CloseCause.FRAME_TIMEOUT)

    def _drop_whole(self) -> None:
        """Close for the sake of other connections, and free the memory at once."""
        self.close(CloseCause.MEMORY_FULL)
        self._held.clear()
        self._account()

    @property
    def _holds_whole(self) -> bool:
        """Whether a large request that was collected whole waits for a quota."""
        if not (self.muted & _THROTTLED and self._held) or self._parser.mid_frame:
            return False
        first = self._held[0]
        return LARGE_BYTES < 4 + int.from_bytes(first[:4], "big") <= len(first)

    def _make_room(self, cause: CloseCause) -> None:
        """Close for the sake of other connections. Their event caused this, so the shell has to be called."""
        self.close(cause)
        self.memory_freed()

    def _account(self) -> None:
        """Report the kept bytes to the memory budget, and mute the client if it has to wait for memory."""
        responses, memory = self.responses, self._memory
        muted = self.muted
        if not muted & _IN_HAND:
            self._in_hand_bytes = 0
        collected = max(self._parser.kept_bytes, responses.collected_bytes)
        unsent_bytes = self._unsent_bytes[0] + self._unsent_bytes[1]
        held_bytes = self._parser.kept_bytes + responses.held_bytes + self._in_hand_bytes + unsent_bytes
        behind_bytes = sum(map(len, self._held)) if self._held else 0
        memory.account(self, held_bytes + behind_bytes, behind_bytes=behind_bytes)
        if memory.full and self._holds_whole:
            self._drop_whole()
        local_bytes = responses.local_bytes
        if muted & _REPLIES_FULL:
            if local_bytes <= MAX_LOCAL_REPLY_BYTES // 2 and not (local_bytes and memory.full):
                self.muted &= ~_REPLIES_FULL
        elif local_bytes > MAX_LOCAL_REPLY_BYTES or (local_bytes and memory.full):
            self.muted |= _REPLIES_FULL
        if not muted & _MEMORY_FULL and memory.must_wait(self, collected):
            self.muted |= _MEMORY_FULL
            self.wake_at_ms = min(self.wake_at_ms, self.idle_since_ms + PATIENCE_MS)

    # -- from the broker -------------------------------------------------------------------------------------

    def receive_from_upstream(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes; raises `UpstreamDesync` if they do not answer the requests in order."""
        self.bytes_from_upstream += len(data)
        self.idle_since_ms = now_ms
        responses = self.responses
        responses.receive(data, now_ms, self)
        if self.muted or self._held or self.accounted_bytes or responses.held_bytes:
            self._replied(now_ms)

    def _replied(self, now_ms: int) -> None:
        """End mutes, and perhaps the connection, after a reply or part of it has left."""
        self._account()
        if self.muted & _IN_FLIGHT_FULL and len(self.responses) <= self.throttling.most_in_flight // 2:
            self.muted &= ~_IN_FLIGHT_FULL
        self._close_if_served()
        if self._held and not self.muted & ~_INPUT_ENDED:
            self._resume(now_ms)

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """See `Timekeeper`."""
        assert self.meter is not None
        if timed.sample is not None:
            timed.sample.answer(now_ms=now_ms)
        if timed.measured:
            self.meter.answered(self.user, timed, self.broker_id, kind=self.kind, now_ms=now_ms)
        else:
            self.meter.not_measured()

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """See `Timekeeper`."""
        assert self.meter is not None
        if timed.sample is not None:
            timed.sample.short = shows_shortage(reply, timed.api)
        if timed.until_ms > now_ms:
            reply = self._told_of_api(timed, reply, now_ms)
        if not timed.measured:
            return reply
        if not self.meter.request_ms:
            self.throttling.many_at_once()
            return reply
        self.throttling.one_at_a_time()
        sealed = bytearray(reply)
        final_ms = self.meter.seal(self.user, timed, self.broker_id, sealed, kind=self.kind, now_ms=now_ms)
        self.throttle(final_ms, now_ms=now_ms)
        return bytes(sealed)

    def _told_of_api(self, timed: TimedRequest, reply: bytes, now_ms: int) -> bytes:
        """The reply with the remaining wait for its API's limit in its throttle time."""
        assert self.meter is not None
        told = bytearray(reply)
        wanted_ms = timed.until_ms - now_ms
        final_ms = throttle.patch(told, timed.api, wanted_ms)
        self.throttle(final_ms, now_ms=now_ms)
        self.meter.claim(timed.by, wanted_ms, final_ms)
        return bytes(told)

    def answered_in_steps(self, timed: TimedRequest, *, now_ms: int) -> None:
        """See `Timekeeper`."""
        assert self.meter is not None
        if not timed.measured:
            return
        self.meter.add_steps(self.user, timed, self.broker_id, kind=self.kind, now_ms=now_ms)

    # -- verbs for handlers ----------------------------------------------------------------------------------

    def forward(self, frame: bytes, api: Api, answer: Answer | None = None) -> None:
        """See `Session`."""
        self.relay(frame, api, Pending(correlation_id_of(frame), answer))

    def relay(self, frame: bytes, api: Api, reply: Pending | None) -> None:
        """See `Session`."""
        in_hand, self._in_hand = self._in_hand, None  # `reply` is timed instead
        if self.times_requests:
            self._time(api, self.client_id_of(frame), reply)
        if in_hand is not None and in_hand.until_ms and reply is not None:
            timed = reply.timed or TimedRequest(api, in_hand.client_id, 0, measured=False)
            timed.until_ms, timed.by = in_hand.until_ms, in_hand.by
            reply.timed = timed
        if reply is None:
            self.responses.unanswered = True
        else:
            self.responses.pending.append(reply)
        self.to_upstream.append(frame)

    def watch_rest(self, watch: Watch) -> None:
        """See `Session`."""
        self._watched = watch

    def _end_watch(self, now_ms: int) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            watched.end(now_ms=now_ms)

    def ask_upstream(self, frame: bytes, correlation_id: int, on_reply: OnReply) -> None:
        """See `Session`."""
        self.responses.pending.append(Pending(correlation_id, CollectedAnswer(on_reply)))
        self.to_upstream.append(frame)

    def begin_answer(self, *, now_ms: int) -> None:
        """See `Session`."""
        timed, self._in_hand = self._in_hand, None
        if timed is not None:
            self.request_answered(timed, now_ms=now_ms)
            self._answering = timed

    def answer(self, reply: bytes, *, now_ms: int) -> None:
        """See `Session`."""
        self.responses.reply(self._sealed(reply, now_ms))

    def defer(self) -> LocalAnswer:
        """See `Session`."""
        self.mute(MuteReason.AWAITING_REPLY)
        return self.responses.defer()

    def fulfil(self, place: LocalAnswer, reply: bytes, *, now_ms: int) -> None:
        """See `Session`."""
        self.responses.fill(place, self._sealed(reply, now_ms))
        self.muted &= ~int(MuteReason.AWAITING_REPLY)
        self._replied(now_ms)
        if self.on_output_ready is not None:
            self.on_output_ready()

    def _sealed(self, reply: bytes, now_ms: int) -> bytes:
        self.begin_answer(now_ms=now_ms)
        timed, self._answering = self._answering, None
        return reply if timed is None else self.seal_reply(timed, reply, now_ms=now_ms)

    @property
    def kind(self) -> Kind:
        """See `Session`."""
        return self._anonymous_kind if self.user == _ANONYMOUS else self.user

    @property
    def times_requests(self) -> bool:
        """See `Session`."""
        return self.meter is not None and self.meter.on

    def throttle(self, throttle_time_ms: int, tracker: RateTracker | None = None, *, now_ms: int) -> int:
        """See `Session`."""
        if throttle_time_ms <= 0:
            return now_ms
        request_row = None if self.meter is None else self.meter.row
        until_ms = self.throttling.extend(throttle_time_ms, request_row, tracker, now_ms=now_ms)
        self.muted |= _THROTTLED
        if until_ms < self.wake_at_ms:
            self.wake_at_ms = until_ms
        return until_ms

    def hold(
        self, api: Api, by: ThrottledBy, sensor: CachedSensor, wanted_ms: int, *, now_ms: int
    ) -> HeadDecision:
        """See `Session`."""
        assert self.meter is not None
        assert sensor.tracker is not None
        throttling = self.throttling
        wait_ms = min(wanted_ms, throttling.max_mute_ms)
        self.throttle(wait_ms, sensor.tracker, now_ms=now_ms)
        self._holding = True
        self._record_throttle(api, by, sensor, wait_ms, throttling.held_by, now_ms)
        throttling.held_by = sensor.tracker
        return HeadDecision.WAIT

    def throttle_reply(
        self,
        reply: bytes,
        api: Api,
        by: ThrottledBy,
        sensor: CachedSensor,
        wanted_ms: int,
        *,
        held_by: RateTracker | None = None,
        now_ms: int,
    ) -> bytes:
        """See `Session`."""
        assert self.meter is not None
        assert sensor.tracker is not None
        patched = bytearray(reply)
        wanted_ms = min(wanted_ms, self.throttling.max_mute_ms)
        final_ms = throttle.patch(patched, api, wanted_ms)
        self.throttle(final_ms, sensor.tracker, now_ms=now_ms)
        if self.meter.claim(by, wanted_ms, final_ms):
            self._record_throttle(api, by, sensor, wanted_ms, held_by, now_ms)
        return bytes(patched)

    def _record_throttle(
        self,
        api: Api,
        by: ThrottledBy,
        sensor: CachedSensor,
        wait_ms: int,
        held_by: RateTracker | None,
        now_ms: int,
    ) -> None:
        assert self.meter is not None
        assert sensor.tracker is not None
        self.meter.quotas.record_throttle(
            api.key,
            by,
            sensor.tracker,
            wait_ms,
            user=sensor.user,
            client_id=sensor.client_id,
            kind=self.kind,
            now_ms=now_ms,
            row=sensor.row,
            again=held_by is sensor.tracker,
        )

    def claim_throttle(self, by: ThrottledBy, wanted_ms: int, final_ms: int) -> bool:
        """See `Session`."""
        if self.meter is not None:
            return self.meter.claim(by, wanted_ms, final_ms)
        return combine(by, wanted_ms, upstream_ms=final_ms).by is by

    def fail_later(self, reply: bytes | None, cause: CloseCause, delay_ms: int, *, now_ms: int) -> None:
        """See `Session`."""
        self.mute(MuteReason.AUTHENTICATION_FAILED)
        self._held.clear()
        self._delayed_close = (now_ms + delay_ms, reply, cause)
        self._close_when_due(now_ms)
        self.wake_at_ms = min(self.wake_at_ms, now_ms + delay_ms)

    @property
    def closing_later(self) -> bool:
        """Whether the answer to a failed authentication, and the close with it, are delayed."""
        return self._delayed_close is not None

    @property
    def failed_authentication_delay_ms(self) -> int:
        """See `SessionSettings`."""
        return self._settings.failed_authentication_delay_ms

    def authenticated(self, *, now_ms: int) -> None:
        """See `Session`."""
        assert self.authentication is not None
        assert self.authentication.principal is not None
        self.user = cut_name(self.authentication.principal)
        if self._sasl is not None:
            self._parser.allow(self._sasl.after)
            self._sasl = None
        self.user_known(now_ms=now_ms)

    def user_known(self, *, now_ms: int) -> None:
        """Count the connection for its user. If it has to wait for its turn, the client is not read until then."""
        if self._users is None:
            return
        admission = self._users.enter(self.user, self.throttling.serial, now_ms=now_ms)
        if admission.decision is AdmissionDecision.ADMIT:
            self._turn_ms = NEVER_MS
            if self.muted & _AWAITING_TURN:
                self.unmute(MuteReason.AWAITING_TURN, now_ms=now_ms)
            return
        self.muted |= _AWAITING_TURN
        end_ms = now_ms + admission.wait_ms
        self.wake_at_ms = min(self.wake_at_ms, end_ms)
        if admission.decision is AdmissionDecision.HOLD:
            self._turn_ms = end_ms
            return
        self._turn_ms = NEVER_MS
        self.refusal = UserLimit(self.user, admission.cause)
        self._held.clear()
        self._delayed_close = (end_ms, None, CAUSES[admission.cause][0])
        self._close_when_due(now_ms)

    def confirm_next(self) -> None:
        """See `Session`."""
        assert self._sasl is not None
        self._parser.allow(self._sasl.confirming, routes_after_login=self._sasl.after)

    def _close_when_due(self, now_ms: int) -> None:
        if self._delayed_close is None or now_ms < self._delayed_close[0]:
            return
        _, reply, cause = self._delayed_close
        self._delayed_close = None
        if reply is not None:
            self.to_client.append(reply)
        self.close(cause)

    def client_id_at(self, data: bytes, at: int, length: int) -> str | None:
        """See `Session`."""
        return self._parser.client_id_at(data, at, length)

    def client_id_of(self, frame: bytes) -> str:
        """See `Session`."""
        return cut_name(read_client_id(frame, HEAD_BYTES, HEAD.unpack_from(frame, 0)[3]))

    def expect_first_frame(self, *, now_ms: int) -> None:
        """Start the deadline of the first frame; a handshake before it had its own deadline."""
        self._frame_deadline_ms = now_ms + self._settings.first_frame_timeout_ms
        self.wake_at_ms = self._frame_deadline_ms
        self.idle_since_ms = now_ms

    # -- events of the shell ---------------------------------------------------------------------------------

    def mute(self, reason: MuteReason) -> None:
        """See `Session`."""
        self.muted |= int(reason)

    def unmute(self, reason: MuteReason, *, now_ms: int) -> None:
        """Remove a reason. If it was the last one, the session takes the waiting bytes."""
        self.muted &= ~int(reason)
        if self._held and not self.muted & ~_INPUT_ENDED:
            self._resume(now_ms)

    def release(self, reason: MuteReason) -> None:
        """See `Session`."""
        self.muted &= ~int(reason)

    def put_back(self, frame: bytes) -> None:
        """See `Session`. The frame is dropped if the client has half-closed, as for a throttled client."""
        limited = self._limited_apis()
        self._put_back = limited is not None and HEAD.unpack_from(frame, 0)[1] >> 16 in limited
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
        self._account()
        if ended & MuteReason.HALF_CLOSED and not self._held:
            self._give_up_rest()
        self._close_if_served()

    def client_half_closed(self) -> None:
        """End the input after the client has half-closed. Its complete requests are served, as in Kafka (hazard B07).

        Frames that wait for a throttle are dropped: the client has more likely gone than waits (hazard C16).
        """
        if self.muted & (_THROTTLED | _AWAITING_TURN):
            self._held.clear()
        self._end_input(_CLIENT_CLOSED)

    def drain(self) -> None:
        """Begin no further request; `drained` is true once every request that had begun has its reply.

        Requests that wait for a mute are taken when it is over: a drain does not shorten a throttle.
        """
        self.muted |= int(MuteReason.DRAINING)

    @property
    def drained(self) -> bool:
        """Whether no reply is outstanding, not even the answer to a failed authentication."""
        return (
            self.responses.drained
            and not self._parser.begun
            and not self._held
            and not self.steps
            and self._delayed_close is None
        )

    @property
    def mid_request(self) -> bool:
        """Whether a request has been relayed in part."""
        return self._parser.relay_left > 0

    @property
    def reading_client(self) -> bool:
        """Whether the shell should read from the client. A mute lets the current relayed frame end first.

        A client whose request waits for a quota is still read. So the session notices when the client gives up
        and closes, and does not relay the request then.
        """
        muted = self.muted
        if not muted:
            return True
        if self._holding and muted == _THROTTLED:
            return self.accounted_bytes < MAX_HELD_BYTES and self._memory.half_free
        if muted == _DRAINING:
            return self._parser.begun
        return self._parser.relay_left > 0 and not muted & (_BACK_PRESSURE | _HALF_CLOSED)

    def on_timer(self, *, now_ms: int) -> None:
        """Do what is due, and set `wake_at_ms` to the next due time. `LATE_MS` says what a late call does."""
        late = now_ms - self.wake_at_ms >= LATE_MS
        self._close_when_due(now_ms)
        if self.muted & _THROTTLED and now_ms >= self.throttling.until_ms:
            self._holding = False
            self.unmute(MuteReason.THROTTLED, now_ms=now_ms)
        if self._turn_ms <= now_ms:
            self.user_known(now_ms=now_ms)
        settings = self._settings
        if self._frame_deadline_ms <= now_ms:
            if self.muted & ~_DRAINING or late:
                # The gateway itself did not read the rest of the frame: the client gets a new deadline.
                self._frame_deadline_ms = now_ms + settings.frame_timeout_ms
            else:
                self.close(
                    CloseCause.FRAME_TIMEOUT
                    if self._started or self._parser.begun
                    else CloseCause.FIRST_FRAME_TIMEOUT
                )
        patience_ms = settings.idle_timeout_ms if self._sasl is None else settings.frame_timeout_ms
        idle_at_ms = self.idle_since_ms + patience_ms
        if not self.responses.idle or self.steps or self.muted & _MEMORY_FULL:
            # A client that waits for a reply is not idle, however long the broker takes (hazard B21).
            idle_at_ms = now_ms + settings.idle_timeout_ms
        elif idle_at_ms <= now_ms and late:
            idle_at_ms = now_ms + LATE_MS
        elif idle_at_ms <= now_ms:
            self.close(CloseCause.IDLE_TIMEOUT)
        press_at_ms = NEVER_MS
        if self.muted & _MEMORY_FULL:
            press_at_ms = now_ms + PATIENCE_MS
            if not late:
                self._memory.press(now_ms=now_ms)
        throttled_until_ms = self.throttling.until_ms if self.muted & _THROTTLED else NEVER_MS
        delay_ms = self._delayed_close[0] if self._delayed_close is not None else NEVER_MS
        self.wake_at_ms = min(
            throttled_until_ms, self._frame_deadline_ms, idle_at_ms, delay_ms, press_at_ms, self._turn_ms
        )
