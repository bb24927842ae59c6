"""What a handler is, and the table that leads every (api key, api version) on offer to one.

The table is built once per listener; a request whose number is not in it is refused. Sessions get the table as an
argument, so that nothing below the composition root imports the handlers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from protocol.api_keys import Api, ApiKey, all_offered, describe
from protocol.headers import api_number

if TYPE_CHECKING:
    from gateway.session.session import ClientSession


class HeadDecision(Enum):
    """What is done with a request, once its head has been seen."""

    RELAY = "relay"
    COLLECT = "collect"
    MORE = "more"  # the head has not been received far enough
    WAIT = "wait"  # not yet: the handler has muted the session, and is asked again after that


class RequestHandler(Protocol):
    """Takes requests that must be seen whole ("collect")."""

    max_request_bytes: int

    def on_request(self, session: ClientSession, route: Route, frame: bytes, *, now_ms: int) -> None:
        """Answer, forward or change one whole request frame (size included)."""


class HeadHandler(Protocol):
    """Looks at the head of requests, and relays those that need no more than that."""

    def on_head(
        self,
        session: ClientSession,
        route: Route,
        data: bytes,
        at: int,
        size: int,
        correlation_id: int,
        client_id_length: int,
        *,
        now_ms: int,
    ) -> HeadDecision:
        """Decide; for RELAY, append what the reply will need to the session's in-flight queue.

        Args:
            session: where the request came in.
            route: key and version.
            data: received bytes; the frame's size stands at `at`.
            at: see `data`.
            size: payload of the frame, as in the head.
            correlation_id: as in the head.
            client_id_length: as in the head, negative for null.
            now_ms: the time.

        Returns:
            COLLECT hands the request to the route's other handler; after MORE and WAIT this is called again.
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
