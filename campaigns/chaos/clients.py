"""The load of a chaos campaign: writers of quotas, idempotent producers, and sensitive clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka.record import MemoryRecordsBuilder

from campaigns.chaos.gateways import ChaosGateway
from testkit import wire
from testkit.raw_client import HOST, Ended, RawClient
from testkit.wire_client import WireClient

_PAUSE_S: Final = 0.05
BASE: Final = 1e9
"""Quotas are this value plus an increasing number."""
_SENDING_S: Final = 0.5
_END_S: Final = 20.0
_CLIENT: Final = {"reconnect.backoff.max.ms": 1_000, "log_level": 0}


class QuotaWriter(threading.Thread):
    """Raises the quota of one user at one gateway repeatedly.

    Attributes:
        acknowledged: the last acknowledged value.
        tried: the last value that may be in force.
        count: number of acknowledged alterations.
    """

    def __init__(self, gateway: ChaosGateway, user: str) -> None:
        super().__init__(daemon=True)
        self.gateway, self.user = gateway, user
        self.acknowledged = self.tried = 0.0
        self.count = 0
        self.paused = threading.Event()
        self.stopped = threading.Event()
        self._idle = threading.Event()
        self._acknowledgements: deque[tuple[float, float]] = deque(maxlen=4_096)

    def run(self) -> None:
        while not self.stopped.wait(_PAUSE_S):
            if self.paused.is_set():
                self._idle.set()
                continue
            self._idle.clear()
            self.tried += 1
            if self.gateway.set_quotas({self.user: BASE + self.tried}) is None:
                self._acknowledgements.append((time.monotonic(), self.tried))
                self.acknowledged = self.tried
                self.count += 1

    def acknowledged_by(self, now_s: float) -> float:
        """The last value that was acknowledged by then (`time.monotonic`)."""
        return next(
            (value for when_s, value in reversed(self._acknowledgements.copy()) if when_s <= now_s), 0.0
        )

    def pause(self) -> None:
        """Write nothing until `paused` is cleared; returns when no request is in flight."""
        self._idle.clear()
        self.paused.set()
        self._idle.wait(20)


class NumberedProducer(threading.Thread):
    """A producer of numbers, idempotent unless its settings say otherwise.

    Attributes:
        acknowledged: acknowledged numbers that the check has not taken yet.
        count: number of all acknowledged numbers.
        sent: how many numbers it has produced, which is also the next number.
    """

    def __init__(
        self, ports: list[int], topic: str, *, settings: Mapping[str, Any] | None = None, burst: int = 1
    ) -> None:
        """Prepare the producer without sending.

        Args:
            ports: ports of gateways, or of a broker.
            topic: the topic whose first partition gets the numbers.
            settings: settings of the client, which override the defaults here.
            burst: how many it produces each time, a hundred times a second.
        """
        super().__init__(daemon=True)
        self.topic = topic
        self.acknowledged: deque[int] = deque()
        self.count = self.sent = 0
        self._burst = burst
        self.stopped = threading.Event()
        self._producer = Producer(
            {
                **_CLIENT,
                "bootstrap.servers": _servers(ports),
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                **(settings or {}),
            },
        )

    def run(self) -> None:
        while not self.stopped.wait(0.01):
            for _ in range(self._burst):
                try:
                    self._producer.produce(
                        self.topic, str(self.sent).encode(), partition=0, on_delivery=self._delivered
                    )
                    self.sent += 1
                except (BufferError, KafkaException):
                    pass
            self._producer.poll(0)

    def finish(self, within_s: float) -> None:
        """Stop sending, and wait for the delivery of records in flight."""
        self.stopped.set()
        self.join()
        self._producer.flush(within_s)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
            self.count += 1


class NumberReader(threading.Thread):
    """A consumer through the gateways, of the topic of a `NumberedProducer`.

    Attributes:
        twice, disordered: how many numbers came twice, or out of order.
        position: offset up to which it has read.
    """

    def __init__(self, ports: list[int], topic: str) -> None:
        """Prepare to read from the beginning."""
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.twice = self.disordered = self.position = 0
        self._last = -1
        self._seen: set[int] = set()
        self._consumer = Consumer(
            {
                **_CLIENT,
                "bootstrap.servers": _servers(ports),
                "group.id": "chaos",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])

    def run(self) -> None:
        while not self.stopped.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self._take(int(message.value()))
                    self.position = message.offset() + 1
        self._consumer.close()

    def _take(self, number: int) -> None:
        self.twice += number in self._seen
        self.disordered += number < self._last
        self._seen.add(number)
        self._last = max(self._last, number)

    def lacks(self, numbers: list[int]) -> int:
        """How many of the numbers it has never read."""
        return sum(number not in self._seen for number in numbers)


class Reader:
    """Reads a topic directly from the brokers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        """Prepare to read from the topic's beginning."""
        self._partition = TopicPartition(topic, 0, 0)
        self._consumer = Consumer(
            {**_CLIENT, "bootstrap.servers": bootstrap, "group.id": "chaos", "enable.auto.commit": False}
        )
        self._consumer.assign([self._partition])

    def end(self) -> int:
        """The end offset of the topic.

        Raises:
            KafkaException: the brokers do not answer.
        """
        deadline_s = time.monotonic() + _END_S
        while True:
            try:
                return int(self._consumer.get_watermark_offsets(self._partition, timeout=_END_S)[1])
            except KafkaException as exc:
                # librdkafka asks the leader that it knows, and not again if another broker leads meanwhile.
                moved = exc.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
                if not moved or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.2)

    def read_to_end(self) -> list[bytes]:
        """The records since the last call.

        Raises:
            KafkaException: the brokers do not answer with the end offset.
        """
        end, misses = self.end(), 0
        values: list[bytes] = []
        while self._consumer.position([self._partition])[0].offset < end and misses < 100:
            messages = self._consumer.consume(1_000, 0.2)
            misses += not messages
            values += [message.value() for message in messages if message.error() is None]
        return values

    def close(self) -> None:
        """Let go."""
        self._consumer.close()


