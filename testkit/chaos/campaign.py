"""Rounds of faults, and what must hold after each of them."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from embedded_kafka.kafka import KafkaCluster
from testkit.chaos.clients import HalfFrame, NumberedProducer, QuotaWriter, Reader, slow_sender
from testkit.chaos.gateways import FRAME_TIMEOUT_MS, KEEP_HOURS, ChaosGateway
from testkit.chaos.schedule import SQLITE_GATEWAY, TOPIC_GATEWAYS, Fault, Step, round_of

QUOTAS: Final = "__chaos_quotas"
NUMBERS: Final = "numbers"
DRAINS: Final = "drains-" + "x" * 200
"""Answers repeat the name, so that those that wait are more than a client's kernel takes."""
_AGREE_S: Final = 5.0
_STALE_S: Final = 5.0
_DISK_BYTES: Final = 512 * 1024


@dataclass(slots=True)
class Report:
    """What a campaign came to.

    Attributes:
        rounds, seconds: played.
        faults: how many of each kind.
        violations: what did not hold, with its round.
        alterations, records, drained: acknowledged alterations and records, replies at drains; all of them checked.
    """

    rounds: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    alterations: int = 0
    records: int = 0
    drained: int = 0


class ChaosCampaign:
    """See the module."""

    def __init__(self, *, seed: int, tell: Callable[[str], None] = print) -> None:
        """Nothing runs yet.

        Args:
            seed: of the schedule.
            tell: is given lines of progress.
        """
        self._seed, self._tell = seed, tell
        self.report = Report()
        self._round = 0

    def run(self, *, seconds: float, first_round: int = 0, most_rounds: int = 1 << 30) -> Report:
        """Play rounds until the time is over."""
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as folder, KafkaCluster(3) as cluster:
            self._cluster = cluster
            self._prepare(Path(folder))
            try:
                playing_s = time.monotonic()
                while time.monotonic() < playing_s + seconds and self.report.rounds < most_rounds:
                    self._round = first_round + self.report.rounds
                    self._play(round_of(self._seed, self._round))
                    self.report.rounds += 1
            finally:
                self._end()
        self.report.seconds = time.monotonic() - began_s
        return self.report

    def _violated(self, what: str) -> None:
        self._tell(f"round {self._round}: {what}")
        self.report.violations.append(f"round {self._round}: {what}")

    def _prepare(self, folder: Path) -> None:
        brokers = ", ".join(f'"{address}"' for address in self._cluster.brokers.values())
        self._admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap, "log_level": 0})
        wanted = [
            NewTopic(
                topic, 1, 3, config={"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
            )
            for topic in (NUMBERS, DRAINS)
        ]
        for made in self._admin.create_topics(wanted).values():
            made.result(30)
        self._gateways = [
            ChaosGateway(folder / "gw0", brokers, topic=QUOTAS),
            ChaosGateway(folder / "gw1", brokers, topic=QUOTAS),
            ChaosGateway(folder / "gw2", brokers, topic=None, disk_bytes=_DISK_BYTES),
        ]
        for gateway in self._gateways:
            gateway.start()
        for gateway in self._gateways:
            assert (why := gateway.await_ready()) is None, why
        self._writers = [QuotaWriter(gateway, f"writer-{at}") for at, gateway in enumerate(self._gateways)]
        self._producers = [NumberedProducer([each.port for each in self._gateways[:2]], NUMBERS)]
        self._reader = Reader(self._cluster.bootstrap, NUMBERS)
        self._drains = Reader(self._cluster.bootstrap, DRAINS)
        for thread in (*self._writers, *self._producers):
            thread.start()

    def _end(self) -> None:
        for thread in (*self._writers, *self._producers):
            thread.stopped.set()
        self._reader.close()
        self._drains.close()
        for gateway in self._gateways:
            gateway.close()

    # -- faults ----------------------------------------------------------------------------------------------

    def _play(self, steps: list[Step]) -> None:
        self._tell(f"round {self._round}: " + ", ".join(f"{step.fault} {step.target}" for step in steps))
        for writer in self._writers:
            writer.paused.clear()
        for step in steps:
            time.sleep(step.after_s)
            self.report.faults[step.fault] += 1
            try:
                self._carry_out(step)
            except (OSError, KafkaException) as exc:
                self._violated(f"{step.fault} could not be put right: {exc}")
        self._check()

    def _carry_out(self, step: Step) -> None:
        if step.fault is Fault.BROKER_KILL:
            self._cluster.kill_broker(step.target)
            time.sleep(step.lasts_s)
            self._cluster.start_broker(step.target)
            return
        gateway = self._gateways[step.target]
        if step.fault is Fault.KILL:
            gateway.end(signal.SIGKILL)
            gateway.start()
        elif step.fault is Fault.TERMINATE:
            self._terminate(gateway)
        elif step.fault is Fault.PAUSE:
            self._pause(gateway, FRAME_TIMEOUT_MS / 1000 + step.lasts_s)
        elif step.fault is Fault.HANG_UP:
            for _ in range(5):
                gateway.signal(signal.SIGHUP)
                time.sleep(0.02)
        elif step.fault is Fault.TOPIC_AGAIN:
            self._make_topic_again()
        elif step.fault is Fault.DISK_FULL:
            self._fill_disk(gateway)
        elif step.fault is Fault.CLOCK_STEP:
            self._step_clock(gateway, step)

    def _terminate(self, gateway: ChaosGateway) -> None:
        if gateway.await_ready(20) is not None:
            return
        name, ready = f"round-{self._round}-{time.monotonic_ns()}", threading.Event()
        received: list[int | None] = []
        sender = threading.Thread(
            target=lambda: received.append(asyncio.run(slow_sender(gateway.port, DRAINS, name, ready)))
        )
        sender.start()
        ready.wait(20)
        gateway.end(signal.SIGTERM)
        sender.join(30)
        if gateway.exit_codes[-1] != 0:
            self._violated(f"SIGTERM ended {gateway.folder.name} with {gateway.exit_codes[-1]}")
        gateway.start()
        if not received or received[0] is None:
            return
        carried_out = sum(value.startswith(name.encode() + b"-") for value in self._drains.read_to_end())
        self.report.drained += carried_out
        if received[0] < carried_out:
            self._violated(
                f"L02: {carried_out} requests were carried out and {received[0]} answered at a drain"
            )

    def _pause(self, gateway: ChaosGateway, seconds: float) -> None:
        if gateway.await_ready(20) is not None:
            return
        clients = [HalfFrame(gateway.port) for _ in range(5)]
        time.sleep(0.2)
        gateway.signal(signal.SIGSTOP)
        for client in clients:
            client.finish()
        time.sleep(seconds)
        gateway.signal(signal.SIGCONT)
        answered = sum(client.answered() for client in clients)
        if answered < len(clients):
            self._violated(
                f"L06: {answered} of {len(clients)} requests that came during a pause were answered"
            )

    def _make_topic_again(self) -> None:
        for writer in self._writers:
            writer.pause()
        gateways = [self._gateways[at] for at in TOPIC_GATEWAYS]
        if any(gateway.await_ready(60) is not None for gateway in gateways):
            return
        before = gateways[0].quotas()
        (deleted,) = self._admin.delete_topics([QUOTAS]).values()
        deleted.result(30)
        time.sleep(2)
        (made,) = self._admin.create_topics(
            [NewTopic(QUOTAS, 1, 3, config={"cleanup.policy": "compact"})]
        ).values()
        made.result(30)
        time.sleep(_STALE_S)
        for gateway in gateways:
            if gateway.why_not_ready() is None:
                self._violated(f"L01: {gateway.folder.name} is ready though its topic is another one")
            if gateway.quotas() != before:
                self._violated(f"L01: {gateway.folder.name} has lost what was in force")
        # As the operator does it: one starts again, all quotas are imported there, the other follows.
        gateways[0].end(signal.SIGTERM)
        gateways[0].start()
        if (why := gateways[0].await_ready()) is not None:
            self._violated(f"{gateways[0].folder.name} is not ready after its start: {why}")
        deadline_s = time.monotonic() + 30
        while not gateways[0].set_quotas(before) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        if (why := gateways[1].await_ready(30)) is not None:
            self._violated(
                f"L01: {gateways[1].folder.name} does not follow the topic that has all quotas: {why}"
            )
            gateways[1].end(signal.SIGTERM)
            gateways[1].start()

    def _fill_disk(self, gateway: ChaosGateway) -> None:
        if not gateway.has_a_small_disk:
            return
        many = {f"many-{self._round}-{at}": 1e9 for at in range(100)}
        altering = threading.Thread(target=gateway.set_quotas, args=(many,))
        altering.start()
        gateway.await_log()
        gateway.end(signal.SIGKILL)
        altering.join()
        gateway.fill_disk()
        gateway.start()
        if (why := gateway.await_ready(30)) is not None:
            self._violated(f"L03: {gateway.folder.name} does not serve on a full disk: {why}")
        gateway.free_disk()
        if not gateway.running:
            gateway.start()
        # So that the disk is large enough for the next time.
        deadline_s = time.monotonic() + 20
        while not gateway.set_quotas({"after": 1e9 + self._round}) and time.monotonic() < deadline_s:
            time.sleep(0.5)
        if time.monotonic() >= deadline_s:
            self._violated(f"L03: {gateway.folder.name} can't be written though there is room")

    def _step_clock(self, gateway: ChaosGateway, step: Step) -> None:
        if gateway.await_ready(20) is not None:
            return
        before = {path.name for path in gateway.usage.glob("usage-*")}
        gateway.set_clock((KEEP_HOURS + 264) * 3_600.0)
        time.sleep(max(4.0, step.lasts_s))
        gone = before - {path.name for path in gateway.usage.glob("usage-*")}
        gateway.set_clock(0)
        if gone:
            self._violated(f"L05: {len(gone)} usage files were deleted when the clock was ahead")

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
            in_force = views[at if at == SQLITE_GATEWAY else 0].get(writer.user, 1e9) - 1e9
            if not writer.acknowledged <= in_force <= writer.tried:
                return f"{writer.user}: {writer.acknowledged} was acknowledged and {in_force} is in force"
        return None

    def _check_records(self) -> None:
        # What the brokers had acknowledged before they are asked.
        acknowledged = set().union(*(producer.acknowledged.copy() for producer in self._producers))
        values = [int(value) for value in self._reader.read_to_end()]
        self.report.records = len(acknowledged)
        if lost := acknowledged - set(values):
            self._violated(f"{len(lost)} acknowledged records are lost")
        if len(values) != len(set(values)):
            self._violated(f"{len(values) - len(set(values))} records are there twice")
        if values != sorted(values):
            self._violated("records are in another order")
