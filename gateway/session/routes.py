"""Routes: the interface of handlers and sessions, and the table from (api key, api version) to handlers.

The table is built once per listener; a request whose number is not in it is refused. Sessions get the table as an
argument and handlers get the session as a `Session`, so neither imports the other. On a SASL listener there are three
tables, of which a session has one at a time.
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
    """What is done with a request of which nothing else is to be noted."""

    NO_REPLY = "no reply"  # relay it; the broker will not answer
    COLLECT = "collect"
    MORE = "more"  # the head has not been received far enough
    WAIT = "wait"  # not yet: the handler has muted the session, and is asked again after that


class RewrittenHead:
    """A request that is relayed behind these first bytes instead of its own, as many of them.

    Attributes:
        head: from its size on.
        reply: what the client is to get.
        sensor: counts the reply of this Fetch.
        asked: how many bytes that may bring.
        topics: the counters of the topics that it may bring.
    """

    __slots__ = ("asked", "head", "reply", "sensor", "topics")

    def __init__(
        self,
        head: bytes,
        reply: Pending,
        sensor: CachedSensor,
        asked: int,
        topics: tuple[RateTracker, ...] = (),
    ) -> None:
        self.asked = asked
        self.topics = topics
        self.head = head
        self.reply = reply
        self.sensor = sensor


HeadOutcome: TypeAlias = Pending | RewrittenHead | HeadDecision
"""What a handler makes of a request's head. `Pending` is the reply to a request that is relayed as it is."""


class RequestHead:
    """The head of the request that is being looked at.

    A connection has one such object, and the next head overwrites it: handlers keep what they need, not the object.

    Attributes:
        size: payload of the frame.
        correlation_id: of the client.
        client_id_length: negative for null.
    """

    __slots__ = ("client_id_length", "correlation_id", "size")

    def __init__(self, size: int, correlation_id: int, client_id_length: int) -> None:
        self.size = size
        self.correlation_id = correlation_id
        self.client_id_length = client_id_length


class Session(Protocol):
    """A client's session, as far as handlers are concerned.

    Attributes:
        listener, peer: names for logs and metrics.
        address: where the client comes from; "": it is not known.
        broker_id: the broker behind the port the client came in by; None for the bootstrap port.
        user: principal name; ANONYMOUS until the client has authenticated.
        authentication: the SASL exchange; None on a listener without SASL.
        responses: requests without a reply.
        throttling: what the client's requests are counted by, and what is still due of a long throttle.
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
        """Which clients share a counter with this one when there are too many; see `quotas.trackers`.

        Of clients without a name it is the listener and the network that they come from.
        """

    # -- requests and replies --------------------------------------------------------------------------------

    def forward(self, frame: bytes, api: Api, answer: Answer | None = None) -> None:
        """Send a client's whole request upstream, at once or when more is known.

        Args:
            frame: with its size; may be another version than the client's.
            api: the version that the client gets its reply in.
            answer: what becomes of the reply; None: it is relayed.
        """

    def relay(self, frame: bytes, api: Api, reply: Pending | None) -> None:
        """Send a whole request upstream.

        Args:
            frame: with its size.
            api: its version.
            reply: what the client is to get; None: the broker will not answer.
        """

    def watch_rest(self, watch: Watch) -> None:
        """Have the rest of the request that is being looked at shown to this as it is relayed."""

    def ask_upstream(self, frame: bytes, correlation_id: int, on_reply: OnReply) -> None:
        """Send a question of our own on this client's upstream connection; its reply goes to `on_reply` alone."""

    def answer(self, reply: bytes, *, now_ms: int) -> None:
        """Answer the collected request that the handler is at work on; its time counts as that of a relayed one.

        The reply waits for the replies of earlier requests (hazard A38).
        """

    def begin_answer(self, *, now_ms: int) -> None:
        """Count the time of that request now, before a quota of its own API is asked; `answer` does it otherwise."""

    def defer(self) -> LocalAnswer:
        """Keep a place for a reply that takes its time; no further request is looked at before `fulfil`."""

    def run(self, steps: Steps[None]) -> None:
        """Serve a request in steps: the first one now, the others in turns with other connections.

        Each step is sent the time. Nothing else of the client is looked at before the last one, and what they take
        counts as the time of the client's requests (KIP-124). Ended with the connection.
        """

    def fulfil(self, place: LocalAnswer, reply: bytes, *, now_ms: int) -> None:
        """The reply for a place that was kept; not to be called from within an event of this session.

        The connection may have ended meanwhile; then the reply is dropped.
        """

    def client_id_at(self, data: bytes, at: int, length: int) -> str | None:
        """The client id of the request whose size stands at `at`, None when it has not been received whole."""

    def client_id_of(self, frame: bytes) -> str:
        """The client id in a whole request frame; it may change from request to request."""

    # -- mutes and throttles ---------------------------------------------------------------------------------

    def mute(self, reason: MuteReason) -> None:
        """Add a reason; back pressure acts at once, everything else before the next frame."""

    def release(self, reason: MuteReason) -> None:
        """Take a reason away from within a handler; what waits continues once the handler has returned."""

    def put_back(self, frame: bytes) -> None:
        """Look at this whole request again, before all that came after it, once the client is read again."""

    @property
    def times_requests(self) -> bool:
        """Whether the time of requests is measured (KIP-124)."""

    def throttle(self, throttle_time_ms: int, tracker: RateTracker | None = None, *, now_ms: int) -> int:
        """Read nothing more from the client for this long (KIP-219); a longer mute stays.

        Args:
            throttle_time_ms: how long; 0 for not at all.
            tracker: the byte rate's counter that asks for it; None for another quota.
            now_ms: the time.

        Returns:
            When the mute is over.
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
            reply: the frame, or its head where that holds the field.
            api: the version of the reply.
            by: the family of the quota that asks for the wait.
            sensor: what the request was counted by.
            wanted_ms: how long the quota wants the client to wait, >= 0; sent and waited for up to the ceiling.
            held_by: the counter that made the request wait before, see `ThrottleState`.
            now_ms: the time.

        Returns:
            The reply for the client.
        """

    def claim_throttle(self, by: ThrottledBy, wanted_ms: int, final_ms: int) -> bool:
        """Note what an API's own quota asks of the reply being made; True: the wait is recorded under that quota.

        Args:
            by: that quota's family.
            wanted_ms: what it asks for.
            final_ms: what the reply says, the broker's own throttle time included.
        """

    # -- authentication --------------------------------------------------------------------------------------

    @property
    def failed_authentication_delay_ms(self) -> int:
        """See `SessionSettings`."""

    def authenticated(self, *, now_ms: int) -> None:
        """The broker has accepted the client's identity: from the next frame on requests are that user's.

        Its connection counts for the user from now on, and may have to wait or to end.
        """

    def confirm_next(self) -> None:
        """Whether the exchange is over is to be seen with the next request that is no part of one."""

    def fail_later(self, reply: bytes | None, cause: CloseCause, delay_ms: int, *, now_ms: int) -> None:
        """Answer a failed authentication and close, both after a delay in which nothing is read (KIP-306).

        Args:
            reply: the answer, sent together with the close; None when the client gets none.
            cause: for the metrics.
            delay_ms: Kafka's connection.failed.authentication.delay.ms; 0 is at once.
            now_ms: the time.
        """

    # -- traces ----------------------------------------------------------------------------------------------

    def begin_trace(self, name: str, *, now_ms: int) -> Trace | None:
        """The record of an operation that is slow and rare; the handler ends it, or the connection does.

        Args:
            name: of a closed list.
            now_ms: the time.

        Returns:
            None while traces are off.
        """

    def refuse(self, error: ProtocolError) -> None:
        """The client's bytes make no sense from here on; earlier requests are still served, as Kafka does."""


