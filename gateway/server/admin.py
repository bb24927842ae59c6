"""The admin port: /metrics for Prometheus, /healthz and /readyz for supervisors, enforcement and reload.

    GET  /enforcement   {"mode": "enforce", "configured": "enforce"}
    PUT  /enforcement   {"mode": "observe"}: the kill switch
    POST /reload        {}: read the configuration file again, as SIGHUP does; 422 when it is not valid

/quotas, which is in `gateway.server.quota_routes`, and what only looks, in `gateway.server.status_routes`.

There is no password. What changes something is only taken from this machine, unless the configuration says otherwise,
and never from a web page: no request with an Origin header, which browsers put into every request of this kind, and
only bodies declared as JSON, which a form on a foreign page can't send. Nothing is answered to a request under a host
name that is not ours: a foreign page whose name leads here could read it (DNS rebinding, hazard K22).

aiohttp serves it, with its own bounds on header and request sizes; `gateway.server.admin_connections` accepts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gateway.server.admin_connections import IDLE_S, AdminConnections
from gateway.server.operations import Operations
from gateway.server.quota_routes import QuotaRoutes
from gateway.server.status_routes import StatusRoutes
from quotas.limits import Enforcement

_MAX_BODY_BYTES: Final = 16 * 1024

_JSON: Final = "application/json"

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
ChangingHandler: TypeAlias = Callable[[web.Request, str], Awaitable[web.StreamResponse]]


class AdminServer:
    """A small HTTP server on the gateway's loop."""

    def __init__(
        self,
        metrics: Collector,
        operations: Operations,
        *,
        ready: Callable[[], str | None],
        prepare: Callable[[], Awaitable[None]] | None = None,
        remark: Callable[[], str | None] | None = None,
        remote_changes: bool = False,
        allowed_hosts: Collection[str] = (),
        quotas: QuotaRoutes | None = None,
        status: StatusRoutes | None = None,
    ) -> None:
        """Make it; nothing is bound yet.

        Args:
            metrics: shown at /metrics.
            operations: what can be changed.
            prepare: awaited before each collection of the metrics; None: nothing is.
            ready: why clients cannot be served right now, None when they can.
            remark: what /readyz says besides, about a gateway that serves in another way than it should.
            remote_changes: whether other machines may change something.
            allowed_hosts: names it is asked under, in lower case, beside localhost and that it is bound to.
            quotas: serves /quotas; None: there is no such path.
            status: serves the page and what it needs; None: there is none.
        """
        self._metrics = metrics
        self._operations = operations
        self._ready = ready
        self._remark = remark
        self._prepare = prepare
        self._remote_changes = remote_changes
        self._allowed_hosts = {"localhost", *allowed_hosts}
        self._quotas = quotas
        self._status = status
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
        self._allowed_hosts.add(host.lower())
        application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._watched])
        # A body that unpacks to more than was sent would have no bound.
        self._runner = web.AppRunner(
            application, access_log=None, keepalive_timeout=IDLE_S, shutdown_timeout=1, auto_decompress=False
        )
        connections = self._connections = AdminConnections(self._handler)
        router = application.router
        router.add_get("/metrics", self._serve_metrics)
        router.add_get("/healthz", self._serve_health)
        router.add_get("/readyz", self._serve_readiness)
        router.add_get("/enforcement", self._serve_enforcement)
        router.add_put("/enforcement", self._guarded(self._set_enforcement))
        router.add_post("/reload", self._guarded(self._reload))
        if self._quotas is not None:
            self._quotas.add_to(router, connections, self._changing)
        if self._status is not None:
            self._status.add_to(router, connections)
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
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @web.middleware
    async def _watched(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every request, under a name of ours; its connection stays while it is worked on."""
        named = request.headers.get("Host")
        if named is not None and not self._ours(named):
            return _refusal(421, "not under this host name; admin.allowed_hosts has those that are answered")
        with self.connections.working(request.protocol):
            return await handler(request)

    def _ours(self, named: str) -> bool:
        host = host_of(named)
        return is_address(host) or host.lower() in self._allowed_hosts

    def _handler(self) -> RequestHandler:
        assert self._runner is not None
        assert self._runner.server is not None
        return self._runner.server()

    @property
    def connections(self) -> AdminConnections:
        """Of the port, which is bound."""
        assert self._connections is not None
        return self._connections

    # -- looking ---------------------------------------------------------------------------------------------

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        # However many ask at once, one text answers them all.
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.create_task(self._render())
        body = await asyncio.shield(self._rendering)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _render(self) -> bytes:
        if self._prepare is not None:
            await self._prepare()
        return await render(self._metrics)

    async def _serve_health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _serve_readiness(self, _request: web.Request) -> web.Response:
        reason = self._ready()
        remark = self._remark() if self._remark is not None else None
        lines = [reason or "ready", *([remark] if remark is not None else [])]
        return web.Response(text="\n".join(lines) + "\n", status=503 if reason else 200)

    async def _serve_enforcement(self, _request: web.Request) -> web.Response:
        configured = self._operations.config.enforcement.mode
        return web.json_response({"mode": self._operations.mode, "configured": configured})

    # -- changing --------------------------------------------------------------------------------------------

    def _changing(self, handle: ChangingHandler, content_type: str = _JSON) -> Handler:
        """A handler of requests that change something, for those that may; it gets the caller's address too."""

        async def changing(request: web.Request) -> web.StreamResponse:
            if "Origin" in request.headers:
                return _refusal(403, "not from a web page")
            if not self._remote_changes and not is_this_machine(request.remote):
                return _refusal(403, "only from this machine, since admin.remote_changes is false")
            if request.content_type != content_type:
                return _refusal(415, f"the body has to be {content_type}")
            return await handle(request, f"admin port, {request.remote}")

        return changing

    def _guarded(self, handle: Callable[[Any, str], Awaitable[web.Response]]) -> Handler:
        """The same, for a small body in JSON."""

        async def guarded(request: web.Request, caller: str) -> web.StreamResponse:
            with self.connections.waiting(request.protocol, self.connections.deadline()):
                text = await request.read()
            try:
                body = json.loads(text)
            except (ValueError, RecursionError):
                return _refusal(400, "the body is not JSON")
            return await handle(body, caller)

        return self._changing(guarded)

    async def _set_enforcement(self, body: Any, by: str) -> web.Response:
        wanted = body.get("mode") if isinstance(body, dict) else None
        if wanted not in list(Enforcement):
            return _refusal(400, f"mode has to be one of {', '.join(Enforcement)}")
        before = self._operations.mode
        await self._operations.switch(Enforcement(wanted), by=by)
        return web.json_response({"mode": self._operations.mode, "before": before})

    async def _reload(self, _body: Any, by: str) -> web.Response:
        report = await self._operations.reload(by=by)
        status = 422 if report.faults else 200
        return web.json_response(asdict(report), status=status)


def is_this_machine(address: str | None) -> bool:
    """Whether a peer's address is a loopback address, IPv4 inside IPv6 included."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def host_of(named: str) -> str:
    """The host in the value of a Host header, without port and brackets."""
    if named.startswith("["):
        return named[1:].partition("]")[0]
    return named.partition(":")[0].rstrip(".")


def is_address(host: str) -> bool:
    """Whether this is an address and no name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _refusal(status: int, reason: str) -> web.Response:
    return web.json_response({"error": reason}, status=status)


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
