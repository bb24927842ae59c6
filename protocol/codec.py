"""The gateway's own questions to the cluster, and the one answer that is edited field by field.

The only file that imports kafka-python's protocol. What it raises on bad bytes becomes `MalformedBody`.
Versions are fixed: Metadata v4 and v12 (by topic id) and DescribeConfigs v1 are served by every broker since 0.11,
2.8 and 1.1.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import error as struct_error
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from protocol.api_keys import Api, ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody

OWN_CORRELATION_ID: Final = -1_936_485_749
"""Correlation id of every question of our own; their replies are told apart by their place in the order."""

METADATA_BY_NAME: Final = describe(ApiKey.METADATA, 4)
METADATA_WITH_IDS: Final = describe(ApiKey.METADATA, 10)
METADATA_BY_ID: Final = describe(ApiKey.METADATA, 12)
DESCRIBE_CONFIGS: Final = describe(ApiKey.DESCRIBE_CONFIGS, 1)

_NO_ID: Final = uuid.UUID(int=0)
_LONGEST_CLIENT_ID: Final = 32_767
_BROKER_RESOURCE: Final = 4
_BROKER_LOGGER_RESOURCE: Final = 8

ADDRESS_CONFIGS: Final = frozenset(
    {
        "advertised.listeners",
        "advertised.host.name",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "host.name",
        "listeners",
        "zookeeper.connect",
    }
)
"""Broker settings whose values are addresses inside the cluster (hazard E19)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as the cluster names it: id, host, port."""

    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What Metadata says of one topic: raw name, 16-byte id, error code, number of partitions."""

    name: bytes
    topic_id: bytes
    error_code: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A Metadata answer: cluster id, controller id, brokers and the topics that were asked for."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicFacts, ...]


