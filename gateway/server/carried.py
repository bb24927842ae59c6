"""The state that an upgrade hands over: counters, and what either process records from then on.

Both processes are on one machine and share its monotonic clock, so a counter goes over as it is, sample for sample:
nothing is forgiven, and nothing counts longer than it would have. While the earlier process has connections, each
sends the other what its own clients use; it is recorded there as usage of others. Pure: rows of JSON and `now_ms`.

The two processes may be different versions: rows of topics and groups go in messages of their own, which a version
without them passes over, and rows that are not understood here are passed over too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from gateway.fleet.counters import KIND, AllCounters, Counter
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
"""Messages of rows: of clients, and of topics and groups."""

USER_COUNTS: Final = "user_counts"
"""Messages of connections by user, which earlier versions pass over."""

_NOTHING: Final = 0.0, 0
_OF_TOPIC: Final = 4
"""Where a row of a topic or a group has its family, as text."""


def states(counters: AllCounters, *, now_ms: int) -> Iterator[Row]:
    """Where all counters stand that have a limit."""
    for quota, each in counters.items():
        for key, counter in list(each.own()):
            if counter.match.limit is not None:
                at_ms = max(now_ms, counter.last_ms)
                yield [*_name(quota, key), list(counter.state(now_ms=at_ms))]


def messages(what: str, rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    """These rows as messages: those of clients, and those of topics and groups under a name of their own."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(f"topic_{what}" if isinstance(row[_OF_TOPIC], str) else what, []).append(row)
    yield from parts.items()


def take_states(counters: AllCounters, rows: Iterable[Row], *, now_ms: int) -> None:
    """Have counters stand at least there."""
    for *name, (samples, *rest) in rows:
        counter = _counter(counters, name, now_ms)
        if counter is not None:
            counter.take_over(
                CounterState([tuple(sample) for sample in samples], *rest[: len(CounterState._fields) - 1]),
                now_ms=max(now_ms, counter.last_ms),
            )


def furthest(rows: Iterable[Row]) -> list[Row]:
    """Of the states of several workers, each of which has counted what the others sent: those furthest on."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        *name, state = row
        mine = found.setdefault(tuple(name), row)
        if _total(state) > _total(mine[-1]):
            found[tuple(name)] = row
    return list(found.values())


class OwnUse:
    """What clients of this process have used since it was taken last."""

    def __init__(self, counters: AllCounters) -> None:
        """From now on."""
        self._counters = counters
        # By counter: a hash of its names would cost more than all else.
        self._told: dict[Counter, tuple[float, int]] = {}
        for _ in self._changed():
            pass

    def take(self) -> list[Row]:
        """By counter: its name, the amount, and how long mutes last that connections left behind."""
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
        if len(self._told) > seen:  # clients may invent names all the time
            own = {counter for each in self._counters.values() for _, counter in each.own()}
            self._told = {counter: told for counter, told in self._told.items() if counter in own}


class Heard:
    """What clients of other gateways have used, as a fleet reports it, for the process that is no member of it."""

    def __init__(self) -> None:
        """Nothing."""
        self._amounts: dict[tuple[QuotaKey, CounterKey], float] = {}

    def add(self, quota: QuotaKey, used: Iterable[Used]) -> None:
        """One message's."""
        amounts = self._amounts
        for key, amount in used:
            amounts[quota, key] = amounts.get((quota, key), 0.0) + amount

    def take(self) -> list[Row]:
        """All since it was taken last, as `OwnUse` has it."""
        amounts, self._amounts = self._amounts, {}
        return [[*_name(quota, key), amount, 0] for (quota, key), amount in amounts.items()]


def take_use(counters: AllCounters, rows: Iterable[Row], *, for_fleet: bool = False, now_ms: int) -> None:
    """Record what the clients of the other process have used.

    Args:
        counters: of this process.
        rows: see `OwnUse.take`.
        for_fleet: this process is the one that reports it to the fleet.
        now_ms: the present.
    """
    for *name, amount, left_until_ms in rows:
        counter = _counter(counters, name, now_ms)
        if counter is not None:
            at_ms = max(now_ms, counter.last_ms)
            counter.record_others(amount, now_ms=at_ms)
            if for_fleet:
                counter.settle(-amount)  # the others do not know it yet
            counter.take_over(CounterState(left_until_ms=left_until_ms), now_ms=at_ms)


def connection_rows(rates: ConnectionRates) -> Iterator[Row]:
    """Where connection rates stand."""
    yield ["gateway", "", list(rates.gateway)]
    for kind, of_all in (("listener", rates.by_listener), ("ip", rates.by_ip)):
        for name, samples in of_all.items():
            yield [kind, name, list(samples)]


def connection_rates(rows: Iterable[Row]) -> ConnectionRates:
    """The same, read."""
    found: dict[str, dict[str, Any]] = {"gateway": {"": ()}, "listener": {}, "ip": {}}
    for kind, name, samples in rows:
        # As `take_states`: JSON has no tuples, and compiled code takes no list for one.
        found[kind][name] = [tuple(sample) for sample in samples]
    return ConnectionRates(found["gateway"][""], found["listener"], found["ip"])


class CarriedCounts:
    """The connections of the earlier process, as they end: by listener and address, or by user."""

    def __init__(self, kinds: int) -> None:
        """None is known.

        Args:
            kinds: by how many names they are counted.
        """
        self._counts: Sequence[Mapping[str, int]] = [{} for _ in range(kinds)]

    def changed(self, now: Sequence[Mapping[str, int]]) -> Row | None:
        """What to send of these counts; None: nothing has changed."""
        before, self._counts = self._counts, now
        rows = [
            [index, name, counts.get(name, 0)]
            for index, (counts, then) in enumerate(zip(now, before, strict=True))
            for name in {*counts, *then}
            if counts.get(name, 0) != then.get(name, 0)
        ]
        return rows or None

    def take(self, rows: Row) -> list[dict[str, int]]:
        """The counts after such a change."""
        counts = [dict(each) for each in self._counts]
        for index, name, count in rows:
            counts[index][name] = count
            if not count:
                del counts[index][name]
        self._counts = counts
        return counts


def _name(quota: QuotaKey, key: CounterKey) -> list[Any]:
    assert not isinstance(key, ConnectionKey)  # these go with `connection_rows`
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
    except ValueError:  # of another version
        return None
    return None if of_quota is None else of_quota.counter_of(key, KIND, now_ms=now_ms)


def _total(state: list[Any]) -> tuple[float, float]:
    samples, fill, *_ = state
    return sum(value for _, _, value in samples), fill
