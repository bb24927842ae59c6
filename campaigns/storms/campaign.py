"""``python -m campaigns.storms.campaign``: storms of Metadata and of commits, limited per API; 4 minutes.

There are one real broker and one gateway. An honest client asks for Metadata, commits and lists offsets at a steady
rate, all the time. First each storm runs under a client id without a limit, to check its strength and to warm up the
broker. Then windows with and without a storm alternate. Exit code 1 when a check of `verdict.py` fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from campaigns.serving import before_one_broker, serving
from campaigns.storms.client import COMMIT, METADATA, TOPIC, Answer, Plan
from campaigns.storms.verdict import LEAST_STORM, MOST_P99, OVER_S, Storm, faults, median_ratio, p99
from embedded_kafka.kafka import KafkaCluster
from testkit.gateway import free_ports
from testkit.priorities import run_first
from testkit.wire_client import WireClient

LIMIT_PER_S: Final = 50.0
CONNECTIONS: Final = 40
"""Fewer than the limit: each connection can always pass one commit per second."""

STORM_PER_S: Final = 200.0
HONEST: Final = "honest"
HONEST_PER_S: Final = 200.0
FREE: Final = "free"
_OFFSETS: Final = "__consumer_offsets"
_PROPERTIES: Final = {"offsets.topic.num.partitions": 5}
"""The storm's commits are in a separate partition, so the partition's end offset counts them."""

_SETTLES_S: Final = 1.0
_NO_LIMIT: Final = 1e6

_QUOTAS: Final = """
[[quotas]]
client_id = "{metadata}"
metadata_request_rate = {limit}
[[quotas]]
client_id = "{commit}"
offset_commit_request_rate = {limit}
[[quotas]]
client_id = "honest"
metadata_request_rate = {none}
offset_commit_request_rate = {none}
list_offsets_request_rate = {none}
"""


class Process:
    """A client of `campaigns.storms.client`, ready to begin."""

    def __init__(self, plan: Plan) -> None:
        """Start it, and wait until it is connected."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "campaigns.storms.client", plan.text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise SystemExit(f"the client {plan.client_id} did not begin")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def storm(self) -> dict[str, Any]:
        """Start the storm and wait for its end; its results."""
        said, _ = self._process.communicate("go\n")
        found: dict[str, Any] = json.loads(said)
        return found

    def lines(self) -> Iterator[list[Answer]]:
        """Its answers, second by second, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield [Answer(*each) for each in json.loads(line)]

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class Honest:
    """The honest client and its answers so far."""

    def __init__(self, port: int) -> None:
        """Start it."""
        kinds = (METADATA, COMMIT, "list_offsets")
        self._process = Process(Plan(port, HONEST, kinds, 1, HONEST_PER_S))
        self._answers: list[Answer] = []
        self._reader = threading.Thread(target=self._listen)
        self._reader.start()

    def _listen(self) -> None:
        for answers in self._process.lines():
            self._answers += answers

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process.stop()
        self._reader.join()

    def taken(self, since_s: float, seconds: float) -> tuple[float, ...]:
        """Answer times of the requests that were due in this time."""
        while self._reader.is_alive() and (
            not self._answers or self._answers[-1].at_s < since_s + seconds + _SETTLES_S
        ):
            time.sleep(0.1)
        found = tuple(
            each.took_s for each in list(self._answers) if 0 <= each.at_s - each.took_s - since_s < seconds
        )
        if len(found) < 0.95 * HONEST_PER_S * seconds:
            raise SystemExit(f"the honest client has {len(found)} answers in {seconds:g} s")
        return found

    @property
    def throttled(self) -> int:
        """Number of its answers with a throttle time."""
        return sum(each.throttle_ms > 0 for each in self._answers)


class Campaign:
    """A broker, a gateway and the honest client."""

    def __init__(self, stack: ExitStack, folder: Path, seconds: float) -> None:
        """Start the broker, the gateway and the honest client.

        Args:
            stack: stops the started processes.
            folder: folder for the configuration and the log.
            seconds: length of each window.
        """
        self._seconds = seconds
        self._cluster = stack.enter_context(KafkaCluster(1, properties=_PROPERTIES))
        first = free_ports(4)
        self._port, self._admin = first + 3, f"http://127.0.0.1:{first + 1}"
        config = folder / "sluice.toml"
        config.write_text(
            before_one_broker(self._cluster.bootstrap, first)
            + _QUOTAS.format(metadata=METADATA, commit=COMMIT, limit=LIMIT_PER_S, none=_NO_LIMIT)
        )
        with WireClient(self._cluster.brokers[1]) as broker:
            topic = {"name": TOPIC, "num_partitions": 20, "replication_factor": 1}
            broker.ask("CreateTopics", 5, topics=[topic], timeout_ms=30_000, validate_only=False)
            # The first requests may find no coordinator yet.
            while broker.ask("FindCoordinator", 2, key=COMMIT, key_type=0).body.error_code:
                time.sleep(0.1)
        gateway = stack.enter_context(serving(config, admin=self._admin, log=folder / "gateway.log"))
        self.honest = Honest(self._port)
        stack.callback(self.honest.stop)
        # Real storms come from other machines, so here they must not use the cores of the measured processes.
        if not run_first(self._cluster.pid(1), gateway.pid, self.honest.pid):
            print("no right to real-time priority: latencies show the machine's other processes, too")

    def window(self, kind: str) -> Storm:
        """A calm window, and then one with a storm."""
        throttled, commits = self._throttled(kind), self._commits()
        calm_began_s = time.monotonic()
        time.sleep(self._seconds)
        began_s, sent, answers = self._storm(kind, kind)
        calm_s = self.honest.taken(calm_began_s, self._seconds)
        storm_s = self.honest.taken(began_s, self._seconds)
        time.sleep(_SETTLES_S)
        return Storm(
            kind=kind,
            limit_per_s=LIMIT_PER_S,
            connections=CONNECTIONS,
            seconds=self._seconds,
            began_s=began_s,
            sent=sent,
            answers=answers,
            throttled=int(self._throttled(kind) - throttled),
            at_broker=self._commits() - commits if kind == COMMIT else None,
            calm_s=calm_s,
            storm_s=storm_s,
        )

    def free(self, kind: str) -> tuple[float, float]:
        """Requests per second of the same storm without a limit, and the p99 of the honest client."""
        began_s, _, answers = self._storm(FREE, kind)
        return len(answers) / self._seconds, p99(self.honest.taken(began_s, self._seconds))

    def _storm(self, client_id: str, kind: str) -> tuple[float, int, tuple[Answer, ...]]:
        process = Process(Plan(self._port, client_id, (kind,), CONNECTIONS, STORM_PER_S, self._seconds))
        found = process.storm()
        return found["began_s"], found["sent"], tuple(Answer(*each) for each in found["answers"])

    def _throttled(self, kind: str) -> float:
        with urlopen(f"{self._admin}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "gateway_api_throttled_requests_total" and sample.labels["client_id"] == kind
        )

    def _commits(self) -> int:
        """Commits of the storm that the broker has written."""
        with WireClient(self._cluster.brokers[1]) as broker:
            body = broker.ask(
                "Metadata", 8, topics=[{"name": _OFFSETS}], allow_auto_topic_creation=False
            ).body
            index = java_hash(COMMIT) % len(body.topics[0].partitions)
            wanted = {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1}
            topics = [{"name": _OFFSETS, "partitions": [wanted]}]
            body = broker.ask("ListOffsets", 5, replica_id=-1, isolation_level=0, topics=topics).body
        partition = body.topics[0].partitions[0]
        assert partition.error_code == 0
        return int(partition.offset)


def java_hash(text: str) -> int:
    """The hash with which a broker chooses a group's partition of the offsets topic."""
    value = 0
    for each in text:
        value = (31 * value + ord(each)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


@contextmanager
def _started(seconds: float) -> Iterator[Campaign]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        yield Campaign(stack, Path(folder), seconds)


def line_of(storm: Storm) -> str:
    """One line of text about a window."""
    longest_ms = max((each.throttle_ms for each in storm.answers), default=0)
    return (
        f"{storm.kind}: {storm.sent:,} sent, {len(storm.answers)} passed, {storm.late_per_s:.1f}/s after "
        f"{OVER_S:g} s; {len(storm.with_wait)} answered with a wait of at most {longest_ms} ms, "
        f"{storm.throttled} throttled; "
        f"at broker: {storm.at_broker}; p99 {p99(storm.calm_s) * 1000:.2f} -> {p99(storm.storm_s) * 1000:.2f} ms "
        f"({storm.ratio:.2f})"
    )


def run(rounds: int, seconds: float) -> int:
    """Run it; the number of failed checks."""
    wrong: list[str] = []
    storms: dict[str, list[Storm]] = {METADATA: [], COMMIT: []}
    with _started(seconds) as campaign:
        for kind in storms:
            per_s, p99_s = campaign.free(kind)
            print(f"{kind} without a limit: {per_s:,.0f}/s passed, p99 {p99_s * 1000:.2f} ms", flush=True)
            if per_s < LEAST_STORM * LIMIT_PER_S:
                wrong.append(f"{kind}: without a limit {per_s:.0f}/s passed, so this is no storm")
        for _ in range(rounds):
            for kind, found in storms.items():
                storm = campaign.window(kind)
                found.append(storm)
                wrong += [f"{kind}: {each}" for each in faults(storm)]
                print(line_of(storm), flush=True)
        if campaign.honest.throttled:
            wrong.append(f"{campaign.honest.throttled} honest answers had a wait")
    for kind, found in storms.items():
        if median_ratio(found) > MOST_P99:
            wrong.append(f"{kind}: p99 of the honest client {median_ratio(found):.2f} times that without")
    for each in wrong:
        print(f"  {each}")
    print(summary(storms, len(wrong)))
    return len(wrong)


def summary(storms: dict[str, Sequence[Storm]] | dict[str, list[Storm]], wrong: int) -> str:
    """The figure of the campaign."""
    parts = [
        f"{kind}: at most {max(each.late_per_s for each in found):.0f}/s after {OVER_S:g} s, "
        f"p99 {median_ratio(found):.2f}"
        for kind, found in storms.items()
    ]
    return f"**{LIMIT_PER_S:.0f}/s allowed; {'; '.join(parts)}; {wrong} faults**"


def main() -> int:
    """Run it; 1 when a check fails."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.storms.campaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="windows with a storm, of each kind")
    parser.add_argument("--seconds", type=float, default=7.0, help="of each window")
    options = parser.parse_args()
    return int(run(options.rounds, options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
