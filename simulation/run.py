"""One run of a plan: creates the world, runs clients and faults, checks laws."""

from __future__ import annotations

import secrets
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import structlog

import gateway.app
import gateway.fleet.topic
import gateway.usage.service
import simulation.gateways
from quotas.mutations import MutationDecision, MutationQuotas, MutationTracker
from simulation.brokers import Cluster
from simulation.clients import Actor
from simulation.fleet import SimShareTopic, TopicService
from simulation.gateways import BOOTSTRAP_PORT, GatewayUnderTest, KeptLines, WatchedGateway, gateway_config
from simulation.laws import Laws, Violation, group_name
from simulation.network import Network, SimSocket, Transport
from simulation.plan import Plan
from simulation.process import HostedProcess, machine
from simulation.wire import Tap, Wire
from simulation.world import NS_PER_MS, NS_PER_S, World
from testkit.faults.schedule import Fault

LOOK_NS: Final = 100 * NS_PER_MS
"""Interval between checks of the gateways' state."""

_START_NS: Final = 30 * NS_PER_S
_LEAVE_NS: Final = 200 * NS_PER_S
_AGREE_NS: Final = 15 * NS_PER_S
_STOP_NS: Final = 60 * NS_PER_S

_FAILURES: Final = frozenset(
    {"channel_failed", "link_failed", "share_malformed", "worker_killed", "quota_store_not_closed"}
)
"""Log lines that report a failure of the gateway itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        violations: laws that were broken.
        digest: hash of all bytes that crossed any connection, with their times.
        events: the number of events.
        counts: numbers of things that happened, for statistics.
    """

    violations: list[Violation]
    digest: str
    events: int
    counts: dict[str, int]


