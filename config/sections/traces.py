"""[traces]: spans of mutations, logins and changes of quotas for OpenTelemetry (docs/decisions/0026-traces.md)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from config.section_base import NonEmpty, Section


def collector_url(text: str) -> str:
    """The text, if it can be the URL of a collector of OTLP over HTTP.

    Raises:
        ValueError: it can't.
    """
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("is not a URL with http or https and a host")
    if "@" in parts.netloc:
        raise ValueError("has a password in it, which would appear in logs; set OTEL_EXPORTER_OTLP_HEADERS")
    return text


class TraceSettings(Section, frozen=True):
    """OpenTelemetry traces of mutations, logins and changes of quotas.

    Attributes:
        endpoint: URL of a collector that accepts OTLP over HTTP, with its path. Not set: no traces. The
            gateway takes headers from OTEL_EXPORTER_OTLP_HEADERS, like other programs.
        ca: PEM file with the authorities of an https endpoint. Not set: the system's.
        max_spans_per_second: how many operations of each kind are traced. Further ones are only counted.
        max_queued_spans: how many spans may wait for a slow or unreachable collector. Each takes about 2 KiB.
    """

    endpoint: Annotated[str, AfterValidator(collector_url)] | None = None
    ca: NonEmpty | None = None
    max_spans_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_queued_spans: Annotated[int, Field(ge=100, le=100_000)] = 2048
