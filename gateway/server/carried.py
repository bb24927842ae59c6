"""The state that an upgrade hands over: counters, and what either process records afterwards.

Both processes are on one machine and share its monotonic clock. So counters are copied sample by sample: nothing is
forgiven, and nothing counts longer than it otherwise would. While the old process has connections, each process sends
the usage of its own clients to the other, which records it as usage of others. Pure: rows of JSON and `now_ms`.

The two processes may be different versions. Rows of topics and groups have messages of their own, which versions
without them ignore. Rows that this version does not understand are ignored too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gateway.fleet.counters import AllCounters, Counter, kind_of
from gateway.fleet.shares import Used
from quotas.connections import ConnectionRates
from quotas.entities import Family, QuotaKey
from quotas.group_quotas import CounterKey, GroupKey
from quotas.rate_quotas import CounterState, ScopedKey
from quotas.resolution import TrackerKey
from quotas.shared_rate import ConnectionKey
from quotas.topic_quotas import TopicKey

Row: TypeAlias = list[Any]

STATES: Final = ("states", "topic_states")
USE: Final = ("use", "topic_use")
"""Kinds of messages with rows: of clients, and of topics and groups."""

USER_COUNTS: Final = "user_counts"
"""The message with connections by user; earlier versions ignore it."""

_NOTHING: Final = 0.0, 0
_OF_TOPIC: Final = 4
"""The index of the family, a text, in a row of a topic or a group."""


def states(counters: AllCounters, *, now_ms: int) -> Iterator[Row]:
    """The state of all counters that have a limit."""
    for quota, each in counters.items():
        for key, counter in list(each.own()):
            if counter.match.limit is not None:
                at_ms = max(now_ms, counter.last_ms)
                yield [*_name(quota, key), list(counter.state(now_ms=at_ms))]


def messages(what: str, rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows as messages: those of clients, and those of topics and groups under a kind of their own."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(f"topic_{what}" if isinstance(row[_OF_TOPIC], str) else what, []).append(row)
    yield from parts.items()


def take_states(counters: AllCounters, rows: Iterable[Row], *, now_ms: int) -> None:
    """Raise counters to at least these states."""
    for *name, (samples, *rest) in rows:
        counter = _counter(counters, name, now_ms)
        if counter is not None:
            counter.take_over(
                CounterState([tuple(sample) for sample in samples], *rest[: len(CounterState._fields) - 1]),
                now_ms=max(now_ms, counter.last_ms),
            )


def furthest(rows: Iterable[Row]) -> list[Row]:
    """The highest states of several workers; each has counted its own usage and what the others sent."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        *name, state = row
        mine = found.setdefault(tuple(name), row)
        if _total(state) > _total(mine[-1]):
            found[tuple(name)] = row
    return list(found.values())


class OwnUse:
    """The usage of this process's clients since the last `take`."""

    def __init__(self, counters: AllCounters) -> None:
        """Counts from now on."""
        self._counters = counters
        # By counter object: hashing its names would cost more than all else.
        self._told: dict[Counter, tuple[float, int]] = {}
        for _ in self._changed():
            pass

    def take(self) -> list[Row]:
        """Per counter: its name, the amount, and until when mutes last whose connections have ended."""
        return list(self._changed())

    def _changed(self) -> Iterator[Row]:
        seen = 0
        for quota, each in self._counters.items():
            for key, counter in list(each.own()):
                seen += 1
                now = counter.recorded_here, counter.left_until_ms
                before = self._told.get(counter, _NOTHING)
                if now != before:
                    self._told[counter] = now
                    if counter.match.limit is not None:
                        yield [*_name(quota, key), now[0] - before[0], now[1]]
        if len(self._told) > seen:  # counters were forgotten: clients may invent names all the time
            own = {counter for each in self._counters.values() for _, counter in each.own()}
            self._told = {counter: told for counter, told in self._told.items() if counter in own}


