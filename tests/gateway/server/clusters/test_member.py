"""The process of a cluster: whom it answers, and which ports it opens."""

import asyncio
import os
import signal
import socket
import subprocess
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from config import Clusters
from config.clusters import SharedSettings
from config.host_port import HostPort
from config.sections.admin import AdminSettings
from gateway.app import Gateway
from gateway.server.clusters import CALLER, MEMBER
from gateway.server.clusters import parent as parent_module
from gateway.server.clusters.member import Member, ParentsAccess, environment_of_member, member_of
from gateway.server.clusters.parent import ClusterParent, ClustersSource
from gateway.server.clusters.process import ClusterProcess
from gateway.server.handover_link import DESCRIPTOR
from gateway.server.replacement import ADMIN, CONTROL
from gateway.server.start_error import StartError
from testkit.gateway import free_ports, gateway_config
from testkit.raw_client import HOST


@pytest.mark.parametrize(("family", "allowed"), [(socket.AF_UNIX, True), (socket.AF_INET, False), (None, False)])
async def test_only_the_socket_of_the_parent_is_answered(family: int | None, allowed: bool) -> None:
    found = SimpleNamespace(family=family)
    transport = None if family is None else SimpleNamespace(get_extra_info=lambda _: found)
    request: Any = SimpleNamespace(transport=transport)
    refused = ParentsAccess().refusal(request)
    assert (refused is None) is allowed
    if refused is not None:
        assert refused[0].status == 403


def test_member_gets_the_whole_name_of_its_control_socket() -> None:
    with socket.socket(socket.AF_UNIX) as admin:
        environment = environment_of_member({}, admin, "\0sluice-control-::1:9644/a")
        assert not [value for value in environment.values() if "\0" in value]
        # A process that replaces another gets the socket from that one.
        member = member_of({**environment, DESCRIPTOR: "9"}, "a")
        assert member is not None
        assert member.control == "\0sluice-control-::1:9644/a"
    assert MEMBER in environment


def unix_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("")
    sock.listen()
    sock.setblocking(False)
    return sock


async def test_member_takes_the_sockets_of_the_one_before_although_the_files_address_is_another() -> None:
    port, broker = free_ports(1), free_ports(1)
    config = gateway_config([broker], admin={"bind": f"{HOST}:{port}"})
    predecessor: Any = SimpleNamespace(sockets=defaultdict(list), draining=False, stop=lambda: None)
    admin, control = unix_socket(), unix_socket()
    predecessor.sockets[ADMIN, (HOST, 1)] += [admin]
    predecessor.sockets[CONTROL, (HOST, 1)] += [control]
    gateway = Gateway(config, predecessor=predecessor, member=Member("a", 1, None, "\0none/a"))
    await gateway._open_other_ports(predecessor)
    assert gateway.admin.connections.sockets == [admin]
    assert gateway.control.sock is control
    await gateway.stop()
    gateway = Gateway(config, predecessor=predecessor, member=Member("a", 1, None, "\0none/a"))
    with pytest.raises(StartError, match="has no socket of the cluster's admin port"):
        await gateway._open_other_ports(predecessor)
    await gateway.stop()


def parent_at(bind: HostPort) -> ClusterParent:
    def read() -> Clusters:
        raise AssertionError

    shared = SharedSettings(admin=AdminSettings(bind=bind))
    found = Clusters(shared, {"a": gateway_config([1])})
    return ClusterParent(found, ClustersSource("", read, lambda _log: None))


def listening(host: str, port: int = 0) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen()
    sock.setblocking(False)
    return sock


async def test_admin_port_that_cannot_move_stays_where_it_was() -> None:
    old, taken = listening(HOST), listening(HOST)
    port = old.getsockname()[1]
    parent = parent_at(HostPort(HOST, taken.getsockname()[1]))
    await parent._listen({"bind": f"{HOST}:{port}", "admin": [old.detach()]})
    assert parent._admin.port == port
    _, writer = await asyncio.open_connection(HOST, port)
    writer.close()
    taken.close()
    await parent.stop()


async def test_admin_port_moves_to_another_address_of_the_same_port() -> None:
    old = listening("0.0.0.0")
    port = old.getsockname()[1]
    parent = parent_at(HostPort(HOST, port))
    await parent._listen({"bind": f"0.0.0.0:{port}", "admin": [old.detach()]})
    assert [each.getsockname() for each in parent._admin.connections.sockets] == [(HOST, port)]
    await parent.stop()


