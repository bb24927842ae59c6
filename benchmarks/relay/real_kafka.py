"""The same paths in front of a real Kafka, with Kafka's own Java perf tools as the load.

One broker serves three client listeners on the same data. The gateway also uses the direct listener, because it
rewrites addresses itself. HAProxy and the bare relay rewrite nothing, so each has a listener that advertises its
port.
Broker and tools may use every core: on a single core the producer is too slow to fill its batches, and the requests
would be small.
"""

import csv
import re
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.relay.load import CLIENT_ID, Row
from benchmarks.relay.native_build import NativePrograms
from benchmarks.relay.paths import (
    BARE_RELAY,
    COMPILED,
    DIRECT,
    GATEWAY,
    GATEWAY_COMPILED,
    HAPROXY,
    RunningPath,
    await_answer,
    start_gateway,
    start_haproxy,
    start_relay,
)
from benchmarks.relay.processes import ProcessDied, free_port, machine_busy_s
from embedded_kafka import jars
from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool

RECORD_BYTES: Final = 1024
PARTITIONS: Final = 6
_TOOL_LIMIT_S: Final = 120.0
# Copying a GB in and out costs a bare relay 0.3 s or more. Less means that a client bypassed the proxy.
_BYPASSED_CPU_S_PER_GB: Final = 0.05
_PRODUCED_TOPIC: Final = "relay-bench-produced"
_FETCHED_TOPIC: Final = "relay-bench-fetched"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a perf tool. Small frames cost more per GB, so a figure means little without the frame size."""

    mb_per_s: float
    frame_bytes: float
    """Average size over the run, of a Produce request or of a Fetch response's records."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a perf tool."""

    key: str
    title: str
    run: Callable[[str, int], "Outcome"]
    """Bootstrap address and number of records -> the tool's report."""
    goal: float
    """At most this many times HAProxy's CPU per GB of the same run."""


def _tool(name: str, *arguments: object) -> str:
    try:
        done = run_tool(
            f"org.apache.kafka.tools.{name}",
            [str(argument) for argument in arguments],
            timeout_s=_TOOL_LIMIT_S,
            jvm_options=jars.FULL_SPEED,
        )
    except subprocess.TimeoutExpired:
        raise ProcessDied(f"{name} was not done after {_TOOL_LIMIT_S:.0f} s") from None
    if done.returncode:
        raise ProcessDied(f"{name} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def _metric(said: str, name: str) -> float:
    """The value of a client metric that a tool printed, without the separate series of topics and nodes."""
    found = re.search(rf":{name}:\{{client-id=[^,}}]*\}}\s*:\s*([\d.]+)", said)
    return float(found[1]) if found else 0.0


def _produce_to(topic: str, bootstrap: str, records: int) -> Outcome:
    said = _tool(
        "ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", records),
        *("--record-size", RECORD_BYTES, "--throughput", -1, "--print-metrics"),
        *("--command-property", f"client.id={CLIENT_ID}", "acks=1"),
    )
    sent = re.findall(r"^(\d+) records sent.*\(([\d.]+) MB/sec\)", said, re.MULTILINE)
    if not sent or int(sent[-1][0]) != records:
        raise ProcessDied(f"the producer did not send {records} records:\n{said[-1000:]}")
    return Outcome(float(sent[-1][1]), _metric(said, "request-size-avg"))


def produce(bootstrap: str, records: int) -> Outcome:
    """Sends 1 KB records with acks=1 and the Java producer's other defaults."""
    return _produce_to(_PRODUCED_TOPIC, bootstrap, records)


def fetch(bootstrap: str, records: int) -> Outcome:
    """Read the prepared topic from its start, in a new group. The rate excludes the time to form the group."""
    said = _tool(
        "ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", _FETCHED_TOPIC, "--num-records", records),
        *("--command-property", f"client.id={CLIENT_ID}", "--print-metrics"),
    )
    lines = list(csv.reader(said.splitlines(), skipinitialspace=True))
    header = next(at for at, line in enumerate(lines) if line and line[0] == "start.time")
    row = dict(zip(lines[header], lines[header + 1], strict=True))
    if int(row["data.consumed.in.nMsg"]) < records:
        raise ProcessDied(f"the consumer did not get {records} records:\n{said[-1000:]}")
    return Outcome(float(row["fetch.MB.sec"]), _metric(said, "fetch-size-avg"))


JOBS: Final = (
    Job("java_produce", "Java produce", produce, 1.2),
    Job("java_fetch", "Java fetch", fetch, 0.8),
)


