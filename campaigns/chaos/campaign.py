"""Plays rounds of faults, and checks the rules during and after each of them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.chaos.clients import (
    BASE,
    HalfFrame,
    NumberedProducer,
    NumberReader,
    QuotaWriter,
    Reader,
    port_of_leader,
    slow_sender,
)
from campaigns.chaos.gateways import (
    DRAIN_TIMEOUT_MS,
    FRAME_TIMEOUT_MS,
    MOST_TIMES,
    ChaosGateway,
    Patience,
    broker_away,
    copy_of_source,
)
from campaigns.chaos.schedule import SQLITE_GATEWAY, TOPIC_GATEWAYS, round_of
from campaigns.chaos.usage_ledger import UsageLedger
from campaigns.chaos.watch import STALE_S, ReadinessWatch
from embedded_kafka.kafka import KafkaCluster, KafkaStartError
from gateway.runtime.lateness import LATE_MS
from testkit.faults.effects import FullDisk, SteppedClock, Stopped
from testkit.faults.play import play
from testkit.faults.schedule import Fault, Schedule, rounds_of
from testkit.raw_client import HOST
from testkit.wire_client import ConnectionEnded, WireClient

QUOTAS: Final = "__chaos_quotas"
NUMBERS: Final = "numbers"
DRAINS: Final = "drains-" + "x" * 200
"""Answers repeat this long name, so that the waiting answers exceed the buffers of a client's kernel."""
_AGREE_S: Final = 5.0
_READ_S: Final = 20.0
_DISK_BYTES: Final = 512 * 1024
_SESSION_MS: Final = 4_000
"""The controller fences a broker that sends nothing for so long."""
_IMPORTED: Final = {f"imported-{at}": BASE for at in range(50_000)}
_FAULT_S: Final = 450.0
_IMPORT_S: Final = 60.0
_WRITABLE_S: Final = 60.0
_TOPIC_AWAY_S: Final = 2.0
_STALL_MS: Final = 250
"""CPU time of one event. An import in one piece takes seconds; starts and collections take tens of ms."""
_FAILURES: Final = (OSError, KafkaException, ConnectionEnded, KafkaStartError, subprocess.SubprocessError)


@dataclass(slots=True)
class Report:
    """Results of a campaign.

    Attributes:
        rounds, seconds: rounds played, and how long they took.
        faults: number of faults of each kind.
        violations: broken rules, each with its round.
        alterations, records: numbers of acknowledged ones; all of them were checked.
        drained: number of replies during drains.
        looks, green: how often readiness was checked, and how often the gateway was ready.
        usage_lines: number of lines read from files.
    """

    rounds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    alterations: int = 0
    records: int = 0
    drained: int = 0
    looks: int = 0
    green: int = 0
    usage_lines: int = 0


