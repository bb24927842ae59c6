"""The laws: rules that must hold in every run (docs/testing.md).

Each law is a method that reports violations. Laws about state are checked every 100 ms of the world's clock. The
others are checked when bytes cross a wire, when all clients have left, or when the gateways have stopped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gateway.app import Gateway
from gateway.observability.events import CloseCause
from gateway.session.mute import MuteReason
from quotas.entities import API_BURST_S, QuotaEntity, QuotaKey
from quotas.lending import LEAST_PART
from quotas.lent_rates import LENT_BURST_S
from quotas.rate_quotas import RateQuotas, RateTracker
from quotas.usage_record import UsageApi
from simulation.gateways import GatewayUnderTest
from simulation.network import GONE_NS, LEAST_BYTES_PER_S
from simulation.plan import Key, Plan, groups_of, limit_of
from simulation.wire import Bucket, Frame, Sums, Tap
from simulation.wire import throttle_ms as throttle_of
from simulation.world import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from simulation.clients import Actor, Asked, Connection
    from simulation.process import HostedProcess
    from simulation.run import Run

EXCHANGE_NS: Final = 400 * NS_PER_MS
"""If nothing is lost, the knowledge that members of a fleet, or workers, have of each other is at most this old."""

SOON_NS: Final = 12 * NS_PER_S
"""Time within which a connection ends after its client has gone, if no reply is pending."""

LATE_MS: Final = 1_500
"""The most by which a timer may be late: the gateway's process is busy, and due steps run in small batches."""

_TOO_SLOW: Final = {CloseCause.FIRST_FRAME_TIMEOUT, CloseCause.FRAME_TIMEOUT}
_BY_FAULTS: Final = _TOO_SLOW | {
    CloseCause.UPSTREAM_CLOSED,
    CloseCause.UPSTREAM_REFUSED,
    CloseCause.UPSTREAM_TIMEOUT,
}
_BY_ADVERSARIES: Final = _TOO_SLOW | {
    CloseCause.FRAME_TOO_LARGE,
    CloseCause.INVALID_FRAME_SIZE,
    CloseCause.MALFORMED_FRAME,
    CloseCause.NOT_KAFKA,
    CloseCause.TLS_ON_PLAINTEXT,  # bytes drawn at random may begin like it
    CloseCause.UNSUPPORTED_REQUEST,
}
_THROTTLED: Final = int(MuteReason.THROTTLED)
_HANDSHAKE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that was broken.

    Attributes:
        law: its name.
        at_ms: when it was noticed, since the run began.
        detail: what broke it.
    """

    law: str
    at_ms: int
    detail: str

    def __str__(self) -> str:
        return f"{self.law} at {self.at_ms} ms: {self.detail}"


_OfProcesses: TypeAlias = defaultdict[tuple[int, str], dict[int, RateTracker]]
"""The counters of one client by gateway and process, and by their identity."""


def group_name(group: str) -> str:
    """The name of a group's counter of permits, distinct from client ids."""
    return f"group={group}"


def _caught_up(gateway: Gateway) -> bool:
    return gateway.fleet is None or gateway.fleet.exchange.caught_up


def _recorded(counters: dict[int, RateTracker]) -> float:
    return sum(each.recorded_here for each in counters.values())


def _byte_counters(gateway: Gateway) -> tuple[tuple[Key, RateQuotas], ...]:
    quotas = gateway.client_quotas
    return ("producer_byte_rate", quotas.produce), ("consumer_byte_rate", quotas.fetch)


