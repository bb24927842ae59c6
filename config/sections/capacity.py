"""[capacity]: what the brokers can carry, to divide among clients."""

from __future__ import annotations

from config.section_base import Section
from config.sections.quotas import ByteRate
from quotas.entities import QuotaKey


class CapacitySettings(Section, frozen=True):
    """What the brokers can carry. Clients have their guarantees, and share the rest by weight.

    The division is made once per second. A client without a quota has no guarantee and no ceiling. A key that is not
    set divides nothing: limits are then those of the quotas.

    Attributes:
        producer_byte_rate: produced bytes per second of all clients together, over all gateways of a fleet.
        consumer_byte_rate: fetched bytes per second of all clients together, over all gateways of a fleet.
        observe: compute and report the division, but leave the limits of clients as they are.
    """

    producer_byte_rate: ByteRate | None = None
    consumer_byte_rate: ByteRate | None = None
    observe: bool = False

    def by_quota(self) -> dict[QuotaKey, float]:
        """What is set, by quota, in bytes per second."""
        found = {
            QuotaKey.PRODUCER_BYTE_RATE: self.producer_byte_rate,
            QuotaKey.CONSUMER_BYTE_RATE: self.consumer_byte_rate,
        }
        return {key: float(value) for key, value in found.items() if value is not None}
