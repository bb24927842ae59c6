"""`sluice upgrade` with another configuration: ports that move or are taken, settings that need a restart."""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from testkit import wire
from testkit.admin_commands import command
from testkit.broker import METADATA, PRODUCE, BrokerConnection, Request, ScriptedBroker, answer
from testkit.clusters import clusters_process
from testkit.crowd import is_served
from testkit.frames import produce, produce_reply
from testkit.gateway import free_ports, gateway_process
from testkit.process_group import children
from testkit.raw_client import HOST, PATIENCE_S, RawClient, until

pytestmark = pytest.mark.slow

BEFORE: Final = """
[mutation_quota]
window_num = 11
[[quotas]]
client_id = "app"
producer_byte_rate = 1000
"""
AFTER: Final = """
[server]
workers = 2
[mutation_quota]
window_num = 7
[[listeners]]
name = "more"
bind = "{host}:{port}"
first_broker_port = {first}
broker_ports = 2
[[quotas]]
client_id = "app"
producer_byte_rate = 2000
"""


async def upgrade(admin_port: int) -> tuple[int, str]:
    return await command("upgrade", "--admin", f"http://{HOST}:{admin_port}")


async def quota_of_app(admin_port: int) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{admin_port}/quotas") as answer:
        found: Any = await answer.json()
    (entry,) = found["quotas"]
    return float(entry["limit"])


