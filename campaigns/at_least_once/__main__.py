"""``python -m campaigns.at_least_once``: producers without idempotence during faults; 1 when Sluice is worse.

There are three ways to three brokers: directly, through a gateway, and through HAProxy. Each way has two producers
with acks=all, one with one request in flight and one with five. One broker leads all topics. In every other round it
is killed or stopped, for all ways. In the other rounds, gateway and HAProxy are killed at the same moment. The
gateway is compared with the direct way for faults of a broker, and with HAProxy when both are killed. At the end all
topics are read, and `verdict.py` judges them. A lost record is always a finding.

Each record is a separate request, and few of them wait. Otherwise one lost answer would duplicate all the records
that were batched together while the machine was busy.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.at_least_once.verdict import Compared, Found, Pair, by_round, found_in
from campaigns.chaos.clients import NumberedProducer, Reader
from campaigns.chaos.gateways import ChaosGateway
from embedded_kafka.kafka import KafkaCluster
from testkit.gateway import free_ports
from testkit.haproxy import Haproxy
from testkit.raw_client import HOST

DIRECT: Final = "direct"
GATEWAY: Final = "gateway"
RELAY: Final = "relay"
IN_FLIGHT: Final = (1, 5)
_BROKERS: Final = 3
_RELAYED: Final = "RELAYED"
_FAULTS: Final = ("broker killed", "proxies killed", "broker stopped", "proxies killed")
_STEADY_S: Final = (1.0, 2.0)
_BACK_S: Final = 90.0


def topic_of(name: str, in_flight: int) -> str:
    """The topic of one producer."""
    return f"{name}-{in_flight}"


TOPICS: Final = [topic_of(way, in_flight) for way in (DIRECT, GATEWAY, RELAY) for in_flight in IN_FLIGHT]


class Way:
    """The producers of one way to the broker.

    Attributes:
        marks: for each producer the first number of each round.
        found: for each producer the contents of its topic.
    """

    def __init__(self, name: str, ports: list[int]) -> None:
        """Start the producers."""
        self.producers = [
            NumberedProducer(
                ports,
                topic_of(name, in_flight),
                settings={
                    "enable.idempotence": False,
                    "acks": "all",
                    "max.in.flight.requests.per.connection": in_flight,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "queue.buffering.max.messages": 2 * in_flight,
                },
                burst=max(IN_FLIGHT),
            )
            for in_flight in IN_FLIGHT
        ]
        self.marks: list[list[int]] = [[] for _ in self.producers]
        self.found: list[Found] = []
        for producer in self.producers:
            producer.start()

    def begin_round(self) -> None:
        """Note the numbers at which a round begins. All earlier records must have been acknowledged."""
        end_s = time.monotonic() + _BACK_S
        for producer, marks in zip(self.producers, self.marks, strict=True):
            sent = producer.sent
            while producer.count < sent:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"{producer.topic}: {producer.count} of {sent} are acknowledged")
                time.sleep(0.05)
            marks.append(producer.sent)

    def end(self, bootstrap: str) -> None:
        """Stop the producers, and read all topics at the broker."""
        for producer in self.producers:
            producer.finish(_BACK_S)
            reader = Reader(bootstrap, producer.topic)
            numbers = [int(value) for value in reader.read_to_end()]
            reader.close()
            self.found.append(found_in(numbers, producer.acknowledged))

    def again(self) -> Counter[int]:
        """Number of duplicated records by round."""
        return self._by_round([each.again for each in self.found])

    def late(self) -> Counter[int]:
        """Number of records out of order with one request in flight, by round."""
        return self._by_round([self.found[IN_FLIGHT.index(1)].late])

    def _by_round(self, numbers: Sequence[Sequence[int]]) -> Counter[int]:
        return sum(map(by_round, numbers, self.marks), Counter[int]())


def compared(ways: Mapping[str, Way], other: str, rounds: Sequence[int]) -> Compared:
    """Compare the gateway with another way in some rounds."""

    def pairs(ours: Counter[int], theirs: Counter[int]) -> tuple[Pair, ...]:
        return tuple((ours[number], theirs[number]) for number in rounds)

    return Compared(
        pairs(ways[GATEWAY].again(), ways[other].again()), pairs(ways[GATEWAY].late(), ways[other].late())
    )


def fault_of(number: int) -> str:
    """The fault of a round."""
    return _FAULTS[number % len(_FAULTS)]


def leader(admin: AdminClient) -> int:
    """The broker that leads all topics, once each of them has all its replicas.

    Raises:
        TimeoutError: a topic still lacks a replica.
    """
    end_s = time.monotonic() + _BACK_S
    while time.monotonic() < end_s:
        topics = [admin.list_topics(name, timeout=30).topics[name] for name in TOPICS]
        partitions = [each.partitions[0] for each in topics if each.partitions]
        leaders = {each.leader for each in partitions if len(each.isrs) == _BROKERS}
        if len(leaders) == 1 and len(partitions) == len(TOPICS):
            return int(leaders.pop())
        time.sleep(0.2)
    raise TimeoutError("the topics do not get all their replicas")


class Proxies:
    """The gateway, and a relay for each broker."""

    def __init__(self, folder: Path, cluster: KafkaCluster, decade: int) -> None:
        """Start gateway and relays, and wait until the gateway is ready.

        Args:
            folder: folder for their files.
            cluster: the cluster behind them.
            decade: the relays' ports without the last digit, which is the id of the broker.
        """
        brokers = ", ".join(f'"{address}"' for address in cluster.brokers.values())
        self.gateway = ChaosGateway(folder / "gw", brokers, topic=None)
        self.relayed = {int(f"{decade}{each}"): at for each, at in cluster.listeners[_RELAYED].items()}
        self._folder = folder
        self._relays: list[Haproxy] = []

    def start(self) -> None:
        """Start all, and wait until they serve.

        Raises:
            OSError: the gateway does not serve.
        """
        self.gateway.start()
        for port, at in self.relayed.items():
            self._relays.append(Haproxy(self._folder, (HOST, port), at))
        if (why := self.gateway.await_ready()) is not None:
            raise OSError(f"the gateway does not get ready: {why}")

    def kill(self) -> None:
        """Kill all at once, in a random order."""
        kills = [partial(self.gateway.signal, signal.SIGKILL), *(relay.kill for relay in self._relays)]
        random.shuffle(kills)
        for kill in kills:
            kill()
        for relay in self._relays:
            relay.stop()
        self._relays = []
        self.gateway.close()


def play(cluster: KafkaCluster, proxies: Proxies, fault: str, broker: int) -> None:
    """Play one fault, until all processes run again."""
    match fault:
        case "proxies killed":
            proxies.kill()
            proxies.start()
        case "broker killed":
            cluster.kill_broker(broker)
            cluster.start_broker(broker)
        case _:
            cluster.stop_broker(broker)
            cluster.start_broker(broker)


def campaign(rounds: Sequence[int]) -> dict[str, Way]:
    """Play the rounds, and then read the topics."""
    # Each broker advertises the relay whose port ends with its id.
    decade = -(-free_ports(10 + _BROKERS) // 10)
    properties: dict[str, str | int] = {
        "advertised.listeners": f"PLAINTEXT://{{host}}:{{port}},{_RELAYED}://{HOST}:{decade}{{id}}",
        "min.insync.replicas": 2,
    }
    with (
        KafkaCluster(_BROKERS, listeners={_RELAYED: "PLAINTEXT"}, properties=properties) as cluster,
        tempfile.TemporaryDirectory(prefix="at-least-once-") as folder,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        replicas = [list(cluster.brokers)]
        for made in admin.create_topics(
            [NewTopic(name, 1, replica_assignment=replicas) for name in TOPICS]
        ).values():
            made.result(30)
        proxies = Proxies(Path(folder), cluster, decade)
        try:
            proxies.start()
            ways = {
                DIRECT: Way(DIRECT, [address.port for address in cluster.brokers.values()]),
                GATEWAY: Way(GATEWAY, [proxies.gateway.port]),
                RELAY: Way(RELAY, list(proxies.relayed)),
            }
            for number in rounds:
                broker = leader(admin)
                for way in ways.values():
                    way.begin_round()
                time.sleep(random.uniform(*_STEADY_S))
                play(cluster, proxies, fault_of(number), broker)
                print(f"round {number}: {fault_of(number)}, {broker} led", flush=True)
            for way in ways.values():
                way.begin_round()
                way.end(cluster.bootstrap)
            return ways
        finally:
            proxies.kill()


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.at_least_once", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="half of them are faults of a broker")
    rounds = range(parser.parse_args().rounds)
    ways = campaign(rounds)
    for name, way in ways.items():
        for producer, found in zip(way.producers, way.found, strict=True):
            print(
                f"{producer.topic}: {producer.count:,} of {producer.sent:,} acknowledged, {found.lost} lost, "
                f"{len(found.again)} doubled, {len(found.late)} late"
            )
        print(f"{name}, by round: doubled {dict(way.again())}, late {dict(way.late())}")
    at_proxies = [number for number in rounds if fault_of(number) == "proxies killed"]
    at_broker = [number for number in rounds if number not in at_proxies]
    broker, proxies = compared(ways, DIRECT, at_broker), compared(ways, RELAY, at_proxies)
    lost = sum(found.lost for way in ways.values() for found in way.found)
    records = sum(producer.count for way in ways.values() for producer in way.producers)
    print(
        f"**{records:,} records, {lost} lost; {len(at_broker)} broker faults: {broker}; "
        f"{len(at_proxies)} gateway kills: {proxies}**"
    )
    return int(lost > 0 or broker.worse or proxies.worse)


if __name__ == "__main__":
    sys.exit(main())
