"""[admin]: the port of /metrics, /healthz, /readyz and the kill switch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from config.host_port import BindAddress, HostPort, valid_host
from config.section_base import Section


def _host(text: str) -> str:
    if not valid_host(text):
        raise ValueError("must be a host name, without a port")
    return text.lower()


class AdminSettings(Section, frozen=True):
    """The port of /metrics, /healthz, /readyz and the kill switch. It has no password, so it is on loopback.

    Attributes:
        bind: address and port; port 0 is any free one.
        remote_changes: whether other machines may change something where `bind` lets them in.
        allowed_hosts: host names that it is asked under, beside localhost, that of `bind` and every address. Under
            others it does not answer: a web page may have its own name lead here.
        max_entity_series: how many users and clients have series of their own, per quota; the others share one. 250
            keep a scrape with all quotas below 10,000 series.
    """

    bind: BindAddress = HostPort("127.0.0.1", 9644)
    remote_changes: bool = False
    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(strict=False)] = ()
    max_entity_series: Annotated[int, Field(ge=0, le=100_000)] = 250
