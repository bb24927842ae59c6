"""Compares the results of `simulate` for the quotas in force with the gateway's real behaviour.

Clients use a real gateway that writes usage records. Their quotas range from far too small to ample, and they have
one connection or several. Then the same quotas are replayed over the records. For each client the campaign compares
the share of throttled requests and the sum of the reported times. For Produce the gateway's side comes from its own
metrics and from the replies to clients. For mutations it is the number of refused or throttled ones. Otherwise it
comes from the records. Bounds: the number of mutations is exact; for bytes (Produce and Fetch) the mean absolute
error of the share is at most 1 point, and the median error of the times at most 5 %. `make campaigns ONLY=fidelity`
is the long run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from pipeline.replay.demand import KEY_OF_API, demands
from pipeline.replay.dispatch import ReplaySettings, replay
from quotas.usage_record import UsageApi
from testkit.wire_client import ConnectionEnded

SHARE_BOUND: Final = 0.01
TIME_BOUND: Final = 0.05
_TOPIC: Final = "fidelity-is-not-there"
FETCHED: Final = "fidelity-fetched"
"""A topic of one partition that clients fetch from; it has `FETCHED_BATCHES` batches of about a kilobyte."""
FETCHED_BATCHES: Final = 1_000
BYTES: Final = (UsageApi.PRODUCE, UsageApi.FETCH)
_REQUEST_MS: Final = 0.1  # a guess of the gateway's time for a small request, to set the pace
_RESAMPLES: Final = 4_000

Connect = Callable[[str], Any]
"""Opens a connection of this client id; see `source_of`."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client with alternating busy and silent times.

    Attributes:
        client_id: its name; for a quota of connections its address.
        quota: its quota of `api`, per second.
        wanted: its average demand, as a multiple of its quota.
        request_bytes: size of a typical request, or of its answer.
        api: the API that it uses.
        connections: number of its simultaneous connections, which share the demand.
    """

    client_id: str
    quota: float
    wanted: float
    request_bytes: int = 1_000
    api: UsageApi = UsageApi.PRODUCE
    connections: int = 1

    @property
    def pace_s(self) -> float:
        """Time between two requests of a connection during busy times, which are half of all time."""
        units: dict[UsageApi, float] = {UsageApi.REQUEST: _REQUEST_MS / 10, UsageApi.CONNECT: 1.0}
        of_one = units.get(self.api, float(self.request_bytes))
        return of_one * self.connections / (self.quota * self.wanted) / 2


@dataclass(frozen=True, slots=True)
class Admin:
    """A client that creates topics; a new one (strict) or an old one (permissive)."""

    client_id: str
    quota: float
    version: int
    requests_per_s: float


@dataclass(slots=True)
class Seen:
    """Results of one client."""

    requests: int = 0
    throttled: int = 0
    throttle_ms: int = 0
    refused: int = 0
    topics: int = 0

    def add(self, other: Seen) -> None:
        """Add the results of another connection of the client."""
        self.requests += other.requests
        self.throttled += other.throttled
        self.throttle_ms += other.throttle_ms


@dataclass(frozen=True, slots=True)
class Row:
    """One client's results, from the gateway and from the replay."""

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
    """Results of all clients."""

    rows: list[Row] = field(default_factory=list)

    def of(self, api: UsageApi) -> list[Row]:
        """The rows of one API."""
        return [row for row in self.rows if row.api == api.value]

    @property
    def share_error(self) -> float:
        """Mean absolute error of the throttled share of bytes."""
        return mean(self.share_errors(*BYTES))

    @property
    def time_error(self) -> float:
        """Median relative error of the times in replies, over throttled clients with byte rates."""
        told = [row for api in BYTES for row in self.of(api) if row.truth_ms > 0]
        return median(abs(row.wait_ms - row.truth_ms) / row.truth_ms for row in told)

    def share_errors(self, *apis: UsageApi) -> list[float]:
        """Absolute error of each client's throttled share, for these APIs."""
        return [abs(row.share - row.truth_share) for api in apis for row in self.of(api)]

    @property
    def mutations_exact(self) -> bool:
        """Whether every admin was refused or throttled exactly as often."""
        return all(row.share == row.truth_share for row in self.of(UsageApi.MUTATION))


