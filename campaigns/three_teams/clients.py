"""The clients of one team, as a process: ``python -m campaigns.three_teams.clients BOOTSTRAP PARTITION USER...``.

PARTITION is the partition of the first user's producer. Each user has a producer and a consumer. Each line of
standard input is the rate that both offer from then on, in bytes per second. The end of the input ends the process.
Each client prints a line for each tenth of a second (`Line`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

SLOT_S: Final = 0.1
RECORD_BYTES: Final = 10_000
RECORDS_PER_BATCH: Final = 2
"""Records per batch in the fetched topic."""

PRODUCED: Final = "three-teams-produced"
"""A topic with a partition for each user."""

FETCHED: Final = "three-teams-fetched"
"""A topic of one partition with existing records, which consumers read repeatedly."""

PASSWORD: Final = "of-a-team"
_QUEUED_RECORDS: Final = 50
"""A client that offers more than it can send drops the rest. So little is queued when its offer ends."""

_QUEUED_KIB: Final = 256
_FETCH_BYTES: Final = 2 * (RECORDS_PER_BATCH * (RECORD_BYTES + 16) + 64)
"""Two batches and hardly a byte more: a broker adds a part of the next batch, which clients discard."""

_LONGEST_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Line:
    """One client's numbers in one slot.

    Attributes:
        user: user of the client.
        verb: produce or fetch.
        slot: number of the slot on the machine's monotonic clock, in units of `SLOT_S`.
        passed: bytes that were acknowledged or received.
        offered: bytes that it wanted to pass: of its records for a producer, by its rate for a consumer.
        latencies_ms: latency of each record, from the call of the library to the acknowledgement.
    """

    user: str
    verb: str
    slot: int
    passed: int
    offered: int
    latencies_ms: tuple[float, ...]

    def text(self) -> str:
        """The line as it is printed."""
        latencies = ",".join(f"{each:.2f}" for each in self.latencies_ms)
        return f"{self.user} {self.verb} {self.slot} {self.passed} {self.offered} {latencies}"

    @classmethod
    def parse(cls, text: str) -> Line:
        """Parse a line of `text`."""
        user, verb, slot, passed, offered, latencies = text.rstrip("\n").split(" ")
        found = tuple(float(each) for each in latencies.split(",") if each)
        return cls(user, verb, int(slot), int(passed), int(offered), found)


@dataclass(slots=True)
class Offer:
    """The current offer of the process's clients.

    Attributes:
        rate: bytes per second of each client.
    """

    rate: float = 0.0


@dataclass(slots=True)
class Pace:
    """When a client's next record is due. A late client catches up by at most a fifth of a second."""

    offer: Offer
    _due_s: float = field(default_factory=time.monotonic)

    def wait_s(self) -> float:
        """Seconds until the next record; 0 if it is due."""
        now_s = time.monotonic()
        if not self.offer.rate:
            self._due_s = now_s
            return _LONGEST_WAIT_S
        self._due_s = max(self._due_s, now_s - 0.2)
        return min(max(0.0, self._due_s - now_s), _LONGEST_WAIT_S)

    def next(self) -> None:
        """Note that one record was offered."""
        if rate := self.offer.rate:
            self._due_s += RECORD_BYTES / rate


class Meter:
    """Counts a client's bytes, and prints each slot when it is over."""

    def __init__(self, user: str, verb: str, offer: Offer | None = None) -> None:
        """Begin at zero. With `offer` its rate counts as offered, otherwise the calls of the method `offer`."""
        self._user, self._verb = user, verb
        self._wanted = offer
        self._passed: Counter[int] = Counter()
        self._offered: Counter[int] = Counter()
        self._latencies_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._slot = int(time.monotonic() / SLOT_S)

    def offer(self) -> None:
        """Count an offered record."""
        self._offered[self._current()] += RECORD_BYTES

    def pass_on(self, latency_s: float | None = None) -> None:
        """Count a passed record."""
        slot = self._current()
        self._passed[slot] += RECORD_BYTES
        if latency_s is not None:
            self._latencies_ms[slot].append(latency_s * 1000)

    def tick(self) -> None:
        """Print completed slots."""
        self._current()

    def _current(self) -> int:
        now = int(time.monotonic() / SLOT_S)
        while self._slot < now:
            at = self._slot
            latencies = tuple(self._latencies_ms.pop(at, ()))
            offered = self._offered.pop(at, 0)
            if self._wanted is not None:
                offered = round(self._wanted.rate * SLOT_S)
            line = Line(self._user, self._verb, at, self._passed.pop(at, 0), offered, latencies)
            sys.stdout.write(line.text() + "\n")
            self._slot += 1
        return now


def login(user: str, bootstrap: str) -> dict[str, Any]:
    """The settings of each client."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORD,
        "client.id": user,
    }


def produce(user: str, bootstrap: str, partition: int, offer: Offer) -> None:
    """Produce for ever; a record is dropped if the queue is full."""
    producer = Producer(
        {
            **login(user, bootstrap),
            "linger.ms": 5,
            "queue.buffering.max.messages": _QUEUED_RECORDS,
            "acks": 1,
        }
    )
    meter = Meter(user, "produce")
    pace = Pace(offer)
    value = bytes(RECORD_BYTES)

    def acknowledged(error: object, message: Any) -> None:
        if error is None:
            meter.pass_on(message.latency())

    while True:
        wait_s = pace.wait_s()
        # With less than a millisecond the library would not wait at all.
        producer.poll(max(wait_s, 0.001) if wait_s else 0)
        meter.tick()
        if wait_s:
            continue
        meter.offer()
        pace.next()
        with contextlib.suppress(BufferError):
            producer.produce(PRODUCED, value, partition=partition, on_delivery=acknowledged)


def fetch(user: str, bootstrap: str, offer: Offer) -> None:
    """Fetch the same topic repeatedly."""
    consumer = Consumer(
        {
            **login(user, bootstrap),
            "group.id": user,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.max.bytes": _FETCH_BYTES,
            "message.max.bytes": _FETCH_BYTES,
            "max.partition.fetch.bytes": _FETCH_BYTES,
            "queued.max.messages.kbytes": _QUEUED_KIB,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 10,
        }
    )
    begin = TopicPartition(FETCHED, 0, 0)
    consumer.assign([begin])
    meter = Meter(user, "fetch", offer)
    pace = Pace(offer)
    while True:
        meter.tick()
        if wait_s := pace.wait_s():
            time.sleep(wait_s)
            continue
        found = consumer.poll(_LONGEST_WAIT_S)
        if found is None:
            continue
        if found.error() is None:
            meter.pass_on()
            pace.next()
        elif found.error().code() == KafkaError._PARTITION_EOF:
            consumer.seek(begin)


def main() -> int:
    """Run the clients until standard input ends."""
    bootstrap, first, *users = sys.argv[1:]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    offer = Offer()
    for partition, user in enumerate(users, start=int(first)):
        threading.Thread(target=produce, args=(user, bootstrap, partition, offer), daemon=True).start()
        threading.Thread(target=fetch, args=(user, bootstrap, offer), daemon=True).start()
    for line in sys.stdin:
        offer.rate = float(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