def _servers(ports: list[int]) -> str:
    return ",".join(f"{HOST}:{port}" for port in ports)


def port_of_leader(port: int, topic: str) -> int:
    """The port of a gateway that leads to the leader of a topic's first partition.

    Raises:
        OSError: the partition has no leader now.
    """
    with WireClient((HOST, port), timeout_s=5) as client:
        body = client.ask("Metadata", 9, topics=[{"name": topic}], allow_auto_topic_creation=False).body
    ports = {broker.node_id: int(broker.port) for broker in body.brokers}
    partitions = body.topics[0].partitions
    if not partitions or partitions[0].leader_id not in ports:
        raise OSError(f"{topic} has no leader")
    return ports[partitions[0].leader_id]


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
    """Send all the time and begin to read late; how many replies it got until the end.

    Args:
        port: port of the topic's leader.
        topic: a topic with one partition.
        name: begin of each record.
        ready: set when replies wait.

    Returns:
        The number of replies; None if the connection did not end in time.
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
    await asyncio.sleep(_SENDING_S)
    ready.set()
    await asyncio.sleep(_SENDING_S)
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
    """A client that sends half a request before its gateway is paused, and the rest during the pause."""

    def __init__(self, port: int) -> None:
        """Connect and send the first half."""
        request = wire.request("Metadata", 9, correlation_id=7, topics=[], allow_auto_topic_creation=False)
        self._rest = request[12:]
        self._sock = socket.create_connection((HOST, port), timeout=10)
        self._sock.sendall(request[:12])

    def finish(self) -> None:
        """Send the other half."""
        self._sock.sendall(self._rest)

    def answered(self) -> bool:
        """Whether the reply comes; closes the connection."""
        try:
            return bool(self._sock.recv(4))
        except OSError:
            return False
        finally:
            self.close()

    def close(self) -> None:
        """Let go."""
        self._sock.close()