class RequestHandler(Protocol):
    """Takes requests that must be seen whole ("collect")."""

    max_request_bytes: int

    def on_request(self, session: Session, route: Route, frame: bytes, *, now_ms: int) -> None:
        """Answer, forward or change one whole request frame (size included)."""


class HeadHandler(Protocol):
    """Looks at the head of requests, and relays those that need no more than that.

    A request is shown when it is here whole, or its first `PASS_ON_BYTES` are: the client id always is.
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
            session: where the request came in.
            route: key and version.
            head: the rest of the head.
            data: received bytes; the frame's size stands at `at`.
            at: see `data`.
            now_ms: the time.

        Returns:
            COLLECT hands the request to the route's other handler. After MORE and WAIT this is called again, and
            after `RewrittenHead` it may be.
        """


@dataclass(slots=True)
class Route:
    """One (api key, api version) on offer.

    Attributes:
        api: key, version and layout.
        collect: handler for whole requests, or None.
        head: handler for heads, which is asked first, or None; with both None the request is relayed unseen.
        max_request_bytes: largest payload that is let in.
        unknown_version: the one route for ApiVersions of any version that is not on offer (KIP-511).
        requests: how many came, for the metrics.
    """

    api: Api
    collect: RequestHandler | None
    head: HeadHandler | None
    max_request_bytes: int
    unknown_version: bool = False
    requests: int = field(default=0)


MAX_SASL_BYTES: Final = 524_288
"""Largest request of an API that is used before authentication; Kafka's sasl.server.max.receive.size (hazard A05)."""

_SASL: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_ANY_BYTES: Final = 2**31 - 1

UNKNOWN_API_VERSIONS: Final = api_number(ApiKey.API_VERSIONS, -1)
"""Where the route for ApiVersions requests of a version that is not on offer is kept."""

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
    """The route of an api number that the table does not hold itself: only ApiVersions has one (KIP-511)."""
    if number >> 16 == ApiKey.API_VERSIONS:
        return routes.get(UNKNOWN_API_VERSIONS)
    return None


ALWAYS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""What a client of a SASL listener may ask before it has authenticated."""


@dataclass(frozen=True, slots=True)
class SaslListener:
    """What the sessions of a SASL listener begin with.

    Attributes:
        rules: how principals are found.
        before: only `ALWAYS`; everything else has no route.
        confirming: the same, and everything else goes to a handler that first has the broker confirm that it may.
        after: everything.
    """

    rules: SaslRules
    before: Routes
    confirming: Routes
    after: Routes


def sasl_listener(rules: SaslRules, routes: Routes, confirm: HeadHandler) -> SaslListener:
    """The tables of a listener.

    Args:
        rules: see above.
        routes: everything; routes are shared, so that requests are counted once.
        confirm: asked about whatever comes after an exchange that the gateway does not understand.
    """
    before = {number: route for number, route in routes.items() if route.api.key in ALWAYS}
    confirming = {
        number: before.get(number) or Route(route.api, None, confirm, route.max_request_bytes)
        for number, route in routes.items()
    }
    return SaslListener(rules, before, confirming, routes)
