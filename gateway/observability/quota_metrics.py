"""Metrics per user and client, as the KIPs require: use, limit, throttle time, `would_throttle`.

Clients choose their names, and there may be any number of them, so there are three bounds. `quotas` bounds the number
of counters. Only the busiest of these have series of their own; all others share the row ``rule="other"``. Long names
are cut. Totals add up at every scrape, and no counter of Prometheus shrinks. A client that leaves ``other`` begins at
zero, and its earlier totals stay in ``other``. A client that returns to ``other`` adds its totals there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heappush, heapreplace
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.runtime.clock import NowMs
from protocol.steps import finish
from quotas.entities import QuotaKey
from quotas.group_quotas import GroupCounters, GroupKey, GroupQuotas
from quotas.limits import Enforcement, Limits
from quotas.mutations import MutationQuotas, MutationTracker, TrackerSnapshot
from quotas.rate_quotas import RateQuotas, RateSnapshot, RateTracker, RequestTimeQuotas, ScopedKey
from quotas.resolution import Rule, TrackerKey
from quotas.topic_quotas import TopicQuotas

OTHER: Final = "other"
MAX_ENTITY_SERIES: Final = 250
MAX_LABEL_CHARS: Final = 128
_DIGEST_CHARS: Final = 16

# Shown clients keep their series while they are among the busiest `_STAY` x places, so that series change less often.
_STAY: Final = 2

Totals: TypeAlias = tuple[int, ...]
K = TypeVar("K", bound=Hashable)


class _Row(Protocol):
    @property
    def user(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def rule(self) -> Rule: ...
    @property
    def other(self) -> bool: ...


R = TypeVar("R", bound=_Row)
R_co = TypeVar("R_co", bound=_Row, covariant=True)


class _Quotas(Protocol[K, R_co]):
    """The counters of one quota."""

    def expire(self, *, now_ms: int) -> None: ...
    @property
    def counters(self) -> int: ...
    def loads(self, *, now_ms: int) -> Iterator[tuple[K, float]]: ...
    def rows(self, *, only: Container[K] | None = None, now_ms: int) -> Iterator[R_co | None]: ...


class Shown(NamedTuple, Generic[R]):
    """One row of series: its labels, its snapshot (None: there is none), the values of its counters."""

    labels: list[str]
    row: R | None
    totals: Totals


class ShownRows(Generic[K, R]):
    """Chooses the clients of one quota that have series of their own."""

    def __init__(
        self,
        *,
        max_rows: int,
        key: Callable[[R], K],
        totals: Callable[[R], Totals],
        broker: Callable[[R], str] | None = None,
    ) -> None:
        """Starts without rows.

        Args:
            max_rows: the most clients with series of their own.
            key: returns the key of a row's counter.
            totals: returns a row's values that never shrink.
            broker: returns a row's broker, if the series have that label.
        """
        self._max_rows = max_rows
        self._key = key
        self._totals = totals
        self._broker = broker
        self._shown: set[K] = set()
        self._crowded = False
        # Totals that `other` has shown of clients that have left it.
        self._left_behind: dict[K, Totals] = {}

    @property
    def label_names(self) -> list[str]:
        """The labels of all series of this quota."""
        return ["user", "client_id", "rule", *(["broker"] if self._broker else [])]

    def look(self, quotas: _Quotas[K, R], *, now_ms: int) -> Generator[None, None, list[Shown[R]]]:
        """The rows to show now, after counters of long silent clients were forgotten.

        It yields after each counter, so that other work may be done in between, including another `look`.
        """
        quotas.expire(now_ms=now_ms)
        wanted = None
        # Loads are only computed when not all can be shown.
        if quotas.counters > self._max_rows:
            wanted = yield from self._busiest(quotas.loads(now_ms=now_ms))
        found = []
        for row in quotas.rows(only=wanted, now_ms=now_ms):
            if row is not None:
                found.append(row)
            yield
        return self._show(found, crowded=wanted is not None)

    def _show(self, found: list[R], *, crowded: bool) -> list[Shown[R]]:
        before = self._shown
        self._shown = set()
        left_behind = self._left_behind
        self._left_behind = {}
        shown = []
        others: R | None = None
        for row in found:
            if row.other:
                others = row
                continue
            key, totals = self._key(row), self._totals(row)
            self._shown.add(key)
            left = left_behind.get(key)
            if self._crowded and key not in before:
                left = totals
            # If totals have shrunk, the counter was forgotten and created again, so nothing of it is in `other`.
            if left is not None and all(now >= then for now, then in zip(totals, left)):
                self._left_behind[key] = left
                totals = tuple(now - then for now, then in zip(totals, left))
            shown.append(Shown(self._labels(row), row, totals))
        self._crowded = crowded
        parts = list(self._left_behind.values())
        if others is not None:
            parts.append(self._totals(others))
        if parts:
            shown.append(Shown(self._labels(None), others, tuple(map(sum, zip(*parts)))))
        return shown

    def _busiest(self, loads: Iterator[tuple[K, float]]) -> Generator[None, None, set[K]]:
        most = self._max_rows * _STAY
        ranked: list[tuple[float, int, K]] = []
        for at, (key, load) in enumerate(loads):
            # Of equal loads the first counter wins, because keys may not be comparable.
            if len(ranked) < most:
                heappush(ranked, (load, -at, key))
            elif most and load > ranked[0][0]:
                heapreplace(ranked, (load, -at, key))
            yield
        by_load = [key for _, _, key in sorted(ranked, reverse=True)]
        stay = [key for key in by_load if key in self._shown]
        return set(list(dict.fromkeys([*stay, *by_load]))[: self._max_rows])

    def _labels(self, row: R | None) -> list[str]:
        if row is None:
            return ["", "", OTHER, *([""] if self._broker else [])]
        labels = [label_value(row.user), label_value(row.client_id), row.rule.value]
        return [*labels, self._broker(row)] if self._broker else labels


def _throttle_families(prefix: str, labels: list[str]) -> tuple[GaugeMetricFamily, CounterMetricFamily]:
    """The families of throttle times and counts, which every quota has."""
    return (
        GaugeMetricFamily(
            f"{prefix}_throttle_time_seconds", "Average throttle time (Kafka's throttle-time).", labels=labels
        ),
        CounterMetricFamily(
            f"{prefix}_throttled_requests", "Requests throttled by this quota.", labels=labels
        ),
    )


def label_value(name: str) -> str:
    """A client's name as a label. A long name is cut and gets a digest, so that two long names stay distinct."""
    if len(name) <= MAX_LABEL_CHARS:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: MAX_LABEL_CHARS - _DIGEST_CHARS - 1]}~{digest}"


