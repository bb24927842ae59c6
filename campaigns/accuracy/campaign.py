"""All clients at once, each with its own quota: first through the gateway, then against a broker's own quota.

A new window of S samples lets the amount of S - 1 samples pass at once. The client then waits, and bursts again when
the samples of that burst expire, S to S + 1 samples later. So there is a warm-up. The average over a single minute
depends on the number of bursts in it. So the figure is the mean of the averages over all minutes that begin within
one such period, and the lowest and the highest average are kept, too.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka

from campaigns.accuracy.clients import (
    BATCH_BYTES,
    FETCH_BYTES,
    PARTITION_FETCH_BYTES,
    RECORD_BYTES,
    RECORDS_PER_BATCH,
    Job,
)
from campaigns.serving import serving
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import tool_command
from testkit.gateway import free_ports
from testkit.wire_client import WireClient

FAMILIES: Final = ("kafka-python", "librdkafka", "aiokafka", "java", "cheater")
VERBS: Final = ("produce", "fetch")
GATEWAY: Final = "gateway"
KAFKA: Final = "kafka"
SIDES: Final = (GATEWAY, KAFKA)
PARTITIONS: Final = 3
_READY_S: Final = 90.0
_STEP_S: Final = 0.25
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Plan:
    """Duration, quota and clients of a run.

    Attributes:
        quota_bytes_per_s: quota of each client.
        window_num: quota.window.num on both sides, with samples of a second.
        warm_up_s: time that is not measured.
        measured_s: time over which an average is taken.
        families: kinds of clients.
        sides: through the gateway, against Kafka's own quota.
        by_topic: whether quotas are set for topics, which only the gateway supports. All clients produce to one
        topic,
            whose quota is that of all of them together. Each client has its own fetch quota for the topic that all
            read.
        workers: number of workers of each gateway.
        gateways: more than one are a fleet that shares each quota. Then a client is two processes with the same
        client
            id, each at another gateway.
    """

    quota_bytes_per_s: int = 1_000_000
    window_num: int = 11
    warm_up_s: float = 15.0
    measured_s: float = 60.0
    families: tuple[str, ...] = FAMILIES
    sides: tuple[str, ...] = SIDES
    by_topic: bool = False
    workers: int = 1
    gateways: int = 1

    @property
    def period_s(self) -> float:
        """Time from one burst to the next: all measurements begin within one period."""
        return self.window_num + 0.5

    @property
    def seconds(self) -> float:
        """Duration of one side."""
        return self.warm_up_s + self.period_s + self.measured_s


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one client.

    Attributes:
        side: the gateway's quota or Kafka's.
        family, verb: the client's kind, and whether it produces or fetches.
        quota_bytes_per_s: its limit.
        achieved_bytes_per_s: mean of the averages of all measurements.
        lowest_bytes_per_s, highest_bytes_per_s: lowest and highest average.
    """

    side: str
    family: str
    verb: str
    quota_bytes_per_s: float
    achieved_bytes_per_s: float
    lowest_bytes_per_s: float
    highest_bytes_per_s: float

    @property
    def ratio(self) -> float:
        """Achieved over quota."""
        return self.achieved_bytes_per_s / self.quota_bytes_per_s


@dataclass
class Client:
    """A running client and its output."""

    job: Job
    process: subprocess.Popen[str]
    log: Path
    progress: list[tuple[float, float]] = field(default_factory=list)
    started_s: float = 0.0

    def listen(self) -> None:
        """Read its output until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (said := _progress(line, self.progress[-1][1] if self.progress else 0.0)) is not None:
                self.progress.append(said)

    def bytes_by(self, at_s: float) -> float:
        """Its bytes up to this time."""
        return max((total for said_s, total in self.progress if said_s <= at_s), default=0.0)


def _progress(line: str, before: float) -> tuple[float, float] | None:
    """(monotonic seconds, bytes so far) of a line of any client; the Java producer's are about an interval."""
    if found := re.fullmatch(r"([\d.]+) (\d+)\n", line):
        return float(found[1]), float(found[2])
    if found := re.match(r"(\d+) records sent, [\d.]+ records/sec .*max latency\.$", line.strip()):
        return time.monotonic(), before + int(found[1]) * RECORD_BYTES
    # ConsumerPerformance: time, id, MB so far, MB/s, records so far, ...
    fields = line.split(", ")
    if len(fields) >= 8 and fields[4].isdigit():
        return time.monotonic(), float(fields[4]) * RECORD_BYTES
    return None


