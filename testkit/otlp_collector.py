"""A collector of spans and metrics on a real socket: OTLP over HTTP, decoded with the published protobuf classes."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self, TypeAlias

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import HistogramDataPoint, Metric, NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span

HOST: Final = "127.0.0.1"
PATH: Final = "/v1/traces"
METRICS_PATH: Final = "/v1/metrics"


class OtlpCollector:
    """Receives spans and metrics in a thread of its own.

    Attributes:
        spans: in the order of their arrival.
        metrics: the metrics of all requests, in the same order.
        resource: attributes of the last request's resource, by name.
        status: the HTTP status of responses from now on.
        may_answer: while cleared, requests get no response.
        waiting: requests without a response so far.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.metrics: list[list[Metric]] = []
        self.resource: dict[str, str] = {}
        self.status = 200
        self.waiting = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.waiting += 1
                collector.may_answer.wait(30)
                collector.waiting -= 1
                answer: ExportTraceServiceResponse | ExportMetricsServiceResponse = (
                    ExportTraceServiceResponse()
                )
                if self.path == METRICS_PATH:
                    answer = ExportMetricsServiceResponse()
                if collector.status == 200 and self.path == PATH:
                    collector._take(ExportTraceServiceRequest.FromString(body))
                elif collector.status == 200 and self.path == METRICS_PATH:
                    collector._take_metrics(ExportMetricsServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # the client has given up
                    self.wfile.write(answer.SerializeToString())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            self.resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for of_resource in request.resource_metrics:
            self.resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for of_scope in of_resource.scope_metrics:
                self.metrics.append(list(of_scope.metrics))

    @property
    def endpoint(self) -> str:
        """The URL for `[traces] endpoint`."""
        return f"http://{HOST}:{self._server.server_address[1]}{PATH}"

    @property
    def metrics_endpoint(self) -> str:
        """The URL for `[metrics] endpoint`."""
        return f"http://{HOST}:{self._server.server_address[1]}{METRICS_PATH}"

    def named(self, name: str) -> list[Span]:
        """Spans of this name."""
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, where: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes_of(span: Span) -> dict[str, str | int | float | bool]:
    """The attributes of a span by name."""
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in span.attributes}


Series: TypeAlias = "tuple[str, frozenset[tuple[str, str]]]"


def series_of(metrics: Iterable[Metric]) -> dict[Series, float]:
    """Values of metrics, under the names and labels that Prometheus has for the same series.

    Raises:
        ValueError: a series occurs twice.
    """
    found: dict[Series, float] = {}

    def add(name: str, labels: dict[str, str], value: float) -> None:
        series = name, frozenset(labels.items())
        if series in found:
            raise ValueError(f"twice: {series}")
        found[series] = value

    for metric in metrics:
        for number in (*metric.sum.data_points, *metric.gauge.data_points):
            add(metric.name, _labels(number), number.as_double)
        for histogram in metric.histogram.data_points:
            labels, below = _labels(histogram), 0
            for bound, count in zip(
                [*map(str, histogram.explicit_bounds), "+Inf"], histogram.bucket_counts, strict=True
            ):
                below += count
                add(f"{metric.name}_bucket", {**labels, "le": bound}, below)
            add(f"{metric.name}_count", labels, histogram.count)
            add(f"{metric.name}_sum", labels, histogram.sum)
    return found


def _labels(point: NumberDataPoint | HistogramDataPoint) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}
