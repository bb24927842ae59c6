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
    """The admin port: /metrics, /healthz, /readyz, the status page and the kill switch.

    It has no password, so it listens on loopback.

    Attributes:
        bind: address and port. Port 0 takes any free port.
        remote_changes: whether other machines may change something through this port. They must also be able
            to reach `bind`.
        allowed_hosts: further host names under which the port answers. It always answers to localhost, to the
            host of `bind` and to every IP address. It refuses all other names, because a web page could let
            its own name point here.
        max_entity_series: how many users and clients have metric series of their own, per quota. The others
            share one series. 250 keep a scrape with all quotas below 10,000 series.
    """

    bind: BindAddress = HostPort("127.0.0.1", 9644)
    remote_changes: bool = False
    allowed_hosts: Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(strict=False)] = ()
    max_entity_series: Annotated[int, Field(ge=0, le=100_000)] = 250
