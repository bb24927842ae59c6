"""Limits of requests per API: the families of APIs, and the counters of a family's requests. Pure.

`FAMILIES` is the only table. An API has at most one family. Produce and Fetch have none: their limits count bytes and
records. A family without a quota costs nothing, and its requests are relayed as if there were no such limits.

A request takes one token from its client's bucket. The bucket contains `quotas.entities.API_BURST_S` seconds of the
rate, so a burst at twice the rate or more empties it within that time. A request that finds too few tokens passes and
is answered at once, with throttle_time_ms, and the connection is muted for that time (KIP-219). While there is debt,
a request waits before it is forwarded, in turn with those of other connections.

A group's coordinator takes a member for dead if it is silent for too long, and clients send commits and heartbeats on
the same connection. So in families with `keep_members` each wait is at most one sample (`quota.window.size`). Then
the request passes, whatever the limit: each connection passes one request per sample.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from protocol.api_keys import ApiKey
from quotas.combine import ThrottledBy
from quotas.entities import QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, RateTracker
from quotas.usage_record import UsageApi


class ApiFamily(NamedTuple):
    """APIs that are counted together.

    Attributes:
        key: the quota that limits them, in requests per second.
        by: the name of the limit in recorded waits.
        usage: the name of the rows in usage records.
        apis: the APIs.
        keep_members: see the module.
    """

    key: QuotaKey
    by: ThrottledBy
    usage: UsageApi
    apis: tuple[ApiKey, ...]
    keep_members: bool = False


FAMILIES: Final = (
    ApiFamily(
        QuotaKey.METADATA_REQUEST_RATE,
        ThrottledBy.METADATA,
        UsageApi.METADATA,
        (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CLUSTER),
    ),
    ApiFamily(
        QuotaKey.OFFSET_COMMIT_REQUEST_RATE,
        ThrottledBy.OFFSET_COMMIT,
        UsageApi.OFFSET_COMMIT,
        (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT),
        keep_members=True,
    ),
    ApiFamily(
        QuotaKey.GROUP_MEMBERSHIP_REQUEST_RATE,
        ThrottledBy.GROUP_MEMBERSHIP,
        UsageApi.GROUP_MEMBERSHIP,
        (
            ApiKey.JOIN_GROUP,
            ApiKey.SYNC_GROUP,
            ApiKey.HEARTBEAT,
            ApiKey.LEAVE_GROUP,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ApiKey.SHARE_GROUP_HEARTBEAT,
            ApiKey.STREAMS_GROUP_HEARTBEAT,
        ),
        keep_members=True,
    ),
    ApiFamily(
        QuotaKey.FIND_COORDINATOR_REQUEST_RATE,
        ThrottledBy.FIND_COORDINATOR,
        UsageApi.FIND_COORDINATOR,
        (ApiKey.FIND_COORDINATOR,),
    ),
    ApiFamily(
        QuotaKey.INIT_PRODUCER_ID_REQUEST_RATE,
        ThrottledBy.INIT_PRODUCER_ID,
        UsageApi.INIT_PRODUCER_ID,
        (ApiKey.INIT_PRODUCER_ID,),
    ),
    ApiFamily(
        QuotaKey.LIST_OFFSETS_REQUEST_RATE,
        ThrottledBy.LIST_OFFSETS,
        UsageApi.LIST_OFFSETS,
        (ApiKey.LIST_OFFSETS,),
    ),
    ApiFamily(
        QuotaKey.DESCRIBE_CONFIGS_REQUEST_RATE,
        ThrottledBy.DESCRIBE_CONFIGS,
        UsageApi.DESCRIBE_CONFIGS,
        (ApiKey.DESCRIBE_CONFIGS,),
    ),
    ApiFamily(
        QuotaKey.ALTER_CONFIGS_REQUEST_RATE,
        ThrottledBy.ALTER_CONFIGS,
        UsageApi.ALTER_CONFIGS,
        (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_PARTITION_REASSIGNMENTS),
    ),
)
"""See the module."""


class ApiLimit:
    """The counters of one family.

    Attributes:
        family: the family of APIs.
        quotas: the counters.
    """

    __slots__ = ("_longest_ms", "family", "quotas")

    def __init__(self, family: ApiFamily, limits: Limits, settings: RateSettings) -> None:
        """Start without counters.

        Args:
            family: the family of APIs.
            limits: the configured quotas.
            settings: those of the byte rates.
        """
        self.family = family
        self.quotas = RateQuotas(limits, family.key, settings)
        self._longest_ms = settings.window_ms

    def wait_ms(self, tracker: RateTracker, waiter: object, *, waited: bool, now_ms: int) -> int:
        """How long a request has to wait before it is forwarded; 0: it may pass.

        Args:
            tracker: the client's counter.
            waiter: the connection.
            waited: whether the request has waited before.
            now_ms: the time.
        """
        if not self.family.keep_members:
            return tracker.wait_ms(waiter, 1.0, now_ms=now_ms)
        debt_ms = math.ceil(tracker.blocked_until_ms - now_ms)
        return 0 if waited or debt_ms <= 0 or tracker.match.observe else min(debt_ms, self._longest_ms)

    def record(self, tracker: RateTracker, waiter: object, *, now_ms: int) -> int:
        """Count a forwarded request. Returns how long its client has to wait, in ms."""
        if not self.family.keep_members:
            return tracker.record(1.0, waiter, now_ms=now_ms)
        wait_ms = tracker.record(1.0, now_ms=now_ms)
        # Limit the debt to one mute and one wait: more debt would only delay requests after a raise of the limit.
        tracker.owe_at_most(2 * self._longest_ms, now_ms=now_ms)
        return min(wait_ms, self._longest_ms)
