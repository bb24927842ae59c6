"""Limits of requests per API: which API belongs to which family, and what a family's requests are counted by. Pure.

`FAMILIES` is the one table. An API has one family at most, and Produce and Fetch have none: their limits count bytes
and records. A family without a quota costs nothing, and its requests are relayed as if there were no such limits.

A request takes one from the bucket of its client, which holds `quotas.entities.API_BURST_S` seconds of the rate, so
a storm of at least twice the rate is over within that time. One that finds too little passes and is answered at once,
with throttle_time_ms, and the connection is not read for as long (KIP-219). While there is a debt, a request waits
before it is forwarded, in turn with those of other connections.

A group's coordinator takes a member for dead that is silent for too long, and clients send commits and heartbeats on
the same connection. So in families that `keep_members` each wait is at most one sample (`quota.window.size`), after
which the request passes: each connection then passes one per sample, whatever the limit.
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
        key: limits them, in requests per second.
        by: names the limit where a wait is recorded.
        usage: names the rows of usage records.
        apis: those.
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
        family: which.
        quotas: the counters.
    """

    __slots__ = ("_longest_ms", "family", "quotas")

    def __init__(self, family: ApiFamily, limits: Limits, settings: RateSettings) -> None:
        """Starts with no counters.

        Args:
            family: see above.
            limits: the configured quotas.
            settings: as of the byte rates.
        """
        self.family = family
        self.quotas = RateQuotas(limits, family.key, settings)
        self._longest_ms = settings.window_ms

    def wait_ms(self, tracker: RateTracker, waiter: object, *, waited: bool, now_ms: int) -> int:
        """How long a request has to wait before it is forwarded; 0: it may pass.

        Args:
            tracker: of its client.
            waiter: its connection.
            waited: it has done so before.
            now_ms: the present.
        """
        if not self.family.keep_members:
            return tracker.wait_ms(waiter, 1.0, now_ms=now_ms)
        debt_ms = math.ceil(tracker.blocked_until_ms - now_ms)
        return 0 if waited or debt_ms <= 0 or tracker.match.observe else min(debt_ms, self._longest_ms)

    def record(self, tracker: RateTracker, waiter: object, *, now_ms: int) -> int:
        """Count a request that is forwarded, and say how long its client has to wait for it."""
        if not self.family.keep_members:
            return tracker.record(1.0, waiter, now_ms=now_ms)
        wait_ms = tracker.record(1.0, now_ms=now_ms)
        # A mute and a wait: more would be paid only by those that come after the limit was raised.
        tracker.owe_at_most(2 * self._longest_ms, now_ms=now_ms)
        return min(wait_ms, self._longest_ms)
