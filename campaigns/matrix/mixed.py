"""A rolling upgrade behind the gateway: brokers of two versions in one cluster, then another `metadata.version`.

A producer and a group consumer run all the time. After each stage the campaign asks every port of the gateway for its
API versions. A port must never offer more than the broker behind it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka

from campaigns.matrix.cells import create_topics
from campaigns.matrix.stage import Gateway, gateway, kafka_features
from embedded_kafka.kafka import Address, KafkaCluster
from testkit.loopback import own_host
from testkit.wire_client import WireClient

_START_S: Final = 600.0
"""Start time of three brokers on a busy machine."""

_WITHIN_S: Final = 300.0
_BETWEEN_S: Final = 0.02
METADATA_VERSION: Final = "metadata.version"
_SOFTWARE: Final = {"client_software_name": "matrix", "client_software_version": "1"}
TOPIC: Final = "upgraded"

Ranges = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Offered:
    """The contents of an ApiVersions response.

    Attributes:
        ranges: api key -> lowest and highest version.
        levels: feature -> the finalized level.
    """

    ranges: Ranges
    levels: dict[str, int]


def offered(address: Address, version: int) -> Offered:
    """Ask an address for its API versions and features.

    Args:
        address: address of a broker or of a port of the gateway.
        version: version of the ApiVersions request.
    """
    with WireClient(address) as client:
        body = client.ask("ApiVersions", version, **(_SOFTWARE if version >= 3 else {})).body
    ranges = {api.api_key: (api.min_version, api.max_version) for api in body.api_keys}
    levels = (
        {each.name: each.max_version_level for each in body.finalized_features or []} if version >= 3 else {}
    )
    return Offered(ranges, levels)


def beyond(port: Offered, broker: Offered) -> list[str]:
    """Versions and levels that a port offers and the broker behind it does not support."""
    found = [
        f"api {key}: {lowest}-{highest} of {broker.ranges.get(key)}"
        for key, (lowest, highest) in port.ranges.items()
        if key not in broker.ranges or lowest < broker.ranges[key][0] or highest > broker.ranges[key][1]
    ]
    # The broker was asked after the gateway, and levels only rise.
    return found + [
        f"{name}: {level} of {broker.levels.get(name)}"
        for name, level in port.levels.items()
        if level > broker.levels.get(name, -1)
    ]


@dataclass
class Traffic:
    """A continuous producer and a group consumer.

    Attributes:
        acknowledged: numbers that the cluster acknowledged.
        read: numbers that the consumer read.
        failures: errors that the producer got.
    """

    bootstrap: str
    acknowledged: list[int] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run during the block, and then until all acknowledged numbers are read, with a time limit."""
        threads = [threading.Thread(target=each) for each in (self._produce, self._read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def await_more(self) -> None:
        """Wait until the producer and the consumer have made progress."""
        acknowledged, read = len(self.acknowledged) + 20, len(self.read) + 20
        end_s = time.monotonic() + _WITHIN_S
        while len(self.acknowledged) < acknowledged or len(self.read) < read:
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"{len(self.acknowledged)} acknowledged, {len(self.read)} read: {self.failures[-3:]}"
                )
            time.sleep(0.1)

    def _produce(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        number = 0
        while not self._stop.wait(_BETWEEN_S):
            producer.produce(TOPIC, b"%d" % number, partition=number % 3, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
        producer.flush(_WITHIN_S)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.failures.append(str(error))

    def _read(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": TOPIC, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([TOPIC])
        end_s = None
        while not self._stop.is_set() or (
            not self.read.issuperset(self.acknowledged) and time.monotonic() < end_s
        ):
            if self._stop.is_set() and end_s is None:
                end_s = time.monotonic() + _WITHIN_S
            for message in consumer.consume(100, timeout=0.5):
                if message.error() is None:
                    self.read.add(int(message.value()))
        consumer.close()


def rolling_upgrade(older: str, newer: str, folder: Path) -> dict[str, Any]:
    """Upgrade three brokers one after the other, then `metadata.version`.

    Args:
        older, newer: Kafka's versions.
        folder: for the gateway.

    Returns:
        The data for the page.
    """
    cluster = KafkaCluster(3, host=own_host(77), version=older, start_timeout_s=_START_S, stop_timeout_s=120)
    with cluster, gateway(cluster, folder) as gate:
        create_topics(cluster.brokers[1], {TOPIC: 3})
        traffic = Traffic(str(gate.bootstrap))
        stages = []

        def stage(what: str) -> None:
            traffic.await_more()
            stages.append(_asked(cluster, gate, what))
            print(f"{older} to {newer}: {stages[-1]}", flush=True)

        with traffic.running():
            stage(f"all of {older}")
            for broker_id in cluster.brokers:
                cluster.stop_broker(broker_id)
                cluster.start_broker(broker_id, version=newer)
                stage(f"{broker_id} of 3 are of {newer}")
            before = stages[-1]["metadata_version"]
            line = ".".join(newer.split(".")[:2])
            kafka_features(newer, str(gate.bootstrap), "--release-version", line)
            _await_level(cluster, above=before)
            stage("metadata.version raised")
        stored = _stored(cluster)
        leaks = [repr(hit) for hit in gate.tap.hits]
    return {
        "older": older,
        "newer": newer,
        "stages": stages,
        "acknowledged": len(traffic.acknowledged),
        "missing": len(set(traffic.acknowledged) - set(stored)),
        "twice": len(stored) - len(set(stored)),
        "unread": len(set(traffic.acknowledged) - traffic.read),
        "failures": traffic.failures,
        "leaks": leaks,
    }


def found_fault(upgrade: Mapping[str, Any]) -> bool:
    """Whether a rule was broken."""
    counts = (
        upgrade["missing"],
        upgrade["twice"],
        upgrade["unread"],
        len(upgrade["failures"]),
        len(upgrade["leaks"]),
    )
    return any(counts) or any(stage["beyond"] for stage in upgrade["stages"])


def _asked(cluster: KafkaCluster, gate: Gateway, what: str) -> dict[str, Any]:
    """Compare each port with its broker. The bootstrap port leads to any broker and must not exceed all of them."""
    found: list[str] = []
    compared = 0
    for version in range(5):
        shared = offered(gate.bootstrap, version)
        brokers = []
        for broker_id, port in gate.brokers.items():
            through = offered(port, version)
            brokers.append(offered(cluster.brokers[broker_id], version))
            found += [f"port of {broker_id}, v{version}: {text}" for text in beyond(through, brokers[-1])]
            compared += len(through.ranges)
        if all(beyond(shared, broker) for broker in brokers):
            found.append(f"bootstrap, v{version}: more than each of the brokers")
        compared += len(shared.ranges)
    level = brokers[0].levels.get(METADATA_VERSION)
    return {
        "stage": what,
        "ports": 5 * (1 + len(gate.brokers)),
        "compared": compared,
        "beyond": found,
        "metadata_version": level,
    }


def _await_level(cluster: KafkaCluster, *, above: int) -> None:
    end_s = time.monotonic() + _WITHIN_S
    while any(
        offered(address, 4).levels.get(METADATA_VERSION, 0) <= above for address in cluster.brokers.values()
    ):
        if time.monotonic() > end_s:
            raise TimeoutError(f"{METADATA_VERSION} stays at {above}")
        time.sleep(0.1)


def _stored(cluster: KafkaCluster) -> list[int]:
    """The contents of the partitions, read directly from the brokers."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "check", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(3)])
    numbers: list[int] = []
    ended: set[int] = set()
    end_s = time.monotonic() + _WITHIN_S
    while len(ended) < 3 and time.monotonic() < end_s:
        for message in consumer.consume(500, timeout=1):
            if message.error() is None:
                numbers.append(int(message.value()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return numbers
