"""The APIs of the brokers that the gateway itself uses, and what does not work without each of them. Pure.

APIs that only clients use are not listed: the gateway offers clients those that the broker offers. `NEEDS` is also a
table of docs/reference/upstream.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from config import Config
from config.sections.quota_admin import Authorize
from protocol.api_keys import ApiKey

Offered: TypeAlias = Mapping[int, tuple[int, int]]
"""Api key -> the lowest and the highest version that a broker offers."""


@dataclass(frozen=True, slots=True)
class Need:
    """One API in one version.

    Attributes:
        api: its key.
        version: the version that the gateway uses, or the least one that librdkafka can use.
        purpose: what it is for.
        without: what happens without it.
        where: the settings with which it is needed, for a reader.
        applies: whether it is needed with a configuration.
        only_beside: an API and version of clients; the need exists only where the broker offers that too.
        required: whether the gateway is not ready without it.
        or_newer: any newer version does as well: librdkafka takes the newest that both sides know.
    """

    api: ApiKey
    version: int
    purpose: str
    without: str
    where: str
    applies: Callable[[Config], bool]
    only_beside: tuple[ApiKey, int] | None = None
    required: bool = False
    or_newer: bool = False

    @property
    def name(self) -> str:
        """Kafka's name of the API, such as DescribeConfigs."""
        return api_name(self.api)

    def is_met(self, offered: Offered) -> bool:
        """Whether a broker that offers these APIs meets the need."""
        if self.only_beside is not None and not offers(offered, *self.only_beside):
            return True
        if self.or_newer:
            return offered.get(self.api, (0, -1))[1] >= self.version
        return offers(offered, self.api, self.version)


def _always(_config: Config) -> bool:
    return True


def _quota_topic(config: Config) -> bool:
    return "quota_store" in config.own_topics()


def _usage_topic(config: Config) -> bool:
    return "usage" in config.own_topics()


def _own_topics(config: Config) -> bool:
    return bool(config.own_topics())


def _usage_by_topic(config: Config) -> bool:
    return config.usage.kind != "off" and config.usage.topics


def _stored_bytes(config: Config) -> bool:
    return config.usage.kind != "off" and config.usage.stored


def _cluster_decides(config: Config) -> bool:
    return config.quota_admin.authorize is Authorize.ASK_CLUSTER


_QUOTA_TOPIC: Final = 'quota_store.kind = "topic"'
_USAGE_TOPIC: Final = 'usage.kind = "topic"'
_OWN_TOPICS: Final = "a topic of its own"
_CANNOT_ALTER: Final = 'quotas cannot be changed; use quota_store.kind = "sqlite"'
_CANNOT_USE_TOPIC: Final = "the topic cannot be used; keep quotas in sqlite, usage records in files"

NEEDS: Final = (
    Need(
        ApiKey.METADATA,
        4,
        "learns the brokers and their addresses",
        "the gateway is never ready",
        "always",
        _always,
        required=True,
    ),
    Need(
        ApiKey.DESCRIBE_CONFIGS,
        1,
        "reads num.partitions, auto.create.topics.enable and queued.max.request.bytes",
        "topics that clients create by Metadata cost mutation_quota.default_num_partitions",
        "always",
        _always,
    ),
    Need(
        ApiKey.METADATA,
        12,
        "asks for the names of topics that a DeleteTopics names by id",
        "DeleteTopics by id ends the connection of a client with a mutation quota",
        "mutation quotas",
        _always,
        only_beside=(ApiKey.DELETE_TOPICS, 6),
    ),
    Need(
        ApiKey.METADATA,
        10,
        "asks which topics exist, with their ids",
        "CreateTopics ends the connection of a client with a mutation quota",
        "mutation quotas",
        _always,
        only_beside=(ApiKey.CREATE_TOPICS, 7),
    ),
    Need(
        ApiKey.METADATA,
        12,
        "asks for the names of topics that a Fetch or Produce names by id",
        "usage records have no names for these topics",
        "usage.topics = true",
        _usage_by_topic,
        only_beside=(ApiKey.FETCH, 13),
    ),
    Need(
        ApiKey.DESCRIBE_LOG_DIRS,
        1,
        "asks each broker once an hour what it stores",
        "usage records have no stored bytes",
        "usage.stored = true",
        _stored_bytes,
    ),
    Need(
        ApiKey.METADATA,
        12,
        "recognises the gateway's own topics where a Produce names them by id",
        "Produce by id ends the connection of a client",
        _OWN_TOPICS,
        _own_topics,
        only_beside=(ApiKey.PRODUCE, 13),
    ),
    Need(
        ApiKey.CREATE_TOPICS,
        0,
        "creates the topic",
        "the operator has to create the topic",
        _OWN_TOPICS,
        _own_topics,
        or_newer=True,
    ),
    Need(
        ApiKey.PRODUCE,
        3,
        "writes records with headers",
        _CANNOT_USE_TOPIC,
        _OWN_TOPICS,
        _own_topics,
        or_newer=True,
    ),
    Need(
        ApiKey.INIT_PRODUCER_ID,
        0,
        "writes each record once",
        'no usage record is delivered; use usage.kind = "files"',
        _USAGE_TOPIC,
        _usage_topic,
        or_newer=True,
    ),
    *(
        Need(api, version, what, _CANNOT_USE_TOPIC, _QUOTA_TOPIC, _quota_topic, or_newer=True)
        for api, version, what in (
            (ApiKey.FETCH, 4, "reads committed records only"),
            (ApiKey.LIST_OFFSETS, 2, "finds the end of the topic"),
        )
    ),
    *(
        Need(
            api,
            0,
            "writes all records of a change or none",
            _CANNOT_ALTER,
            _QUOTA_TOPIC,
            _quota_topic,
            or_newer=True,
        )
        for api in (ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN)
    ),
    *(
        Need(
            api,
            0,
            "asks the broker whether the client may",
            "only quota_admin.admins may see and change quotas with Kafka's tools",
            'quota_admin.authorize = "ask_cluster"',
            _cluster_decides,
        )
        for api in (ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.ALTER_CLIENT_QUOTAS)
    ),
)


def needs_of(config: Config) -> tuple[Need, ...]:
    """The needs of a configuration."""
    return tuple(need for need in NEEDS if need.applies(config))


def unmet(needs: Iterable[Need], offered: Offered) -> Iterator[Need]:
    """The needs that a broker that offers these APIs does not meet."""
    return (need for need in needs if not need.is_met(offered))


def offers(offered: Offered, api: ApiKey, version: int) -> bool:
    """Whether a broker offers this version."""
    lowest, highest = offered.get(api, (0, -1))
    return lowest <= version <= highest


def offered_text(offered: Offered, api: ApiKey) -> str:
    """The offered versions, for a reader."""
    return "no version" if api not in offered else "versions {}-{}".format(*offered[api])


def api_name(api: ApiKey) -> str:
    """Kafka's name of an API."""
    return "".join(part.capitalize() for part in api.name.split("_"))
