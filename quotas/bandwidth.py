"""Byte-rate quotas for produce and fetch (KIP-13; Kafka's ClientQuotaManager).

The bytes of a Produce are those of the whole frame without its length prefix, errors included. The wait is
not capped: one frame far over the quota can cost minutes. The caller may put a ceiling on how long it mutes
at once, because the samples keep the debt.
"""

from __future__ import annotations

from quotas.entities import QuotaKey
from quotas.limits import Limits
from quotas.rate_quotas import RateQuotas, RateSettings, Scope


class ByteRateQuotas(RateQuotas):
    """producer_byte_rate or consumer_byte_rate."""

    def __init__(self, limits: Limits, key: QuotaKey, settings: RateSettings) -> None:
        """Starts with no counters; see `RateQuotas` for the arguments.

        Raises:
            ValueError: the key is not a byte rate.
        """
        if key not in (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE):
            raise ValueError(f"{key} is no byte rate")
        super().__init__(limits, key, settings)

    def max_bytes_in_window(
        self, user: str, client_id: str, *, scope: Scope = None, now_ms: int
    ) -> int | None:
        """The most bytes that an otherwise silent client can get without waiting, None for any number.

        Kafka lowers a fetch's max_bytes to this before it reads (getMaxValueInQuotaWindow): quota times
        the S - 1 whole windows.
        """
        tracker = self.tracker(user, client_id, scope=scope, now_ms=now_ms)
        return None if tracker is None else tracker.max_in_window()
