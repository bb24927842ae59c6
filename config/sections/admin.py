"""[admin]: the port of /metrics, /healthz, /readyz and the kill switch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from config.host_port import BindAddress, HostPort
from config.section_base import Section


class AdminSettings(Section, frozen=True):
    """The port of /metrics, /healthz, /readyz and the kill switch. It has no password, so it is on loopback.

    Attributes:
        bind: address and port; port 0 is any free one.
        remote_changes: whether other machines may change something where `bind` lets them in.
        max_entity_series: how many users and clients have series of their own, per quota; the others share one. 250
            keep a scrape with all quotas below 10,000 series.
    """

    bind: BindAddress = HostPort("127.0.0.1", 9644)
    remote_changes: bool = False
    max_entity_series: Annotated[int, Field(ge=0, le=100_000)] = 250
