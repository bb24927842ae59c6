"""The admin port: /metrics for Prometheus, /healthz and /readyz for supervisors, enforcement and reload.

    GET  /enforcement   {"mode": "enforce", "configured": "enforce"}
    PUT  /enforcement   {"mode": "observe"}: the kill switch
    GET  /shed          {"tiers": [{"tier": 3, "percent": 20, "seconds_left": 59.5, "by": "ops"}]}
    PUT  /shed          {"tier": 3, "percent": 20, "seconds": 60}: set a brake; without percent, end it
    GET  /groups        {"groups": [{"name": "team-a", "users": ["alice"]}]}: of [groups_file]
    PUT  /groups        {"group": "team-a", "add": {"users": ["bob"]}}: changes that file, and reloads
    POST /reload        {}: read the configuration file again, as SIGHUP does; 422 when it is not valid

`gateway.server.quota_routes` serves /quotas, and `gateway.server.status_routes` the read-only paths.

`gateway.server.admin_access` decides which callers may do what. A web page can never change anything. Browsers put an
Origin header into each such request, and requests with one are refused. Bodies must be declared as JSON, which a form
on a foreign page cannot do.

aiohttp serves the port and bounds the sizes of headers and requests; `gateway.server.admin_connections` accepts.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Middleware
from aiohttp.web_protocol import RequestHandler
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gateway.runtime.clock import loop_clock
from gateway.server.admin_access import answer
from gateway.server.admin_connections import IDLE_S, AdminConnections
from gateway.server.admin_tls import AdminTls
from gateway.server.operations import GroupsNotChanged, Operations, ReloadReport
from gateway.server.quota_routes import Changing
from gateway.server.status_routes import StatusRoutes
from quotas import groups_text
from quotas.groups_file import MEMBERS, Team
from quotas.lending import MOST_BRAKE_S, TIERS, Brake
from quotas.limits import Enforcement

_MAX_BODY_BYTES: Final = 16 * 1024

_JSON: Final = "application/json"

LATE_S: Final = 1.0
"""How long the answer to one of too many requests without a valid key is delayed."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
ChangingHandler: TypeAlias = Callable[[web.Request, str], Awaitable[web.StreamResponse]]
RenderMetrics: TypeAlias = Callable[[], Awaitable[bytes]]


class Access(Protocol):
    """Decides which requests are allowed: see `AdminAccess`."""

    def check_routes(self, router: web.UrlDispatcher) -> None:
        """See `AdminAccess.check_routes`."""

    def refusal(self, request: web.Request) -> tuple[web.Response, bool] | None:
        """See `AdminAccess.refusal`."""

    def caller(self, request: web.Request) -> str:
        """See `AdminAccess.caller`."""

    def still_allows(self, request: web.Request) -> bool:
        """See `AdminAccess.still_allows`."""


class Reloads(Protocol):
    """Operations that can only reload: a gateway with several clusters has no enforcement mode of its own."""

    async def reload(self, *, by: str) -> ReloadReport:
        """See `Operations.reload`."""


class ChangingRoutes(Protocol):
    """Paths that include changing ones."""

    def add_to(self, router: web.UrlDispatcher, connections: AdminConnections, changing: Changing) -> None:
        """See `QuotaRoutes.add_to`."""


