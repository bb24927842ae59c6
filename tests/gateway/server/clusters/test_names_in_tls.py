"""One port by SNI for each of several clusters: names and TLS sessions of one lead nowhere in another."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from testkit.broker import ScriptedBroker
from testkit.certificates import SERVER
from testkit.clusters import ClustersProcess, clusters_process
from testkit.frames import heartbeat
from testkit.gateway import metric_of
from testkit.raw_client import HOST, PATIENCE_S, RawClient
from testkit.tls import Pki, TlsClient, raw_hello, server_name_extension

pytestmark = pytest.mark.slow

UNRECOGNIZED_NAME: Final = bytes.fromhex("1503030002 0270")
LISTENER: Final = """
security_protocol = "SSL"
sni = {{ bootstrap_name = "NAME.test", broker_name = "b{{node}}.NAME.test" }}
tls = {{ certificate = "{certificate}", key = "{key}" }}
"""


@asynccontextmanager
async def two_clusters(pki: Pki, folder: Path) -> AsyncIterator[tuple[dict[str, ScriptedBroker], ClustersProcess]]:
    """Clusters a and b behind one certificate that is valid for the names of both."""
    pair = pki.authority.issue("all", "all", hosts=("a.test", "*.a.test", "b.test", "*.b.test"), usage=SERVER)
    listener = LISTENER.format(certificate=pair.certificate, key=pair.key)
    async with ScriptedBroker() as a, ScriptedBroker() as b:
        ports: dict[str, int | str] = {"a": a.port, "b": b.port}
        async with clusters_process(folder, ports, listener=listener) as gateway:
            await gateway.until_ready("a", "b")
            yield {"a": a, "b": b}, gateway


async def refusals(gateway: ClustersProcess, cluster: str) -> float:
    name = "gateway_tls_handshake_failures_total"
    return await metric_of(gateway.admin_port, name, cluster=cluster, reason="wrong_server_name")


async def is_served(client: TlsClient, broker: ScriptedBroker) -> bool:
    """Whether this broker gets the client's request."""
    before = len(broker.client_connections)
    client.send(heartbeat(5))
    await client.receive_frame()
    return len(broker.client_connections) == before + 1


async def test_names_of_another_cluster_are_refused_and_counted_where_they_came(pki: Pki, tmp_path: Path) -> None:
    async with two_clusters(pki, tmp_path) as (brokers, gateway):
        context = pki.trusting()
        for cluster, broker in brokers.items():
            for name in (f"{cluster}.test", f"b1.{cluster}.test"):
                async with await TlsClient.connect(gateway.ports[cluster], context, server_hostname=name) as client:
                    assert await is_served(client, broker)
        before = {cluster: len(broker.client_connections) for cluster, broker in brokers.items()}
        for other in (b"a.test", b"b1.a.test", b"b1.a.test."):
            async with await RawClient.connect(gateway.ports["b"]) as client:
                await client.send(raw_hello(server_name_extension(other)))
                assert await client.receive_rest() == UNRECOGNIZED_NAME
        assert {cluster: len(broker.client_connections) for cluster, broker in brokers.items()} == before
        assert (await refusals(gateway, "a"), await refusals(gateway, "b")) == (0, 3)


def session_of(
    port: int, context: ssl.SSLContext, name: str, offered: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool]:
    """The session of a connection that was answered, and whether it is the offered one."""
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=name, session=offered) as client,
    ):
        client.sendall(heartbeat(5))
        assert client.recv(4)
        return client.session, client.session_reused is True


async def test_a_session_of_another_cluster_is_not_resumed(pki: Pki, tmp_path: Path) -> None:
    async with two_clusters(pki, tmp_path) as (_, gateway):
        context = pki.trusting()
        session, _ = await asyncio.to_thread(session_of, gateway.ports["a"], context, "b1.a.test")
        assert session is not None
        assert session.has_ticket
        for cluster, same in (("a", True), ("b", False)):
            name = f"b1.{cluster}.test"
            found = await asyncio.to_thread(session_of, gateway.ports[cluster], context, name, session)
            assert found[1] is same, cluster
