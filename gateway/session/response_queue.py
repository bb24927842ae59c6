"""ResponseQueue: pending replies in the order of requests, and the walk through the broker's bytes. Pure.

Our own answers and the broker's share one queue, so that every reply leaves in request order (hazard A38). Replies
are identified by their place; the correlation id is checked, and on any doubt `UpstreamDesync` closes both legs.
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
"""(whole reply frame, now_ms) -> the frame for the client, or None when it is not the client's to see.

What takes long is a walk that returns the same; the replies behind it wait, and the broker is not read meanwhile.
"""

_NO_FAMILY: Final = ThrottledBy.NONE
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


class ReplyWatch(Protocol):
    """Looks at the replies of an answer, as the broker has sent them."""

    def whole(self, data: bytes, at: int, end: int, *, now_ms: int) -> None:
        """A reply that came whole, from its size on."""

    def begin(self, size: int) -> Watch | None:
        """One of this payload size that comes in pieces; None: it is not looked at."""


class LocalAnswer:
    """A reply of our own, waiting for the replies before it; while `frame` is None it is still to be made."""

    __slots__ = ("frame",)
    tail: Final = None
    watch: Final = None

    def __init__(self, frame: bytes | None) -> None:
        self.frame = frame


class CollectedAnswer:
    """A reply that is collected until it is whole and then handed to `on_reply`.

    With `passes` a reply that came whole within one chunk is looked at in place first, and relayed when it passes.
    """

    __slots__ = ("on_reply", "passes")
    tail: Final = None
    watch: Final = None

    def __init__(self, on_reply: OnReply, passes: Passes | None = None) -> None:
        self.on_reply = on_reply
        self.passes = passes


class HeadAnswer:
    """A reply that is relayed after `on_head` has seen, and may have patched, its first bytes.

    With `tail` its end is rewritten. `watch` looks at it behind `on_head`.
    """

    __slots__ = ("on_head", "tail", "watch")

    def __init__(
        self, on_head: OnHead, tail: NodeEndpoints | None = None, watch: ReplyWatch | None = None
    ) -> None:
        self.on_head = on_head
        self.tail = tail
        self.watch = watch


class SizedAnswer:
    """A reply that is relayed as it is; `row` counts its payload, less so many bytes.

    Not for a request that is timed. One object can stand for any number of replies. With `tail` its end is rewritten,
    `watch` looks at it too.
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
    """A reply that is relayed but for its end, which is rewritten; one object for any number of replies.

    Without a tail there is nothing to rewrite.
    """

    __slots__ = ("tail",)
    watch: Final = None

    def __init__(self, tail: NodeEndpoints | None) -> None:
        self.tail = tail


WAITS_FOR_CLIENTS: Final = TailAnswer(None)
"""A reply that comes when other clients have done something, so that a drain does not wait for it."""


Answer: TypeAlias = LocalAnswer | CollectedAnswer | HeadAnswer | SizedAnswer | TailAnswer


class TimedRequest:
    """A request whose reply is looked at for a quota.

    Attributes:
        api, client_id: whose it is.
        forwarded_ns: when it was forwarded, on the `perf_counter` scale.
        measured: whether its time is counted.
        until_ms: how long its client has to wait by a limit of its API; 0: it has not.
        by: that limit's family.
        sample: of the time that brokers take; None: it is not measured for that.
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
    """One request without a reply: its correlation id, and what is done with the reply (None: relay it)."""

    __slots__ = ("answer", "correlation_id", "timed")

    def __init__(self, correlation_id: int, answer: Answer | None = None) -> None:
        self.correlation_id = correlation_id
        self.answer = answer
        self.timed: TimedRequest | None = None  # whose time its reply is to count


class WholeProduce(Pending):
    """Of a Produce request that came in one piece, where the times of brokers are looked at."""

    __slots__ = ()


class Timekeeper(Protocol):
    """The session, as far as the request quota is concerned (KIP-124)."""

    def request_answered(self, timed: TimedRequest, *, now_ms: int) -> None:
        """The reply of a timed request is here; called before its handler sees it."""

    def seal_reply(self, timed: TimedRequest, reply: bytes, *, now_ms: int) -> bytes:
        """The reply, or its head, with the request quota's throttle time in it."""

    def answered_in_steps(self, timed: TimedRequest, *, now_ms: int) -> None:
        """The steps that a timed reply took are over; called before `seal_reply`."""

    def begins_now(self, frame_bytes: int) -> bool:
        """Whether the walk of a reply of so many bytes is begun at once; if not, all of it is for later."""

    def go_on_later(self, steps: Steps[bytes | None], *, put_off_bytes: int = 0) -> None:
        """Take the other steps of a reply when others have had their turn; the last one's result is for `resume`.

        Args:
            steps: those.
            put_off_bytes: of the reply, if none of its walk has been done.
        """