def command(job: Job) -> list[str]:
    """The command line of a client."""
    if job.family != "java":
        return [sys.executable, "-m", "campaigns.accuracy.clients", job.text()]
    if job.verb == "produce":
        arguments = [
            *("--bootstrap-server", job.bootstrap, "--topic", job.topic, "--num-records", "100000000"),
            *("--record-size", str(RECORD_BYTES), "--throughput", "-1", "--reporting-interval", "200"),
            *(
                "--command-property",
                f"client.id={job.client_id}",
                f"batch.size={BATCH_BYTES}",
                "linger.ms=20",
            ),
            *("buffer.memory=2000000", "acks=1"),
        ]
        return tool_command("org.apache.kafka.tools.ProducerPerformance", arguments)
    arguments = [
        *("--bootstrap-server", job.bootstrap, "--topic", job.topic, "--num-records", "100000000"),
        *("--fetch-size", str(PARTITION_FETCH_BYTES), "--show-detailed-stats", "--reporting-interval", "200"),
        *("--timeout", "600000", "--group", job.client_id),
        *("--command-property", f"client.id={job.client_id}", f"fetch.max.bytes={FETCH_BYTES}"),
    ]
    return tool_command("org.apache.kafka.tools.ConsumerPerformance", arguments)


@contextmanager
def running(jobs: Iterable[Job], folder: Path) -> Iterator[list[Client]]:
    """Start clients and read their output; stop them afterwards."""
    clients: list[Client] = []
    listeners = []
    try:
        for number, job in enumerate(jobs):
            log = folder / f"{job.client_id}-{number}.log"
            with log.open("w") as errors:
                process = subprocess.Popen(
                    command(job),
                    cwd=_ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            client = Client(job, process, log)
            clients.append(client)
            listeners.append(threading.Thread(target=client.listen))
            listeners[-1].start()
        yield clients
    finally:
        for client in clients:
            client.process.kill()
        for client, listener in zip(clients, listeners, strict=True):
            client.process.wait()
            listener.join()
            assert client.process.stdout is not None
            client.process.stdout.close()


class Campaign:
    """Three brokers, a gateway in front of them, and topics full of records."""

    def __init__(
        self, plan: Plan, stack: ExitStack, folder: Path, *, cluster: KafkaCluster | None = None
    ) -> None:
        """Start the cluster if necessary.

        Args:
            plan: what to measure.
            stack: stops the started processes.
            folder: for logs.
            cluster: a running cluster of three brokers or one, with the plan's quota windows. None to start three
                brokers.
        """
        self.plan = plan
        self._folder = folder
        self._stack = stack
        self.cluster = cluster or stack.enter_context(
            KafkaCluster(3, properties={"quota.window.num": plan.window_num}, jvm_options=jars.QUICK_START)
        )
        self._filled = "accuracy-filled-for-topics" if plan.by_topic else "accuracy-filled"
        self._filled_on_one = "accuracy-filled-on-one"
        self._shared = "accuracy-shared"

    def prepare(self) -> None:
        """Create topics; fill those that are read with enough records for a reader at its limit."""
        if self.plan.by_topic:
            self._create(self._shared, on_one=False)
        for family in () if self.plan.by_topic else self.plan.families:
            for side in self.plan.sides:
                self._create(f"accuracy-{side}-{family}", on_one=side == KAFKA)
        seconds = self.plan.seconds + 2 * self.plan.window_num
        count = int(1.3 * self.plan.quota_bytes_per_s * seconds / RECORD_BYTES)
        for topic, on_one in ((self._filled, False), (self._filled_on_one, True)):
            if on_one and KAFKA not in self.plan.sides:
                continue
            self._create(topic, on_one=on_one)
            self._fill(topic, count)

    def _create(self, topic: str, *, on_one: bool) -> None:
        brokers = [1] * PARTITIONS if on_one or len(self.cluster.brokers) == 1 else [1, 2, 3]
        assignments = [
            {"partition_index": number, "broker_ids": [broker]} for number, broker in enumerate(brokers)
        ]
        wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
        with WireClient(self.cluster.brokers[1]) as client:
            reply = client.ask("CreateTopics", 4, topics=[wanted], timeout_ms=30_000, validate_only=False)
        code = reply.body.topics[0].error_code
        assert code == 0, f"{topic}: error {code}"

    def _fill(self, topic: str, count: int) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "linger.ms": 20,
                "batch.num.messages": RECORDS_PER_BATCH,
            }
        )
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, bytes(RECORD_BYTES), partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def run(self) -> list[Result]:
        """Both sides, one after the other."""
        results = []
        for side in self.plan.sides:
            results += self._run_through_gateway() if side == GATEWAY else self._run_against_kafka()
        return results

    def _jobs(self, side: str, bootstraps: Sequence[str]) -> list[Job]:
        filled = self._filled if side == GATEWAY else self._filled_on_one
        jobs = []
        turns = itertools.cycle(bootstraps)
        for family in self.plan.families:
            for verb in VERBS:
                # Each time another gateway is the first, so that every family uses every gateway.
                jobs += [
                    Job(
                        family=family,
                        verb=verb,
                        bootstrap=next(turns),
                        topic=filled if verb == "fetch" else self._produced_by(side, family),
                        partitions=PARTITIONS,
                        client_id=client_id(side, family, verb),
                    )
                    for _ in bootstraps[:2]
                ]
        return jobs

    def _produced_by(self, side: str, family: str) -> str:
        return self._shared if self.plan.by_topic else f"accuracy-{side}-{family}"

    def _quotas(self) -> str:
        plan = self.plan
        if plan.by_topic:
            together = plan.quota_bytes_per_s * len(plan.families)
            return (
                f'[[quotas]]\ntopic = "{self._shared}"\nproducer_byte_rate = {together}\n'
                f'[[quotas]]\ntopic = "{self._filled}"\ndefault_client_id = true\n'
                f"consumer_byte_rate = {plan.quota_bytes_per_s}\n"
            )
        text = ""
        for family in plan.families:
            for verb in VERBS:
                key = "producer_byte_rate" if verb == "produce" else "consumer_byte_rate"
                text += f'[[quotas]]\nclient_id = "{client_id(GATEWAY, family, verb)}"\n'
                text += f"{key} = {plan.quota_bytes_per_s}\n"
        return text

    def _run_through_gateway(self) -> list[Result]:
        brokers = len(self.cluster.brokers)
        ports = [free_ports(5) for _ in range(self.plan.gateways)]
        with ExitStack() as gateways:
            for at, port in enumerate(ports):
                file = self._folder / f"gateway-{at}.toml"
                file.write_text(self._configuration(at, port))
                log = self._folder / f"gateway-{at}.log"
                gateways.enter_context(serving(file, admin=f"http://127.0.0.1:{port + 4}", log=log))
            for port in ports:
                _await_topic(("127.0.0.1", port), self._filled, brokers=brokers)
            return self._measure(GATEWAY, [f"127.0.0.1:{port}" for port in ports])

    def _configuration(self, at: int, port: int) -> str:
        plan = self.plan
        brokers = ", ".join(f'"{address}"' for address in self.cluster.brokers.values())
        fleet = f'scope = "fleet"\n[fleet]\nmember = "accuracy-{at}"\n' if plan.gateways > 1 else ""
        return (
            f"[server]\nworkers = {plan.workers}\n[upstream]\nbootstrap = [{brokers}]\n"
            f'[[listeners]]\nname = "accuracy"\nbind = "127.0.0.1:{port}"\n'
            f"first_broker_port = {port + 1}\nlowest_broker_id = 1\nbroker_ports = 3\n"
            f'[admin]\nbind = "127.0.0.1:{port + 4}"\n[quota_store]\nkind = "memory"\n'
            f"[client_quota]\nwindow_num = {plan.window_num}\n{fleet}{self._quotas()}"
        )

    def _run_against_kafka(self) -> list[Result]:
        entries = []
        for family in self.plan.families:
            for verb in VERBS:
                key = "producer_byte_rate" if verb == "produce" else "consumer_byte_rate"
                entity = [{"entity_type": "client-id", "entity_name": client_id(KAFKA, family, verb)}]
                value = float(self.plan.quota_bytes_per_s)
                entries.append({"entity": entity, "ops": [{"key": key, "value": value, "remove": False}]})
        address = self.cluster.brokers[1]
        with WireClient(address) as client:
            answer = client.ask("AlterClientQuotas", 1, entries=entries, validate_only=False).body
        assert {entry.error_code for entry in answer.entries} == {0}
        return self._measure(KAFKA, [str(address)])

    def _measure(self, side: str, bootstraps: Sequence[str]) -> list[Result]:
        plan = self.plan
        with running(self._jobs(side, bootstraps), self._folder) as clients:
            deadline_s = time.monotonic() + _READY_S
            while not all(client.progress for client in clients):
                late = [client.job.client_id for client in clients if not client.progress]
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"no progress of {late}; logs are in {self._folder}")
                time.sleep(0.05)
            begin_s = max(client.progress[0][0] for client in clients) + plan.warm_up_s
            end_s = begin_s + plan.period_s + plan.measured_s
            time.sleep(max(0.0, end_s + 0.5 - time.monotonic()))
            ended = [client.job.client_id for client in clients if client.process.poll() is not None]
            if ended:
                raise RuntimeError(f"{ended} ended early; logs are in {self._folder}")
        if plan.by_topic:
            together = [client for client in clients if client.job.verb == "produce"]
            results = [_result("together", together, plan, side, begin_s, shares=len(together))]
            fetching = [client for client in clients if client.job.verb == "fetch"]
            return results + [_result(each.job.family, [each], plan, side, begin_s) for each in fetching]
        of_each = itertools.groupby(clients, key=lambda client: client.job.client_id)
        groups = [list(group) for _, group in of_each]
        return [_result(group[0].job.family, group, plan, side, begin_s) for group in groups]


