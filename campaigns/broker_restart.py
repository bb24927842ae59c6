"""``python -m campaigns.broker_restart``: how soon clients work again after a broker's restart.

A producer and a consumer of librdkafka use the broker directly, and two more use a gateway, all the time. In each
round the broker restarts. A client's gap begins with the first connection that the broker's port accepts. It ends
with the client's next delivered or read record. All four clients have the same restart, so Sluice causes any
difference.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from campaigns.serving import before_one_broker, serving
from embedded_kafka.kafka import Address, KafkaCluster
from testkit.gateway import free_ports
from testkit.raw_client import HOST

GOAL_S: Final = 2.0
GOAL_MORE_S: Final = 0.5
_TOPICS: Final = {"direct": "restarts-direct", "gateway": "restarts-gateway"}
_EVERY_S: Final = 0.02
_STEADY_S: Final = 3.0
_BACK_S: Final = 60.0
_PROBE_S: Final = 0.005
# With the default of 10 s the clients' own backoff would dominate the result.
_CLIENT: Final = {"reconnect.backoff.max.ms": 1_000, "log_level": 0}


class Client(threading.Thread):
    """Notes when each of its records was delivered or read.

    Attributes:
        stopped: set to end the thread.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self._times_s: deque[float] = deque(maxlen=100_000)

    def came_through(self) -> None:
        """Note that a record was delivered or read now."""
        self._times_s.append(time.monotonic())

    def first_after(self, since_s: float) -> float:
        """When the first record after a given time was delivered or read.

        Raises:
            TimeoutError: there is none in time.
        """
        end_s = time.monotonic() + _BACK_S
        while time.monotonic() < end_s:
            found = next((each for each in self._times_s.copy() if each > since_s), None)
            if found is not None:
                return found
            time.sleep(_EVERY_S)
        raise TimeoutError(f"{self.name} is not back after {_BACK_S:.0f} s")


class Sending(Client):
    """A producer of fifty records a second."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._producer = Producer({**_CLIENT, "bootstrap.servers": bootstrap, "enable.idempotence": True})

    def run(self) -> None:
        while not self.stopped.wait(_EVERY_S):
            self._producer.produce(self._topic, b"x", partition=0, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.purge()
        self._producer.flush(5)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is None:
            self.came_through()


class Reading(Client):
    """A consumer from the end of a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._consumer = Consumer({**_CLIENT, "bootstrap.servers": bootstrap, "group.id": topic})
        self._consumer.assign([TopicPartition(topic, 0, -1)])

    def run(self) -> None:
        while not self.stopped.is_set():
            for message in self._consumer.consume(100, _EVERY_S):
                if message.error() is None:
                    self.came_through()
        self._consumer.close()


def accepts_at(address: Address) -> float:
    """Wait until a connection to the port is accepted; the time at which it was."""
    end_s = time.monotonic() + _BACK_S
    while time.monotonic() < end_s:
        with socket.socket() as sock:
            sock.settimeout(1.0)
            if sock.connect_ex(address) == 0:
                return time.monotonic()
        time.sleep(_PROBE_S)
    raise TimeoutError("the broker's port is not open")


def restart(cluster: KafkaCluster, clients: Sequence[Client]) -> list[float]:
    """Restart the broker; the gap of each client in seconds."""
    time.sleep(_STEADY_S)
    cluster.stop_broker(1)
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(cluster.start_broker, 1)
        accepted_s = accepts_at(cluster.brokers[1])
        starting.result()
    return [client.first_after(accepted_s) - accepted_s for client in clients]


def campaign(rounds: int) -> list[list[float]]:
    """The gaps of each client, by round: producer and consumer directly, producer and consumer through a gateway."""
    first = free_ports(4)
    with KafkaCluster(1) as cluster, tempfile.TemporaryDirectory() as folder:
        admin = AdminClient({**_CLIENT, "bootstrap.servers": cluster.bootstrap})
        for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in _TOPICS.values()]).values():
            made.result(30)
        config = Path(folder) / "gateway.toml"
        config.write_text(before_one_broker(cluster.bootstrap, first))
        with serving(config, admin=f"http://{HOST}:{first + 1}", log=Path(folder) / "log"):
            clients = [
                kind(bootstrap, topic)
                for bootstrap, topic in (
                    (cluster.bootstrap, _TOPICS["direct"]),
                    (f"{HOST}:{first}", _TOPICS["gateway"]),
                )
                for kind in (Sending, Reading)
            ]
            for client in clients:
                client.start()
            try:
                gaps = []
                for _ in range(rounds):
                    gaps.append(restart(cluster, clients))
                    print(" ".join(f"{gap:.3f}" for gap in gaps[-1]), flush=True)
            finally:
                for client in clients:
                    client.stopped.set()
                for client in clients:
                    client.join(10)
    return [list(each) for each in zip(*gaps, strict=True)]


def p95(gaps_s: Sequence[float]) -> float:
    """The 95th percentile over the rounds."""
    return statistics.quantiles(gaps_s, n=20, method="inclusive")[18]


def main() -> int:
    """Run it; 1 when gaps are too long, or longer than those of direct clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    sent_s, read_s, sent_by_us_s, read_by_us_s = (p95(each) for each in campaign(rounds))
    more_s = max(sent_by_us_s - sent_s, read_by_us_s - read_s)
    print(
        f"**{rounds} restarts: p95 of producers {sent_by_us_s:.2f} s, directly {sent_s:.2f} s; "
        f"of consumers {read_by_us_s:.2f} s, directly {read_s:.2f} s**"
    )
    return int(max(sent_by_us_s, read_by_us_s) > GOAL_S or more_s > GOAL_MORE_S)


if __name__ == "__main__":
    sys.exit(main())
