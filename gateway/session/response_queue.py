"""ResponseQueue: pending replies in the order of requests, and the walk through the broker's bytes. Pure.

The gateway's own replies and the broker's share one queue, so that every reply leaves in request order (hazard A38).
A broker's reply is identified by its place. A wrong correlation id raises `UpstreamDesync`, which closes both legs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from librt.strings import read_i32_be

from gateway.session.parts import PartsRow, ReplyParts, Watch
from protocol.api_keys import Api
from protocol.errors import MalformedBody, UpstreamDesync
from protocol.headers import REPLY_HEAD
from protocol.node_endpoints import MAX_TAIL_BYTES, NodeEndpoints, TailFinder
from protocol.steps import Steps, put_off
from protocol.throttle import behind_head
from quotas.combine import ThrottledBy
from quotas.overload import Sample

OnReply: TypeAlias = Callable[[bytes, int], bytes | Steps[bytes | None] | None]
"""(whole reply frame, now_ms) -> the frame for the client, or None if the client gets no reply.

Long work returns `Steps`, whose result is the same. Until they end, later replies wait and the broker is not read.
"""

_NO_FAMILY: Final = ThrottledBy.NONE
_SIZE_BYTES: Final = 4
_STALLED: Final = 2**62
"""Value of `_relay_left` while a reply is changed in steps: more bytes than can arrive."""
_NO_ID: Final = 2**32
"""Correlation id of the gateway's own replies: above 32 bits, so no broker's reply can have it."""

Passes: TypeAlias = Callable[[bytes, int, int], bool]
"""(received bytes, where the reply's frame begins, its payload size) -> whether it may be relayed unchanged."""

OnHead: TypeAlias = Callable[[bytes, int, int], bytes | None]
"""(first bytes of a reply frame, its payload size, now_ms) -> these bytes with a throttle time; None: unchanged.

If the result has another payload size, it replaces the whole reply, and the rest of the broker's reply is dropped.
"""

_REPLY_HEAD_BYTES: Final = REPLY_HEAD.size
_SEEN_HEAD_BYTES: Final = 64
"""These first bytes contain a throttle time near the start of a reply; no broker sends header tags today."""


class ReplyWatch(Protocol):
    """Watches replies as the broker sent them."""

    def whole(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """Take a whole reply, in `data[at:end]`, size included."""

    def begin(self, size: int) -> Watch | None:
        """The watch for a reply of this payload size that arrives in pieces; None: it is not watched."""


class LocalAnswer:
    """A reply of the gateway that waits for earlier replies. `frame` is None until the reply is ready."""

    __slots__ = ("frame",)
    tail: Final = None
    watch: Final = None

    def __init__(self, frame: bytes | None) -> None:
        self.frame = frame


class CollectedAnswer:
    """A reply that is collected until it is whole and then handed to `on_reply`.

    If `passes` is set and the reply arrives whole in one chunk, `passes` is called first. If it returns True, the
    reply is relayed.
    """

    __slots__ = ("on_reply", "passes")
    tail: Final = None
    watch: Final = None

    def __init__(self, on_reply: OnReply, passes: Passes | None = None) -> None:
        self.on_reply = on_reply
        self.passes = passes


class HeadAnswer:
    """A reply that is relayed after `on_head` has seen, and may have patched, its first bytes.

    If `tail` is set, it rewrites the end of the reply. `watch` sees the reply after `on_head`.
    """

    __slots__ = ("on_head", "tail", "watch")

    def __init__(
        self, on_head: OnHead, tail: NodeEndpoints | None = None, watch: ReplyWatch | None = None
    ) -> None:
        self.on_head = on_head
        self.tail = tail
        self.watch = watch


class SizedAnswer:
    """A reply that is relayed unchanged. `row` counts its payload, without `less_bytes`.

    Not for a request that is timed. One object can be used for any number of replies. If `tail` is set, it rewrites
    the end of the reply; `watch` sees the reply too.
    """

    __slots__ = ("less_bytes", "row", "tail", "watch")

    def __init__(
        self,
        row: PartsRow,
        less_bytes: int,
        tail: NodeEndpoints | None = None,
        watch: ReplyWatch | None = None,
    ) -> None:
        self.row = row
        self.less_bytes = less_bytes
        self.tail = tail
        self.watch = watch


class TailAnswer:
    """A reply whose end `tail`, if set, rewrites; the rest is relayed. One object serves any number of replies."""

    __slots__ = ("tail",)
    watch: Final = None

    def __init__(self, tail: NodeEndpoints | None) -> None:
        self.tail = tail


WAITS_FOR_CLIENTS: Final = TailAnswer(None)
"""A reply that depends on other clients, so that a drain does not wait for it."""


Answer: TypeAlias = LocalAnswer | CollectedAnswer | HeadAnswer | SizedAnswer | TailAnswer


class TimedRequest:
    """A request whose reply matters to a quota.

    Attributes:
        api, client_id: the API and the client id of the request.
        forwarded_ns: when it was forwarded, on the `perf_counter` scale.
        measured: whether its time is counted.
        until_ms: when the client's wait for the limit of the API ends; 0: it does not wait.
        by: that limit's family.
        sample: measurement of the broker's response time; None: not measured.
    """

    __slots__ = ("api", "by", "client_id", "forwarded_ns", "measured", "sample", "until_ms")

    def __init__(self, api: Api, client_id: str, forwarded_ns: int, *, measured: bool = True) -> None:
        self.api = api
        self.client_id = client_id
        self.forwarded_ns = forwarded_ns
        self.measured = measured
        self.until_ms = 0
        self.by = _NO_FAMILY
        self.sample: Sample | None = None


class Pending:
    """One request without a reply so far: its correlation id, and how the reply is handled (None: relayed)."""

    __slots__ = ("answer", "correlation_id", "timed")

    def __init__(self, correlation_id: int, answer: Answer | None = None) -> None:
        self.correlation_id = correlation_id
        self.answer = answer
        self.timed: TimedRequest | None = None  # the request, if its reply counts its time


class WholeProduce(Pending):
    """The `Pending` of a Produce request that arrived in one piece, while brokers' response times are measured."""

    __slots__ = ()


class Timekeeper(Protocol):
    """The part of the session that the request quota needs (KIP-124)."""

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """Note that the reply of a timed request has arrived; called before its handler sees it."""

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """The reply, or its head, with the request quota's throttle time in it."""

    def answered_in_steps(self, timed: TimedRequest, *, now_ms: int) -> None:
        """Count the time of a timed reply's steps once they are over; called before `seal_reply`."""

    def begins_now(self, frame_bytes: int) -> bool:
        """Whether the walk through a reply of this size begins at once; if not, all of it happens later."""

    def go_on_later(self, steps: Steps[bytes | None], *, put_off_bytes: int = 0) -> None:
        """Take the remaining steps of a reply in turns with other connections; `resume` gets their result.

        Args:
            steps: the remaining steps.
            put_off_bytes: size of the reply if its walk has not begun; otherwise 0.
        """


class _Streamed:
    """A partly relayed reply whose end is rewritten: the end as far as received, and the bytes it has to grow."""

    __slots__ = ("end", "endpoints", "finder", "found", "growth_bytes")

    def __init__(self, endpoints: NodeEndpoints, finder: TailFinder, growth_bytes: int) -> None:
        self.endpoints = endpoints
        self.finder = finder
        self.found = False
        self.growth_bytes = growth_bytes
        self.end = bytearray()


class ResponseQueue:
    """The queue of one connection.

    Attributes:
        pending: requests without a reply, oldest first.
        to_client: the session's list, to which replies are appended in order.
        local_bytes: size of the gateway's own replies that wait behind others.
        unanswered: whether a request was relayed that has no reply.
        stalled: the steps of the reply that is being changed; None when none is.
    """

    __slots__ = (
        "_dropping",
        "_ended",
        "_locals",
        "_max_response_bytes",
        "_partial",
        "_relay_left",
        "_stalled_timed",
        "_streamed",
        "_wanted_bytes",
        "_watched",
        "local_bytes",
        "pending",
        "stalled",
        "to_client",
        "unanswered",
    )

    def __init__(self, to_client: list[bytes], *, max_response_bytes: int) -> None:
        """Create an empty queue.

        Args:
            to_client: list that reply chunks are appended to.
            max_response_bytes: largest reply payload a broker may announce.
        """
        self.pending: list[Pending] = []
        self.to_client = to_client
        self._max_response_bytes = max_response_bytes
        self._locals = 0
        self._relay_left = 0  # bytes of the current reply that are still to be relayed
        self._dropping = False  # whether these bytes are dropped instead
        self._ended = False
        self._streamed: _Streamed | None = None  # the current reply, if its end is rewritten
        self._watched: Watch | None = None  # watches the current reply
        self._partial = bytearray()  # a reply that is collected, or the start of one
        self._wanted_bytes = 0
        self.local_bytes = 0
        self.unanswered = False
        self.stalled: Steps[bytes | None] | None = None
        self._stalled_timed: TimedRequest | None = None

    def __len__(self) -> int:
        return len(self.pending)

    @property
    def idle(self) -> bool:
        """Whether no reply is outstanding."""
        return not self.pending and not self._relay_left

    @property
    def drained(self) -> bool:
        """Whether no reply is outstanding except those that depend on other clients."""
        return not (self._relay_left or self._partial) and all(
            owed.answer is WAITS_FOR_CLIENTS for owed in self.pending
        )

    @property
    def held_bytes(self) -> int:
        """Bytes kept here: a collected reply, or the end of one, and the gateway's own replies."""
        tail_bytes = 0 if self._streamed is None else len(self._streamed.end)
        return len(self._partial) + self.local_bytes + tail_bytes

    @property
    def collected_bytes(self) -> int:
        """Bytes received of the reply that is being collected."""
        return len(self._partial)

    @property
    def missing_bytes(self) -> int:
        """Bytes that are missing of that reply."""
        return self._wanted_bytes - len(self._partial) if self._partial else 0

    @property
    def oldest(self) -> Pending | None:
        """See `quotas.overload.Connection`."""
        if self._ended or not self.pending:
            return None
        first = self.pending[0]
        return first if isinstance(first, WholeProduce) else None

    @property
    def awaits_head(self) -> bool:
        """Whether a reply is outstanding that a `HeadAnswer` handles."""
        # A generator would cost more than all other checks of a Fetch.
        for owed in self.pending:  # noqa: SIM110
            if isinstance(owed.answer, HeadAnswer):
                return True
        return False

    def reply(self, frame: bytes) -> None:
        """Queue a reply of the gateway behind the outstanding replies."""
        if self.idle:
            self.to_client.append(frame)
        else:
            self.pending.append(Pending(_NO_ID, LocalAnswer(frame)))
            self._locals += 1
            self.local_bytes += len(frame)

    def defer(self) -> LocalAnswer:
        """Reserve a place behind the outstanding replies; `fill` puts the reply there."""
        answer = LocalAnswer(None)
        self.pending.append(Pending(_NO_ID, answer))
        self._locals += 1
        return answer

    def fill(self, answer: LocalAnswer, frame: bytes) -> None:
        """Set the reply for a reserved place; it leaves after the replies before it."""
        answer.frame = frame
        self.local_bytes += len(frame)
        if not self._relay_left:
            self._flush_locals()

    def relay(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is the next reply, relayed unchanged, or a piece of it. Returns whether it was taken."""
        received = len(data)
        if self._relay_left:
            if (
                received > self._relay_left
                or self._locals
                or self._dropping
                or self._streamed is not None
                or self.stalled is not None
            ):
                return False
            if self._watched is not None:
                self._show(self._watched, data, now_ms)
            self._relay_left -= received
            return True
        if self._partial or self._locals or received < _REPLY_HEAD_BYTES:
            return False
        size: int = read_i32_be(data, 0)
        left = size + _SIZE_BYTES - received
        if left < 0 or size > self._max_response_bytes or not self.pending:
            return False
        first = self.pending[0]
        answer = first.answer
        if first.correlation_id != read_i32_be(data, _SIZE_BYTES) or first.timed is not None:
            return False
        if answer is not None:
            if answer.tail is not None and (left or not answer.tail.passes(data, 0, received)):
                return False
            if not _take_unseen(answer, data, 0, size, not left):
                return False
            if answer.watch is not None or left:
                self._watch(answer, data, 0, size + _SIZE_BYTES, now_ms)
        self.pending.pop(0)
        self._relay_left = left
        return True

    def receive(self, data: bytes, now_ms: int, timekeeper: Timekeeper) -> None:
        """Take bytes from the broker.

        Args:
            data: as received.
            now_ms: the time.
            timekeeper: called for the replies of timed requests.

        Raises:
            UpstreamDesync: the bytes do not answer the requests in order.
            ProtocolError: a collected reply could not be read.
        """
        at = 0
        if self._watched is not None:
            self._show(self._watched, data, now_ms)
        if self._streamed is not None:
            finder = self._streamed.finder
            received = len(data)
            if finder.left_bytes > received:
                finder.left_bytes -= received
                self._relay_left -= received
                if self._relay_left > 0:
                    self.to_client.append(data)
                    return
                raise MalformedBody("a reply that ends within its records")
            data = self._stream(self._streamed, data)
            if not data:
                return
        elif self._relay_left:
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
        """Walk the replies that start in `data[at:]`; `data[:at]` ends an earlier, relayed reply."""
        received = len(data)
        pending = self.pending
        start = 0
        reply: bytes | None
        self._wanted_bytes = _REPLY_HEAD_BYTES
        while received - at >= _REPLY_HEAD_BYTES:
            size: int = read_i32_be(data, at)
            correlation_id: int = read_i32_be(data, at + _SIZE_BYTES)
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
                pending.pop(0)
                if answer is not None:
                    if answer.watch is not None or end > received:
                        self._watch(answer, data, at, end, now_ms)
                    if answer.tail is not None:
                        start = self._take_tail(answer.tail, data, start, at, end)
                at = end
            else:
                wanted = 4 + size
                if isinstance(answer, HeadAnswer) or (
                    (answer is None or isinstance(answer, TailAnswer))
                    and timed
                    and not behind_head(timed.api)
                ):
                    wanted = min(wanted, _SEEN_HEAD_BYTES)
                if received - at < wanted:
                    self._wanted_bytes = wanted
                    break
                pending.pop(0)
                if isinstance(answer, CollectedAnswer):
                    # The handler may queue a reply itself; emit the earlier bytes first, to keep the order.
                    self._emit(data, start, at)
                    start = at
                if timed is not None:
                    timekeeper.request_answered(timed, now_ms=now_ms)
                seen = data[at : at + wanted]
                found = _answer(answer, seen, size, now_ms)
                # isinstance with the abstract class would cost as much as a small reply.
                if found is not None and not isinstance(found, bytes):
                    if not timekeeper.begins_now(size):
                        self._stall(put_off(found), timed, data[end:], timekeeper, put_off_bytes=size)
                        return
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
                if answer is not None and answer.watch is not None:
                    self._watch(answer, data, at, end, now_ms)
                tail = None if answer is None else answer.tail
                if reply is not None and tail is not None and wanted == 4 + size:
                    reply = tail.rewrite_reply(reply)
                    tail = None
                if reply is not seen and reply != seen:
                    self._emit(data, start, at)
                    start = at + wanted
                    if reply is not None:
                        self.to_client.append(reply)
                        if reply[:_SIZE_BYTES] != seen[:_SIZE_BYTES] and wanted < 4 + size:
                            start = end
                            self._dropping = end > received
                            tail = None
                if tail is not None:
                    start = self._take_tail(tail, data, start, at, end)
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

    def _watch(self, answer: Answer, data: bytes, at: int, end: int, now_ms: int) -> None:
        """Show a reply to its watch: a whole one at once, otherwise piece by piece."""
        watch = answer.watch
        if end <= len(data):
            if watch is not None:
                watch.whole(data, at, end, now_ms=now_ms)
            return
        size = end - at - _SIZE_BYTES
        watched = None if watch is None else watch.begin(size)
        if isinstance(answer, SizedAnswer):
            answer.row.count(0)
            counted, uncounted_bytes = size - answer.less_bytes, _SIZE_BYTES + answer.less_bytes
            watched = ReplyParts(counted, uncounted_bytes, answer.row, (), watched, now_ms=now_ms)
        if watched is not None:
            watched.take(data, at, len(data), now_ms=now_ms)
            self._watched = watched

    def _show(self, watched: Watch, data: bytes, now_ms: int) -> None:
        """Show the next bytes to the watch of the current reply."""
        left = self._relay_left
        watched.take(data, 0, min(left, len(data)), now_ms=now_ms)
        if len(data) >= left:
            self._watched = None
            watched.end(now_ms=now_ms)

    def ended(self, *, now_ms: int) -> None:
        """Clean up after the connection has ended; the current reply stays incomplete."""
        self._ended = True
        if self._watched is not None:
            self._watched.end(now_ms=now_ms)
            self._watched = None
        for each in self.pending:
            if each.timed is not None and each.timed.sample is not None:
                each.timed.sample.dropped = True
            if isinstance(each.answer, HeadAnswer):
                each.answer = None  # it refers to the session

    def _stall(
        self,
        steps: Steps[bytes | None],
        timed: TimedRequest | None,
        rest: bytes,
        timekeeper: Timekeeper,
        *,
        put_off_bytes: int = 0,
    ) -> None:
        self.stalled, self._stalled_timed = steps, timed
        self._relay_left = _STALLED
        self._partial += rest
        timekeeper.go_on_later(steps, put_off_bytes=put_off_bytes)

    def resume(self, reply: bytes | None, now_ms: int, timekeeper: Timekeeper) -> None:
        """Continue the queue with the result of the stalled reply's steps; raises the errors of `receive`."""
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

    def _take_tail(self, endpoints: NodeEndpoints, data: bytes, start: int, at: int, end: int) -> int:
        """Rewrite the end of a reply, now or when it arrives.

        Args:
            endpoints: rewrites the end.
            data: received bytes.
            start: where the bytes that have not been emitted begin. If it is above `at`, the reply's head has been
                emitted.
            at: where the reply's frame begins.
            end: where the frame ends, perhaps beyond the received bytes.

        Returns:
            The new start.
        """
        received = len(data)
        if end <= received:
            if endpoints.passes(data, at, end):
                return start
            tail_at = endpoints.find(data, at, end)
            tail = data[tail_at:end]
            new = endpoints.rewrite(tail)
            start = self._emit_size(data, start, at, end - at - _SIZE_BYTES + len(new) - len(tail))
            self._emit(data, start, tail_at)
            self.to_client.append(new)
            return end
        growth_bytes = endpoints.growth_bytes()
        if growth_bytes:
            start = self._emit_size(data, start, at, end - at - _SIZE_BYTES + growth_bytes)
        streamed = self._streamed = _Streamed(endpoints, endpoints.begin(), growth_bytes)
        tail_at = self._find_tail(streamed, data, at, received, end - received)
        self._emit(data, start, tail_at)
        return received

    def _emit_size(self, data: bytes, start: int, at: int, size: int) -> int:
        """Emit the bytes before the reply at `at`, and the reply's new size. Returns the new start."""
        if start > at:
            self.to_client[-1] = size.to_bytes(_SIZE_BYTES, "big") + self.to_client[-1][_SIZE_BYTES:]
            return start
        self._emit(data, start, at)
        self.to_client.append(size.to_bytes(_SIZE_BYTES, "big"))
        return at + _SIZE_BYTES

    def _find_tail(self, streamed: _Streamed, data: bytes, at: int, end: int, left_bytes: int) -> int:
        """Where the end of a reply begins in its next bytes, and keep that part. Returns `end` if it is not there.

        Args:
            streamed: the reply.
            data: received bytes.
            at: where the reply's next bytes begin.
            end: where they end.
            left_bytes: how many bytes of the reply are still missing.
        """
        tail_at = at
        if not streamed.found:
            found = streamed.finder.find(data, at, end)
            if found is None:
                return end
            if end - found + left_bytes > MAX_TAIL_BYTES:
                raise MalformedBody("node endpoints of too many bytes")
            streamed.found = True
            tail_at = found
        streamed.end += data[tail_at:end]
        return tail_at

    def _stream(self, streamed: _Streamed, data: bytes) -> bytes:
        """Relay the next bytes of a reply whose end is rewritten. Returns the bytes behind the reply."""
        end = min(self._relay_left, len(data))
        self._relay_left -= end
        self._emit(data, 0, self._find_tail(streamed, data, 0, end, self._relay_left))
        if self._relay_left:
            return b""
        if not streamed.found:
            raise MalformedBody("a reply that ends before its node endpoints")
        tail = bytes(streamed.end)
        self.to_client.append(streamed.endpoints.rewrite(tail, len(tail) + streamed.growth_bytes))
        self._streamed = None
        self._flush_locals()
        return data[end:]

    def _look_ahead(self) -> None:
        """Refuse an impossible size before the whole head has arrived: the rest may never come (hazard D08)."""
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
            pending.pop(0)
            self._locals -= 1
            self.local_bytes -= len(answer.frame)
            self.to_client.append(answer.frame)


def _take_unseen(answer: Answer, data: bytes, at: int, size: int, whole: bool) -> bool:
    """Whether a reply is relayed unchanged. If it is, and it is whole, it is counted."""
    if isinstance(answer, SizedAnswer):
        if whole:
            answer.row.count(size - answer.less_bytes)
        return True
    if isinstance(answer, TailAnswer):
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
    """The bytes, or the steps that make them, for the client in place of a reply or of its head."""
    if isinstance(answer, HeadAnswer):
        return answer.on_head(received, size, now_ms) or received
    if isinstance(answer, CollectedAnswer):
        return answer.on_reply(received, now_ms)
    return received
