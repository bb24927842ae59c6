"""The status paths of the admin port: page, snapshot, event stream, and why clients waited.

    GET /               the status page; needs only the next two paths
    GET /status.json    a snapshot, at most a second old, or older if snapshots are expensive
    GET /events         snapshots as server-sent events, for few viewers at a time
    GET /why            ?user=NAME&client_id=ID, or ?ip=ADDRESS: a client's entries in the journal, the quotas that
                        apply to it now, and their latest changes. With &of=counter, for all clients of a counter.
                        Without user or client_id, for all clients with the other one; the quotas are those of the
                        latest client

These paths change nothing. They are not for other sites: a browser sends the origin of a request, and no response may
be read, framed or included elsewhere (docs/decisions/0016-seen.md). Making and sending snapshots takes at most 1.5
percent of a core, whatever the number of viewers.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from itertools import islice
from typing import Any, Final, Protocol

from aiohttp import web

from gateway.net.tls_acceptor import ANONYMOUS
from gateway.observability.status import Built, Status, waiting_json
from gateway.observability.throttle_journal import JournalClient, ThrottleJournal, Throttles, latest_of
from gateway.quota_admin.store.interface import HistoryEntry, StoreError
from gateway.quota_admin.store.quota_json import history_json
from gateway.server.admin_connections import AdminConnections
from gateway.server.page_headers import NOT_FOR_OTHER_SITES, page_headers
from quotas.entities import ATTRIBUTE_KEYS, FURTHER_RATE_KEYS, Family, QuotaEntity, QuotaKey
from quotas.ip_limits import normalise
from quotas.limits import CONNECTION_KEYS, Limits
from quotas.resolution import Match, TrackerKey, entity_of, match_of_tracker, matches_of_groups, resolve

MAX_VIEWERS: Final = 8
LEAST_INTERVAL_S: Final = 1.0
SHARE: Final = 0.015
"""The part of a core for making and sending snapshots."""

SEND_S_PER_BYTE: Final = 3e-9
SEND_S: Final = 10.0
"""How long a viewer may take to receive a snapshot."""

MAX_TOLD: Final = 200
_CHANGES_LOOKED_AT: Final = 200
_CHANGES_TOLD: Final = 10

_CLIENT_KEYS: Final = tuple(key for key in QuotaKey if key not in ATTRIBUTE_KEYS)
_OWN: Final = ("same-origin", "none")


class StatusFeed:
    """Makes snapshots on demand; all viewers get the same."""

    def __init__(self, build: Callable[[], Any]) -> None:
        """No snapshot is made yet.

        Args:
            build: makes a snapshot: `Status.build`.
        """
        self._build = build
        self._building: asyncio.Task[Built] | None = None
        self._latest: Built | None = None
        self._next_s = 0.0

    async def latest(self) -> Built:
        """The latest snapshot, or a new one if it is due."""
        if self._building is None:
            if self._latest is not None and time.monotonic() < self._next_s:
                return self._latest
            self._building = asyncio.create_task(self._make())
        return await asyncio.shield(self._building)

    async def after(self, seen: Built) -> Built:
        """Wait for the snapshot after this one."""
        while self._latest is seen:
            wait_s = self._next_s - time.monotonic()
            if wait_s <= 0:
                return await self.latest()
            await asyncio.sleep(wait_s)
        return await self.latest()

    async def _make(self) -> Built:
        try:
            built: Built = await self._build()
            self._latest = built
            self._next_s = time.monotonic() + max(LEAST_INTERVAL_S, built.spent_s / SHARE)
            return built
        finally:
            self._building = None

    def sent(self, size_bytes: int) -> None:
        """Count sent bytes: the next snapshot is delayed by their cost."""
        self._next_s += size_bytes * SEND_S_PER_BYTE / SHARE


class Merged(Protocol):
    """Snapshots and journals of all processes of a gateway."""

    async def build(self) -> Built:
        """A snapshot."""

    async def throttles(self, what: str, *values: Any) -> list[tuple[JournalClient, Throttles]]:
        """Entries of the journals of other processes; see `ThrottleJournal.entries`."""


class StatusRoutes:
    """See the module."""

    def __init__(
        self,
        status: Status,
        journal: ThrottleJournal,
        limits: Limits,
        history: Callable[[int], Awaitable[list[HistoryEntry]]],
        *,
        merged: Merged | None = None,
    ) -> None:
        """Nothing is served yet.

        Args:
            status: makes the snapshots.
            journal: why clients waited.
            limits: the quotas in force.
            history: the latest changes of quotas, up to a number, newest first.
            merged: snapshots and journals of all processes; None: this process is the only one.
        """
        self._history = history
        self._merged = merged
        self.feed = StatusFeed(status.build if merged is None else merged.build)
        self._journal = journal
        self._limits = limits
        self._viewers = 0
        self._stopping = False
        self._page = resources.files("gateway.server").joinpath("status_page.html").read_bytes()
        self._policy = _policy(self._page.decode())

    @property
    def viewers(self) -> int:
        """The number of viewers of the stream."""
        return self._viewers

    def add_to(
        self,
        router: web.UrlDispatcher,
        connections: AdminConnections,
        still_allowed: Callable[[web.Request], bool],
    ) -> None:
        """Add the status paths to the admin port.

        Args:
            router: of the admin port.
            connections: of the admin port.
            still_allowed: whether the key of a request that follows the stream is in force.
        """
        self._connections = connections
        self._still_allowed = still_allowed
        router.add_get("/", self._serve_page)
        router.add_get("/status.json", self._serve_status)
        router.add_get("/events", self._serve_events)
        router.add_get("/why", self._serve_why)

    def stop(self) -> None:
        """Send no more snapshots to viewers of the stream."""
        self._stopping = True

    async def _serve_page(self, request: web.Request) -> web.Response:
        # A link on another page may lead here; that page learns nothing by it.
        if request.headers.get("Sec-Fetch-Dest", "document") != "document":
            return _foreign()
        headers = page_headers(self._policy)
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=headers)

    async def _serve_status(self, request: web.Request) -> web.Response:
        if _is_foreign(request):
            return _foreign()
        built = await self.feed.latest()
        return web.Response(
            body=built.text, content_type="application/json", charset="utf-8", headers=NOT_FOR_OTHER_SITES
        )

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if _is_foreign(request):
            return _foreign()
        if self._viewers >= MAX_VIEWERS:
            return web.json_response(
                {"error": f"{MAX_VIEWERS} follow already; /status.json is always answered"},
                status=503,
                headers=NOT_FOR_OTHER_SITES,
            )
        self._viewers += 1
        response = web.StreamResponse(headers={**NOT_FOR_OTHER_SITES, "Content-Type": "text/event-stream"})
        try:
            built = await self.feed.latest()
            while not self._stopping and self._still_allowed(request):
                await self._send(request, response, b"data: " + built.text + b"\n\n")
                # Always the newest: a slow viewer skips snapshots.
                built = await self.feed.after(built)
        except ConnectionError:
            pass  # the viewer left, or took nothing for too long
        finally:
            self._viewers -= 1
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, data: bytes) -> None:
        until = asyncio.get_running_loop().time() + SEND_S
        with self._connections.waiting(request.protocol, until):
            if not response.prepared:
                await response.prepare(request)
            await response.write(data)
        self.feed.sent(len(data))

    async def _serve_why(self, request: web.Request) -> web.Response:
        if _is_foreign(request):
            return _foreign()
        query = request.query
        user, client_id, ip = query.get("user"), query.get("client_id"), query.get("ip", "")
        client = JournalClient(user or "", client_id or "")
        matches: dict[QuotaKey, Match] = {}
        if ip:
            try:
                client = JournalClient("", "", normalise(ip))
            except ValueError:
                return web.json_response(
                    {"error": "ip has to be an address"}, status=400, headers=NOT_FOR_OTHER_SITES
                )
            found = await self._found("of_address", client, client.ip)
        elif query.get("of") == "counter":
            key = TrackerKey(client.user, client.client_id)
            found = await self._found("of_counter", client, key, MAX_TOLD)
            matches = {quota: match_of_tracker(self._limits, quota, key) for quota in self._shown_keys()}
        else:
            if user is None or client_id is None:
                found = await self._found("of_clients", client, user, client_id, MAX_TOLD)
                client = found[-1][0] if found else client._replace(user=user or ANONYMOUS)
            else:
                found = await self._found("of", client, user, client_id)
            matches = {
                quota: resolve(self._limits, quota, client.user, client.client_id)
                for quota in self._shown_keys()
            }
        quotas = list(matches.items())
        if not ip and query.get("of") != "counter":
            quotas += [
                (quota, match)
                for quota in _CLIENT_KEYS
                for match in matches_of_groups(self._limits, quota, client.user, client.client_id)
            ]
        answer = {
            "user": client.user,
            "client_id": client.client_id,
            "ip": client.ip,
            "since_ms": self._journal.since_ms,
            "forgotten": self._journal.forgotten,
            "mode": self._limits.mode.value,
            "throttles": [waiting_json(*each) for each in found],
            "quotas": [_quota_json(quota, match) for quota, match in quotas],
            "changes": await self._changes([(quota, entity_of(match)) for quota, match in quotas]),
        }
        return web.json_response(answer, headers=NOT_FOR_OTHER_SITES)

    def _shown_keys(self) -> list[QuotaKey]:
        """Kafka's quota keys; of our own, those for APIs and connections for which a client quota exists."""
        limits = self._limits
        return [
            key
            for key in _CLIENT_KEYS
            if (key not in FURTHER_RATE_KEYS or limits.enabled(key))
            and (key not in CONNECTION_KEYS or Family.USER in limits.families(key))
        ]

    async def _found(
        self, what: str, client: JournalClient, *values: Any
    ) -> list[tuple[JournalClient, Throttles]]:
        found = self._journal.entries(what, client, *values)
        if self._merged is not None:
            found += await self._merged.throttles(what, client, *values)
            found.sort(key=lambda each: each[1].first_ms)
        if what == "of_clients":
            return latest_of(found, MAX_TOLD)
        return found[-MAX_TOLD:] if what == "of_counter" else found

    async def _changes(self, wanted: Sequence[tuple[QuotaKey, QuotaEntity | None]]) -> list[dict[str, Any]]:
        """The latest changes of these quotas, newest first; only recent changes of the history are searched."""
        try:
            latest = await self._history(_CHANGES_LOOKED_AT)
        except StoreError:
            return []
        entities = {(quota.value, entity) for quota, entity in wanted if entity is not None}
        mine = (entry for entry in latest if (entry.key, entry.entity) in entities)
        return [history_json(entry) for entry in islice(mine, _CHANGES_TOLD)]


def _quota_json(quota: QuotaKey, match: Match) -> dict[str, Any]:
    entity = entity_of(match)
    return {
        "quota": quota.value,
        "limit": match.limit,
        "rule": match.rule.value,
        "entity": None if entity is None else str(entity),
        "observe": match.observe,
        "burst_s": match.burst_s,
    }


def _is_foreign(request: web.Request) -> bool:
    """Whether a page of another site sent the request. Clients other than browsers do not send these headers."""
    return request.headers.get("Sec-Fetch-Site", "none") not in _OWN or "Origin" in request.headers


def _foreign() -> web.Response:
    return web.json_response({"error": "not for other sites"}, status=403, headers=NOT_FOR_OTHER_SITES)


def _policy(page: str) -> str:
    """The Content-Security-Policy: the page's own script and style, by hash, and requests to its own origin."""
    allowed = {
        name: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
            for text in re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        )
        for name, tag in (("script-src", "script"), ("style-src", "style"))
    }
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{name} {hashes}" for name, hashes in allowed.items()),
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )
