"""The series of /metrics, sent by OTLP over HTTP. Imported only where `[metrics] endpoint` is set.

Nothing is counted a second time: each export takes the families of a scrape, and translates them by OpenTelemetry's
page on compatibility with Prometheus. Names and labels do not change. One export runs at a time, in a thread. If a
collector is slow or unreachable, exports are lost and counted. Nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, TypeAlias, cast

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.otlp_session import BoundedSession
from gateway.runtime.client_log import client_logger

_POINTS: Final = 500
"""The most points of one request. Encoding can be interrupted by other threads, serializing a request can't."""

_TIMEOUT_S: Final = 10.0
_AT_THE_END_S: Final = 3.0
_MOST_S: Final = 60.0
"""The time limit for the requests of an export; after it, the next interval applies."""

_log = structlog.get_logger("gateway.metrics")

Families: TypeAlias = Callable[[], AsyncIterator[Metric]]
_Labels: TypeAlias = tuple[tuple[str, str], ...]
_Point: TypeAlias = "sdk.NumberDataPoint | sdk.HistogramDataPoint"


class OtlpMetrics(Collector):
    """Exports at an interval from `start` to `stop`."""

    def __init__(
        self,
        endpoint: str,
        families: Families,
        *,
        ca: str | None = None,
        interval_ms: int,
        resource: dict[str, str],
        labels: dict[str, str] | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Starts nothing yet.

        Args:
            endpoint: URL of the collector.
            families: returns the families of a scrape.
            ca: PEM file; None: the system's authorities.
            interval_ms: the time from one export to the next.
            resource: attributes of all series, with OpenTelemetry's names.
            labels: additional labels of each point.
            wall_ns: the wall clock.
        """
        client_logger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        self._exporter = OTLPMetricExporter(
            endpoint, certificate_file=ca, timeout=_TIMEOUT_S, session=BoundedSession()
        )
        self._families = families
        self._interval_s = interval_ms / 1000
        self._resource = Resource(resource)
        self._labels = labels or {}
        self._wall_ns = wall_ns
        self._points = Points(wall_ns())
        self._exported = self._failed = 0
        self._replaced = False
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()
        self._sent.set()

    def start(self) -> None:
        """Start exporting; call it in the running loop."""
        self._points = Points(self._wall_ns())
        self._task = asyncio.get_running_loop().create_task(self._run())

    def replaced(self) -> None:
        """Stop sending, because another process reports the same series from now on."""
        self._replaced = True
        self._ending.set()

    async def stop(self) -> None:
        """Send the last values, for some seconds at most. The thread does not keep the process alive."""
        self._ending.set()
        if self._task is not None:
            # If the export task has failed, its exception must not prevent the stop of other parts.
            await asyncio.wait([self._task], timeout=_AT_THE_END_S)
            self._task.cancel()

    def collect(self) -> Iterator[Metric]:
        """The series about the exports."""
        exports = CounterMetricFamily(
            "gateway_metric_exports",
            "Exports of all metrics to OpenTelemetry: exported; failed, of which the collector did not take a part.",
            labels=["result"],
        )
        exports.add_metric(["exported"], self._exported)
        exports.add_metric(["failed"], self._failed)
        yield exports

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._ending.wait()
            last = self._ending.is_set()
            if not self._replaced:
                try:
                    await self._export()
                except Exception as exc:  # noqa: BLE001  (whatever it is: the next export may succeed)
                    self._failed += 1
                    _log.error("metrics_not_exported", error=repr(exc))
            if last:
                return
            # After an export that took longer than the interval, missed exports are not repeated.
            due = max(due + self._interval_s, loop.time())

    async def _export(self) -> None:
        if not self._sent.is_set():
            self._failed += 1  # the last export has not ended: a single thread waits for the collector
            return
        at_ns = self._wall_ns()
        families = [family async for family in self._families()]
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def send() -> None:
            sent = False
            try:
                sent = self._send(self._points.of(families, self._labels, at_ns))
            finally:
                if sent:
                    self._exported += 1
                else:
                    self._failed += 1
                with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                    loop.call_soon_threadsafe(done.set)

        # A daemon thread like the library's own: a collector that hangs must not keep the process alive.
        threading.Thread(target=send, name="metrics-export", daemon=True).start()
        self._sent = done
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MOST_S):
                await done.wait()

    def _send(self, metrics: Sequence[sdk.Metric]) -> bool:
        # After a failed request the rest of this export is left out, because the next export has all series.
        return all(
            self._exporter.export(self._request(part)) is sdk.MetricExportResult.SUCCESS
            for part in in_requests(metrics, _POINTS)
        )

    def _request(self, metrics: Sequence[sdk.Metric]) -> sdk.MetricsData:
        scope = sdk.ScopeMetrics(InstrumentationScope("sluice"), metrics, "")
        return sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope], "")])


class Points:
    """Translates families, and tracks the start time of each counter, which Prometheus infers itself."""

    def __init__(self, began_ns: int) -> None:
        """Args: began_ns: when counting began."""
        self._before_ns = began_ns
        self._counted: dict[tuple[str, _Labels], tuple[int, float]] = {}

    def of(self, families: Sequence[Metric], labels: dict[str, str], at_ns: int) -> list[sdk.Metric]:
        """The families as OpenTelemetry's metrics; those without samples are left out.

        Args:
            families: the families at one moment.
            labels: additional labels of each point.
            at_ns: that moment, not before that of the last call.
        """
        counted: dict[tuple[str, _Labels], tuple[int, float]] = {}

        def began(name: str, own: _Labels, value: float) -> int:
            # The counter of a client that returns, or leaves `other`, begins at 0 again, as of the last export.
            start_ns, last = self._counted.get((name, own), (self._before_ns, 0.0))
            start_ns = self._before_ns if value < last else start_ns
            counted[name, own] = (start_ns, value)
            return start_ns

        found = []
        for family in families:
            points: list[_Point] = []
            if family.type == "histogram":
                for own, histogram in _histograms(family):
                    start_ns = began(family.name, own, histogram.count)
                    points.append(histogram.point(dict(own) | labels, start_ns, at_ns))
            else:
                for sample in family.samples:
                    own = tuple(sorted(sample.labels.items()))
                    value = float(sample.value)
                    start_ns = began(sample.name, own, value) if family.type == "counter" else 0
                    points.append(sdk.NumberDataPoint(dict(own) | labels, start_ns, at_ns, value))
            if points:
                name = f"{family.name}_total" if family.type == "counter" else family.name
                found.append(sdk.Metric(name, family.documentation, "", _data(family.type, points)))
        # Only of series that are there: as many as a scrape has.
        self._counted, self._before_ns = counted, at_ns
        return found


class _Histogram:
    """One series of a histogram."""

    def __init__(self) -> None:
        self._upper: list[tuple[float, float]] = []
        self.count = self.sum = 0.0

    def take(self, end: str, le: str, value: float) -> None:
        """Add one of the histogram's samples."""
        if end == "_bucket":
            self._upper.append((float(le), value))
        elif end == "_sum":
            self.sum = value
        elif end == "_count":
            self.count = value

    def point(self, attributes: dict[str, str], start_ns: int, at_ns: int) -> sdk.HistogramDataPoint:
        """The point. Prometheus's buckets are cumulative, OpenTelemetry's are not."""
        below = [0, *(int(count) for _, count in sorted(self._upper))]
        counts = [upper - lower for lower, upper in itertools.pairwise(below)]
        bounds = [bound for bound, _ in sorted(self._upper) if not math.isinf(bound)]
        # Prometheus has neither the minimum nor the maximum; the encoder leaves out values of None.
        unknown = cast("float", None)
        return sdk.HistogramDataPoint(
            attributes, start_ns, at_ns, int(self.count), self.sum, counts, bounds, unknown, unknown
        )


def _histograms(family: Metric) -> Iterator[tuple[_Labels, _Histogram]]:
    found: dict[_Labels, _Histogram] = {}
    for sample in family.samples:
        own = tuple(sorted(each for each in sample.labels.items() if each[0] != "le"))
        end = sample.name.removeprefix(family.name)
        found.setdefault(own, _Histogram()).take(end, sample.labels.get("le", ""), sample.value)
    yield from found.items()


def _data(kind: str, points: Sequence[_Point]) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    if kind == "histogram":
        return sdk.Histogram(cast("Sequence[sdk.HistogramDataPoint]", points), cumulative)
    numbers = cast("Sequence[sdk.NumberDataPoint]", points)
    return sdk.Sum(numbers, cumulative, is_monotonic=True) if kind == "counter" else sdk.Gauge(numbers)


def in_requests(metrics: Sequence[sdk.Metric], most: int) -> Iterator[list[sdk.Metric]]:
    """The metrics in parts of at most `most` points each; a large metric is divided."""
    part: list[sdk.Metric] = []
    room = most
    for metric in metrics:
        points = list(metric.data.data_points)
        while points:
            taken, points = points[:room], points[room:]
            kind = {sdk.Sum: "counter", sdk.Histogram: "histogram"}.get(type(metric.data), "gauge")
            data = _data(kind, cast("Sequence[_Point]", taken))
            part.append(sdk.Metric(metric.name, metric.description, metric.unit, data))
            room -= len(taken)
            if not room:
                yield part
                part, room = [], most
    if part:
        yield part
