"""Two clients that load a fleet: one by bytes, the other by many client ids."""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Final, Self

from kafka.record import MemoryRecordsBuilder

from testkit import wire
from testkit.wire_client import ConnectionEnded, WireClient

_SILENCE_S: Final = 30.0
_AT_ONCE: Final = 2


class GreedyProducer:
    """A thread with one connection, as a context manager. It replaces a connection that ends.

    Attributes:
        taken: times and frame sizes of answered requests, which therefore had passed.
        throttled_ms: the longest throttle time in its replies.
        waits: for each answered request the time, its duration in ms, and the connection's local port.
        ended: times at which a connection ended with an unanswered request, and its local port.
    """

    def __init__(
        self, address: tuple[str, int], topic: str, client_id: str, *, value_bytes: int = 20_000
    ) -> None:
        self.taken: list[tuple[float, int]] = []
        self.waits: list[tuple[float, float, int]] = []
        self.ended: list[tuple[float, int]] = []
        self.throttled_ms = 0
        self._address = address
        self._topic = topic
        self._client_id = client_id
        self._stopped = threading.Event()
        records = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=2 * value_bytes)
        records.append(timestamp=1_700_000_000_000, key=None, value=bytes(value_bytes))
        records.close()
        self._fields = {
            "acks": 1,
            "timeout_ms": 20_000,
            "topic_data": [
                {"name": topic, "partition_data": [{"index": 0, "records": bytes(records.buffer())}]}
            ],
        }
        self._request_bytes = value_bytes + 150  # approximately the gateway's count
        self._thread = threading.Thread(target=self._run, name=f"producer-{client_id}", daemon=True)

    def taken_between(self, begin_s: float, end_s: float) -> int:
        """Bytes of requests that were answered in a span of `time.monotonic`."""
        return sum(size for at_s, size in list(self.taken) if begin_s < at_s <= end_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with (
                contextlib.suppress(OSError),
                WireClient(self._address, client_id=self._client_id, timeout_s=_SILENCE_S) as client,
            ):
                try:
                    self._produce(client)
                except (OSError, ConnectionEnded):
                    self.ended.append((time.monotonic(), client.local_port))
            self._stopped.wait(0.2)

    def _produce(self, client: WireClient) -> None:
        while not self._stopped.is_set():
            reply = client.ask("Produce", 9, **self._fields)
            self.waits.append((time.monotonic(), reply.elapsed_ms, client.local_port))
            answer = reply.body
            code = answer.responses[0].partition_responses[0].error_code
            if code:
                self._stopped.wait(0.1)  # for example, the leader is not known yet
                continue
            self.throttled_ms = max(self.throttled_ms, answer.throttle_time_ms)
            self.taken.append((time.monotonic(), self._request_bytes))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()


class ManyNames:
    """A thread with one connection that produces under many client ids in turn, as a context manager.

    The topic does not exist, so that a broker has little work. If each client id has a small quota of its own, the
    gateway has to report each request to the other members.

    Attributes:
        answered: the number of answered requests.
    """

    def __init__(self, address: tuple[str, int], prefix: str, names: int) -> None:
        self.answered = 0
        self._address = address
        partition = {"index": 0, "records": bytes(200)}
        topics = [{"name": "not-there", "partition_data": [partition]}]
        self._frames = [
            wire.request(
                "Produce", 9, client_id=f"{prefix}-{at}", acks=1, timeout_ms=1_000, topic_data=topics
            )
            for at in range(names)
        ]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=prefix, daemon=True)

    def _run(self) -> None:
        with WireClient(self._address, timeout_s=_SILENCE_S) as client:
            at = 0
            while not self._stopped.is_set():
                some = self._frames[at : at + _AT_ONCE]
                at = (at + _AT_ONCE) % len(self._frames)
                client.send_bytes(b"".join(some))
                for _ in some:
                    client.receive_frame()
                self.answered += len(some)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join(_SILENCE_S)
