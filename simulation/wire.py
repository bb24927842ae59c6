"""Counts what crosses the wire at a gateway, independently of the gateway's own counters.

Each client connection has a `Tap`. It gets the bytes that the gateway reads and writes on both sides, splits them
into frames, and adds them by client id. The laws compare these sums with usage records and metrics.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final

from simulation import messages
from simulation.network import Transport
from simulation.world import NS_PER_MS, NS_PER_S, World

_HEAD: Final = Struct(">ihhih")
_SIZE: Final = Struct(">i")
_REPLY: Final = Struct(">ii")
_EMPTY_BYTES: Final = 18
"""The most bytes of a Fetch response without topics."""


class Frame:
    """One frame, as far as it has arrived.

    Attributes:
        key, version, client_id: of a request; -1 and empty until its head has arrived.
        correlation_id: of a request or a reply.
        size: the size in its first four bytes.
        came: the number of its bytes that have arrived, including these four.
        fetched: bytes of the broker's response to this Fetch that count. None until it arrives.
    """

    __slots__ = (
        "acks",
        "at_ns",
        "came",
        "client_id",
        "correlation_id",
        "fetched",
        "head",
        "key",
        "size",
        "version",
    )

    def __init__(self) -> None:
        self.key = self.version = -1
        self.client_id = ""
        self.correlation_id = 0
        self.size = -1
        self.came = 0
        self.acks = 1
        self.at_ns = 0
        self.head = b""
        self.fetched: tuple[int, int] | None = None

    @property
    def known(self) -> bool:
        """Whether its head has arrived."""
        return not self.head and self.size >= 0

    @property
    def whole(self) -> bool:
        """Whether all of it has arrived."""
        return self.came == self.size + 4


class Stream:
    """Splits the bytes of one direction into frames.

    Attributes:
        broken: the bytes are no longer frames.
        current: the incomplete frame; None between two frames.
    """

    __slots__ = ("_on_bytes", "_requests", "broken", "current")

    def __init__(self, on_bytes: Callable[[Frame, int, bool, bytes], None], *, requests: bool) -> None:
        """Calls `on_bytes(frame, count, first, data)` for each part of a frame whose head is known.

        Args:
            on_bytes: `count` more bytes of the frame have arrived; `first`: its head is complete only now; `data`:
            its
                bytes so far, if they are in one piece.
            requests: whether the frames are requests; otherwise they are replies.
        """
        self._on_bytes = on_bytes
        self._requests = requests
        self.current: Frame | None = None
        self.broken = False

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        at, end = 0, len(data)
        while at < end and not self.broken:
            frame = self.current
            if frame is None:
                frame = self.current = Frame()
            if frame.head or frame.size < 0:
                taken = self._begin(frame, data, at)
                if taken is None:
                    return
                at = taken
            else:
                more = min(frame.size + 4 - frame.came, end - at)
                frame.came += more
                at += more
                if frame.whole:
                    self.current = None
                self._on_bytes(frame, more, False, b"")

    def _begin(self, frame: Frame, data: bytes, at: int) -> int | None:
        """Reads a head. Returns where the frame continues in `data`, or None if more bytes are needed."""
        kept = len(frame.head)
        known = frame.head + data[at : at + 400] if kept else data[at : at + 400]
        frame.head = known
        if len(known) < 4:
            return None
        size: int = _SIZE.unpack_from(known)[0]
        if self._requests:
            if size < 10:
                self.broken = True
                return None
            if len(known) < 14:
                return None
            _, key, version, correlation_id, length = _HEAD.unpack_from(known)
            head_bytes = 14 + max(0, length)
            if head_bytes > 300 or head_bytes > size + 4:
                self.broken = True
                return None
            if len(known) < head_bytes:
                return None
            frame.key, frame.version = key, version
            frame.client_id = known[14:head_bytes].decode(errors="replace")
        else:
            head_bytes = 8
            if len(known) < 8:
                return None
            correlation_id = _REPLY.unpack_from(known)[1]
        frame.correlation_id = correlation_id
        frame.size = size
        if frame.key == messages.PRODUCE and frame.version >= 3:
            acks_at = head_bytes + 2  # after a null transactional id and tags
            if len(known) < acks_at + 2 and size + 4 >= acks_at + 2:
                frame.size = -1
                return None
            frame.acks = int.from_bytes(known[acks_at : acks_at + 2], "big", signed=True)
        frame.head = b""
        available = kept + len(data) - at
        came = frame.came = min(size + 4, available)
        if frame.whole:
            self.current = None
        self._on_bytes(frame, came, True, b"" if kept else data[at : at + came])
        return at + came - kept


def throttle_ms(key: int, version: int, size: int, reply: bytes) -> int:
    """The throttle time in a reply; 0 also if the available part does not include it.

    Args:
        key, version: of the request.
        size: of the whole reply, by its first four bytes.
        reply: the reply, or its beginning.
    """
    if key == messages.PRODUCE:
        return messages.read_produce_throttle(version, reply) if len(reply) == size + 4 else 0
    first = _THROTTLE_SINCE.get(key)
    if first is None or version < first[0]:
        return 0
    at = 9 if version >= first[1] else 8
    return int.from_bytes(reply[at : at + 4], "big") if len(reply) >= at + 4 else 0


_THROTTLE_SINCE: Final = {
    messages.FETCH: (1, 12),
    messages.METADATA: (3, 9),
    messages.HEARTBEAT: (1, 4),
    messages.CREATE_TOPICS: (2, 5),
    messages.CREATE_PARTITIONS: (0, 2),
    messages.DELETE_TOPICS: (1, 4),
}
"""The first versions in which a reply begins with throttle_time_ms, and in which its header has tags."""


class Bucket:
    """The leaky bucket of one counter, computed from the bytes that passed.

    Attributes:
        level: its present content.
        total: all bytes that were ever poured into it.
        passed: (time, bytes) of the last window.
        largest: the largest request.
    """

    __slots__ = ("at_ns", "largest", "level", "passed", "rate", "total", "window_sum")

    def __init__(self, rate: float, now_ns: int) -> None:
        self.rate = rate
        self.level = 0.0
        self.total = 0
        self.at_ns = now_ns
        self.largest = 0
        self.passed: deque[tuple[int, int]] = deque()
        self.window_sum = 0

    def pour(self, amount: int, now_ns: int, window_ns: int) -> None:
        """Adds bytes that have passed now; a negative amount is taken back."""
        self.level = max(0.0, self.level_at(now_ns) + amount)
        self.total += amount
        self.at_ns = max(self.at_ns, now_ns)
        passed = self.passed
        passed.append((now_ns, amount))
        self.window_sum += amount
        while passed[0][0] < now_ns - window_ns:
            self.window_sum -= passed.popleft()[1]

    def level_at(self, now_ns: int) -> float:
        """Its content at a time."""
        return max(0.0, self.level - self.rate * max(0, now_ns - self.at_ns) / NS_PER_S)

    def within(self, span_ns: int, now_ns: int) -> int:
        """The bytes that passed in the last `span_ns`."""
        total = 0
        for when_ns, amount in reversed(self.passed):
            if when_ns < now_ns - span_ns:
                break
            total += amount
        return total


@dataclass(slots=True)
class Sums:
    """Sums of the wire for one client id at one gateway.

    Attributes:
        produced: bytes of Produce requests that the gateway passed on.
        produce_requests: the number of these requests.
        fetched: the least and the most bytes of Fetch responses that count.
        fetch_answers: the least and the largest number of these responses.
        answers: replies that the client received, by api key.
        unwritten: replies that may have been made for a connection that had already ended.
    """

    produced: int = 0
    produce_requests: int = 0
    fetched: list[int] = field(default_factory=lambda: [0, 0])
    fetch_answers: list[int] = field(default_factory=lambda: [0, 0])
    answers: Counter[int] = field(default_factory=Counter)
    unwritten: int = 0


class Wire:
    """All taps of one gateway.

    Attributes:
        sums: by client id.
        from_client, to_client, from_broker, to_broker: bytes of all client connections.
        violations: requests that got a wrong reply.
        open: taps of connections that have not ended.
        opened, ended: numbers of connections.
    """

    def __init__(self, world: World, report: Callable[[str, str], None], *, longest_mute_ms: int) -> None:
        """Starts with empty sums.

        Args:
            world: its clock is used.
            report: called with the name of a law and a description of the violation.
            longest_mute_ms: the gateway takes requests again then, even if a reply asks for a longer wait.
        """
        self.world = world
        self.report = report
        self.longest_mute_ms = longest_mute_ms
        self.sums: defaultdict[str, Sums] = defaultdict(Sums)
        self.from_client = self.from_broker = 0
        self.open: dict[Tap, None] = {}
        self.opened = self.ended = 0
        self.on_passed: Callable[[Tap, Frame, int], None] | None = None
        self.on_fetched: Callable[[Tap, str, int], None] | None = None

    def forget_dead(self) -> None:
        """Removes connections of processes that were killed."""
        for tap in [tap for tap in self.open if not tap.process.alive]:
            tap.end()


class Tap:
    """One client connection at a gateway.

    Attributes:
        wire: the gateway's `Wire`.
        process: the process that serves the connection.
        transport: the client's transport.
        channel: the gateway's own object.
        waiting: requests without a reply, in order; without Produce requests with acks 0.
        muted_until_ns: end of the wait that the gateway asked for.
    """

    __slots__ = (
        "_asked",
        "_from_broker",
        "_from_client",
        "_to_broker",
        "_to_client",
        "_upstream_answers",
        "_upstream_asked",
        "channel",
        "gone_ns",
        "muted_until_ns",
        "process",
        "transport",
        "upstream",
        "waiting",
        "wire",
    )

    def __init__(self, wire: Wire, process: Any, transport: Transport, channel: Any) -> None:
        self.wire = wire
        self.process = process
        self.transport = transport
        self.channel = channel
        self.upstream: Transport | None = None
        self.gone_ns: int | None = None
        self.muted_until_ns = 0
        self.waiting: deque[Frame] = deque()
        self._asked: dict[int, Frame] = {}
        self._upstream_asked: deque[Frame] = deque()
        self._upstream_answers: Frame | None = None
        self._from_client = Stream(self._request, requests=True)
        self._to_client = Stream(self._reply, requests=False)
        self._to_broker = Stream(self._passed, requests=True)
        self._from_broker = Stream(self._answered, requests=False)
        wire.open[self] = None
        wire.opened += 1
        transport.tap = self._client_leg
        transport.on_lost = self.end

    def under_way(self, client_id: str) -> int:
        """The announced bytes of a request that was sent to the broker in part, if this client sent it."""
        frame = self._to_broker.current
        return frame.size if frame is not None and frame.known and frame.client_id == client_id else 0

    def connect(self, upstream: Transport) -> None:
        """The connection to the broker is open."""
        self.upstream = upstream
        upstream.tap = self._broker_leg

    def end(self) -> None:
        """The client's transport is closed. Bytes that the session still has for the broker are never sent."""
        if self in self.wire.open:
            del self.wire.open[self]
            self.wire.ended += 1
            for chunk in list(self.channel.session.to_upstream):
                self._to_broker.feed(chunk)
            for frame in self._asked.values():
                if frame.fetched is not None:
                    self._settle(frame, None)
            self._give_back()
            for frame in self.waiting:  # the gateway may have made a reply that waits for earlier ones
                sums = self.wire.sums[frame.client_id]
                sums.unwritten += 1
                if frame.key == messages.FETCH:
                    sums.fetch_answers[1] += 1

    def _client_leg(self, written: bool, data: bytes) -> None:
        if written:
            self._to_client.feed(data)
        else:
            self.wire.from_client += len(data)
            self._from_client.feed(data)

    def _broker_leg(self, written: bool, data: bytes) -> None:
        if written:
            self._to_broker.feed(data)
        elif not self.channel._closed:
            self.wire.from_broker += len(data)
            self._from_broker.feed(data)

    # -- frames ----------------------------------------------------------------------------------------------

    def _request(self, frame: Frame, _count: int, _first: bool, _data: bytes) -> None:
        if frame.whole and (frame.key != messages.PRODUCE or frame.acks != 0):
            frame.at_ns = self.wire.world.now_ns
            self.waiting.append(frame)

    def _reply(self, reply: Frame, _count: int, first: bool, data: bytes) -> None:
        if not first:
            return
        wire = self.wire
        if not self.waiting:
            wire.report("answered_once_in_order", f"a reply {reply.correlation_id} to no request")
            return
        request = self.waiting.popleft()
        if request.correlation_id != reply.correlation_id:
            wire.report(
                "answered_once_in_order",
                f"reply {reply.correlation_id} while request {request.correlation_id} was the next",
            )
        wire.sums[request.client_id].answers[request.key] += 1
        if data:
            asked_ms = throttle_ms(request.key, request.version, reply.size, data)
            until_ns = self.process.local_ns + min(asked_ms, wire.longest_mute_ms) * NS_PER_MS
            self.muted_until_ns = max(self.muted_until_ns, until_ns)
        if request.key == messages.FETCH:
            asked = self._asked.pop(request.correlation_id, None)
            if asked is None:  # the gateway made this response itself
                self._count_answer(request.client_id, 0, 0)
            elif asked.fetched is not None:
                self._settle(asked, reply)

    def _passed(self, frame: Frame, count: int, first: bool, _data: bytes) -> None:
        wire = self.wire
        if first and self.process.local_ns < self.muted_until_ns - 3 * NS_PER_MS and not self.channel._closed:
            wire.report(
                "mutes_hold",
                f"{frame.client_id} had {(self.muted_until_ns - self.process.local_ns) // NS_PER_MS} ms to wait, "
                f"but request {frame.key} was passed on",
            )
        if frame.key == messages.PRODUCE:
            sums = wire.sums[frame.client_id]
            counted = count
            if first:
                counted = max(0, count - 4)
                sums.produce_requests += 1
            sums.produced += counted
            if wire.on_passed is not None:
                wire.on_passed(self, frame, counted)
        elif frame.key == messages.FETCH and first:
            self._asked[frame.correlation_id] = frame
        if first and (frame.key != messages.PRODUCE or frame.acks != 0):
            self._upstream_asked.append(frame)

    def _answered(self, reply: Frame, count: int, first: bool, _data: bytes) -> None:
        if first:
            if not self._upstream_asked:
                return
            self._upstream_answers = self._upstream_asked.popleft()
        asked = self._upstream_answers
        if asked is None or asked.key != messages.FETCH:
            return
        uncounted = 5 if asked.version >= 12 else 4
        before = 0 if asked.fetched is None else asked.fetched[0]
        now = max(0, reply.came - uncounted)
        asked.fetched = (now, reply.size)
        if first:
            asked.came = 0  # reused: how many bytes have been counted
        elif asked.came:  # the head was relayed, so the rest counts as it arrives
            self._count_fetched(asked, now - before)
        del count

    def _settle(self, asked: Frame, reply: Frame | None) -> None:
        """Counts a broker's Fetch response. Responses that the gateway has emptied do not count."""
        assert asked.fetched is not None
        counted, size = asked.fetched
        if reply is None:
            sums = self.wire.sums[asked.client_id]
            sums.fetched[1] += counted
            sums.fetch_answers[1] += 1
            return
        asked.came = 1
        if reply.size != size:
            self._count_answer(asked.client_id, 0, 0)
            asked.came = 0
            return
        if size <= _EMPTY_BYTES:  # an emptied response would look the same
            self._count_answer(asked.client_id, 0, counted)
            asked.came = 0
            return
        sums = self.wire.sums[asked.client_id]
        sums.fetch_answers[0] += 1
        sums.fetch_answers[1] += 1
        self._count_fetched(asked, counted)
        if self.wire.on_fetched is not None:
            self.wire.on_fetched(self, asked.client_id, size)

    def _give_back(self) -> None:
        """Takes back the rest of a response that was counted at its beginning, because the rest will not arrive."""
        asked = self._upstream_answers
        if asked is None or asked.fetched is None or not asked.came or self.wire.on_fetched is None:
            return
        came, size = asked.fetched
        self.wire.on_fetched(self, asked.client_id, came - size)

    def _count_fetched(self, asked: Frame, count: int) -> None:
        sums = self.wire.sums[asked.client_id]
        sums.fetched[0] += count
        sums.fetched[1] += count

    def _count_answer(self, client_id: str, least: int, most: int) -> None:
        sums = self.wire.sums[client_id]
        sums.fetch_answers[0] += 1
        sums.fetch_answers[1] += 1
        sums.fetched[0] += least
        sums.fetched[1] += most