def _result(
    family: str, group: list[Client], plan: Plan, side: str, begin_s: float, *, shares: int = 1
) -> Result:
    """The result of clients that share one quota, which is a multiple of the plan's."""
    starts = [begin_s + step * _STEP_S for step in range(int(plan.period_s / _STEP_S))]
    averages = [
        sum(client.bytes_by(start_s + plan.measured_s) - client.bytes_by(start_s) for client in group)
        / plan.measured_s
        for start_s in starts
    ]
    return Result(
        side=side,
        family=family,
        verb=group[0].job.verb,
        quota_bytes_per_s=float(plan.quota_bytes_per_s * shares),
        achieved_bytes_per_s=statistics.mean(averages),
        lowest_bytes_per_s=min(averages),
        highest_bytes_per_s=max(averages),
    )


def client_id(side: str, family: str, verb: str) -> str:
    """The client id for which the quota is set."""
    return f"accuracy-{side}-{family}-{verb}"


def _await_topic(address: tuple[str, int], topic: str, *, brokers: int) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError), WireClient(address, timeout_s=5) as client:
            wanted = [{"name": topic}]
            body = client.ask("Metadata", 8, topics=wanted, allow_auto_topic_creation=False).body
            if len(body.brokers) == brokers and body.topics[0].error_code == 0:
                return
        time.sleep(0.1)
    raise RuntimeError("the gateway did not get ready")


def run_campaign(plan: Plan) -> list[Result]:
    """Run the whole campaign with a new cluster."""
    with tempfile.TemporaryDirectory(prefix="accuracy-") as folder, ExitStack() as stack:
        campaign = Campaign(plan, stack, Path(folder))
        campaign.prepare()
        return campaign.run()