@pytest.mark.parametrize("text", [b"", b"500: Internal Server Error", b"[]", b"3", b'{"result": "new"}'])
async def test_answer_to_a_reload_that_is_no_report_is_a_fault_of_its_cluster(
    text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask(*_: object, **__: object) -> tuple[int, bytes]:
        return 500, text

    parent = parent_at(HostPort(HOST, 0))
    parent.clusters["a"] = cast("Any", SimpleNamespace(pid=1, serves=True, ended=asyncio.Event()))
    monkeypatch.setattr(parent._front, "ask", ask)
    report = await parent._reload_one("a", "test")
    assert (report.result, report.faults) == ("invalid", ("its answer with status 500 is no report",))


@asynccontextmanager
async def parent_of_a_starting_process() -> AsyncIterator[tuple[ClusterParent, ClusterProcess]]:
    """The process has read the file, and does not listen yet."""

    def start(_cluster: ClusterProcess) -> int:
        process = subprocess.Popen(["sleep", "600"])
        process.returncode = 0  # the cluster waits for it
        return process.pid

    parent = parent_at(HostPort(HOST, 0))
    cluster = parent.clusters["a"] = ClusterProcess("a", unix_socket(), start, read_notices=lambda: None)
    cluster.start()
    try:
        yield parent, cluster
    finally:
        cluster.stop()
        cluster.kill()
        await asyncio.wait_for(cluster.over(), 60)
        await parent.stop()


async def test_reload_reaches_a_process_that_starts() -> None:
    """It was not asked, although it had read the old file, and the reload was reported as applied."""

    async def reload(request: web.Request) -> web.Response:
        report = {"result": "applied", "applied": [request.headers[CALLER]], "needs_restart": [], "faults": []}
        return web.json_response(report)

    async with parent_of_a_starting_process() as (parent, cluster):
        reloading = asyncio.create_task(parent._reload_one("a", "test"))
        await asyncio.sleep(0)
        assert not reloading.done()
        application = web.Application()
        application.router.add_post("/reload", reload)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.SockSite(runner, cluster.admin.dup()).start()
        report = await reloading
        assert (report.result, report.applied, report.faults) == ("applied", ("test",), ())
        await runner.cleanup()


async def test_reload_does_not_wait_for_a_process_that_ends_while_it_starts() -> None:
    async with parent_of_a_starting_process() as (parent, cluster):
        reloading = asyncio.create_task(parent._reload_one("a", "test"))
        await asyncio.sleep(0)
        assert cluster.pid is not None
        os.kill(cluster.pid, signal.SIGKILL)
        report = await reloading
        assert (report.result, report.faults) == ("applied", ())  # its next process reads the file
        # Until then there is none to ask.
        assert cluster.pid is None
        assert await parent._reload_one("a", "test") == report


async def test_reload_names_a_cluster_that_does_not_start_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_module, "_STARTS_S", 0.01)
    async with parent_of_a_starting_process() as (parent, _):
        report = await parent._reload_one("a", "test")
        fault = "it has not started within 0.01 s; reload again once it is ready"
        assert (report.result, report.faults) == ("invalid", (fault,))


async def test_second_upgrade_is_refused_and_says_nothing_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = parent_at(HostPort(HOST, 0))
    upgraded = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(parent, "_upgrade", lambda: upgraded)
    with capture_logs() as lines:
        first = asyncio.create_task(parent.upgrade("one"))
        await asyncio.sleep(0)
        assert (await parent.upgrade("two")).error == "an upgrade is under way"
        assert [(line["event"], line["by"]) for line in lines] == [
            ("upgrade_begun", "one"),
            ("upgrade_refused", "two"),
        ]
    upgraded.set_result(None)
    assert (await first).error is None


async def test_reload_that_fails_leaves_the_service_ready() -> None:
    parent = parent_at(HostPort(HOST, 0))
    said: list[str] = []
    parent.notify = cast(
        "Any", SimpleNamespace(reloading=lambda: said.append("reloading"), ready=lambda: said.append("ready"))
    )
    with pytest.raises(AssertionError):  # the source cannot be read
        await parent.reload_by_signal("SIGHUP")
    assert said == ["reloading", "ready"]


async def test_keys_of_the_parent_wait_for_the_certificate_that_they_came_with() -> None:
    parent = parent_at(HostPort(HOST, 1))
    keys = [{"name": "k", "roles": ["read"], "token": "a-token-of-a-test-0123456789abcdef"}]
    alone = AdminSettings.model_validate({"keys": keys})
    both = AdminSettings.model_validate({"keys": keys, "tls": {"certificate": "c", "key": "k"}})
    assert parent._admin_of(alone).keys == alone.keys
    assert parent._admin_of(both).keys == ()
    await parent.stop()