class KafkaBench:
    """A broker, the paths to it, and rounds of jobs through them."""

    def __init__(self, programs: NativePrograms, *, core: int, folder: Path, stack: ExitStack) -> None:
        """Starts the broker on the cores this process may use.

        Args:
            programs: contains the bare relay.
            core: core of the proxies.
            folder: for their configurations and logs.
            stack: closes the started processes.
        """
        haproxy_port, haproxy_side, relay_port, relay_side, controller = (free_port() for _ in range(5))
        shared = f"CONTROLLER://127.0.0.1:{controller}"
        own = "PLAINTEXT://{host}:{port}"
        names = ("PLAINTEXT", "HAPROXY", "RELAY", "CONTROLLER")
        self.cluster = KafkaCluster(
            properties={
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"{own},HAPROXY://127.0.0.1:{haproxy_side},RELAY://127.0.0.1:{relay_side},{shared}",
                "advertised.listeners": f"{own},HAPROXY://127.0.0.1:{haproxy_port},"
                f"RELAY://127.0.0.1:{relay_port},{shared}",
                "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
                "num.partitions": PARTITIONS,
                # The data of the producer runs is deleted while the benchmark is still running.
                "log.segment.bytes": 64 * 1024 * 1024,
                "log.retention.check.interval.ms": 5_000,
                "log.segment.delete.delay.ms": 1_000,
            },
            jvm_options=jars.FULL_SPEED,
        )
        stack.enter_context(self.cluster)
        port = self.cluster.brokers[1].port
        self._starts: dict[str, Callable[[], RunningPath]] = {
            DIRECT: lambda: RunningPath(DIRECT, port, None),
            BARE_RELAY: lambda: start_relay(programs, relay_side, core, folder, listen_port=relay_port),
            HAPROXY: lambda: start_haproxy(haproxy_side, core, folder, listen_port=haproxy_port),
            GATEWAY: lambda: start_gateway(port, core, folder),
        }
        if COMPILED.exists():
            self._starts[GATEWAY_COMPILED] = lambda: start_gateway(port, core, folder, compiled=True)
        self._stack = stack

    def open_paths(self, without: list[str]) -> list[RunningPath]:
        """Starts the proxies and waits until each leads to the broker."""
        paths = []
        for name, start in self._starts.items():
            if name in without:
                continue
            path = replace(start(), name=name)
            if path.proxy is not None:
                self._stack.callback(path.proxy.stop)
            await_answer(path)
            paths.append(path)
        return paths

    def prepare(self, records: int) -> None:
        """Create the topics, fill the topic that is read, and warm up the broker."""
        for topic, retention in ((_PRODUCED_TOPIC, 64 * 1024 * 1024), (_FETCHED_TOPIC, -1)):
            _tool(
                "TopicCommand",
                *("--bootstrap-server", self.cluster.bootstrap, "--create", "--topic", topic),
                *("--partitions", PARTITIONS, "--config", f"retention.bytes={retention}"),
            )
        # More records than are read: the tool stops after a whole poll, and must never wait for the last records.
        _produce_to(_FETCHED_TOPIC, self.cluster.bootstrap, records + records // 10)

    def run(self, job: Job, path: RunningPath, records: int) -> Row:
        """One job through one path; the figure is the proxy's CPU seconds per GB of record bytes."""
        cpu_before = path.proxy.cpu_s() if path.proxy else 0.0
        began, (_, steal_before) = time.monotonic(), machine_busy_s()
        outcome = job.run(f"127.0.0.1:{path.port}", records)
        cpu_s = (path.proxy.cpu_s() if path.proxy else 0.0) - cpu_before
        elapsed_s = time.monotonic() - began
        figure = cpu_s / (records * RECORD_BYTES / 1e9)
        return {
            "workload": job.key,
            "path": path.name,
            "records": records,
            "cpu_s": cpu_s,
            "figure": figure,
            "mb_per_s": outcome.mb_per_s,
            "frame_bytes": outcome.frame_bytes,
            "elapsed_s": elapsed_s,
            "steal_s": machine_busy_s()[1] - steal_before,
            "invalid": "wrong: the proxy was passed by"
            if path.proxy and figure < _BYPASSED_CPU_S_PER_GB
            else None,
        }


def description() -> dict[str, object]:
    """Versions of the broker and the tools, for the page."""
    return {"version": jars.KAFKA_VERSION, "record_bytes": RECORD_BYTES, "partitions": PARTITIONS}
