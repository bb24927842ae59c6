"""The load of a campaign: writers of quotas, idempotent producers, and clients that are easily wronged."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from testkit import wire
from testkit.chaos.gateways import ChaosGateway
from testkit.raw_client import HOST, Ended, RawClient

_PAUSE_S: Final = 0.05


class QuotaWriter(threading.Thread):
    """Raises the quota of one user at one gateway, again and again.

    Attributes:
        acknowledged: the last one that was.
        tried: the last one that may be in force.
        count: how many were acknowledged.
    """

    def __init__(self, gateway: ChaosGateway, user: str) -> None:
        super().__init__(daemon=True)
        self.gateway, self.user = gateway, user
        self.acknowledged = self.tried = 0.0
        self.count = 0
        self.paused = threading.Event()
        self.stopped = threading.Event()
        self._idle = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(_PAUSE_S):
            if self.paused.is_set():
                self._idle.set()
                continue
            self._idle.clear()
            self.tried += 1
            if self.gateway.set_quotas({self.user: 1e9 + self.tried}):
                self.acknowledged = self.tried
                self.count += 1

    def pause(self) -> None:
        """Write nothing until `paused` is cleared; returns when nothing is under way."""
        self._idle.clear()
        self.paused.set()
        self._idle.wait(20)


class NumberedProducer(threading.Thread):
    """An idempotent producer of numbers, through the gateways.

    Attributes:
        acknowledged: numbers that the brokers have.
    """

    def __init__(self, ports: list[int], topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": ",".join(f"{HOST}:{port}" for port in ports),
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            },
        )

    def run(self) -> None:
        number = 0
        while not self.stopped.wait(0.005):
            try:
                self._producer.produce(
                    self.topic, str(number).encode(), partition=0, on_delivery=self._delivered
                )
                number += 1
            except (BufferError, KafkaException):
                pass
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(int(message.value()))

    def flush(self) -> None:
        """Wait for what is under way."""
        self._producer.flush(60)


class Reader:
    """What a topic has, asked of the brokers themselves."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """From its beginning."""
        self.values: list[bytes] = []
        self._topic = topic
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "chaos", "enable.auto.commit": False, "log_level": 0}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def read_to_end(self) -> list[bytes]:
        """All of it."""
        end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=20)[1]
        misses = 0
        while self._consumer.position([TopicPartition(self._topic, 0)])[0].offset < end and misses < 100:
            messages = self._consumer.consume(1_000, 0.2)
            misses += not messages
            self.values += [message.value() for message in messages if message.error() is None]
        return self.values

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


def _produce(number: int, name: str, topic: str) -> bytes:
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=4_096)
    builder.append(timestamp=1_700_000_000_000, key=None, value=f"{name}-{number}".encode())
    builder.close()
    return wire.request(
        "Produce",
        9,
        correlation_id=number,
        transactional_id=None,
        acks=1,
        timeout_ms=5_000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": bytes(builder.buffer())}]}],
    )


async def slow_sender(port: int, topic: str, name: str, ready: threading.Event) -> int | None:
    """Sends all the time and reads only once half a second has gone; how many replies it got until the end.

    None: it never came to it.
    """
    try:
        client = await RawClient.connect(port, receive_buffer_bytes=4_096)
    except OSError:
        return None
    sent = 0

    async def send() -> None:
        nonlocal sent
        try:
            while True:
                await client.send(_produce(sent, name, topic))
                sent += 1
                await asyncio.sleep(0)
        except (ConnectionError, TimeoutError):
            pass

    sending = asyncio.create_task(send())
    await asyncio.sleep(1.0)
    ready.set()
    await asyncio.sleep(0.5)
    received = 0
    try:
        while True:
            await client.receive_frame()
            received += 1
    except Ended:
        pass
    except TimeoutError:
        return None
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await sending
        client.close()
    return received


class HalfFrame:
    """A client that has sent half a request when its gateway is paused, and the rest meanwhile."""

    def __init__(self, port: int) -> None:
        """Connect and send the first half."""
        import socket

        request = wire.request("Metadata", 9, correlation_id=7, topics=[], allow_auto_topic_creation=False)
        self._rest = request[12:]
        self._sock = socket.create_connection((HOST, port), timeout=10)
        self._sock.sendall(request[:12])

    def finish(self) -> None:
        """Send the other half."""
        self._sock.sendall(self._rest)

    def answered(self) -> bool:
        """Whether the reply comes; closes."""
        try:
            return bool(self._sock.recv(4))
        except OSError:
            return False
        finally:
            self._sock.close()
