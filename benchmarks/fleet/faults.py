"""Effects of faults on a fleet: real gateways of two workers, a real Kafka of three brokers, under load."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient

from benchmarks.fleet.real import TOPIC, configuration, make_topic, metrics, samples
from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.chaos.gateways import broker_away
from campaigns.serving import serving
from embedded_kafka.kafka import KafkaCluster
from testkit.faults.effects import Stopped
from testkit.faults.schedule import Fault, Schedule, rounds_of
from testkit.fleet_load import GreedyProducer
from testkit.gateway import free_ports

BROKERS: Final = 3
GATEWAYS: Final = 2
WORKERS: Final = 2
MEMBERS: Final = GATEWAYS * (WORKERS + 1)
"""Each worker and each supervisor is a member."""
PRODUCERS: Final = 4
"""Producers at each gateway."""
QUOTA: Final = 1_000_000
WARM_UP_S: Final = 30.0
STOPPED_MS: Final = 20_000
FAULTS: Final = {
    "a worker is killed": Fault(0, "worker-kill", 1),
    f"a worker is stopped for {STOPPED_MS // 1_000} s": Fault(0, "worker-pause", 1, STOPPED_MS),
    "a gateway and its workers are killed, and started again": Fault(0, "kill", 1),
    f"a gateway and its workers are stopped for {STOPPED_MS // 1_000} s": Fault(0, "pause", 1, STOPPED_MS),
    # The load uses the other brokers. One of them becomes the leader of the messages.
    "the broker with the messages is killed, and started again": Fault(0, "broker-kill", 0, STOPPED_MS // 2),
    "the topic of the messages is deleted": Fault(0, "topic-delete"),
}
KINDS: Final = {fault.what for fault in FAULTS.values()}
"""Targets are gateways from 0 on; the broker is the one that leads the messages."""

_NAMES: Final = {fault: name for name, fault in FAULTS.items()}
AFTER_S: Final = 33.0
"""Three windows of the quota."""
AGREE_S: Final = 5.0
_SHARES: Final = "__sluice_usage_shares"
_POLL_S: Final = 0.05
_PATIENCE_S: Final = 60.0


@dataclass(slots=True)
class _Fleet:
    kafka: KafkaCluster
    ports: list[int]
    processes: list[subprocess.Popen[bytes]]
    start: Callable[[int], subprocess.Popen[bytes]]
    leader: int = 1  # of the load's topic
    producers: list[list[GreedyProducer]] = field(default_factory=list)

    def metrics(self, at: int) -> dict[str, float]:
        return metrics(self.ports[at] + 1 + BROKERS)

    def used(self, at: int) -> dict[str, float]:
        """Usage of each worker, as known to gateway `at`."""
        return {
            sample.labels["member"]: sample.value
            for sample in samples(self.ports[at] + 1 + BROKERS)
            if sample.name == "gateway_fleet_used_total" and "/" in sample.labels["member"]
        }

    def agrees(self, since: list[dict[str, float]]) -> bool:
        """Whether no gateway is isolated and each knows every member and newer usage of each worker than `since`."""
        for at in range(GATEWAYS):
            figures = self.metrics(at)
            if not figures["gateway_fleet_connected"] or figures["gateway_fleet_members"] != MEMBERS:
                return False
            used = self.used(at)
            if len(used) < GATEWAYS * WORKERS:
                return False
            if any(value <= since[at].get(name, 0.0) for name, value in used.items()):
                return False
        return True


def run(output: Path, schedule: Schedule | None) -> int:
    """Run all faults one after the other, or a schedule's faults. A schedule's results are not kept."""
    rounds = rounds_of(schedule, lambda at: (list(FAULTS.values())[at],), range(len(FAULTS)))
    document: dict[str, Any] = {
        "command": "python -m benchmarks.fleet --faults",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
    }
    with _running() as fleet:
        time.sleep(WARM_UP_S)
        rows = []
        begin_s = time.monotonic()
        for fault in (each for _, faults in rounds for each in faults):
            rows.append({"fault": _NAMES.get(fault, str(fault))} | _suffered(fleet, fault))
            print(rows[-1], flush=True)
        end_s = time.monotonic()
        passed = sum(each.taken_between(begin_s, end_s) for some in fleet.producers for each in some)
    document |= {
        "quota_bytes_per_s": QUOTA,
        "seconds": round(end_s - begin_s),
        "ratio": round(passed / (end_s - begin_s) / QUOTA, 3),
        "load_average_after": load_average(),
        "rows": rows,
    }
    page = page_of(document)
    if schedule is None:
        keep_results(document, page, output, "fleet-faults")
    print(page)
    return int(any(row["lost"] or row["agree_s"] is None or row["agree_s"] > AGREE_S for row in rows))


@contextmanager
def _running() -> Iterator[_Fleet]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-fleet-")))
        kafka = stack.enter_context(KafkaCluster(BROKERS))
        ports = [free_ports(2 + BROKERS) for _ in range(GATEWAYS)]

        def start(at: int) -> subprocess.Popen[bytes]:
            file = folder / f"gateway-{at}.toml"
            file.write_text(configuration(at, ports[at], str(kafka.brokers[1]), QUOTA, WORKERS, BROKERS))
            admin = f"http://127.0.0.1:{ports[at] + 1 + BROKERS}"
            return stack.enter_context(serving(file, admin=admin, log=folder / f"gateway-{at}.log"))

        fleet = _Fleet(kafka, ports, [start(at) for at in range(GATEWAYS)], start)
        # The load's broker is not that of the fleet's messages, so restarting the latter disconnects no client.
        fleet.leader = next(each for each in kafka.brokers if each != _leader_of_shares(kafka))
        make_topic(kafka.brokers[1], fleet.leader)
        fleet.producers = [
            [
                stack.enter_context(GreedyProducer(("127.0.0.1", port + fleet.leader), TOPIC, "greedy"))
                for _ in range(PRODUCERS)
            ]
            for port in ports
        ]
        yield fleet


def _suffered(fleet: _Fleet, fault: Fault) -> dict[str, Any]:
    """Apply one fault and measure the fleet after it."""
    before = [fleet.metrics(at) for at in range(GATEWAYS)]
    begin_s = time.monotonic()
    hit = _suffer(fleet, fault)
    over_s = time.monotonic()
    since = [fleet.used(at) for at in range(GATEWAYS)]
    agree_s = None
    while agree_s is None and time.monotonic() < over_s + _PATIENCE_S:
        if fleet.agrees(since):
            agree_s = round(time.monotonic() - over_s, 2)
        else:
            time.sleep(_POLL_S)
    time.sleep(max(0.0, over_s + AFTER_S - time.monotonic()))
    end_s = time.monotonic()
    load = [each for some in fleet.producers for each in some]
    ended = [port for each in load for at_s, port in each.ended if begin_s < at_s <= end_s]
    waits = [
        wait_ms
        for each in load
        for at_s, wait_ms, port in each.waits
        if begin_s < at_s <= end_s and port not in hit
    ]
    return {
        "ended": len(ended),
        "lost": len(set(ended) - hit),
        "longest_ms": round(max(waits)),
        "isolations": sum(
            max(
                0,
                round(
                    fleet.metrics(at)["gateway_fleet_isolations_total"]
                    - before[at]["gateway_fleet_isolations_total"]
                ),
            )
            for at in range(GATEWAYS)
        ),
        "agree_s": agree_s,
    }


def _suffer(fleet: _Fleet, fault: Fault) -> set[int]:
    """Apply one fault until it is over; the client ports connected to the affected processes."""
    if fault.what == "broker-kill":
        leader = _leader_of_shares(fleet.kafka)
        with broker_away(fleet.kafka, leader, fleet.kafka.kill_broker):
            time.sleep(fault.for_ms / 1_000)
        return set()
    if fault.what == "topic-delete":
        admin = _admin(fleet.kafka)  # a reference, because its futures end when it is collected
        admin.delete_topics([_SHARES])[_SHARES].result(20)
        return set()
    pids = _processes(fleet, fault.where)
    if fault.what.startswith("worker-"):
        pids = pids[-1:]
    hit = _client_ports(pids)
    if fault.what.endswith("pause"):
        with Stopped(pids):
            time.sleep(fault.for_ms / 1_000)
        return hit
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    if fault.what == "kill":
        fleet.processes[fault.where].wait()
        fleet.processes[fault.where] = fleet.start(fault.where)
    return hit


def _processes(fleet: _Fleet, at: int) -> list[int]:
    """A gateway's processes: the started one, its supervisor, and their children, workers last."""
    found = [fleet.processes[at].pid]
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += map(int, children)
    return found


