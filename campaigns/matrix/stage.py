"""The path of the matrix's clients: a tap, then a gateway, then a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from campaigns.serving import serving
from embedded_kafka.jars import installed, java_command
from embedded_kafka.kafka import Address, KafkaCluster
from testkit.gateway import free_ports
from testkit.loopback import own_host
from testkit.tap import Tap

_TOOL_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway, with its addresses on the tap.

    Attributes:
        bootstrap: bootstrap address for clients.
        brokers: broker id -> port.
        tap: the tap, with the relayed bytes.
    """

    bootstrap: Address
    brokers: dict[int, Address]
    tap: Tap


def kafka_features(version: str, bootstrap: str, *arguments: str) -> None:
    """Run kafka-features of one of Kafka's versions.

    Raises:
        RuntimeError: it failed; the text is its output.
    """
    command = java_command(
        installed(version),
        "org.apache.kafka.tools.FeatureCommand",
        ["--bootstrap-server", bootstrap, "upgrade", *arguments],
        log_level="WARN",
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    if done.returncode:
        raise RuntimeError(f"kafka-features: {done.stdout}{done.stderr}")


@contextmanager
def gateway(cluster: KafkaCluster, folder: Path) -> Iterator[Gateway]:
    """Run a gateway with quotas in front of this cluster.

    Args:
        cluster: a running cluster.
        folder: folder for the configuration and the log.
    """
    own, tapped, admin = own_host(66), own_host(88), "127.0.0.1"
    first = free_ports(2 + len(cluster.brokers))
    last = first + 1 + len(cluster.brokers)
    config = folder / "gateway.toml"
    config.write_text(
        f"[upstream]\nbootstrap = {[str(address) for address in cluster.brokers.values()]}\n"
        f'[[listeners]]\nname = "matrix"\nbind = "{own}:{first}"\nadvertised_host = "{tapped}"\n'
        f"first_broker_port = {first + 1}\nlowest_broker_id = 1\nbroker_ports = {len(cluster.brokers)}\n"
        f'[admin]\nbind = "{admin}:{last}"\n[quota_store]\nkind = "memory"\n'
        '[quota_admin]\nauthorize = "ask_cluster"\n'
    )
    tap = Tap(tapped, forbidden=[own, *{address.host for address in cluster.brokers.values()}])
    try:
        with serving(config, admin=f"http://{admin}:{last}", log=folder / "gateway.log"):
            for port in range(first, last):
                tap.relay(port, (own, port))
            brokers = {broker_id: Address(tapped, first + broker_id) for broker_id in cluster.brokers}
            yield Gateway(Address(tapped, first), brokers, tap)
    finally:
        tap.close()
