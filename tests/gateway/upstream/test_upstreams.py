"""Several ways to one cluster: each listener leads to its own, and advertises the addresses of its own."""

from pathlib import Path
from typing import Any

import pytest

from testkit.broker import ScriptedBroker
from testkit.frames import heartbeat
from testkit.gateway import LISTENER, RunningGateway, free_ports, running_gateway
from testkit.raw_client import HOST, RawClient, until
from testkit.tls import Pki
from tests.gateway.upstream.test_tls import broker_context


def second_listener(ports: int) -> dict[str, Any]:
    return {
        "name": "second", "bind": f"{HOST}:0", "first_broker_port": ports, "broker_ports": 4,
        "upstream": "inner",
    }  # fmt: skip


async def reply(running: RunningGateway, listener: str) -> bytes:
    port = running.gateway.listeners[listener].ports[None]
    async with await RawClient.connect(port) as client:
        await client.send(heartbeat(3))
        return await client.receive_frame()


async def test_each_listener_leads_to_its_own_upstream(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    async with ScriptedBroker(tls=broker_context(pki.server)) as outer, ScriptedBroker() as inner:
        config = {
            "upstream": {"security_protocol": "SSL", "tls": {"ca": str(pki.authority.certificate)}},
            "upstreams": [{"name": "inner", "bootstrap": [f"{HOST}:{inner.port}"]}],
            "more_listeners": [second_listener(free_ports(4))],
        }
        async with running_gateway(outer.port, **config) as running:
            await until(lambda: running.gateway.why_not_ready() is None)
            before = len(outer.client_connections), len(inner.client_connections)
            for listener, made in ((LISTENER, (1, 0)), ("second", (1, 1))):
                await reply(running, listener)
                after = len(outer.client_connections), len(inner.client_connections)
                assert (after[0] - before[0], after[1] - before[1]) == made
            # The same broker, at the address that its own listener advertises.
            known = running.gateway.upstreams
            assert known["upstream"].cluster.address_of(1) == (HOST, outer.port)
            assert known["inner"].cluster.address_of(1) == (HOST, inner.port)


async def test_each_upstream_is_looked_at_soon_when_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.discovery._SOON_S", 0.02)
    monkeypatch.setattr("gateway.upstream.discovery._NAMES_S", 0.01)
    async with ScriptedBroker() as outer, ScriptedBroker() as inner:
        config = {
            "upstream": {"topology_refresh_ms": 600_000},
            "upstreams": [{"name": "inner", "bootstrap": [f"{HOST}:{inner.port}"], "topology_refresh_ms": 600_000}],
            "more_listeners": [second_listener(free_ports(4))],
        }
        async with running_gateway(outer.port, **config) as running:
            await until(lambda: running.gateway.why_not_ready() is None)
            for name, broker in (("upstream", outer), ("inner", inner)):
                before = len(broker.connections)
                running.gateway.upstreams[name].discovery.look_soon()
                await until(lambda broker=broker, before=before: len(broker.connections) > before)


async def test_another_cluster_is_not_taken_for_another_way(tmp_path: Path) -> None:
    async with ScriptedBroker() as outer, ScriptedBroker(cluster_id="somebody else's") as inner:
        config = {
            "upstreams": [{"name": "inner", "bootstrap": [f"{HOST}:{inner.port}"]}],
            "more_listeners": [second_listener(free_ports(4))],
        }
        async with running_gateway(outer.port, **config) as running:
            upstreams = running.gateway.upstreams
            await until(lambda: any(each.discovery.reached for each in upstreams.values()))
            await until(lambda: len(inner.connections) > 1 and len(outer.connections) > 0)
            # Whichever answered first is the cluster; the other one is refused.
            assert not all(each.discovery.reached for each in upstreams.values())
            assert running.gateway.why_not_ready() is not None
