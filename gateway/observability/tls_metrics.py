"""Metrics of TLS: handshakes, causes of failures, expiry of the gateway's certificates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.events import TlsFailure

VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


class _Identity(Protocol):
    @property
    def owner(self) -> str: ...
    @property
    def expires_s(self) -> float | None: ...
    @property
    def reloads(self) -> int: ...
    @property
    def failed_reloads(self) -> int: ...
    @property
    def last_reload_failed(self) -> bool: ...


class _HandshakeLimiter(Protocol):
    @property
    def waiting(self) -> int: ...
    @property
    def delayed(self) -> int: ...


class TlsMetrics(Collector):
    """Counts handshakes, and shows certificates and the handshake limiter."""

    def __init__(self) -> None:
        self._done: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, TlsFailure]] = Counter()
        self._upstream_failed: Counter[tuple[str, TlsFailure]] = Counter()
        self._listeners: list[str] = []
        self._upstreams: list[str] = []
        self._identities: list[_Identity] = []
        self._handshake_limiter: _HandshakeLimiter | None = None

    def watch(
        self,
        *,
        listeners: Iterable[str],
        upstreams: Iterable[str],
        identities: Iterable[_Identity],
        handshake_limiter: _HandshakeLimiter,
    ) -> None:
        """Show series of these from the start, so that the first increase is visible.

        Args:
            listeners: names of the listeners with TLS.
            upstreams: names of the upstreams with TLS.
            identities: certificates and their owners.
            handshake_limiter: the limiter that handshakes wait for.
        """
        self._listeners = list(listeners)
        self._upstreams = list(upstreams)
        self._identities = list(identities)
        self._handshake_limiter = handshake_limiter

    def handshake_done(self, listener: str, version: str) -> None:
        """A handshake of a client has succeeded."""
        self._done[listener, version if version in VERSIONS else "other"] += 1

    def handshake_failed(self, listener: str, failure: TlsFailure) -> None:
        """A handshake of a client has failed."""
        self._failed[listener, failure] += 1

    def upstream_failed(self, upstream: str, failure: TlsFailure) -> None:
        """A handshake with a broker has failed; nothing was sent to that broker."""
        self._upstream_failed[upstream, failure] += 1

    def collect(self) -> Iterator[Metric]:
        """All series, as of now."""
        done = CounterMetricFamily(
            "gateway_tls_handshakes", "TLS handshakes with clients.", labels=["listener", "version"]
        )
        failed = CounterMetricFamily(
            "gateway_tls_handshake_failures",
            "TLS handshakes with clients that failed, by cause.",
            labels=["listener", "reason"],
        )
        for listener in self._listeners:
            for version in (*VERSIONS, "other"):
                done.add_metric([listener, version], self._done[listener, version])
            for failure in TlsFailure:
                failed.add_metric([listener, failure.value], self._failed[listener, failure])
        upstream = CounterMetricFamily(
            "gateway_upstream_tls_failures",
            "Connections to brokers given up because TLS failed, by cause.",
            labels=["upstream", "reason"],
        )
        for name in self._upstreams:
            for failure in TlsFailure:
                upstream.add_metric([name, failure.value], self._upstream_failed[name, failure])
        yield from (done, failed, upstream)
        if self._handshake_limiter is not None:
            yield GaugeMetricFamily(
                "gateway_tls_handshakes_waiting",
                "Clients whose TLS handshake waits for the limit of handshakes per second.",
                value=self._handshake_limiter.waiting,
            )
            yield CounterMetricFamily(
                "gateway_tls_handshake_delays",
                "Handshakes that waited for the limit of handshakes per second.",
                value=self._handshake_limiter.delayed,
            )
        yield from self._certificates()

    def _certificates(self) -> Iterator[Metric]:
        expiry = GaugeMetricFamily(
            "gateway_tls_certificate_expiry_timestamp_seconds",
            "End of validity of the gateway's own certificate, by the section that names it.",
            labels=["section"],
        )
        reloads = CounterMetricFamily(
            "gateway_tls_certificate_reloads",
            "Times changed certificate files were read again.",
            labels=["section", "result"],
        )
        current = GaugeMetricFamily(
            "gateway_tls_certificate_last_reload_successful",
            "0 while changed certificate files cannot be used and the old ones stay in force.",
            labels=["section"],
        )
        for each in self._identities:
            if each.expires_s is not None:
                expiry.add_metric([each.owner], each.expires_s)
            reloads.add_metric([each.owner, "applied"], each.reloads)
            reloads.add_metric([each.owner, "invalid"], each.failed_reloads)
            current.add_metric([each.owner], not each.last_reload_failed)
        yield from (expiry, reloads, current)
