"""Asks the cluster regularly for its brokers, so that clients find every port open.

Clients' own Metadata responses have the same information. But discovery makes the gateway ready before the first
client connects, and notices brokers that have left. If the cluster requires authentication, discovery logs in.
Without credentials it learns nothing and reports that; the gateway then relies on clients' responses.

It also asks which APIs the brokers offer, uses no others, and reports what the gateway lacks (`needs.py`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from gateway.observability.events import CloseCause
from gateway.runtime.clock import NowMs
from gateway.upstream.connector import Connector
from gateway.upstream.login import Ask, BrokerLogin, LoginFailed, NoCredentials
from gateway.upstream.needs import Need, Offered, offered_text, offers, unmet
from gateway.upstream.own_topics import OwnTopics
from gateway.upstream.topology import ClusterMap
from gateway.usage.topic_ids import TopicIds
from protocol import codec
from protocol.api_keys import Api
from protocol.api_versions import offered_by_broker
from protocol.error_codes import ErrorCode
from protocol.errors import ProtocolError

CLIENT_ID: Final = "sluice-discovery"
_ANSWER_TIMEOUT_S: Final = 5.0
_RETRY_S: Final = 0.5
_NAMES_S: Final = 1.0
"""The interval between two requests for names of topics."""
_SOON_S: Final = 2.0
"""The shortest time from an answer to the next request for brokers."""
_ASKS_SOON: Final = 40
"""How often own topics that do not exist yet are requested again soon; after that, at the usual interval."""
_LARGEST_ANSWER: Final = 16 * 1024 * 1024
_LONGEST_ERROR: Final = 300
_NO_CLUSTER_ID: Final = (
    "a cluster id: Metadata has none. Without it: another cluster behind the same addresses is not noticed, and "
    "usage records do not name their fleet"
)
_WITHOUT_CONFIGS: Final = (
    "Without it: topics that clients create by Metadata cost mutation_quota.default_num_partitions"
)
_NO_RIGHT: Final = (
    f"the right to read brokers' settings (DESCRIBE_CONFIGS on the cluster). {_WITHOUT_CONFIGS}"
)
_NO_CONFIGS: Final = f"an answer to DescribeConfigs. {_WITHOUT_CONFIGS}"
_CONFIGS: Final = ("num.partitions", "auto.create.topics.enable", "queued.max.request.bytes")

_log = structlog.get_logger("gateway.discovery")


class _BrokerClient:
    """One short connection to a broker; an `UpstreamUser`."""

    endpoints = None

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._progress = asyncio.Event()
        self._lost = False

    @property
    def connected(self) -> bool:
        """Whether there was a connection."""
        return self._transport is not None

    def upstream_connected(self, transport: asyncio.Transport) -> None:
        """See `UpstreamUser`."""
        self._transport = transport

    def upstream_failed(self, cause: CloseCause) -> None:
        """See `UpstreamUser`; the attempt to connect has the reason."""

    def upstream_received(self, data: bytes) -> None:
        """See `UpstreamUser`."""
        self._received += data
        self._progress.set()

    def upstream_lost(self) -> None:
        """See `UpstreamUser`."""
        self._lost = True
        self._progress.set()

    def upstream_writable(self, writable: bool) -> None:
        """See `UpstreamUser`; requests are small."""

    async def ask(self, question: bytes) -> bytes:
        """Send a request frame and return the whole reply frame.

        Raises:
            ConnectionError: the broker closed the connection, or sent an invalid reply.
        """
        assert self._transport is not None
        self._transport.write(question)
        while True:
            if len(self._received) >= 4:
                size = int.from_bytes(self._received[:4], "big", signed=True)
                if not 4 <= size <= _LARGEST_ANSWER:
                    raise ConnectionError(f"reply of {size} bytes")
                if len(self._received) >= size + 4:
                    frame = bytes(self._received[: size + 4])
                    del self._received[: size + 4]
                    if frame[4:8] != question[8:12]:
                        raise ConnectionError("a reply to another question")
                    return frame
            if self._lost:
                raise ConnectionError(
                    "a broker closed the connection before it answered; does security_protocol fit its listener?"
                )
            self._progress.clear()
            await self._progress.wait()

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.abort()


class UpstreamUnusable(ConnectionError):
    """The brokers answer, but lack an API that the gateway needs."""


class Discovery:
    """The task that keeps a `ClusterMap` fresh.

    Attributes:
        reached: whether the last attempt got an answer.
        trouble: why the last attempt got no answer, in a few words with the last error, for people.
        lacks: what the brokers lack, a sentence each; logged when it is new.
    """

    def __init__(
        self,
        cluster: ClusterMap,
        connector: Connector,
        now_ms: NowMs,
        *,
        upstream: str,
        bootstrap: str,
        refresh_ms: int,
        on_change: Callable[[Sequence[int]], None],
        login: BrokerLogin | None = None,
        wants_login: bool = False,
        own_topics: OwnTopics | None = None,
        topic_ids: TopicIds | None = None,
        brokers_take: Callable[[int], None] | None = None,
        needs: Sequence[Need] = (),
    ) -> None:
        """Make it; nothing is asked before `run`.

        Args:
            cluster: gets the brokers.
            connector: opens connections.
            now_ms: the clock.
            upstream, bootstrap: its name and its brokers, for the log.
            refresh_ms: from an answer to the next request.
            on_change: called after each answer with the ids of brokers that are gone for good.
            login: the gateway's credentials; None: it has none.
            wants_login: the brokers require authentication, so without a login they are not asked at all.
            own_topics: receives the ids of the gateway's own topics; None: no ids are requested.
            topic_ids: receives the names of topics whose ids are in use; None: no names are requested.
            brokers_take: receives the brokers' queued.max.request.bytes.
            needs: the APIs that the brokers should have.
        """
        self.reached = False
        self.trouble = "not reached yet"
        self.lacks: tuple[str, ...] = ()
        self._upstream = upstream
        self._bootstrap = bootstrap
        self._needs = needs
        self._offered: Offered | None = None  # None: the brokers did not say
        self._login = login
        self._wants_login = wants_login
        self._own_topics = own_topics or OwnTopics()
        self._topic_ids = topic_ids
        self._brokers_take = brokers_take
        self._asks_soon = _ASKS_SOON
        self._cluster = cluster
        self._connector = connector
        self._now_ms = now_ms
        self._refresh_ms = refresh_ms
        self._on_change = on_change
        self._wanted = False

    def look_soon(self) -> None:
        """Ask soon, because a client named an unknown broker, which may be new."""
        self._wanted = True

    async def run(self) -> None:
        """Ask until cancelled; while the upstream is down, retry soon, and log it once."""
        complained = False
        if self._wants_login and self._login is None:
            self.trouble = "wants a login, and has no sasl section"
            _log.warning(
                "upstream_login_missing",
                upstream=self._upstream,
                detail="clients are relayed; the gateway will not be ready",
            )
            return
        while True:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S * 2):
                    await self._ask_once()
            except (OSError, ProtocolError, TimeoutError) as exc:
                self.reached = False
                error = shown(str(exc)) or "no answer in time"
                self.trouble = _trouble(exc, error)
                if not complained:
                    _log.warning(
                        "upstream_unreachable",
                        upstream=self._upstream,
                        bootstrap=self._bootstrap,
                        error=error,
                    )
                    complained = True
                await asyncio.sleep(_RETRY_S)
                continue
            if not self.reached:
                _log.info(
                    "cluster_discovered",
                    cluster_id=self._cluster.cluster_id,
                    brokers=self._cluster.broker_ids,
                )
            self.reached = True
            complained = False
            wait_s = self._refresh_ms / 1000
            if not self._own_topics.all_known and self._asks_soon:
                self._asks_soon -= 1  # they are being created
                wait_s = min(wait_s, _RETRY_S)
            await self._rest(wait_s)

    async def _rest(self, wait_s: float) -> None:
        """Wait until the next request for brokers; meanwhile request names of topics. `look_soon` ends the wait."""
        ids, least_s = self._topic_ids, wait_s - _SOON_S
        while wait_s > 0 and not (self._wanted and wait_s <= least_s):
            await asyncio.sleep(min(wait_s, _NAMES_S))
            wait_s -= _NAMES_S
            if ids is not None and (wanted := ids.to_ask):
                await self._ask_names(ids, wanted)
        self._wanted = False

    async def _ask_names(self, ids: TopicIds, wanted: Sequence[bytes]) -> None:
        if not self.may_ask(codec.METADATA_BY_ID):
            return
        try:
            frame = await self.ask(None, codec.metadata_by_id_request(wanted, client_id=CLIENT_ID))
            topics = codec.read_metadata(frame, codec.METADATA_BY_ID).topics
        except (OSError, ProtocolError, TimeoutError):
            return  # requested again later
        ids.asked(wanted)
        for topic in topics:
            if topic.error_code == ErrorCode.NONE and topic.name:
                ids.learn(topic.topic_id, topic.name)

    async def _ask_once(self) -> None:
        facts = await self._ask_cluster()
        if facts.cluster_id is not None:
            self._cluster.answered_cluster_id = facts.cluster_id
        if not self._cluster.accepts_cluster(facts.cluster_id):
            raise ConnectionError(f"cluster id {facts.cluster_id} instead of {self._cluster.cluster_id}")
        self._cluster.learn_all(facts.brokers, now_ms=self._now_ms())
        # A broker that restarts is missing for a while; its port stays for some rounds.
        gone = self._cluster.forget_missing(grace_ms=10 * self._refresh_ms, now_ms=self._now_ms())
        self._on_change(gone)
        lacks = (
            []
            if self._offered is None
            else [_lack(need, self._offered) for need in unmet(self._needs, self._offered)]
        )
        if facts.cluster_id is None:
            lacks.append(_NO_CLUSTER_ID)
        if facts.brokers and self.may_ask(codec.DESCRIBE_CONFIGS):
            lacks += await self._ask_configs(facts.brokers[0].broker_id)
        self._note(lacks)
        if self._own_topics and self.may_ask(codec.METADATA_WITH_IDS):
            await self._ask_own_topics()

    async def _ask_cluster(self) -> codec.ClusterFacts:
        """The brokers, and the APIs that one of them offers; both from the same broker, on one connection.

        Raises:
            UpstreamUnusable: the broker lacks a required API.
        """
        async with self._conversation(None) as ask:
            self._offered = _read_offered(await ask(codec.api_versions_request(client_id=CLIENT_ID)))
            if self._offered is not None:
                for need in unmet(self._needs, self._offered):
                    if need.required:
                        raise UpstreamUnusable(_unusable(need, self._offered))
            question = codec.metadata_by_name_request((), client_id=CLIENT_ID)
            return codec.read_metadata(await ask(question), codec.METADATA_BY_NAME)

    def may_ask(self, api: Api) -> bool:
        """Whether the brokers offer this version; otherwise they would close the connection, or never answer."""
        return self._offered is None or offers(self._offered, api.key, api.version)

    def _note(self, lacks: Sequence[str]) -> None:
        for lack in lacks:
            if lack not in self.lacks:
                _log.warning("upstream_lacks", detail=lack)
        self.lacks = tuple(lacks)

    async def _ask_own_topics(self) -> None:
        question = codec.metadata_by_name_request(
            sorted(self._own_topics.names), client_id=CLIENT_ID, api=codec.METADATA_WITH_IDS
        )
        try:
            facts = codec.read_metadata(await self.ask(None, question), codec.METADATA_WITH_IDS)
        except (OSError, ProtocolError):
            return  # too old for ids, and then Produce does not name topics by id
        for topic in facts.topics:
            self._own_topics.learn(topic)

    async def _ask_configs(self, broker_id: int) -> list[str]:
        """Read a broker's settings; returns what is missing for that. Then the configured defaults stay."""
        question = codec.broker_configs_request(broker_id, _CONFIGS, client_id=CLIENT_ID)
        try:
            configs = codec.read_broker_configs(await self.ask(broker_id, question))
        except (OSError, ProtocolError):
            return [_NO_CONFIGS]
        partitions = configs.get("num.partitions", "")
        if partitions.isdigit() and int(partitions) > 0:
            self._cluster.default_num_partitions = int(partitions)
        if "auto.create.topics.enable" in configs:
            self._cluster.auto_create_topics = configs["auto.create.topics.enable"] == "true"
        queued = configs.get("queued.max.request.bytes", "")
        if self._brokers_take is not None and queued.removeprefix("-").isdigit():
            self._brokers_take(int(queued))
        return [] if configs else [_NO_RIGHT]

    async def ask(self, broker_id: int | None, question: bytes) -> bytes:
        """Send a request on a new connection with the gateway's login; returns the whole reply frame.

        Args:
            broker_id: the broker; None: any broker.
            question: a request frame.

        Raises:
            OSError: the broker is not reachable, or refuses the login.
            TimeoutError: the broker has not answered in time.
        """
        async with self._conversation(broker_id) as ask:
            return await ask(question)

    @asynccontextmanager
    async def _conversation(self, broker_id: int | None) -> AsyncIterator[Ask]:
        """A connection for several requests, which share one timeout."""
        client = _BrokerClient()
        try:
            attempt = await self._connector.connect(client, broker_id)
            if not client.connected:
                raise ConnectionError(attempt.reason)
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                if self._login is not None:
                    await self._login.log_in(client.ask)
                yield client.ask
        finally:
            client.close()


def shown(error: str) -> str:
    """An error as one printable line: parts of it may come from the broker."""
    text = error[:_LONGEST_ERROR]
    return text if text.isprintable() else json.dumps(text)


def _trouble(exc: Exception, error: str) -> str:
    if isinstance(exc, UpstreamUnusable):
        return error
    if isinstance(exc, NoCredentials):
        return f"can't be logged in to: {error}"
    return f"refuses the login: {error}" if isinstance(exc, LoginFailed) else f"not reached: {error}"


def _read_offered(frame: bytes) -> Offered | None:
    try:
        return offered_by_broker(frame)
    except ProtocolError:
        return None  # then any API may be used


def _unusable(need: Need, offered: Offered) -> str:
    return f"offers {offered_text(offered, need.api)} of {need.name}, and version {need.version} is needed"


def _lack(need: Need, offered: Offered) -> str:
    return (
        f"{need.name} version {need.version}: the brokers offer {offered_text(offered, need.api)}. Without it: "
        f"{need.without} ({need.where})"
    )
