"""Upstreams that are not quite Kafka: what they lack is said, and what can be done without it is done.

The scripted broker offers, answers and refuses what such services do (docs/reference/upstream.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from config import Config
from gateway.runtime.clock import loop_clock
from gateway.upstream.needs import NEEDS, needs_of, unmet
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.upstreams import MAIN, Upstream, build_upstreams
from gateway.usage.topic_ids import TopicIds
from protocol.api_keys import MAX_VERSION, ApiKey
from testkit import broker as scripts
from testkit import wire
from testkit.broker import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    METADATA,
    PRODUCE,
    BrokerConnection,
    Node,
    Request,
    ScriptedBroker,
)
from testkit.frames import fetch
from testkit.gateway import LISTENER, RunningGateway, free_ports, gateway_config, running_gateway
from testkit.raw_client import HOST, RawClient, until

OFTEN = {"topology_refresh_ms": 20, "connect_timeout_ms": 1_000}
KAFKA = {key.value: (0, version) for key, version in MAX_VERSION.items()} | {
    PRODUCE: (3, 13),
    1: (4, 18),
    2: (1, 11),
    19: (2, 7),
    20: (1, 6),
    DESCRIBE_CONFIGS: (1, 4),
}
"""Kafka 4 has taken old versions away: of Produce, Fetch, ListOffsets, CreateTopics and DeleteTopics too."""
CLUSTER_AUTHORIZATION_FAILED = 31

Logs = Sequence[MutableMapping[str, Any]]


@pytest.fixture
def logs() -> Iterator[Logs]:
    with capture_logs() as captured:
        yield captured


@asynccontextmanager
async def gateway_before(broker: ScriptedBroker, **options: Any) -> AsyncIterator[RunningGateway]:
    """A gateway that often asks its upstream."""
    async with broker, running_gateway(broker.port, upstream=OFTEN, **options) as running:
        yield running


def lacks(running: RunningGateway) -> str:
    return "\n".join(running.gateway.discovery.lacks)


def lines(logs: Logs, event: str) -> Logs:
    return [line for line in logs if line["event"] == event]


async def readiness(running: RunningGateway) -> tuple[int, str]:
    url = f"http://{HOST}:{running.gateway.admin.port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def brokers_of(client: RawClient, version: int = 4) -> dict[int, tuple[str, int]]:
    await client.send(wire.request("Metadata", version, topics=[]))
    body = wire.decode_response("Metadata", version, await client.receive_frame())
    return {each.node_id: (each.host, each.port) for each in body.brokers}


def asked(broker: ScriptedBroker, api_key: int) -> list[int]:
    """The versions in which the gateway itself asked for an API."""
    every = [
        request for connection in broker.connections if connection.of_discovery for request in connection.requests
    ]
    return [request.api_version for request in every if request.api_key == api_key]


# -- APIs and versions ---------------------------------------------------------------------------------------


async def test_a_cluster_that_offers_what_kafka_offers_lacks_nothing(logs: Logs) -> None:
    async with ScriptedBroker(offers=KAFKA) as broker, running_gateway(broker.port, upstream=OFTEN) as running:
        await running.discovered()
        assert lacks(running) == ""
        assert lines(logs, "upstream_lacks") == []
        assert await readiness(running) == (200, "ready\n")


async def test_brokers_without_the_version_of_metadata_are_named_as_such_and_heal(logs: Logs) -> None:
    broker = ScriptedBroker(offers=KAFKA | {METADATA: (0, 1)})
    async with gateway_before(broker) as running:
        await until(lambda: "Metadata" in (running.gateway.why_not_ready() or ""))
        text = f"upstream ({HOST}:{broker.port}) offers versions 0-1 of Metadata, and version 4 is needed"
        assert await readiness(running) == (503, f"{text}\n")
        assert asked(broker, METADATA) == []
        broker.offers = KAFKA
        await running.discovered()
        assert running.gateway.why_not_ready() is None


EVENT_HUBS = {0: (3, 7), 1: (4, 6), 2: (0, 2), 3: (0, 5), 10: (0, 1), 18: (0, 3), 19: (0, 2), 20: (0, 2)}
"""No topic ids, no settings of brokers, no transactions and no quotas."""


@asynccontextmanager
async def discovering(config: Config) -> AsyncIterator[Upstream]:
    """The upstream of a configuration, without the gateway before it."""
    found = build_upstreams(
        config,
        now_ms=loop_clock(asyncio.get_running_loop()),
        tls=lambda _name, _section: None,
        on_change=lambda _cluster, _gone: None,
        own_topics=OwnTopics.of(config),
        topic_ids=TopicIds(),
    )
    found[MAIN].start()
    try:
        yield found[MAIN]
    finally:
        await found[MAIN].stop()


async def test_what_brokers_lack_is_logged_once_and_they_are_not_asked_for_it(logs: Logs) -> None:
    async with ScriptedBroker(offers=EVENT_HUBS) as broker:
        config = gateway_config(
            [broker.port], upstream=OFTEN, quota_store={"kind": "topic", "topic": "quotas"}, broker_ports=2
        )
        async with discovering(config) as upstream:
            # The connections of three rounds at least.
            await until(lambda: len(broker.connections) > 3)
            said = "\n".join(upstream.discovery.lacks)
        assert upstream.discovery.reached
        assert [line["detail"] for line in lines(logs, "upstream_lacks")] == said.split("\n")
        assert [line.split(" version")[0] for line in said.split("\n")] == [
            "DescribeConfigs", "InitProducerId", "AddPartitionsToTxn", "EndTxn",
        ]  # fmt: skip
        assert "EndTxn version 0: the brokers offer no version. Without it: quotas cannot be changed" in said
        assert set(asked(broker, METADATA)) == {4}
        assert asked(broker, DESCRIBE_CONFIGS) == []


async def test_brokers_that_do_not_say_what_they_offer_are_asked_all_the_same() -> None:
    def refuse(connection: BrokerConnection, request: Request) -> None:
        fields = {"correlation_id": request.correlation_id, "error_code": 58, "api_keys": []}
        connection.send(wire.response("ApiVersions", request.api_version, **fields))

    broker = ScriptedBroker(scripts_discovery=True)
    broker.script(API_VERSIONS, refuse)
    async with gateway_before(broker) as running:
        await running.discovered()
        assert lacks(running) == ""
        assert asked(broker, DESCRIBE_CONFIGS)


def config_of(**sections: Any) -> Config:
    return gateway_config([1], first_broker_port=20_000).model_copy(
        update={name: Config.model_fields[name].annotation.model_validate(given) for name, given in sections.items()}
    )


@pytest.mark.parametrize(("sections", "needed"), [
    ({}, {}),
    ({"quota_admin": {"authorize": "ask_cluster"}}, {48: 0, 49: 0}),
    ({"usage": {"kind": "topic"}}, {0: 3, 19: 0, 22: 0}),
    ({"quota_store": {"kind": "topic"}}, {0: 3, 1: 4, 2: 2, 19: 0, 22: 0, 24: 0, 26: 0}),
])  # fmt: skip
def test_needs_follow_from_the_configuration(sections: dict[str, Any], needed: dict[int, int]) -> None:
    needs = needs_of(config_of(**sections))
    found = {need.api: need.version for need in needs if need.where != "always" and need.only_beside is None}
    assert {int(api): version for api, version in found.items()} == needed
    assert list(unmet(needs, KAFKA)) == []


@pytest.mark.parametrize(("api", "version", "least"), [
    (ApiKey.DELETE_TOPICS, 6, 12), (ApiKey.CREATE_TOPICS, 7, 10),
    (ApiKey.FETCH, 13, 12), (ApiKey.PRODUCE, 13, 12),
])  # fmt: skip
def test_topic_ids_in_metadata_are_needed_only_where_clients_can_use_them(
    api: ApiKey, version: int, least: int
) -> None:
    config = config_of(usage={"kind": "topic", "topics": True})
    for highest, missing in ((version - 1, []), (version, [least])):
        offered = KAFKA | dict.fromkeys((0, 1, 19, 20), (0, 4)) | {METADATA: (0, least - 1), api: (0, highest)}
        assert [need.version for need in unmet(needs_of(config), offered)] == missing


def test_a_version_that_brokers_have_dropped_is_not_offered() -> None:
    dropped = KAFKA | {METADATA: (5, 13)}
    assert [need.name for need in unmet(needs_of(config_of()), dropped)] == ["Metadata"]


def test_every_need_says_what_is_lost() -> None:
    for need in NEEDS:
        assert "" not in (need.purpose, need.without, need.where)
        assert need.version <= MAX_VERSION[need.api]


# -- rights ---------------------------------------------------------------------------------------------------


async def test_without_the_right_to_read_settings_the_configured_ones_count(logs: Logs) -> None:
    def refuse(connection: BrokerConnection, request: Request) -> None:
        result = {"error_code": CLUSTER_AUTHORIZATION_FAILED, "resource_type": 4, "resource_name": "1", "configs": []}
        fields = {"correlation_id": request.correlation_id, "results": [result]}
        connection.send(wire.response("DescribeConfigs", request.api_version, **fields))

    broker = ScriptedBroker(offers=KAFKA, scripts_discovery=True)
    broker.script(DESCRIBE_CONFIGS, refuse)
    async with gateway_before(broker) as running:
        await until(lambda: lacks(running))
        assert lacks(running).startswith("the right to read brokers' settings (DESCRIBE_CONFIGS on the cluster)")
        assert running.gateway.why_not_ready() is None
        await until(lambda: len(asked(broker, DESCRIBE_CONFIGS)) > 2)
        assert len(lines(logs, "upstream_lacks")) == 1
        # Once the right is granted, nothing is missing any more.
        broker.script(DESCRIBE_CONFIGS, scripts.answer)
        await until(lambda: not lacks(running))


async def test_brokers_that_end_the_connection_instead_of_an_answer_cost_the_settings_alone() -> None:
    broker = ScriptedBroker(offers=KAFKA, scripts_discovery=True)
    broker.script(DESCRIBE_CONFIGS, scripts.close)
    async with gateway_before(broker) as running:
        await until(lambda: lacks(running))
        assert lacks(running).startswith("an answer to DescribeConfigs.")
        status, text = await readiness(running)
        assert (status, text) == (200, f"ready\nupstream lacks {lacks(running)}\n")


# -- ids and addresses ----------------------------------------------------------------------------------------

JUMPING = [0, 5, 1001, 2_147_483_647]


async def test_brokers_whose_ids_have_no_port_are_hidden_counted_and_logged(logs: Logs) -> None:
    broker = ScriptedBroker(port=free_ports(1), offers=KAFKA)
    broker.nodes = [Node(each, HOST, broker.port) for each in JUMPING]
    async with gateway_before(broker, broker_ports=6) as running:
        await running.discovered()
        async with await running.connect() as client:
            assert sorted(await brokers_of(client)) == [0, 5]
        await until(lambda: lines(logs, "brokers_hidden"))
        assert running.gateway.why_not_ready() is None
        sample = running.gateway.registry.get_sample_value
        assert sample("gateway_hidden_brokers", {"listener": LISTENER}) == 2
        broker.nodes = broker.nodes[:2]
        await until(lambda: len(lines(logs, "brokers_hidden")) > 1)
        assert sample("gateway_hidden_brokers", {"listener": LISTENER}) == 0
        said = [(line["brokers"], line["detail"]) for line in lines(logs, "brokers_hidden")]
        detail = "lowest_broker_id and broker_ports give ports to the ids 0 to 5"
        assert said == [([1001, 2_147_483_647], detail), ([], detail)]


async def test_a_listener_that_has_a_port_for_no_broker_is_not_ready() -> None:
    broker = ScriptedBroker(node_id=1001, offers=KAFKA)
    async with gateway_before(broker) as running:
        await running.discovered()
        reason = running.gateway.why_not_ready()
        assert reason == (
            f"listener {LISTENER} has no port for any broker: lowest_broker_id and broker_ports give ports "
            "to the ids 0 to 3, and the brokers are 1001"
        )
        broker.node_id = 1
        await until(lambda: running.gateway.why_not_ready() is None)


async def test_ids_that_change_at_each_restart_are_served_while_they_have_a_port() -> None:
    broker = ScriptedBroker(node_id=0, offers=KAFKA)
    async with gateway_before(broker) as running:
        for node_id in range(4):
            broker.node_id = node_id
            await until(lambda: running.gateway.cluster.broker_ids == [node_id])  # noqa: B023
            async with await running.connect() as client:
                port = (await brokers_of(client))[node_id][1]
            async with await RawClient.connect(port) as client:
                await client.send(fetch(7))
                await client.receive_frame()


async def test_e13_brokers_behind_one_address_keep_a_port_each(logs: Logs) -> None:
    broker = ScriptedBroker(port=free_ports(1), offers=KAFKA)
    broker.nodes = [Node(each, HOST, broker.port) for each in (0, 1, 2)]
    async with gateway_before(broker) as running:
        await running.discovered()
        async with await running.connect() as client:
            found = await brokers_of(client)
        assert found == {each: (HOST, running.broker_port(each)) for each in (0, 1, 2)}
        for node_id, (host, port) in found.items():
            async with await RawClient.connect(port, host=host) as client:
                await client.send(fetch(node_id))
                await client.receive_frame()
        assert lines(logs, "brokers_hidden") == []


# -- Metadata -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 4, 9, 12])
async def test_metadata_without_a_controller_and_without_a_cluster_id_passes(version: int) -> None:
    broker = ScriptedBroker(cluster_id=None, controller_id=-1, offers=KAFKA)
    async with gateway_before(broker) as running:
        await until(lambda: lacks(running))
        assert lacks(running).startswith("a cluster id: Metadata has none.")
        assert running.gateway.why_not_ready() is None
        async with await running.connect() as client:
            await client.send(wire.request("Metadata", version, topics=[]))
            body = wire.decode_response("Metadata", version, await client.receive_frame())
        assert [each.port for each in body.brokers] == [running.broker_port(1)]
        assert body.controller_id == -1
        assert getattr(body, "cluster_id", None) is None


@pytest.mark.parametrize("cluster_id", ["lkc-abc123", "redpanda.1f0c7f3e-6d5f-4b0e-9c55-8f0a3d1e2b4c", "ü", ""])
async def test_any_text_is_a_cluster_id(cluster_id: str) -> None:
    broker = ScriptedBroker(cluster_id=cluster_id, offers=KAFKA)
    async with gateway_before(broker) as running:
        await running.discovered()
        names = {"client_software_name": "a", "client_software_version": "1", "node_id": 1}
        for named, error_code in ((cluster_id, 0), ("another", 129)):
            async with await RawClient.connect(running.broker_port(1)) as client:
                # Such a broker is older than this version, so the gateway compares.
                broker.script(API_VERSIONS, unsupported_version)
                await client.send(wire.request("ApiVersions", 5, cluster_id=named, **names))
                frame = await client.receive_frame()
                assert int.from_bytes(frame[8:10], "big") == (error_code or 35)


def unsupported_version(connection: BrokerConnection, request: Request) -> None:
    """As brokers answer an ApiVersions that is too new (KIP-511)."""
    key = {"api_key": API_VERSIONS, "min_version": 0, "max_version": 3}
    fields = {"correlation_id": request.correlation_id, "error_code": 35, "api_keys": [key]}
    connection.send(wire.response("ApiVersions", 0, **fields))


# -- answers of another kind ----------------------------------------------------------------------------------


async def test_apis_that_only_this_upstream_has_are_not_offered_to_clients() -> None:
    extra = {10_001: (0, 3), 32_000: (0, 0), -7: (0, 1)}
    broker = ScriptedBroker(offers=EVENT_HUBS | extra)
    async with gateway_before(broker) as running:
        await running.discovered()
        async with await running.connect() as client:
            await client.send(wire.request("ApiVersions", 0))
            body = wire.decode_response("ApiVersions", 0, await client.receive_frame())
        offered = {each.api_key: (each.min_version, each.max_version) for each in body.api_keys}
        # The gateway answers the two APIs for quotas itself.
        assert offered == EVENT_HUBS | {0: (0, 7), 48: (0, 1), 49: (0, 1)}


@pytest.mark.parametrize("throttle_time_ms", [0, 700, 2_147_483_647])
async def test_the_throttle_time_of_the_upstream_reaches_the_client(throttle_time_ms: int) -> None:
    def throttled(connection: BrokerConnection, request: Request) -> None:
        fields = {"correlation_id": request.correlation_id, "throttle_time_ms": throttle_time_ms, "responses": []}
        connection.send(wire.response("Produce", request.api_version, **fields))

    quotas = [{"default_client_id": True, "producer_byte_rate": 10**9}]
    broker = ScriptedBroker(offers=KAFKA)
    broker.script(PRODUCE, throttled)
    async with gateway_before(broker, quotas=quotas) as running:
        await running.discovered()
        async with await RawClient.connect(running.broker_port(1)) as client:
            await client.send(wire.request("Produce", 7, acks=1, timeout_ms=1, topic_data=[]))
            body = wire.decode_response("Produce", 7, await client.receive_frame())
        assert body.throttle_time_ms == throttle_time_ms