def _client_ports(pids: list[int]) -> set[int]:
    """The remote ports of all their connections."""
    own = {os.readlink(each) for pid in pids for each in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in own}


def _admin(kafka: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


def _leader_of_shares(kafka: KafkaCluster) -> int:
    return int(_admin(kafka).list_topics(_SHARES, timeout=20).topics[_SHARES].partitions[0].leader)


def page_of(document: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "# Faults of a fleet",
        "",
        f"`{document['command']}`: {GATEWAYS} gateways of {WORKERS} workers before {BROKERS} brokers, "
        f"{PRODUCERS} producers at each that send as fast as they may, with one quota of "
        f"{document['quota_bytes_per_s']} bytes/s. Load average {document['load_average_before'][0]} before, "
        f"{document['load_average_after'][0]} after.",
        "",
        "*Lost*: connections that ended with a request under way though the process that had them was not stopped or",
        "killed; *longest answer*: on connections of other processes, with all waits that the quota asks for;",
        "*isolations*: of gateways that were then out of touch; *agreement*: from the fault's end until each",
        "gateway is in touch, sees all processes and has heard of new usage from each worker",
        f"(goal: {AGREE_S:.0f} s). In all {document['seconds']} s they passed {document['ratio']} of the quota.",
        "",
        "| fault | connections ended | lost | longest answer, ms | isolations | agreement after, s |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in document["rows"]]
    return "\n".join(lines) + "\n"
