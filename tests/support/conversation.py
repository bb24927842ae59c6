"""Drives a `ClientSession` as its channel would, and says what each side must see.

Times are milliseconds since the conversation began. What the client sends while the session does not read waits in
a socket buffer of its own, as it would in the kernel; timers fire when `at` passes them, each at its own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from struct import unpack_from
from typing import Any, Final

from gateway.close_cause import CloseCause
from gateway.handlers import collecting_handlers, head_handlers
from gateway.handlers.context import HandlerContext
from gateway.mute import MuteReason
from gateway.observer import SilentObserver
from gateway.routes import build_routes
from gateway.session import ClientSession
from gateway.session_settings import SessionSettings
from gateway.topology import BrokerPorts, ClusterMap, Topology
from protocol.api_keys import ApiKey
from protocol.errors import ProtocolError, UpstreamDesync
from quotas.combine import ThrottledBy
from quotas.entities import QuotaEntity, QuotaKey
from quotas.limits import Limits
from quotas.mutations import MutationQuotas, MutationSettings
from quotas.resolution import Rule
from tests.support import wire
from tests.support.clock import FakeClock
from tests.support.cluster import ScriptedCluster

START_MS: Final = 7_300_000
UPSTREAM_HOST: Final = "broker.inside"
GATEWAY_HOST: Final = "gateway.test"
FIRST_PORT: Final = 19_092
_MOST_TURNS: Final = 1_000


class RecordingObserver(SilentObserver):
    """Keeps what it is told.

    Attributes:
        throttles: (api key, rule, throttle_time_ms) in order.
        decisions: (api key, accepted permits, refused topics) in order.
        auto_created: topics.
    """

    def __init__(self) -> None:
        self.throttles: list[tuple[ApiKey, Rule, int]] = []
        self.decisions: list[tuple[ApiKey, float, int]] = []
        self.auto_created = 0

    def mutations_decided(
        self, api_key: ApiKey, rule: Rule, *, accepted_permits: float, refused_topics: int
    ) -> None:
        """See `Observer`."""
        self.decisions.append((api_key, accepted_permits, refused_topics))

    def throttled(self, api_key: ApiKey, rule: Rule, throttle_time_ms: int, *, by: ThrottledBy) -> None:
        """See `Observer`."""
        self.throttles.append((api_key, rule, throttle_time_ms))

    def topics_auto_created(self, count: int) -> None:
        """See `Observer`."""
        self.auto_created += count


class Conversation:
    """One client, one session, one broker.

    Attributes:
        session: under test.
        context: what the handlers work with.
        cluster: answers what `serve` finds upstream.
        observer: what was told to metrics.
        closed_by: why the connection ended; None while it lives.
    """

    def __init__(
        self,
        *,
        controller_mutation_rate: float | None = None,
        mutation_settings: MutationSettings | None = None,
        settings: SessionSettings | None = None,
        cluster: ScriptedCluster | None = None,
        default_num_partitions: int = 1,
        bind: Callable[[int, int], bool] = lambda _broker_id, _port: True,
        user: str = "ANONYMOUS",
    ) -> None:
        """Begin; the upstream leg is connected already.

        Args:
            controller_mutation_rate: quota of the session's user; None for no quota at all.
            mutation_settings: defaults to ten windows of a second, as in most of Kafka's tests.
            settings: bounds of the session.
            cluster: what `serve` answers from.
            default_num_partitions: what the gateway believes num.partitions to be.
            bind: see `gateway.topology.BindPort`.
            user: the principal.
        """
        self.clock = FakeClock(START_MS)
        self.limits = Limits()
        if controller_mutation_rate is not None:
            self.set_mutation_quota(controller_mutation_rate, user=user)
        mutation_settings = mutation_settings or MutationSettings(window_num=10)
        self.mutations = MutationQuotas(self.limits, mutation_settings)
        window_s = mutation_settings.window_num * mutation_settings.window_ms / 1_000
        self._full_tokens = (controller_mutation_rate or 0) * window_s
        cluster_map = ClusterMap([(UPSTREAM_HOST, 9092)], default_num_partitions=default_num_partitions)
        topology = Topology(cluster_map, BrokerPorts(GATEWAY_HOST, FIRST_PORT, 1, 10), bind)
        self.observer = RecordingObserver()
        self.context = HandlerContext(
            topology=topology, limits=self.limits, mutations=self.mutations, observer=self.observer
        )
        settings = settings or SessionSettings()
        routes = build_routes(
            collecting_handlers(self.context),
            head_handlers(self.context),
            max_frame_bytes=settings.max_frame_bytes,
        )
        self.session = ClientSession(
            routes, settings, listener="tests", peer="192.0.2.1:40000", now_ms=START_MS
        )
        self.session.user = user
        self.cluster = cluster or ScriptedCluster()
        self.closed_by: CloseCause | None = None
        self._socket: list[bytes] = []  # sent by the client, not read by the session yet
        self._upstream = bytearray()  # written to the broker, not looked at yet
        self._client = bytearray()  # written to the client, not looked at yet

    # -- the two peers ---------------------------------------------------------------------------------------

    def client_sends(self, *frames: bytes, piece_bytes: int | None = None) -> Conversation:
        """The client sends these bytes, in one segment or in pieces of this size."""
        self._must_live()
        for piece in _pieces(b"".join(frames), piece_bytes):
            self._socket.append(piece)
            self._read_socket()
        return self

    def upstream_answers(self, *frames: bytes, piece_bytes: int | None = None) -> Conversation:
        """The broker sends these bytes."""
        self._must_live()
        for piece in _pieces(b"".join(frames), piece_bytes):
            if self.closed_by is None:
                receive = partial(self.session.receive_from_upstream, piece, now_ms=self.clock.now_ms)
                self._guard(receive, from_upstream=True)
        self._read_socket()
        return self

    def upstream_sees(self, *frames: bytes) -> Conversation:
        """Exactly these bytes have gone to the broker since the last look."""
        _compare(self.take_upstream(), b"".join(frames), _describe_request)
        return self

    def client_sees(self, *frames: bytes) -> Conversation:
        """Exactly these bytes have gone to the client since the last look."""
        _compare(self.take_client(), b"".join(frames), _describe_reply)
        return self

    def take_upstream(self) -> bytes:
        """What has gone to the broker since the last look."""
        taken = bytes(self._upstream)
        self._upstream.clear()
        return taken

    def take_client(self) -> bytes:
        """What has gone to the client since the last look."""
        taken = bytes(self._client)
        self._client.clear()
        return taken

    def client_half_closes(self) -> Conversation:
        """The client sends nothing more."""
        self._guard(self.session.client_half_closed)
        return self

    def throttle(self, throttle_time_ms: int) -> Conversation:
        """A quota throttles the client now."""
        self.session.throttle(throttle_time_ms, now_ms=self.clock.now_ms)
        return self

    def mute(self, reason: MuteReason) -> Conversation:
        """The shell mutes the client."""
        self.session.mute(reason)
        return self

    def unmute(self, reason: MuteReason) -> Conversation:
        """The shell takes a reason away."""
        self._guard(lambda: self.session.unmute(reason, now_ms=self.clock.now_ms))
        self._read_socket()
        return self

    # -- a broker that answers by itself ---------------------------------------------------------------------

    def serve(self) -> list[bytes]:
        """The cluster answers everything upstream, and what comes after; returns the requests it got."""
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
        """Send one request, let the cluster serve it, and return the decoded reply, which must be the only one."""
        self.client_sends(wire.request(name, version, **fields))
        self.serve()
        return wire.decode_response(name, version, self.take_client())

    # -- time ------------------------------------------------------------------------------------------------

    def at(self, ms: int) -> Conversation:
        """Move to this time; every timer on the way fires when it is due."""
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

    def after(self, ms: int) -> Conversation:
        """Move on by this much."""
        return self.at(self.clock.now_ms - START_MS + ms)

    def muted_until(self, ms: int) -> Conversation:
        """The client is not read up to this time, and is from then on. Moves there."""
        self.still_muted()
        self.at(ms - 1).still_muted()
        return self.at(ms).reading()

    def muted_for(self, ms: int) -> Conversation:
        """As `muted_until`, from now on."""
        return self.muted_until(self.clock.now_ms - START_MS + ms)

    def still_muted(self) -> Conversation:
        """The session does not read from the client."""
        assert not self.session.reading_client, "the client is read"
        return self

    def reading(self) -> Conversation:
        """The session reads from the client."""
        assert self.session.reading_client, f"muted: {MuteReason(self.session.muted)!r}"
        return self

    # -- the end ---------------------------------------------------------------------------------------------

    def closed(self, cause: CloseCause) -> Conversation:
        """The connection has ended for this reason."""
        assert self.closed_by is cause, f"closed by {self.closed_by}"
        return self

    def alive(self) -> Conversation:
        """The connection has not ended."""
        assert self.closed_by is None, f"closed by {self.closed_by}"
        return self

    # -- quotas ----------------------------------------------------------------------------------------------

    def set_mutation_quota(self, rate: float | None, *, user: str = "ANONYMOUS") -> Conversation:
        """Set or remove the controller mutation quota of a user."""
        entity = QuotaEntity(user=user)
        if rate is None:
            self.limits.remove(entity, QuotaKey.CONTROLLER_MUTATION_RATE)
        else:
            self.limits.set(entity, QuotaKey.CONTROLLER_MUTATION_RATE, rate)
        return self

    @property
    def tokens(self) -> float:
        """Tokens of the only counter; of a full one while nothing was counted."""
        rows = self.mutations.snapshot(now_ms=self.clock.now_ms)
        if not rows:
            return self._full_tokens
        (row,) = rows
        assert row.tokens is not None
        return row.tokens

    # -- the shell's part ------------------------------------------------------------------------------------

    def _read_socket(self) -> None:
        while self._socket and self.closed_by is None and self.session.reading_client:
            piece = self._socket.pop(0)
            self._guard(partial(self.session.receive_from_client, piece, now_ms=self.clock.now_ms))

    def _guard(self, step: Callable[[], None], *, from_upstream: bool = False) -> None:
        try:
            step()
        except UpstreamDesync:
            self.closed_by = CloseCause.UPSTREAM_DESYNC
        except ProtocolError as exc:
            self.closed_by = CloseCause.UPSTREAM_MALFORMED if from_upstream else CloseCause(exc.cause)
        session = self.session
        self._upstream += b"".join(session.to_upstream)
        self._client += b"".join(session.to_client)
        session.to_upstream.clear()
        session.to_client.clear()
        if self.closed_by is None:
            self.closed_by = session.close_cause

    def _must_live(self) -> None:
        assert self.closed_by is None, f"closed by {self.closed_by} already"


def frames_of(stream: bytes) -> Iterator[bytes]:
    """The frames of a stream; the last one may be cut off, which is an error."""
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
    """Compare as frames, for a diff that can be read, then as bytes."""
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