class Run:
    """One run; see the module's docstring.

    Attributes:
        plan: the plan.
        world, network, cluster, gateways, actors, fleet_topics, laws: the parts of the run; see their classes.
        wires: the `Wire` of each gateway.
        failures: log lines that must not occur.
        asked_quotas: all values that clients have requested, by client id.
        end_ns: time at which clients end.
    """

    bootstrap_port = BOOTSTRAP_PORT

    def __init__(self, plan: Plan) -> None:
        """Creates the world; nothing happens yet."""
        self.plan = plan
        self.world = World(plan.seed)
        self.network = Network(
            self.world, most_delay_ns=plan.most_delay_ms * NS_PER_MS, buffer_bytes=plan.buffer_bytes
        )
        self.failures: list[str] = []
        self.asked_quotas: defaultdict[str, list[float]] = defaultdict(list)
        self.began_ns = self.world.now_ns
        self.end_ns = self.began_ns
        self.cluster = Cluster(self.world, self.network, nodes=plan.brokers, topics=plan.topics)
        self.clients_process = HostedProcess(self.network, "clients", "10.3.0.0", most_cost_ns=3_000)
        self.gateways: list[GatewayUnderTest] = []
        self.wires: dict[GatewayUnderTest, Wire] = {}
        self.actors: list[Actor] = []
        self.fleet_topics = TopicService(self.world)
        self._leaving = False
        self.laws = Laws(self)
        self.cluster.mutated = self.laws.mutated

    @property
    def elapsed_ms(self) -> int:
        """Time since the run began."""
        return (self.world.now_ns - self.began_ns) // NS_PER_MS

    def report(self, law: str, detail: str) -> None:
        """See `Laws.report`."""
        self.laws.report(law, detail)

    def go(self) -> Outcome:
        """Runs the plan."""
        with self._machine():
            try:
                self._play()
            finally:
                digest = self.world.digest.hexdigest()
                for process in self._processes():
                    process.bury()
        counts = {
            "requests": sum(each.asked for each in self.actors),
            "replies": sum(each.answered for each in self.actors),
            "connections": sum(wire.opened for wire in self.wires.values()),
            **{f"broker_{name}": count for name, count in sorted(self.cluster.counts.items())},
        }
        return Outcome(self.laws.violations, digest, self.world.events, counts)

    def _processes(self) -> Iterator[HostedProcess]:
        for unit in self.gateways:
            yield from unit.processes
            yield from unit.dead
        yield self.clients_process

    def _play(self) -> None:
        world, plan, laws = self.world, self.plan, self.laws
        for number in range(1, len(plan.gateways) + 1):
            tables = {**plan.tables, "server": {"workers": plan.gateways[number - 1]}}
            if plan.tables.get("client_quota", {}).get("scope") == "fleet":
                tables["fleet"] = {**tables.get("fleet", {}), "members": len(plan.gateways)}
            config = gateway_config(number, tables)
            unit = GatewayUnderTest(
                world,
                self.network,
                number,
                config,
                most_cost_ns=plan.most_cost_us * 1_000,
                on_transport=self._on_transport,
            )
            self.gateways.append(unit)
            wire = Wire(world, self.report, longest_mute_ms=config.limits.max_mute_ms)
            self.wires[unit] = wire
            wire.on_passed, wire.on_fetched = laws.passed, laws.fetched
        for unit in self.gateways:
            unit.start()
        world.run(world.now_ns + _START_NS, self._started)
        if not self._started():
            self.report("starts", "a gateway has not become ready")
            return
        self.end_ns = world.now_ns + plan.seconds * NS_PER_S
        self.actors.extend(Actor(self, each, number) for number, each in enumerate(plan.clients))
        for actor in self.actors:
            self.clients_process.run_task(actor.live())
        for fault in plan.faults:
            world.after(fault.at_ms * NS_PER_MS, self._happen, fault)
        world.after(LOOK_NS, self._look)
        world.run(self.end_ns, self._broken)
        self._mend()
        world.run(self.end_ns + _LEAVE_NS, lambda: self._broken() or self._left())
        if self._broken():
            return
        if not self._left():
            waiting = [each.plan.client_id for each in self.actors if not each.done]
            taps = [
                f"{unit.name}: {tap.transport.get_extra_info('peername')}"
                for unit in self.gateways
                for tap in self.wires[unit].open
            ]
            self.report(
                "gone_clients_are_gone",
                f"after the end clients wait: {waiting}; connections are open: {taps}",
            )
            return
        # Waits for the effects of the last events, also in processes that stand still.
        awake_ns = max((each.paused_until_ns for each in self._processes()), default=0)
        world.run(max(world.now_ns, awake_ns) + NS_PER_S, self._broken)
        world.run(world.now_ns + _AGREE_NS, lambda: self._broken() or laws.all_caught_up())
        laws.check_quiet()
        self._leaving = True
        for unit in self.gateways:
            unit.stop()
        world.run(
            world.now_ns + _STOP_NS,
            lambda: all(unit.finished and not unit.processes for unit in self.gateways),
        )
        laws.check_end()

    def _started(self) -> bool:
        return all(
            unit.main is not None
            and unit.main in unit.gateways
            and len(unit.serving) == self.plan.gateways[unit.number - 1]
            and all(each.why_not_ready() is None for _, each in unit.serving)
            and self._listens(unit)
            for unit in self.gateways
        )

    def _listens(self, unit: GatewayUnderTest) -> bool:
        return (unit.ip, BOOTSTRAP_PORT) in self.network.ports

    def _broken(self) -> bool:
        return bool(self.laws.violations)

    def _left(self) -> bool:
        return all(each.done for each in self.actors) and not any(wire.open for wire in self.wires.values())

    def _look(self) -> None:
        if not self._leaving:
            for wire in self.wires.values():
                wire.forget_dead()
            self.laws.check_state()
            self.world.after(LOOK_NS, self._look)

    def _on_transport(
        self,
        unit: GatewayUnderTest,
        process: HostedProcess,
        transport: Transport,
        sock: SimSocket,
        ours: bool,
    ) -> None:
        protocol = transport.get_protocol()
        wire = self.wires[unit]
        if not ours:
            if sock.getsockname()[1] != 9644:
                Tap(wire, process, transport, protocol)
            return
        channel = getattr(protocol, "_user", None)
        tap = next((each for each in wire.open if each.channel is channel), None)
        if tap is not None:
            tap.connect(transport)

    # -- faults ----------------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        world, nodes = self.world, list(self.cluster.nodes.values())
        node = nodes[fault.where % len(nodes)]
        unit = self.gateways[fault.where % len(self.gateways)]
        after_ns = fault.for_ms * NS_PER_MS
        links = sorted({end.link.number: end for end in self.network.ends if end.address[0] != ""}.items())
        match fault.what:
            case "stall" if links:
                links[fault.where * 7 % len(links)][1].link.stalled_until_ns = world.now_ns + after_ns
            case "reset" if links:
                end = links[fault.where * 7 % len(links)][1]
                end.peer._lose()
                end._lose()
            case "broker-away":
                node.stop()
                world.after(after_ns, node.start)
            case "broker-vanishes":
                node.vanish()
                world.after(after_ns, node.start)
            case "broker-slow":
                node.slow_ns = fault.amount * NS_PER_MS
                world.after(after_ns, setattr, node, "slow_ns", 0)
            case "broker-keeps-fetches":
                node.keeps_fetches = True
                world.after(after_ns, setattr, node, "keeps_fetches", False)
            case "broker-lies":
                node.lies = ("id", "size")[fault.amount % 2]
            case "leaders-move":
                self.cluster.move_leaders()
            case "clock-step":
                world.wall_offset_ns += fault.amount * NS_PER_MS
            case "disk-full":
                unit.disk_full = True
                world.after(after_ns, setattr, unit, "disk_full", False)
            case "worker-kill" if unit.workers:
                unit.kill_worker(fault.where)
            case "fleet-away":
                self.fleet_topics.away = True
                world.after(after_ns, setattr, self.fleet_topics, "away", False)
            case "pause":
                processes = unit.processes
                if processes:
                    processes[fault.where // 2 % len(processes)].pause(min(after_ns, 3 * NS_PER_S))

    def _mend(self) -> None:
        """Ends all faults: brokers answer again."""
        for node in self.cluster.nodes.values():
            node.slow_ns = 0
            node.lies = None
            node.keeps_fetches = False
            node.start()
        self.fleet_topics.away = False
        for unit in self.gateways:
            unit.disk_full = False

    # -- the machine -----------------------------------------------------------------------------------------

    @contextmanager
    def _machine(self) -> Iterator[None]:
        dice = self.world.dice("random")

        def token_hex(count: int = 16) -> str:
            return dice.randbytes(count).hex()

        def uuid4() -> uuid.UUID:
            return uuid.UUID(bytes=dice.randbytes(16), version=4)

        def kill(pid: int) -> None:
            for unit in self.gateways:
                for process in unit.processes:
                    if process.pid == pid:
                        unit._bury(process)

        with ExitStack() as stack:
            stack.enter_context(machine(self.world, self.network, kill))
            for patch in (
                mock.patch.object(gateway.app, "Gateway", WatchedGateway),
                mock.patch.object(simulation.gateways, "Gateway", WatchedGateway),
                # The loop's watchdog would report every 50 ms, which would be most of all events.
                mock.patch.object(gateway.app, "TICK_S", 1.0),
                mock.patch.object(gateway.usage.service, "ThreadedSink", KeptLines),
                mock.patch.object(gateway.fleet.topic, "ShareTopic", SimShareTopic),
                mock.patch.object(SimShareTopic, "service", self.fleet_topics, create=True),
                mock.patch.object(secrets, "token_hex", token_hex),
                mock.patch.object(secrets, "token_bytes", dice.randbytes),
                mock.patch.object(uuid, "uuid4", uuid4),
            ):
                stack.enter_context(patch)
            stack.enter_context(_permits_to(self.laws))
            stack.enter_context(_log_to(self))
            yield


@contextmanager
def _permits_to(laws: Laws) -> Iterator[None]:
    """Passes charged and refunded permits to the laws."""
    charge, give_back = MutationQuotas.charge, MutationTracker.give_back

    def charging(
        self: MutationQuotas, user: str, client_id: str, permits: float, **more: Any
    ) -> MutationDecision:
        decision = charge(self, user, client_id, permits, **more)
        for group in decision.groups:
            laws.charged(group_name(group), decision.charged)
        if decision.own:
            laws.charged(client_id, decision.charged)
        return decision

    def giving_back(self: MutationTracker, permits: float, *, now_ms: int) -> None:
        give_back(self, permits, now_ms=now_ms)
        name = group_name(self.group) if self.group else self.match.tracker_key.client_id
        laws.charged(name, -permits)

    with (
        mock.patch.object(MutationQuotas, "charge", charging),
        mock.patch.object(MutationTracker, "give_back", giving_back),
    ):
        yield


@contextmanager
def _log_to(run: Run) -> Iterator[None]:
    """Reads the gateways' log instead of writing it."""
    known = structlog.get_config()

    def look(_logger: Any, level: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
        event = fields["event"]
        failed = event in _FAILURES or (level in ("error", "critical") and bool(fields.get("exc_info")))
        if failed and not run.laws.expects(event):
            names = {name: repr(value)[:300] for name, value in fields.items() if name != "event"}
            run.failures.append(f"log: {event} {names}")
        raise structlog.DropEvent

    structlog.configure(processors=[look], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**known)


def run(plan: Plan) -> Outcome:
    """Runs a plan."""
    return Run(plan).go()
