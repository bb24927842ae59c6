"""[[quotas]]: the quotas of users, client ids, addresses, topics and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field, model_validator

from config.ip_address import AddressOrBlock
from config.section_base import Count, Key, NonEmpty, Section, faults_error
from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey
from quotas.lending import TIERS
from quotas.limits import (
    CONNECTION_KEYS,
    GROUP_KEYS,
    IP_KEYS,
    MOST_BURST_SECONDS,
    TOPIC_KEYS,
    guarantee_faults,
    validate_entity,
)

ByteRate: TypeAlias = Annotated[int, Field(ge=1, le=2**63 - 1)]  # a LONG, as Kafka stores it
Rate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=MOST_BURST_SECONDS)]
OTHER_SPELLINGS: Final = {"client-id": "client_id", "default-client-id": "default_client_id"}


class QuotaRule(Section, frozen=True):
    """The quotas of one entity: a user, a client id, a pair of them, an address, a topic or a group.

    Each is given by name or, except a group, as the default.

    The default has a key of its own, so that every name stays a name: ``user = "<default>"`` is a user with
    that name.

    Attributes:
        user: a user, by name.
        default_user: every user without a quota of its own, each separately.
        client_id: a client id, by name. Also read as `client-id`, the spelling of Kafka's tools.
        default_client_id: every client id without a quota of its own, each separately. Also read as
            `default-client-id`.
        ip: an address, or a block of addresses that share one counter.
        default_ip: every other address, each separately.
        topic: a topic, by name. Alone, or together with a user or a client id.
        default_topic: every other topic, each separately.
        group: a group of clients, which [[groups]] defines. Its quotas count beside those of its members.
        observe: compute and report, but throttle and refuse nothing. Applies to all quotas of this entity.
        producer_byte_rate: produced bytes per second. A whole number, as Kafka stores it.
        consumer_byte_rate: fetched bytes per second. A whole number, as Kafka stores it.
        request_percentage: percent of one core. 200 is two cores.
        controller_mutation_rate: partitions per second, created or deleted.
        connection_creation_rate: connections per second, of an address or of a user. The only quota that addresses
            have.
        connection_count: open connections of a user at one gateway. A whole number.
        producer_byte_burst_seconds: `producer_byte_rate` of this entity is counted by a bucket that holds so many
            seconds of it, and not by Kafka's window.
        consumer_byte_burst_seconds: the same for `consumer_byte_rate`.
        metadata_request_rate: Metadata, DescribeTopicPartitions and DescribeCluster requests per second.
        offset_commit_request_rate: OffsetCommit and TxnOffsetCommit requests per second.
        group_membership_request_rate: requests per second to join, leave and stay in groups: JoinGroup, SyncGroup,
            LeaveGroup and all heartbeats.
        find_coordinator_request_rate: FindCoordinator requests per second.
        init_producer_id_request_rate: InitProducerId requests per second.
        list_offsets_request_rate: ListOffsets requests per second.
        describe_configs_request_rate: DescribeConfigs requests per second.
        alter_configs_request_rate: AlterConfigs, IncrementalAlterConfigs and AlterPartitionReassignments requests per
            second.
        producer_record_rate: produced records per second, as the heads of batches say.
        consumer_record_rate: fetched records per second, as the heads of batches say.
        producer_byte_guarantee: produced bytes per second that this entity gets in any case, where a capacity is set
            (`[capacity]`). Its `producer_byte_rate` is then the most that it gets.
        consumer_byte_guarantee: the same for `consumer_byte_rate`.
        weight: how much of what is left beyond guarantees this entity gets, compared with others. Not set: 1.
        tier: 0 to 3, the most important first. Metrics show what each tier uses; it changes no limit. Not set: 2.
    """

    user: NonEmpty | None = None
    default_user: bool = False
    client_id: NonEmpty | None = None
    default_client_id: bool = False
    ip: AddressOrBlock | None = None
    default_ip: bool = False
    topic: NonEmpty | None = None
    default_topic: bool = False
    group: NonEmpty | None = None
    observe: bool = False
    producer_byte_rate: ByteRate | None = None
    consumer_byte_rate: ByteRate | None = None
    request_percentage: Rate | None = None
    controller_mutation_rate: Rate | None = None
    connection_creation_rate: Count | None = None
    connection_count: Count | None = None
    producer_byte_burst_seconds: Seconds | None = None
    consumer_byte_burst_seconds: Seconds | None = None
    metadata_request_rate: Rate | None = None
    offset_commit_request_rate: Rate | None = None
    group_membership_request_rate: Rate | None = None
    find_coordinator_request_rate: Rate | None = None
    init_producer_id_request_rate: Rate | None = None
    list_offsets_request_rate: Rate | None = None
    describe_configs_request_rate: Rate | None = None
    alter_configs_request_rate: Rate | None = None
    producer_record_rate: Rate | None = None
    consumer_record_rate: Rate | None = None
    producer_byte_guarantee: ByteRate | None = None
    consumer_byte_guarantee: ByteRate | None = None
    weight: Rate | None = None
    tier: Annotated[int, Field(ge=0, le=TIERS - 1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, data: Any) -> Any:
        """`client-id`, as Kafka's tools and the YAML of quotas have it, is `client_id`."""
        if not isinstance(data, dict):
            return data
        twice = [name for name in OTHER_SPELLINGS if name in data and OTHER_SPELLINGS[name] in data]
        if twice:
            raise faults_error(
                [((name,), f"is the same as {OTHER_SPELLINGS[name]}; give one") for name in twice]
            )
        return {OTHER_SPELLINGS.get(name, name): value for name, value in data.items()}

    @property
    def entity(self) -> QuotaEntity:
        """The entity that these quotas are for."""
        user: Name | None = DEFAULT if self.default_user else self.user
        client_id: Name | None = DEFAULT if self.default_client_id else self.client_id
        ip: Name | None = DEFAULT if self.default_ip else self.ip
        return QuotaEntity(user, client_id, ip, DEFAULT if self.default_topic else self.topic, self.group)

    def values(self) -> dict[QuotaKey, float]:
        """The limits that are given, by quota."""
        given = {key: getattr(self, key) for key in ENFORCED_KEYS}
        return {key: float(value) for key, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _check(self) -> QuotaRule:
        faults: list[tuple[Key, str]] = []
        for name in ("user", "client_id", "ip", "topic"):
            if getattr(self, name) is not None and getattr(self, f"default_{name}"):
                faults.append(((name,), f"give {name} or default_{name}, not both"))
        entity = self.entity
        if not any(entity.components()):
            names = "user, default_user, client_id, default_client_id, ip, default_ip, topic, default_topic or group"
            faults.append(((), f"names no entity; give {names}"))
        elif entity.family is None:
            what = "an address cannot be combined with a user, a client id or a topic"
            if entity.group is not None:
                what = "a group cannot be combined with anything"
            elif entity.ip is None:
                what = "a topic can be combined with a user or a client id, not with both"
            faults.append(((), what))
        elif (fault := validate_entity(entity)) is not None and entity.topic is not None:
            faults.append((("topic",), fault))
        elif entity.group is not None:
            fault = validate_entity(entity)
            faults.extend(self._key_faults(GROUP_KEYS) if fault is None else [(("group",), fault)])
        elif entity.topic is not None:
            faults.extend(self._key_faults(TOPIC_KEYS))
        elif entity.ip is not None:
            faults.extend(self._key_faults(IP_KEYS))
        else:
            faults.extend(self._key_faults(CLIENT_KEYS if entity.client_id is not None else USER_KEYS))
        faults.extend(((str(key),), fault) for key, fault in guarantee_faults(self.values()))
        if faults:
            raise faults_error(faults)
        return self

    def _key_faults(self, allowed: Collection[QuotaKey]) -> Iterator[tuple[Key, str]]:
        known = [key for key in ENFORCED_KEYS if key in allowed]
        if not self.values():
            yield (), f"limits nothing; give {' or '.join(known)}"
        subject = "client ids have" if allowed is CLIENT_KEYS else "addresses have"
        subject = "topics have" if allowed is TOPIC_KEYS else subject
        subject = "groups have" if allowed is GROUP_KEYS else subject
        for key in self.values():
            if key not in allowed:
                yield (str(key),), f"{subject} no such quota; give {' or '.join(known)}"


# The quotas that this gateway enforces; any other key is refused.
ENFORCED_KEYS: Final = tuple(key for key in QuotaKey if key in QuotaRule.model_fields)

CLIENT_KEYS: Final = tuple(key for key in ENFORCED_KEYS if key not in CONNECTION_KEYS)
"""The quotas of users and client ids."""

USER_KEYS: Final = ENFORCED_KEYS
"""The quotas of users alone."""
