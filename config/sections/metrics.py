"""[metrics]: the series of /metrics for OpenTelemetry (docs/decisions/0052-dashboard-report-and-otel.md)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from config.section_base import NonEmpty, Section
from config.sections.traces import collector_url


class MetricSettings(Section, frozen=True):
    """The metrics of `/metrics`, also sent to an OpenTelemetry collector.

    Attributes:
        endpoint: URL of a collector that accepts OTLP over HTTP, with its path, such as
            `http://127.0.0.1:4318/v1/metrics`. Not set: metrics are only at `/metrics`. The gateway takes headers
            from OTEL_EXPORTER_OTLP_HEADERS, like other programs.
        ca: PEM file with the authorities of an https endpoint. Not set: the system's.
        interval_ms: time from one export to the next.
    """

    endpoint: Annotated[str, AfterValidator(collector_url)] | None = None
    ca: NonEmpty | None = None
    interval_ms: Annotated[int, Field(ge=1_000, le=3_600_000)] = 60_000
