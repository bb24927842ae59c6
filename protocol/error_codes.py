"""Kafka error codes that the gateway itself reads or writes (`org.apache.kafka.common.protocol.Errors`)."""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Error code as it stands on the wire, an int16."""

    UNKNOWN = -1  # UNKNOWN_SERVER_ERROR
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    REQUEST_TIMED_OUT = 7
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    GROUP_ID_NOT_FOUND = 69
    INVALID_FETCH_SESSION_EPOCH = 71
    THROTTLING_QUOTA_EXCEEDED = 89
    UNKNOWN_TOPIC_ID = 100
    REBOOTSTRAP_REQUIRED = 129