async def closes(port: int) -> None:
    """Wait until nothing listens there."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with await RawClient.connect(port):
                    pass
            except OSError:
                return
            await asyncio.sleep(0.05)


def rewrite(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def test_next_process_serves_moved_ports_and_settings_and_the_old_one_where_a_port_is_taken(
    tmp_path: Path,
) -> None:
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port, tables=BEFORE) as gateway:
        file = tmp_path / "gateway.toml"
        more = free_ports(4)
        admin = f'bind = "{HOST}:{gateway.admin_port}"'
        with socket.create_server((HOST, 0)) as taken:
            other = f'bind = "{HOST}:{taken.getsockname()[1]}"'
            rewrite(file, admin, other)
            code, text = await upgrade(gateway.admin_port)
            assert (code, "admin.bind: Address already in use" in text) == (1, True), text
            assert await quota_of_app(gateway.admin_port) == 1000
            async with await gateway.connect() as client:
                assert await is_served(client)
        rewrite(file, other, f'bind = "{HOST}:{more}"')
        rewrite(file, BEFORE, AFTER.format(host=HOST, port=more + 1, first=more + 2))
        async with await gateway.connect() as old:
            assert await is_served(old)
            # The command names the process that runs: by the port that it still has.
            code, text = await upgrade(more)
            assert (code, "no gateway of this user" in text) == (1, True)
            code, text = await upgrade(gateway.admin_port)
            assert (code, text.startswith("process ")) == (0, True), text
            pid = int(text.split()[1])
            assert await quota_of_app(more) == 2000
            (nursery,) = children(pid)
            assert len(children(nursery)) == 2  # workers
            for port in (gateway.port, more + 1):
                async with await RawClient.connect(port) as client:
                    assert await is_served(client)
        await closes(gateway.admin_port)
        code, text = await upgrade(gateway.admin_port)
        assert (code, "no gateway of this user" in text) == (1, True)
        await until(lambda: not gateway.running)
        os.kill(pid, signal.SIGTERM)
        assert await gateway.exit_code(seconds=PATIENCE_S) == 0
        lines = gateway.stderr.decode().splitlines()
        for event, refused in (("upgrade_begun", 1), ("replaced", 0), ("predecessor_gone", 0)):
            (line,) = [each for each in lines if f"event={event} " in each][refused:]
            assert f"old_pid={gateway.process.pid} new_pid={pid}" in line
        assert [
            f"pid={each}" in line
            for each, line in zip(
                (gateway.process.pid, pid), (each for each in lines if "event=stopped " in each), strict=True
            )
        ] == [True, True]


async def test_parent_of_clusters_moves_its_admin_port_or_keeps_it_where_the_new_one_is_taken(tmp_path: Path) -> None:
    async with ScriptedBroker() as broker:
        brokers: dict[str, int | str] = {"a": broker.port}
        async with clusters_process(tmp_path, brokers) as gateway:
            before = await gateway.until_ready("a")
            old = gateway.admin_port
            with socket.create_server((HOST, new := free_ports(1))):  # no outgoing connection gets it afterwards
                gateway.admin_port = new
                gateway.write(brokers, "[clusters.mutation_quota]\nwindow_num = 7\n")
                gateway.admin_port = old
                program = gateway.program()
                gateway.process.signal(signal.SIGUSR2)
                await gateway.until_next_program(program)
                found = await gateway.until(
                    lambda found: found["a"]["ready"] and found["a"]["pid"] != before["a"]["pid"]
                )
                async with await gateway.connect("a") as client:
                    assert await is_served(client)
            await gateway.until_alone()
            code, text = await upgrade(old)
            assert (code, text) == (0, f"process {gateway.process.process.pid} serves\n")
            gateway.admin_port = new
            await gateway.until(lambda again: again["a"]["ready"] and again["a"]["pid"] != found["a"]["pid"])
            await closes(old)
            async with await gateway.connect("a") as client:
                assert await is_served(client)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_mode_outlives_an_upgrade_and_later_changes_reach_clients_of_the_old_process(
    tmp_path: Path, workers: int
) -> None:
    tables = f"[server]\nworkers = {workers}\n"
    async with (
        ScriptedBroker() as broker,
        gateway_process(tmp_path, broker.port, drain_timeout_ms=60_000, tables=tables) as gateway,
        await gateway.connect() as old,
    ):
        reached: asyncio.Queue[tuple[BrokerConnection, int]] = asyncio.Queue()
        broker.script(PRODUCE, lambda link, asked: reached.put_nowait((link, asked.correlation_id)))
        admin = "--admin", f"http://{HOST}:{gateway.admin_port}"
        told_ms = [0]

        async def goes_on() -> None:
            """Each next request is sent before the reply to the earlier one, so the connection is never idle."""
            await old.send(produce(0, client_id="app", size=10_000))
            while not told_ms[-1]:
                await old.send(produce(len(told_ms), client_id="app", size=10_000))
                await asyncio.sleep(0.1)
                link, correlation_id = await reached.get()
                link.send(produce_reply(correlation_id))
                reply = await old.receive_frame()
                told_ms.append(wire.decode_response("Produce", 9, reply).throttle_time_ms)

        going_on = asyncio.create_task(goes_on())
        try:
            assert await command("enforcement", "observe", *admin) == (0, "observe (was enforce)\n")
            assert (await upgrade(gateway.admin_port))[0] == 0
            assert await command("enforcement", *admin) == (0, "observe (the configuration file says enforce)\n")
            assert (await command("quotas", "set", "client-id=app", "producer_byte_rate=100", *admin))[0] == 0
            assert not told_ms[-1]
            assert (await command("enforcement", "enforce", *admin))[0] == 0
            await asyncio.wait_for(going_on, PATIENCE_S)
        finally:
            going_on.cancel()


def connects_from(pid: int, link: BrokerConnection) -> bool:
    """Whether this process has the other end."""
    port = link.transport.get_extra_info("peername")[1]
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[1].rpartition(":")[2], 16) == port}
    with suppress(FileNotFoundError):  # a descriptor that was closed meanwhile
        return any(os.readlink(each) in sockets for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_reload_while_the_next_process_starts_holds_in_it(tmp_path: Path, workers: int) -> None:
    tables = f"[server]\nworkers = {workers}\n" + BEFORE
    async with ScriptedBroker() as broker, gateway_process(tmp_path, broker.port, tables=tables) as gateway:
        earlier = children(gateway.process.pid)
        held: list[tuple[BrokerConnection, Request]] = []
        reached = asyncio.Event()

        def hold(link: BrokerConnection, asked: Request) -> None:
            held.append((link, asked))
            if any(connects_from(pid, link) for pid in children(gateway.process.pid) if pid not in earlier):
                reached.set()

        broker.script(METADATA, hold)
        broker.scripts_discovery = True
        upgrading = asyncio.create_task(upgrade(gateway.admin_port))
        # The next process has read the file, and asks the brokers.
        await asyncio.wait_for(reached.wait(), PATIENCE_S)
        rewrite(tmp_path / "gateway.toml", "producer_byte_rate = 1000", "producer_byte_rate = 2000")
        # Not the command: the other one is under way.
        url = f"http://{HOST}:{gateway.admin_port}/reload"
        async with aiohttp.ClientSession() as session, session.post(url, json={}) as reloaded:
            assert reloaded.status == 200, await reloaded.text()
        assert await quota_of_app(gateway.admin_port) == 2000
        broker.scripts_discovery = False
        for link, asked in held:
            answer(link, asked)
        code, text = await asyncio.wait_for(upgrading, PATIENCE_S)
        assert code == 0, text
        limit = await quota_of_app(gateway.admin_port)
        os.kill(int(text.split()[1]), signal.SIGTERM)
        assert await gateway.exit_code(seconds=PATIENCE_S) == 0
        assert limit == 2000
