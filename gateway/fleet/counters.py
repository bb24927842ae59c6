"""The counters of this process as the exchange sees them: all quotas of clients alike. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from quotas.entities import QuotaKey
from quotas.mutations import MutationQuotas
from quotas.rate_quotas import CounterState, RateQuotas, ScopedKey
from quotas.resolution import Match
from quotas.trackers import Kind

KIND: Final[Kind] = ("", "fleet")
"""Of counters that were made for other members' clients; they give way first where there are too many."""


class Counter(Protocol):
    """`RateTracker` or `MutationTracker`; see there."""

    match: Match

    @property
    def last_ms(self) -> int: ...

    def untold(self, *, now_ms: int) -> float: ...

    def near(self, untold: float, members: int, *, now_ms: int) -> bool: ...

    def settle(self, told: float) -> None: ...

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

    def own(self) -> Iterable[tuple[ScopedKey, Counter]]:
        """Those of one client or group of clients each."""

    def stirred(self) -> Iterable[tuple[ScopedKey, Counter]]:
        """Those of which others may have to be told."""

    def counter_of(self, key: ScopedKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """The one for what others have recorded; None: nothing limits it here, or there is no place for it."""


AllCounters: TypeAlias = Mapping[QuotaKey, Counters]


class MutationCounters:
    """`MutationQuotas` as `Counters`: mutations have no scope."""

    def __init__(self, mutations: MutationQuotas) -> None:
        self._mutations = mutations

    def own(self) -> Iterator[tuple[ScopedKey, Counter]]:
        """See `Counters`."""
        for key, tracker in self._mutations.own():
            yield ScopedKey(None, key), tracker

    def stirred(self) -> Iterator[tuple[ScopedKey, Counter]]:
        """See `Counters`."""
        for key, tracker in self._mutations.stirred():
            yield ScopedKey(None, key), tracker

    def counter_of(self, key: ScopedKey, kind: Kind, *, now_ms: int) -> Counter | None:
        """See `Counters`."""
        return self._mutations.counter_of(key.tracker_key, kind, now_ms=now_ms)


def counters_of(
    produce: RateQuotas, fetch: RateQuotas, request_time: RateQuotas, mutations: MutationQuotas | None
) -> AllCounters:
    """All quotas of clients, by key; without `mutations` where these are charged elsewhere."""
    found: dict[QuotaKey, Counters] = {
        QuotaKey.PRODUCER_BYTE_RATE: produce,
        QuotaKey.CONSUMER_BYTE_RATE: fetch,
        QuotaKey.REQUEST_PERCENTAGE: request_time,
    }
    if mutations is not None:
        found[QuotaKey.CONTROLLER_MUTATION_RATE] = MutationCounters(mutations)
    return found
