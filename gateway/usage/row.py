"""The row of one client and API since the last line. Pure and cheap: the data path counts here.

With its first count a row adds itself to its table's list, so that taking the rows of a second only touches those. A
row without counts has only its names.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol, TypeAlias

from quotas.rate_quotas import RateTracker
from quotas.usage_record import MOST_NAMED_BESIDE, OTHER, OVERHEAD, Limit, RowFlags, UsageApi

Number: TypeAlias = int | float
"""Bytes, partitions or ms. An integer stays an integer in the compiled core, and is written as one."""

RowValues: TypeAlias = tuple[
    str, str, str, str, int, int, Number, Number, Number, Number, Number, int, Number, int, int, int,
    float | None, float | None, int, int, int, list[list[str | int]] | None, float,
]  # fmt: skip
"""See `quotas.usage_record.Row`."""

TopicTold: TypeAlias = tuple[str, int, int, int]
"""The written name of a topic, requests, bytes, records."""

TopicValues: TypeAlias = tuple[str, str, str, str, int, str, int, int, int]
"""See `quotas.usage_record.TopicRow`."""


class Counts:
    """The counts of one topic since the last line."""

    __slots__ = ("lines", "records", "requests", "size_bytes")

    def __init__(self) -> None:
        self.requests = 0
        self.size_bytes = 0
        self.records = 0
        self.lines = 0  # lines that it was left out of, as its name was unknown

    def add(self, other: Counts) -> None:
        """Add other counts."""
        self.requests += other.requests
        self.size_bytes += other.size_bytes
        self.records += other.records


Alike: TypeAlias = tuple[bytes, int, Counts, Counts]
"""The beginning of a message, the distance from there to its records, and the counts of its topic and of overhead."""


class Topics(Protocol):
    """What all rows of a table share about topics: see `gateway.usage.topics`."""

    def key_of_id(self, topic_id: bytes, *, told_by_broker: bool) -> bytes:
        """The key for counting a topic that a message names by id; other topics are counted by name."""

    def new(self, counts: dict[bytes, Counts], key: bytes) -> Counts:
        """New counts for a topic of a row; beyond a cap, the counts of all other topics."""

    def take(self, counts: dict[bytes, Counts]) -> tuple[list[TopicTold], dict[bytes, Counts]]:
        """The topics of a row to write, and those that wait for the next line."""

    def pour(self, counts: dict[bytes, Counts], into: dict[bytes, Counts]) -> None:
        """Add the topics of one row to those of another."""


class RowKey(NamedTuple):
    """The identity of a row; `node` is the broker id, -1 if it is not known or does not matter."""

    listener: str
    user: str
    client_id: str
    api: UsageApi
    node: int


class Level(NamedTuple):
    """The level of a counter.

    Attributes:
        quota: the configured limit; None: unlimited.
        end: tokens, or the rate.
        observe: the quota is only observed.
        in_force: the limit by a share of the capacity, if that is less; 0: the quota is in force.
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
        key: its identity.
        names: of listener, user and client id as they are written.
        tracker: the quota's counter, if it is known; it gives limit and level.
        shared: whether this is the row of all clients without a row of their own.
        listed: whether it is on its table's list.
        in_table: False once the table has given its place to another row; holders may continue to count.
        topics: has bytes counted by topic; None: they are not.
        alike: how the last Produce to a single partition began, from its header on, and the counts for similar ones.
        answer: kept by the handler of the last request for the next one: the version, and the answer.
        requests, offered, withheld, max_units, rejected, rejected_units, delayed, throttle_ms: since the last line;
            `withheld` is the part of `offered` that was not admitted.
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
            listed: the table's list.
            shared: see above.
            topics: see above.
        """
        # In the compiled core, attributes lie in memory in this order: those that every frame uses come first.
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
        """Note a connection, by its serial, whose request is counted next, or with its answer."""
        if connection == self._connection:
            return
        if not self._connections:
            self._first_ms = now_ms
            if not self.listed:  # the answer may never come
                self._enlist()
        self._connection = connection
        self._connections.add(connection)

    def opened(self, connections: int) -> None:
        """Note the number of open connections of a user."""
        if connections > self._open:
            self._open = connections

    def count(self, units: Number) -> None:
        """Count a request of so many units, all of them admitted."""
        if not self.listed:
            self._enlist()
        self.requests += 1
        self.offered += units
        if units > self.max_units:
            self.max_units = units

    def add(self, units: Number) -> None:
        """Add units to a request that was counted already."""
        if not self.listed:
            self._enlist()
        self.offered += units

    def ended(self, units: Number) -> None:
        """Note the total units of a request that arrived in parts."""
        if units > self.max_units:
            if not self.listed:
                self._enlist()
            self.max_units = units

    def count_topic(self, key: bytes, size_bytes: int, records: int) -> None:
        """Attribute a part of the counted bytes to a topic, given by its name, or see `Topics.key_of_id`."""
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
        """Attribute the counted bytes of a message to its topics.

        Args:
            found: (name or id, bytes, records) of each topic; together no more bytes than were counted.
            counted: the counted bytes, including the overhead around records.
            ids: whether topics are named by their ids: False by a client, True by a broker; None: by name.
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
        """Remember the beginning of a counted message: similar ones use the same counts until the next line."""
        assert self.topics is not None
        key = self.topics.key_of_id(called, told_by_broker=False) if by_id else called
        # Not while the topic's name is unknown, nor if it is counted with others beyond a cap.
        topic = None if key.startswith(b"\0") else self._topics.get(key)
        around = self._topics.get(_OVERHEAD_KEY)
        self.alike = None if topic is None or around is None else (begins, step, topic, around)

    def take_topics(self) -> list[TopicValues]:
        """The topics in written form; if a topic waits for its name, the row is written again with the next line."""
        self.alike = None
        if self.topics is None or not self._topics:
            return []
        told, self._topics = self.topics.take(self._topics)
        if self._topics and not self.listed:
            self._enlist()
        return [(*self._head, *each) for each in told]

    def reject(self, units: Number, *, withheld: bool = False) -> None:
        """Count so many of the counted units as refused; `withheld`: they were withheld already."""
        self.withhold(0 if withheld else units)
        self.rejected += 1
        self.rejected_units += units

    def withhold(self, units: Number) -> None:
        """Count so many of the counted units as not admitted yet; a negative number is admitted after all."""
        if not self.listed:
            self._enlist()
        self.withheld += units

    def delay(
        self, throttle_ms: int, *, beside: tuple[Limit, str] | None = None, again: bool = False
    ) -> None:
        """Count a request that waits, or gets a throttle time.

        Args:
            throttle_ms: how long.
            beside: the limit that causes it, and its name, if that is not the quota of this row.
            again: the request was delayed before, too.
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
        """Note that a connection is muted until then; overlapping times of several connections count once."""
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
        """Return the values of the row and reset it; a row that is still muted enlists itself for the next line.

        Args:
            level: of its counter.
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
        """Add all counts to another row and reset this one; a mute under way moves too."""
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
