"""The gateway's own requests to the cluster, encoded and decoded; the only user of kafka-python's protocol.

Exceptions of kafka-python on bad bytes become `MalformedBody`. Versions are fixed: ApiVersions v0, Metadata v4 and
v12 (by topic id) and DescribeConfigs v1 are supported by every broker since 0.10, 0.11, 3.1 and 1.1. Requests that
are sent only if the broker offers them are in `gateway.upstream.needs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from struct import error as struct_error
from struct import pack
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.metadata import MetadataResponse

from protocol.api_keys import Api, ApiKey, describe
from protocol.error_codes import ErrorCode
from protocol.errors import MalformedBody
from protocol.log_dirs import DESCRIBE_LOG_DIRS
from protocol.metadata import TopicFacts
from protocol.primitives import framed, write_uvarint

OWN_CORRELATION_ID: Final = -1_936_485_749
"""Correlation id of every request of the gateway's own; their responses are identified by their order."""

API_VERSIONS: Final = describe(ApiKey.API_VERSIONS, 0)
METADATA_BY_NAME: Final = describe(ApiKey.METADATA, 4)
METADATA_WITH_IDS: Final = describe(ApiKey.METADATA, 10)
METADATA_BY_ID: Final = describe(ApiKey.METADATA, 12)
DESCRIBE_CONFIGS: Final = describe(ApiKey.DESCRIBE_CONFIGS, 1)

_NO_ID: Final = b"\0" * 16
_LONGEST_CLIENT_ID: Final = 32_767
_BROKER_RESOURCE: Final = 4


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker in the cluster's own terms: id, host, port."""

    broker_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A Metadata response: cluster id, controller id, brokers and the requested topics."""

    cluster_id: str | None
    controller_id: int
    brokers: tuple[Broker, ...]
    topics: tuple[TopicFacts, ...]


def _encode(request: Any, client_id: str) -> bytes:
    # Bytes that are not UTF-8 became three bytes each when the client id was read (hazard A22). It must still fit.
    client_id = client_id.encode()[:_LONGEST_CLIENT_ID].decode("utf-8", "ignore")
    request.with_header(correlation_id=OWN_CORRELATION_ID, client_id=client_id)
    return bytes(request.encode(header=True, framed=True))


@contextmanager
def _malformed_if_unreadable(what: str) -> Iterator[None]:
    """Turns all exceptions that bad bytes cause, in kafka-python or in the use of its results, into `MalformedBody`.

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
    """A Metadata request for these topics; an empty list requests the brokers alone.

    It is encoded here without kafka-python, because there may be thousands of names.

    Args:
        names: valid topic names.
        client_id: the client id of the request.
        api: `METADATA_WITH_IDS` to get the topics' ids too.
        may_create: whether the broker may create missing topics.
    """
    if api is METADATA_BY_NAME:
        topics = [pack(">h", len(name)) + name for name in names]
        return _question(api, client_id, [pack(">i", len(names)), *topics, bytes((may_create,))])
    topics = [_NO_ID + _uvarint(len(name) + 1) + name + b"\0" for name in names]
    return _question(api, client_id, [_uvarint(len(names) + 1), *topics, bytes((may_create, 0, 0, 0))])


def api_versions_request(*, client_id: str) -> bytes:
    """An ApiVersions v0 request, which has no body."""
    return _question(API_VERSIONS, client_id, [])


def log_dirs_request(*, client_id: str) -> bytes:
    """A DescribeLogDirs v1 request for all topics."""
    return _question(DESCRIBE_LOG_DIRS, client_id, [pack(">i", -1)])


def metadata_by_id_request(topic_ids: Sequence[bytes], *, client_id: str) -> bytes:
    """A Metadata v12 request for topics by their 16-byte ids."""
    topics = [topic_id + b"\0\0" for topic_id in topic_ids]
    return _question(METADATA_BY_ID, client_id, [_uvarint(len(topic_ids) + 1), *topics, bytes(3)])


def _question(api: Api, client_id: str, body: Sequence[bytes]) -> bytes:
    raw = client_id.encode()[:_LONGEST_CLIENT_ID].decode("utf-8", "ignore").encode()
    head = pack(">hhih", api.key, api.version, OWN_CORRELATION_ID, len(raw)) + raw
    return framed(b"".join((head, b"\0" if api.flexible else b"", *body)))


def _uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


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
