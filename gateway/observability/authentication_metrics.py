"""How SASL exchanges ended, for Prometheus; the half of `GatewayMetrics` that is about identity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from gateway.auth.authentication import Result
from protocol.sasl import Mechanism


class AuthenticationMetrics:
    """Counts; all labels are closed sets."""

    def __init__(self) -> None:
        super().__init__()
        self._authentications: Counter[tuple[str, Mechanism, Result]] = Counter()

    def authenticated(self, listener: str, mechanism: Mechanism, result: Result) -> None:
        """See `Observer`."""
        self._authentications[listener, mechanism, result] += 1

    def collect_authentications(self) -> Iterator[Metric]:
        """The series of all listeners that have seen an exchange."""
        family = CounterMetricFamily(
            "gateway_authentications",
            "SASL exchanges that the broker ended, by what it said.",
            labels=["listener", "mechanism", "result"],
        )
        for (listener, mechanism, result), count in self._authentications.items():
            family.add_metric([listener, mechanism.value.lower(), result.value], count)
        yield family
