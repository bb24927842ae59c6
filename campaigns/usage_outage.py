"""``python -m campaigns.usage_outage``: ten minutes without the topic of usage records, with a real broker.

Two gateways send their records to separate topics. One topic is deleted, and recreated at the end. Meanwhile a client
of each gateway sends requests in turn, so that the machine's load affects both alike. Every line must be in the topic
once or counted as dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from embedded_kafka.kafka import KafkaCluster
from testkit import wire
from testkit.gateway import GatewayProcess, gateway_process
from testkit.raw_client import HOST, RawClient

GOAL_TIMES: Final = 1.05
_AWAY, _BESIDE, _ASKED = "usage-away", "usage-beside", "numbers"
_USAGE: Final = (
    '[usage]\nkind = "topic"\ntopic = "{topic}"\ngateway_id = "{topic}"\ntopic_replication_factor = 1\n'
)
_BEGUN_LINES: Final = 5
_PAUSE_S: Final = 0.01
_LOOK_S: Final = 0.05
_BACK_S: Final = 200.0
"""A gateway retries a line for two minutes, so by then all lines of the outage are delivered or dropped."""

_LATEST: Final = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]


class Topic:
    """Reads the lines of a gateway's topic, at the broker itself.

    Attributes:
        seqs: numbers of the lines so far.
        twice: number of lines that were read twice.
    """

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        self.seqs: set[int] = set()
        self.twice = 0
        self._bootstrap = bootstrap
        self._offset = 0

    def read(self, seconds: float, least: int = 0) -> None:
        """Read for `seconds`, or until there are `least` new lines.

        Raises:
            KafkaException: the broker does not answer.
        """
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "outage", "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(self.name, 0, self._offset)])
            end_s, new = time.monotonic() + seconds, 0
            while time.monotonic() < end_s and (not least or new < least):
                for message in consumer.consume(1_000, _LOOK_S):
                    if (error := message.error()) is not None:
                        raise KafkaException(error)
                    self._take(int(json.loads(message.value())["seq"]))
                    self._offset = message.offset() + 1
                    new += 1
        finally:
            consumer.close()

    def made_again(self) -> None:
        """Read the recreated topic from its beginning."""
        self._offset = 0

    def _take(self, seq: int) -> None:
        self.twice += seq in self.seqs
        self.seqs.add(seq)


async def lines(gateway: GatewayProcess) -> dict[str, int]:
    """The gateway's counts of lines by result, from one scrape."""
    url = f"http://{HOST}:{gateway.admin_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    return {
        sample.labels["result"]: int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "gateway_usage_lines_total"
    }


async def ask(client: RawClient, number: int) -> float:
    """Send one request to the broker; the seconds until its answer."""
    request = wire.request(
        "ListOffsets",
        5,
        correlation_id=number,
        replica_id=-1,
        isolation_level=0,
        topics=[{"name": _ASKED, "partitions": _LATEST}],
    )
    begun_s = time.perf_counter()
    await client.send(request)
    reply = await client.receive_frame()
    took_s = time.perf_counter() - begun_s
    assert int.from_bytes(reply[4:8]) == number
    return took_s


async def ask_in_turn(gateways: tuple[GatewayProcess, ...], seconds: float) -> list[list[float]]:
    """Send pairs of requests, one by each gateway's client; the clients take turns in being first."""
    clients = [await gateway.connect() for gateway in gateways]
    took_s: list[list[float]] = [[] for _ in clients]
    end_s, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end_s:
            number += 1
            for at in (0, 1) if number % 2 else (1, 0):
                took_s[at].append(await ask(clients[at], number))
            await asyncio.sleep(_PAUSE_S)
    finally:
        for client in clients:
            client.close()
    return took_s


async def until_lines(gateway: GatewayProcess, least: int, seconds: float) -> dict[str, int]:
    """Wait until `least` lines are delivered and at most the latest is in flight; the counts of lines then.

    The gateway notices the delivery of a line when it writes the next one.

    Raises:
        TimeoutError: this does not happen in time.
    """
    async with asyncio.timeout(seconds):
        while True:
            found = await lines(gateway)
            if found["delivered"] >= least and found["made"] <= found["delivered"] + found["dropped"] + 1:
                return found
            await asyncio.sleep(_LOOK_S)


async def run(cluster: KafkaCluster, seconds: float) -> tuple[dict[str, int], Topic, list[list[float]]]:
    """Run the outage; the lines of its gateway, the topic's reader, and the answer times of both clients."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(_ASKED, 1, 1)])[_ASKED].result(30)
    topic = Topic(cluster.bootstrap, _AWAY)
    async with AsyncExitStack() as stack:
        gateways = []
        for name in (_AWAY, _BESIDE):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started = gateway_process(folder, cluster.brokers[1].port, tables=_USAGE.format(topic=name))
            gateways.append(await stack.enter_async_context(started))
        for gateway in gateways:
            await until_lines(gateway, _BEGUN_LINES, 60)
        await asyncio.to_thread(topic.read, 60, _BEGUN_LINES)
        # There is one line per second, so right after a line none is in flight.
        await asyncio.to_thread(topic.read, 60, 1)
        admin.delete_topics([_AWAY])[_AWAY].result(30)
        print(f"deleted after {len(topic.seqs)} lines", flush=True)
        took_s = await ask_in_turn((gateways[0], gateways[1]), seconds)
        before = await lines(gateways[0])
        print(f"before it is made again: {before}", flush=True)
        topic.made_again()
        admin.create_topics([NewTopic(_AWAY, 1, 1)])[_AWAY].result(30)
        found = await until_lines(gateways[0], before["delivered"] + _BEGUN_LINES, _BACK_S)
        await asyncio.to_thread(topic.read, 5)
    return found, topic, took_s


def p99_ms(took_s: list[float]) -> float:
    """In milliseconds."""
    return statistics.quantiles(took_s, n=100)[98] * 1_000


def main() -> int:
    """Run it; 1 when a line is missing, or the outage delays the client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with KafkaCluster(1, properties={"auto.create.topics.enable": "false"}) as cluster:
        found, topic, took_s = asyncio.run(run(cluster, options.minutes * 60))
    there = len({seq for seq in topic.seqs if seq < found["made"]})
    # The latest line is in the topic, and not yet counted as delivered.
    left = found["made"] - there - found["dropped"]
    away_ms, beside_ms = (p99_ms(each) for each in took_s)
    print(found, f"p99 of {len(took_s[0])}: {away_ms:.3f} and {beside_ms:.3f} ms beside it")
    print(
        f"**{found['made']} lines, {there} in the topic, {found['dropped']} dropped, {left} left, "
        f"{topic.twice} twice; p99 {away_ms:.2f} ms, {away_ms / beside_ms:.3f} times that without an outage**"
    )
    return int(left != 0 or topic.twice != 0 or away_ms > GOAL_TIMES * beside_ms)


if __name__ == "__main__":
    sys.exit(main())
