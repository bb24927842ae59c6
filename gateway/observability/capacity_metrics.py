"""The capacity that is divided among clients, and the part that brokers can take, for metrics and the status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.quota_metrics import label_value
from quotas.entities import counter_name
from quotas.lent_rates import Lent
from quotas.overload import Overload
from quotas.rate_quotas import RateQuotas, ScopedKey
from quotas.resolution import TrackerKey

PARTS: Final = ("guaranteed", "lent", "borrowed", "reclaimed")
"""The values of a share; see `quotas.lent_rates.Share`."""


TIER_PARTS: Final = ("lent", "borrowed", "reclaimed", "shed")
"""The values of a tier; see `quotas.lent_rates.TierUse`."""


def shares_of(last: Lent) -> dict[TrackerKey, tuple[float, ...]]:
    """The values `PARTS` by tracker key; counters of several brokers are added up."""
    found: dict[TrackerKey, tuple[float, ...]] = {}
    for share in last.shares:
        if isinstance(share.name, ScopedKey):
            parts = (share.guarantee, share.lent, share.borrowed, share.reclaimed)
            before = found.get(share.name.tracker_key, (0.0,) * len(PARTS))
            found[share.name.tracker_key] = tuple(map(sum, zip(before, parts, strict=True)))
    return found


def capacity_json(quotas: Mapping[str, RateQuotas]) -> dict[str, Any]:
    """The last division of each quota that has a capacity, for the status."""
    found = {}
    for name, each in quotas.items():
        last = None if each.lender is None else each.lender.last
        if last is None:
            continue
        shares = []
        for key, parts in shares_of(last).items():
            user, client_id = label_value(key.user), label_value(key.client_id)
            shares.append({"name": counter_name(user, client_id), **dict(zip(PARTS, parts, strict=True))})
        found[name] = {
            "capacity": last.capacity,
            "guaranteed": last.guaranteed,
            "lent": last.lent,
            "waiting": last.waiting,
            "shares": shares,
            "tiers": [
                {
                    "tier": tier,
                    "used": used,
                    **{part: getattr(parts, part) for part in TIER_PARTS},
                    "brake": last.braked.get(tier),
                    "overload": last.shed.get(tier),
                }
                for tier, (used, parts) in enumerate(zip(last.by_tier, last.tiers, strict=True))
            ],
        }
    return found


class CapacityMetrics(Collector):
    """Shows the last division of each quota. Without a capacity there are no series."""

    def __init__(
        self, quotas: Mapping[str, RateQuotas], overload: Callable[[], Overload | None] = lambda: None
    ) -> None:
        """Show these quotas.

        Args:
            quotas: by the word with which their metrics begin.
            overload: returns the part that brokers can take; None: brokers are not measured.
        """
        self._quotas = quotas
        self._overload = overload

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
            shares = GaugeMetricFamily(
                f"{prefix}_capacity_share",
                "Bytes per second of a client: what it is guaranteed, lends of that, borrows beyond it, and what "
                "of that the last division took back. Of at most 50 clients, those with a guarantee first.",
                labels=["user", "client_id", "part"],
            )
            shed = GaugeMetricFamily(
                f"{prefix}_byte_overload_limit_of_tier",
                "Bytes per second that slow brokers leave to all clients of a tier together ([overload]); in mode "
                "observe it is not in force.",
                labels=["tier"],
            )
            last = None if quotas.lender is None else quotas.lender.last
            parts_of_tiers = GaugeMetricFamily(
                f"{prefix}_tier_share",
                "Bytes per second of all clients of a tier: what they lend of their guarantees, borrow beyond them, "
                "what of that the last division took back, and what the tier loses for slow brokers (shed).",
                labels=["tier", "part"],
            )
            if last is not None:
                capacity.add_metric([], last.capacity)
                guaranteed.add_metric([], last.guaranteed)
                lent.add_metric([], last.lent)
                waiting.add_metric([], last.waiting)
                for tier, used_per_s in enumerate(last.by_tier):
                    tiers.add_metric([str(tier)], used_per_s)
                for tier, most in last.braked.items():
                    braked.add_metric([str(tier)], most)
                for key, parts in shares_of(last).items():
                    for part, value in zip(PARTS, parts, strict=True):
                        shares.add_metric([label_value(key.user), label_value(key.client_id), part], value)
                for tier, most in last.shed.items():
                    shed.add_metric([str(tier)], most)
                for tier, of_tier in enumerate(last.tiers):
                    for part in TIER_PARTS:
                        parts_of_tiers.add_metric([str(tier), part], getattr(of_tier, part))
            yield from (capacity, guaranteed, lent, waiting, tiers, braked, shares, shed, parts_of_tiers)
        yield from self._of_brokers(self._overload())

    def _of_brokers(self, overload: Overload | None) -> Iterator[Metric]:
        time = GaugeMetricFamily(
            "gateway_produce_broker_time_seconds",
            "How long brokers took for a Produce request: the median of clients ([overload]).",
        )
        usable = GaugeMetricFamily(
            "gateway_produce_usable_capacity_ratio",
            "Part of the capacity that brokers can take ([overload]); in mode observe all of it may be used.",
        )
        clients = GaugeMetricFamily(
            "gateway_produce_measured_clients", "Clients whose requests were measured in the last second."
        )
        errors = GaugeMetricFamily(
            "gateway_produce_short_answers_ratio",
            "Part of Produce answers in which brokers lack replicas, time or storage: the median of clients "
            "([overload]).",
        )
        growing = GaugeMetricFamily(
            "gateway_produce_queue_growing",
            "1: requests of most clients met more requests in flight than a second before ([overload]).",
        )
        if overload is not None:
            health = overload.health
            if health.time_ms is not None:
                time.add_metric([], health.time_ms / 1000)
            if health.errors is not None:
                errors.add_metric([], health.errors)
            usable.add_metric([], overload.usable)
            clients.add_metric([], health.clients)
            growing.add_metric([], health.growing)
        yield from (time, errors, usable, clients, growing)
