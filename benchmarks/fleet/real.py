"""Real gateways as separate processes, a real Kafka of one broker, and greedy producers at each gateway."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.serving import serving
from embedded_kafka.kafka import KafkaCluster
from testkit.fleet_load import GreedyProducer
from testkit.gateway import free_ports
from testkit.wire_client import WireClient

_PRODUCERS: Final = 2
TOPIC: Final = "fleet-load"
_LEAST, _MOST = 0.95, 1.05


def run(
    gateways: int, workers: int, brokers: int, *, seconds: float, warm_up_s: float, quota: int, output: Path
) -> int:
    """Measure the sum of all gateways' traffic under one producer_byte_rate, with clients at every gateway."""
    document: dict[str, Any] = {
        "command": f"python -m benchmarks.fleet --gateways {gateways} --workers {workers} --brokers {brokers} "
        f"--seconds {seconds:g}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-fleet-")))
        cluster = stack.enter_context(KafkaCluster(brokers))
        make_topic(cluster.brokers[1], leader=1)
        ports = [free_ports(2 + brokers) for _ in range(gateways)]
        for at, port in enumerate(ports):
            file = folder / f"gateway-{at}.toml"
            file.write_text(configuration(at, port, str(cluster.brokers[1]), quota, workers, brokers))
            admin = f"http://127.0.0.1:{port + 1 + brokers}"
            stack.enter_context(serving(file, admin=admin, log=folder / f"gateway-{at}.log"))
        producers = [
            [
                stack.enter_context(GreedyProducer(("127.0.0.1", port + 1), TOPIC, "greedy"))
                for _ in range(_PRODUCERS * workers)
            ]
            for port in ports
        ]
        time.sleep(warm_up_s)
        begin_s = time.monotonic()
        before = [metrics(port + 1 + brokers) for port in ports]
        time.sleep(seconds)
        taken_s = time.monotonic() - begin_s
        after = [metrics(port + 1 + brokers) for port in ports]
        end_s = begin_s + taken_s
        passed = [sum(each.taken_between(begin_s, end_s) for each in some) for some in producers]
    rows = [
        {
            "gateway": at,
            "share": round(passed[at] / taken_s / quota, 4),
            "members": after[at]["gateway_fleet_members"],
            "lag_ms": round(1000 * after[at]["gateway_fleet_lag_seconds"], 1),
            "told_per_s": round(
                (
                    after[at]["gateway_fleet_counters_told_total"]
                    - before[at]["gateway_fleet_counters_told_total"]
                )
                / taken_s,
                1,
            ),
            "isolations": after[at]["gateway_fleet_isolations_total"],
        }
        for at in range(gateways)
    ]
    ratio = sum(passed) / taken_s / quota
    document |= {
        "seconds": round(taken_s, 1),
        "workers": workers,
        "brokers": brokers,
        "quota_bytes_per_s": quota,
        "ratio": round(ratio, 4),
        "load_average_after": load_average(),
        "rows": rows,
    }
    page = _page(document, rows, ratio)
    keep_results(document, page, output, "fleet" if workers == 1 else "fleet-workers")
    print(page)
    return int(not _LEAST <= ratio <= _MOST)


def _page(document: dict[str, Any], rows: list[dict[str, Any]], ratio: float) -> str:
    lines = [
        "# One quota over real gateways",
        "",
        f"`{document['command']}`; quota {document['quota_bytes_per_s']} bytes/s, {document['seconds']} s "
        f"after a warm-up, {_PRODUCERS} producers for each worker of a gateway that send as fast as they may; "
        f"{document['brokers']} brokers, {document['workers']} workers in each gateway (a worker is a "
        f"member, and so is their supervisor). "
        f"Load average {document['load_average_before'][0]} before, {document['load_average_after'][0]} after.",
        "",
        f"All together passed **{ratio:.3f}** of the quota (goal: {_LEAST} to {_MOST}).",
        "",
        "| gateway | of the quota | members | lag, ms | counters sent per s | isolations |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['gateway']} | {row['share']} | {row['members']:.0f} | {row['lag_ms']} "
        f"| {row['told_per_s']} | {row['isolations']:.0f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def configuration(at: int, port: int, broker: str, quota: int, workers: int, brokers: int) -> str:
    """A member's configuration as TOML. The ports are the listener's, then the brokers', then the admin port."""
    return f"""\
[server]
workers = {workers}
[upstream]
bootstrap = ["{broker}"]
[[listeners]]
name = "fleet"
bind = "127.0.0.1:{port}"
first_broker_port = {port + 1}
lowest_broker_id = 1
broker_ports = {brokers}
[admin]
bind = "127.0.0.1:{port + 1 + brokers}"
[quota_store]
kind = "memory"
[client_quota]
scope = "fleet"
[fleet]
member = "gateway-{at}"
[[quotas]]
client_id = "greedy"
producer_byte_rate = {quota}
"""


def make_topic(broker: tuple[str, int], leader: int) -> None:
    """Create the load's topic, with one partition."""
    assignments = [{"partition_index": 0, "broker_ids": [leader]}]
    wanted = {"name": TOPIC, "num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    with WireClient(broker) as client:
        reply = client.ask("CreateTopics", 4, topics=[wanted], timeout_ms=30_000, validate_only=False)
    assert reply.body.topics[0].error_code == 0


def metrics(port: int) -> dict[str, float]:
    """The fleet's metrics without labels."""
    return {sample.name: sample.value for sample in samples(port) if not sample.labels}


def samples(port: int) -> list[Sample]:
    """All fleet metrics of the gateway with this admin port."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gateway_fleet_")
    ]
