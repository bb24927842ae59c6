"""The row of one client and API since the last line. Pure and cheap: the data path counts here.

A row puts itself on its table's list with the first thing that is counted, so taking a second's rows looks at those
alone. A row that is not counted in holds nothing but its names.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from quotas.rate_quotas import RateTracker
from quotas.usage_record import MOST_NAMED_BESIDE, OTHER, OVERHEAD, Limit, RowFlags, UsageApi

Number: TypeAlias = int | float
"""Bytes, partitions or ms: an integer stays one where this is compiled, and is written as one."""

RowValues: TypeAlias = tuple[
    str, str, str, str, int, int, Number, Number, Number, Number, Number, int, Number, int, int, int,
    float | None, float | None, int, int, int, list[list[str | int]] | None, float,
]  # fmt: skip
"""As `quotas.usage_record.Row` says."""

TopicTold: TypeAlias = tuple[str, int, int, int]
"""Name of a topic as it is written, requests, bytes, records."""

TopicValues: TypeAlias = tuple[str, str, str, str, int, str, int, int, int]
"""As `quotas.usage_record.TopicRow` says."""


class Counts:
    """What was counted of one topic since the last line."""

    __slots__ = ("lines", "records", "requests", "size_bytes")

    def __init__(self) -> None:
        self.requests = 0
        self.size_bytes = 0
        self.records = 0
        self.lines = 0  # that it was kept out of, for want of a name

    def add(self, other: Counts) -> None:
        """All of another's."""
        self.requests += other.requests
        self.size_bytes += other.size_bytes
        self.records += other.records


Alike: TypeAlias = tuple[bytes, int, Counts, Counts]
"""How a message begins, how far it is from there to its records, counts of its topic and of what stands around."""


class Topics(Protocol):
    """What all rows of a table share about topics: see `gateway.usage.topics`."""

    def key_of_id(self, topic_id: bytes, *, told_by_broker: bool) -> bytes:
        """What a topic is counted by of which only the id is known; others are by their names."""

    def new(self, counts: dict[bytes, Counts], key: bytes) -> Counts:
        """The counts of a topic that is not among those of this row yet; those of all others beyond a cap."""

    def take(self, counts: dict[bytes, Counts]) -> tuple[list[TopicTold], dict[bytes, Counts]]:
        """What is to be written of a row's topics, and what waits for the next line."""

    def pour(self, counts: dict[bytes, Counts], into: dict[bytes, Counts]) -> None:
        """Add the topics of one row to those of another."""


class RowKey(NamedTuple):
    """What a row is of: broker id -1 where it is not known or does not matter."""

    listener: str
    user: str
    client_id: str
    api: UsageApi
    node: int


class Level(NamedTuple):
    """Where a counter stands.

    Attributes:
        quota: the configured limit; None: unlimited.
        end: tokens, or the rate.
        observe: it is only observed.
        in_force: a share of a capacity that is less; 0: the quota is in force.
    """

    quota: float | None
    end: float | None
    observe: bool = False
    in_force: float = 0.0


UNLIMITED: Final = Level(None, None)


_OVERHEAD_KEY: Final = OVERHEAD.encode()
_CENSORED: Final = int(RowFlags.CENSORED)
_OBSERVED: Final = int(RowFlags.OBSERVED)