class RateSeries:
    """The series of one byte rate, or of the request percentage.

    Attributes:
        name: the name of the quota's family.
        quota: see `__init__`.
    """

    def __init__(
        self,
        prefix: str,
        rate_name: str,
        rate_text: str,
        quotas: RateQuotas,
        *,
        quota: QuotaKey | None = None,
        bursts: bool,
        max_rows: int,
        per_broker: bool,
    ) -> None:
        """Shows nothing yet.

        Args:
            prefix: the prefix of the names, after "gateway_".
            rate_name: the name of the rate itself, after "gateway_".
            rate_text: the description of the rate.
            quotas: the counters.
            quota: the quota's label, if several quotas share the same series; None: there is no such label.
            bursts: whether the quotas may have a burst.
            max_rows: see `ShownRows`.
            per_broker: whether use is counted per broker.
        """
        self.name = prefix
        self._prefix = f"gateway_{prefix}"
        self._rate_name = f"gateway_{rate_name}"
        self._rate_text = rate_text
        self._bursts = bursts
        self.quota = quota
        self._quotas = quotas
        self._rows = ShownRows[ScopedKey, RateSnapshot](
            max_rows=max_rows,
            key=lambda row: ScopedKey(row.scope, TrackerKey(row.user, row.client_id)),
            totals=lambda row: (row.throttled_total, row.would_throttle_total),
            broker=(lambda row: str(row.scope)) if per_broker else None,
        )

    def look(self, *, now_ms: int) -> Generator[None, None, list[Shown[RateSnapshot]]]:
        """See `ShownRows.look`."""
        return self._rows.look(self._quotas, now_ms=now_ms)

    def collect(
        self,
        rows: list[Shown[RateSnapshot]],
        others: Sequence[tuple[RateSeries, list[Shown[RateSnapshot]]]] = (),
    ) -> Iterator[Metric]:
        """All series of these rows, and of the other quotas' rows that share the same series."""
        labels = [*self._rows.label_names, *(["quota"] if self.quota else [])]
        prefix, rate_name = self._prefix, self._rate_name
        rate = GaugeMetricFamily(rate_name, self._rate_text, labels=labels)
        limit = GaugeMetricFamily(
            f"{rate_name}_limit", "The quota that applies, in the unit of the rate.", labels=labels
        )
        utilisation = GaugeMetricFamily(
            f"{prefix}_utilisation_ratio",
            "The rate divided by its limit; above 1 the client has to wait.",
            labels=labels,
        )
        tokens = GaugeMetricFamily(
            f"{prefix}_tokens",
            "What is left of the burst of a quota that has one; below 0 the client has to wait.",
            labels=labels,
        )
        throttle, throttled = _throttle_families(prefix, labels)
        would = CounterMetricFamily(
            f"{prefix}_would_throttle",
            "Requests that this quota would have throttled if it were enforced and not only observed.",
            labels=labels,
        )
        labelled = [
            ([*shown.labels, *([series.quota] if series.quota else [])], shown.row, shown.totals)
            for series, found in ((self, rows), *others)
            for shown in found
        ]
        for names, row, totals in labelled:
            throttled.add_metric(names, totals[0])
            would.add_metric(names, totals[1])
            if row is None:
                continue
            rate.add_metric(names, row.rate)
            if row.limit is not None and row.utilisation is not None:
                limit.add_metric(names, row.limit)
                utilisation.add_metric(names, row.utilisation)
            if row.tokens is not None:
                tokens.add_metric(names, row.tokens)
            if row.throttle_time_ms is not None:
                throttle.add_metric(names, row.throttle_time_ms / 1000)
        yield from (rate, limit, utilisation, throttle, throttled, would)
        if self._bursts:
            yield tokens


