"""Routes: the interface of handlers and sessions, and the table from (api key, api version) to handlers.

The table is built once per listener. A request whose API number is not in it is refused. Sessions get the table as an
argument and handlers get the session as a `Session`, so neither imports the other. A SASL listener has three tables;
a session uses one at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, TypeAlias

from gateway.auth.authentication import Authentication, SaslRules
from gateway.observability.events import CloseCause
from gateway.observability.traces import Trace
from gateway.session.mute import MuteReason
from gateway.session.parts import Watch
from gateway.session.response_queue import Answer, LocalAnswer, OnReply, Pending, ResponseQueue
from gateway.session.throttle_state import CachedSensor, ThrottleState
from protocol.api_keys import Api, ApiKey, all_offered, describe
from protocol.errors import ProtocolError
from protocol.headers import api_number
from protocol.steps import Steps
from quotas.combine import ThrottledBy
from quotas.rate_quotas import RateTracker
from quotas.trackers import Kind


class HeadDecision(Enum):
    """How the session handles a request for which it notes no reply."""

    NO_REPLY = "no reply"  # relay it; the broker will not answer
    COLLECT = "collect"
    MORE = "more"  # the handler needs more bytes of the request
    WHOLE = "whole"  # the handler needs all of the request
    WAIT = "wait"  # the handler has muted the session, and is called again after the mute


class RewrittenHead:
    """A Fetch request whose first bytes are replaced by as many others; the rest is relayed.

    Attributes:
        head: the new first bytes, beginning with the frame's size.
        reply: the reply for the client.
    """

    __slots__ = ("head", "reply")

    def __init__(self, head: bytes, reply: Pending) -> None:
        self.head = head
        self.reply = reply


HeadOutcome: TypeAlias = Pending | RewrittenHead | HeadDecision
"""A handler's decision about a request's head. `Pending` is the reply to a request that is relayed unchanged."""


class RequestHead:
    """The head of the request that the session is handling.

    A connection has one such object, and the next head overwrites it. Handlers keep its values, not the object.

    Attributes:
        size: payload of the frame.
        correlation_id: the client's.
        client_id_length: negative for null.
    """

    __slots__ = ("client_id_length", "correlation_id", "size")

    def __init__(self, size: int, correlation_id: int, client_id_length: int) -> None:
        self.size = size
        self.correlation_id = correlation_id
        self.client_id_length = client_id_length


class Session(Protocol):
    """The part of a client's session that handlers use.

    Attributes:
        listener, peer: names for logs and metrics.
        address: the client's address; "" if not known.
        broker_id: the broker of the port that the client connected to; None for the bootstrap port.
        user: principal name; ANONYMOUS until the client has authenticated.
        authentication: the SASL exchange; None on a listener without SASL.
        responses: requests without a reply.
        throttling: the counters of the client's requests, and its throttle.
    """

    __slots__ = ()

    listener: str
    peer: str
    address: str
    broker_id: int | None
    user: str
    authentication: Authentication | None
    responses: ResponseQueue
    throttling: ThrottleState

    @property
    def kind(self) -> Kind:
        """Clients of the same kind share a counter when the table of counters is full; see `quotas.trackers`.

        For clients without a name it is their listener and network.
        """

    # -- requests and replies --------------------------------------------------------------------------------

    def forward(self, frame: bytes, api: Api, answer: Answer | None = None) -> None:
        """Send a client's whole request upstream.

        Args:
            frame: the request with its size; its version may differ from the client's.
            api: the version of the client's reply.
            answer: how the reply is handled; None: it is relayed.
        """

    def relay(self, frame: bytes, api: Api, reply: Pending | None) -> None:
        """Send a whole request upstream.

        Args:
            frame: the request with its size.
            api: the version of the request.
            reply: the reply for the client; None: the broker will not answer.
        """

    def watch_rest(self, watch: Watch) -> None:
        """Show the rest of the current request to `watch` as it is relayed."""

    def ask_upstream(self, frame: bytes, correlation_id: int, on_reply: OnReply) -> None:
        """Send a request of the gateway on this client's upstream connection. Only `on_reply` gets the reply."""

    def answer(self, reply: bytes, *, now_ms: int) -> None:
        """Answer the collected request that the handler is working on; its time counts like a relayed request's.

        The reply waits for the replies of earlier requests (hazard A38).
        """

    def begin_answer(self, *, now_ms: int) -> None:
        """Count the time of that request before a quota of its own API is checked, instead of in `answer`."""

    def defer(self) -> LocalAnswer:
        """Reserve a place for a later reply. The session takes no further request before `fulfil`."""

    def run(self, steps: Steps[None]) -> None:
        """Serve a request in steps: the first one now, the others in turns with other connections.

        Each step is sent the time. The session takes no further request of the client before the last step. The
        steps count as the client's request time (KIP-124). They end with the connection.
        """

    def fulfil(self, place: LocalAnswer, reply: bytes, *, now_ms: int) -> None:
        """Set the reply for a reserved place. Must not be called from within an event of this session.

        If the connection has ended meanwhile, the reply is dropped.
        """

    def client_id_at(self, data: bytes, at: int, length: int) -> str | None:
        """The client id of the request whose frame begins at `at`; None if it has not been received completely."""

    def client_id_of(self, frame: bytes) -> str:
        """The client id in a whole request frame; it may change from request to request."""

    # -- mutes and throttles ---------------------------------------------------------------------------------

    def mute(self, reason: MuteReason) -> None:
        """Add a reason; back pressure acts at once, everything else before the next frame."""

    def release(self, reason: MuteReason) -> None:
        """Remove a reason from within a handler. Waiting bytes are taken once the handler has returned."""

    def put_back(self, frame: bytes) -> None:
        """Take this whole request again, before all later ones, once the client is read again."""

    @property
    def times_requests(self) -> bool:
        """Whether the time of requests is measured (KIP-124)."""

    def throttle(self, throttle_time_ms: int, tracker: RateTracker | None = None, *, now_ms: int) -> int:
        """Read nothing more from the client for this long (KIP-219); a longer mute stays.

        Args:
            throttle_time_ms: how long; 0 for not at all.
            tracker: the byte rate's counter that requires the throttle; None for another quota.
            now_ms: the time.

        Returns:
            When the mute ends.
        """

    def hold(
        self, api: Api, by: ThrottledBy, sensor: CachedSensor, wanted_ms: int, *, now_ms: int
    ) -> HeadDecision:
        """Mute the client before the request whose head was seen, and record the wait; returns WAIT.

        The arguments are those of `throttle_reply`.
        """

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
        """Raise throttle_time_ms of a reply, mute the client for as long, and record the wait.

        Args:
            reply: the frame, or its head if that contains the field.
            api: the version of the reply.
            by: the family of the quota that requires the wait.
            sensor: the counters of the request.
            wanted_ms: how long the quota wants the client to wait, >= 0; limited to `ThrottleState.max_mute_ms`.
            held_by: the counter for which the request has waited before, see `ThrottleState`.
            now_ms: the time.

        Returns:
            The reply for the client.
        """

    def claim_throttle(self, by: ThrottledBy, wanted_ms: int, final_ms: int) -> bool:
        """Note the wait for an API's own quota in the current reply. True: the wait is recorded under that quota.

        Args:
            by: that quota's family.
            wanted_ms: the wait for that quota.
            final_ms: the throttle time in the reply, with the broker's own taken into account.
        """

    # -- authentication --------------------------------------------------------------------------------------

    @property
    def failed_authentication_delay_ms(self) -> int:
        """See `SessionSettings`."""

    def authenticated(self, *, now_ms: int) -> None:
        """Take the user that the broker has accepted, for the requests from the next frame on.

        The connection counts for the user from now on. It may have to wait, or be closed.
        """

    def confirm_next(self) -> None:
        """Let the broker confirm, with the next request that is not SASL, that the exchange has succeeded."""

    def fail_later(self, reply: bytes | None, cause: CloseCause, delay_ms: int, *, now_ms: int) -> None:
        """Answer a failed authentication and close, both after a delay in which nothing is read (KIP-306).

        Args:
            reply: the answer, sent together with the close; None for no answer.
            cause: for the metrics.
            delay_ms: Kafka's connection.failed.authentication.delay.ms; 0 is at once.
            now_ms: the time.
        """

    # -- traces ----------------------------------------------------------------------------------------------

    def begin_trace(self, name: str, *, now_ms: int) -> Trace | None:
        """Begin the trace of a slow, infrequent operation. It ends with the handler's call or with the connection.

        Args:
            name: one of a fixed list.
            now_ms: the time.

        Returns:
            The trace; None while traces are off.
        """

    def refuse(self, error: ProtocolError) -> None:
        """Refuse the client's bytes from here on. Earlier requests are still served, as in Kafka."""