def interval(errors: Sequence[float], *, seed: int = 1) -> tuple[float, float]:
    """The 95 % interval of the mean for other random clients of this kind (bootstrap)."""
    drawn = np.random.default_rng(seed).choice(errors, (_RESAMPLES, len(errors)))
    low, high = np.percentile(drawn.mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def producers(count: int, *, seed: int) -> list[Client]:
    """Clients with quotas from 20 kB/s to 300 kB/s and a demand of a third to three times their quota."""
    dice = random.Random(seed)
    return [
        Client(
            client_id=f"fidelity-{i}",
            quota=round(20_000 * 15 ** dice.random()),
            wanted=0.33 * 9 ** (i / max(1, count - 1)),
            request_bytes=dice.choice((2_000, 5_000, 15_000)),
        )
        for i in range(count)
    ]


def mixed_clients(count: int, *, seed: int) -> list[Client]:
    """Half producers, a fourth consumers, the others in turn with quotas of request time and of connections.

    Every third client that keeps connections has three. Requests are larger than those of `producers`, so that a
    hundred clients send about a hundred requests a second.
    """
    dice = random.Random(seed)
    kinds = (UsageApi.PRODUCE, UsageApi.FETCH, UsageApi.PRODUCE, UsageApi.REQUEST)
    found = []
    for i, client in enumerate(producers(count, seed=seed)):
        api = kinds[i % 4]
        if api is UsageApi.REQUEST and i % 8 == 7:
            address = f"127.0.{1 + i // 250}.{1 + i % 250}"
            found.append(Client(address, dice.randint(1, 4), client.wanted, api=UsageApi.CONNECT))
            continue
        quota = round(0.1 * 5 ** dice.random(), 3) if api is UsageApi.REQUEST else client.quota
        sizes = {UsageApi.PRODUCE: 5 * client.request_bytes, UsageApi.FETCH: 8 * client.request_bytes}
        connections = 3 if i % 3 == 2 else 1
        found.append(Client(client.client_id, quota, client.wanted, sizes.get(api, 100), api, connections))
    return found


def source_of(client_id: str) -> str:
    """The address from which a client connects; empty where any will do."""
    return client_id if client_id.startswith("127.") else ""


def quota_tables(clients: Sequence[Client], admins: Sequence[Admin]) -> str:
    """The clients' quotas as tables of the gateway's configuration."""
    lines = []
    for client in clients:
        name = "ip" if client.api is UsageApi.CONNECT else "client_id"
        lines.append(
            f'[[quotas]]\n{name} = "{client.client_id}"\n{KEY_OF_API[client.api]} = {client.quota!r}\n'
        )
    lines += [
        f'[[quotas]]\nclient_id = "{each.client_id}"\ncontroller_mutation_rate = {float(each.quota)}\n'
        for each in admins
    ]
    return "\n".join(lines)


def drive(
    connect: Connect,
    clients: Sequence[Client],
    admins: Sequence[Admin],
    *,
    seconds: float,
    seed: int,
) -> dict[str, Seen]:
    """Run all clients at once; the results of each.

    Args:
        connect: opens a connection of this client id, whose `ask` sends a request and returns the answer.
        clients, admins: the clients to run.
        seconds: duration.
        seed: seed of their request times and sizes.
    """
    seen = {each.client_id: Seen() for each in (*clients, *admins)}
    until_s = time.monotonic() + seconds

    connections = [(client, number) for client in clients for number in range(client.connections)]
    with ThreadPoolExecutor(len(connections) + len(admins)) as pool:
        jobs = [
            pool.submit(
                _use,
                connect,
                client,
                until_s,
                f"{seed} {client.client_id}" + (f" {number}" if number else ""),
            )
            for client, number in connections
        ]
        created = [
            pool.submit(
                _create,
                connect,
                each,
                seen[each.client_id],
                until_s,
                random.Random(f"{seed} {each.client_id}"),
            )
            for each in admins
        ]
    for (client, _), job in zip(connections, jobs, strict=True):
        seen[client.client_id].add(job.result())
    for each in created:
        each.result()
    return seen


def fill_topic(bootstrap: str, connect: Connect) -> None:
    """Create `FETCHED`, with batches of about a kilobyte, because a fetch returns whole batches."""
    name = "fidelity-fills"
    topic = {"name": FETCHED, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with connect(name) as wire:
        wire.ask("CreateTopics", 7, topics=[topic], timeout_ms=20_000, validate_only=False)
    settings = {"bootstrap.servers": bootstrap, "client.id": name, "batch.num.messages": 1, "linger.ms": 0}
    producer = Producer(settings)
    for _ in range(FETCHED_BATCHES):
        producer.produce(FETCHED, bytes(900))
    if producer.flush(60):
        raise RuntimeError("the topic to fetch from could not be filled")


def _use(connect: Connect, client: Client, until_s: float, name: str) -> Seen:
    """Run one connection of a client; its results."""
    seen, dice = Seen(), random.Random(name)
    if client.api is UsageApi.CONNECT:
        for _ in _moments(client, until_s, dice, name):
            with suppress(ConnectionEnded, OSError), connect(client.client_id) as wire:
                wire.ask("ApiVersions", 0)
            seen.requests += 1
        return seen
    with connect(client.client_id) as wire:
        for _ in _moments(client, until_s, dice, name):
            told_ms = _ask(wire, client, max(100, round(client.request_bytes * dice.uniform(0.2, 1.8))), dice)
            seen.requests += 1
            seen.throttled += told_ms > 0
            seen.throttle_ms += told_ms
    return seen


def _ask(wire: Any, client: Client, size: int, dice: random.Random) -> int:
    """Send a request; the throttle time in its answer (ms)."""
    if client.api is UsageApi.PRODUCE:
        topic: dict[str, Any] = {"name": _TOPIC, "partition_data": [{"index": 0, "records": bytes(size)}]}
        reply = wire.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=[topic])
    elif client.api is UsageApi.FETCH:
        offset = dice.randrange(FETCHED_BATCHES // 4)
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": size}
        partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size}
        partition |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
        topic = {"topic": FETCHED, "partitions": [partition]}
        ids = {"session_id": 0, "session_epoch": -1, "rack_id": ""}
        reply = wire.ask(
            "Fetch",
            12,
            replica_id=-1,
            isolation_level=0,
            topics=[topic],
            forgotten_topics_data=[],
            **limits,
            **ids,
        )
    else:
        reply = wire.ask("Metadata", 9, topics=[])
    told_ms: int = reply.body.throttle_time_ms
    return told_ms


def _moments(client: Client, until_s: float, dice: random.Random, name: str) -> Iterator[None]:
    """Yield at each time at which a connection sends a request.

    A connection is busy for about ten seconds at twice the wanted rate, then silent for as long. Requests come one by
    one with random pauses, as those of many users.
    """
    pauses, busy = random.Random(f"{name} pauses"), 0
    due_s = time.monotonic() + pauses.uniform(0, 5)
    off_at_s = due_s + pauses.expovariate(1 / 10)
    while True:
        if due_s > off_at_s:
            due_s = off_at_s + pauses.expovariate(1 / 10)
            off_at_s = due_s + pauses.expovariate(1 / 10)
            # Each busy time has its own generator. Otherwise one more or fewer request would change all later ones.
            busy += 1
            dice.seed(f"{name} {busy}")
        now_s = time.monotonic()
        if max(due_s, now_s) >= until_s:
            return
        if due_s > now_s:
            time.sleep(due_s - now_s)
        yield
        # A throttled client drops a part of the requests that it could not send.
        due_s = max(due_s + dice.expovariate(1 / client.pace_s), time.monotonic() - 5.0)


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
    clients: Sequence[Client],
    admins: Sequence[Admin],
    seen: Mapping[str, Seen],
    metric: Callable[[str, str], float],
) -> Verdict:
    """Compare the replay of the records with the clients' results.

    Args:
        compacted: the run's compacted rows, with brokers and listeners already merged.
        clients, admins: those of the run.
        seen: result of `drive`.
        metric: gives the gateway's own count for a name and a client id.
    """
    verdict = Verdict()
    quotas = {(each.api, each.client_id): float(each.quota) for each in clients}
    quotas |= {(UsageApi.MUTATION, each.client_id): each.quota for each in admins}
    for demand in demands(compacted, retries=True):
        names = demand.names.column("client_id").to_pylist()
        known = [i for i, name in enumerate(names) if (demand.api, name) in quotas]
        if not known:
            continue
        candidates = np.array([[quotas.get((demand.api, name), 1e18)] for name in names])
        replayed = replay(demand, candidates, ReplaySettings())
        for i in known:
            name = names[i]
            of_client = seen[name]
            share = replayed.outcome.throttled[i, 0] / max(1.0, replayed.requests[i])
            if demand.api is UsageApi.PRODUCE:
                throttled = metric("gateway_produce_throttled_requests_total", name)
                truth, truth_ms = throttled / max(1, of_client.requests), float(of_client.throttle_ms)
            elif demand.api is not UsageApi.MUTATION:
                sums = {name: float(demand.sums(values)[i]) for name, values in demand.told.items()}
                truth, truth_ms = sums["delayed"] / max(1.0, replayed.requests[i]), sums["throttle_ms"]
                if demand.api is UsageApi.CONNECT:
                    # A waiting connection counts as delayed at each check, but as refused only once.
                    units = max(1.0, float(replayed.units[i]))
                    truth, share = (
                        sums["rejected_units"] / units,
                        replayed.outcome.throttled_units[i, 0] / units,
                    )
            else:
                truth, truth_ms = _of_events(compacted, name)
                # The comparison uses the records here, so they must agree with the gateway's own counts.
                refused = metric("gateway_controller_mutation_refused_topics_total", name)
                if refused != of_client.refused:
                    raise RuntimeError(
                        f"{name}: {refused} topics refused by the metric, {of_client.refused} seen"
                    )
            verdict.rows.append(
                Row(
                    client_id=name,
                    api=demand.api.value,
                    quota=quotas[demand.api, name],
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