class Heard:
    """Usage reported by other gateways of a fleet, for the process of an upgrade that is not a member."""

    def __init__(self) -> None:
        """Empty."""
        self._amounts: dict[tuple[QuotaKey, CounterKey], float] = {}

    def add(self, quota: QuotaKey, used: Iterable[Used]) -> None:
        """Add the usage of one message."""
        amounts = self._amounts
        for key, amount in used:
            amounts[quota, key] = amounts.get((quota, key), 0.0) + amount

    def take(self) -> list[Row]:
        """All usage since the last `take`, in the form of `OwnUse.take`."""
        amounts, self._amounts = self._amounts, {}
        return [[*_name(quota, key), amount, 0] for (quota, key), amount in amounts.items()]


def take_use(counters: AllCounters, rows: Iterable[Row], *, for_fleet: bool = False, now_ms: int) -> None:
    """Record the usage of the other process's clients.

    Args:
        counters: of this process.
        rows: see `OwnUse.take`.
            for_fleet: this process reports that usage to the fleet.
        now_ms: the present.
    """
    for *name, amount, left_until_ms in rows:
        counter = _counter(counters, name, now_ms)
        if counter is not None:
            at_ms = max(now_ms, counter.last_ms)
            counter.record_others(amount, now_ms=at_ms)
            if for_fleet:
                counter.settle(-amount)  # not reported to the other members yet
            counter.take_over(CounterState(left_until_ms=left_until_ms), now_ms=at_ms)


def connection_rows(rates: ConnectionRates) -> Iterator[Row]:
    """The state of connection rates, as rows."""
    yield ["gateway", "", list(rates.gateway)]
    for kind, of_all in (("listener", rates.by_listener), ("ip", rates.by_ip)):
        for name, samples in of_all.items():
            yield [kind, name, list(samples)]


def connection_rates(rows: Iterable[Row]) -> ConnectionRates:
    """Connection rates from their rows."""
    found: dict[str, dict[str, Any]] = {"gateway": {"": ()}, "listener": {}, "ip": {}}
    for kind, name, samples in rows:
        # As in `take_states`: JSON has no tuples, and compiled code accepts no lists in their place.
        found[kind][name] = [tuple(sample) for sample in samples]
    return ConnectionRates(found["gateway"][""], found["listener"], found["ip"])


class CarriedCounts:
    """Counts of the old process's connections as they end: by listener and address, or by user."""

    def __init__(self, kinds: int) -> None:
        """No count is known.

        Args:
            kinds: how many mappings of names to counts there are.
        """
        self._counts: Sequence[Mapping[str, int]] = [{} for _ in range(kinds)]

    def changed(self, now: Sequence[Mapping[str, int]]) -> Row | None:
        """The rows to send for these counts; None: nothing has changed."""
        before, self._counts = self._counts, now
        rows = [
            [index, name, counts.get(name, 0)]
            for index, (counts, then) in enumerate(zip(now, before, strict=True))
            for name in {*counts, *then}
            if counts.get(name, 0) != then.get(name, 0)
        ]
        return rows or None

    def take(self, rows: Row) -> list[dict[str, int]]:
        """The counts after a change of these rows."""
        counts = [dict(each) for each in self._counts]
        for index, name, count in rows:
            counts[index][name] = count
            if not count:
                del counts[index][name]
        self._counts = counts
        return counts


def _name(quota: QuotaKey, key: CounterKey) -> list[Any]:
    assert not isinstance(key, ConnectionKey)  # `connection_rows` has connection rates
    topic = [key.family.value, key.topic] if isinstance(key, TopicKey) else []
    if isinstance(key, GroupKey):
        topic = [Family.GROUP.value, key.group]
    return [quota.value, key.scope, *key.tracker_key, *topic]


def _counter(counters: AllCounters, name: list[Any], now_ms: int) -> Counter | None:
    try:
        quota, scope, user, client_id, *topic = name
        of_quota = counters.get(QuotaKey(quota))
        key: CounterKey = ScopedKey(scope, TrackerKey(user, client_id))
        if topic:
            family, called = topic
            of = Family(family)
            is_group = of is Family.GROUP
            key = GroupKey(scope, called) if is_group else TopicKey(scope, of, called, user, client_id)
    except ValueError:  # a row of another version
        return None
    return None if of_quota is None else of_quota.counter_of(key, kind_of(key), now_ms=now_ms)


def _total(state: list[Any]) -> tuple[float, float]:
    samples, fill, *_ = state
    return sum(value for _, _, value in samples), fill
