"""Drives a `ClientChannel` between two transports that write everything down, as `Conversation` drives a session."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self, cast

from structlog.testing import capture_logs

from gateway.net.back_pressure import BackPressure
from gateway.net.batch_scheduler import BatchScheduler
from gateway.net.channel import ClientChannel
from gateway.net.long_work import LongWork
from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from testkit.clock import FakeClock
from testkit.cluster import ScriptedCluster
from testkit.core import GatewayCore
from testkit.fake_loop import FakeLoop


class _Transport:
    """Takes everything at once.

    Attributes:
        written: and not looked at yet.
        reading: whether what arrives is taken.
        ended: closed or aborted.
    """

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.ended = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, chunks: list[bytes]) -> None:
        self.written += b"".join(chunks)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, *_of: object, **_how: object) -> None:
        self.ended = True

    abort = close

    def is_closing(self) -> bool:
        return self.ended

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, **_limits: int) -> None:
        pass

    def get_extra_info(self, _name: str) -> None:
        return None

    set_protocol = get_extra_info


class _Loop(FakeLoop):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return (self.clock.now_ms + 0.5) / 1_000  # in ms it is the clock's, whatever it is rounded to

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self._soon.append((call, args))

    def turn(self) -> None:
        """All that is to be called soon, and soon after that."""
        while self._soon:
            call, args = self._soon.pop(0)
            call(*args)


class ChannelConversation:
    """One client, one channel, one broker; see `Conversation`, whose verbs these are."""

    def __init__(self, *, core: GatewayCore, cluster: ScriptedCluster) -> None:
        """Begin; the upstream leg is connected already."""
        self.core = core
        self.clock = core.clock
        self.cluster = cluster
        self.closed_by: CloseCause | None = None
        self.hold_steps = False
        self.session = session = core.new_session()
        self._loop = _Loop(core.clock)
        self._socket: list[bytes] = []
        self._client, self._upstream = _Transport(), _Transport()
        owner = SimpleNamespace(
            loop=self._loop,
            now_ms=lambda: core.clock.now_ms,
            settings=core.settings,
            lingering=SimpleNamespace(close=lambda transport, *_of, **_how: transport.close()),
            scheduler=BatchScheduler(cast("Any", self._loop)),
            long_work=LongWork(cast("Any", self._loop)),
            back_pressure=BackPressure(),
            closed=self._closed,
            refused=lambda *_of, **_names: None,
        )
        kernel = SimpleNamespace(fileno=lambda: -1)
        self._channel = channel = ClientChannel(session, cast("Any", owner), None, cast("Any", kernel))
        session.on_output_ready, session.on_memory_freed = channel.on_output_ready, channel.memory_freed
        session.begins_now = owner.long_work.begins_now
        channel.connection_made(cast("Any", self._client))
        channel.upstream_connected(cast("Any", self._upstream))

    def _closed(self, _channel: ClientChannel, cause: CloseCause) -> None:
        self.closed_by = cause

    def client_sends(self, data: bytes) -> Self:
        self._socket.append(data)
        return self._do(lambda: None)

    def upstream_answers(self, data: bytes) -> Self:
        return self._do(lambda: self._channel.upstream_received(data))

    def client_half_closes(self) -> Self:
        return self._do(self._channel.eof_received)

    def mute(self, reason: MuteReason) -> Self:
        if reason is MuteReason.CLIENT_FULL:
            return self._do(self._channel.pause_writing)
        return self._do(lambda: self._channel.upstream_writable(False))

    def unmute(self, reason: MuteReason) -> Self:
        if reason is MuteReason.CLIENT_FULL:
            return self._do(self._channel.resume_writing)
        return self._do(lambda: self._channel.upstream_writable(True))

    def step(self, event: Callable[[int], None]) -> Self:
        return self._do(lambda: event(self.clock.now_ms))

    def after(self, ms: int) -> Self:
        return self._do(lambda: self._loop.advance(ms))

    def take_upstream(self) -> bytes:
        taken, self._upstream.written = bytes(self._upstream.written), bytearray()
        return taken

    def take_client(self) -> bytes:
        taken, self._client.written = bytes(self._client.written), bytearray()
        return taken

    def _do(self, event: Callable[[], object]) -> Self:
        with capture_logs() as logs:
            event()
            self._loop.turn()
            while self._socket and self._client.reading and self.closed_by is None:
                self._channel.data_received(self._socket.pop(0))
                self._loop.turn()
        for line in logs:
            if line["event"] == "channel_failed":
                raise line["exc_info"]
        return self
