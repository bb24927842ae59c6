"""Counts what crosses the wire at a gateway, independently of the gateway's own counters.

Each client connection has a `Tap`. It sees the bytes that the gateway reads and writes on both legs, splits them into
frames, and adds them up by client id. The laws compare these sums with usage records and metrics.
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
"""The size of an answer to a Fetch without topics, at most."""


class Frame:
    """One frame, as far as it has come.

    Attributes:
        key, version, client_id: of a request; -1 and empty until its head is here.
        correlation_id: of a request or a reply.
        size: what its first four bytes say.
        came: bytes of it so far, with these four.
        fetched: the bytes of the broker's answer to this Fetch that count. None until it came.
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
        """Whether its head is here."""
        return not self.head and self.size >= 0

    @property
    def whole(self) -> bool:
        """Whether all of it is here."""
        return self.came == self.size + 4


class Stream:
    """Splits the bytes of one direction into frames.

    Attributes:
        broken: the bytes are no frames any more.
        current: the frame under way; None between two frames.
    """

    __slots__ = ("_on_bytes", "_requests", "broken", "current")

    def __init__(self, on_bytes: Callable[[Frame, int, bool, bytes], None], *, requests: bool) -> None:
        """Call `on_bytes(frame, count, first, data)` for each part of a frame whose head is known.

        Args:
            on_bytes: `count` more bytes of the frame are here; `first`: its head has just come; `data`: what has come
                of it, if that is one piece.
            requests: whether the frames are requests; otherwise they are replies.
        """
        self._on_bytes = on_bytes
        self._requests = requests
        self.current: Frame | None = None
        self.broken = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
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
        """Read a head; where the frame continues in `data`, or None when more bytes are needed."""
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
            acks_at = head_bytes + 2  # behind a transactional id that is null, and tags
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
    """The wait in a reply; 0 as well where the part that is here does not say so.

    Args:
        key, version: of the request.
        size: of the whole reply, as its first four bytes say.
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
"""The versions since which a reply begins with throttle_time_ms, and since which its header has tags."""


class Bucket:
    """The leaky bucket of one counter, from the bytes that passed.

    Attributes:
        level: what it holds.
        total: all that was ever poured into it.
        passed: (when, bytes) of the last window.
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
        """So much has passed now; less than nothing: so much is taken back."""
        self.level = max(0.0, self.level_at(now_ns) + amount)
        self.total += amount
        self.at_ns = max(self.at_ns, now_ns)
        passed = self.passed
        passed.append((now_ns, amount))
        self.window_sum += amount
        while passed[0][0] < now_ns - window_ns:
            self.window_sum -= passed.popleft()[1]

    def level_at(self, now_ns: int) -> float:
        """What it holds then."""
        return max(0.0, self.level - self.rate * max(0, now_ns - self.at_ns) / NS_PER_S)

    def within(self, span_ns: int, now_ns: int) -> int:
        """What has passed in the last so many nanoseconds."""
        total = 0
        for when_ns, amount in reversed(self.passed):
            if when_ns < now_ns - span_ns:
                break
            total += amount
        return total


@dataclass(slots=True)
class Sums:
    """What crossed the wire, for one client id at one gateway.

    Attributes:
        produced: bytes of Produce requests that the gateway passed on.
        produce_requests: how many requests these were.
        fetched: the fewest and the most bytes of Fetch answers that count.
        fetch_answers: how many answers these were.
        answers: replies that the client got, by api key.
        unwritten: replies that may have been made for a connection that had ended.
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
        violations: requests that were answered wrongly.
        open: taps of connections that have not ended.
        opened, ended: how many connections.
    """

    def __init__(self, world: World, report: Callable[[str, str], None]) -> None:
        """Nothing has crossed.

        Args:
            world: its clock.
            report: is given the name of a law and what broke it.
        """
        self.world = world
        self.report = report
        self.sums: defaultdict[str, Sums] = defaultdict(Sums)
        self.from_client = self.from_broker = 0
        self.open: dict[Tap, None] = {}
        self.opened = self.ended = 0
        self.on_passed: Callable[[Tap, Frame, int], None] | None = None
        self.on_fetched: Callable[[Tap, str, int], None] | None = None

    def forget_dead(self) -> None:
        """Connections of processes that were killed are gone."""
        for tap in [tap for tap in self.open if not tap.process.alive]:
            tap.end()


class Tap:
    """One client connection at a gateway.

    Attributes:
        wire: of the gateway.
        process: which serves it.
        transport: of the client.
        channel: the gateway's own object.
        waiting: requests without a reply, in order; of Produce with acks 0 none.
        muted_until_ns: the client was asked to wait until then.
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
        """What the request announces of which a part has left for the broker, if this client sent it."""
        frame = self._to_broker.current
        return frame.size if frame is not None and frame.known and frame.client_id == client_id else 0

    def connect(self, upstream: Transport) -> None:
        """The leg to the broker is there."""
        self.upstream = upstream
        upstream.tap = self._broker_leg

    def end(self) -> None:
        """The client's transport is closed: what the session has for the broker never leaves."""
        if self in self.wire.open:
            del self.wire.open[self]
            self.wire.ended += 1
            for chunk in list(self.channel.session.to_upstream):
                self._to_broker.feed(chunk)
            for frame in self._asked.values():
                if frame.fetched is not None:
                    self._settle(frame, None)
            self._give_back()
            for frame in self.waiting:  # the gateway may have made an answer that waits for earlier ones
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
            until_ns = (
                self.process.local_ns
                + throttle_ms(request.key, request.version, reply.size, data) * NS_PER_MS
            )
            self.muted_until_ns = max(self.muted_until_ns, until_ns)
        if request.key == messages.FETCH:
            asked = self._asked.pop(request.correlation_id, None)
            if asked is None:  # the gateway answered by itself
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
            asked.came = 0  # counts what was settled
        elif asked.came:  # its head was relayed: the rest counts as it comes
            self._count_fetched(asked, now - before)
        del count

    def _settle(self, asked: Frame, reply: Frame | None) -> None:
        """What of a broker's answer counts: none of one that the gateway has emptied."""
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
        if size <= _EMPTY_BYTES:  # it may have been emptied: it would look the same
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
        """Of an answer that was counted when it began, the rest will not come."""
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
