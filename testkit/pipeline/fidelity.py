"""What `simulate` says of quotas that were in force, beside what the gateway did.

Clients with quotas from far too small to ample, driven through a real gateway that writes usage records. The very
quotas are replayed over these. Compared are, for each client, the share of requests that were throttled and the sum
of the times told, by the gateway's own metrics and by the replies that clients got; of mutations, how many were
refused or throttled.

Bounds: as many mutations, exactly; bytes: mean absolute error of the share at most 1 point, median error of the
times at most 5 %. `make campaign-fidelity` is the long run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.replay.demand import demands
from pipeline.replay.dispatch import ReplaySettings, replay
from quotas.usage_record import Event, RowFlags, UsageApi
from quotas.usage_record import Row as Position
from testkit.pipeline.compacted_days import DAY
from testkit.pipeline.compacted_rows import compacted_batch

SHARE_BOUND: Final = 0.01
TIME_BOUND: Final = 0.05
_SERIES: Final = {
    "requests": Position.REQUESTS,
    "offered": Position.OFFERED,
    "admitted": Position.ADMITTED,
    "max_units": Position.MAX_UNITS,
    "muted_ms": Position.MUTED_MS,
}
_EVENTS: Final = {
    "e_ms": Event.OFFSET_MS,
    "e_units": Event.UNITS,
    "e_strict": Event.STRICT,
    "e_admitted": Event.ADMITTED,
    "e_throttle_ms": Event.THROTTLE_MS,
    "e_attempt": Event.ATTEMPT,
}
_TRUTHS: Final = (Event.STRICT, Event.ADMITTED)
_TOPIC: Final = "fidelity-is-not-there"

Connect = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Producer:
    """A client of one connection, now busy and now silent.

    Attributes:
        quota: bytes per second.
        wanted: what it sends on average, as a multiple of its quota.
        request_bytes: of a typical request.
    """

    client_id: str
    quota: int
    wanted: float
    request_bytes: int


@dataclass(frozen=True, slots=True)
class Admin:
    """A client that creates topics; a new one (strict) or an old one (permissive)."""

    client_id: str
    quota: float
    version: int
    requests_per_s: float


@dataclass(slots=True)
class Seen:
    """What a client saw."""

    requests: int = 0
    throttled: int = 0
    throttle_ms: int = 0
    refused: int = 0
    topics: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One client, both ways."""

    client_id: str
    api: str
    quota: float
    requests: float
    truth_share: float
    share: float
    truth_ms: float
    wait_ms: float


@dataclass(slots=True)
class Verdict:
    """All clients."""

    rows: list[Row] = field(default_factory=list)

    def of(self, api: UsageApi) -> list[Row]:
        """The rows of one API."""
        return [row for row in self.rows if row.api == api.value]

    @property
    def share_error(self) -> float:
        """Mean absolute error of the throttled share of producers."""
        return mean(abs(row.share - row.truth_share) for row in self.of(UsageApi.PRODUCE))

    @property
    def time_error(self) -> float:
        """Median relative error of the times told to producers that were told any."""
        told = [row for row in self.of(UsageApi.PRODUCE) if row.truth_ms > 0]
        return median(abs(row.wait_ms - row.truth_ms) / row.truth_ms for row in told)

    @property
    def mutations_exact(self) -> bool:
        """Whether every admin was refused or throttled exactly as often."""
        return all(row.share == row.truth_share for row in self.of(UsageApi.MUTATION))


def producers(count: int, *, seed: int) -> list[Producer]:
    """Clients with quotas from 20 kB/s to 300 kB/s that want a third to three times theirs."""
    dice = random.Random(seed)
    return [
        Producer(
            client_id=f"fidelity-{i}",
            quota=round(20_000 * 15 ** dice.random()),
            wanted=0.33 * 9 ** (i / max(1, count - 1)),
            request_bytes=dice.choice((2_000, 5_000, 15_000)),
        )
        for i in range(count)
    ]