class MutationSeries:
    """The series of the controller mutation quota (KIP-599).

    Attributes:
        name: the name of the quota's family.
    """

    name: Final = "controller_mutation"

    def __init__(self, quotas: MutationQuotas, *, max_rows: int) -> None:
        """Shows nothing yet; see `RateSeries`."""
        self._quotas = quotas
        self._rows = ShownRows[TrackerKey, TrackerSnapshot](
            max_rows=max_rows,
            key=lambda row: TrackerKey(row.user, row.client_id),
            totals=lambda row: (row.throttled_total, row.refused_total, row.would_throttle_total),
        )

    def look(self, *, now_ms: int) -> Generator[None, None, list[Shown[TrackerSnapshot]]]:
        """See `ShownRows.look`."""
        return self._rows.look(self._quotas, now_ms=now_ms)

    def collect(self, rows: list[Shown[TrackerSnapshot]]) -> Iterator[Metric]:
        """All series, of these rows."""
        labels = self._rows.label_names
        prefix = "gateway_controller_mutation"
        rate = GaugeMetricFamily(
            f"{prefix}_rate",
            "Partitions per second created or deleted (Kafka's mutation-rate).",
            labels=labels,
        )
        tokens = GaugeMetricFamily(
            f"{prefix}_tokens",
            "Tokens left; below 0 the client is refused or muted (Kafka's tokens).",
            labels=labels,
        )
        limit = GaugeMetricFamily(
            f"{prefix}_limit", "The quota that applies, in partitions per second.", labels=labels
        )
        throttle, throttled = _throttle_families(prefix, labels)
        refused = CounterMetricFamily(
            f"{prefix}_refused_topics", "Topics refused by this quota.", labels=labels
        )
        would = CounterMetricFamily(
            f"{prefix}_would_throttle",
            "Topics that this quota would have refused or throttled if it were enforced and not only observed.",
            labels=labels,
        )
        for names, row, totals in rows:
            throttled.add_metric(names, totals[0])
            refused.add_metric(names, totals[1])
            would.add_metric(names, totals[2])
            if row is None:
                continue
            rate.add_metric(names, row.mutation_rate)
            if row.tokens is not None:
                tokens.add_metric(names, row.tokens)
            if row.limit is not None:
                limit.add_metric(names, row.limit)
            if row.throttle_time_ms is not None:
                throttle.add_metric(names, row.throttle_time_ms / 1000)
        yield from (rate, tokens, limit, throttle, throttled, refused, would)


class Looked(NamedTuple):
    """Rows of all series, in the order of `QuotaMetrics.rates` and of `QuotaMetrics.further`."""

    rates: list[list[Shown[RateSnapshot]]]
    mutations: list[Shown[TrackerSnapshot]]
    further: list[list[Shown[RateSnapshot]]]