class _Streamed:
    """A reply under way whose end is to be rewritten: what was found of it, and how long its end has to become."""

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
        pending: oldest first.
        to_client: where replies are put, in order; the session's list.
        local_bytes: of replies of our own that wait behind others.
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
        self._dropping = False  # or dropped
        self._ended = False
        self._streamed: _Streamed | None = None  # whose bytes those are, when its end is to be rewritten
        self._watched: Watch | None = None  # looks at them
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
        """No reply is outstanding."""
        return not self.pending and not self._relay_left

    @property
    def drained(self) -> bool:
        """No reply is outstanding except those that other clients have to bring about."""
        return not (self._relay_left or self._partial) and all(
            owed.answer is WAITS_FOR_CLIENTS for owed in self.pending
        )

    @property
    def held_bytes(self) -> int:
        """What is kept here: a reply that is collected, or the end of one, and replies of our own."""
        tail_bytes = 0 if self._streamed is None else len(self._streamed.end)
        return len(self._partial) + self.local_bytes + tail_bytes

    @property
    def collected_bytes(self) -> int:
        """What is there of the reply that is being collected."""
        return len(self._partial)

    @property
    def missing_bytes(self) -> int:
        """What has not come of it."""
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
        """Whether a reply is outstanding whose head will be looked at."""
        # No generator: it costs more than the rest of what a Fetch is asked.
        for owed in self.pending:  # noqa: SIM110
            if isinstance(owed.answer, HeadAnswer):
                return True
        return False

    def reply(self, frame: bytes) -> None:
        """Queue a reply of our own behind the outstanding replies before it."""
        if self.idle:
            self.to_client.append(frame)
        else:
            self.pending.append(Pending(_NO_ID, LocalAnswer(frame)))
            self._locals += 1
            self.local_bytes += len(frame)

    def defer(self) -> LocalAnswer:
        """Keep a place behind the outstanding replies; `fill` puts the reply there."""
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

    def relay(self, data: bytes, *, now_ms: int) -> bool:
        """Take `data` if it is the reply that is due, or a piece of it, relayed as it is; False: nothing taken."""
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
            UpstreamDesync: they do not answer the requests in order.
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
        """Walk the replies that start in `data[at:]`; `data[:at]` is the end of an earlier, relayed one."""
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
                    # Its handler may reply itself, which belongs behind what came before.
                    self._emit(data, start, at)
                    start = at
                if timed is not None:
                    timekeeper.request_answered(timed, now_ms=now_ms)
                seen = data[at : at + wanted]
                found = _answer(answer, seen, size, now_ms)
                # Not asked as an abstract class, which costs as much as a small reply.
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
        """Have a reply looked at, now or as it comes."""
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
        """The next bytes of the reply that is looked at."""
        left = self._relay_left
        watched.take(data, 0, min(left, len(data)), now_ms=now_ms)
        if len(data) >= left:
            self._watched = None
            watched.end(now_ms=now_ms)

    def ended(self, *, now_ms: int) -> None:
        """The connection has ended, and with it the reply under way."""
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

    def _take_tail(self, endpoints: NodeEndpoints, data: bytes, start: int, at: int, end: int) -> int:
        """Have the end of a reply rewritten, now or when it comes.

        Args:
            endpoints: rewrite it.
            data: received bytes.
            start: where those begin that have not been emitted; behind `at` the reply's head has been.
            at: where the reply's frame begins.
            end: where it ends, perhaps beyond what was received.

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
        """Emit up to the reply at `at`, whose size becomes another; returns the new start."""
        if start > at:
            self.to_client[-1] = size.to_bytes(_SIZE_BYTES, "big") + self.to_client[-1][_SIZE_BYTES:]
            return start
        self._emit(data, start, at)
        self.to_client.append(size.to_bytes(_SIZE_BYTES, "big"))
        return at + _SIZE_BYTES

    def _find_tail(self, streamed: _Streamed, data: bytes, at: int, end: int, left_bytes: int) -> int:
        """Where the end of a reply begins in these next bytes of it, `end` when further on; it is kept.

        Args:
            streamed: the reply.
            data: received bytes.
            at: where its next bytes begin.
            end: where they end.
            left_bytes: what is still to come of it.
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
        """Relay the next bytes of a reply whose end is to be rewritten; returns what came behind it."""
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
            pending.pop(0)
            self._locals -= 1
            self.local_bytes -= len(answer.frame)
            self.to_client.append(answer.frame)


def _take_unseen(answer: Answer, data: bytes, at: int, size: int, whole: bool) -> bool:
    """Take a reply that is relayed as it is, and count it if it is whole; False: it has to be looked at."""
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
    """What the client gets for the bytes of a reply, or of its head."""
    if isinstance(answer, HeadAnswer):
        return answer.on_head(received, size, now_ms) or received
    if isinstance(answer, CollectedAnswer):
        return answer.on_reply(received, now_ms)
    return received
