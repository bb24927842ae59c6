"""Traces as OpenTelemetry spans, sent by OTLP over HTTP. Imported only where `[traces] endpoint` is set.

Spans are created when an operation has ended, and are put into a bounded queue. A thread of opentelemetry-sdk sends
them. If a collector is slow or unreachable, the queue fills and further spans are lost and counted. Nothing else
waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.observability.otlp_session import BoundedSession
from gateway.observability.quota_metrics import label_value
from gateway.observability.traces import SpanBudget, Trace
from gateway.runtime.client_log import client_logger

_BATCH: Final = 100
"""Spans per request. Encoding them takes about 5 ms of interpreter time, in the sending thread."""

_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_AT_THE_END_S: Final = 3.0
_MS: Final = 1_000_000
_MAX_FAILURE: Final = 200


class OtlpTraces(Collector):
    """See the module, and `gateway.observability.traces.TraceSink`."""

    def __init__(
        self,
        endpoint: str,
        *,
        ca: str | None = None,
        max_spans_per_second: int,
        max_queued_spans: int,
        resource: dict[str, str],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Starts the thread.

        Args:
            endpoint: URL of the collector.
            ca: PEM file; None: the system's authorities.
            max_spans_per_second: see `SpanBudget`.
            max_queued_spans: the most spans that wait for the collector.
            resource: attributes of all spans, with OpenTelemetry's names.
            wall_ns: the wall clock.
        """
        client_logger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        self._budget = SpanBudget(max_spans_per_second)
        self._max_queued = max_queued_spans
        self._wall_ns = wall_ns
        self._made = self._left_out = self._dropped = 0
        self._exporter = _Counted(
            OTLPSpanExporter(endpoint, certificate_file=ca, timeout=_TIMEOUT_S, session=BoundedSession())
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource(resource),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=512),
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=max_queued_spans,
                schedule_delay_millis=_EVERY_S * 1000,
                max_export_batch_size=_BATCH,
            )
        )
        self._tracer = self._provider.get_tracer("sluice")

    def take(self, trace: Trace, *, now_ms: int) -> None:
        """See `TraceSink`."""
        count = 1 + len(trace.phases)
        if not self._budget.take(trace.name, now_ms=now_ms):
            self._left_out += count
            return
        if self._made - self._exporter.done + count > self._max_queued:
            self._dropped += count
            return
        self._made += count
        offset_ns = self._wall_ns() - now_ms * _MS
        root = self._tracer.start_span(
            trace.name,
            context=Context(),
            kind=SpanKind.SERVER,
            attributes={
                name: shown(value) if isinstance(value, str) else value
                for name, value in trace.attributes.items()
            },
            start_time=offset_ns + trace.began_ms * _MS,
        )
        inside = set_span_in_context(root, Context())
        for phase in trace.phases:
            part = self._tracer.start_span(
                phase.name, context=inside, kind=SpanKind.CLIENT, start_time=offset_ns + phase.began_ms * _MS
            )
            part.end(offset_ns + phase.ended_ms * _MS)
        if trace.failure is not None:
            root.set_status(StatusCode.ERROR, _visible(trace.failure[:_MAX_FAILURE]))
        root.end(offset_ns + now_ms * _MS)

    def collect(self) -> Iterator[Metric]:
        """The series."""
        exported, failed = self._exporter.exported, self._exporter.failed
        spans = CounterMetricFamily(
            "gateway_trace_spans",
            "Spans: exported; failed, which the collector did not take; dropped, as the queue was full; left_out, "
            "beyond max_spans_per_second.",
            labels=["result"],
        )
        for result, count in (
            ("exported", exported),
            ("failed", failed),
            ("dropped", self._dropped),
            ("left_out", self._left_out),
        ):
            spans.add_metric([result], count)
        yield spans

    async def stop(self) -> None:
        """Send the waiting spans, for some seconds at most. The thread does not keep the process alive."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=shut_down, name="traces-end", daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AT_THE_END_S):
                await stopped.wait()


class _Counted(SpanExporter):
    """Counts sent and lost spans. Only the sending thread writes the counts."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.exported = self.failed = 0

    @property
    def done(self) -> int:
        """Spans that no longer wait, sent or lost."""
        return self.exported + self.failed

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except BaseException:
            self.failed += len(spans)
            raise
        if result is SpanExportResult.SUCCESS:
            self.exported += len(spans)
        else:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def shown(text: str) -> str:
    """A name for a span: cut as in /metrics, with invisible characters and those that change direction escaped."""
    return _visible(label_value(text))


def _visible(text: str) -> str:
    return "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in text)
