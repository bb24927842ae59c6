"""``python -m campaigns.transactions``: transactions during restarts; 1 for more anomalies than elsewhere.

There are three ways to the broker: behind a gateway, directly, and behind HAProxy. Each has two transactional
producers, a consumer of committed records, and a topic of its own. In each round the gateway is killed or drained, or
the broker is killed or stopped, or both at once. When the gateway ends, HAProxy is killed at the same moment. At the
end a consumer at the broker reads all topics again. `verdict.py` says which histories are anomalous. Clients of Kafka
have a few anomalies also without Sluice, so their number is compared with the other two ways.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.at_least_once.verdict import LEVEL
from campaigns.chaos.gateways import ChaosGateway, broker_away
from campaigns.transactions.clients import PARTITIONS, Committed, Transactions, mark_the_end
from campaigns.transactions.verdict import (
    Anomaly,
    Key,
    Outcome,
    Told,
    anomalies,
    chance,
    difference,
    incomplete,
)
from embedded_kafka.kafka import KafkaCluster
from testkit.faults.play import play
from testkit.faults.schedule import Fault, Kind, Schedule, add_option, choose, rounds_of
from testkit.gateway import free_ports
from testkit.haproxy import Haproxy
from testkit.raw_client import HOST

WAYS: Final = ("through", "direct", "relayed")
_RELAYED: Final = "RELAYED"
_PRODUCERS: Final = 2
_END_S: Final = 150.0
_FOR_MS: Final = range(1_001)
_OF_GATEWAY: Final = (Kind("kill", for_ms=_FOR_MS), Kind("terminate", for_ms=_FOR_MS))
_OF_BROKER: Final = (Kind("broker-kill", (1,), _FOR_MS), Kind("broker-restart", (1,), _FOR_MS))
KINDS: Final = {kind.what: kind for kind in (*_OF_GATEWAY, *_OF_BROKER)}


@dataclass(slots=True)
class Side:
    """Clients of one way to the broker."""

    topic: str
    producers: list[Transactions]
    reader: Committed

    @classmethod
    def begun(cls, bootstrap: str, topic: str, seed: int) -> Side:
        """Start all clients of a side."""
        producers = [
            Transactions(f"p{at}", bootstrap, topic, f"{seed}-{topic}-{at}") for at in range(_PRODUCERS)
        ]
        side = cls(topic, producers, Committed(bootstrap, topic))
        for thread in (*producers, side.reader):
            thread.start()
        return side

    def end(self, direct: str) -> tuple[Counter[Anomaly], Counter[Outcome]]:
        """Wait for the current transactions, read all records, and judge."""
        for producer in self.producers:
            producer.stopped.set()
        for producer in self.producers:
            producer.join(_END_S)
            if producer.is_alive():
                raise TimeoutError(f"a transaction of {self.topic} does not end")
        mark_the_end(direct, self.topic)
        again = Committed(direct, self.topic)
        again.start()
        for reader in (self.reader, again):
            _await_end(reader)
        told: dict[Key, Told] = {
            key: each for producer in self.producers for key, each in producer.told.items()
        }
        found = anomalies(told, self.reader.seen)
        found[Anomaly.VIEWS_DIFFER] += difference(self.reader.seen, again.seen)
        for line in incomplete(told, self.reader.seen):
            print(f"{self.topic}: {line}")
        return +found, Counter(each.outcome for each in told.values())


def _await_end(reader: Committed) -> None:
    end_s = time.monotonic() + _END_S
    while len(reader.ended) < PARTITIONS:
        if time.monotonic() > end_s:
            raise TimeoutError("a consumer does not get to the end")
        time.sleep(0.2)
    reader.stopped.set()
    reader.join()


def round_of(seed: int, number: int) -> tuple[Fault, ...]:
    """Two of three rounds restart the gateway, and every second round restarts the broker."""
    dice = random.Random(f"{seed}-{number}")
    at_ms = dice.randrange(3_000, 6_001)
    faults = []
    if number % 3 != 2:
        faults.append(choose(dice, _OF_GATEWAY).draw(dice, [at_ms]))
        at_ms += dice.randrange(501)
    if number % 2 == 1 or not faults:
        faults.append(choose(dice, _OF_BROKER).draw(dice, [at_ms]))
    return tuple(faults)


class Relay:
    """HAProxy in front of the broker, which advertises the port of HAProxy."""

    def __init__(self, folder: Path, cluster: KafkaCluster, port: int) -> None:
        """It runs."""
        self._place = folder, (HOST, port), cluster.listeners[_RELAYED][1]
        self.port = port
        self._process: Haproxy | None = Haproxy(*self._place)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Killed, and started again afterwards."""
        self.close()
        try:
            yield
        finally:
            self._process = Haproxy(*self._place)

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
        self._process = None


