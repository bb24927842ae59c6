"""Exchanges as series."""

from __future__ import annotations

from gateway.auth.authentication import Result
from gateway.observability.metrics import GatewayMetrics
from protocol.sasl import Mechanism


def test_exchanges_are_counted_by_listener_mechanism_and_result() -> None:
    metrics = GatewayMetrics(lambda: 7_300_000)
    for _ in range(2):
        metrics.authenticated("outside", Mechanism.SCRAM_SHA_256, Result.FAILED)
    metrics.authenticated("outside", Mechanism.OTHER, Result.SUCCESS)

    def value(mechanism: str, result: str) -> float | None:
        labels = {"listener": "outside", "mechanism": mechanism, "result": result}
        return metrics.registry.get_sample_value("gateway_authentications_total", labels)

    assert value("scram-sha-256", "failed") == 2
    assert value("other", "success") == 1
    assert value("plain", "success") is None
