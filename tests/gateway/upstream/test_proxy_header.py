import pytest

from gateway.observability.events import CloseCause
from protocol.proxy_protocol import ProxyHeader
from testkit import wire
from testkit.broker import HOST, Node, ScriptedBroker
from testkit.gateway import running_gateway
from testkit.header_relay import HeaderRelay
from testkit.raw_client import RawClient, until

REQUEST = wire.request("Fetch", 4, correlation_id=1, topics=[])


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_broker_is_told_the_client_and_where_it_connected_to(version: str) -> None:
    async with ScriptedBroker() as broker, HeaderRelay(broker.port) as front:
        broker.nodes = [Node(1, HOST, front.port)]
        async with running_gateway(front.port, upstream={"send_proxy_protocol": version}) as running:
            await running.discovered()
            async with await RawClient.connect(running.broker_port(1)) as client:
                await client.send(REQUEST)
                assert await client.receive_frame()
                source = client.sock.getsockname()
            told = ProxyHeader(source, (HOST, running.broker_port(1)))
            assert [header for header in front.headers if header.source is not None] == [told]
        # Discovery's connections are the gateway's own.
        assert front.headers.count(ProxyHeader()) >= 1
        assert front.refused == 0


async def test_broker_that_wants_a_header_is_not_reached_without() -> None:
    async with ScriptedBroker() as broker, HeaderRelay(broker.port) as front:
        async with running_gateway(front.port) as running:
            await until(lambda: front.refused > 0)
            assert not running.gateway.discovery.reached
        assert front.headers == []


async def test_client_behind_a_load_balancer_is_told_on_to_the_broker() -> None:
    listener = {"proxy_protocol": {"trusted": [HOST]}}
    async with ScriptedBroker() as broker, HeaderRelay(broker.port) as front:
        broker.nodes = [Node(1, HOST, front.port)]
        upstream = {"send_proxy_protocol": "v2"}
        async with running_gateway(front.port, listener=listener, upstream=upstream) as running:
            await running.discovered()
            async with await RawClient.connect(running.port) as client:
                await client.send(b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 9092\r\n" + REQUEST)
                assert await client.receive_frame()
        assert front.headers[-1] == ProxyHeader(("2001:db8::7", 40_000), ("2001:db8::1", 9_092))


async def test_refused_connection_to_a_broker_leaves_no_socket_behind() -> None:
    async with ScriptedBroker() as broker, HeaderRelay(broker.port) as front:
        broker.nodes = [Node(1, HOST, front.port)]
        async with running_gateway(front.port, upstream={"send_proxy_protocol": "v2"}) as running:
            await running.discovered()
            await front.stop()
            async with await RawClient.connect(running.broker_port(1)) as client:
                await client.send(REQUEST)
                assert await client.receive_rest() == b""
            await running.ended_by(CloseCause.UPSTREAM_REFUSED)
