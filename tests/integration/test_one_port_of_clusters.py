"""Two gateways of a fleet, each before two clusters with one port by SNI: one of the clusters has SASL_SSL.

What a gateway advertises leads to the other one, so every client logs in at both, as behind a load balancer.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final

import pytest

from embedded_kafka.kafka import KafkaCluster
from testkit.certificates import SERVER, Authority, KeyPair
from testkit.gateway import GatewayProcess, free_ports, serving
from testkit.raw_client import HOST, RawClient
from testkit.secure_kafka import PASSWORDS, SecureKafka
from testkit.tls import raw_hello, server_name_extension
from tests.integration.conftest import WITHIN_S
from tests.integration.go_programs import go_program
from tests.integration.host_names import with_hosts, write_hosts
from tests.integration.sasl_clients import FAMILIES, TOPIC, Job
from tests.integration.test_one_port import Clients

pytestmark = pytest.mark.integration

CLUSTERS: Final = ("orders", "payments")
UNRECOGNIZED_NAME: Final = bytes.fromhex("1503030002 0270")
CONFIGURATION: Final = """
[admin]
bind = "{host}:{admin}"
[[clusters]]
name = "orders"
[clusters.upstream]
bootstrap = ["{orders}"]
security_protocol = "SASL_SSL"
tls = {{ ca = "{broker_ca}" }}
sasl = {{ mechanism = "SCRAM-SHA-512", username = "gateway", password_file = "{password_file}" }}
[[clusters.listeners]]
name = "named"
bind = "{host}:{port[0]}"
security_protocol = "SASL_SSL"
sni = {{ bootstrap_name = "orders.test", broker_name = "b{{node}}.orders.test", advertised_port = {other[0]} }}
tls = {{ certificate = "{certificate}", key = "{key}" }}
[clusters.quota_store]
kind = "memory"
[clusters.client_quota]
scope = "fleet"
[clusters.fleet]
member = "{member}"
topic = "shares-of-orders"
heartbeat_ms = 500
[[clusters.quotas]]
user = "alice"
producer_byte_rate = 300
[[clusters]]
name = "payments"
[clusters.upstream]
bootstrap = ["{payments}"]
[[clusters.listeners]]
name = "named"
bind = "{host}:{port[1]}"
security_protocol = "SSL"
sni = {{ bootstrap_name = "payments.test", broker_name = "b{{node}}.payments.test", advertised_port = {other[1]} }}
tls = {{ certificate = "{certificate}", key = "{key}" }}
[clusters.quota_store]
kind = "memory"
"""


class Gateways:
    """Both of them.

    Attributes:
        ports: of each gateway, in the order of CLUSTERS.
        processes: the parents.
    """

    def __init__(self, folder: Path, secure: SecureKafka, kafka: KafkaCluster, pair: KeyPair) -> None:
        first = free_ports(6)
        self._admin = (first, first + 3)
        self.ports = ((first + 1, first + 2), (first + 4, first + 5))
        self.processes: list[GatewayProcess] = []
        self._files = []
        for at, member in enumerate("xy"):
            (file := folder / f"{member}.toml").write_text(
                CONFIGURATION.format(
                    host=HOST,
                    admin=self._admin[at],
                    port=self.ports[at],
                    other=self.ports[1 - at],
                    member=member,
                    orders=next(iter(secure.addresses("SASL_SSL").values())),
                    broker_ca=secure.authority.certificate,
                    password_file=secure.password_file("gateway"),
                    payments=next(iter(kafka.brokers.values())),
                    certificate=pair.certificate,
                    key=pair.key,
                )
            )
            self._files.append(file)

    async def start(self, stack: AsyncExitStack) -> None:
        for at, file in enumerate(self._files):
            process = await stack.enter_async_context(serving(file, self.ports[at][0], self._admin[at]))
            self.processes.append(process)

    async def metric(self, name: str, **labels: str) -> list[float]:
        """Of each gateway."""
        return [await each.metric(name, **labels) for each in self.processes]

    async def until(self, name: str, least: float, **labels: str) -> None:
        """Wait until each gateway has so much."""
        async with asyncio.timeout(WITHIN_S):
            while min(found := await self.metric(name, **labels)) < least:
                assert all(each.running for each in self.processes), found
                await asyncio.sleep(0.05)


def log_in_and_produce(family: str, ports: tuple[int, int], hosts: Path, ca: Path) -> dict[str, dict[str, object]]:
    """Clients of a family, two for each gateway to bootstrap from; what became of them."""
    jobs = [
        Job(
            f"orders.test:{port}",
            mechanism,
            "alice",
            PASSWORDS["alice"],
            f"{family}-{port}-{mechanism}",
            1.0,
            str(ca),
        )
        for port in ports
        for mechanism in ("SCRAM-SHA-512", "PLAIN")
    ]
    jobs_json = json.dumps([asdict(each) for each in jobs])
    command = [sys.executable, "-m", "tests.integration.sasl_clients", family, jobs_json]
    done = subprocess.run(with_hosts(hosts, command), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {each.client_id for each in jobs}
    return found


@pytest.mark.parametrize("steady", ["librdkafka", pytest.param("franz-go", marks=pytest.mark.campaign)])
async def test_clients_of_all_families_log_in_at_both_gateways_of_a_fleet_before_two_clusters(
    secure_kafka: SecureKafka, kafka: KafkaCluster, tmp_path: Path, steady: str
) -> None:
    authority = Authority(tmp_path)
    names = [f"{prefix}{cluster}.test" for cluster in CLUSTERS for prefix in ("", "b1.")]
    pair = authority.issue("all", "all", hosts=names, usage=SERVER)
    write_hosts(hosts := tmp_path / "hosts", dict.fromkeys(names, HOST))
    secure_kafka.create_topic(TOPIC)
    gateways = Gateways(tmp_path, secure_kafka, kafka, pair)
    async with AsyncExitStack() as stack:
        await gateways.start(stack)
        await gateways.until("gateway_ready", 1, cluster="orders")
        await gateways.until("gateway_ready", 1, cluster="payments")
        await gateways.until("gateway_fleet_members", 2, cluster="orders")
        clients = Clients(tmp_path, hosts)
        stack.callback(clients.stop)
        # Two clients that produce all the time, one in each cluster, each at the other gateway first.
        (first, second), ca = gateways.ports, str(authority.certificate)
        librdkafka = [sys.executable, "-m", "tests.integration.steady_producer", "librdkafka"]
        program = [go_program()] if steady == "franz-go" else librdkafka
        orders = [f"orders.test:{first[0]}", TOPIC, ca, "bob", PASSWORDS["bob"]]
        clients.start(f"{steady} by SASL", [*program, *orders])
        payments = [f"payments.test:{second[1]}", "one-port-of-clusters", ca]
        clients.start("librdkafka", [*librdkafka, *payments])
        await asyncio.to_thread(clients.go_ahead)
        for family in FAMILIES:
            ports = (first[0], second[0])
            found = await asyncio.to_thread(log_in_and_produce, family, ports, hosts, authority.certificate)
            for client_id, done in found.items():
                assert (done["delivered"], done["error"]) == (done["tried"], ""), client_id
        await asyncio.to_thread(clients.go_ahead)

        # Each has had clients' records of its own, and heard of those of the other.
        for member in "xy":  # of itself, too, by its own messages
            await gateways.until("gateway_fleet_used_total", 1, cluster="orders", member=member)
        for cluster in CLUSTERS:
            assert min(await gateways.metric("gateway_connections_opened_total", cluster=cluster)) > 0
        failures = "gateway_tls_handshake_failures_total"
        for reason in (
            "no_server_name",
            "wrong_server_name",
            "unknown_broker",
            "certificate_host",
            "rejected_by_peer",
        ):
            assert await gateways.metric(failures, reason=reason) == [0, 0], reason
        assert await gateways.metric("gateway_connections_closed_total", cause="misrouted") == [0, 0]

        # A name of the other cluster leads nowhere, and the other cluster does not see it.
        for name in (b"orders.test", b"b1.orders.test"):
            async with await RawClient.connect(first[1]) as attacker:
                await attacker.send(raw_hello(server_name_extension(name)))
                assert await attacker.receive_rest() == UNRECOGNIZED_NAME
        assert await gateways.metric(failures, cluster="payments", reason="wrong_server_name") == [2, 0]
        assert await gateways.metric(failures, cluster="orders", reason="wrong_server_name") == [0, 0]
        await asyncio.to_thread(clients.go_ahead)
