"""Metrics of the capacity that is divided among clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quotas.rate_quotas import RateQuotas


class CapacityMetrics(Collector):
    """Shows the last division of each quota. Without a capacity there are no series."""

    def __init__(self, quotas: Mapping[str, RateQuotas]) -> None:
        """Show these, by the word that their metrics begin with."""
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        """All series, as of the last division."""
        for name, quotas in self._quotas.items():
            prefix = f"gateway_{name}"
            capacity = GaugeMetricFamily(
                f"{prefix}_byte_capacity", "Bytes per second that all clients together get ([capacity])."
            )
            guaranteed = GaugeMetricFamily(
                f"{prefix}_byte_rate_guaranteed", "Bytes per second that clients used of their guarantees."
            )
            lent = GaugeMetricFamily(
                f"{prefix}_byte_rate_lent", "Bytes per second that clients used beyond their guarantees."
            )
            waiting = GaugeMetricFamily(
                f"{prefix}_clients_at_limit", "Clients that want more than their share of the capacity."
            )
            tiers = GaugeMetricFamily(
                f"{prefix}_byte_rate_by_tier",
                "Bytes per second that clients of a tier used.",
                labels=["tier"],
            )
            braked = GaugeMetricFamily(
                f"{prefix}_byte_limit_of_tier",
                "Bytes per second that a brake leaves to all clients of a tier together (sluice shed).",
                labels=["tier"],
            )
            last = None if quotas.lender is None else quotas.lender.last
            if last is not None:
                capacity.add_metric([], last.capacity)
                guaranteed.add_metric([], last.guaranteed)
                lent.add_metric([], last.lent)
                waiting.add_metric([], last.waiting)
                for tier, used_per_s in enumerate(last.by_tier):
                    tiers.add_metric([str(tier)], used_per_s)
                for tier, most in last.braked.items():
                    braked.add_metric([str(tier)], most)
            yield from (capacity, guaranteed, lent, waiting, tiers, braked)
