"""One run: the gateway in a separate process, and both ends in this process."""

from __future__ import annotations

import asyncio
import random
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from campaigns.order.peers import Broker, Client, Counts, no_delay
from testkit.broker import HOST, ScriptedBroker
from testkit.gateway import gateway_process

CONNECTIONS_PER_CLIENT: Final = 2

CLIENTS: Final = {
    "order-0": {"producer_byte_rate": 60_000},
    "order-1": {"producer_byte_rate": 30_000, "consumer_byte_rate": 40_000},
    "order-2": {"consumer_byte_rate": 12_000},
    "order-3": {"request_percentage": 2.0},
    "order-4": {"producer_byte_rate": 100_000, "consumer_byte_rate": 100_000, "request_percentage": 3.0},
    "order-5": {},
    "order-6": {},
    "order-7": {},
}
"""Client ids and their tight quota. All other quotas are set, too, but so high that they are never reached."""

NEVER_REACHED: Final = {
    "producer_byte_rate": 10**12,
    "consumer_byte_rate": 10**12,
    "request_percentage": 1e9,
    "controller_mutation_rate": 1e9,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a run.

    Attributes:
        requests, answered, at_broker: frames that clients sent, that clients received, that the broker received.
        of_kind: requests by kind.
        pieces: writes of either end.
        out_of_order: faults found at either end; `faults` has the first few in words.
        throttled_requests: number of throttled requests by quota and API.
        throttled_s: seconds of throttle reported, by quota and API.
        closed: connections by cause.
    """

    requests: int
    answered: int
    at_broker: int
    of_kind: dict[str, int]
    pieces: int
    out_of_order: int
    faults: list[str]
    throttled_requests: dict[str, int]
    throttled_s: dict[str, float]
    closed: dict[str, int]
    seconds: float

    def as_row(self) -> dict[str, object]:
        """The results as data for JSON."""
        return asdict(self)


def _tables(tighter: int) -> str:
    text = "[client_quota]\nwindow_num = 3\n"
    for client_id, tight in CLIENTS.items():
        text += f'[[quotas]]\nclient_id = "{client_id}"\n'
        limits = NEVER_REACHED | {key: type(value)(value / tighter) for key, value in tight.items()}
        text += "".join(f"{key} = {value}\n" for key, value in limits.items())
    return text


async def run(requests: int, *, folder: Path, seed: int, limit_s: float, tighter: int = 1) -> Outcome:
    """Send `requests` requests and check every frame.

    Args:
        requests: number of requests on all connections together.
        folder: folder for the gateway's configuration.
        seed: seed of the random timing.
        limit_s: time limit; requests without an answer by then are faults.
        tighter: divisor of the tight quotas, so that few requests reach them, too.
    """
    loop = asyncio.get_running_loop()
    dice = random.Random(seed)
    counts = Counts(left=requests)
    cluster = ScriptedBroker()
    server = await loop.create_server(lambda: Broker(counts, dice, cluster), HOST, 0)
    cluster.port = server.sockets[0].getsockname()[1]
    async with server, gateway_process(folder, cluster.port, tables=_tables(tighter)) as gateway:
        clients = []
        began_s = time.monotonic()
        for number in range(len(CLIENTS) * CONNECTIONS_PER_CLIENT):
            client_id = list(CLIENTS)[number % len(CLIENTS)].encode()
            client = Client(number, client_id, counts, random.Random(seed * 1_000 + number))
            transport, _ = await loop.create_connection(lambda client=client: client, HOST, gateway.port)  # type: ignore[misc]
            no_delay(transport)
            clients.append(client)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(client.done.wait() for client in clients))
        except TimeoutError:
            counts.fault(
                f"not done after {limit_s:.0f} s: {counts.left} not sent, {counts.answered} answered"
            )
        seconds = time.monotonic() - began_s
        forwarded = sum(count for kind, count in counts.of_kind.items() if kind != "answered by the gateway")
        # Requests without acks may still be in flight.
        for _ in range(500):
            if counts.at_broker >= forwarded:
                break
            await asyncio.sleep(0.01)
        for client in clients:
            client.close()
        await asyncio.sleep(0.3)
        page = await asyncio.to_thread(_metrics, gateway.admin_port)
        assert gateway.running
    owed = sum(count for kind, count in counts.of_kind.items() if kind != "produce without acks")
    if not counts.wrong and counts.answered != owed:
        counts.fault(f"{counts.answered} replies to {owed} requests")
    if not counts.wrong and counts.at_broker != forwarded:
        counts.fault(f"{counts.at_broker} of {forwarded} requests at the broker")
    return Outcome(
        requests=counts.sent,
        answered=counts.answered,
        at_broker=counts.at_broker,
        of_kind=dict(sorted(counts.of_kind.items())),
        pieces=counts.chunks,
        out_of_order=len(counts.wrong),
        faults=counts.wrong,
        throttled_requests={key: int(v) for key, v in page.by("gateway_throttled_requests_total").items()},
        throttled_s={key: round(v, 3) for key, v in page.by("gateway_throttle_seconds_total").items()},
        closed={
            key: int(v) for key, v in page.by("gateway_connections_closed_total", ("cause",)).items() if v
        },
        seconds=round(seconds, 1),
    )


class Page:
    """A page of metrics."""

    def __init__(self, text: str) -> None:
        self._text = text

    def by(self, name: str, labels: tuple[str, ...] = ("quota", "api")) -> dict[str, float]:
        """The values of a metric, added up by these labels."""
        found: dict[str, float] = {}
        for sample in self._samples(name):
            key = " ".join(sample[0].get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + sample[1]
        return dict(sorted(found.items()))

    def _samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        for family in text_string_to_metric_families(self._text):
            for sample in family.samples:
                if sample.name == name:
                    yield sample.labels, sample.value


def _metrics(port: int) -> Page:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as answer:
        return Page(answer.read().decode())
