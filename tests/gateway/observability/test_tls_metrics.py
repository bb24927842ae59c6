"""Series of TLS are there from the start, with labels from closed sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

from prometheus_client.registry import CollectorRegistry

from gateway.observability.events import TlsFailure
from gateway.observability.tls_metrics import VERSIONS, TlsMetrics
from gateway.tls.handshake_rate import HandshakeRateLimiter
from testkit.clock import FakeClock
from testkit.fake_loop import FakeLoop


@dataclass
class Identity:
    owner: str
    expires_s: float | None = None
    reloads: int = 0
    failed_reloads: int = 0
    last_reload_failed: bool = False


def shown() -> tuple[TlsMetrics, CollectorRegistry]:
    metrics, registry = TlsMetrics(), CollectorRegistry()
    registry.register(metrics)
    loop = cast("asyncio.AbstractEventLoop", FakeLoop(FakeClock()))
    identities = [
        Identity("listeners.0.tls", 1_800_000_000.0, reloads=2, failed_reloads=1, last_reload_failed=True),
        Identity("upstream.tls"),
    ]
    handshake_limiter = HandshakeRateLimiter(loop, per_second=None, max_waiting=1)
    metrics.watch(
        listeners=["a"], upstreams=["upstream"], identities=identities, handshake_limiter=handshake_limiter
    )
    return metrics, registry


def test_every_reason_has_a_series_before_anything_fails() -> None:
    _, registry = shown()
    for failure in TlsFailure:
        labels = {"listener": "a", "reason": failure.value}
        assert registry.get_sample_value("gateway_tls_handshake_failures_total", labels) == 0
    for version in VERSIONS:
        labels = {"listener": "a", "version": version}
        assert registry.get_sample_value("gateway_tls_handshakes_total", labels) == 0


def test_an_unknown_version_is_other() -> None:
    metrics, registry = shown()
    metrics.handshake_done("a", "TLSv9")
    assert (
        registry.get_sample_value("gateway_tls_handshakes_total", {"listener": "a", "version": "other"}) == 1
    )


def test_failures_are_counted_for_each_side() -> None:
    metrics, registry = shown()
    metrics.handshake_failed("a", TlsFailure.TIMEOUT)
    metrics.upstream_failed("upstream", TlsFailure.CERTIFICATE_HOST)
    labels = {"listener": "a", "reason": "timeout"}
    assert registry.get_sample_value("gateway_tls_handshake_failures_total", labels) == 1
    labels = {"upstream": "upstream", "reason": "certificate_host"}
    assert registry.get_sample_value("gateway_upstream_tls_failures_total", labels) == 1


def test_certificates_show_their_end_and_whether_they_are_current() -> None:
    _, registry = shown()
    section = {"section": "listeners.0.tls"}
    name = "gateway_tls_certificate_expiry_timestamp_seconds"
    assert registry.get_sample_value(name, section) == 1_800_000_000
    assert registry.get_sample_value(name, {"section": "upstream.tls"}) is None
    current = "gateway_tls_certificate_last_reload_successful"
    assert registry.get_sample_value(current, section) == 0
    assert registry.get_sample_value(current, {"section": "upstream.tls"}) == 1
    reloads = "gateway_tls_certificate_reloads_total"
    assert registry.get_sample_value(reloads, section | {"result": "applied"}) == 2
    assert registry.get_sample_value(reloads, section | {"result": "invalid"}) == 1
