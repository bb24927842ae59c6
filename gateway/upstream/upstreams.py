"""The upstreams: [upstream], and one more for each of [[upstreams]]; all lead to the same cluster.

Brokers advertise the addresses of the listener that receives the request. So each upstream has its own map of the
cluster, its own discovery and its own connections. Quotas and limits are shared, since it is one cluster: all
upstreams must have the same cluster id.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from config import Config, ListenerSettings
from config.sections.upstream import SendProxyProtocol, UpstreamSettings
from gateway.runtime.clock import NowMs
from gateway.session.announced import AnnouncedLimits
from gateway.upstream.connector import Connector
from gateway.upstream.discovery import CLIENT_ID, Discovery
from gateway.upstream.login import BrokerLogin
from gateway.upstream.needs import needs_of
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.proxy_header import ProxyHeaderSender
from gateway.upstream.resolver import Resolver
from gateway.upstream.tls import BrokerTls
from gateway.upstream.topology import ClusterMap, NamedBrokers
from gateway.usage.topic_ids import TopicIds
from protocol.proxy_protocol import ProxyVersion

MAIN: Final = "upstream"
"""Name of [upstream] in metrics and logs; none of [[upstreams]] may have it."""


@dataclass(slots=True)
class Upstream:
    """The cluster as it is reached through one listener of its brokers.

    Attributes:
        name: `MAIN`, or as configured.
        settings: its section.
        cluster: the known brokers, with the addresses that they advertise there.
        connector: opens connections.
        discovery: keeps `cluster` fresh.
        login: the gateway's own; None: without SASL.
    """

    name: str
    settings: UpstreamSettings
    cluster: ClusterMap
    connector: Connector
    discovery: Discovery
    login: BrokerLogin | None
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start discovery."""
        self._task = asyncio.create_task(self.discovery.run())

    def named_brokers(self, listener: ListenerSettings) -> NamedBrokers | None:
        """The brokers that clients of a listener name in the TLS handshake; None: each broker has a port."""
        if listener.sni is None:
            return None
        return NamedBrokers(listener.sni.names, self.cluster, self.discovery.look_soon)

    def why_not_ready(self) -> str | None:
        """None while the brokers answer, otherwise a few words for /readyz."""
        if self.discovery.reached:
            return None
        return f"{self.name} ({self.settings.brokers}) {self.discovery.trouble}"

    async def stop(self) -> None:
        """Stop discovery."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def build_upstreams(
    config: Config,
    *,
    now_ms: NowMs,
    tls: Callable[[str, UpstreamSettings], BrokerTls | None],
    on_change: Callable[[ClusterMap, Sequence[int]], None],
    own_topics: OwnTopics,
    topic_ids: TopicIds | None = None,
    announced: AnnouncedLimits | None = None,
) -> dict[str, Upstream]:
    """All upstreams by name; nothing is connected yet.

    Args:
        config: valid.
        now_ms: the clock.
        tls: makes the TLS of an upstream from its name and section; None for one without.
        own_topics: receives the ids of the gateway's own topics, through [upstream].
        topic_ids: receives the names of topics whose ids are in use; None: no names are requested.
        announced: receives how many bytes of requests the brokers accept; None: this is not needed.
        on_change: called after each answer, with the upstream's cluster and the brokers that are gone for good.
    """
    resolver = Resolver(now_ms)
    found: dict[str, Upstream] = {}
    sections = {MAIN: config.upstream} | {each.name: each for each in config.upstreams}
    for name, section in sections.items():
        cluster = ClusterMap(
            [(broker.host, broker.port) for broker in section.bootstrap],
            default_num_partitions=config.mutation_quota.default_num_partitions,
            same_as=found[MAIN].cluster if found else None,
        )
        connector = Connector(
            cluster,
            resolver,
            connect_timeout_ms=section.connect_timeout_ms,
            tls=tls(name, section),
            header_sender=_header_sender(section),
        )
        login = BrokerLogin.of(section.sasl, upstream=name, path=section.path, client_id=CLIENT_ID)
        discovery = Discovery(
            cluster,
            connector,
            now_ms,
            upstream=name,
            bootstrap=section.brokers,
            refresh_ms=section.topology_refresh_ms,
            on_change=partial(on_change, cluster),
            login=login,
            wants_login=section.security_protocol.sasl,
            own_topics=own_topics if name == MAIN else None,
            topic_ids=topic_ids if name == MAIN else None,
            brokers_take=None if announced is None else partial(announced.brokers_take, name),
            needs=needs_of(config),
        )
        found[name] = Upstream(name, section, cluster, connector, discovery, login)
    return found


def _header_sender(section: UpstreamSettings) -> ProxyHeaderSender | None:
    if section.send_proxy_protocol is SendProxyProtocol.NONE:
        return None
    return ProxyHeaderSender(ProxyVersion(section.send_proxy_protocol.value))
