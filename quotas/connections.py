"""Admission of connections (KIP-612 rates, KIP-402 counts; Kafka's ConnectionQuotas).

The order is Kafka's:

1. The rates of the gateway and of the listener. Above one of them no connection is refused, but the listener accepts
   none for a while.
2. The slots. Without a free slot the listener waits as well.
3. The rate of the address. Above it the socket stays unread. When its time is over, it is closed or checked again. It
   uses none of the listener's rate.
4. The number of connections of the address. Above it the socket is closed.

Two rules differ from Kafka. A connection that is refused for a count uses no rate but that of its address. If an
address already has all its connections, a further one does not wait, because others would wait behind it (hazard
K19).

A listener has its own limits and, unless it is the protected one, those of the gateway. Kafka's listeners also copy
the broker's numbers as their own, which then bind the protected listener too. Sluice does not do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from quotas.ip_limits import IPV6_PREFIX_BITS, UNLIMITED, IpLimit, IpLimits, normalise
from quotas.limits import Limits
from quotas.rate_quotas import CounterState
from quotas.shared_rate import ConnectionKey, SharedRate
from quotas.trackers import Kind, TrackerTable

Samples: TypeAlias = Sequence[tuple[int, int, float]]


class AdmissionDecision(StrEnum):
    """What the acceptor does with a socket it has just accepted."""

    ADMIT = (
        "admit"  # counted; `ConnectionQuotas.release` when it closes. With a wait_ms: observed, not throttled
    )
    WAIT = "wait"  # accept none on this listener, then ask again with waited=True
    HOLD = "hold"  # keep it unread, then ask `ConnectionQuotas.after_hold`
    REFUSE = "refuse"  # close it; it is not counted


class AdmissionCause(StrEnum):
    """The limit that decided, or the fault of a load balancer's header. Closed: it is a metric label."""

    NONE = "none"
    GATEWAY_RATE = "gateway_rate"
    LISTENER_RATE = "listener_rate"
    NO_SLOT = "no_slot"
    IP_RATE = "ip_rate"
    IP_COUNT = "ip_count"
    HELD_FULL = "held_full"
    USER_RATE = "user_rate"
    USER_COUNT = "user_count"
    PROXY_UNTRUSTED = "proxy_untrusted"
    PROXY_MISSING = "proxy_missing"
    PROXY_INVALID = "proxy_invalid"
    PROXY_TIMEOUT = "proxy_timeout"
    PROXY_CLOSED = "proxy_closed"
    PROXY_FULL = "proxy_full"


class AfterHold(StrEnum):
    """The end of a throttled socket's hold: it is closed as in Kafka, or checked again as in KIP-612."""

    CLOSE = "close"
    RECHECK = "recheck"


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer for one socket."""

    decision: AdmissionDecision
    cause: AdmissionCause = AdmissionCause.NONE
    wait_ms: int = 0  # for WAIT: 0 means until `ConnectionQuotas.has_slot`; for HOLD: how long
    held_until_ms: int = 0


# Looking up a member through its class takes a third of a microsecond.
ADMIT: Final = AdmissionDecision.ADMIT
_GATEWAY_RATE: Final = AdmissionCause.GATEWAY_RATE
_ADMITTED: Final = Admission(ADMIT)
_TOO_MANY_OF_ONE: Final = Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_COUNT)
_TOO_MANY_HELD: Final = Admission(AdmissionDecision.REFUSE, AdmissionCause.HELD_FULL)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of one listener; None is unlimited."""

    max_connections: int | None = None
    max_connection_creation_rate: int | None = None


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """All limits except the rates of addresses, which are quotas of `Limits`. None is unlimited."""

    listeners: Mapping[str, ListenerLimits]
    max_connections: int | None = None
    max_connection_creation_rate: int | None = None
    max_connections_per_ip: int | None = None
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    protected_listener: str | None = None  # exempt from the gateway's limits when it is not the only one
    after_hold: AfterHold = AfterHold.CLOSE
    max_held: int = 1_000


@dataclass(frozen=True, slots=True)
class ConnectionsSnapshot:
    """Counts and rates, for metrics and for people."""

    connections: int
    held: int
    accept_rate: float  # per second, protected listener left out
    by_listener: Mapping[str, tuple[int, float]]  # connections, accept rate
    ip_rates: Mapping[str, float]  # of the addresses and blocks that have a limit


