"""A collector of spans on a real socket: OTLP over HTTP, decoded with the published protobuf classes."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

HOST: Final = "127.0.0.1"
PATH: Final = "/v1/traces"


class OtlpCollector:
    """Takes spans in a thread of its own.

    Attributes:
        spans: in the order in which they came.
        resource: of the last request, by name.
        status: of answers from now on.
        may_answer: cleared, requests get no answer until it is set.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.may_answer.wait(30)
                if collector.status == 200 and self.path == PATH:
                    collector._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def _take(self, request: ExportTraceServiceRequest) -> None:
        for of_resource in request.resource_spans:
            self.resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            for of_scope in of_resource.scope_spans:
                self.spans += of_scope.spans

    @property
    def endpoint(self) -> str:
        """For `[traces] endpoint`."""
        return f"http://{HOST}:{self._server.server_address[1]}{PATH}"

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