class UsageRow:
    """See the module.

    Attributes:
        key: what it is of.
        names: of listener, user and client id as they are written.
        tracker: the quota's counter where one is at hand; asked for limit and level.
        shared: whether it is that of all clients without one of their own.
        listed: whether it stands on its table's list.
        in_table: False once the table has given its place away; its holders may count on.
        topics: what is counted by topic; None: nothing is.
        alike: how the last Produce began that was to one partition, from its header on, and by what such are counted.
        answer: of the last request, kept by its handler for the next: for which version, and what it is.
        requests, offered, withheld, max_units, rejected, rejected_units, delayed, throttle_ms: since the last line;
            withheld is what of `offered` was not admitted.
    """

    __slots__ = (
        "_beside",
        "_bytes_in",
        "_bytes_out",
        "_connection",
        "_connections",
        "_first_ms",
        "_head",
        "_list",
        "_mute_from_ms",
        "_mute_until_ms",
        "_muted_ms",
        "_open",
        "_topics",
        "alike",
        "answer",
        "delayed",
        "in_table",
        "key",
        "listed",
        "max_units",
        "names",
        "offered",
        "rejected",
        "rejected_units",
        "requests",
        "shared",
        "throttle_ms",
        "topics",
        "tracker",
        "withheld",
    )

    def __init__(
        self,
        key: RowKey,
        names: tuple[str, str, str],
        listed: list[UsageRow],
        *,
        shared: bool = False,
        topics: Topics | None = None,
    ) -> None:
        """An empty row.

        Args:
            key: see above.
            names: of listener, user and client id as they are written.
            listed: where it puts itself.
            shared: see above.
            topics: see above.
        """
        # Compiled, attributes lie in memory in this order: first what a frame touches.
        self.listed = False
        self.requests = 0
        self.offered: Number = 0
        self.max_units: Number = 0
        self._connection = 0
        self._connections: set[int] = set()
        self._first_ms = 0
        self._list = listed
        self.alike: Alike | None = None
        self._topics: dict[bytes, Counts] = {}
        self.topics = topics
        self.answer: tuple[object, object] | None = None
        self.tracker: RateTracker | None = None
        self.shared = shared
        self.in_table = True
        self.key = key
        self.names = names
        self._head = (*names, key.api.value, key.node)
        self._bytes_in = key.api is UsageApi.PRODUCE
        self._bytes_out = key.api is UsageApi.FETCH
        self.withheld: Number = 0
        self._open = 0
        self.rejected = 0
        self.rejected_units: Number = 0
        self.delayed = 0
        self.throttle_ms = 0
        self._muted_ms = 0
        self._mute_from_ms = 0
        self._mute_until_ms = 0
        self._beside: dict[tuple[Limit, str], tuple[int, int]] | None = None

    def _reset(self) -> None:
        self._connection = 0
        self._connections.clear()
        self._open = 0
        self._first_ms = 0
        self.requests = self.rejected = self.delayed = self.throttle_ms = self._muted_ms = 0
        self.offered = 0
        self.withheld = 0
        self.max_units = 0
        self.rejected_units = 0
        self._beside = None

    def use(self, connection: int, *, now_ms: int) -> None:
        """A connection, by its serial, makes a request that is counted next, or when its answer comes."""
        if connection == self._connection:
            return
        if not self._connections:
            self._first_ms = now_ms
            if not self.listed:  # the answer may never come
                self._enlist()
        self._connection = connection
        self._connections.add(connection)

    def opened(self, connections: int) -> None:
        """So many connections of a user are open."""
        if connections > self._open:
            self._open = connections

    def count(self, units: Number) -> None:
        """A request of so many units, admitted whole."""
        if not self.listed:
            self._enlist()
        self.requests += 1
        self.offered += units
        if units > self.max_units:
            self.max_units = units

    def add(self, units: Number) -> None:
        """So many more units of a request that was counted."""
        if not self.listed:
            self._enlist()
        self.offered += units

    def ended(self, units: Number) -> None:
        """A request has come in parts, so many units together."""
        if units > self.max_units:
            if not self.listed:
                self._enlist()
            self.max_units = units

    def count_topic(self, key: bytes, size_bytes: int, records: int) -> None:
        """So much of what was counted is of this topic: by its name, or see `Topics.key_of_id`."""
        counts = self._topics.get(key)
        if counts is None:
            assert self.topics is not None
            counts = self.topics.new(self._topics, key)
        if not self.listed:
            self._enlist()
        counts.requests += 1
        counts.size_bytes += size_bytes
        counts.records += records

    def count_topics(self, found: list[tuple[bytes, int, int]], counted: int, ids: bool | None) -> None:
        """All topics of a message that was counted as so much: (called, bytes, records) of each.

        Args:
            found: see above; no more bytes together than were counted.
            counted: in bytes, what stands around records among them.
            ids: whether topics are called by their ids: False by a client, True by a broker; None: by name.
        """
        topics = self._topics
        shared = self.topics
        assert shared is not None
        for called, size_bytes, records in found:
            key = called if ids is None else shared.key_of_id(called, told_by_broker=ids)
            counts = topics.get(key)
            if counts is None:
                counts = shared.new(topics, key)
            counts.requests += 1
            counts.size_bytes += size_bytes
            counts.records += records
            counted -= size_bytes
        self.count_topic(_OVERHEAD_KEY, counted, 0)

    def remember_alike(self, begins: bytes, step: int, called: bytes, *, by_id: bool) -> None:
        """A message was counted that begins so; up to the next line others like it are counted by the same."""
        assert self.topics is not None
        key = self.topics.key_of_id(called, told_by_broker=False) if by_id else called
        # Not while its name is awaited, nor where it is counted with others beyond a cap.
        topic = None if key.startswith(b"\0") else self._topics.get(key)
        around = self._topics.get(_OVERHEAD_KEY)
        self.alike = None if topic is None or around is None else (begins, step, topic, around)

    def take_topics(self) -> list[TopicValues]:
        """The topics as they are written; what waits for a name has the row written again with the next line."""
        self.alike = None
        if self.topics is None or not self._topics:
            return []
        told, self._topics = self.topics.take(self._topics)
        if self._topics and not self.listed:
            self._enlist()
        return [(*self._head, *each) for each in told]

    def reject(self, units: Number, *, withheld: bool = False) -> None:
        """So many of the units that were counted are refused; `withheld`: they were withheld until now."""
        self.withhold(0 if withheld else units)
        self.rejected += 1
        self.rejected_units += units

    def withhold(self, units: Number) -> None:
        """So many of the units that were counted are not admitted yet; a negative number is admitted after all."""
        if not self.listed:
            self._enlist()
        self.withheld += units

    def delay(
        self, throttle_ms: int, *, beside: tuple[Limit, str] | None = None, again: bool = False
    ) -> None:
        """A request waits, or is answered with a throttle time.

        Args:
            throttle_ms: how long.
            beside: another limit than the quota of this row asked for it: which, and its name.
            again: it was delayed before, too.
        """
        if not self.listed:
            self._enlist()
        self.delayed += not again
        self.throttle_ms += throttle_ms
        if beside is not None:
            self._count_beside(beside, int(not again), throttle_ms)

    def _count_beside(self, beside: tuple[Limit, str], delayed: int, throttle_ms: int) -> None:
        found = self._beside
        if found is None:
            found = self._beside = {}
        if beside not in found and len(found) >= MOST_NAMED_BESIDE:
            beside = (beside[0], OTHER)
        before = found.get(beside, (0, 0))
        found[beside] = (before[0] + delayed, before[1] + throttle_ms)

    def mute(self, until_ms: int, *, now_ms: int) -> None:
        """A connection is not read until then; overlapping times of several connections count once."""
        if not self.listed:
            self._enlist()
        if now_ms >= self._mute_until_ms:
            self._muted_ms += self._mute_until_ms - self._mute_from_ms
            self._mute_from_ms, self._mute_until_ms = now_ms, until_ms
        elif until_ms > self._mute_until_ms:
            self._mute_until_ms = until_ms

    def _enlist(self) -> None:
        self.listed = True
        self._list.append(self)

    def take(self, level: Level, *, begin_ms: int, now_ms: int) -> RowValues:
        """The row as it is written, and start anew; a row that is still muted enlists itself for the next line.

        Args:
            level: where its counter stands.
            begin_ms: when the line's second began.
            now_ms: the present.
        """
        self.listed = False
        muted_ms = self._muted_ms
        if self._mute_until_ms:
            muted_ms += max(0, min(self._mute_until_ms, now_ms) - self._mute_from_ms)
            if self._mute_until_ms > now_ms:
                self._mute_from_ms = now_ms
                self._enlist()
            else:
                self._mute_from_ms = self._mute_until_ms = 0
        offered = self.offered
        beside: list[list[str | int]] | None = None
        if self._beside is not None:
            beside = [[limit.value, name, *counted] for (limit, name), counted in self._beside.items()]
        values = (
            *self._head,
            self.requests,
            offered if self._bytes_in else 0,
            offered if self._bytes_out else 0,
            offered,
            offered - self.withheld,
            self.max_units,
            self.rejected,
            self.rejected_units,
            self.delayed,
            self.throttle_ms,
            muted_ms,
            level.quota,
            level.end,
            (_CENSORED if muted_ms else 0) | (_OBSERVED if level.observe else 0),
            len(self._connections) or self._open,
            max(0, self._first_ms - begin_ms) if self._connections else 0,
            beside,
            level.in_force,
        )
        self._reset()
        return values

    def pour_into(self, other: UsageRow, *, now_ms: int) -> None:
        """Add everything to another row and start anew; a mute under way goes along."""
        if not other.listed:
            other._enlist()
        if self._mute_until_ms > now_ms:
            other.mute(self._mute_until_ms, now_ms=min(self._mute_from_ms, now_ms))
        if self._connections and (not other._connections or self._first_ms < other._first_ms):
            other._first_ms = self._first_ms
        other._connections |= self._connections
        other._open = max(other._open, self._open)
        other.requests += self.requests
        other.offered += self.offered
        other.withheld += self.withheld
        other.max_units = max(other.max_units, self.max_units)
        other.rejected += self.rejected
        other.rejected_units += self.rejected_units
        other.delayed += self.delayed
        other.throttle_ms += self.throttle_ms
        for beside, counted in (self._beside or {}).items():
            other._count_beside(beside, *counted)
        self.alike = None
        if self.topics is not None:
            self.topics.pour(self._topics, other._topics)
        over_ms = self._mute_until_ms - self._mute_from_ms if self._mute_until_ms <= now_ms else 0
        other._muted_ms = max(other._muted_ms, self._muted_ms + over_ms)
        self.listed = False
        self._mute_from_ms = self._mute_until_ms = 0
        self._reset()
