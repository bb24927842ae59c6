"""Drives a `ClientSession` as its channel would, and checks the bytes that each side receives.

Times are milliseconds since the conversation began. Bytes that the client sends while the session does not read wait
in a simulated socket buffer, as in the kernel. Timers fire at their own times when `at` passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import unpack_from
from typing import Any, Final, Self

from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from protocol.errors import ProtocolError, UpstreamDesync
from testkit import wire
from testkit.cluster import ScriptedCluster
from testkit.core import START_MS, GatewayCore

_MOST_TURNS: Final = 1_000


class Conversation:
    """One client, one session, one broker.

    Attributes:
        session: the session under test.
        core: the gateway around it.
        clock: the gateway's clock.
        cluster: answers the requests that `serve` finds upstream.
        closed_by: why the connection ended; None while it is open.
        hold_steps: whether long work is deferred; otherwise it is done at once.
    """

    def __init__(
        self,
        *,
        cluster: ScriptedCluster | None = None,
        core: GatewayCore | None = None,
        shortcut: bool = True,
        principal: str | None = None,
        **core_settings: Any,
    ) -> None:
        """Begins with an open upstream connection.

        Args:
            cluster: makes the responses of `serve`.
            core: the core of another conversation, for a second connection to the same gateway.
            shortcut: first check whether a chunk passes unchanged, as the channel does.
            principal: of this connection; None: that of the core.
            core_settings: see `GatewayCore`.
        """
        self.core = core or GatewayCore(**core_settings)
        self.clock = self.core.clock
        self.session = self.core.new_session()
        if principal is not None:
            self.session.user = principal
        if self.session.authentication is None:
            self.session.user_known(now_ms=self.clock.now_ms)
        self.session.on_memory_freed = partial(self.unmute, MuteReason.MEMORY_FULL)
        self.cluster = cluster or ScriptedCluster()
        self.closed_by: CloseCause | None = None
        self.hold_steps = False
        self._shortcut = shortcut
        self._socket: list[bytes] = []  # sent by the client, not read by the session yet
        self._upstream = bytearray()  # written to the broker, not checked yet
        self._client = bytearray()  # written to the client, not checked yet

    # -- the two peers ---------------------------------------------------------------------------------------

    def client_sends(self, *frames: bytes, piece_bytes: int | None = None) -> Self:
        """The client sends these bytes, in one segment or in pieces of this size."""
        self._must_live()
        for piece in _pieces(b"".join(frames), piece_bytes):
            self._socket.append(piece)
            self._read_socket()
        return self

    def push(self, data: bytes) -> Self:
        """Delivers bytes that a paused transport had already read, although the session does not read."""
        self._must_live()
        self._guard(partial(self._receive_from_client, data))
        return self

    @property
    def has_unread(self) -> bool:
        """Whether bytes of the client wait to be read by the session."""
        return bool(self._socket)

    def upstream_answers(self, *frames: bytes, piece_bytes: int | None = None) -> Self:
        """The broker sends these bytes."""
        self._must_live()
        for piece in _pieces(b"".join(frames), piece_bytes):
            if self.closed_by is None:
                self._guard(partial(self._receive_from_upstream, piece))
        self._read_socket()
        return self

    def upstream_sees(self, *frames: bytes) -> Self:
        """Checks that exactly these bytes were sent to the broker since the last check."""
        _compare(self.take_upstream(), b"".join(frames), _describe_request)
        return self

    def client_sees(self, *frames: bytes) -> Self:
        """Checks that exactly these bytes were sent to the client since the last check."""
        _compare(self.take_client(), b"".join(frames), _describe_reply)
        return self

    def take_upstream(self) -> bytes:
        """The bytes sent to the broker since the last check."""
        taken = bytes(self._upstream)
        self._upstream.clear()
        return taken

    def take_client(self) -> bytes:
        """The bytes sent to the client since the last check."""
        taken = bytes(self._client)
        self._client.clear()
        return taken

    def client_half_closes(self) -> Self:
        """The client sends the end of its stream."""
        self._guard(self.session.client_half_closed)
        return self

    def step(self, event: Callable[[int], None]) -> Self:
        """Calls the session at the present time, as the shell does for an event."""
        self._guard(lambda: event(self.clock.now_ms))
        self._read_socket()
        return self

    def throttle(self, throttle_time_ms: int) -> Self:
        """A quota throttles the client now."""
        self.session.throttle(throttle_time_ms, now_ms=self.clock.now_ms)
        return self

    def mute(self, reason: MuteReason) -> Self:
        """The shell mutes the client."""
        self.session.mute(reason)
        return self

    def unmute(self, reason: MuteReason) -> Self:
        """The shell removes a reason for the mute."""
        self._guard(lambda: self.session.unmute(reason, now_ms=self.clock.now_ms))
        self._read_socket()
        return self

    # -- a broker that answers by itself ---------------------------------------------------------------------

    def serve(self) -> list[bytes]:
        """The cluster answers all requests upstream, and those that follow. Returns the requests."""
        served: list[bytes] = []
        for _ in range(_MOST_TURNS):
            waiting = list(frames_of(self.take_upstream()))
            if not waiting:
                return served
            for frame in waiting:
                served.append(frame)
                answer = self.cluster.answer(frame)
                if answer is not None and self.closed_by is None:
                    self.upstream_answers(answer)
        raise AssertionError("the gateway never stops asking")

    def exchange(self, name: str, version: int, **fields: Any) -> Any:
        """Sends one request, lets the cluster answer, and returns the decoded reply, which must be the only one."""
        self.reading().client_sends(wire.request(name, version, **fields))
        self.serve()
        return wire.decode_response(name, version, self.take_client())

    # -- time ------------------------------------------------------------------------------------------------

    def at(self, ms: int) -> Self:
        """Moves to this time. Every timer before it fires when it is due.

        Other connections of the same gateway check their timers when they are moved next.
        """
        target_ms = START_MS + ms
        session = self.session
        for _ in range(_MOST_TURNS):
            if session.wake_at_ms > target_ms or self.closed_by is not None:
                break
            self.clock.advance_to(max(self.clock.now_ms, session.wake_at_ms))
            self._guard(lambda: session.on_timer(now_ms=self.clock.now_ms))
            self._read_socket()
            assert self.closed_by is not None or session.wake_at_ms > self.clock.now_ms, "the timer spins"
        else:
            raise AssertionError("the timer fires for ever")
        self.clock.advance_to(target_ms)
        return self

    def another(self) -> Conversation:
        """Opens another connection of the same client to the same gateway."""
        return Conversation(cluster=self.cluster, core=self.core)

    def after(self, ms: int) -> Self:
        """Moves on by a time."""
        return self.at(self.clock.now_ms - START_MS + ms)

    def muted_until(self, ms: int) -> Self:
        """Checks that the client is not read before this time, and is read from then on. Moves there."""
        self.still_muted()
        self.at(ms - 1).still_muted()
        return self.at(ms).reading()

    def muted_for(self, ms: int) -> Self:
        """As `muted_until`, relative to the present."""
        return self.muted_until(self.clock.now_ms - START_MS + ms)

    def still_muted(self) -> Self:
        """Checks that the session does not read from the client."""
        assert not self.session.reading_client, "the client is read"
        return self

    def reading(self) -> Self:
        """Checks that the session reads from the client."""
        assert self.session.reading_client, f"muted: {MuteReason(self.session.muted)!r}"
        return self

    # -- the end ---------------------------------------------------------------------------------------------

    def closed(self, cause: CloseCause) -> Self:
        """Checks that the connection has ended for this reason."""
        assert self.closed_by is cause, f"closed by {self.closed_by}"
        return self

    def alive(self) -> Self:
        """Checks that the connection has not ended."""
        assert self.closed_by is None, f"closed by {self.closed_by}"
        return self

    # -- the shell's part ------------------------------------------------------------------------------------

    def _read_socket(self) -> None:
        while self._socket and self.closed_by is None and self.session.reading_client:
            piece = self._socket.pop(0)
            self._guard(partial(self._receive_from_client, piece))

    def _receive_from_client(self, data: bytes) -> None:
        session, now_ms = self.session, self.clock.now_ms
        if self._shortcut and session.relay_request(data, now_ms=now_ms):
            session.to_upstream.append(data)
        else:
            session.receive_from_client(data, now_ms=now_ms)

    def _receive_from_upstream(self, data: bytes) -> None:
        session, now_ms = self.session, self.clock.now_ms
        if self._shortcut and session.relay_reply(data, now_ms=now_ms):
            session.to_client.append(data)
        else:
            session.receive_from_upstream(data, now_ms=now_ms)

    def _guard(self, step: Callable[[], None]) -> None:
        try:
            step()
        except UpstreamDesync:
            self.closed_by = CloseCause.UPSTREAM_DESYNC
        except ProtocolError:
            self.closed_by = CloseCause.UPSTREAM_MALFORMED
        session = self.session
        while session.steps and not self.hold_steps and self.closed_by is None:
            try:
                session.take_step(now_ms=self.clock.now_ms)
            except ProtocolError:
                self.closed_by = CloseCause.UPSTREAM_MALFORMED
        self._upstream += b"".join(session.to_upstream)
        self._client += b"".join(session.to_client)
        session.to_upstream.clear()
        session.to_client.clear()
        if self.closed_by is None:
            self.closed_by = session.close_cause

    def _must_live(self) -> None:
        assert self.closed_by is None, f"closed by {self.closed_by} already"


def frames_of(stream: bytes) -> Iterator[bytes]:
    """The frames of a stream. An incomplete last frame is an error."""
    at = 0
    while at < len(stream):
        assert len(stream) - at >= 4, f"{len(stream) - at} bytes left over"
        end = at + 4 + unpack_from(">i", stream, at)[0]
        assert end <= len(stream), "the last frame is not whole"
        yield stream[at:end]
        at = end


def _pieces(stream: bytes, piece_bytes: int | None) -> list[bytes]:
    if piece_bytes is None:
        return [stream]
    return [stream[at : at + piece_bytes] for at in range(0, len(stream), piece_bytes)]


def _compare(seen: bytes, expected: bytes, describe: Callable[[bytes], str]) -> None:
    """Compares first as frames, for a readable diff, and then as bytes."""
    if seen != expected:
        assert _lines(seen, describe) == _lines(expected, describe)
        assert seen == expected


def _lines(stream: bytes, describe: Callable[[bytes], str]) -> list[str]:
    try:
        return [describe(frame) for frame in frames_of(stream)]
    except AssertionError as exc:
        return [f"{exc}: {stream[:200].hex(' ')}"]


def _describe_request(frame: bytes) -> str:
    key, version, correlation_id = unpack_from(">hhi", frame, 4)
    return f"api {key} v{version} id {correlation_id}: {frame[12:].hex()}"


def _describe_reply(frame: bytes) -> str:
    return f"id {unpack_from('>i', frame, 4)[0]}: {frame[8:].hex()}"
