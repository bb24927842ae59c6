"""``python -m campaigns.transactions``: transactions through restarts; 1 when they show what they do not directly.

Two transactional producers and a consumer of committed records are behind a gateway, and as many at the broker
itself, with a topic of their own. In each round the gateway is killed or drained, or the broker is killed or stopped,
or both at once. At the end a consumer at the broker reads both topics anew. `verdict.py` says what must not be.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.chaos.gateways import ChaosGateway, broker_away
from campaigns.transactions.clients import PARTITIONS, Committed, Transactions, mark_the_end
from campaigns.transactions.verdict import Anomaly, Key, Outcome, Told, anomalies, difference
from embedded_kafka.kafka import KafkaCluster
from testkit.faults.play import play
from testkit.faults.schedule import Fault, Kind, Schedule, add_option, choose, rounds_of
from testkit.raw_client import HOST

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
        """All of them, at work."""
        producers = [
            Transactions(f"p{at}", bootstrap, topic, f"{seed}-{topic}-{at}") for at in range(_PRODUCERS)
        ]
        side = cls(topic, producers, Committed(bootstrap, topic))
        for thread in (*producers, side.reader):
            thread.start()
        return side

    def end(self, direct: str) -> tuple[Counter[Anomaly], Counter[Outcome]]:
        """Let the transactions under way end, read all, and judge."""
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
    """Two of three rounds have a restart of the gateway, and every other one that of the broker."""
    dice = random.Random(f"{seed}-{number}")
    at_ms = dice.randrange(3_000, 6_001)
    faults = []
    if number % 3 != 2:
        faults.append(choose(dice, _OF_GATEWAY).draw(dice, [at_ms]))
        at_ms += dice.randrange(501)
    if number % 2 == 1 or not faults:
        faults.append(choose(dice, _OF_BROKER).draw(dice, [at_ms]))
    return tuple(faults)


def play_round(cluster: KafkaCluster, gateway: ChaosGateway, faults: Sequence[Fault]) -> None:
    """Restart what a round has.

    Raises:
        OSError: one is not back.
    """

    def act(fault: Fault) -> None:
        match fault.what:
            case "kill":
                away = gateway.away(signal.SIGKILL)
            case "terminate":
                away = gateway.away(signal.SIGTERM)
            case "broker-kill":
                away = broker_away(cluster, 1, cluster.kill_broker)
            case _:
                away = broker_away(cluster, 1, cluster.stop_broker)
        with away:
            time.sleep(fault.for_ms / 1_000)

    if found := play(faults, act, within_s=_END_S):
        raise OSError("; ".join(found))
    if (why := gateway.await_ready()) is not None:
        raise OSError(f"the gateway does not get ready: {why}")


def campaign(
    rounds: Iterable[tuple[int, tuple[Fault, ...]]], seed: int
) -> tuple[tuple[Counter[Anomaly], Counter[Outcome]], tuple[Counter[Anomaly], Counter[Outcome]]]:
    """Anomalies and outcomes, through the gateway and directly."""
    with KafkaCluster(1) as cluster, tempfile.TemporaryDirectory(prefix="transactions-") as folder:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        topics = [NewTopic(topic, PARTITIONS, 1) for topic in ("through", "direct")]
        for made in admin.create_topics(topics).values():
            made.result(30)
        gateway = ChaosGateway(Path(folder) / "gw", f'"{cluster.brokers[1]}"', topic=None)
        try:
            gateway.start()
            if (why := gateway.await_ready()) is not None:
                raise OSError(f"the gateway does not get ready: {why}")
            sides = [
                Side.begun(f"{HOST}:{gateway.port}", "through", seed),
                Side.begun(cluster.bootstrap, "direct", seed),
            ]
            for number, faults in rounds:
                print(Schedule(seed, {number: faults}), end="")
                play_round(cluster, gateway, faults)
                ended = [sum(len(each.told) for each in side.producers) for side in sides]
                print(f"# {ended} transactions so far", flush=True)
            time.sleep(3)
            through, direct = (side.end(cluster.bootstrap) for side in sides)
            return through, direct
        finally:
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
    (found, outcomes), (found_directly, outcomes_directly) = campaign(rounds, seed)
    new = found - found_directly
    print(f"through the gateway {dict(found)}, {dict(outcomes)}")
    print(f"directly {dict(found_directly)}, {dict(outcomes_directly)}")
    print(
        f"**{outcomes.total():,} transactions through {len(rounds)} rounds of restarts, "
        f"{outcomes[Outcome.ABORTED]:,} aborted, {outcomes[Outcome.UNKNOWN]} unknown: {found.total()} anomalies; "
        f"{outcomes_directly.total():,} directly: {found_directly.total()}; {new.total()} new**"
    )
    return int(new.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
