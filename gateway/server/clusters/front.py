"""The admin port of a gateway with several clusters: passes requests on to the cluster that they name. [io]

    GET  /                        an index of the clusters
    GET  /status.json             the same as JSON
    GET  /metrics                 of all clusters; each series has the label `cluster`
    GET  /readyz                  see `Front.why_not_ready`
    POST /reload                  all clusters
    ANY  /clusters/NAME/PATH      PATH of the admin port of this cluster
    ANY  /PATH?cluster=NAME       the same
    ANY  /PATH                    an error with the names of the clusters

A cluster answers by its own rules; the parent sends it the caller's address. A request that changes something must be
allowed by the parent too.
"""

from __future__ import annotations

import asyncio
import html
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.client_proto import ResponseHandler
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from yarl import URL

from gateway.server.admin import Access, Handler
from gateway.server.admin_access import ROLES, answer, route_of
from gateway.server.admin_connections import MAX_CONNECTIONS, AdminConnections
from gateway.server.clusters import CALLER
from gateway.server.clusters.label import LABEL, labelled
from gateway.server.clusters.process import ClusterProcess
from gateway.server.page_headers import page_headers
from gateway.server.quota_routes import Changing

ASK_S: Final = 2.0
"""How long a cluster may take to report whether it is ready."""
METRICS_S: Final = 5.0
"""How long a cluster may take to send its metrics: less than the 10 s that Prometheus waits for all of them."""
ANSWER_S: Final = 90.0
"""How long a cluster may take for the next bytes of a response: an import of many quotas takes a while."""
GRACE_S: Final = 60.0
"""So long after its start, a cluster that is not ready keeps the whole gateway from being ready."""