def quota_tables(clients: Sequence[Producer], admins: Sequence[Admin]) -> str:
    """Their quotas as the gateway's configuration has them."""
    quotas = [("producer_byte_rate", each.client_id, each.quota) for each in clients]
    lines = [f'[[quotas]]\nclient_id = "{client_id}"\n{key} = {quota}\n' for key, client_id, quota in quotas]
    lines += [
        f'[[quotas]]\nclient_id = "{each.client_id}"\ncontroller_mutation_rate = {float(each.quota)}\n'
        for each in admins
    ]
    return "\n".join(lines)


def drive(
    connect: Connect,
    clients: Sequence[Producer],
    admins: Sequence[Admin],
    *,
    seconds: float,
    seed: int,
) -> dict[str, Seen]:
    """All clients at once, and what each of them saw.

    Args:
        connect: makes a connection of this client id, whose `ask` sends a request and gives the answer.
        clients, admins: all of them.
        seconds: how long.
        seed: of their moments and sizes.
    """
    seen = {each.client_id: Seen() for each in (*clients, *admins)}
    until_s = time.monotonic() + seconds

    def dice(client_id: str) -> random.Random:
        return random.Random(f"{seed} {client_id}")

    with ThreadPoolExecutor(len(seen)) as pool:
        jobs = [
            pool.submit(_produce, connect, each, seen[each.client_id], until_s, dice(each.client_id))
            for each in clients
        ]
        jobs += [
            pool.submit(_create, connect, each, seen[each.client_id], until_s, dice(each.client_id))
            for each in admins
        ]
    for job in jobs:
        job.result()
    return seen


def _produce(connect: Connect, client: Producer, seen: Seen, until_s: float, dice: random.Random) -> None:
    # On for about ten seconds at twice the wanted rate, off as long; requests come one by one, as many users' do.
    pace_s = client.request_bytes / (client.quota * client.wanted) / 2
    due_s = time.monotonic() + dice.uniform(0, 5)
    off_at_s = due_s + dice.expovariate(1 / 10)
    with connect(client.client_id) as wire:
        while True:
            if due_s > off_at_s:
                due_s = off_at_s + dice.expovariate(1 / 10)
                off_at_s = due_s + dice.expovariate(1 / 10)
            now_s = time.monotonic()
            if max(due_s, now_s) >= until_s:
                return
            if due_s > now_s:
                time.sleep(due_s - now_s)
            size = max(100, round(client.request_bytes * dice.uniform(0.2, 1.8)))
            topic = {"name": _TOPIC, "partition_data": [{"index": 0, "records": bytes(size)}]}
            body = wire.ask(
                "Produce", 9, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[topic]
            ).body
            seen.requests += 1
            seen.throttled += body.throttle_time_ms > 0
            seen.throttle_ms += body.throttle_time_ms
            # What it could not send for being throttled it does not all want later.
            due_s = max(due_s + dice.expovariate(1 / pace_s), time.monotonic() - 5.0)


def _create(connect: Connect, client: Admin, seen: Seen, until_s: float, dice: random.Random) -> None:
    number = 0
    with connect(client.client_id) as wire:
        while time.monotonic() < until_s:
            names = []
            for _ in range(dice.randint(1, 2)):
                number += 1
                names.append(f"{client.client_id}-{number}")
            topics = [
                {
                    "name": name,
                    "num_partitions": dice.randint(1, 4),
                    "replication_factor": 1,
                    "assignments": [],
                    "configs": [],
                }
                for name in names
            ]
            body = wire.ask(
                "CreateTopics", client.version, topics=topics, timeout_ms=20_000, validate_only=False
            ).body
            seen.requests += 1
            seen.topics += len(topics)
            seen.throttled += body.throttle_time_ms > 0
            seen.refused += sum(topic.error_code == 89 for topic in body.topics)
            time.sleep(dice.expovariate(client.requests_per_s))


