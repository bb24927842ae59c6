"""A real HAProxy in front of the gateway and behind it."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from embedded_kafka.kafka import KafkaCluster
from protocol.proxy_protocol import ProxyHeader
from testkit import wire
from testkit.broker import HOST, Node, ScriptedBroker
from testkit.gateway import free_ports, running_gateway
from testkit.haproxy import BALANCER, Haproxy
from testkit.header_relay import HeaderRelay
from testkit.packages import require_package
from testkit.raw_client import RawClient
from tests.integration.balancer_tap import BalancerTap
from tests.integration.gateway_process import GatewayOptions, GatewayProcess

pytestmark = pytest.mark.integration

MOST: Final = 6
HASTY: Final = "127.1.0.7"
TABLES: Final = f"""\
[connections]
max_connections_per_ip = {MOST}
[client_quota]
window_num = 2
[[quotas]]
ip = "{HASTY}"
connection_creation_rate = 2
"""


@pytest.fixture(scope="module", params=["send-proxy", "send-proxy-v2"])
def balanced(
    request: pytest.FixtureRequest, kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway that is only reached through HAProxy."""
    folder = tmp_path_factory.mktemp("balanced")
    tap: Any = BalancerTap(folder, request.param)
    listener = f'[listeners.proxy_protocol]\ntrusted = ["{BALANCER}"]'
    options = GatewayOptions(listener=listener, tables=TABLES)
    gateway = GatewayProcess(folder, kafka.brokers.values(), tap, options)
    gateway.start()
    yield gateway
    gateway.stop()


def connect(gateway: GatewayProcess, source: str) -> socket.socket:
    sock = socket.create_connection(gateway.bootstrap, timeout=10, source_address=(source, 0))
    sock.sendall(wire.request("ApiVersions", 0, correlation_id=1))
    return sock


def served(sock: socket.socket) -> bool:
    """Whether a connection got its answer; otherwise it was closed."""
    try:
        return sock.recv(4) != b""
    except ConnectionResetError:
        return False


def test_clients_work_through_haproxy(balanced: GatewayProcess) -> None:
    topic = f"balanced-{balanced.bootstrap.port}"
    servers = str(balanced.bootstrap)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"through HAProxy")
    assert producer.flush(30) == 0
    reader = Consumer({"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    record = reader.poll(30)
    reader.close()
    assert record is not None
    assert record.value() == b"through HAProxy"


def test_connections_are_counted_by_the_address_behind_haproxy(balanced: GatewayProcess) -> None:
    with ExitStack() as open_ones:
        crowd = [open_ones.enter_context(connect(balanced, "127.1.0.5")) for _ in range(MOST)]
        assert all(served(sock) for sock in crowd)
        assert not served(open_ones.enter_context(connect(balanced, "127.1.0.5")))
        assert served(open_ones.enter_context(connect(balanced, "127.1.0.6")))


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_haproxy_in_front_of_brokers_is_told_the_client_before_tls(
    version: str, tls: bool, tmp_path: Path
) -> None:
    port = free_ports(1)
    upstream: dict[str, Any] = {"send_proxy_protocol": version}
    bind_options = "accept-proxy"
    if tls:
        pem = make_pem(tmp_path)
        upstream |= {"security_protocol": "SSL", "tls": {"ca": str(pem)}}
        bind_options += f" ssl crt {pem}"
    async with ScriptedBroker() as broker, HeaderRelay(broker.port) as relay:
        broker.nodes = [Node(1, HOST, port)]
        # What HAProxy has understood it passes on to the relay.
        haproxy = await asyncio.to_thread(
            lambda: Haproxy(
                tmp_path, (HOST, port), (HOST, relay.port), bind_options=bind_options, server_options="send-proxy-v2"
            )
        )
        try:
            async with running_gateway(port, upstream=upstream) as running:
                await running.discovered()
                async with await RawClient.connect(running.broker_port(1)) as client:
                    await client.send(wire.request("Fetch", 4, correlation_id=1, topics=[]))
                    assert await client.receive_frame()
                    told = ProxyHeader(client.sock.getsockname(), (HOST, running.broker_port(1)))
                    assert told in relay.headers
        finally:
            haproxy.stop()


def make_pem(folder: Path) -> Path:
    """A certificate for this machine together with its key."""
    command = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 -subj /CN=broker"
    openssl = [require_package("openssl"), *command.split(), "-addext", f"subjectAltName=IP:{HOST}"]
    subprocess.run(openssl, cwd=folder, check=True, capture_output=True, timeout=30)
    pem = folder / "both.pem"
    pem.write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return pem