_STREAM: Final = "/events"
_PIECE_BYTES: Final = 64 * 1024
_OF_ONE: Final = ("why", "events", "enforcement", "quotas", "quotas/history", "quotas/import")
_NOT_PASSED_ON: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "expect",
        "content-length",
        CALLER.lower(),
    }
)
_PAGE_HEADERS: Final = page_headers(
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Front:
    """See the module.

    Attributes:
        draining: the gateway is stopping.
    """

    def __init__(
        self,
        clusters: Mapping[str, ClusterProcess],
        access: Access,
        own: Callable[[], Iterable[Metric]] = lambda: (),
    ) -> None:
        """Nothing is served yet; needs the running loop.

        Args:
            clusters: by name; may change.
            access: decides which requests are allowed.
            own: metrics of the parent.
        """
        self._access = access
        self._own = own
        self.draining = False
        self._clusters = clusters
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._under_way: dict[str, list[bool]] = {}  # by cluster: for each request, whether it is a stream
        self._connections: AdminConnections | None = None
        self._changing: Changing | None = None

    def add_to(self, router: web.UrlDispatcher, connections: AdminConnections, changing: Changing) -> None:
        """Add the paths; see `QuotaRoutes.add_to`."""
        self._connections, self._changing = connections, changing
        router.add_get("/", self._serve_index)
        router.add_get("/status.json", self._serve_status)
        router.add_get("/clusters/{name}", self._to_directory)
        router.add_route("*", "/clusters/{name}/{path:.*}", self._serve_cluster)
        router.add_route("*", "/{path:.*}", self._serve_unnamed)

    @web.middleware
    async def for_one(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass a request with `cluster` in its query to that cluster, even if this port has the same path."""
        if "cluster" not in request.query:
            return await handler(request)
        if "name" in request.match_info:
            return answer(400, "the path names a cluster: leave ?cluster=NAME out")
        return await self._serve_unnamed(request)

    async def stop(self) -> None:
        """Close the connections to the clusters."""
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    async def forget(self, name: str) -> None:
        """Close the connections to a removed cluster."""
        if (session := self._sessions.pop(name, None)) is not None:
            await session.close()

    # -- of all clusters -------------------------------------------------------------------------------------

    def why_not_ready(self) -> str | None:
        """None: at least one cluster is ready, and each other one has had `GRACE_S` since its start."""
        if self.draining:
            return "draining"
        now = asyncio.get_running_loop().time()
        away = self._away_now()
        counted = [each for each in self._clusters.values() if not each.removed]
        if any(now - each.since < GRACE_S for each in away) or len(away) == len(counted):
            return _lines(away)
        return None

    def _away_now(self) -> list[ClusterProcess]:
        # A cluster that was removed from the file is expected to end.
        return [each for each in self._clusters.values() if each.not_ready is not None and not each.removed]

    def remark(self) -> str | None:
        """The line of /readyz for a gateway that is ready: the clusters that are not."""
        if self.why_not_ready() is not None:
            return None
        return _lines(self._away_now()) or None

    async def look(self) -> None:
        """Ask all clusters whether they are ready."""
        await asyncio.gather(*(self._look_at(each) for each in list(self._clusters.values())))

    async def _look_at(self, cluster: ClusterProcess) -> None:
        if not cluster.serves:
            if cluster.pid is not None and not cluster.settled:
                cluster.not_ready = "starting"
            return
        found = await self.ask(cluster.name, "readyz", within_s=ASK_S)
        if not cluster.serves:
            return
        if found is None:
            cluster.not_ready = "does not answer"
        else:
            status, text = found
            cluster.not_ready = (
                None if status == 200 else text.decode(errors="replace").strip().split("\n")[0]
            )

    async def metrics(self) -> bytes:
        """The metrics of all clusters that answer, and which clusters answer."""
        names = list(self._clusters)
        found = await asyncio.gather(*(self.ask(name, "metrics", within_s=METRICS_S) for name in names))
        texts = {
            name: each[1]
            for name, each in zip(names, found, strict=True)
            if each is not None and each[0] == 200
        }
        own = ClusterMetrics(
            {name: cluster.restarts for name, cluster in self._clusters.items()}, texts, self._own
        )
        return labelled(texts, generate_latest(own))

    async def ask(
        self, name: str, path: str, *, within_s: float, method: str = "GET", by: str = ""
    ) -> tuple[int, bytes] | None:
        """Status and text of a cluster's response; None: it did not answer.

        Args:
            name: of the cluster.
            path: of its admin port, without the first slash.
            within_s: the timeout of the whole exchange.
            method: of the request; its body is empty JSON if it is not GET.
            by: the address of the caller.
        """
        timeout = aiohttp.ClientTimeout(total=within_s)
        body: dict[str, str] | None = None if method == "GET" else {}
        try:
            async with self._session(name).request(
                method, f"http://localhost/{path}", timeout=timeout, headers={CALLER: by}, json=body
            ) as found:
                return found.status, await found.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None

    def _session(self, name: str) -> aiohttp.ClientSession:
        if name not in self._sessions:
            address = self._clusters[name].address
            self._sessions[name] = aiohttp.ClientSession(
                # A kept connection would lead to the replaced process, which still drains.
                connector=_Connector(f"\0{address[1:].decode()}", limit=0, force_close=True),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._sessions[name]

    async def _serve_status(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"clusters": [each.summary() for each in self._clusters.values()]}, headers=_PAGE_HEADERS
        )

    async def _serve_index(self, _request: web.Request) -> web.Response:
        rows = []
        for each in self._clusters.values():
            name = html.escape(each.name)
            ready = "ready" if each.not_ready is None else html.escape(f"not ready: {each.not_ready}")
            rows.append(f'<li><a href="/clusters/{name}/">{name}</a>: {ready}</li>')
        page = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Sluice</title><h1>Clusters</h1>'
            f"<ul>{''.join(rows)}</ul></html>"
        )
        return web.Response(text=page, content_type="text/html", charset="utf-8", headers=_PAGE_HEADERS)

    # -- of one cluster --------------------------------------------------------------------------------------

    async def _to_directory(self, request: web.Request) -> web.StreamResponse:
        # The page requests paths relative to its own.
        name = request.match_info["name"]
        if name not in self._clusters:
            return self._unknown(name)
        raise web.HTTPPermanentRedirect(f"/clusters/{name}/")

    async def _serve_cluster(self, request: web.Request) -> web.StreamResponse:
        return await self._pass_on(
            request, request.match_info["name"], request.match_info["path"], request.rel_url.raw_query_string
        )

    async def _serve_unnamed(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info.get("path", request.path.lstrip("/"))
        names = request.query.getall("cluster", [])
        if len(names) == 1:
            rest = request.rel_url.without_query_params("cluster").raw_query_string
            return await self._pass_on(request, names[0], path, rest)
        if names or path in _OF_ONE:
            known = list(self._clusters)
            text = f"it has several clusters: {', '.join(known)}; choose one with --cluster NAME or ?cluster=NAME"
            return web.json_response({"error": text, "clusters": known}, status=400)
        raise web.HTTPNotFound

    def _unknown(self, name: str) -> web.Response:
        known = list(self._clusters)
        text = f"it has no such cluster; it has {', '.join(known)}"
        return web.json_response({"error": text, "clusters": known}, status=404)

    async def _pass_on(self, request: web.Request, name: str, path: str, query: str) -> web.StreamResponse:
        if name not in self._clusters:
            return self._unknown(name)
        if route_of(request) not in ROLES:
            raise web.HTTPNotFound

        async def passed(request: web.Request, _by: str = "") -> web.StreamResponse:
            return await self._exchange(request, name, path, query)

        if request.method in ("GET", "HEAD"):
            return await passed(request)
        assert self._changing is not None
        return await self._changing(passed, request.content_type)(request)

    async def _exchange(self, request: web.Request, name: str, path: str, query: str) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):  # for example the kill switch: it is never refused
            return await self._exchanged(request, name, path, query)
        share = max(1, MAX_CONNECTIONS // (len(self._clusters) + 1))
        under_way = self._under_way.setdefault(name, [])
        stream = route_of(request)[1] == _STREAM
        if len(under_way) >= share:
            return self._away(name, f"{share} requests to it are under way")
        if stream and under_way.count(stream) >= (most := max(1, share // 2)):
            return self._away(name, f"{most} streams of it are under way")
        under_way.append(stream)
        try:
            return await self._exchanged(request, name, path, query)
        finally:
            under_way.remove(stream)

    async def _exchanged(self, request: web.Request, name: str, path: str, query: str) -> web.StreamResponse:
        url = URL.build(scheme="http", host="localhost", path=f"/{path}", query_string=query, encoded=True)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _NOT_PASSED_ON}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=ASK_S, sock_read=ANSWER_S)
        try:
            async with self._session(name).request(
                request.method,
                url,
                headers={**headers, CALLER: self._access.caller(request)},
                data=self._body(request) if request.body_exists else None,
                timeout=timeout,
                allow_redirects=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            ) as found:
                return await self._answered(request, found)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as exc:
            return self._away(name, str(exc) or type(exc).__name__)

    def _away(self, name: str, reason: str) -> web.Response:
        # By the field `clusters`, commands see that this is not a cluster's response.
        body = {"error": f"cluster {name} does not answer: {reason}", "clusters": list(self._clusters)}
        return web.json_response(body, status=503)

    async def _body(self, request: web.Request) -> AsyncIterator[bytes]:
        assert self._connections is not None
        until = self._connections.deadline()
        while True:
            with self._connections.waiting(request.protocol, until):
                data = await request.content.read(_PIECE_BYTES)
            if not data:
                return
            yield data

    async def _answered(self, request: web.Request, found: aiohttp.ClientResponse) -> web.StreamResponse:
        assert self._connections is not None
        headers = {key: value for key, value in found.headers.items() if key.lower() not in _NOT_PASSED_ON}
        response = web.StreamResponse(status=found.status, headers=headers)
        try:
            with self._connections.waiting(request.protocol, self._connections.deadline()):
                await response.prepare(request)
            async for data in found.content.iter_any():
                # A stream has no end, and keys may change meanwhile.
                if route_of(request)[1] == _STREAM and not self._access.still_allows(request):
                    raise ConnectionResetError
                with self._connections.waiting(request.protocol, self._connections.deadline()):
                    await response.write(data)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError):
            # The head was sent already: only a premature end shows that something is missing.
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the peer left, took too long, or is no longer allowed
            if request.transport is not None:
                request.transport.abort()
        return response


class _Connector(aiohttp.UnixConnector):
    """uvloop accepts no abstract socket name, only a connected socket."""

    async def _create_connection(
        self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                await self._loop.sock_connect(sock, self.path)
            make = partial(ResponseHandler, self._loop)
            _, protocol = await self._loop.create_unix_connection(make, sock=sock)
        except OSError as exc:
            sock.close()
            raise aiohttp.ClientConnectorError(req.connection_key, exc) from exc
        return protocol


class ClusterMetrics(Collector):
    """The parent's own metrics about its clusters."""

    def __init__(
        self,
        restarts: Mapping[str, int],
        up: Mapping[str, bytes],
        more: Callable[[], Iterable[Metric]] = lambda: (),
    ) -> None:
        """Show these metrics.

        Args:
            restarts: by cluster.
            up: the clusters that have answered.
            more: further metrics of the parent.
        """
        self._more = more
        self._restarts = restarts
        self._up = up

    def collect(self) -> list[Metric]:
        """All series."""
        up = GaugeMetricFamily(
            "gateway_cluster_up",
            "1: the metrics of this cluster are in this answer. 0: it gave none.",
            labels=[LABEL],
        )
        restarts = CounterMetricFamily(
            "gateway_cluster_restarts",
            "Processes of this cluster that ended and were replaced.",
            labels=[LABEL],
        )
        for name, count in self._restarts.items():
            up.add_metric([name], int(name in self._up))
            restarts.add_metric([name], count)
        return [up, restarts, *self._more()]


def _lines(away: list[ClusterProcess]) -> str:
    return "\n".join(f"cluster {each.name}: {each.not_ready}" for each in away)