def _encode(request: Any, client_id: str) -> bytes:
    # Bytes that are no UTF-8 became three bytes each when the client id was read (hazard A22); it must still fit.
    client_id = client_id.encode()[:_LONGEST_CLIENT_ID].decode("utf-8", "ignore")
    request.with_header(correlation_id=OWN_CORRELATION_ID, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


@dataclass(frozen=True, slots=True)
class ShownConfig:
    """A setting as DescribeConfigs answers it; source and type by Kafka's numbers."""

    value: str
    source: int
    config_type: int


@contextmanager
def _malformed_if_unreadable(what: str) -> Iterator[None]:
    """Everything that bad bytes make kafka-python raise, or make us raise over what it has read, as ours.

    IndexError and struct.error: past the end. ValueError: bad varint, UTF-8 or length. TypeError and AttributeError:
    null where the layout allows none, which kafka-python does not check.
    """
    try:
        yield
    except (
        struct_error,
        IndexError,
        ValueError,
        OverflowError,
        TypeError,
        AttributeError,
        MemoryError,
    ) as exc:
        raise MalformedBody(what) from exc


def _decode(message: Any, frame: bytes) -> Any:
    return message.decode(frame[4:], header=True)


def _not_null(text: str | None) -> str:
    if text is None:
        raise ValueError("null where a string is required")
    return text


def metadata_by_name_request(
    names: Sequence[bytes], *, client_id: str, api: Api = METADATA_BY_NAME, may_create: bool = False
) -> bytes:
    """A Metadata request for these topics; an empty list asks for the brokers alone.

    Args:
        names: valid topic names.
        client_id: whose question it is.
        api: `METADATA_WITH_IDS` to get the topics' ids too.
        may_create: whether the broker may create those that do not exist.
    """
    topic = MetadataRequest.MetadataRequestTopic
    return _encode(
        MetadataRequest(
            version=api.version,
            topics=[topic(name=name.decode("ascii"), topic_id=_NO_ID) for name in names],
            allow_auto_topic_creation=may_create,
            include_topic_authorized_operations=False,
        ),
        client_id,
    )


def metadata_by_id_request(topic_ids: Iterable[bytes], *, client_id: str) -> bytes:
    """A Metadata v12 request for topics by their 16-byte ids."""
    topic = MetadataRequest.MetadataRequestTopic
    return _encode(
        MetadataRequest(
            version=METADATA_BY_ID.version,
            topics=[topic(topic_id=uuid.UUID(bytes=topic_id), name=None) for topic_id in topic_ids],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        ),
        client_id,
    )


def read_metadata(frame: bytes, api: Api) -> ClusterFacts:
    """Decode a whole Metadata response frame.

    Raises:
        MalformedBody: it cannot be decoded.
    """
    with _malformed_if_unreadable("Metadata response"):
        response = _decode(MetadataResponse[api.version], frame)
        return ClusterFacts(
            cluster_id=response.cluster_id if api.version >= 2 else None,
            controller_id=response.controller_id if api.version >= 1 else -1,
            brokers=tuple(
                Broker(broker.node_id, _not_null(broker.host), broker.port) for broker in response.brokers
            ),
            topics=tuple(_topic_facts(topic, api) for topic in response.topics),
        )


def _topic_facts(topic: Any, api: Api) -> TopicFacts:
    topic_id = topic.topic_id.bytes if api.version >= 10 and topic.topic_id is not None else b"\x00" * 16
    return TopicFacts((topic.name or "").encode(), topic_id, topic.error_code, len(topic.partitions))


def broker_configs_request(broker_id: int, names: Sequence[str], *, client_id: str) -> bytes:
    """A DescribeConfigs v1 request for some settings of one broker."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return _encode(
        DescribeConfigsRequest(
            version=DESCRIBE_CONFIGS.version,
            resources=[
                resource(
                    resource_type=_BROKER_RESOURCE,
                    resource_name=str(broker_id),
                    configuration_keys=list(names),
                )
            ],
            include_synonyms=False,
        ),
        client_id,
    )


def read_broker_configs(frame: bytes) -> dict[str, str]:
    """Settings from a DescribeConfigs v1 response; empty when the cluster refused.

    Raises:
        MalformedBody: it cannot be decoded.
    """
    with _malformed_if_unreadable("DescribeConfigs response"):
        response = _decode(DescribeConfigsResponse[DESCRIBE_CONFIGS.version], frame)
        return {
            _not_null(config.name): config.value
            for result in response.results
            if result.error_code == ErrorCode.NONE
            for config in result.configs
            if config.value is not None
        }


def mask_addresses(frame: bytes, api: Api, upstream_hosts: Iterable[str]) -> bytes:
    """A DescribeConfigs response in which no broker setting has an address of the cluster (hazard E19).

    Values of `ADDRESS_CONFIGS`, and any value that holds one of `upstream_hosts`, become null, as Kafka shows
    sensitive settings; their synonyms too. Responses without such a value are returned as they came.

    Raises:
        MalformedBody: it cannot be decoded.
    """
    with _malformed_if_unreadable("DescribeConfigs response"):
        response = _decode(DescribeConfigsResponse[api.version], frame)
        hosts = tuple(host for host in upstream_hosts if host)
        if sum(_mask(setting, hosts) for setting in _broker_settings(response, api)) == 0:
            return frame
        response.with_header(correlation_id=int.from_bytes(frame[4:8], "big", signed=True))
        return bytes(response.encode(header=True, framed=True))


def asked_broker_configs(frame: bytes, api: Api) -> dict[str, frozenset[str] | None]:
    """Which settings a DescribeConfigs request asks for: broker's name -> their names, None for all.

    Raises:
        MalformedBody: it cannot be decoded.
    """
    with _malformed_if_unreadable("DescribeConfigs request"):
        request = _decode(DescribeConfigsRequest[api.version], frame)
        return {
            _not_null(resource.resource_name): None
            if resource.configuration_keys is None
            else frozenset(resource.configuration_keys)
            for resource in request.resources
            if resource.resource_type == _BROKER_RESOURCE
        }


def replace_broker_configs(
    frame: bytes, api: Api, shown: Callable[[str], Mapping[str, ShownConfig]], keys: Collection[str]
) -> bytes:
    """A DescribeConfigs response in which some settings of brokers are others than the broker's.

    Args:
        frame: the whole response frame.
        api: the version it is encoded in.
        shown: broker's name -> what it has of these settings.
        keys: all that the broker does not answer itself.

    Raises:
        MalformedBody: it cannot be decoded.
    """
    with _malformed_if_unreadable("DescribeConfigs response"):
        response = _decode(DescribeConfigsResponse[api.version], frame)
        for result in response.results:
            if result.resource_type == _BROKER_RESOURCE and result.error_code == ErrorCode.NONE:
                ours = shown(_not_null(result.resource_name))
                result.configs = [
                    *(config for config in result.configs if config.name not in keys),
                    *(_shown(name, config, api) for name, config in ours.items()),
                ]
        response.with_header(correlation_id=int.from_bytes(frame[4:8], "big", signed=True))
        return bytes(response.encode(header=True, framed=True))


def _shown(name: str, config: ShownConfig, api: Api) -> Any:
    setting = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    return setting(
        version=api.version,
        name=name,
        value=config.value,
        read_only=False,
        is_sensitive=False,
        synonyms=[],
        **({"config_source": config.source} if api.version >= 1 else {"is_default": config.source == 5}),
        **({"config_type": config.config_type, "documentation": None} if api.version >= 3 else {}),
    )


def _broker_settings(response: Any, api: Api) -> Iterator[Any]:
    """The settings of brokers in a DescribeConfigs response, and their synonyms."""
    for result in response.results:
        if result.resource_type in (_BROKER_RESOURCE, _BROKER_LOGGER_RESOURCE):
            for config in result.configs:
                yield config
                if api.version >= 1:
                    yield from config.synonyms


def _mask(setting: Any, hosts: tuple[str, ...]) -> bool:
    """Make the value null if it is an address of the cluster; True if it was."""
    if setting.value is None:
        return False
    name = _not_null(setting.name)
    base = name.rsplit(".", 1)[-1] if name.startswith("listener.name.") else name
    hidden = (
        name in ADDRESS_CONFIGS or base in ADDRESS_CONFIGS or any(host in setting.value for host in hosts)
    )
    if hidden:
        setting.value = None
    return hidden
