"""ChunkRelay: passes the usual chunk from one transport to the other in one call.

The channel is called by uvloop and cannot be compiled. This module has the part of its work that nearly every chunk
needs, and can be compiled: read the clock, call the session, write. The channel does the rest. The functions that
write and read the clock are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from gateway.observability.events import CloseCause

NEVER_MS: Final = 2**62

NOT_TAKEN: Final = 0
RELAYED: Final = 1
TO_PUMP: Final = 2
"""The session has taken the chunk, and `ClientChannel._pump` has to handle the session's new state."""


class ChunkTaker(Protocol):
    """The part of the session that the usual chunk needs; see `ClientSession`."""

    __slots__ = ()
    close_cause: CloseCause | None
    muted: int
    to_client: list[bytes]
    to_upstream: list[bytes]
    wake_at_ms: int

    @property
    def times_requests(self) -> bool:
        """Whether the time of requests is measured: the channel does that."""

    def relay_request(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is one unchanged request, or a piece of one."""

    def relay_reply(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is one unchanged reply, or a piece of one."""

    def receive_from_client(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes."""

    def receive_from_upstream(self, data: bytes, *, now_ms: int) -> None:
        """Take received bytes."""


class ChunkRelay:
    """Hands chunks to the session, and writes the result if it is one chunk for the other side.

    Attributes:
        to_client, to_upstream: functions that write to the transports; None without a transport.
        armed_ms: when the channel's timer is due.
    """

    __slots__ = ("_seconds", "_session", "armed_ms", "to_client", "to_upstream")

    def __init__(self, session: ChunkTaker, seconds: Callable[[], float]) -> None:
        """Relay for a session.

        Args:
            session: decides what is relayed.
            seconds: returns the loop's time.
        """
        self._session = session
        self._seconds = seconds
        self.to_client: Callable[[bytes], None] | None = None
        self.to_upstream: Callable[[bytes], None] | None = None
        self.armed_ms = NEVER_MS

    def request(self, data: bytes) -> int:
        """Take a chunk from the client.

        Returns:
            `NOT_TAKEN`, `RELAYED` or `TO_PUMP`.
        """
        write = self.to_upstream
        session = self._session
        if write is None:
            return NOT_TAKEN
        now_ms = int(self._seconds() * 1000)
        if session.relay_request(data, now_ms=now_ms):
            write(data)
            return TO_PUMP if session.muted or session.wake_at_ms < self.armed_ms else RELAYED
        if session.times_requests:
            return NOT_TAKEN
        muted = session.muted
        session.receive_from_client(data, now_ms=now_ms)
        return self._write(write, session.to_upstream, session.to_client, muted)

    def reply(self, data: bytes) -> int:
        """Take a chunk from the broker in the same way."""
        write = self.to_client
        session = self._session
        if write is None:
            return NOT_TAKEN
        now_ms = int(self._seconds() * 1000)
        if session.relay_reply(data, now_ms=now_ms):
            write(data)
            return TO_PUMP if session.muted else RELAYED
        if session.times_requests:
            return NOT_TAKEN
        muted = session.muted
        session.receive_from_upstream(data, now_ms=now_ms)
        return self._write(write, session.to_client, session.to_upstream, muted)

    def _write(
        self, write: Callable[[bytes], None], chunks: list[bytes], others: list[bytes], muted: int
    ) -> int:
        """Write the session's output if it is one chunk in this direction and none in the other."""
        if len(chunks) != 1 or others:
            return TO_PUMP
        write(chunks[0])
        chunks.clear()
        session = self._session
        if muted or session.muted or session.close_cause is not None or session.wake_at_ms < self.armed_ms:
            return TO_PUMP
        return RELAYED