class QuotaMetrics(Collector):
    """The series per client of all quotas, and the mode of enforcement.

    Attributes:
        rates, mutations, further: the series.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        produce: RateQuotas,
        fetch: RateQuotas,
        request_time: RequestTimeQuotas,
        mutations: MutationQuotas,
        topics: Sequence[TopicQuotas] = (),
        groups: Sequence[tuple[str, GroupQuotas | GroupCounters[MutationTracker]]] = (),
        further: Mapping[QuotaKey, RateQuotas] | None = None,
        now_ms: NowMs,
        per_broker: bool = False,
        max_entity_series: int = MAX_ENTITY_SERIES,
    ) -> None:
        """Show these counters per client.

        Args:
            limits: the quotas in force.
            produce, fetch: byte rates.
            request_time: request time.
            mutations: controller mutations.
            topics: byte rates of topics. They have no series; their old counters are forgotten here with the others.
            groups: quotas of groups, each with its name in series.
            further: rates that Kafka lacks. They share series with a label for the quota.
            now_ms: the clock.
            per_broker: whether byte rates and request time are counted per broker.
            max_entity_series: the most clients with series of their own, per quota.
        """
        self._limits = limits
        self._request_time = request_time
        self._topics = topics
        self._groups = groups
        self._now_ms = now_ms
        self._per_broker = per_broker
        self._prepared: Looked | None = None
        rates: tuple[tuple[str, str, str, RateQuotas], ...] = (
            ("produce", "produce_byte_rate", "Bytes per second produced (Kafka's byte-rate).", produce),
            ("fetch", "fetch_byte_rate", "Bytes per second fetched (Kafka's byte-rate).", fetch),
            (
                "request",
                "request_time_percent",
                "Time spent on requests, in percent of one core (KIP-124).",
                request_time,
            ),
        )
        self.rates = tuple(
            RateSeries(*rate, bursts=rate[0] != "request", max_rows=max_entity_series, per_broker=per_broker)
            for rate in rates
        )
        self.mutations = MutationSeries(mutations, max_rows=max_entity_series)
        self.further = tuple(
            RateSeries(
                "api",
                "api_rate",
                "Use per second under such a quota: requests of an API, records, or connections of a user.",
                quotas,
                quota=quota,
                bursts=True,
                max_rows=max_entity_series,
                per_broker=per_broker,
            )
            for quota, quotas in (further or {}).items()
        )

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        yield CounterMetricFamily(
            "gateway_request_time_exempt_seconds",
            "Time spent on requests that no request quota applies to (Kafka's exempt-request-time).",
            value=self._request_time.exempt_ns / 1e9,
        )
        enforcement = GaugeMetricFamily(
            "gateway_enforcement", "1 for the mode in force: enforce, observe or off.", labels=["mode"]
        )
        for mode in Enforcement:
            enforcement.add_metric([mode.value], mode is self._limits.mode)
        yield enforcement
        looked, self._prepared = self._prepared or finish(self.look()), None
        for series, rows in zip(self.rates, looked.rates, strict=True):
            yield from series.collect(rows)
        yield from self.mutations.collect(looked.mutations)
        yield from self._collect_groups()
        if self.further:
            others = list(zip(self.further, looked.further, strict=True))
            yield from self.further[0].collect(looked.further[0], others[1:])

    def look(self) -> Generator[None, None, Looked]:
        """The rows of all series as of now, in many small steps."""
        for quotas in self._topics:
            quotas.expire(now_ms=self._now_ms())
        for _, groups in self._groups:
            groups.expire(now_ms=self._now_ms())
        rates, further = [], []
        for series in self.rates:
            rates.append((yield from series.look(now_ms=self._now_ms())))
        for series in self.further:
            further.append((yield from series.look(now_ms=self._now_ms())))
        return Looked(rates, (yield from self.mutations.look(now_ms=self._now_ms())), further)

    def prepare(self, looked: Looked) -> None:
        """Make the next `collect` show these rows, which `look` has just returned."""
        self._prepared = looked

    def _collect_groups(self) -> Iterator[Metric]:
        """Use and limits of groups, and how often their quotas made members wait."""
        labels = ["group", "quota", "broker"] if self._per_broker else ["group", "quota"]
        used = GaugeMetricFamily(
            "gateway_group_use",
            "Use by all members of a group, in the quota's unit per second.",
            labels=labels,
        )
        limit = GaugeMetricFamily(
            "gateway_group_limit", "The group's quota, in the same unit.", labels=labels
        )
        throttles = CounterMetricFamily(
            "gateway_group_throttles", "Requests that waited for the group's quota.", labels=labels
        )
        for quota, groups in self._groups:
            counters: Iterable[tuple[GroupKey, RateTracker | MutationTracker]] = groups.own()
            for key, counter in list(counters):
                now_ms = max(self._now_ms(), counter.last_ms)
                broker = "" if key.scope is None else str(key.scope)
                names = [key.group, quota, *([broker] if self._per_broker else [])]
                rate = counter.rate if isinstance(counter, MutationTracker) else counter
                used.add_metric(names, max(0.0, rate.rate(now_ms=now_ms)))
                if counter.match.whole_limit is not None:
                    limit.add_metric(names, counter.match.whole_limit)
                throttles.add_metric(names, counter.throttles.throttled_total)
        yield from (used, limit, throttles)