class AdminServer:
    """A small HTTP server on the gateway's loop."""

    def __init__(
        self,
        metrics: Collector | RenderMetrics,
        operations: Operations | Reloads,
        *,
        ready: Callable[[], str | None],
        prepare: Callable[[], Awaitable[None]] | None = None,
        remark: Callable[[], str | None] | None = None,
        access: Access,
        tls: AdminTls | None = None,
        quotas: ChangingRoutes | None = None,
        status: StatusRoutes | None = None,
        first: Middleware | None = None,
    ) -> None:
        """Make it; nothing is bound yet.

        Args:
            metrics: the collector for /metrics, or a function that makes the text.
            operations: reload, enforcement, brakes and groups. With `Reloads` there is only /reload.
            prepare: awaited before each collection of the metrics; None: no preparation.
            ready: why clients cannot be served right now, None when they can.
            remark: an additional line of /readyz, such as isolation from the fleet.
            access: decides which requests are allowed.
            tls: the handshakes; None: plain HTTP.
            quotas: serves /quotas; None: there is no such path.
            status: serves the status page and its data; None: there is no status page.
            first: middleware for each allowed request; None: there is none.
        """
        self._metrics: RenderMetrics = metrics if callable(metrics) else partial(render, metrics)
        self._operations = operations
        self._ready = ready
        self._remark = remark
        self._prepare = prepare
        self._access = access
        self._tls = tls
        self._quotas = quotas
        self._status = status
        self._middlewares: list[Middleware] = [self._watched, *([] if first is None else [first])]
        self._runner: web.AppRunner | None = None
        self._connections: AdminConnections | None = None
        self._rendering: asyncio.Task[bytes] | None = None
        self.port = 0

    async def start(self, host: str, port: int, inherited: Sequence[socket.socket] = ()) -> None:
        """Bind and serve.

        Args:
            host, port, inherited: see `AdminConnections.listen`.

        Raises:
            OSError: the port cannot be bound.
        """
        application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=self._middlewares)
        # Compressed bodies are not unpacked: their size would have no bound.
        self._runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=IDLE_S, shutdown_timeout=1, auto_decompress=False
        )
        connections = self._connections = AdminConnections(self._handler, tls=self._tls)
        router = application.router
        router.add_get("/metrics", self._serve_metrics)
        router.add_get("/healthz", self._serve_health)
        router.add_get("/readyz", self._serve_readiness)
        if isinstance(self._operations, Operations):
            router.add_get("/enforcement", partial(self._serve_enforcement, self._operations))
            router.add_put("/enforcement", self._guarded(partial(self._set_enforcement, self._operations)))
            router.add_get("/shed", partial(self._serve_brakes, self._operations))
            router.add_put("/shed", self._guarded(partial(self._set_brake, self._operations)))
            router.add_get("/groups", partial(self._serve_groups, self._operations))
            router.add_put("/groups", self._guarded(partial(self._change_group, self._operations)))
        router.add_post("/reload", self._guarded(self._reload))
        if self._quotas is not None:
            self._quotas.add_to(router, connections, self._changing)
        if self._status is not None:
            self._status.add_to(router, connections, self._access.still_allows)
        self._access.check_routes(router)
        await self._runner.setup()
        try:
            self.port = await connections.listen(host, port, inherited)
        except OSError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._status is not None:
            self._status.stop()
        if self._connections is not None:
            self._connections.stop()
        if self._tls is not None:
            self._tls.stop()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse or serve a request; its connection is not closed meanwhile."""
        with self.connections.working(request.protocol):
            refused = self._access.refusal(request)
            if refused is None:
                try:
                    return await handler(request)
                except ConnectionError:
                    if request.transport is not None:
                        raise
                    return answer(400, "the caller has left")  # not read; aiohttp would log a traceback
            response, late = refused
            if late:
                with self.connections.waiting(request.protocol, self.connections.deadline()):
                    await asyncio.sleep(LATE_S)
            return response

    def _handler(self) -> RequestHandler:
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    @property
    def connections(self) -> AdminConnections:
        """The connections of the port, which must be bound."""
        assert self._connections is not None
        return self._connections

    # -- looking ---------------------------------------------------------------------------------------------

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        # Simultaneous requests share one text.
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.create_task(self._render())
        body = await asyncio.shield(self._rendering)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _render(self) -> bytes:
        if self._prepare is not None:
            await self._prepare()
        return await self._metrics()

    async def _serve_health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _serve_readiness(self, _request: web.Request) -> web.Response:
        reason = self._ready()
        remark = self._remark() if self._remark is not None else None
        lines = [reason or "ready", *([remark] if remark is not None else [])]
        return web.Response(text="\n".join(lines) + "\n", status=503 if reason else 200)

    async def _serve_enforcement(self, operations: Operations, _request: web.Request) -> web.Response:
        configured = operations.config.enforcement.mode
        return web.json_response({"mode": operations.mode, "configured": configured})

    # -- changing --------------------------------------------------------------------------------------------

    def _changing(self, handle: ChangingHandler, content_type: str = _JSON) -> Handler:
        """Wrap a handler that changes something: requests of web pages are refused, and it also gets the caller."""

        async def changing(request: web.Request) -> web.StreamResponse:
            if "Origin" in request.headers:
                return answer(403, "not from a web page")
            if request.content_type != content_type:
                return answer(415, f"the body has to be {content_type}")
            return await handle(request, self._access.caller(request))

        return changing

    def _guarded(self, handle: Callable[[Any, str], Awaitable[web.Response]]) -> Handler:
        """Wrap a handler in the same way, for a small JSON body."""

        async def guarded(request: web.Request, caller: str) -> web.StreamResponse:
            with self.connections.waiting(request.protocol, self.connections.deadline()):
                text = await request.read()
            try:
                body = json.loads(text)
            except (ValueError, RecursionError):
                return answer(400, "the body is not JSON")
            return await handle(body, caller)

        return self._changing(guarded)

    async def _set_enforcement(self, operations: Operations, body: Any, by: str) -> web.Response:
        wanted = body.get("mode") if isinstance(body, dict) else None
        if wanted not in list(Enforcement):
            return answer(400, f"mode has to be one of {', '.join(Enforcement)}")
        before = operations.mode
        await operations.switch(Enforcement(wanted), by=by)
        return web.json_response({"mode": operations.mode, "before": before})

    async def _serve_brakes(self, operations: Operations, _request: web.Request | None) -> web.Response:
        now_ms = loop_clock(asyncio.get_running_loop())()
        tiers = [
            {
                "tier": tier,
                "percent": 100 * brake.part,
                # Not rounded: a client computes the end from it, which must be the same each time.
                "seconds_left": (brake.until_ms - now_ms) / 1000,
                "by": brake.by,
            }
            for tier, brake in sorted(operations.brakes.items())
            if brake.until_ms > now_ms
        ]
        return web.json_response({"tiers": tiers, "fault": operations.cannot_brake})

    async def _set_brake(self, operations: Operations, body: Any, by: str) -> web.Response:
        wanted = body if isinstance(body, dict) else {}
        if unknown := wanted.keys() - {"tier", "percent", "seconds"}:
            return answer(400, f"no such key: {min(unknown)}")  # else a misspelt percent would end the brake
        tier, percent, seconds = (wanted.get(name) for name in ("tier", "percent", "seconds"))
        if type(tier) is not int or not 0 <= tier < TIERS:
            return answer(400, f"tier has to be a whole number from 0 to {TIERS - 1}")
        now_ms = loop_clock(asyncio.get_running_loop())()
        brake = None
        if percent is not None:
            if (fault := operations.cannot_brake) is not None:
                return answer(409, fault)
            if type(percent) not in (int, float) or not 0 < percent <= 100:
                return answer(400, "percent has to be a number above 0, at most 100")
            if type(seconds) is not int or not 1 <= seconds <= MOST_BRAKE_S:
                return answer(400, f"seconds has to be a whole number from 1 to {MOST_BRAKE_S}")
            brake = Brake(percent / 100, now_ms + seconds * 1000, by)
        if (fault := await operations.brake(tier, brake, by=by, now_ms=now_ms)) is not None:
            return answer(503, fault)
        return await self._serve_brakes(operations, None)

    async def _serve_groups(self, operations: Operations, _request: web.Request | None) -> web.Response:
        try:
            teams = await operations.groups()
        except GroupsNotChanged as exc:
            return answer(409, str(exc))
        return web.json_response({"groups": [_team(each) for each in teams]})

    async def _change_group(self, operations: Operations, body: Any, by: str) -> web.Response:
        wanted = body if isinstance(body, dict) else {}
        if unknown := wanted.keys() - {"group", "add", "remove", "delete"}:
            return answer(400, f"no such key: {min(unknown)}")
        name, delete = wanted.get("group"), wanted.get("delete", False)
        add, remove = wanted.get("add", {}), wanted.get("remove", {})
        if not isinstance(name, str) or not name:
            return answer(400, "group has to be a name")
        if not (_are_members(add) and _are_members(remove)):
            return answer(400, f"add and remove have to be lists of names by {', '.join(MEMBERS)}")
        if type(delete) is not bool or delete == bool(add or remove):
            return answer(400, "give members to add or to remove, or delete: true")
        change = partial(groups_text.without, name=name)
        if not delete:
            change = partial(groups_text.changed, name=name, add=add, remove=remove)
        try:
            report = await operations.change_groups(change, by=by)
        except GroupsNotChanged as exc:
            return answer(422 if exc.invalid else 409, str(exc))
        return web.json_response(asdict(report))

    async def _reload(self, _body: Any, by: str) -> web.Response:
        report = await self._operations.reload(by=by)
        status = 422 if report.faults else 200
        return web.json_response(asdict(report), status=status)


def _are_members(found: Any) -> bool:
    return isinstance(found, dict) and all(
        key in MEMBERS and isinstance(names, list) and all(isinstance(name, str) and name for name in names)
        for key, names in found.items()
    )


def _team(team: Team) -> dict[str, Any]:
    """A group and its settings, as in the file."""
    found = {
        key: value for key, value in asdict(team).items() if key != "group" and value not in ("", None, ())
    }
    return {**{key: value for key, value in asdict(team.group).items() if value}, **found}


class _One(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


async def render(metrics: Collector) -> bytes:
    """The exposition text; the loop does other work after each family."""
    parts = []
    for family in metrics.collect():
        parts.append(generate_latest(_One(family)))
        await asyncio.sleep(0)
    return b"".join(parts)
