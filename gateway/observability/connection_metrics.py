"""Metrics of connections: admitted, delayed, throttled, refused, muted, closed (KIP-612, KIP-402).

Kafka's names are in the descriptions. Kafka shows averages and percentages. Here they are counters, of which
monitoring computes the rate. Two equations always hold for each listener:

    active   = opened - sum(closed by cause)
    accepted = opened + refused + throttled now + awaiting their header now + the one that waits for a slot

(a throttled socket is refused or opened at the end).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import IntFlag
from typing import Any, Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.events import CloseCause, Side
from gateway.observability.quota_metrics import label_value
from gateway.runtime.clock import NowMs
from quotas.connections import AdmissionCause, ConnectionQuotas
from quotas.entities import client_name
from quotas.user_connections import UserConnections

OTHER: Final = "other"

MOST_USERS: Final = 50
"""The most users in the status."""


# The possible causes of each decision. Each has a series from the start, so that its first increase is visible.
_DELAYED_BY: Final = (AdmissionCause.GATEWAY_RATE, AdmissionCause.LISTENER_RATE, AdmissionCause.NO_SLOT)
_REFUSED_BY: Final = (
    AdmissionCause.IP_RATE,
    AdmissionCause.IP_COUNT,
    AdmissionCause.HELD_FULL,
    AdmissionCause.NO_SLOT,
    AdmissionCause.PROXY_UNTRUSTED,
    AdmissionCause.PROXY_MISSING,
    AdmissionCause.PROXY_INVALID,
    AdmissionCause.PROXY_TIMEOUT,
    AdmissionCause.PROXY_CLOSED,
    AdmissionCause.PROXY_FULL,
)


class _BackPressure(Protocol):
    def total_ms(self, side: Side, now_ms: int) -> int: ...


class _Session(Protocol):
    @property
    def muted(self) -> int: ...
    @property
    def bytes_from_client(self) -> int: ...
    @property
    def bytes_from_upstream(self) -> int: ...


class _Channel(Protocol):
    @property
    def session(self) -> _Session: ...


class WatchedListener(Protocol):
    """The counts of a listener that are shown as series."""

    @property
    def channels(self) -> Collection[_Channel]: ...
    @property
    def back_pressure(self) -> _BackPressure: ...
    @property
    def received_bytes(self) -> Mapping[Side, int]: ...
    @property
    def accepted(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def awaiting_header(self) -> int: ...


class WatchedMemory(Protocol):
    """The budget of bytes that all connections share."""

    limit_bytes: int
    used_bytes: int


class WatchedAnnouncements(Protocol):
    """The bytes that requests in flight have announced to brokers."""

    limit_bytes: int
    collected: int

    @property
    def used_bytes(self) -> int:
        """The bytes announced to all brokers together."""


class ConnectionMetrics(Collector):
    """A `ConnectionObserver` that provides series for scrapes."""

    def __init__(self, now_ms: NowMs, mute_reasons: Iterable[IntFlag]) -> None:
        """Shows the objects that the `watch_` methods receive.

        Args:
            now_ms: the clock.
            mute_reasons: the flags of a session's `muted`; their names are labels.
        """
        self._now_ms = now_ms
        self._mute_reasons = tuple(mute_reasons)
        self._listeners: dict[str, WatchedListener] = {}
        self._failed_ports: Counter[str] = Counter()
        self._hidden: Callable[[], Mapping[str, int]] = dict
        self._connections: ConnectionQuotas | None = None
        self._memory: WatchedMemory | None = None
        self._announced: WatchedAnnouncements | None = None
        self._max_ip_series = 0
        self._users: UserConnections | None = None
        self._max_user_series = 0
        self._opened: Counter[str] = Counter()
        self._closed: Counter[tuple[str, CloseCause]] = Counter()
        self._delayed: Counter[tuple[str, AdmissionCause]] = Counter()
        self._delay_ms: Counter[tuple[str, AdmissionCause]] = Counter()
        self._blocked_ms: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._hold_ms: Counter[str] = Counter()
        self._would_hold: Counter[str] = Counter()
        self._refused: Counter[tuple[str, AdmissionCause]] = Counter()
        self._accept_failures: Counter[str] = Counter()

    def watch_listener(self, name: str, listener: WatchedListener) -> None:
        """Show the connections of this listener under its name."""
        self._listeners[name] = listener

    def watch_brokers(self, hidden: Callable[[], Mapping[str, int]]) -> None:
        """Show, by listener, the number of brokers that its clients are not shown."""
        self._hidden = hidden

    def watch_connections(self, connections: ConnectionQuotas, *, max_ip_series: int) -> None:
        """Show these rates and limits.

        Args:
            connections: shared by all listeners.
            max_ip_series: the most addresses with a series of their own; these have the highest rates.
        """
        self._connections = connections
        self._max_ip_series = max_ip_series

    def watch_users(self, users: UserConnections, *, max_user_series: int) -> None:
        """Show connections of users. At most `max_user_series` users, those with the most, have their own series."""
        self._users = users
        self._max_user_series = max_user_series

    def watch_memory(self, memory: WatchedMemory, announced: WatchedAnnouncements) -> None:
        """Show the bytes that connections buffer, and those that requests have announced to brokers."""
        self._memory = memory
        self._announced = announced

    def broker_port_failed(self, listener: str) -> None:
        """A broker is not shown to clients, because its port could not be bound (hazard E12)."""
        self._failed_ports[listener] += 1

    # -- ConnectionObserver ----------------------------------------------------------------------------------

    def connection_opened(self, listener: str) -> None:
        """See `ConnectionObserver`."""
        self._opened[listener] += 1

    def connection_closed(self, listener: str, cause: CloseCause) -> None:
        """See `ConnectionObserver`."""
        self._closed[listener, cause] += 1

    def accept_delayed(self, listener: str, cause: AdmissionCause, wait_ms: int) -> None:
        """See `ConnectionObserver`."""
        self._delayed[listener, cause] += 1
        self._delay_ms[listener, cause] += wait_ms

    def accept_blocked(self, listener: str, blocked_ms: int) -> None:
        """See `ConnectionObserver`."""
        self._blocked_ms[listener] += blocked_ms

    def connection_held(self, listener: str, hold_ms: int) -> None:
        """See `ConnectionObserver`."""
        self._held[listener] += 1
        self._hold_ms[listener] += hold_ms

    def connection_would_be_held(self, listener: str, hold_ms: int) -> None:
        """See `ConnectionObserver`."""
        self._would_hold[listener] += 1

    def connection_refused(self, listener: str, cause: AdmissionCause) -> None:
        """See `ConnectionObserver`."""
        self._refused[listener, cause] += 1

    def accept_failed(self, listener: str) -> None:
        """See `ConnectionObserver`."""
        self._accept_failures[listener] += 1

    # -- series ----------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        yield from self.collect_listeners()
        if self._connections is not None:
            yield self._collect_ip_rates(self._connections.snapshot(now_ms=self._now_ms()).ip_rates)
        if self._users is not None:
            yield from self._collect_users(self._users)

    def collect_listeners(self) -> Iterator[Metric]:
        """All series except those of addresses, of which there may be many."""
        now_ms = self._now_ms()
        yield from self._collect_open()
        yield from self._collect_admission()
        if self._connections is not None:
            yield from self._collect_rates(self._connections, now_ms=now_ms)
        yield from self._collect_held_up(now_ms)
        if self._memory is not None:
            yield from self._collect_memory(self._memory)
        if self._announced is not None:
            yield from self._collect_announced(self._announced)

    def _collect_open(self) -> Iterator[Metric]:
        active = _gauge("gateway_connections_active", "Open client connections.")
        accepted = _counter(
            "gateway_connections_accepted",
            "Connections accepted from the kernel, including those refused later.",
        )
        opened = _counter("gateway_connections_opened", "Client connections admitted.")
        closed = _counter("gateway_connections_closed", "Client connections ended, by cause.", "cause")
        held = _gauge(
            "gateway_held_connections",
            "Connections that are open and not read because their address connects too often.",
        )
        awaiting = _gauge(
            "gateway_connections_awaiting_proxy_header",
            "Connections of load balancers whose PROXY header has not arrived yet.",
        )
        for name, listener in self._listeners.items():
            awaiting.add_metric([name], listener.awaiting_header)
            active.add_metric([name], len(listener.channels))
            accepted.add_metric([name], listener.accepted)
            opened.add_metric([name], self._opened[name])
            held.add_metric([name], listener.held)
            for cause in CloseCause:
                closed.add_metric([name, cause.value], self._closed[name, cause])
        yield from (active, accepted, opened, closed, held, awaiting)

    def _collect_admission(self) -> Iterator[Metric]:
        delays = _counter("gateway_accept_delays", "Times a listener stopped accepting, by limit.", "cause")
        delay_seconds = _counter(
            "gateway_accept_throttle_seconds",
            "Delay that the rate limits asked for (Kafka's connection-accept-throttle-time).",
            "cause",
        )
        blocked = _counter(
            "gateway_acceptor_blocked_seconds",
            "Time during which a listener accepted no connections (Kafka's AcceptorBlockedPercent), counted at its "
            "end.",
        )
        held = _counter("gateway_connections_held", "Connections throttled by the rate of their address.")
        hold_seconds = _counter(
            "gateway_ip_accept_throttle_seconds",
            "Time for which connections were throttled (Kafka's ip-connection-accept-throttle-time).",
        )
        would_hold = _counter(
            "gateway_connections_would_be_held",
            "Connections admitted that enforcement of their address's rate would have throttled (observe mode).",
        )
        refused = _counter(
            "gateway_connections_refused", "Connections closed before they were admitted, by limit.", "cause"
        )
        failures = _counter(
            "gateway_accept_failures", "Times the system had no descriptor or memory for a connection."
        )
        for name in self._listeners:
            for cause in _DELAYED_BY:
                delays.add_metric([name, cause.value], self._delayed[name, cause])
                delay_seconds.add_metric([name, cause.value], self._delay_ms[name, cause] / 1000)
            for cause in _REFUSED_BY:
                refused.add_metric([name, cause.value], self._refused[name, cause])
            blocked.add_metric([name], self._blocked_ms[name] / 1000)
            held.add_metric([name], self._held[name])
            hold_seconds.add_metric([name], self._hold_ms[name] / 1000)
            would_hold.add_metric([name], self._would_hold[name])
            failures.add_metric([name], self._accept_failures[name])
        yield from (delays, delay_seconds, blocked, held, hold_seconds, would_hold, refused, failures)

    def _collect_held_up(self, now_ms: int) -> Iterator[Metric]:
        muted = _gauge(
            "gateway_channels_muted",
            "Muted client connections, by reason; one with two reasons counts twice.",
            "reason",
        )
        pressure = _counter(
            "gateway_back_pressure_seconds",
            "Time during which one side read more slowly than the other sent, summed over connections.",
            "side",
        )
        ports = _counter("gateway_broker_port_failures", "Broker ports that could not be bound.")
        hidden = _gauge(
            "gateway_hidden_brokers", "Brokers that clients are not shown, because their ids have no port."
        )
        received = _counter(
            "gateway_received_bytes", "Bytes received, by the side that sent them, without TLS.", "side"
        )
        hidden_brokers = self._hidden()
        for name, listener in self._listeners.items():
            sets: Counter[int] = Counter()
            bytes_in, bytes_out = (listener.received_bytes[side] for side in (Side.CLIENT, Side.UPSTREAM))
            for channel in listener.channels:
                session = channel.session
                sets[session.muted] += 1
                bytes_in += session.bytes_from_client
                bytes_out += session.bytes_from_upstream
            received.add_metric([name, Side.CLIENT.value], bytes_in)
            received.add_metric([name, Side.UPSTREAM.value], bytes_out)
            for reason in self._mute_reasons:
                count = sum(count for muted_by, count in sets.items() if muted_by & reason)
                muted.add_metric([name, str(reason.name).lower()], count)
            for side in Side:
                pressure.add_metric([name, side.value], listener.back_pressure.total_ms(side, now_ms) / 1000)
            ports.add_metric([name], self._failed_ports[name])
            hidden.add_metric([name], hidden_brokers.get(name, 0))
        yield from (muted, pressure, ports, hidden, received)

    def _collect_memory(self, memory: WatchedMemory) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_memory_queued_bytes",
            "Bytes of requests and replies in the gateway's memory.",
            value=memory.used_bytes,
        )
        yield GaugeMetricFamily(
            "gateway_memory_queued_limit_bytes",
            "The limit of these bytes; above it connections are not read.",
            value=memory.limit_bytes,
        )

    def _collect_announced(self, announced: WatchedAnnouncements) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "gateway_announced_request_bytes",
            "Bytes announced to brokers in the sizes of requests and not sent yet.",
            value=announced.used_bytes,
        )
        yield GaugeMetricFamily(
            "gateway_announced_request_limit_bytes",
            "The limit of these bytes for one broker; a request that would exceed it is collected first.",
            value=announced.limit_bytes,
        )
        yield CounterMetricFamily(
            "gateway_requests_collected_before_relay",
            "Requests collected whole because they would have exceeded that limit.",
            value=announced.collected,
        )

    def _collect_rates(self, connections: ConnectionQuotas, *, now_ms: int) -> Iterator[Metric]:
        snapshot = connections.snapshot(addresses=False, now_ms=now_ms)
        by_listener = _gauge(
            "gateway_connection_accept_rate", "Connections per second (Kafka's connection-accept-rate)."
        )
        limits = connections.configured
        most = _gauge("gateway_connections_limit", "The most open connections of a listener.")
        fastest = _gauge("gateway_connection_accept_rate_limit", "The most connections per second.")
        for name, (_, rate) in snapshot.by_listener.items():
            by_listener.add_metric([name], rate)
            own = limits.listeners[name]
            if own.max_connections is not None:
                most.add_metric([name], own.max_connections)
            if own.max_connection_creation_rate is not None:
                fastest.add_metric([name], own.max_connection_creation_rate)
        yield from (by_listener, most, fastest)
        overall = (
            (
                "gateway_overall_connection_accept_rate",
                "Connections per second, a protected listener's left out (Kafka's broker-connection-accept-rate).",
                snapshot.accept_rate,
            ),
            ("gateway_overall_connections_limit", "The most open connections.", limits.max_connections),
            (
                "gateway_overall_connection_accept_rate_limit",
                "The most connections per second, a protected listener's left out.",
                limits.max_connection_creation_rate,
            ),
        )
        for name, text, value in overall:
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)

    def _collect_ip_rates(self, rates: Mapping[str, float]) -> Metric:
        """Rates of some addresses, and the sum of the others: clients may have any number of addresses."""
        family = GaugeMetricFamily(
            "gateway_ip_connection_accept_rate",
            "Connections per second of addresses and blocks that have a limit; the slower ones are in 'other'.",
            labels=["ip"],
        )
        fastest = sorted(rates.items(), key=lambda each: each[1], reverse=True)
        for ip, rate in fastest[: self._max_ip_series]:
            family.add_metric([ip], rate)
        if len(fastest) > self._max_ip_series:
            family.add_metric([OTHER], sum(rate for _, rate in fastest[self._max_ip_series :]))
        return family

    def _collect_users(self, users: UserConnections) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "gateway_user_connections",
            "Open connections of users, those that wait for their turn included; users with fewer are in 'other'.",
            labels=["user"],
        )
        most = users.by_user.most_common()
        for user, count in most[: self._max_user_series]:
            family.add_metric([label_value(user)], count)
        if len(most) > self._max_user_series:
            family.add_metric([OTHER], sum(count for _, count in most[self._max_user_series :]))
        yield family
        yield GaugeMetricFamily(
            "gateway_user_connections_held",
            "Connections that wait for the rate of their user, or are kept unread before they are closed.",
            value=users.held,
        )
        yield CounterMetricFamily(
            "gateway_user_connections_would_be_refused",
            "Connections that enforcement of their user's count would have closed (observe mode).",
            value=users.would_refuse,
        )


def users_json(users: UserConnections) -> list[dict[str, Any]]:
    """The users with the most connections, for the status; empty if no user has a quota of connections."""
    return [
        {**each._asdict(), "user": label_value(each.user), "name": client_name(label_value(each.user))}
        for each in users.busiest(MOST_USERS)
    ]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["listener", *labels])


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=["listener", *labels])
