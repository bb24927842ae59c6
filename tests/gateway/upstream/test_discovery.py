import re

import pytest
from structlog.testing import capture_logs

from gateway.observability.events import CloseCause
from testkit import broker as scripts
from testkit import wire
from testkit.broker import DESCRIBE_CONFIGS, EVERY_API, METADATA, Node, ScriptedBroker
from testkit.frames import fetch
from testkit.gateway import RunningGateway, free_ports, running_gateway
from testkit.raw_client import HOST, RawClient, refused, until

OFTEN = {"topology_refresh_ms": 20, "connect_timeout_ms": 1_000}


@pytest.fixture(autouse=True)
def impatient_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a broker that failed again soon, to save time."""
    monkeypatch.setattr("gateway.upstream.discovery._RETRY_S", 0.05)


async def advertised(client: RawClient) -> dict[int, tuple[str, int]]:
    """The brokers that a client is shown."""
    await client.send(wire.request("Metadata", 4, topics=[]))
    body = wire.decode_response("Metadata", 4, await client.receive_frame())
    return {broker.node_id: (broker.host, broker.port) for broker in body.brokers}


def known(running: RunningGateway) -> list[int]:
    return running.gateway.cluster.broker_ids


async def test_brokers_their_ports_and_the_defaults_of_the_cluster_are_learnt() -> None:
    broker = ScriptedBroker(configs={"num.partitions": "7", "auto.create.topics.enable": "false"})
    async with broker, running_gateway(broker.port, upstream=OFTEN) as running:
        await running.discovered()
        cluster = running.gateway.cluster
        assert cluster.cluster_id == "scripted"
        assert cluster.broker_ids == [1]
        assert cluster.address_of(1) == (HOST, broker.port)
        assert (cluster.default_num_partitions, cluster.auto_create_topics) == (7, False)
        assert running.listener.ports[1] == running.broker_port(1)


async def test_j11_upstream_that_comes_up_after_the_gateway_is_found() -> None:
    broker = ScriptedBroker(port=free_ports(1))
    async with running_gateway(broker.port, upstream=OFTEN) as running:
        assert running.gateway.why_not_ready() == f"upstream ({HOST}:{broker.port}) not reached yet"
        async with broker:
            await running.discovered()
            assert running.gateway.why_not_ready() is None
            async with await running.connect() as client:
                assert await advertised(client) == {1: (HOST, running.broker_port(1))}
        await until(lambda: running.gateway.why_not_ready() is not None)


async def test_brokers_that_cannot_be_reached_are_named_with_the_last_error() -> None:
    first, second = free_ports(2), free_ports(1)
    with capture_logs() as lines:
        async with running_gateway(first, second, upstream=OFTEN) as running:
            await until(lambda: "refused" in str(running.gateway.why_not_ready()))
            said = str(running.gateway.why_not_ready())
    brokers = f"{HOST}:{first}, {HOST}:{second}"
    refusal = rf"{HOST}:({first}|{second}): Connection refused"
    assert re.fullmatch(rf"upstream \({brokers}\) not reached: {refusal}", said)
    (line,) = [each for each in lines if each["event"] == "upstream_unreachable"]
    assert (line["upstream"], line["bootstrap"]) == ("upstream", brokers)
    assert re.fullmatch(refusal, line["error"])


async def test_a_broker_that_closes_the_connection_makes_one_think_of_its_protocol() -> None:
    async with ScriptedBroker(scripts_discovery=True) as broker:
        broker.script(METADATA, scripts.close)
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await until(lambda: "security_protocol" in str(running.gateway.why_not_ready()))


async def test_words_of_a_broker_stay_on_one_line_and_have_a_bound() -> None:
    async with ScriptedBroker() as broker, running_gateway(broker.port, upstream=OFTEN) as running:
        await running.discovered()
        broker.cluster_id = "a\nb" + "c" * 5_000
        await until(lambda: running.gateway.why_not_ready() is not None)
        said = str(running.gateway.why_not_ready())
        assert r"cluster id a\nbccc" in said
        assert len(said) < 500


@pytest.mark.slow
@pytest.mark.parametrize("script", [
    scripts.close, scripts.reset, scripts.wrong_correlation_id, scripts.truncate(20),
    scripts.raw(b"\xff\xff\xff\xff"), scripts.raw(b"\x7f\xff\xff\xff"), scripts.raw(wire.framed(bytes(4))),
    scripts.raw(wire.framed(b"\x00" * 3 + b"\x7f" * 40)),
])  # fmt: skip
async def test_discovery_survives_a_broker_that_answers_nonsense(script: scripts.Script) -> None:
    async with ScriptedBroker(scripts_discovery=True) as broker:
        broker.script(METADATA, script)
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await until(lambda: len(broker.connections) >= 3)
            assert not running.gateway.discovery.reached
            broker.script(METADATA, scripts.answer)
            await running.discovered()


async def test_broker_that_never_answers_is_given_up_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.upstream.discovery._ANSWER_TIMEOUT_S", 0.1)
    async with ScriptedBroker(scripts_discovery=True) as broker:
        broker.script(EVERY_API, scripts.ignore)
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await until(lambda: len(broker.connections) >= 3)
            await broker.connections[0].ended.wait()
            broker.script(EVERY_API, scripts.answer)
            await running.discovered()


async def test_cluster_that_refuses_to_tell_its_settings_is_served_with_the_configured_ones() -> None:
    async with ScriptedBroker(scripts_discovery=True) as broker:
        broker.script(DESCRIBE_CONFIGS, scripts.close)
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await running.discovered()
            assert running.gateway.cluster.default_num_partitions == 1


@pytest.mark.parametrize("node", [Node(2, HOST, 70_000), Node(2, HOST, -1), Node(2, "a..b", 9092)])
async def test_broker_with_impossible_address_stops_neither_discovery_nor_other_brokers(node: Node) -> None:
    async with ScriptedBroker() as broker:
        # First in the list: discovery asks this one for the settings of the cluster.
        broker.nodes = [node, Node(1, HOST, broker.port)]
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await running.discovered()
            async with await RawClient.connect(running.broker_port(2)) as client:
                await client.send(fetch())
                assert await client.receive_rest() == b""
            await running.ended_by(CloseCause.UPSTREAM_REFUSED)
            async with await RawClient.connect(running.broker_port(1)) as client:
                await client.send(fetch(2))
                await client.receive_frame()


async def test_e09_port_of_a_new_broker_accepts_when_it_is_first_told() -> None:
    async with ScriptedBroker() as broker, ScriptedBroker(node_id=3) as third:
        async with running_gateway(broker.port) as running, await running.connect() as client:
            await running.discovered()
            assert await advertised(client) == {1: (HOST, running.broker_port(1))}
            broker.nodes = [Node(1, HOST, broker.port), Node(3, HOST, third.port)]
            host, port = (await advertised(client))[3]
            async with await RawClient.connect(port, host=host) as newcomer:
                await newcomer.send(fetch(8))
                assert wire.correlation_id_of(await newcomer.receive_frame()) == 8
        assert third.client_connections[0].requests[0].correlation_id == 8


async def test_e10_port_of_a_removed_broker_is_closed_and_given_to_no_other() -> None:
    async with ScriptedBroker() as broker, ScriptedBroker(node_id=2) as second:
        both = [Node(1, HOST, broker.port), Node(2, HOST, second.port)]
        broker.nodes = both
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await running.discovered()
            port = running.broker_port(2)
            assert not await refused(port)
            broker.nodes = [both[0], Node(3, HOST, second.port)]
            await until(lambda: known(running) == [1, 3])
            assert await refused(port)
            assert running.listener.ports.get(3) == running.broker_port(3) != port
            broker.nodes = both
            await until(lambda: 2 in running.listener.ports)
            assert not await refused(port)


async def test_e11_broker_that_moved_is_reached_at_its_new_address_by_new_connections() -> None:
    async with ScriptedBroker() as broker, ScriptedBroker() as old, ScriptedBroker() as new:
        broker.nodes = [Node(1, HOST, broker.port), Node(2, HOST, old.port)]
        async with running_gateway(broker.port, upstream=OFTEN) as running:
            await running.discovered()
            async with await RawClient.connect(running.broker_port(2)) as client:
                await client.send(fetch(1))
                await client.receive_frame()
                broker.nodes = [Node(1, HOST, broker.port), Node(2, HOST, new.port)]
                await until(lambda: running.gateway.cluster.address_of(2) == (HOST, new.port))
                async with await RawClient.connect(running.broker_port(2)) as later:
                    await later.send(fetch(2))
                    await later.receive_frame()
        assert [len(broker.client_connections) for broker in (old, new)] == [1, 1]


async def test_e14_another_cluster_behind_the_same_address_is_not_taken_for_ours() -> None:
    async with ScriptedBroker() as broker, running_gateway(broker.port, upstream=OFTEN) as running:
        await running.discovered()
        broker.cluster_id = "another"
        broker.nodes = [Node(9, HOST, broker.port)]
        await until(lambda: not running.gateway.discovery.reached)
        assert known(running) == [1]
        cluster = running.gateway.cluster
        assert (cluster.cluster_id, cluster.answered_cluster_id) == ("scripted", "another")
        broker.cluster_id = "scripted"
        broker.nodes = []
        await running.discovered()
        assert cluster.answered_cluster_id == "scripted"
