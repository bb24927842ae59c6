"""The counters of this process as the exchange uses them: all quotas of clients in one form. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from quotas.connections import ConnectionQuotas
from quotas.entities import QuotaKey
from quotas.group_quotas import CounterKey, GroupKey, GroupQuotas
from quotas.mutations import MutationQuotas
from quotas.rate_quotas import CounterState, RateQuotas, ScopedKey
from quotas.resolution import Match
from quotas.shared_rate import ConnectionKey
from quotas.topic_quotas import TopicKey, TopicQuotas
from quotas.trackers import FLEET_KIND, Kind

_ANONYMOUS: Final = "ANONYMOUS"


def kind_of(key: CounterKey) -> Kind:
    """The kind of a counter that is made for clients of other members: the user, if its key names one.

    So the clients of one user there can't fill the table for all others. The kind of clients without a user depends
    on their addresses, which are not known here.
    """
    user = key.tracker_key.user if isinstance(key, ScopedKey | TopicKey) else ""
    return user if user and user != _ANONYMOUS else FLEET_KIND


class Counter(Protocol):
    """`RateTracker` or `MutationTracker`; see there."""

    match: Match

    @property
    def last_ms(self) -> int: ...

    def untold(self, *, now_ms: int) -> float: ...

    def near(self, untold: float, members: int, *, now_ms: int) -> bool: ...

    def settle(self, told: float) -> None: ...

    def delivered(self, told: float, *, now_ms: int) -> None: ...

    def record_others(self, value: float, *, now_ms: int) -> None: ...

    def level(self, *, now_ms: int) -> tuple[float, float]: ...

    @property
    def left_until_ms(self) -> int: ...

    @property
    def recorded_here(self) -> float: ...

    def state(self, *, now_ms: int) -> CounterState: ...

    def take_over(self, state: CounterState, *, now_ms: int) -> None: ...

    def raise_to(self, total: float, fill: float, *, now_ms: int) -> None: ...


class Counters(Protocol):
    """The counters of one quota."""

    def own(self) -> Iterable[tuple[CounterKey, Counter]]:
        """All counters of a single client, topic or group."""

    def stirred(self) -> Iterable[tuple[CounterKey, Counter]]:
        """The counters about which others may need a message."""

    def on_urgent(self, wake: Callable[[], None]) -> None:
        """Set the function to call when others need a message about a counter before the interval is over."""

    def urgent(self) -> list[tuple[CounterKey, Counter]]:
        """The counters that need such a message; each is returned once."""

    def hold_back(self, members: int, exchange_ms: int, again_ms: int) -> None:
        """Make requests wait while the others do not know earlier usage; see `Urgent`. Below 2 members none waits."""

    def counter_of(self, key: CounterKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """The counter for usage of others; None: it has no limit here, or there is no place for it."""


AllCounters: TypeAlias = Mapping[QuotaKey, Counters]


class RateCounters:
    """`RateQuotas` as `Counters`, together with those of topics and groups, which count in the same way."""

    def __init__(
        self,
        clients: RateQuotas,
        topics: TopicQuotas | None = None,
        groups: GroupQuotas | None = None,
        *,
        holds_back: bool = False,
    ) -> None:
        """Watch these; `holds_back`: requests may wait until the others know earlier usage."""
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._holds_back = holds_back
        self._urgent = [each.urgent for each in (clients, topics, groups) if each is not None]

    def own(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        yield from self._clients.own()
        if self._topics is not None:
            yield from self._topics.own()
        if self._groups is not None:
            yield from self._groups.own()

    def stirred(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        yield from self._clients.stirred()
        if self._topics is not None:
            yield from self._topics.stirred()
        if self._groups is not None:
            yield from self._groups.stirred()

    def on_urgent(self, wake: Callable[[], None]) -> None:
        """See `Counters`."""
        for each in self._urgent:
            each.wake = wake

    def urgent(self) -> list[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        found: list[tuple[CounterKey, Counter]] = [item for each in self._urgent for item in each.found]
        for each in self._urgent:
            each.found.clear()
        return found

    def hold_back(self, members: int, exchange_ms: int, again_ms: int) -> None:
        """See `Counters`. API rates do not wait: clients are sent their wait, which would be too long."""
        if self._holds_back:
            for each in self._urgent:
                each.members, each.exchange_ms, each.again_ms = members, exchange_ms, again_ms

    def counter_of(self, key: CounterKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """See `Counters`."""
        if isinstance(key, ScopedKey):
            return self._clients.counter_of(key, kind, now_ms=now_ms)
        if isinstance(key, GroupKey):
            return None if self._groups is None else self._groups.counter_of(key, now_ms=now_ms)
        if self._topics is None or not isinstance(key, TopicKey):
            return None
        return self._topics.counter_of(key, kind, now_ms=now_ms)


class MutationCounters:
    """`MutationQuotas` as `Counters`, together with those of groups; mutations have no scope."""

    def __init__(self, mutations: MutationQuotas) -> None:
        self._mutations = mutations

    def own(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        for key, tracker in self._mutations.own():
            yield ScopedKey(None, key), tracker
        yield from self._mutations.groups.own()

    def stirred(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        for key, tracker in self._mutations.stirred():
            yield ScopedKey(None, key), tracker
        for group, tracker in self._mutations.groups.own():
            if tracker.stirred:
                yield group, tracker

    def on_urgent(self, wake: Callable[[], None]) -> None:
        """Nothing is urgent: mutations are rare, and few happen in an interval."""

    def urgent(self) -> list[tuple[CounterKey, Counter]]:
        """None: see `on_urgent`."""
        return []

    def hold_back(self, members: int, exchange_ms: int, again_ms: int) -> None:
        """Nothing waits: the bucket of mutations takes late usage as debt."""

    def counter_of(self, key: CounterKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """See `Counters`."""
        if isinstance(key, GroupKey):
            return self._mutations.groups.counter_of(key, now_ms=now_ms)
        if not isinstance(key, ScopedKey):
            return None
        return self._mutations.counter_of(key.tracker_key, kind, now_ms=now_ms)


class ConnectionCounters:
    """Rates of connections: those of users, and those of addresses, listeners and gateways."""

    def __init__(self, users: RateQuotas, connections: ConnectionQuotas) -> None:
        self._users = RateCounters(users)
        self._connections = connections

    def own(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        yield from self._users.own()
        yield from self._connections.all_rates()

    def stirred(self) -> Iterator[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        yield from self._users.stirred()
        for key, rate in self._connections.all_rates():
            if rate.stirred:
                yield key, rate

    def on_urgent(self, wake: Callable[[], None]) -> None:
        """See `Counters`. The rates of addresses, listeners and gateways change little in an interval."""
        self._users.on_urgent(wake)

    def urgent(self) -> list[tuple[CounterKey, Counter]]:
        """See `Counters`."""
        return self._users.urgent()

    def hold_back(self, members: int, exchange_ms: int, again_ms: int) -> None:
        """Nothing: connections do not wait for messages."""

    def counter_of(self, key: CounterKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """See `Counters`."""
        if not isinstance(key, ConnectionKey):
            return self._users.counter_of(key, kind, now_ms=now_ms)
        rate = self._connections.find_rate(key, now_ms=now_ms)
        return None if rate is None or rate.match.limit is None else rate


def counters_of(
    produce: RateQuotas,
    fetch: RateQuotas,
    request_time: RateQuotas,
    mutations: MutationQuotas | None,
    topics: tuple[TopicQuotas, TopicQuotas] | None = None,
    groups: tuple[GroupQuotas, GroupQuotas, GroupQuotas] | None = None,
    further: Mapping[QuotaKey, RateQuotas] | None = None,
) -> AllCounters:
    """All quotas of clients, topics and groups, by key.

    Args:
        produce, fetch, request_time: of clients.
        mutations: None: another process has their counters.
        topics: the quotas for producing to topics and for fetching from them; None: not shared.
        groups: the quotas for produced bytes, fetched bytes and request time of groups; None: not shared.
        further: rates that Kafka does not have.
    """
    produced, fetched = topics or (None, None)
    of_produce, of_fetch, of_time = groups or (None, None, None)
    found: dict[QuotaKey, Counters] = {
        QuotaKey.PRODUCER_BYTE_RATE: RateCounters(produce, produced, of_produce, holds_back=True),
        QuotaKey.CONSUMER_BYTE_RATE: RateCounters(fetch, fetched, of_fetch, holds_back=True),
        QuotaKey.REQUEST_PERCENTAGE: RateCounters(request_time, groups=of_time),
    }
    found |= {key: RateCounters(quotas) for key, quotas in (further or {}).items()}
    if mutations is not None:
        found[QuotaKey.CONTROLLER_MUTATION_RATE] = MutationCounters(mutations)
    return found
