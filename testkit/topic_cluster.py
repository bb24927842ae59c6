"""A broker that creates a topic or refuses to, as a script says: for the gateway's own clients (librdkafka)."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gateway.quota_admin.store.topic_reader import have_topic
from protocol.api_keys import MAX_VERSION, ApiKey
from testkit import wire
from testkit.broker import (
    CREATE_TOPICS,
    DESCRIBE_CONFIGS,
    HOST,
    METADATA,
    BrokerConnection,
    Request,
    ScriptedBroker,
)

KAFKA: Final = {key.value: (0, version) for key, version in MAX_VERSION.items()}
"""The APIs that Kafka offers to clients."""

NONE: Final = 0
UNKNOWN_TOPIC: Final = 3
BROKER: Final = 4
"""The resource type."""

TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53


class TopicCluster:
    """One broker with scripted responses.

    Attributes:
        broker: the broker.
        there: the topic's error code in Metadata; NONE after the topic was created.
        refusals: errors of the next CreateTopics requests; after these the topic is created.
        asked_for: the topics of all CreateTopics requests, in order.
        policy: the topic's cleanup policy.
        default_replicas: the cluster's default.replication.factor.
        configs_refusals: errors of the next DescribeConfigs requests, first of the broker and then of the topic.
    """

    def __init__(self) -> None:
        self.broker = ScriptedBroker(offers=dict(KAFKA))
        self.there = UNKNOWN_TOPIC
        self.refusals: list[int] = []
        self.asked_for: list[Any] = []
        self.policy = "compact"
        self.default_replicas = "1"
        self.configs_refusals: list[int] = []
        for api_key, answer in (
            (METADATA, self._metadata),
            (CREATE_TOPICS, self._create),
            (DESCRIBE_CONFIGS, self._describe),
            (ApiKey.FIND_COORDINATOR, self._find_coordinator),
        ):
            self.broker.script(api_key, answer)

    @property
    def client(self) -> dict[str, Any]:
        """librdkafka's settings for this broker."""
        return {"bootstrap.servers": f"{HOST}:{self.broker.port}"}

    async def have_topic(self, topic: str, **options: Any) -> float:
        """Calls `have_topic` of the quota store in a thread."""
        options = {"replication_factor": None, "timeout_s": 60.0, "signed": True, **options}
        return await asyncio.to_thread(have_topic, topic, self.client, **options)

    def _metadata(self, connection: BrokerConnection, request: Request) -> None:
        asked = wire.decode_request("Metadata", request.api_version, request.frame).topics or []
        partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
        partitions = [] if self.there else [partition]
        self._answer(
            connection, request, "Metadata",
            brokers=[{"node_id": 1, "host": HOST, "port": self.broker.port}], cluster_id="x", controller_id=1,
            topics=[{"name": each.name, "error_code": self.there, "partitions": partitions} for each in asked],
        )  # fmt: skip

    def _create(self, connection: BrokerConnection, request: Request) -> None:
        (topic,) = wire.decode_request("CreateTopics", request.api_version, request.frame).topics
        self.asked_for.append(topic)
        error_code = self.refusals.pop(0) if self.refusals else NONE
        self.there = self.there if error_code else NONE
        result = {
            "name": topic.name,
            "error_code": error_code,
            "error_message": "as the cluster says" * bool(error_code),
        }
        self._answer(connection, request, "CreateTopics", topics=[result])

    def _describe(self, connection: BrokerConnection, request: Request) -> None:
        (asked,) = wire.decode_request("DescribeConfigs", request.api_version, request.frame).resources
        error_code = self.configs_refusals.pop(0) if self.configs_refusals else NONE
        values = {"cleanup.policy": self.policy, "delete.retention.ms": "7000"}
        if asked.resource_type == BROKER:
            values = {"default.replication.factor": self.default_replicas}
        configs = [{"name": name, "value": value} for name, value in values.items() if not error_code]
        result = {
            "error_code": error_code,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "configs": configs,
        }
        self._answer(connection, request, "DescribeConfigs", results=[result])

    def _find_coordinator(self, connection: BrokerConnection, request: Request) -> None:
        self._answer(
            connection,
            request,
            "FindCoordinator",
            error_code=TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            node_id=-1,
            host="",
            port=-1,
        )

    def _answer(self, connection: BrokerConnection, request: Request, api: str, **fields: Any) -> None:
        connection.send(
            wire.response(api, request.api_version, correlation_id=request.correlation_id, **fields)
        )
