"""Attacks through the admin port of a gateway with several clusters: on paths, places and rights."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from config.sections.admin import AdminKey, AdminRole, AdminSettings
from gateway.server import admin_connections
from gateway.server.admin import AdminServer
from gateway.server.admin_access import AdminAccess
from gateway.server.admin_connections import MAX_CONNECTIONS, AdminConnections
from gateway.server.admin_keys import AdminKeys
from gateway.server.clusters import CALLER
from gateway.server.clusters.front import Front
from gateway.server.clusters.process import ClusterProcess
from gateway.server.operations import ReloadReport
from testkit.raw_client import HOST, RawClient, settled, until

LINES = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


class Cluster:
    """A cluster's admin port that notes what it is asked.

    Attributes:
        asked: method, path with query, headers, body.
        transports: by request.
        answering: cleared while it stands still.
    """

    def __init__(self, name: str) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.transports: list[Any] = []
        self.answering = asyncio.Event()
        self.answering.set()
        self.admin = socket.socket(socket.AF_UNIX)
        self.admin.bind("")
        self.admin.listen()
        self.process = ClusterProcess(name, self.admin, lambda _: 0, read_notices=lambda: None)
        self.process.serves, self.process.not_ready = True, None
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)

    async def start(self) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, self.admin).start()

    async def stop(self) -> None:
        self.answering.set()
        await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.Response:
        body = b""
        with suppress(ConnectionError):  # aiohttp would log each with a long traceback
            body = await request.read()
        self.asked.append((request.method, request.raw_path, dict(request.headers), body))
        self.transports.append(request.transport)
        await self.answering.wait()
        return web.json_response({"name": self.process.name}, headers={"X-Own": "kept"})


class Reloads:
    """Nothing to reload."""

    async def reload(self, *, by: str) -> ReloadReport:
        raise AssertionError(by)


class Port:
    """The admin port before two clusters."""

    def __init__(self, admin: AdminServer, clusters: dict[str, Cluster]) -> None:
        self.admin = admin
        self.clusters = clusters

    async def ask(self, path: str, method: str = "GET", **options: Any) -> tuple[int, Any, dict[str, str]]:
        """Status, answer and headers."""
        url = f"http://{HOST}:{self.admin.port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            text = await answer.text()
            is_json = answer.content_type == "application/json"
            return answer.status, json.loads(text) if is_json else text, dict(answer.headers)

    async def raw(self, text: str) -> str:
        """The answer to a request as it is, which no client library would send."""
        async with await RawClient.connect(self.admin.port) as client:
            await client.send(text.encode())
            return (await client.receive_rest()).decode()

    @property
    def asked(self) -> list[str]:
        """Paths that reached a cluster."""
        return [path for each in self.clusters.values() for _, path, _, _ in each.asked]


@asynccontextmanager
async def port_before(*names: str, keys: tuple[AdminKey, ...] = ()) -> AsyncIterator[Port]:
    admin_keys = AdminKeys(keys)
    access = AdminAccess(AdminSettings, admin_keys, partial(next, count(step=1_000)))
    clusters = {name: Cluster(name) for name in names}
    front = Front({name: each.process for name, each in clusters.items()}, access)
    admin = AdminServer(
        front.metrics,
        Reloads(),
        ready=front.why_not_ready,
        remark=front.remark,
        quotas=front,
        access=access,
        first=front.for_one,
    )
    for each in clusters.values():
        await each.start()
    await admin.start(HOST, 0)
    try:
        yield Port(admin, clusters)
    finally:
        for each in clusters.values():
            each.answering.set()
        await admin.stop()
        await front.stop()
        for each in clusters.values():
            await each.stop()


async def test_request_reaches_the_cluster_that_it_names_with_its_query() -> None:
    async with port_before("a", "b") as port:
        for path in ("/clusters/b/why?client_id=x%26cluster=a", "/why?client_id=x%26cluster%3Da&cluster=b"):
            status, answer, headers = await port.ask(path)
            assert (status, answer, headers["X-Own"]) == (200, {"name": "b"}, "kept")
        assert port.clusters["a"].asked == []
        assert [path.partition("?")[0] for path in port.asked] == ["/why", "/why"]
        assert "cluster=b" not in port.asked[1]


@pytest.mark.parametrize(
    "path",
    [
        "/clusters/../metrics",
        "/clusters/a/../b/why",
        "/clusters/a/%2e%2e/b/why",
        "/clusters/a/..%2fb/why",
        "/clusters/a%2f..%2fb/why",
        "/clusters/%61%00/why",
        "/clusters/A/why",
        "/clusters//why",
        "/clusters/a//why",
        "/clusters/a/why/",
        "/clusters/a/why%0d%0aX:%20y",
        "/clusters/a/why%3fx",
        "/clusters/c/why",
        "/clusters/%22%7d/why",
        "/why?cluster=../a",
        "/why?cluster=a&cluster=b",
        "/why?cluster=",
        "/..?cluster=a",
    ],
)
async def test_path_that_is_no_clusters_reaches_none(path: str) -> None:
    async with port_before("a", "b") as port:
        answer = await port.raw(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n")
        assert answer.split()[1] in ("400", "404"), answer
        assert port.asked == []
        assert "%" not in answer.partition("\r\n\r\n")[2]  # what was asked is not repeated


async def test_path_of_one_cluster_without_a_name_is_answered_with_all_names() -> None:
    async with port_before("a", "b") as port:
        for path in ("/why", "/quotas", "/quotas/history", "/events", "/enforcement"):
            status, answer, _ = await port.ask(path)
            assert (status, answer["clusters"]) == (400, ["a", "b"])
            assert "choose one" in answer["error"]
        assert port.asked == []


async def test_path_that_the_port_has_itself_is_the_clusters_that_is_named() -> None:
    async with port_before("a", "b") as port:
        for path in ("", "metrics", "healthz", "readyz", "status.json"):
            assert (await port.ask(f"/{path}?cluster=a"))[:2] == (200, {"name": "a"}), path
        # `Reloads` fails if it is asked.
        assert (await port.ask("/reload?cluster=a", "POST", data=b"{}", headers=JSON))[:2] == (200, {"name": "a"})
        assert port.clusters["b"].asked == []
        count = len(port.asked)
        assert (await port.ask("/reload?cluster=c", "POST", data=b"{}", headers=JSON))[0] == 404
        assert (await port.ask("/readyz?cluster=a&cluster=b"))[0] == 400
        assert (await port.ask("/clusters/a/why?cluster=b"))[0] == 400
        assert (await port.ask("/clusters/a?cluster=b"))[0] == 400
        assert len(port.asked) == count


async def test_cluster_hears_which_address_asks_and_not_what_the_request_says_of_it() -> None:
    async with port_before("a") as port:
        # In two spellings: the last one of them would win.
        sent = [f"{CALLER}: 10.9.9.9", f"{CALLER.lower()}: 10.9.9.8", "X-Mine: 1", "Sec-Fetch-Site: cross-site"]
        head = ["GET /clusters/a/quotas HTTP/1.1", f"Host: {HOST}", "Connection: close", *sent]
        assert " 200 " in await port.raw("\r\n".join([*head, "", ""]))
        ((_, _, headers, _),) = port.clusters["a"].asked
        assert [key for key in headers if key.lower() == CALLER.lower()] == [CALLER]
        assert (headers[CALLER], headers["X-Mine"]) == ("admin port, 127.0.0.1", "1")
        assert headers["Sec-Fetch-Site"] == "cross-site"  # the cluster decides by it


async def test_change_is_refused_before_it_reaches_a_cluster() -> None:
    async with port_before("a") as port:
        for method, path in (("PUT", "/clusters/a/enforcement"), ("POST", "/quotas/import?cluster=a")):
            status, _, _ = await port.ask(path, method, data=b"{}", headers={**JSON, "Origin": "http://evil"})
            assert status == 403
        status, _, _ = await port.ask("/clusters/a/why", headers={"Host": "evil.example"})
        assert status == 421
        assert port.asked == []
        lines = b'{"x": 1}\n' * 100_000
        status, _, _ = await port.ask("/clusters/a/quotas/import", "POST", data=lines, headers=LINES)
        assert status == 200
        assert port.clusters["a"].asked[0][3] == lines


async def test_other_machine_may_not_change_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.admin_access.is_this_machine", lambda _address: False)
    async with port_before("a") as port:
        status, _, _ = await port.ask("/clusters/a/enforcement", "PUT", data=b"{}", headers=JSON)
        assert status == 403
        assert port.asked == []


async def test_key_needs_the_role_of_the_clusters_route(tmp_path: Path) -> None:
    token = "0123456789abcdef" * 2
    (tmp_path / "token").write_text(token)
    key = AdminKey(name="grafana", token_file=str(tmp_path / "token"), roles=(AdminRole.READ,))
    async with port_before("a", keys=(key,)) as port:
        mine = {"Authorization": f"Bearer {token}"}
        for path in ("/clusters/a/why", "/why?cluster=a", "/clusters/a/", "/clusters/a/nothing"):
            assert (await port.ask(path))[0] == 401
        assert port.asked == []
        for path in ("/clusters/a/enforcement", "/enforcement?cluster=a"):
            assert (await port.ask(path, "PUT", data=b"{}", headers={**JSON, **mine}))[0] == 403
        assert (await port.ask("/clusters/a/quotas/import", "POST", data=b"", headers={**LINES, **mine}))[0] == 403
        assert (await port.ask("/clusters/a/nothing", headers=mine))[0] == 404
        assert port.asked == []
        assert (await port.ask("/clusters/a/why", headers=mine))[0] == 200
        assert (await port.ask("/why?cluster=a", headers=mine))[0] == 200
        assert (await port.ask("/clusters/a/readyz"))[0] == 200
        assert port.clusters["a"].asked[0][2][CALLER] == "admin port, 127.0.0.1, key grafana (read)"


async def test_cluster_that_stands_still_cannot_take_all_places() -> None:
    async with port_before("a", "b") as port:
        port.clusters["a"].answering.clear()
        share = MAX_CONNECTIONS // 3
        hanging = [asyncio.create_task(port.ask("/clusters/a/why")) for _ in range(share)]
        await until(lambda: len(port.clusters["a"].asked) == share)
        status, answer, _ = await port.ask("/clusters/a/why")
        assert status == 503
        assert answer["error"] == f"cluster a does not answer: {share} requests to it are under way"
        assert (await port.ask("/clusters/b/why"))[0] == 200
        assert (await port.ask("/healthz"))[1] == "ok\n"
        port.clusters["a"].answering.set()
        assert [status for status, _, _ in await asyncio.gather(*hanging)] == [200] * share
        assert (await port.ask("/clusters/a/why"))[0] == 200


async def test_streams_and_hanging_requests_leave_a_place_for_the_kill_switch() -> None:
    async with port_before("a", "b") as port:
        cluster = port.clusters["a"]
        cluster.answering.clear()
        share = MAX_CONNECTIONS // 3
        streams = [asyncio.create_task(port.ask("/clusters/a/events")) for _ in range(share // 2)]
        await until(lambda: len(cluster.asked) == share // 2)
        status, answer, _ = await port.ask("/events?cluster=a")
        assert (status, answer["error"].rpartition(": ")[2]) == (503, f"{share // 2} streams of it are under way")
        more = [asyncio.create_task(port.ask("/clusters/a/why")) for _ in range(share - share // 2)]
        await until(lambda: len(cluster.asked) == share)
        assert (await port.ask("/clusters/a/why"))[0] == 503
        switch = asyncio.create_task(port.ask("/clusters/a/enforcement", "PUT", data=b"{}", headers=JSON))
        await until(lambda: len(cluster.asked) == share + 1)
        cluster.answering.set()
        assert (await switch)[0] == 200
        assert [status for status, _, _ in await asyncio.gather(*streams, *more)] == [200] * share


async def test_body_that_never_comes_makes_way_for_others() -> None:
    async with port_before("a") as port, AsyncExitStack() as clients:

        async def connect_all() -> list[RawClient]:
            new = [await RawClient.connect(port.admin.port) for _ in range(MAX_CONNECTIONS)]
            return [await clients.enter_async_context(each) for each in new]

        head = f"POST /clusters/a/quotas/import HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/x-ndjson\r\n"
        slow = await connect_all()
        for client in slow:
            await client.send(f"{head}Content-Length: 1000\r\n\r\nx".encode())
        connections = port.admin.connections

        def all_wait_for_bodies() -> bool:
            # One may have made way already. One that is still worked on would wait behind those that come later.
            waiting = connections._waiting.keys()
            all_wait = len(waiting) == connections.count >= MAX_CONNECTIONS - 1
            return all_wait and waiting.isdisjoint(connections._new)

        await until(all_wait_for_bodies)
        assert (await port.ask("/healthz"))[1] == "ok\n"
        # It took the place of one of them, and of no other.
        assert await settled(lambda: len(connections._asked)) == MAX_CONNECTIONS - 1
        # Else a later one may wait longer than one whose head is still being read.
        await until(all_wait_for_bodies)
        connections._first_request_s = 3_600.0  # else those that come later may be closed first, for being late
        await connect_all()
        for client in slow:
            await client.receive_rest()


async def test_cluster_that_is_gone_is_an_answer_with_its_name() -> None:
    async with port_before("a", "b") as port:
        await port.clusters["a"].stop()
        status, answer, _ = await port.ask("/clusters/a/why")
        assert status == 503
        assert answer["error"].startswith("cluster a does not answer: ")
        assert (await port.ask("/clusters/b/why"))[0] == 200
        _, text, _ = await port.ask("/metrics")
        assert 'gateway_cluster_up{cluster="a"} 0.0' in text


async def test_no_connection_to_a_process_is_kept_since_another_may_take_over() -> None:
    async with port_before("a") as port:
        for _ in range(2):
            assert (await port.ask("/clusters/a/why"))[0] == 200
        first, second = port.clusters["a"].transports
        assert first is not second
        assert first.is_closing()


async def test_process_that_was_replaced_ends_its_connections_after_their_answers() -> None:
    async with port_before("a") as port:
        port.clusters["a"].answering.clear()
        idle, busy = [await RawClient.connect(port.admin.port) for _ in range(2)]
        await idle.send(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        await busy.send(f"GET /clusters/a/why HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        await until(lambda: len(port.asked) == 1)
        await until(lambda: len(port.admin.connections._waiting) == 1)
        port.admin.connections.end_each()
        assert (await idle.receive_rest()).endswith(b"ok\n")
        port.clusters["a"].answering.set()
        assert b'{"name": "a"}' in await busy.receive_rest()
        idle.close()
        busy.close()


async def test_socket_of_a_cluster_takes_no_other_user(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(asyncio.Protocol())
        return made[-1]

    listening = socket.socket(socket.AF_UNIX)
    listening.bind("")
    listening.listen()
    listening.setblocking(False)
    connections = AdminConnections(make)
    await connections.listen("", 0, [listening])
    assert connections.port == 0
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, listening.getsockname())
        await until(lambda: len(made) == 1)
    monkeypatch.setattr(admin_connections, "user_of", lambda sock: os.geteuid() + 1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        await loop.sock_connect(sock, listening.getsockname())
        assert await asyncio.wait_for(loop.sock_recv(sock, 1), 60) == b""
    assert len(made) == 1
    connections.stop()


async def test_gateway_is_ready_once_each_cluster_is_or_has_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with port_before("a", "b") as port:
        a, b = (each.process for each in port.clusters.values())
        a.not_ready = "upstream x"
        assert (await port.ask("/readyz"))[:2] == (503, "cluster a: upstream x\n")
        a.since -= 61  # long ago
        assert (await port.ask("/readyz"))[:2] == (200, "ready\ncluster a: upstream x\n")
        b.not_ready = "draining"
        b.since -= 61
        assert (await port.ask("/readyz"))[:2] == (503, "cluster a: upstream x\ncluster b: draining\n")
        a.removed = True
        b.not_ready = None
        assert (await port.ask("/readyz"))[:2] == (200, "ready\n")
        a.since = b.since = asyncio.get_running_loop().time()
        assert (await port.ask("/readyz"))[:2] == (200, "ready\n")
        a.not_ready = b.not_ready = None
        assert (await port.ask("/readyz"))[:2] == (200, "ready\n")


async def test_index_shows_each_cluster() -> None:
    async with port_before("a", "b") as port:
        port.clusters["b"].process.not_ready = "<script>"
        _, page, headers = await port.ask("/")
        assert 'href="/clusters/a/"' in page
        assert "&lt;script&gt;" in page
        assert "<script>" not in page
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        status, _, headers = await port.ask("/clusters/a", allow_redirects=False)
        assert (status, headers["Location"]) == (308, "/clusters/a/")