class CarriedConnections(NamedTuple):
    """Open connections, by listener and by the address that they are counted for."""

    by_listener: Mapping[str, int]
    by_ip: Mapping[str, int]


class ConnectionRates(NamedTuple):
    """Samples of each connection rate; see `SampledRate.samples`."""

    gateway: Samples
    by_listener: Mapping[str, Samples]
    by_ip: Mapping[str, Samples]


class _IpTracker:
    __slots__ = ("kind", "last_ms", "limit_per_s", "rate")

    def __init__(self, rate: SharedRate, limit_per_s: float, now_ms: int) -> None:
        self.kind: Kind = ""
        self.limit_per_s = limit_per_s
        self.rate = rate
        self.last_ms = now_ms
        rate.limit_to(limit_per_s)

    def forgettable(self, *, now_ms: int) -> bool:
        return self.rate.meter.total(now_ms=now_ms) <= 0

    def absorb(self, other: _IpTracker, *, now_ms: int) -> None:
        self.rate.record_others(other.rate.meter.total(now_ms=now_ms), now_ms=now_ms)

    def forget(self) -> None:
        pass


class ConnectionQuotas:
    """Admits connections and counts the open ones.

    Attributes:
        configured: the limits in force; `update` changes them.
    """

    def __init__(
        self,
        limits: Limits,
        connection_limits: ConnectionLimits,
        *,
        window_num: int = 11,
        window_ms: int = 1_000,
        max_ip_trackers: int = 10_000,
        ipv6_prefix_bits: int = IPV6_PREFIX_BITS,
        now_ms: int,
    ) -> None:
        """Starts with no connections.

        Args:
            limits: holds connection_creation_rate of addresses; changes apply at once.
            connection_limits: everything else; `update` changes it.
            window_num: quota.window.num.
            window_ms: quota.window.size.seconds; also the longest wait and the longest hold.
            max_ip_trackers: how many addresses have a counter of their own.
            ipv6_prefix_bits: see `quotas.ip_limits.normalise`.
            now_ms: the present.
        """
        self._ipv6_prefix_bits = ipv6_prefix_bits
        self._ip_limits = IpLimits(limits, ipv6_prefix_bits=ipv6_prefix_bits)
        self._window_num = window_num
        self._window_ms = window_ms
        self._least_s = (window_num - 1) * window_ms / 1000  # the shortest time of an average
        self._rate = self._new_rate(now_ms)
        self._listener_rates: dict[str, SharedRate] = {}
        self._members: Callable[[], int] | None = None  # of the fleet that shares the rates; None: none does
        self._share = 1.0
        self._limits = limits
        self._ip_trackers: TrackerTable[str, _IpTracker] = TrackerTable(
            lambda _key, limit, made_ms: _IpTracker(self._new_rate(made_ms), limit, made_ms),
            max_trackers=max_ip_trackers,
            idle_expiry_ms=3_600_000,
        )
        self._total = 0
        self._held = 0
        self._by_listener: dict[str, int] = {}
        self._by_ip: dict[str, int] = {}
        # The part of these counts that are connections of the old process, in an upgrade.
        self._carried = CarriedConnections({}, {})
        self.update(connection_limits, now_ms=now_ms)

    def update(self, connection_limits: ConnectionLimits, *, now_ms: int) -> None:
        """Puts other limits in force. No connection is dropped, no sample forgotten."""
        self.configured = connection_limits
        self._ip_overrides = {
            normalise(address): most
            for address, most in connection_limits.max_connections_per_ip_overrides.items()
        }
        self._rate.limit_to(connection_limits.max_connection_creation_rate)
        for listener, own in connection_limits.listeners.items():
            rate = self._listener_rates.setdefault(listener, self._new_rate(now_ms))
            rate.limit_to(own.max_connection_creation_rate)
            self._by_listener.setdefault(listener, 0)

    def admit(self, listener: str, ip: str, *, now_ms: int, waited: bool = False) -> Admission:
        """Decides about a socket that the listener has accepted.

        Args:
            listener: a configured listener.
            ip: the peer's address.
            now_ms: the present.
            waited: the decision about this socket was WAIT, and the wait is over. So it is not recorded again.
        """
        if self._has_all(ip):
            return self._admit_address(listener, ip, now_ms, recorded=waited)
        return self._must_wait(listener, now_ms, waited) or self._admit_address(listener, ip, now_ms)

    def reserve(self, listener: str, *, now_ms: int, waited: bool = False) -> Admission:
        """The first half of `admit`, for a socket whose client address is not known yet.

        Args:
            listener: a configured listener.
            now_ms: the present.
            waited: as for `admit`.

        Returns:
            WAIT, or ADMIT: the socket has a place now, until `admit_reserved` or `cancel_reservation`.
        """
        must_wait = self._must_wait(listener, now_ms, waited)
        if must_wait is None:
            self._total += 1
            self._by_listener[listener] += 1
        return must_wait or _ADMITTED

    def admit_reserved(self, listener: str, ip: str, *, now_ms: int) -> Admission:
        """The second half of `admit`, with the client's address. It is never WAIT, because a place is reserved."""
        self.cancel_reservation(listener)
        return self._admit_address(listener, ip, now_ms)

    def cancel_reservation(self, listener: str) -> None:
        """Reports that a socket with a reserved place was closed before its client was known."""
        if self._by_listener[listener] == 0:
            raise ValueError(f"no place is reserved on listener {listener}")
        self._total -= 1
        self._by_listener[listener] -= 1

    def _must_wait(self, listener: str, now_ms: int, waited: bool) -> Admission | None:
        if not waited:
            wait_ms, cause = self._record_accept(listener, 1, now_ms)
            if wait_ms > 0:
                return Admission(AdmissionDecision.WAIT, cause, wait_ms)
        return None if self.has_slot(listener) else Admission(AdmissionDecision.WAIT, AdmissionCause.NO_SLOT)

    def _admit_address(self, listener: str, ip: str, now_ms: int, *, recorded: bool = True) -> Admission:
        hold_ms, observed = self._record_ip(ip, now_ms)
        if hold_ms == 0 or observed:
            admission = self._count(listener, ip)
            if admission.decision is ADMIT:
                return (
                    Admission(admission.decision, AdmissionCause.IP_RATE, hold_ms) if hold_ms else admission
                )
        elif self._held >= self.configured.max_held:
            admission = _TOO_MANY_HELD
        else:
            self._held += 1
            admission = Admission(AdmissionDecision.HOLD, AdmissionCause.IP_RATE, hold_ms, now_ms + hold_ms)
        if recorded:
            self._record_accept(listener, -1, now_ms)
        return admission

    def after_hold(self, listener: str, ip: str, held: Admission, *, now_ms: int) -> Admission:
        """Decides about a throttled socket.

        Args:
            listener: as given to `admit`.
            ip: as given to `admit`.
            `held`: the result of `admit`.
            now_ms: the present; one millisecond after ``held.held_until_ms`` is always late enough.

        Returns:
            The same HOLD while it is too early. Then REFUSE, or with `AfterHold.RECHECK` ADMIT if the address is
            within its rate again.
        """
        recheck = self.configured.after_hold is AfterHold.RECHECK
        # Kafka closes strictly later than the throttle's end.
        if now_ms < held.held_until_ms or (not recheck and now_ms == held.held_until_ms):
            return held
        self.abandon_hold(held)
        if not recheck:
            return Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_RATE)
        hold_ms, observed = self._record_ip(ip, now_ms)
        if hold_ms > 0 and not observed:
            return Admission(AdmissionDecision.REFUSE, AdmissionCause.IP_RATE)
        if not self.has_slot(listener):
            return Admission(AdmissionDecision.REFUSE, AdmissionCause.NO_SLOT)
        admission = self._count(listener, ip)
        if admission.decision is AdmissionDecision.ADMIT:
            self._record_accept(listener, 1, now_ms)
        return admission

    def abandon_hold(self, held: Admission) -> None:
        """Reports that a throttled socket was closed early, for instance because the gateway stops."""
        if held.decision is not AdmissionDecision.HOLD or self._held == 0:
            raise ValueError("this socket is not throttled")
        self._held -= 1

    def release(self, listener: str, ip: str) -> None:
        """Reports that an admitted connection was closed.

        Raises:
            ValueError: there is no such connection, so the caller counts wrong.
        """
        client = self._client(ip)
        if self._by_listener.get(listener, 0) == 0 or client not in self._by_ip:
            raise ValueError(f"no connection of {client} on listener {listener} is open")
        self._total -= 1
        self._by_listener[listener] -= 1
        self._by_ip[client] -= 1
        if self._by_ip[client] == 0:
            del self._by_ip[client]

    def has_slot(self, listener: str) -> bool:
        """Whether one more connection fits, on the listener and, unless it is protected, on the gateway."""
        most = self.configured.listeners[listener].max_connections
        if most is not None and self._by_listener[listener] >= most:
            return False
        most = self.configured.max_connections
        return most is None or self._protected(listener) or self._total < most

    def must_close_one(self, listener: str) -> bool:
        """Whether this listener must close a connection, because the protected one exceeded the gateway's limit."""
        most = self.configured.max_connections
        return most is not None and self._total > most and not self._protected(listener)

    def connections_of(self, ip: str) -> int:
        """The open connections of an address."""
        return self._by_ip.get(self._client(ip), 0)

    def ip_limit(self, ip: str) -> IpLimit:
        """The connection rate in force for an address."""
        return self._ip_limits.limit(ip)

    def ip_rate(self, ip: str, *, now_ms: int) -> float | None:
        """The connections per second of an address, or of its shared counter; None when nothing is counted."""
        limit = self._ip_limits.limit(ip)
        tracker = self._ip_trackers.find(limit.tracker_key, float(limit.rate_per_s), limit.kind)
        return None if tracker is None else tracker.rate.meter.rate(now_ms=now_ms)

    def snapshot(self, *, addresses: bool = True, now_ms: int) -> ConnectionsSnapshot:
        """The counts and rates of this moment.

        Args:
            addresses: include the rates of addresses, of which there may be ten thousand.
            now_ms: the present.
        """
        return ConnectionsSnapshot(
            connections=self._total,
            held=self._held,
            accept_rate=self._rate.meter.rate(now_ms=now_ms),
            by_listener={
                listener: (self._by_listener[listener], rate.meter.rate(now_ms=now_ms))
                for listener, rate in self._listener_rates.items()
            },
            ip_rates={key: each.rate.meter.rate(now_ms=now_ms) for key, each in self._ip_trackers.own()}
            if addresses
            else {},
        )

    def counts(self) -> CarriedConnections:
        """The open connections, by listener and by address."""
        return CarriedConnections(dict(self._by_listener), dict(self._by_ip))

    def carry(self, carried: CarriedConnections) -> None:
        """Counts the connections that the old process in an upgrade still has.

        Args:
            carried: all of them; they replace those reported before. Connections of listeners that are not configured
                here count for their address and the gateway.
        """
        before, self._carried = self._carried, carried
        for counts, now, then in (
            (self._by_listener, carried.by_listener, before.by_listener),
            (self._by_ip, carried.by_ip, before.by_ip),
        ):
            for name in {*now, *then}:
                count = counts.get(name, 0) + now.get(name, 0) - then.get(name, 0)
                if count or counts is self._by_listener:
                    counts[name] = count
                else:
                    counts.pop(name, None)
        self._total += sum(carried.by_listener.values()) - sum(before.by_listener.values())

    def rates(self, *, now_ms: int) -> ConnectionRates:
        """The samples of all rates, for the new process in an upgrade."""
        return ConnectionRates(
            self._rate.meter.samples(now_ms=now_ms),
            {name: rate.meter.samples(now_ms=now_ms) for name, rate in self._listener_rates.items()},
            {
                key: each.rate.meter.samples(now_ms=now_ms)
                for key, each in self._ip_trackers.own()
                if not each.forgettable(now_ms=now_ms)
            },
        )

    def take_over(self, rates: ConnectionRates, *, now_ms: int) -> None:
        """Raises the rates to at least those of the old process."""
        found = [(ConnectionKey("gateway", ""), rates.gateway)]
        found += [(ConnectionKey("listener", name), samples) for name, samples in rates.by_listener.items()]
        found += [(ConnectionKey("ip", name), samples) for name, samples in rates.by_ip.items()]
        for key, samples in found:
            rate = self.find_rate(key, now_ms=now_ms)
            if rate is not None:
                rate.take_over(CounterState(samples), now_ms=now_ms)

    # -- rates that a fleet shares ---------------------------------------------------------------------------

    def share_rates(self, members: Callable[[], int]) -> None:
        """Shares the rates with a fleet: from now on each gateway also counts the others' connections.

        Args:
            members: returns the number of gateways, this one included.
        """
        self._members = members

    def all_rates(self) -> Iterator[tuple[ConnectionKey, SharedRate]]:
        """Every rate, with its name."""
        yield ConnectionKey("gateway", ""), self._rate
        for listener, rate in self._listener_rates.items():
            yield ConnectionKey("listener", listener), rate
        for name, tracker in list(self._ip_trackers.own()):
            yield ConnectionKey("ip", name), tracker.rate

    def find_rate(self, key: ConnectionKey, *, now_ms: int) -> SharedRate | None:
        """The rate of this name; None: there is none here, or no place for it."""
        if key.kind == "gateway":
            return self._rate
        if key.kind == "listener":
            return self._listener_rates.get(key.name)
        limit = self._ip_limits.of_counter(key.name)
        if limit is None:
            return None
        tracker = self._ip_trackers.find_or_make(key.name, float(limit.rate_per_s), limit.kind, now_ms=now_ms)
        if self._ip_trackers.find_own(key.name) is None:  # the counter is shared
            return None
        tracker.last_ms = now_ms
        return tracker.rate

    def _follow_share(self, now_ms: int) -> float:
        """The part of each limit that is in force: all of it, or this gateway's share while it is isolated.

        When the part shrinks, the counts shrink to the same part, on each member. When the whole limit is in force
        again, the levels of other members include the connections that they have admitted meanwhile.
        """
        share = self._limits.share if self._members is not None else 1.0
        if share < self._share:
            for _, rate in self.all_rates():
                rate.meter.keep(share / self._share, now_ms=now_ms)
        self._share = share
        return share

    def _record_accept(self, listener: str, count: int, now_ms: int) -> tuple[int, AdmissionCause]:
        own_limit = self.configured.listeners[listener].max_connection_creation_rate
        # Each member admits one connection per wait.
        longest_ms = self._window_ms * (1 if self._members is None else self._members())
        own_ms = self._wait_ms(self._listener_rates[listener], own_limit, count, longest_ms, now_ms)
        if self._protected(listener):
            return own_ms, AdmissionCause.LISTENER_RATE
        gateway_limit = self.configured.max_connection_creation_rate
        gateway_ms = self._wait_ms(self._rate, gateway_limit, count, longest_ms, now_ms)
        if own_ms > gateway_ms:
            return own_ms, AdmissionCause.LISTENER_RATE
        return gateway_ms, _GATEWAY_RATE

    def _record_ip(self, ip: str, now_ms: int) -> tuple[int, bool]:
        """Records a connection of an address, and takes the record back if the address is above its rate.

        Returns:
            The hold in ms, and whether the limit is only observed.
        """
        limit = self._ip_limits.limit(ip)
        if limit.rate_per_s >= UNLIMITED:
            return 0, False
        tracker = self._ip_trackers.find_or_make(
            limit.tracker_key, float(limit.rate_per_s), limit.kind, now_ms=now_ms
        )
        tracker.limit_per_s = float(limit.rate_per_s)
        tracker.rate.limit_to(tracker.limit_per_s)
        tracker.last_ms = now_ms
        hold_ms = self._wait_ms(tracker.rate, limit.rate_per_s, 1, self._window_ms, now_ms)
        if hold_ms > 0:
            tracker.rate.meter.record(-1, now_ms=now_ms)
        return hold_ms, limit.observe

    def _wait_ms(self, rate: SharedRate, limit: int | None, count: int, longest_ms: int, now_ms: int) -> int:
        if limit is None or count < 0:
            rate.meter.record(count, now_ms=now_ms)
            return 0
        in_force = limit * self._follow_share(now_ms)
        allowance = in_force * self._least_s
        return min(longest_ms, rate.meter.record_and_check(count, in_force, allowance, now_ms=now_ms))

    def _count(self, listener: str, ip: str) -> Admission:
        if self._has_all(ip):
            return _TOO_MANY_OF_ONE
        client = self._client(ip)
        self._total += 1
        self._by_listener[listener] += 1
        self._by_ip[client] = self._by_ip.get(client, 0) + 1
        return _ADMITTED

    def _has_all(self, ip: str) -> bool:
        most = self.configured.max_connections_per_ip
        if self._ip_overrides:
            most = self._ip_overrides.get(normalise(ip), most)
        return most is not None and self.connections_of(ip) >= most

    def _client(self, ip: str) -> str:
        # IPv4 addresses already have one form, so this check is cheaper than the cache of `normalise`.
        return normalise(ip, self._ipv6_prefix_bits) if ":" in ip else ip

    def _protected(self, listener: str) -> bool:
        return listener == self.configured.protected_listener and len(self.configured.listeners) > 1

    def _new_rate(self, now_ms: int) -> SharedRate:
        return SharedRate(self._window_num, self._window_ms, now_ms=now_ms)
