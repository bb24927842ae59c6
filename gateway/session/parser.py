"""RequestParser: turns a client's bytes into request heads and whole frames. Pure.

Only this module checks a head: size, api key and version, length of the client id. The parser keeps the beginning of
an incomplete request, a frame that is collected, and the number of missing bytes of a relayed frame. The session
decides what happens to a request. Any division of the same bytes into pieces gives the same requests.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be, read_i32_be

from gateway.auth.authentication import Unauthenticated
from gateway.session.routes import RequestHead, Route, Routes, find_route
from gateway.session.throttle_state import MAX_CACHED_NAME_BYTES
from protocol.errors import MalformedBody, ProtocolError, Truncated
from protocol.headers import HEAD_BYTES, MIN_REQUEST_BYTES, refuse_size, unsupported
from quotas.entities import cut_name

_SIZE_BYTES: Final = 4
_NO_NUMBER: Final = 2**62
"""A number that no request's API has."""
_LONGEST_HEAD_BYTES: Final = 128 * 1024


class RequestParser(RequestHead):
    """See the module. The parser itself is the `RequestHead` of the last head that it has read.

    Attributes:
        routes_after_login: the routes after authentication; None if the client has authenticated or need not.
        frame_end: where that request ends, as an offset into the bytes from which the head was read.
        mid_frame: whether the next bytes continue a request.
        relay_left: bytes of the current request that are still to be relayed.
        collecting: the route of the request that is being collected; None when none is.
    """

    __slots__ = (
        "_client_id",
        "_client_id_bytes",
        "_kept",
        "_last_number",
        "_last_route",
        "_max_frame_bytes",
        "_routes",
        "_wanted_bytes",
        "collecting",
        "frame_end",
        "mid_frame",
        "relay_left",
        "routes_after_login",
    )

    def __init__(
        self, routes: Routes, *, routes_after_login: Routes | None = None, max_frame_bytes: int
    ) -> None:
        super().__init__(0, 0, 0)
        self.allow(routes, routes_after_login=routes_after_login)
        self.frame_end = 0
        self.mid_frame = False
        self.relay_left = 0
        self.collecting: Route | None = None
        self._kept = bytearray()  # the beginning of a request
        self._wanted_bytes = 0  # the size at which it is taken again
        self._max_frame_bytes = max_frame_bytes
        self._client_id = ""
        self._client_id_bytes = b""

    def allow(self, routes: Routes, *, routes_after_login: Routes | None = None) -> None:
        """Set the routes from the next head on; see `routes_after_login`."""
        self._routes = routes
        self.routes_after_login = routes_after_login
        self._last_number = _NO_NUMBER
        self._last_route: Route | None = None

    # -- heads -----------------------------------------------------------------------------------------------

    def read_head(self, data: bytes, at: int) -> Route | None:
        """Read and check the head of the request whose frame begins at `at`.

        Returns:
            The route of the request; None while its head is incomplete.

        Raises:
            ProtocolError: the request may not pass.
        """
        if len(data) - at < HEAD_BYTES:
            return None
        size: int = read_i32_be(data, at)
        number: int = read_i32_be(data, at + 4)
        self.correlation_id = read_i32_be(data, at + 8)
        client_id_length: int = read_i16_be(data, at + 12)
        route = self._last_route
        if number != self._last_number:
            # Most requests of a connection are of the same version of the same API as the one before.
            unsigned = number & 0xFFFFFFFF
            route = self._routes.get(unsigned) or find_route(self._routes, unsigned)
            self._last_number, self._last_route = number, route
        if (
            route is None
            or not MIN_REQUEST_BYTES <= size <= route.max_request_bytes
            or client_id_length > size - MIN_REQUEST_BYTES
        ):
            raise self._refusal(route, size, number & 0xFFFFFFFF, client_id_length)
        self.size = size
        self.client_id_length = client_id_length
        self.frame_end = at + _SIZE_BYTES + size
        return route

    def _refusal(self, route: Route | None, size: int, number: int, client_id_length: int) -> ProtocolError:
        limit = self._max_frame_bytes if route is None else route.max_request_bytes
        if not MIN_REQUEST_BYTES <= size <= limit:
            return refuse_size(size, limit)
        if route is None:
            if self.routes_after_login is None or number not in self.routes_after_login:
                return unsupported(number)
            return Unauthenticated(f"api_key={number >> 16}")
        return MalformedBody(f"client id of {client_id_length} bytes in a frame of {size}")

    def client_id_at(self, data: bytes, at: int, length: int) -> str | None:
        """The client id of the request whose frame begins at `at`; None if it has not been received completely."""
        if length <= 0:
            return ""
        end = at + HEAD_BYTES + length
        if end > len(data):
            return None
        raw = data[at + HEAD_BYTES : end]
        if raw == self._client_id_bytes:
            return self._client_id
        client_id = cut_name(raw.decode("utf-8", "replace"))
        if length <= MAX_CACHED_NAME_BYTES:
            self._client_id_bytes, self._client_id = raw, client_id
        return client_id

    @property
    def kept_bytes(self) -> int:
        """Bytes received of a request that is kept or collected."""
        return len(self._kept)

    @property
    def missing_bytes(self) -> int:
        """Bytes that are missing before that request is taken again."""
        return self._wanted_bytes - len(self._kept) if self._kept else 0

    @property
    def begun(self) -> bool:
        """Whether the head, but not the whole, of a request has arrived."""
        return self.relay_left > 0 or len(self._kept) >= HEAD_BYTES

    def of_request(self, data: bytes) -> bytes:
        """The part of the next bytes that belongs to the request that is kept or collected."""
        size = int.from_bytes(self._kept[:_SIZE_BYTES], "big")
        return data[: _SIZE_BYTES + size - len(self._kept)]

    def keep(self, data: bytes, at: int, wanted_bytes: int) -> None:
        """Keep the beginning of a request, at `data[at:]`, until `wanted_bytes` of it have arrived.

        If the head is incomplete, the parser first waits for the head. It refuses an impossible size at once.
        """
        self._kept += data[at:]
        self.mid_frame = True
        self._wanted_bytes = wanted_bytes
        kept_bytes = len(self._kept)
        if kept_bytes < HEAD_BYTES:
            self._wanted_bytes = HEAD_BYTES
            if kept_bytes < _SIZE_BYTES:
                self._wanted_bytes = _SIZE_BYTES
                return
            size = int.from_bytes(self._kept[:_SIZE_BYTES], "big", signed=True)
            # The route's own bound is only known with the api key; a size above this bound is always refused.
            if size < MIN_REQUEST_BYTES or size > self._max_frame_bytes:
                raise refuse_size(size, self._max_frame_bytes)

    def keep_more(self, data: bytes) -> bytes | None:
        """Add the next bytes. Returns all kept bytes once `wanted_bytes` have arrived, otherwise None."""
        if len(self._kept) + len(data) < self._wanted_bytes:
            self._kept += data
            return None
        kept, self._kept = self._kept, bytearray()
        self.mid_frame = False
        return b"".join((kept, data))  # one copy of a chunk that may have 256 KiB

    def more_of_head(self, received_bytes: int) -> int:
        """How many bytes of a request to wait for if `received_bytes` were too few for its handler.

        Raises:
            Truncated: the handler has seen the whole request, or the longest allowed head.
        """
        if received_bytes >= min(self.size + _SIZE_BYTES, _LONGEST_HEAD_BYTES):
            raise Truncated
        # Twice as much each time, so that the handler does not parse a head again for each of many pieces.
        return min(self.size + _SIZE_BYTES, 2 * received_bytes)

    # -- relayed and collected frames ------------------------------------------------------------------------

    def relay_rest(self, missing_bytes: int) -> None:
        """Expect the missing bytes of the last request, which is relayed."""
        self.relay_left = missing_bytes
        self.mid_frame = True

    def relay_more(self, received_bytes: int) -> int:
        """How many of the received bytes belong to the request that is being relayed."""
        left = self.relay_left
        if left > received_bytes:
            self.relay_left = left - received_bytes
            return received_bytes
        self.relay_left = 0
        self.mid_frame = False
        return left

    def collect(self, route: Route, data: bytes, at: int) -> bytes | None:
        """The request whose head was read at `at`, if it is complete; otherwise None, and it is collected."""
        if self.frame_end <= len(data):
            return data[at : self.frame_end]
        self._kept = bytearray(data[at:])
        self._wanted_bytes = _SIZE_BYTES + self.size
        self.collecting = route
        self.mid_frame = True
        return None

    def collect_more(self, data: bytes) -> bytes | None:
        """Add to the collected request. Returns it once it is complete; it then ends at `frame_end` of `data`."""
        missing = self._wanted_bytes - len(self._kept)
        if len(data) < missing:
            self._kept += data
            return None
        kept, self._kept = self._kept, bytearray()
        self.collecting = None
        self.mid_frame = False
        self.frame_end = missing
        return b"".join((kept, data[:missing]))