class RequestHandler(Protocol):
    """Handles requests that must be complete ("collect")."""

    max_request_bytes: int

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """Answer, forward or change one whole request frame (size included)."""


class HeadHandler(Protocol):
    """Handles the heads of requests, and relays those for which the head is enough.

    It is called when the whole request or its first `PASS_ON_BYTES` have arrived. These contain the client id.
    """

    def on_head(
        self,
        session: Session,
        route: Route,
        head: RequestHead,
        data: bytes,
        at: int,
        *,
        now_ms: int,
    ) -> HeadOutcome:
        """Decide; the session notes the reply.

        Args:
            session: the client's session.
            route: key and version.
            head: the rest of the head.
            data: received bytes; the frame's size stands at `at`.
            at: see `data`.
            now_ms: the time.

        Returns:
            COLLECT hands the request to the route's other handler. After MORE and WAIT the session calls this
            method again.
        """


@dataclass(slots=True)
class Route:
    """One supported (api key, api version).

    Attributes:
        api: key, version and layout.
        collect: handler for whole requests, or None.
        head: handler for heads, called first, or None. If both are None, the request is relayed unchanged.
        max_request_bytes: largest accepted payload.
        unknown_version: whether this is the route for ApiVersions of all unsupported versions (KIP-511).
        requests: number of requests, for the metrics.
    """

    api: Api
    collect: RequestHandler | None
    head: HeadHandler | None
    max_request_bytes: int
    unknown_version: bool = False
    requests: int = field(default=0)


