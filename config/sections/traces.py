"""[traces]: spans of mutations, logins and changes of quotas for OpenTelemetry (docs/decisions/0026-traces.md)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from config.section_base import NonEmpty, Section


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError('is not a URL such as "http://127.0.0.1:4318/v1/traces"')
    if "@" in parts.netloc:
        raise ValueError("has a password in it, which logs would tell; set OTEL_EXPORTER_OTLP_HEADERS")
    return text


class TraceSettings(Section, frozen=True):
    """Where spans go, and how many.

    Attributes:
        endpoint: of a collector that takes OTLP over HTTP, with its path; None: none are made. Headers that it wants
            are taken from OTEL_EXPORTER_OTLP_HEADERS, as in other programs.
        ca: PEM file with the authorities of an https endpoint; the system's if not given.
        max_spans_per_second: operations of each kind that are told; further ones are counted.
        max_queued_spans: spans that wait for a collector that is slow or away, about 2 KiB each.
    """

    endpoint: Annotated[str, AfterValidator(_url)] | None = None
    ca: NonEmpty | None = None
    max_spans_per_second: Annotated[int, Field(ge=1, le=10_000)] = 100
    max_queued_spans: Annotated[int, Field(ge=100, le=100_000)] = 2048
