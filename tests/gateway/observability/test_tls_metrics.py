"""Series of TLS are there from the start; labels are from closed sets, with one for each error of a peer."""

import asyncio
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import pytest
from prometheus_client.registry import CollectorRegistry

import protocol.errors
from gateway.observability.events import (
    AdminApi,
    AdminOutcome,
    AuthenticationResult,
    CloseCause,
    ReloadResult,
    Side,
    TlsFailure,
)
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


class Shown:
    """The metrics of a gateway with TLS on a listener and towards brokers."""

    def __init__(self) -> None:
        self.metrics, self._registry = TlsMetrics(), CollectorRegistry()
        self._registry.register(self.metrics)
        loop = cast("asyncio.AbstractEventLoop", FakeLoop(FakeClock()))
        limiter = HandshakeRateLimiter(loop, per_second=None, max_waiting=1)
        failed = Identity("listeners.0.tls", 1_800_000_000.0, 2, 1, last_reload_failed=True)
        identities = [failed, Identity("upstream.tls")]
        self.metrics.watch(listeners=["a"], upstreams=["upstream"], identities=identities, handshake_limiter=limiter)

    def value(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"gateway_{name}", labels)


def test_every_reason_of_failure_has_a_series_and_a_label() -> None:
    shown = Shown()
    for failure in TlsFailure:
        assert shown.value("tls_handshake_failures_total", listener="a", reason=failure.value) == 0
    for version in VERSIONS:
        assert shown.value("tls_handshakes_total", listener="a", version=version) == 0
    shown.metrics.handshake_done("a", "TLSv9")
    assert shown.value("tls_handshakes_total", listener="a", version="other") == 1
    shown.metrics.handshake_failed("a", TlsFailure.TIMEOUT)
    shown.metrics.upstream_failed("upstream", TlsFailure.CERTIFICATE_HOST)
    assert shown.value("tls_handshake_failures_total", listener="a", reason="timeout") == 1
    failures = shown.value("upstream_tls_failures_total", upstream="upstream", reason="certificate_host")
    assert failures == 1
    errors = [
        error
        for error in vars(protocol.errors).values()
        if isinstance(error, type)
        and issubclass(error, protocol.errors.ProtocolError)
        and error is not protocol.errors.ProtocolError
    ]
    assert len(errors) >= 9
    for error in errors:
        assert CloseCause(error.cause).value == error.cause


def test_certificates_show_their_end_and_whether_they_are_current() -> None:
    shown, own, other = Shown(), {"section": "listeners.0.tls"}, {"section": "upstream.tls"}
    assert shown.value("tls_certificate_expiry_timestamp_seconds", **own) == 1_800_000_000
    assert shown.value("tls_certificate_expiry_timestamp_seconds", **other) is None
    assert shown.value("tls_certificate_last_reload_successful", **own) == 0
    assert shown.value("tls_certificate_last_reload_successful", **other) == 1
    assert shown.value("tls_certificate_reloads_total", **own, result="applied") == 2
    assert shown.value("tls_certificate_reloads_total", **own, result="invalid") == 1


@pytest.mark.parametrize(
    "labels", [AdminApi, AdminOutcome, AuthenticationResult, CloseCause, ReloadResult, Side, TlsFailure]
)
def test_labels_are_plain(labels: type[StrEnum]) -> None:
    assert all(re.fullmatch(r"[a-z][a-z_]*", label.value) for label in labels)