MAX_SASL_BYTES: Final = 524_288
"""Largest request of the APIs allowed before authentication; Kafka's sasl.server.max.receive.size (hazard A05)."""

_SASL: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_ANY_BYTES: Final = 2**31 - 1

UNKNOWN_API_VERSIONS: Final = api_number(ApiKey.API_VERSIONS, -1)
"""The key of the route for ApiVersions requests of unsupported versions."""

Routes: TypeAlias = Mapping[int, Route]
"""api number (see `protocol.headers.api_number`) -> route."""


def build_routes(
    collect: Mapping[ApiKey, RequestHandler], head: Mapping[ApiKey, HeadHandler], *, max_frame_bytes: int
) -> dict[int, Route]:
    """The table for one listener.

    Args:
        collect: handlers for whole requests.
        head: handlers for heads.
        max_frame_bytes: largest payload of any request; handlers may ask for less.
    """
    routes = {
        api_number(api.key, api.version): route_of(api, collect, head, max_frame_bytes=max_frame_bytes)
        for api in all_offered()
    }
    handler = collect.get(ApiKey.API_VERSIONS)
    if handler is not None:
        routes[UNKNOWN_API_VERSIONS] = Route(
            api=describe(ApiKey.API_VERSIONS, 0),
            collect=handler,
            head=None,
            max_request_bytes=min(max_frame_bytes, handler.max_request_bytes),
            unknown_version=True,
        )
    return routes


def route_of(
    api: Api,
    collect: Mapping[ApiKey, RequestHandler],
    head: Mapping[ApiKey, HeadHandler],
    *,
    max_frame_bytes: int,
) -> Route:
    """The route of one version of an API; see `build_routes`."""
    handler = collect.get(api.key)
    return Route(
        api=api,
        collect=handler,
        head=head.get(api.key),
        max_request_bytes=min(max_frame_bytes, _most_bytes(api.key, handler)),
    )


def _most_bytes(key: ApiKey, handler: RequestHandler | None) -> int:
    if handler is not None:
        return handler.max_request_bytes
    return MAX_SASL_BYTES if key in _SASL else _ANY_BYTES


def find_route(routes: Routes, number: int) -> Route | None:
    """The route of an api number that is not in the table; only ApiVersions has such a route (KIP-511)."""
    if number >> 16 == ApiKey.API_VERSIONS:
        return routes.get(UNKNOWN_API_VERSIONS)
    return None


ALWAYS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""The requests that a client of a SASL listener may send before it has authenticated."""


@dataclass(frozen=True, slots=True)
class SaslListener:
    """The rules and tables that the sessions of a SASL listener use.

    Attributes:
        rules: how principals are found.
        before: the routes before authentication, only those of `ALWAYS`.
        confirming: `before`, and for all other requests a handler that first lets the broker confirm the login.
        after: all routes, for after the authentication.
    """

    rules: SaslRules
    before: Routes
    confirming: Routes
    after: Routes


def sasl_listener(rules: SaslRules, routes: Routes, confirm: HeadHandler) -> SaslListener:
    """The tables of a listener.

    Args:
        rules: see `SaslListener`.
        routes: all routes. The tables share the `Route` objects, so that each request is counted once.
        confirm: handler of the first other request after a SASL exchange that the gateway does not understand.
    """
    before = {number: route for number, route in routes.items() if route.api.key in ALWAYS}
    confirming = {
        number: before.get(number) or Route(route.api, None, confirm, route.max_request_bytes)
        for number, route in routes.items()
    }
    return SaslListener(rules, before, confirming, routes)