class Laws:
    """All laws of one run.

    Attributes:
        violations: the violations found.
        passed_bytes: bytes of Produce, by client and second since the clients began.
    """

    def __init__(self, run: Run) -> None:
        """Starts without violations."""
        self.run = run
        self.plan: Plan = run.plan
        self.violations: list[Violation] = []
        self.passed_bytes: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._buckets: dict[tuple[str, object, str], Bucket] = {}
        self._charged: defaultdict[str, float] = defaultdict(float)
        self._ever_charged: defaultdict[str, float] = defaultdict(float)
        self._mutated: defaultdict[str, int] = defaultdict(int)
        self._permits: dict[str, Bucket] = {}
        self._counters: defaultdict[tuple[Key, str], _OfProcesses] = defaultdict(lambda: defaultdict(dict))
        self._acknowledged: dict[tuple[int, str], tuple[float, int]] = {}
        section = self.plan.tables.get("client_quota", {})
        self.window_ns = section.get("window_num", 11) * section.get("window_size_seconds", 1) * NS_PER_S
        self._scope = section.get("scope", "gateway")
        faults = {each.what for each in self.plan.faults}
        self._members = sum(count + (count > 1) for count in self.plan.gateways)
        self._killed = "worker-kill" in faults
        self._steady = not faults & {
            "worker-kill",
            "pause",
            "stall",
            "reset",
            "broker-away",
            "broker-vanishes",
            "fleet-away",
        }
        self._fault_ns = sum(each.for_ms + 1_000 for each in self.plan.faults) * NS_PER_MS
        self._lied = "broker-lies" in faults
        self._may_stop_reading = "stall" in faults or any(each.does == "vanish" for each in self.plan.clients)
        if self._lied or "broker-keeps-fetches" in faults:  # clients wait for replies that never come
            self._fault_ns += 60 * NS_PER_S
        if "broker-vanishes" in faults:
            self._fault_ns += GONE_NS

    def report(self, law: str, detail: str) -> None:
        """Records a violation of a law."""
        if len(self.violations) < 20:
            self.violations.append(Violation(law, self.run.elapsed_ms, detail))

    # -- bytes that pass -------------------------------------------------------------------------------------

    def passed(self, tap: Tap, frame: Frame, count: int) -> None:
        """Bytes of a Produce request were sent to a broker."""
        began_ns = self.run.end_ns - self.plan.seconds * NS_PER_S
        self.passed_bytes[frame.client_id][(self.run.world.now_ns - began_ns) // NS_PER_S] += count
        self._pour("producer_byte_rate", tap, frame.client_id, count, frame.size)

    def fetched(self, tap: Tap, client_id: str, count: int) -> None:
        """A Fetch response of `count` bytes has begun to arrive. Negative: the rest of one will not arrive."""
        self._pour("consumer_byte_rate", tap, client_id, count, count)

    def _pour(self, key: Key, tap: Tap, client_id: str, count: int, size: int) -> None:
        limit = limit_of(self.plan, client_id, key)
        if limit is None:
            return
        bucket = self._bucket(key, tap, client_id, limit)
        now_ns = max(self.run.world.now_ns, tap.process.local_ns)
        bucket.largest = max(bucket.largest, size)
        bucket.pour(count, now_ns, self.window_ns + 2 * NS_PER_S)
        self.counter_bound(key, tap, client_id, bucket, now_ns)

    def _place(self, tap: Tap) -> object:
        if self._scope == "fleet":
            return None
        number = tap.process.unit.number
        return number if self._scope == "gateway" else (number, tap.channel.broker_id)

    def _bucket(self, key: Key, tap: Tap, client_id: str, limit: float) -> Bucket:
        name = (key, self._place(tap), client_id)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(limit, self.run.world.now_ns)
        return bucket

    def counter_bound(self, key: Key, tap: Tap, client_id: str, bucket: Bucket, now_ns: int) -> None:
        """In any span of time a counter passes at most quota x (time + 2 windows), a request, and what had begun."""
        bound = bucket.rate * 2 * self.window_ns / NS_PER_S + bucket.largest + bucket.rate
        if bucket.level <= bound:
            return
        members = self._members_of(tap)
        if members > 1:
            if not self._steady:
                return
            bound += (members - 1) * bucket.largest + bucket.within(EXCHANGE_NS, now_ns)
        bound += self._begun(client_id)
        if bucket.level > bound:
            self.report(
                "counter_bound",
                f"{key} of {client_id}: {bucket.level:,.0f} bytes in the bucket, and at most {bound:,.0f} may be",
            )

    def _members_of(self, tap: Tap) -> int:
        if self._scope == "fleet":
            return self._members
        count = self.plan.gateways[tap.process.unit.number - 1]
        return 1 if count == 1 else count

    def _begun(self, client_id: str) -> int:
        """The announced bytes of this client's requests that have arrived in part."""
        return sum(
            tap.under_way(client_id) for unit in self.run.gateways for tap in self.run.wires[unit].open
        )

    # -- replies ---------------------------------------------------------------------------------------------

    def answered(self, actor: Actor, connection: Connection, asked: Asked, frame: bytes) -> None:
        """A client has received a reply."""
        throttle_ms = throttle_of(asked.key, asked.version, len(frame) - 4, frame)
        if throttle_ms:
            until_ns = self.run.world.now_ns + throttle_ms * NS_PER_MS
            connection.quiet_until_ns = max(connection.quiet_until_ns, until_ns)
        if not actor.honest:
            return
        longest_ns = self.longest_wait_ns(actor)
        if throttle_ms * NS_PER_MS > longest_ns:
            self.report(
                "waits_are_debts",
                f"{actor.plan.client_id} is to wait {throttle_ms} ms after api {asked.key}, "
                f"and {longest_ns // NS_PER_MS} ms are due",
            )
        self._waited(actor, asked, longest_ns)

    def gave_up(self, actor: Actor, asked: Iterable[Asked]) -> None:
        """A client has given up waiting for replies."""
        if actor.honest:
            longest_ns = self.longest_wait_ns(actor)
            for each in asked:
                self._waited(actor, each, longest_ns)

    def _waited(self, actor: Actor, asked: Asked, longest_ns: int) -> None:
        waited_ns = self.run.world.now_ns - asked.at_ns
        most_ns = 5 * NS_PER_S + self._fault_ns + longest_ns + self._transfer_ns(actor)
        if waited_ns > most_ns:
            self.report(
                "waits_are_debts",
                f"{actor.plan.client_id} waited {waited_ns // NS_PER_MS} ms for api {asked.key}, "
                f"and should have waited {most_ns // NS_PER_MS} ms at most",
            )

    def _transfer_ns(self, actor: Actor) -> int:
        options = actor.options
        most_bytes = options.get("most_bytes", 10_000) if actor.plan.does != "consume" else 120_000
        return int(8 * options.get("in_flight", 1) * (most_bytes + 1_000) / LEAST_BYTES_PER_S * NS_PER_S)

    def longest_wait_ns(self, actor: Actor) -> int:
        """A client waits at most for the debt of its counter, and for the turns of that counter's connections."""
        client_id = actor.plan.client_id
        of_keys: dict[str, float] = {}
        now_ns = self.run.world.now_ns
        for (key, _, name), bucket in self._buckets.items():
            if name != client_id:
                continue
            turns = 1 + sum(
                len(each.connections) for each in self.run.actors if each.plan.client_id == client_id
            )
            # A request that the gateway has counted may not have reached the broker yet.
            level = (
                max(bucket.level_at(now_ns), bucket.window_sum)
                + 2 * turns * bucket.largest
                + self._begun(client_id)
            )
            of_keys[key] = max(of_keys.get(key, 0.0), level / bucket.rate)
        window_s = self.window_ns / NS_PER_S
        longest = sum(wait_s + window_s for wait_s in of_keys.values())
        if limit_of(self.plan, client_id, "request_percentage") is not None:
            longest += 3 * window_s
        if limit_of(self.plan, client_id, "metadata_request_rate") is not None:
            longest += API_BURST_S
        capacity = self.plan.tables.get("capacity", {}).get("producer_byte_rate")
        if capacity is not None:
            least = LEAST_PART * capacity / len(self.run.actors)
            longest += LENT_BURST_S + 2 * actor.options.get("bytes", 0) / least
        for name, rate in self._permit_limits(client_id).items():
            section = self.plan.tables.get("mutation_quota", {})
            sharers = self._sharers(name)
            asked = max(each.options.get("most_partitions", 4) for each in [actor, *sharers])
            most = 3 * max(asked, self.run.cluster.default_partitions * 3)
            burst_s = section.get("window_num", 11) * section.get("window_size_seconds", 1)
            longest += 2 * burst_s + (most * (1 + len(sharers)) + 2 * 50) / rate
        return int(longest * NS_PER_S)

    # -- quotas ----------------------------------------------------------------------------------------------

    def acknowledged(self, number: int, client_id: str, value: float) -> None:
        """A gateway has acknowledged a quota."""
        unit = self.run.gateways[number - 1]
        self._acknowledged[number, client_id] = (value, self.run.world.now_ns)
        self.quotas_in_force(unit, client_id, value)

    def quotas_in_force(self, unit: GatewayUnderTest, client_id: str, value: float) -> None:
        """A quota that was acknowledged is in force in every process that serves clients."""
        if self._killed or not self._steady:
            return
        for process, gateway in unit.serving:
            found = gateway.limits.get(QuotaEntity(client_id=client_id), QuotaKey.PRODUCER_BYTE_RATE)
            if found not in (value, *self.run.asked_quotas[client_id]):
                self.report(
                    "quotas_in_force",
                    f"{process.name}: the quota of {client_id} is {found}, and was set to {value}",
                )

    # -- state -----------------------------------------------------------------------------------------------

    def check_state(self) -> None:
        """The laws about the gateways' state between two events."""
        for unit in self.run.gateways:
            for process, gateway in unit.serving:
                # By then a process that stood still has done all its due work.
                if process.alive and self.run.world.now_ns >= process.paused_until_ns + 2 * NS_PER_S:
                    self.accounts_agree(process, gateway)
                    self.mutes_end(process, gateway)
                    if not process.in_turn:
                        self.muted_are_not_read(process, gateway)
                    self.bytes_are_owed_once(process, gateway)
                self.note_counters(unit, process, gateway)
            if unit.main is not None and unit.main in unit.gateways:
                self.permits_are_owed_once(unit.main, unit.gateways[unit.main])
            self.gone_clients_are_gone(unit)
        self.nothing_fails()

    def accounts_agree(self, process: HostedProcess, gateway: Gateway) -> None:
        """Opened minus closed connections are the open ones. Memory and announced bytes match their budgets."""
        for name, listener in gateway.listeners.items():
            metrics: Any = gateway._connection_metrics
            closed = sum(count for (of, _), count in metrics._closed.items() if of == name)
            if metrics._opened[name] - closed != len(listener.channels):
                self.report(
                    "opened_less_closed_is_active",
                    f"{process.name}: {metrics._opened[name]} - {closed} != {len(listener.channels)}",
                )
            sessions = [channel.session for channel in listener.channels]
            held = sum(session.accounted_bytes for session in sessions)
            memory = gateway.memory
            if held != memory.used_bytes:
                self.report(
                    "budgets",
                    f"{process.name}: connections hold {held} bytes, and the budget says {memory.used_bytes}",
                )
            most = memory.limit_bytes + gateway.operations.config.limits.max_frame_bytes
            if held > most + len(sessions) * 2 * _HANDSHAKE_BYTES:
                self.report(
                    "budgets", f"{process.name}: {held} bytes are in memory, and {memory.limit_bytes} may be"
                )
            announced = sum(session._announced_bytes for session in sessions)
            if announced != gateway.announced.used_bytes:
                self.report(
                    "budgets",
                    f"{process.name}: requests announce {announced} bytes, "
                    f"and the bound counts {gateway.announced.used_bytes}",
                )
        if gateway.pool is None and gateway._worker is None:
            counted = sum(
                gateway.connections.snapshot(now_ms=gateway._now_ms()).by_listener[name][0]
                for name in gateway.listeners
            )
            active = sum(len(each.channels) for each in gateway.listeners.values())
            if counted != active and not any(each._acceptor._waiting for each in gateway.listeners.values()):
                self.report(
                    "opened_less_closed_is_active", f"{process.name}: {counted} places are taken by {active}"
                )
        share = gateway.limits.share
        if not 0 < share <= 1:
            self.report("shares", f"{process.name}: its share of the limits is {share}")

    def mutes_end(self, process: HostedProcess, gateway: Gateway) -> None:
        """A mute ends when its time is over."""
        now_ms = gateway._now_ms()
        for listener in gateway.listeners.values():
            for channel in listener.channels:
                session = channel.session
                if session.muted & _THROTTLED and now_ms > session.throttling.until_ms + LATE_MS:
                    self.report(
                        "mutes_end",
                        f"{process.name}: {session.peer} is muted {now_ms - session.throttling.until_ms} ms longer: "
                        f"{MuteReason(session.muted)!r}, wakes in {session.wake_at_ms - now_ms} ms",
                    )

    def muted_are_not_read(self, process: HostedProcess, gateway: Gateway) -> None:
        """While the gateway takes no requests from a client, it does not read from it.

        Except while one waits for its quota: the gateway has to notice that its client has left.
        """
        for listener in gateway.listeners.values():
            for channel in listener.channels:
                session = channel.session
                transport = channel._transport  # type: ignore[attr-defined]
                if session.muted == _THROTTLED and session._holding:
                    continue
                if transport is not None and transport.is_reading() and not session.reading_client:
                    self.report(
                        "muted_are_not_read",
                        f"{process.name}: {session.peer} is read, and is muted: {MuteReason(session.muted)!r}",
                    )

    def bytes_are_owed_once(self, process: HostedProcess, gateway: Gateway) -> None:
        """No byte counter is higher than what its client sent or received through all gateways together."""
        for key, quotas in _byte_counters(gateway):
            for scoped, tracker in quotas.own():
                client_id = scoped.tracker_key.client_id
                if limit_of(self.plan, client_id, key) is None:  # no sum without a limit
                    continue
                found = [
                    bucket for name, bucket in self._buckets.items() if (name[0], name[2]) == (key, client_id)
                ]
                connections = sum(len(wire.open) for wire in self.run.wires.values())
                most = sum(bucket.total + bucket.largest * (2 + connections) for bucket in found)
                most += self._begun(client_id) + 200_000 * (1 + connections)
                held = tracker._meter._total
                if held > most and not self._lied:
                    self.report(
                        "owed_once",
                        f"{process.name}: {key} of {client_id} counts {held:,.0f}, and {most:,.0f} passed",
                    )

    def note_counters(self, unit: GatewayUnderTest, process: HostedProcess, gateway: Gateway) -> None:
        """Keeps references to clients' counters, because the gateway forgets idle ones."""
        for key, quotas in _byte_counters(gateway):
            for scoped, tracker in quotas.own():
                of_process = self._counters[key, scoped.tracker_key.client_id][unit.number, process.name]
                of_process[id(tracker)] = tracker

    def charged_is_what_passed(self, unit: GatewayUnderTest) -> None:
        """A counter is charged exactly what passed: bytes of Produce requests, and bytes of Fetch responses."""
        for (key, client_id), of_processes in self._counters.items():
            if limit_of(self.plan, client_id, key) is None or client_id in self.run.asked_quotas:
                continue
            charged = sum(
                _recorded(each) for (number, _), each in of_processes.items() if number == unit.number
            )
            sums = self.run.wires[unit].sums.get(client_id) or Sums()
            least, most = (sums.produced,) * 2 if key == "producer_byte_rate" else sums.fetched
            if not least - 0.5 <= charged <= most + 0.5:  # allows for the rounding of added sums
                self.report(
                    "charged_is_what_passed",
                    f"{unit.name}: {key} of {client_id} was charged {charged:,.0f} bytes, and "
                    + (f"{least:,} passed" if least == most else f"{least:,} to {most:,} passed"),
                )

    def others_are_counted_once(self) -> None:
        """Use of others that a process counts was recorded by these others, and is counted once."""
        for (key, client_id), of_processes in self._counters.items():
            for name, counters in of_processes.items():
                counted = sum(each._others for each in counters.values())
                most = sum(_recorded(each) for other, each in of_processes.items() if other != name)
                # A requested level may include a sample that has expired here, which covers one window: the limit,
                # and the request that exceeded it.
                most += (limit_of(self.plan, client_id, key) or 0.0) * self.window_ns / NS_PER_S
                most += self._largest_request(key, client_id)
                if counted > most + 0.5:
                    self.report(
                        "others_are_counted_once",
                        f"{name[1]}: {key} of {client_id} counts {counted:,.0f} of others, "
                        f"and they recorded {most:,.0f}",
                    )

    def _largest_request(self, key: Key, client_id: str) -> int:
        found = (bucket for name, bucket in self._buckets.items() if (name[0], name[2]) == (key, client_id))
        return max((bucket.largest for bucket in found), default=0)

    def permits_are_owed_once(self, process: HostedProcess, gateway: Gateway) -> None:
        """No client or group is in debt by more permits than all gateways together have charged it."""
        now_ms = gateway._now_ms()
        counters = [(key.client_id, tracker) for key, tracker in gateway.mutations.own()]
        counters += [(group_name(key.group), tracker) for key, tracker in gateway.mutations.groups.own()]
        for name, tracker in counters:
            taken = tracker.meter.taken(now_ms=now_ms)
            most: float = self._ever_charged[name]
            if taken > most + 0.001:
                self.report(
                    "owed_once",
                    f"{process.name}: {name} is in debt by {taken:g} permits, and {most:g} were taken",
                )

    def gone_clients_are_gone(self, unit: GatewayUnderTest) -> None:
        """A connection whose client has left ends soon, even if it is waiting for something."""
        now_ns = self.run.world.now_ns
        for tap in list(self.run.wires[unit].open):
            end = tap.transport._end
            # If a client sent more than the socket's buffer takes, its end of stream is behind unread bytes.
            if not (end.reset or end.peer.vanished or (end.ended and end.peer.closed)):
                tap.gone_ns = None
            elif tap.gone_ns is None:
                tap.gone_ns = now_ns
            elif now_ns - tap.gone_ns > SOON_NS + self._fault_ns + self._longest_reply_ns(tap):
                self.report(
                    "gone_clients_are_gone",
                    f"{unit.name}: {end.peer.address} has been gone for {(now_ns - tap.gone_ns) // NS_PER_MS} ms",
                )
                tap.gone_ns = now_ns

    def _longest_reply_ns(self, tap: Tap) -> int:
        """Extra time of a connection with pending replies, or a vanished client: until the kernel notices."""
        return GONE_NS if tap.waiting or tap.transport._end.peer.vanished else 0

    def brokers_are_hidden(self, actor: Actor, hosts: frozenset[str]) -> None:
        """The brokers that a client learns of are all at its gateway."""
        if others := hosts - {f"gateway-{actor.plan.gateway}"}:
            self.report("brokers_are_hidden", f"{actor.plan.client_id} has learned of {sorted(others)}")

    def nothing_fails(self) -> None:
        """No task, timer or connection ends because of a bug of the gateway."""
        log = self.run.failures
        while log:
            self.report("nothing_fails", log.pop(0))
        for unit in self.run.gateways:
            for process in [*unit.processes, *unit.dead]:
                while process.faults:
                    self.report("nothing_fails", process.faults.pop(0))
        if not self._lied:
            while self.run.cluster.problems:
                self.report("bytes_of_others", self.run.cluster.problems.pop(0))

    # -- when all clients have left --------------------------------------------------------------------------

    # -- mutations -------------------------------------------------------------------------------------------

    def charged(self, name: str, permits: float) -> None:
        """A gateway has charged permits to this client or group, or refunded some (negative)."""
        self._charged[name] += permits
        self._ever_charged[name] += max(0.0, permits)

    def mutated(self, client_id: str, permits: int) -> None:
        """A broker has created or deleted partitions for this client."""
        for name, limit in self._permit_limits(client_id).items():
            self._mutated[name] += permits
            if name:
                self._mutation_bound(name, limit, permits)

    def _permit_limits(self, client_id: str) -> dict[str, float]:
        """By name, the limit of a client's own counter, if it has one, and the limits of its groups' counters."""
        key: Key = "controller_mutation_rate"
        own = limit_of(self.plan, client_id, key)
        found = {} if own is None else {client_id: own}
        groups = groups_of(self.plan, client_id, key)
        return found | {group_name(group): limit for group, limit in groups.items()}

    def _sharers(self, name: str) -> list[Actor]:
        """The clients whose permits a counter counts."""
        return [each for each in self.run.actors if name in self._permit_limits(each.plan.client_id)]

    def _mutation_bound(self, name: str, limit: float, permits: int) -> None:
        """A counter passes at most its rate, its burst, and the excess of single requests."""
        now_ns = self.run.world.now_ns
        bucket = self._permits.get(name)
        if bucket is None:
            bucket = self._permits[name] = Bucket(limit, now_ns)
        bucket.largest = max(
            bucket.largest, permits
        )  # deleting a topic that was grown costs more than creating it
        bucket.pour(permits, now_ns, self.window_ns)
        bound = self._most_permits(name, limit, bucket.largest)
        if bucket.level > bound:
            self.report(
                "mutation_bound",
                f"{name}: {bucket.level:,.1f} permits are used beyond the rate, and at most {bound:,.1f} may be",
            )

    def _most_permits(self, name: str, limit: float, largest: int) -> float:
        """Burst and one request for each counter. One more window if requests cannot be refused."""
        section = self.plan.tables.get("mutation_quota", {})
        burst = limit * int(section.get("window_num", 11) * section.get("window_size_seconds", 1))
        users = self._sharers(name)
        partitions = self.run.cluster.default_partitions
        most = sum(max(largest, 3 * each.options.get("most_partitions", partitions)) for each in users)
        old = any(not each.options.get("strict", True) for each in users)
        # While the supervisor stands still, each worker counts by itself, so the client has its quota again in each.
        counters = len(self.plan.gateways) if self._steady else self._members
        return float(counters * (burst * (2 if old else 1) + most + 2 * limit))

    def permits_are_what_was_done(self) -> None:
        """Charged minus refunded permits equal the partitions that brokers have created and deleted."""
        limited = {name for each in self.run.actors for name in self._permit_limits(each.plan.client_id)}
        for name in sorted(limited & {*self._charged, *self._mutated}):
            charged, done = self._charged[name], self._mutated[name]
            if charged < done - 0.001 or (self._steady and not self._lied and charged > done + 0.001):
                self.report(
                    "permits_are_what_was_done",
                    f"{name} was charged {charged:g} permits, and {done} were used",
                )

    def expects(self, event: str) -> bool:
        """Whether a fault of the plan explains a log line about a failure."""
        return event == "worker_killed" and not self._steady

    def check_quiet(self) -> None:
        """The laws that hold when no client is connected."""
        for unit in self.run.gateways:
            for process, gateway in unit.serving:
                self.nothing_is_kept(process, gateway)
                self.members_catch_up(process, gateway)
                self.ends_have_reasons(process, gateway)
            if unit.main is not None and unit.main in unit.gateways:
                self.places_are_free(unit, unit.gateways[unit.main])
            if not unit.was_killed:
                self.charged_is_what_passed(unit)
        self.permits_are_what_was_done()
        if self._steady:
            self.others_are_counted_once()
        for actor in self.run.actors:
            refused = "connections" in self.plan.tables or not self._steady or self._fault_ns
            if actor.honest and not refused and not actor.answered and actor.options.get("acks") != 0:
                self.report("clients_are_served", f"{actor.plan.client_id} has got no reply")
            if actor.asked != actor.answered + actor.given_up:
                self.report(
                    "answered_once_in_order", f"{actor.plan.client_id}: some request was never answered"
                )

    def all_caught_up(self) -> bool:
        """Whether each member of a fleet knows the use of the others."""
        return all(_caught_up(gateway) for unit in self.run.gateways for _, gateway in unit.serving)

    def members_catch_up(self, process: HostedProcess, gateway: Gateway) -> None:
        """A member of a fleet that can reach the others soon knows their use."""
        if not _caught_up(gateway):
            self.report("members_catch_up", f"{process.name} does not know the use of the other members")

    def ends_have_reasons(self, process: HostedProcess, gateway: Gateway) -> None:
        """The gateway ends a connection only for what its client, a broker or a fault of the plan has done."""
        reasons = {CloseCause.CLIENT_CLOSED}
        if any(not each.honest for each in self.run.actors):
            reasons |= _BY_ADVERSARIES
        if self.plan.faults:
            reasons |= _BY_FAULTS
        if self._lied:
            reasons.add(CloseCause.UPSTREAM_DESYNC)
        if any(each.what == "broker-vanishes" for each in self.plan.faults):
            reasons.add(CloseCause.UPSTREAM_STALLED)
        if self._may_stop_reading:
            reasons.add(CloseCause.WRITE_TIMEOUT)
        for (listener, cause), count in gateway._connection_metrics._closed.items():
            if cause not in reasons:
                self.report(
                    "ends_have_reasons", f"{process.name}: {count} connections of {listener} ended by {cause}"
                )

    def nothing_is_kept(self, process: HostedProcess, gateway: Gateway) -> None:
        """An ended connection keeps nothing."""
        left = {
            "connections": sum(len(each.channels) for each in gateway.listeners.values()),
            "bytes in memory": gateway.memory.used_bytes,
            "announced bytes": gateway.announced.used_bytes,
            "waiting for memory": gateway.memory.waiting,
        }
        for quotas in (gateway.client_quotas.produce, gateway.client_quotas.fetch):
            for _, tracker in quotas.own():
                left["places at a bound"] = left.get("places at a bound", 0) + bool(tracker.queue)
                left["answers under way"] = left.get("answers under way", 0) + tracker.fetches
        for what, count in left.items():
            if count:
                self.report("nothing_is_kept", f"{process.name}: {count} {what}")

    def places_are_free(self, unit: GatewayUnderTest, gateway: Gateway) -> None:
        """No place of a connection is taken."""
        snapshot = gateway.connections.snapshot(now_ms=gateway._now_ms())
        taken = sum(snapshot.by_listener[name][0] for name in gateway.listeners)
        if taken:
            self.report("opened_less_closed_is_active", f"{unit.name}: {taken} places are taken by nothing")

    # -- at the end ------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """The laws that hold when the gateways have stopped."""
        self.nothing_fails()
        for unit in self.run.gateways:
            if not unit.finished:
                self.report("stops", f"{unit.name} has not ended in time")
            else:
                self.records_are_what_passed(unit)
        run = self.run
        own = run.clients_process.descriptors
        left = [number for number in run.network.files if number not in own]
        if left and all(unit.finished for unit in run.gateways):
            self.report("nothing_is_kept", f"{len(left)} descriptors are open after the end")

    def records_are_what_passed(self, unit: GatewayUnderTest) -> None:
        """Usage records agree with the wire for each client, to the byte."""
        requests: defaultdict[tuple[str, str], int] = defaultdict(int)
        offered: defaultdict[tuple[str, str], float] = defaultdict(float)
        for row in unit.rows():
            requests[row[3], row[2]] += row[5]
            offered[row[3], row[2]] += row[8]
        sums = self.run.wires[unit].sums
        for client_id in sorted({*sums, *(name for _, name in requests)}):
            if client_id == "~other":
                continue
            wire = sums.get(client_id) or Sums()
            for api, what, recorded, least, most in self._compared(client_id, wire, requests, offered):
                if self._killed and unit.was_killed:
                    least = 0
                if not least <= recorded <= most:
                    self.report(
                        "records_are_what_passed",
                        f"{unit.name}: {api} of {client_id!r}: {recorded:,} {what} are recorded, and "
                        + (f"{least:,} passed" if least == most else f"{least:,} to {most:,} passed"),
                    )

    def _compared(
        self,
        client_id: str,
        wire: Sums,
        requests: dict[tuple[str, str], int],
        offered: dict[tuple[str, str], float],
    ) -> Iterator[tuple[str, str, float, float, float]]:
        produce, fetch = UsageApi.PRODUCE.value, UsageApi.FETCH.value
        yield produce, "bytes", offered[produce, client_id], wire.produced, wire.produced
        yield produce, "requests", requests[produce, client_id], wire.produce_requests, wire.produce_requests
        yield fetch, "bytes", offered[fetch, client_id], wire.fetched[0], wire.fetched[1]
        yield fetch, "requests", requests[fetch, client_id], wire.fetch_answers[0], wire.fetch_answers[1]
        if limit_of(self.plan, client_id, "request_percentage") is not None:
            answers = sum(wire.answers.values())
            api = UsageApi.REQUEST.value
            yield api, "answers", requests[api, client_id], answers, answers + wire.unwritten
