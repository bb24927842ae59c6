"""The clients of the demonstration: five applications with typical loads, on librdkafka.

checkout       produces 60 kB/s, evenly
clickstream    produces 40 kB/s, and a megabyte at once every fifteen seconds
export         produces as fast as its quota allows
dashboard      consumes the records of the others
terraform      creates topics of 6 partitions, five at once every twenty seconds
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC: Final = "orders"
RECORD: Final = b"x" * 1000
_CREATE_TIMEOUT_S: Final = 30.0


class Load:
    """All clients, each in a thread of its own.

    Attributes:
        notes: counts of Kafka's errors that users should see, such as refused topics.
    """

    def __init__(self, bootstrap: str) -> None:
        """Prepare the load without connecting.

        Args:
            bootstrap: address of the gateway.
        """
        self.notes: dict[str, int] = {}
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Create the topic and start all clients."""
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "client.id": "setup"})
        admin.create_topics([NewTopic(TOPIC, 3, 1)])[TOPIC].result(_CREATE_TIMEOUT_S)
        clients: dict[str, Callable[[], None]] = {
            "checkout": lambda: self._produce("checkout", 60_000, 0, 1),
            "clickstream": lambda: self._produce("clickstream", 40_000, 1_000_000, 15),
            "export": lambda: self._produce("export", 100_000_000, 0, 1),
            "dashboard": self._consume,
            "terraform": self._create_topics,
        }
        for name, work in clients.items():
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop the clients; wait some seconds at most."""
        self._stop.set()
        deadline = time.monotonic() + 15
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _produce(self, client_id: str, bytes_per_s: int, burst_bytes: int, burst_every_s: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": client_id,
                "queue.buffering.max.kbytes": 2048,
                "linger.ms": 50,
            }
        )
        began, sent, bursts = time.monotonic(), 0, 0
        while not self._stop.wait(0.05):
            elapsed = time.monotonic() - began
            if burst_bytes and elapsed > (bursts + 1) * burst_every_s:
                bursts += 1
            wanted = int(elapsed * bytes_per_s) + bursts * burst_bytes
            with contextlib.suppress(BufferError):  # the queue is full: a client waits
                while sent < wanted and not self._stop.is_set():
                    producer.produce(TOPIC, RECORD)
                    sent += len(RECORD)
            producer.poll(0)
        producer.purge()
        producer.flush(2)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": "dashboard",
                "group.id": "dashboard",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            consumer.consume(500, 0.2)
        consumer.close()

    def _create_topics(self) -> None:
        # The client must report refusals instead of retrying.
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "client.id": "terraform"})
        turn = 0
        while not self._stop.is_set():
            topics = [NewTopic(f"environment-{turn}-{at}", 6, 1) for at in range(5)]
            for topic, future in admin.create_topics(topics).items():
                try:
                    future.result(_CREATE_TIMEOUT_S)
                    self._note("topics created")
                except KafkaException as exc:
                    error: KafkaError = exc.args[0]
                    self._note(f"topics refused: {error.name()}")
                    del topic
            turn += 1
            self._stop.wait(20)

    def _note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1
