"""The APIs: their keys, where their layouts change, and what a gateway may do with them.

Facts about versions come from Kafka's message definitions (4.4). The policy sets at the end are Sluice's own.
Not here: how a request is handled (the gateway's handlers) and quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cache
from typing import Final


class ApiKey(IntEnum):
    """Kafka's api keys, as on the wire."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class ThrottlePlace(Enum):
    """The position of `throttle_time_ms` in a response body."""

    NOWHERE = "nowhere"
    FIRST = "first"
    AFTER_ERROR_CODE = "after_error_code"
    AFTER_API_KEYS = "after_api_keys"
    AFTER_RESPONSES = "after_responses"
    LAST = "last"


# api key: (first flexible version, first version with throttle_time_ms in the response, its place)
_LAYOUT: Final[dict[ApiKey, tuple[int | None, int | None, ThrottlePlace]]] = {
    ApiKey.PRODUCE: (9, 1, ThrottlePlace.AFTER_RESPONSES),
    ApiKey.FETCH: (12, 1, ThrottlePlace.FIRST),
    ApiKey.LIST_OFFSETS: (6, 2, ThrottlePlace.FIRST),
    ApiKey.METADATA: (9, 3, ThrottlePlace.FIRST),
    ApiKey.LEADER_AND_ISR: (4, None, ThrottlePlace.NOWHERE),
    ApiKey.STOP_REPLICA: (2, None, ThrottlePlace.NOWHERE),
    ApiKey.UPDATE_METADATA: (6, None, ThrottlePlace.NOWHERE),
    ApiKey.CONTROLLED_SHUTDOWN: (3, None, ThrottlePlace.NOWHERE),
    ApiKey.OFFSET_COMMIT: (8, 3, ThrottlePlace.FIRST),
    ApiKey.OFFSET_FETCH: (6, 3, ThrottlePlace.FIRST),
    ApiKey.FIND_COORDINATOR: (3, 1, ThrottlePlace.FIRST),
    ApiKey.JOIN_GROUP: (6, 2, ThrottlePlace.FIRST),
    ApiKey.HEARTBEAT: (4, 1, ThrottlePlace.FIRST),
    ApiKey.LEAVE_GROUP: (4, 1, ThrottlePlace.FIRST),
    ApiKey.SYNC_GROUP: (4, 1, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_GROUPS: (5, 1, ThrottlePlace.FIRST),
    ApiKey.LIST_GROUPS: (3, 1, ThrottlePlace.FIRST),
    ApiKey.SASL_HANDSHAKE: (None, None, ThrottlePlace.NOWHERE),
    ApiKey.API_VERSIONS: (3, 1, ThrottlePlace.AFTER_API_KEYS),
    ApiKey.CREATE_TOPICS: (5, 2, ThrottlePlace.FIRST),
    ApiKey.DELETE_TOPICS: (4, 1, ThrottlePlace.FIRST),
    ApiKey.DELETE_RECORDS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.INIT_PRODUCER_ID: (2, 0, ThrottlePlace.FIRST),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (4, 2, ThrottlePlace.FIRST),
    ApiKey.ADD_PARTITIONS_TO_TXN: (3, 0, ThrottlePlace.FIRST),
    ApiKey.ADD_OFFSETS_TO_TXN: (3, 0, ThrottlePlace.FIRST),
    ApiKey.END_TXN: (3, 0, ThrottlePlace.FIRST),
    ApiKey.WRITE_TXN_MARKERS: (1, None, ThrottlePlace.NOWHERE),
    ApiKey.TXN_OFFSET_COMMIT: (3, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_ACLS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.CREATE_ACLS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.DELETE_ACLS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_CONFIGS: (4, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_CONFIGS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_LOG_DIRS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.SASL_AUTHENTICATE: (2, None, ThrottlePlace.NOWHERE),
    ApiKey.CREATE_PARTITIONS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.CREATE_DELEGATION_TOKEN: (2, 0, ThrottlePlace.LAST),
    ApiKey.RENEW_DELEGATION_TOKEN: (2, 0, ThrottlePlace.LAST),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (2, 0, ThrottlePlace.LAST),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (2, 0, ThrottlePlace.LAST),
    ApiKey.DELETE_GROUPS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.ELECT_LEADERS: (2, 0, ThrottlePlace.FIRST),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (1, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.OFFSET_DELETE: (None, 0, ThrottlePlace.AFTER_ERROR_CODE),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (1, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_CLIENT_QUOTAS: (1, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.VOTE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.BEGIN_QUORUM_EPOCH: (1, None, ThrottlePlace.NOWHERE),
    ApiKey.END_QUORUM_EPOCH: (1, None, ThrottlePlace.NOWHERE),
    ApiKey.DESCRIBE_QUORUM: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.ALTER_PARTITION: (0, 0, ThrottlePlace.FIRST),
    ApiKey.UPDATE_FEATURES: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ENVELOPE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.FETCH_SNAPSHOT: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_CLUSTER: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.BROKER_REGISTRATION: (0, 0, ThrottlePlace.FIRST),
    ApiKey.BROKER_HEARTBEAT: (0, 0, ThrottlePlace.FIRST),
    ApiKey.UNREGISTER_BROKER: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.LIST_TRANSACTIONS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 0, ThrottlePlace.FIRST),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 0, ThrottlePlace.FIRST),
    ApiKey.CONTROLLER_REGISTRATION: (0, 0, ThrottlePlace.FIRST),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.PUSH_TELEMETRY: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.SHARE_GROUP_HEARTBEAT: (0, 0, ThrottlePlace.FIRST),
    ApiKey.SHARE_GROUP_DESCRIBE: (0, 0, ThrottlePlace.FIRST),
    ApiKey.SHARE_FETCH: (0, 0, ThrottlePlace.FIRST),
    ApiKey.SHARE_ACKNOWLEDGE: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ADD_RAFT_VOTER: (0, 0, ThrottlePlace.FIRST),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0, ThrottlePlace.FIRST),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0, ThrottlePlace.FIRST),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.READ_SHARE_GROUP_STATE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.WRITE_SHARE_GROUP_STATE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.DELETE_SHARE_GROUP_STATE: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (0, None, ThrottlePlace.NOWHERE),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (0, 0, ThrottlePlace.FIRST),
    ApiKey.STREAMS_GROUP_DESCRIBE: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (0, 0, ThrottlePlace.FIRST),
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: (0, 0, ThrottlePlace.FIRST),
    ApiKey.UNREGISTER_CONTROLLER: (0, 0, ThrottlePlace.FIRST),
}

_STRICT_SINCE: Final = {
    # KIP-599: older clients cannot read THROTTLING_QUOTA_EXCEEDED, so they are only throttled.
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 5,
}

BROKER_ONLY: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.VOTE,
        ApiKey.BEGIN_QUORUM_EPOCH,
        ApiKey.END_QUORUM_EPOCH,
        ApiKey.ALTER_PARTITION,
        ApiKey.ENVELOPE,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.CONTROLLER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.UPDATE_RAFT_VOTER,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Used between brokers and controllers. An Envelope could even carry another principal (hazard A35)."""

CLUSTER_ADMIN: Final = frozenset(
    {
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UNREGISTER_CONTROLLER,
    }
)
"""These change the set of nodes. No application needs them, so they are refused (hazard A35)."""

MAX_VERSION: Final[dict[ApiKey, int]] = {
    ApiKey.PRODUCE: 13,
    ApiKey.FETCH: 18,
    ApiKey.LIST_OFFSETS: 11,
    ApiKey.METADATA: 13,
    ApiKey.OFFSET_COMMIT: 10,
    ApiKey.OFFSET_FETCH: 10,
    ApiKey.FIND_COORDINATOR: 6,
    ApiKey.JOIN_GROUP: 9,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.DESCRIBE_GROUPS: 6,
    ApiKey.LIST_GROUPS: 5,
    ApiKey.SASL_HANDSHAKE: 1,
    ApiKey.API_VERSIONS: 5,
    ApiKey.CREATE_TOPICS: 7,
    ApiKey.DELETE_TOPICS: 6,
    ApiKey.DELETE_RECORDS: 2,
    ApiKey.INIT_PRODUCER_ID: 6,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
    # v4 is used between brokers.
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 5,
    ApiKey.TXN_OFFSET_COMMIT: 6,
    ApiKey.DESCRIBE_ACLS: 3,
    ApiKey.CREATE_ACLS: 3,
    ApiKey.DELETE_ACLS: 3,
    ApiKey.DESCRIBE_CONFIGS: 4,
    ApiKey.ALTER_CONFIGS: 2,
    ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
    ApiKey.DESCRIBE_LOG_DIRS: 5,
    ApiKey.SASL_AUTHENTICATE: 2,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.CREATE_DELEGATION_TOKEN: 3,
    ApiKey.RENEW_DELEGATION_TOKEN: 2,
    ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: 3,
    ApiKey.DELETE_GROUPS: 3,
    ApiKey.ELECT_LEADERS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 1,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
    ApiKey.OFFSET_DELETE: 0,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
    ApiKey.ALTER_CLIENT_QUOTAS: 1,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
    ApiKey.DESCRIBE_QUORUM: 2,
    ApiKey.UPDATE_FEATURES: 2,
    ApiKey.DESCRIBE_CLUSTER: 2,
    ApiKey.DESCRIBE_PRODUCERS: 0,
    ApiKey.DESCRIBE_TRANSACTIONS: 0,
    ApiKey.LIST_TRANSACTIONS: 2,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
    ApiKey.CONSUMER_GROUP_DESCRIBE: 1,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: 0,
    ApiKey.PUSH_TELEMETRY: 0,
    ApiKey.LIST_CONFIG_RESOURCES: 1,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 1,
    ApiKey.SHARE_GROUP_DESCRIBE: 1,
    ApiKey.SHARE_FETCH: 2,
    ApiKey.SHARE_ACKNOWLEDGE: 2,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 1,
    ApiKey.STREAMS_GROUP_DESCRIBE: 1,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: 1,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: 0,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: 0,
}
"""The newest version of each offered API that may pass. A newer version may contain brokers in a place that this code
does not know (docs/reference/apis.md)."""


@dataclass(frozen=True, slots=True)
class Api:
    """One (api key, api version) and its layout.

    Attributes:
        key: the api key.
        version: the api version.
        flexible: tagged fields and compact types (KIP-482); the request header then ends with tags.
        flexible_header: the *response* header ends with tags; never for ApiVersions (KIP-511).
        throttle_place: the position of throttle_time_ms in the response at this version.
        strict: a mutation can be refused with THROTTLING_QUOTA_EXCEEDED (KIP-599).
    """

    key: ApiKey
    version: int
    flexible: bool
    flexible_header: bool
    throttle_place: ThrottlePlace
    strict: bool


def describe(key: ApiKey, version: int) -> Api:
    """The layout of `key` at `version`; a version newer than Kafka 4.4 gets the layout of the newest known one."""
    flexible_since, throttle_since, place = _LAYOUT[key]
    flexible = flexible_since is not None and version >= flexible_since
    has_throttle = throttle_since is not None and version >= throttle_since
    return Api(
        key=key,
        version=version,
        flexible=flexible,
        flexible_header=flexible and key is not ApiKey.API_VERSIONS,
        throttle_place=place if has_throttle else ThrottlePlace.NOWHERE,
        strict=key in _STRICT_SINCE and version >= _STRICT_SINCE[key],
    )


def offered(key: int) -> bool:
    """Whether clients may use this API at all; unknown keys are not offered (hazard A12)."""
    if key not in ApiKey.__members__.values():
        return False
    return key not in BROKER_ONLY and key not in CLUSTER_ADMIN


def newest_version(key: ApiKey) -> int:
    """The newest version of an offered API that may pass."""
    return MAX_VERSION[key]


@cache
def all_offered() -> tuple[Api, ...]:
    """Every (key, version) that may pass, with its layout; the table of routes is built from it."""
    return tuple(
        describe(key, version) for key in ApiKey if offered(key) for version in range(newest_version(key) + 1)
    )