def compare(
    compacted: pa.RecordBatch,
    clients: Sequence[Producer],
    admins: Sequence[Admin],
    seen: Mapping[str, Seen],
    metric: Callable[[str, str], float],
) -> Verdict:
    """The replay of what was recorded beside what happened.

    Args:
        compacted: the run's compacted rows, brokers and listeners already together.
        clients, admins: those of the run.
        seen: of `drive`.
        metric: name and client id to the gateway's own count.
    """
    verdict = Verdict()
    quotas = {each.client_id: float(each.quota) for each in (*clients, *admins)}
    for demand in demands(compacted, retries=True):
        names = demand.names.column("client_id").to_pylist()
        known = [i for i, name in enumerate(names) if name in quotas]
        if demand.api not in (UsageApi.PRODUCE, UsageApi.MUTATION) or not known:
            continue
        candidates = np.array([[quotas.get(name, 1e18)] for name in names])
        replayed = replay(demand, candidates, ReplaySettings())
        for i in known:
            name = names[i]
            of_client = seen[name]
            share = replayed.outcome.throttled[i, 0] / max(1.0, replayed.requests[i])
            if demand.api is UsageApi.PRODUCE:
                throttled = metric("gateway_produce_throttled_requests_total", name)
                truth, truth_ms = throttled / max(1, of_client.requests), float(of_client.throttle_ms)
            else:
                truth, truth_ms = _of_events(compacted, name)
                # Records are what is compared with here, so they must be what the gateway counted themselves.
                refused = metric("gateway_controller_mutation_refused_topics_total", name)
                if refused != of_client.refused:
                    raise RuntimeError(
                        f"{name}: {refused} topics refused by the metric, {of_client.refused} seen"
                    )
            verdict.rows.append(
                Row(
                    client_id=name,
                    api=demand.api.value,
                    quota=quotas[name],
                    requests=float(replayed.requests[i]),
                    truth_share=truth,
                    share=float(share),
                    truth_ms=truth_ms,
                    wait_ms=float(replayed.outcome.wait_ms[i, 0]),
                )
            )
    return verdict


def _of_events(compacted: pa.RecordBatch, client_id: str) -> tuple[float, float]:
    """Share of a client's recorded mutations that were refused or throttled, and the sum of the times (ms)."""
    throttled, events, wait_ms = 0, 0, 0
    for row in compacted.to_pylist():
        if row["api"] == UsageApi.MUTATION.value and row["client_id"] == client_id:
            pairs = list(zip(row["e_admitted"], row["e_throttle_ms"], strict=True))
            events += len(pairs)
            throttled += sum(not admitted or wait > 0 for admitted, wait in pairs)
            wait_ms += sum(wait for _, wait in pairs)
    return throttled / max(1, events), float(wait_ms)


def compacted_of(lines: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Compacted rows of one gateway's lines, for runs without Spark; brokers and listeners together."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}

    def row_of(line: Mapping[str, Any], user: str, client_id: str, api: str) -> dict[str, Any]:
        key = (line["gw"], user, client_id, api)
        names = {"gw": line["gw"], "user": user, "client_id": client_id, "api": api, "node": -1, "date": DAY}
        return rows.setdefault(
            key, names | {name: [] for name in (*_SERIES, "t", "quota", "censored", *_EVENTS)}
        )

    for line in lines:
        for cells in line["rows"]:
            row = row_of(line, cells[Position.USER], cells[Position.CLIENT_ID], cells[Position.API])
            row["t"].append(line["ts"] % 86_400)
            row["quota"].append(cells[Position.QUOTA])
            row["censored"].append(bool(cells[Position.FLAGS] & RowFlags.CENSORED))
            for name, position in _SERIES.items():
                row[name].append(cells[position])
        for cells in line["events"]:
            row = row_of(line, cells[Event.USER], cells[Event.CLIENT_ID], UsageApi.MUTATION.value)
            row["e_ms"].append(line["ts"] % 86_400 * 1000 + cells[Event.OFFSET_MS])
            for name, event in _EVENTS.items():
                if name != "e_ms":
                    row[name].append(bool(cells[event]) if event in _TRUTHS else cells[event])
    return compacted_batch(*rows.values())
