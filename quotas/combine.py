"""Several quotas on one request: the longest wait applies, and counts for one family (KIP-124, KIP-599)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ThrottledBy(StrEnum):
    """The family whose throttle-time metric a wait counts in. Closed: it is a metric label."""

    NONE = "none"
    PRODUCE = "produce"
    FETCH = "fetch"
    REQUEST = "request"
    CONTROLLER_MUTATION = "controller_mutation"
    UPSTREAM = "upstream"
    METADATA = "metadata"
    OFFSET_COMMIT = "offset_commit"
    GROUP_MEMBERSHIP = "group_membership"
    FIND_COORDINATOR = "find_coordinator"
    INIT_PRODUCER_ID = "init_producer_id"
    LIST_OFFSETS = "list_offsets"
    DESCRIBE_CONFIGS = "describe_configs"
    ALTER_CONFIGS = "alter_configs"
    PRODUCE_RECORDS = "produce_records"
    FETCH_RECORDS = "fetch_records"


@dataclass(frozen=True, slots=True)
class Throttle:
    """The wait of one request, and the family that it is counted for."""

    throttle_time_ms: int
    by: ThrottledBy


def combine(
    specific: ThrottledBy,
    specific_ms: int,
    *,
    request_ms: int = 0,
    upstream_ms: int = 0,
) -> Throttle:
    """The throttle of a request: the longest wait, never the sum.

    A tie between the API's own quota and the request quota counts as request, as in Kafka. The broker's own throttle
    time is never lowered, because a broker's quota may be enforced as well. It counts as upstream only when it is
    strictly longer than the gateway's.

    Args:
        specific: the family of the API's own quota.
        specific_ms: the throttle time of that quota.
        request_ms: the throttle time of the request quota; 0 if it is not enforced, as for Produce with acks=0.
        upstream_ms: the throttle_time_ms in the broker's response, 0 when it has none.
    """
    if upstream_ms > max(specific_ms, request_ms):
        return Throttle(upstream_ms, ThrottledBy.UPSTREAM)
    if specific_ms > request_ms:
        return Throttle(specific_ms, specific)
    if request_ms > 0:
        return Throttle(request_ms, ThrottledBy.REQUEST)
    return Throttle(0, ThrottledBy.NONE)
