"""ResponseQueue: requests that have no reply yet, and the walk through the broker's bytes that answers them. Pure.

Our own answers and the broker's share one queue, so that every reply leaves in request order (hazard A38). Replies
are told apart by their place; the correlation id is checked, and on any doubt `UpstreamDesync` closes both legs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeAlias

from protocol.api_keys import Api
from protocol.errors import UpstreamDesync
from protocol.headers import REPLY_HEAD
from protocol.steps import Steps
from protocol.throttle import behind_head

OnReply: TypeAlias = Callable[[bytes, int], bytes | Steps[bytes | None] | None]
"""(whole reply frame, now_ms) -> the frame for the client, or None when it is not the client's to see.

What takes long is a walk that returns the same; the replies behind it wait, and the broker is not read meanwhile.
"""

_SIZE_BYTES: Final = 4
_STALLED: Final = 2**62
"""In the place of what is left to relay while a reply is changed in steps: more than anything that may arrive."""
_NO_ID: Final = 2**32
"""In the place of a correlation id where the broker was not asked: no answer of its can have that one."""

Passes: TypeAlias = Callable[[bytes, int, int], bool]
"""(received bytes, where the reply's frame begins, its payload size) -> whether it may go as it is."""

OnHead: TypeAlias = Callable[[bytes, int, int], bytes | None]
"""(the first bytes of a reply frame; its payload size; now_ms) -> them with a throttle time, None to leave them.

A frame of another size stands for the whole reply: what follows of the broker's is dropped.
"""

_REPLY_HEAD_BYTES: Final = REPLY_HEAD.size
_SEEN_HEAD_BYTES: Final = 64
"""Enough of a reply to hold a throttle time that stands near its start; no broker sends header tags today."""


class LocalAnswer:
    """A reply of our own, waiting for the replies before it; while `frame` is None it is still to be made."""

    __slots__ = ("frame",)

    def __init__(self, frame: bytes | None) -> None:
        self.frame = frame


class CollectedAnswer:
    """A reply that is held until it is whole and then handed to `on_reply`.

    With `passes` a reply that came whole within one chunk is looked at in place first, and relayed when it passes.
    """

    __slots__ = ("on_reply", "passes")

    def __init__(self, on_reply: OnReply, passes: Passes | None = None) -> None:
        self.on_reply = on_reply
        self.passes = passes


class HeadAnswer:
    """A reply that is relayed after `on_head` has seen, and may have patched, its first bytes."""

    __slots__ = ("on_head",)

    def __init__(self, on_head: OnHead) -> None:
        self.on_head = on_head


class SizedAnswer:
    """A reply that is relayed as it is; `count` gets its payload size, less so many bytes.

    Not for a request that is timed. One object can stand for any number of replies.
    """

    __slots__ = ("count", "less_bytes")

    def __init__(self, count: Callable[[int], None], less_bytes: int) -> None:
        self.count = count
        self.less_bytes = less_bytes


Answer: TypeAlias = LocalAnswer | CollectedAnswer | HeadAnswer | SizedAnswer


class TimedRequest:
    """A request whose time is measured: whose it is, and when it was forwarded (ns, `perf_counter` scale)."""

    __slots__ = ("api", "client_id", "forwarded_ns")

    def __init__(self, api: Api, client_id: str, forwarded_ns: int) -> None:
        self.api = api
        self.client_id = client_id
        self.forwarded_ns = forwarded_ns


class Pending:
    """One request without a reply: its correlation id, and what is done with the reply (None: relay it)."""

    __slots__ = ("answer", "correlation_id", "timed")

    def __init__(self, correlation_id: int, answer: Answer | None = None) -> None:
        self.correlation_id = correlation_id
        self.answer = answer
        self.timed: TimedRequest | None = None  # whose time its reply is to count


class Timekeeper(Protocol):
    """The session, as far as the request quota is concerned (KIP-124)."""

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """The reply of a timed request is here; called before its handler sees it."""

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """The reply, or its head, with the request quota's throttle time in it."""

    def answered_in_steps(self, timed: TimedRequest, *, now_ms: int) -> None:
        """The steps that a timed reply took are over; called before `seal_reply`."""

    def go_on_later(self, steps: Steps[bytes | None]) -> None:
        """Take the other steps of a reply when others have had their turn; the last one's result is for `resume`."""


class ResponseQueue:
    """The queue of one connection.

    Attributes:
        pending: oldest first.
        to_client: where replies are put, in order; the session's list.
        local_bytes: of replies of our own that wait behind others.
        stalled: the steps of the reply that is being changed; None when none is.
    """

    __slots__ = (
        "_dropping",
        "_locals",
        "_max_response_bytes",
        "_partial",
        "_relay_left",
        "_stalled_timed",
        "_wanted_bytes",
        "local_bytes",
        "pending",
        "stalled",
        "to_client",
    )

    def __init__(self, to_client: list[bytes], *, max_response_bytes: int) -> None:
        """Create an empty queue.

        Args:
            to_client: list that reply chunks are appended to.
            max_response_bytes: largest reply payload a broker may announce.
        """
        self.pending: deque[Pending] = deque()
        self.to_client = to_client
        self._max_response_bytes = max_response_bytes
        self._locals = 0
        self._relay_left = 0  # bytes of the current reply that are still to be relayed
        self._dropping = False  # or dropped
        self._partial = bytearray()  # a reply that is collected, or the start of one
        self._wanted_bytes = 0
        self.local_bytes = 0
        self.stalled: Steps[bytes | None] | None = None
        self._stalled_timed: TimedRequest | None = None

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def idle(self) -> bool:
        """Nothing is owed to the client."""
        return not self.pending and not self._relay_left

    @property
    def held_bytes(self) -> int:
        """What is kept here: a reply that is collected, and replies of our own."""
        return len(self._partial) + self.local_bytes

    @property
    def collected_bytes(self) -> int:
        """What is there of the reply that is being collected."""
        return len(self._partial)

    @property
    def awaits_head(self) -> bool:
        """Whether a reply is owed whose head will be looked at."""
        pending = self.pending
        return bool(pending) and any(isinstance(owed.answer, HeadAnswer) for owed in pending)

    def reply(self, frame: bytes) -> None:
        """Queue a reply of our own behind the replies that are owed before it."""
        if self.idle:
            self.to_client.append(frame)
        else:
            self.pending.append(Pending(_NO_ID, LocalAnswer(frame)))
            self._locals += 1
            self.local_bytes += len(frame)

    def defer(self) -> LocalAnswer:
        """Keep a place behind the replies that are owed; `fill` puts the reply there."""
        answer = LocalAnswer(None)
        self.pending.append(Pending(_NO_ID, answer))
        self._locals += 1
        return answer

    def fill(self, answer: LocalAnswer, frame: bytes) -> None:
        """The reply of a place that was kept; it leaves when those before it have left."""
        answer.frame = frame
        self.local_bytes += len(frame)
        if not self._relay_left:
            self._flush_locals()

    def take_whole_reply(self, data: bytes) -> bool:
        """Take `data` if it is exactly the one reply that is due, relayed as it is; False: nothing was taken."""
        if self._relay_left or self._partial or self._locals or len(data) < _REPLY_HEAD_BYTES:
            return False
        size, correlation_id = REPLY_HEAD.unpack_from(data, 0)
        if size + 4 != len(data) or size > self._max_response_bytes or not self.pending:
            return False
        first = self.pending[0]
        answer = first.answer
        if first.correlation_id != correlation_id or first.timed is not None:
            return False
        if answer is not None and not _take_unseen(answer, data, 0, size, True):
            return False
        self.pending.popleft()
        return True

    def receive(self, data: bytes, now_ms: int, timekeeper: Timekeeper) -> None:
        """Take bytes from the broker.

        Args:
            data: as received.
            now_ms: the time.
            timekeeper: called for the replies of timed requests.

        Raises:
            UpstreamDesync: they do not answer the requests in order.
            ProtocolError: a collected reply could not be read.
        """
        at = 0
        if self._relay_left:
            if self.stalled is not None:
                self._partial += data
                return
            received = len(data)
            if self._relay_left > received:
                self._relay_left -= received
                if not self._dropping:
                    self.to_client.append(data)
                return
            at = self._relay_left
            self._relay_left = 0
            if self._locals or self._dropping:
                if not self._dropping:
                    self.to_client.append(data[:at])
                self._dropping = False
                self._flush_locals()
                data = data[at:]
                at = 0
        elif self._partial:
            self._partial += data
            if len(self._partial) < self._wanted_bytes:
                return
            data = bytes(self._partial)
            self._partial = bytearray()
        self._walk(data, at, now_ms, timekeeper)

    def _walk(self, data: bytes, at: int, now_ms: int, timekeeper: Timekeeper) -> None:
        """Walk the replies that start in `data[at:]`; `data[:at]` is the end of an earlier, relayed one."""
        received = len(data)
        pending = self.pending
        start = 0
        reply: bytes | None
        self._wanted_bytes = _REPLY_HEAD_BYTES
        while received - at >= _REPLY_HEAD_BYTES:
            size, correlation_id = REPLY_HEAD.unpack_from(data, at)
            if not pending:
                raise UpstreamDesync("a reply to no request")
            first = pending[0]
            if first.correlation_id != correlation_id:
                raise UpstreamDesync(f"correlation id {correlation_id} instead of {first.correlation_id}")
            if not 4 <= size <= self._max_response_bytes:
                raise UpstreamDesync(f"reply of {size} bytes")
            answer, timed = first.answer, first.timed
            end = at + 4 + size
            if timed is None and (answer is None or _take_unseen(answer, data, at, size, end <= received)):
                pending.popleft()
                at = end
            else:
                wanted = 4 + size
                if isinstance(answer, HeadAnswer) or (
                    answer is None and timed and not behind_head(timed.api)
                ):
                    wanted = min(wanted, _SEEN_HEAD_BYTES)
                if received - at < wanted:
                    self._wanted_bytes = wanted
                    break
                pending.popleft()
                if isinstance(answer, CollectedAnswer):
                    # Its handler may reply itself, which belongs behind what came before.
                    self._emit(data, start, at)
                    start = at
                if timed is not None:
                    timekeeper.request_answered(timed, now_ms=now_ms)
                seen = data[at : at + wanted]
                found = _answer(answer, seen, size, now_ms)
                if isinstance(found, Generator):
                    try:
                        next(found)
                    except StopIteration as ended:
                        reply = ended.value
                    else:
                        self._stall(found, timed, data[end:], timekeeper)
                        return
                else:
                    reply = found
                if reply is not None and timed is not None:
                    reply = timekeeper.seal_reply(timed, reply, now_ms=now_ms)
                if reply is not seen and reply != seen:
                    self._emit(data, start, at)
                    start = at + wanted
                    if reply is not None:
                        self.to_client.append(reply)
                        if reply[:_SIZE_BYTES] != seen[:_SIZE_BYTES] and wanted < 4 + size:
                            start = end
                            self._dropping = end > received
                at = end
            if self._locals and at <= received:
                self._emit(data, start, at)
                start = at
                self._flush_locals()
        if at > received:
            self._relay_left = at - received
            at = received
        self._emit(data, start, at)
        if at < received:
            self._partial += data[at:]
            if received - at < _REPLY_HEAD_BYTES:
                self._look_ahead()

    def _stall(
        self, steps: Steps[bytes | None], timed: TimedRequest | None, rest: bytes, timekeeper: Timekeeper
    ) -> None:
        self.stalled, self._stalled_timed = steps, timed
        self._relay_left = _STALLED
        self._partial += rest
        timekeeper.go_on_later(steps)

    def resume(self, reply: bytes | None, now_ms: int, timekeeper: Timekeeper) -> None:
        """The steps of the reply that stalled the queue are over; raises as `receive`."""
        timed, self._stalled_timed, self.stalled = self._stalled_timed, None, None
        self._relay_left = 0
        if timed is not None:
            timekeeper.answered_in_steps(timed, now_ms=now_ms)
            if reply is not None:
                reply = timekeeper.seal_reply(timed, reply, now_ms=now_ms)
        if reply is not None:
            self.to_client.append(reply)
        self._flush_locals()
        rest, self._partial = bytes(self._partial), bytearray()
        self._walk(rest, 0, now_ms, timekeeper)

    def _look_ahead(self) -> None:
        """Refuse what less than a reply's head already shows to be wrong: more may never come (hazard D08)."""
        if not self.pending:
            raise UpstreamDesync("a reply to no request")
        if len(self._partial) < _SIZE_BYTES:
            self._wanted_bytes = _SIZE_BYTES
            return
        size = int.from_bytes(self._partial[:_SIZE_BYTES], "big", signed=True)
        if not 4 <= size <= self._max_response_bytes:
            raise UpstreamDesync(f"reply of {size} bytes")

    def _emit(self, data: bytes, start: int, end: int) -> None:
        if end > start:
            self.to_client.append(data if end - start == len(data) else data[start:end])

    def _flush_locals(self) -> None:
        pending = self.pending
        while pending:
            answer = pending[0].answer
            if not isinstance(answer, LocalAnswer) or answer.frame is None:
                return
            pending.popleft()
            self._locals -= 1
            self.local_bytes -= len(answer.frame)
            self.to_client.append(answer.frame)


def _take_unseen(answer: Answer, data: bytes, at: int, size: int, whole: bool) -> bool:
    """Take a reply that is relayed as it is; False: it has to be looked at."""
    if isinstance(answer, SizedAnswer):
        answer.count(size - answer.less_bytes)
        return True
    return (
        whole
        and isinstance(answer, CollectedAnswer)
        and answer.passes is not None
        and answer.passes(data, at, size)
    )


def _answer(
    answer: Answer | None, received: bytes, size: int, now_ms: int
) -> bytes | Steps[bytes | None] | None:
    """What the client gets for the bytes of a reply, or of its head."""
    if isinstance(answer, HeadAnswer):
        return answer.on_head(received, size, now_ms) or received
    if isinstance(answer, CollectedAnswer):
        return answer.on_reply(received, now_ms)
    return received