class ChaosCampaign:
    """See the module."""

    def __init__(
        self, *, seed: int, tell: Callable[[str], None] = print, without: str = "", folder: Path | None = None
    ) -> None:
        """Prepare the campaign without starting anything.

        Args:
            seed: seed of the schedule.
            tell: called with lines of progress.
            without: a row (L01) whose fix is removed from the gateways.
            folder: folder that keeps logs and files; None to delete them at the end.
        """
        self._seed, self._tell, self._without, self._folder = seed, tell, without, folder
        self.report = Report()
        self._round = 0

    def run(
        self,
        *,
        seconds: float,
        first_round: int = 0,
        most_rounds: int = 1_000_000,
        schedule: Schedule | None = None,
    ) -> Report:
        """Play rounds until the time is over, or until the removed fix shows as a violation.

        Args:
            seconds: no new round begins after this time.
            first_round, most_rounds: first number and maximum count of the drawn rounds.
            schedule: a schedule to play instead of drawn rounds.
        """
        numbers = range(first_round, first_round + most_rounds)
        rounds = rounds_of(schedule, lambda number: round_of(self._seed, number), numbers)
        properties = {"broker.session.timeout.ms": _SESSION_MS, "broker.heartbeat.interval.ms": 500}
        with (
            tempfile.TemporaryDirectory(prefix="sluice-chaos-") as folder,
            KafkaCluster(3, properties=properties) as cluster,
        ):
            self._cluster = cluster
            try:
                self._prepare(self._folder or Path(folder))
                began_s = time.monotonic()
                for self._round, faults in rounds:
                    before = len(self.report.violations)
                    self._play(faults)
                    self.report.rounds += 1
                    if len(self.report.violations) > before:
                        self._tell(
                            f"{Schedule(self._seed, {self._round: faults})}# can be played with --schedule"
                        )
                    found = any(f": {self._without}: " in each for each in self.report.violations)
                    if (self._without and found) or time.monotonic() >= began_s + seconds:
                        break
                self.report.seconds = time.monotonic() - began_s
            finally:
                self._end()
        return self.report

    def _violated(self, what: str) -> None:
        self._tell(f"round {self._round}: {what}")
        self.report.violations.append(f"round {self._round}: {what}")

    def _prepare(self, folder: Path) -> None:
        self._threads: list[QuotaWriter | NumberedProducer | NumberReader | ReadinessWatch] = []
        self._gateways: list[ChaosGateway] = []
        self._admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
        self._make_topics()
        brokers = ", ".join(f'"{address}"' for address in self._cluster.brokers.values())
        source = copy_of_source(folder / "source")
        for name, topic in (("gw0", QUOTAS), ("gw1", QUOTAS), ("gw2", None)):
            gateway = ChaosGateway(
                folder / name,
                brokers,
                topic=topic,
                disk_bytes=0 if topic else _DISK_BYTES,
                source=source,
                without=self._without,
            )
            self._gateways.append(gateway)
            gateway.start()
        for gateway in self._gateways:
            if (why := gateway.await_ready()) is not None:
                raise OSError(f"{gateway.folder.name} does not get ready: {why}")
        ports = [each.port for each in self._gateways[:2]]
        self._writers = [QuotaWriter(gateway, f"writer-{at}") for at, gateway in enumerate(self._gateways)]
        self._producer, self._reader = NumberedProducer(ports, NUMBERS), NumberReader(ports, NUMBERS)
        self._numbers = Reader(self._cluster.bootstrap, NUMBERS)
        self._drains = Reader(self._cluster.bootstrap, DRAINS)
        self._stalls = [0] * len(self._gateways)
        self._ledgers = [UsageLedger(gateway.usage) for gateway in self._gateways]
        self._watches = []
        for at, gateway in enumerate(self._gateways):
            seen = self._writers[2:] if at == SQLITE_GATEWAY else self._writers[:2]
            self._watches.append(ReadinessWatch(gateway, seen, self._violated))
        self._threads = [*self._writers, self._producer, self._reader, *self._watches]
        for thread in self._threads:
            thread.start()

    def _make_topics(self) -> None:
        safe = {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
        wanted = [NewTopic(topic, 1, 3, config=safe) for topic in (NUMBERS, DRAINS)]
        for made in self._admin.create_topics(wanted).values():
            made.result(30)

    def _end(self) -> None:
        for thread in self._threads:
            thread.stopped.set()
        for gateway in self._gateways:
            gateway.close()
        for thread in self._threads:
            thread.join(10)
        if self._threads:
            self._numbers.close()
            self._drains.close()
            self.report.looks = sum(watch.looks for watch in self._watches)
            self.report.green = sum(watch.green for watch in self._watches)

    # -- faults ----------------------------------------------------------------------------------------------

    def _play(self, faults: Sequence[Fault]) -> None:
        began_s = time.monotonic()
        for writer in self._writers:
            writer.paused.clear()
        for what in play(faults, self._carry_out, failures=_FAILURES, within_s=_FAULT_S):
            self._violated(what)
        played_s = time.monotonic()
        self._check()
        self._tell(
            f"round {self._round}: {', '.join(f'{each.what} {each.where}' for each in faults)}; "
            f"{played_s - began_s:.1f} s and {time.monotonic() - played_s:.1f} s of checks"
        )

    def _carry_out(self, fault: Fault) -> None:
        self.report.faults[fault.what] += 1
        cluster, at, seconds = self._cluster, fault.where, fault.for_ms / 1_000
        match fault.what:
            case "broker-kill":
                with broker_away(cluster, at, cluster.kill_broker):
                    time.sleep(seconds)
            case "broker-restart":
                with broker_away(cluster, at, cluster.stop_broker):
                    pass
            case "broker-pause":
                with Stopped([cluster.pid(at)]):
                    # The controller fences the broker and another one leads. Then it continues with its old requests.
                    time.sleep(_SESSION_MS / 1_000 + seconds)
            case "topic-again":
                self._make_topic_again()
            case _:
                self._at_gateway(fault, self._gateways[at], seconds)

    def _at_gateway(self, fault: Fault, gateway: ChaosGateway, seconds: float) -> None:
        match fault.what:
            case "kill":
                with gateway.away(signal.SIGKILL):
                    pass
            case "terminate":
                self._terminate(gateway)
            case "pause":
                self._pause(gateway, (FRAME_TIMEOUT_MS + LATE_MS) / 1_000 + seconds)
            case "hang-up":
                self._hang_up(gateway)
            case "import":
                self._import(gateway, self._writers[fault.where])
            case "disk-full":
                self._fill_disk(gateway)
            case "clock-step":
                self._step_clock(gateway, fault.amount / 1_000, seconds)

    def _terminate(self, gateway: ChaosGateway) -> None:
        if gateway.await_ready(20) is not None:
            return
        name, ready = f"round-{self._round}-{time.monotonic_ns()}", threading.Event()
        port = port_of_leader(gateway.port, DRAINS)
        received: list[int | None] = []
        sender = threading.Thread(
            target=lambda: received.append(asyncio.run(slow_sender(port, DRAINS, name, ready))), daemon=True
        )
        sender.start()
        ready.wait(20)
        gateway.end(signal.SIGTERM)
        sender.join(60)
        if gateway.exit_codes[-1] != 0:
            self._violated(f"L08: SIGTERM ended {gateway.folder.name} with {gateway.exit_codes[-1]}")
        if out_of_time := gateway.draining_s * 1000 >= DRAIN_TIMEOUT_MS:
            self._violated(f"L09: the drain of {gateway.folder.name} took {gateway.draining_s:.0f} s")
        gateway.start()
        if not received or received[0] is None:
            return
        carried_out = sum(value.startswith(name.encode() + b"-") for value in self._drains.read_to_end())
        self.report.drained += carried_out
        if received[0] < carried_out and not out_of_time:
            self._violated(
                f"L02: {carried_out} requests were carried out and {received[0]} answered at a drain"
            )

    def _pause(self, gateway: ChaosGateway, seconds: float) -> None:
        if gateway.await_ready(20) is not None:
            return
        while True:
            began_s = time.monotonic()
            clients = [HalfFrame(gateway.port) for _ in range(5)]
            # When the gateway answers this request, it has read all earlier bytes.
            # If a broker is killed now, this client's connection ends.
            with suppress(ConnectionEnded), WireClient((HOST, gateway.port)) as asking:
                asking.ask("Metadata", 9, topics=[], allow_auto_topic_creation=False)
                if time.monotonic() - began_s < FRAME_TIMEOUT_MS / 2_000:
                    break
            # A paused broker answers late. Half requests may then have timed out before the gateway's pause.
            for half in clients:
                half.close()
        with gateway.stopped():
            for client in clients:
                client.finish()
            time.sleep(seconds)
        answered = sum(client.answered() for client in clients)
        if answered < len(clients):
            self._violated(
                f"L06: {answered} of {len(clients)} requests that came during a pause were answered"
            )

    def _hang_up(self, gateway: ChaosGateway) -> None:
        if gateway.await_ready(20) is not None:
            return
        for _ in range(5):
            gateway.signal(signal.SIGHUP)
            time.sleep(0.02)

    def _import(self, gateway: ChaosGateway, writer: QuotaWriter) -> None:
        if gateway.await_ready(20) is not None:
            return
        # One import at a time: the gateway refuses the second.
        writer.pause()
        # Validated and compared, but not carried out: a hundred imports would fill any store.
        patience = Patience(gateway, _IMPORT_S)
        why = gateway.set_quotas(_IMPORTED, MOST_TIMES * _IMPORT_S, dry_run=True)
        if why is not None or patience.over:
            self._violated(
                f"{gateway.folder.name} did not look at {len(_IMPORTED)} quotas: {why or 'late'} ({patience})"
            )
        writer.paused.clear()

    def _make_topic_again(self) -> None:
        gateways = [self._gateways[at] for at in TOPIC_GATEWAYS]
        for at in TOPIC_GATEWAYS:
            self._writers[at].pause()
        if any(gateway.await_ready(60) is not None for gateway in gateways):
            return
        before = gateways[0].quotas()
        (deleted,) = self._admin.delete_topics([QUOTAS]).values()
        try:
            deleted.result(30)
        except KafkaException as exc:
            # An answer was lost, the client asked again, and the topic was already deleted.
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        for at in TOPIC_GATEWAYS:
            self._watches[at].not_ready_from_s = time.monotonic() + STALE_S
        # librdkafka notices a topic that is recreated at once, but not one that is missing for a while.
        time.sleep(_TOPIC_AWAY_S)
        try:
            self._make_quota_topic()
            deadline_s = time.monotonic() + 2 * STALE_S
            while any(each.why_not_ready() is None for each in gateways) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            if any(gateway.quotas() != before for gateway in gateways):
                self._violated("L01: what was in force is lost with its topic")
            # As an operator does it: one gateway restarts, all quotas are imported there, the other gateway follows.
            self._watches[0].not_ready_from_s, self._watches[0].excused = None, True
            gateways[0].end(signal.SIGTERM)
            gateways[0].start()
            if (why := gateways[0].await_ready()) is not None:
                self._violated(f"{gateways[0].folder.name} is not ready after its start: {why}")
            deadline_s = time.monotonic() + 30
            while gateways[0].set_quotas(before) is not None and time.monotonic() < deadline_s:
                time.sleep(0.5)
            self._watches[1].not_ready_from_s = None
            if (why := gateways[1].await_ready(30)) is not None:
                self._violated(
                    f"L01: {gateways[1].folder.name} does not follow the topic that has all quotas: {why}"
                )
                gateways[1].end(signal.SIGTERM)
                gateways[1].start()
        finally:
            for at in TOPIC_GATEWAYS:
                self._watches[at].not_ready_from_s, self._watches[at].excused = None, False

    def _make_quota_topic(self) -> None:
        deadline_s = time.monotonic() + 20
        while True:
            try:
                (made,) = self._admin.create_topics(
                    [NewTopic(QUOTAS, 1, 3, config={"cleanup.policy": "compact", "min.insync.replicas": "2"})]
                ).values()
                made.result(30)
            except KafkaException as exc:
                if exc.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # the old topic is deleted: this one is new, and the answer to its creation was lost
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)
            else:
                return

    def _fill_disk(self, gateway: ChaosGateway) -> None:
        if not gateway.disk.mounted or gateway.await_ready(20) is not None:
            return
        many = {f"many-{at}": BASE + self._round for at in range(100)}
        altering = threading.Thread(target=gateway.set_quotas, args=(many,))
        altering.start()
        gateway.await_log()
        gateway.end(signal.SIGKILL)
        altering.join()
        with FullDisk(gateway.disk):
            gateway.start()
            if (why := gateway.await_ready()) is not None:
                self._violated(f"L03: {gateway.folder.name} does not serve on a full disk: {why}")
        if not gateway.running:
            gateway.start()
        # So that the disk has enough space for the next fault.
        patience = Patience(gateway, _WRITABLE_S)
        while (why := gateway.set_quotas({"after": BASE + self._round})) is not None and not patience.over:
            time.sleep(0.2)
        if why is not None:
            self._violated(
                f"L03: {gateway.folder.name} can't be written though there is room: {why} ({patience})"
            )

    def _step_clock(self, gateway: ChaosGateway, ahead_s: float, seconds: float) -> None:
        if gateway.await_ready(20) is not None:
            return
        before = self._usage_files(gateway)
        with SteppedClock(gateway.clock, ahead_s):
            deadline_s = time.monotonic() + 15
            # Retention runs when a file is complete.
            while len(self._usage_files(gateway) - before) < 2 and time.monotonic() < deadline_s:
                time.sleep(0.1)
            time.sleep(seconds)
            gone = before - self._usage_files(gateway)
        if gone:
            self._violated(f"L05: {len(gone)} usage files were deleted when the clock was ahead")

    def _usage_files(self, gateway: ChaosGateway) -> set[str]:
        return {path.name for path in gateway.usage.glob("usage-*")}

    # -- what must hold --------------------------------------------------------------------------------------

    def _check(self) -> None:
        for gateway in self._gateways:
            if not gateway.running:
                self._violated(f"{gateway.folder.name} has ended by itself")
                gateway.start()
            if (why := gateway.await_ready()) is not None:
                self._violated(f"{gateway.folder.name} does not get ready again: {why}")
        for writer in self._writers:
            writer.pause()
        deadline_s = time.monotonic() + _AGREE_S
        while (wrong := self._disagreement()) is not None and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if wrong is not None:
            self._violated(wrong)
        self.report.alterations = sum(writer.count for writer in self._writers)
        for writer in self._writers:
            if not writer.count:
                self._violated(f"{writer.user} never had an alteration acknowledged")
        self._check_records()
        self._check_usage()
        self._check_stalls()

    def _check_stalls(self) -> None:
        # The gateway may free an import's memory after its answer.
        for at, gateway in enumerate(self._gateways):
            stalls_ms = gateway.stalls_ms()
            if (longest_ms := max(stalls_ms[self._stalls[at] :], default=0)) >= _STALL_MS:
                self._violated(
                    f"L04: the loop of {gateway.folder.name} was blocked for {longest_ms} ms of CPU time"
                )
            self._stalls[at] = len(stalls_ms)

    def _disagreement(self) -> str | None:
        try:
            views = [gateway.quotas() for gateway in self._gateways]
        except OSError as exc:
            return f"a gateway can't be asked: {exc}"
        if views[0] != views[1]:
            differing = {
                user for user in views[0].keys() | views[1].keys() if views[0].get(user) != views[1].get(user)
            }
            return f"the views differ in {len(differing)} quotas, {min(differing)} for instance"
        for at, writer in enumerate(self._writers):
            in_force = views[at if at == SQLITE_GATEWAY else 0].get(writer.user, BASE) - BASE
            if not writer.acknowledged <= in_force <= writer.tried:
                return f"{writer.user}: {writer.acknowledged} was acknowledged and {in_force} is in force"
        return None

    def _check_records(self) -> None:
        # The records that the brokers acknowledged before the check reads the topic.
        numbers = [self._producer.acknowledged.popleft() for _ in range(len(self._producer.acknowledged))]
        try:
            end = self._numbers.end()
        except KafkaException as exc:
            self._violated(f"the brokers do not say where a topic ends: {exc}")
            return
        deadline_s = time.monotonic() + _READ_S
        while self._reader.position < end and time.monotonic() < deadline_s:
            time.sleep(0.05)
        self.report.records = self._producer.count
        if self._reader.position < end:
            self._producer.acknowledged.extend(numbers)
            self._violated(f"L09: the consumer got nothing after {self._reader.position} for {_READ_S:.0f} s")
        elif lost := self._reader.lacks(numbers):
            self._violated(f"{lost} acknowledged records are lost")
        if self._reader.twice or self._reader.disordered:
            self._violated(
                f"{self._reader.twice} records are there twice, {self._reader.disordered} in another order"
            )
            self._reader.twice = self._reader.disordered = 0

    def _check_usage(self) -> None:
        for gateway, ledger in zip(self._gateways, self._ledgers, strict=True):
            try:
                told = gateway.usage_lines()
            except OSError as exc:
                self._violated(f"{gateway.folder.name} does not report its usage lines: {exc}")
                continue
            for fault in ledger.faults(told):
                self._violated(f"usage of {gateway.folder.name}: {fault}")
        self.report.usage_lines = sum(ledger.lines for ledger in self._ledgers)
