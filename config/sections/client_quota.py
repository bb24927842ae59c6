"""[client_quota]: how byte rates and request time are measured (KIP-13, KIP-124)."""

from __future__ import annotations

from typing import Literal

from config.section_base import MaxTrackers, Milliseconds, Section, WindowNum, WindowSeconds
from quotas.rate_quotas import RateSettings

_DEFAULTS = RateSettings()


class ClientQuotaSettings(Section, frozen=True):
    """How byte rates and request time are measured. The limits themselves are in `[[quotas]]`.

    Attributes:
        window_num: number of samples in the average. Kafka's quota.window.num.
        window_size_seconds: length of one sample. Kafka's quota.window.size.seconds.
        scope: what one counter covers. fleet: all gateways that share usage (`[fleet]`). gateway: all brokers
            together. broker: each broker separately, as in Kafka.
        request_time: what request_percentage counts. gateway: the CPU time of the gateway. upstream: the time
            that brokers take to answer. Requests that wait for other clients do not count.
        max_trackers: maximum number of counters for each quota. Beyond it, clients of one user or network
            share a counter.
        idle_expiry_ms: how long the counter of a silent client is kept. Kafka's sensors also expire after an
            hour.
    """

    window_num: WindowNum = _DEFAULTS.window_num
    window_size_seconds: WindowSeconds = _DEFAULTS.window_ms // 1000
    scope: Literal["fleet", "gateway", "broker"] = "gateway"
    request_time: Literal["gateway", "upstream"] = "gateway"
    max_trackers: MaxTrackers = _DEFAULTS.max_trackers
    idle_expiry_ms: Milliseconds = _DEFAULTS.idle_expiry_ms
