"""[client_quota]: how byte rates and request time are measured (KIP-13, KIP-124)."""

from __future__ import annotations

from typing import Literal

from config.section_base import MaxTrackers, Milliseconds, Section, WindowNum, WindowSeconds
from quotas.rate_quotas import RateSettings

_DEFAULTS = RateSettings()


class ClientQuotaSettings(Section, frozen=True):
    """How byte rates and request time are measured. The limits themselves are in [[quotas]].

    Attributes:
        window_num: Kafka's quota.window.num.
        window_size_seconds: Kafka's quota.window.size.seconds.
        scope: what one counter covers. fleet: all gateways that share usage ([fleet]); gateway: all brokers together;
            broker: each by itself, as a cluster does.
        request_time: what request_percentage counts. gateway: CPU time of this process; upstream: the time brokers
            take to answer requests that do not wait for other clients.
        max_trackers: how many counters of each quota there may be; beyond, those of one user or network share one.
        idle_expiry_ms: how long the counter of a silent client is kept; Kafka's sensors expire after an hour too.
    """

    window_num: WindowNum = _DEFAULTS.window_num
    window_size_seconds: WindowSeconds = _DEFAULTS.window_ms // 1000
    scope: Literal["fleet", "gateway", "broker"] = "gateway"
    request_time: Literal["gateway", "upstream"] = "gateway"
    max_trackers: MaxTrackers = _DEFAULTS.max_trackers
    idle_expiry_ms: Milliseconds = _DEFAULTS.idle_expiry_ms