def play_round(cluster: KafkaCluster, gateway: ChaosGateway, relay: Relay, faults: Sequence[Fault]) -> None:
    """Carry out the restarts of a round.

    Raises:
        OSError: a gateway or broker does not serve again.
    """

    def act(fault: Fault) -> None:
        match fault.what:
            case "kill" | "terminate":
                number = signal.SIGKILL if fault.what == "kill" else signal.SIGTERM
                with relay.away(), gateway.away(number):
                    time.sleep(fault.for_ms / 1_000)
            case _:
                end = cluster.kill_broker if fault.what == "broker-kill" else cluster.stop_broker
                with broker_away(cluster, 1, end):
                    time.sleep(fault.for_ms / 1_000)

    if found := play(faults, act, within_s=_END_S):
        raise OSError("; ".join(found))
    if (why := gateway.await_ready()) is not None:
        raise OSError(f"the gateway does not get ready: {why}")


def campaign(
    rounds: Iterable[tuple[int, tuple[Fault, ...]]], seed: int
) -> dict[str, tuple[Counter[Anomaly], Counter[Outcome]]]:
    """Anomalies and outcomes, by way."""
    port = free_ports(1)
    properties: dict[str, str | int] = {
        "advertised.listeners": f"PLAINTEXT://{{host}}:{{port}},{_RELAYED}://{HOST}:{port}"
    }
    with (
        KafkaCluster(1, listeners={_RELAYED: "PLAINTEXT"}, properties=properties) as cluster,
        tempfile.TemporaryDirectory(prefix="transactions-") as folder,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(way, PARTITIONS, 1) for way in WAYS]).values():
            made.result(30)
        gateway = ChaosGateway(Path(folder) / "gw", f'"{cluster.brokers[1]}"', topic=None)
        relay = Relay(Path(folder), cluster, port)
        try:
            gateway.start()
            if (why := gateway.await_ready()) is not None:
                raise OSError(f"the gateway does not get ready: {why}")
            servers = (f"{HOST}:{gateway.port}", cluster.bootstrap, f"{HOST}:{relay.port}")
            sides = [Side.begun(at, way, seed) for way, at in zip(WAYS, servers, strict=True)]
            for number, faults in rounds:
                print(Schedule(seed, {number: faults}), end="")
                play_round(cluster, gateway, relay, faults)
                ended = [sum(len(each.told) for each in side.producers) for side in sides]
                print(f"# {ended} transactions so far", flush=True)
            time.sleep(3)
            return {side.topic: side.end(cluster.bootstrap) for side in sides}
        finally:
            relay.close()
            gateway.close()


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.transactions", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    add_option(parser, KINDS)
    options = parser.parse_args()
    given: Schedule | None = options.schedule
    seed = given.seed if given else options.seed
    rounds = list(rounds_of(given, lambda number: round_of(seed, number), range(options.rounds)))
    ways = campaign(rounds, seed)
    for way, (found, outcomes) in ways.items():
        print(f"{way}: {dict(found)}, {dict(outcomes)}")
    (found, outcomes), (direct, of_direct), (relayed, of_relayed) = (ways[way] for way in WAYS)
    others, of_others = direct.total() + relayed.total(), of_direct.total() + of_relayed.total()
    likely = chance(found.total(), outcomes.total(), others, of_others)
    print(
        f"**{outcomes.total():,} transactions through {len(rounds)} rounds of restarts, "
        f"{outcomes[Outcome.UNKNOWN]} unknown: {found.total()} anomalies; {of_direct.total():,} directly: "
        f"{direct.total()}; {of_relayed.total():,} by HAProxy: {relayed.total()}; chance of so many {likely:.3f}**"
    )
    return int(likely < LEVEL)


if __name__ == "__main__":
    sys.exit(main())
