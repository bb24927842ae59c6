"""[mutation_quota]: how controller mutations are measured (KIP-599)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.section_base import Count, MaxTrackers, Milliseconds, Section, WindowNum, WindowSeconds
from quotas.mutation_meters import MutationAlgorithm
from quotas.mutations import MutationSettings, ValidateOnly

_DEFAULTS = MutationSettings()


class MutationQuotaSettings(Section, frozen=True):
    """How controller mutations are measured. The limits themselves are in `[[quotas]]`.

    Attributes:
        algorithm: how mutations are counted. Kafka released token_bucket. It replaced rate and spread_rate.
        window_num: Kafka's controller.quota.window.num.
        window_size_seconds: Kafka's controller.quota.window.size.seconds.
        validate_only: what requests that only validate cost. kip: nothing. kraft: as much as real ones.
        default_num_partitions: what a request for -1 partitions costs until the cluster has reported its
            num.partitions. Kafka's default.
        max_trackers: maximum number of counters. Beyond it, clients of one user or network share a counter.
        idle_expiry_ms: how long the counter of a silent client is kept. Kafka's sensors also expire after an
            hour.
    """

    algorithm: Annotated[MutationAlgorithm, Field(strict=False)] = _DEFAULTS.algorithm
    window_num: WindowNum = _DEFAULTS.window_num
    window_size_seconds: WindowSeconds = _DEFAULTS.window_ms // 1000
    validate_only: Annotated[ValidateOnly, Field(strict=False)] = _DEFAULTS.validate_only
    default_num_partitions: Count = 1
    max_trackers: MaxTrackers = _DEFAULTS.max_trackers
    idle_expiry_ms: Milliseconds = _DEFAULTS.idle_expiry_ms
