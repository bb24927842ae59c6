"""A gateway with several clusters as it is run: faults of one, reload, upgrade, drain, and the end of the parent."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from testkit.admin_commands import command
from testkit.broker import ScriptedBroker
from testkit.clusters import ClustersProcess, clusters_process
from testkit.crowd import is_served
from testkit.gateway import metric_of
from testkit.process_group import members
from testkit.raw_client import PATIENCE_S, until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def two_clusters(folder: Path, tables: str = "") -> AsyncIterator[ClustersProcess]:
    async with AsyncExitStack() as stack:
        brokers = {name: (await stack.enter_async_context(ScriptedBroker())).port for name in ("a", "b")}
        gateway = await stack.enter_async_context(clusters_process(folder, brokers, tables))
        await gateway.until_ready("a", "b")
        yield gateway


async def all_ended(gateway: ClustersProcess) -> None:
    await until(lambda: not members(gateway.process.process.pid), pause_s=0.1)


@pytest.mark.parametrize("workers", [1, 2])
async def test_killed_cluster_comes_back_unnoticed_by_clients_of_the_other_and_none_outlives_a_killed_parent(
    tmp_path: Path, workers: int
) -> None:
    async with two_clusters(tmp_path, f"[clusters.server]\nworkers = {workers}\n") as gateway:
        async with await gateway.connect("a") as lost, await gateway.connect("b") as kept:
            assert await is_served(lost)
            assert await is_served(kept)
            before = await gateway.clusters()
            os.kill(before["a"]["pid"], signal.SIGKILL)
            found = await gateway.until(lambda found: found["a"]["restarts"] == 1 and found["a"]["ready"])
            assert found["a"]["pid"] != before["a"]["pid"]
            assert found["b"] == before["b"]
            assert await is_served(kept)
        assert await metric_of(gateway.admin_port, "gateway_connections_opened_total", cluster="b") == 1
        assert await metric_of(gateway.admin_port, "gateway_cluster_restarts_total", cluster="a") == 1
        async with await gateway.connect("a") as again:
            assert await is_served(again)
        gateway.process.signal(signal.SIGKILL)
        await all_ended(gateway)


async def test_cluster_that_stands_still_holds_up_neither_the_other_nor_the_admin_port(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as gateway:
        stopped = (await gateway.clusters())["a"]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            # More than its share: those beyond are refused, and the port has places left.
            asked = [asyncio.create_task(gateway.ask("/clusters/a/status.json")) for _ in range(40)]
            await gateway.until(lambda found: found["a"]["not_ready"] == "does not answer")
            async with await gateway.connect("b") as client:
                assert await is_served(client)
            assert (await gateway.ask("/clusters/b/readyz"))[1] == "ready\n"
            _, metrics = await gateway.ask("/metrics")
            assert 'gateway_cluster_up{cluster="a"} 0.0' in metrics
            assert 'gateway_cluster_up{cluster="b"} 1.0' in metrics
            assert 'gateway_ready{cluster="b"} 1.0' in metrics
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            # Its loop feeds no watchdog: it is killed, and another one starts.
            found = await gateway.until(lambda found: found["a"]["restarts"] == 1 and found["a"]["ready"])
            assert found["a"]["pid"] != stopped
        finally:
            if stopped in members(gateway.process.process.pid):
                os.kill(stopped, signal.SIGCONT)


async def test_cluster_that_cannot_start_is_tried_again_and_the_other_serves(tmp_path: Path) -> None:
    async with ScriptedBroker() as a, ScriptedBroker() as b:
        # A file where a directory has to be.
        (tmp_path / "a").write_text("")
        tables = f'data_dir = "{tmp_path}/NAME"\n'
        async with clusters_process(tmp_path, {"a": a.port, "b": b.port}, tables) as gateway:
            await gateway.until(lambda found: found["b"]["ready"] and found["a"]["restarts"] > 0)
            async with await gateway.connect("b") as client:
                assert await is_served(client)
            status, text = await gateway.ask("/readyz")
            assert (status, text) == (503, "cluster a: its process ended\n")
            (tmp_path / "a").unlink()
            await gateway.until_ready("a", "b")
            assert await gateway.ask("/readyz") == (200, "ready\n")


async def test_reload_adds_a_cluster_and_leaves_the_end_of_one_to_an_upgrade(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as gateway, ScriptedBroker() as third, await gateway.connect("a") as client:
        assert await is_served(client)
        port_of_a = gateway.ports["a"]
        before = await gateway.clusters()
        quota = '[[clusters.quotas]]\nclient_id = "x"\nproducer_byte_rate = 1000\n'
        gateway.write({"b": "127.0.0.1:1", "c": third.port}, quota)
        url = f"http://127.0.0.1:{gateway.admin_port}"
        assert await command("reload", "--admin", url) == (
            0,
            "changed: clusters.b.quotas, clusters.c\nneeds a restart: clusters.b.upstream.bootstrap, clusters.a\n",
        )
        await gateway.until_ready("a", "b", "c")
        assert await is_served(client)
        code, text = await command("quotas", "--admin", url, "--cluster", "b")
        assert (code, "1000" in text) == (0, True)
        # Invalid: nothing changes, in no cluster.
        gateway.file.write_text(gateway.file.read_text().replace("127.0.0.1:1", "127.0.0.1:x"))
        code, text = await command("reload", "--admin", url)
        assert (code, "clusters.b.upstream.bootstrap.0" in text) == (1, True)
        code, text = await command("upgrade", "--admin", url)
        assert (code, "clusters.b.upstream.bootstrap.0" in text) == (1, True)
        assert {name: each["pid"] for name, each in (await gateway.clusters()).items() if name != "c"} == {
            name: each["pid"] for name, each in before.items()
        }
        async with await gateway.connect("c") as other:
            assert await is_served(other)
        client.close()
        gateway.write({"c": third.port})
        code, text = await command("upgrade", "--admin", url)
        assert (code, text) == (0, f"process {gateway.process.process.pid} serves\n")
        await gateway.until_ready("c")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port_of_a)


async def test_reload_reaches_a_cluster_that_waits_for_its_quota_topic(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as gateway:

        def write(rate: int) -> None:
            quota = f'[[clusters.quotas]]\nclient_id = "x"\nproducer_byte_rate = {rate}\n'
            gateway.write({"a": "127.0.0.1:1", "b": "127.0.0.1:1"}, quota)
            gateway.file.write_text(gateway.file.read_text().replace('kind = "memory"', 'kind = "topic"'))

        write(1_000)
        os.kill((await gateway.clusters())["a"]["pid"], signal.SIGKILL)
        answer = ""
        async with asyncio.timeout(PATIENCE_S):
            while "quota topic" not in str(answer):
                _, answer = await gateway.ask("/clusters/a/readyz")
                await asyncio.sleep(0.1)
        write(2_000)
        url = f"http://127.0.0.1:{gateway.admin_port}"
        code, text = await command("reload", "--admin", url)
        assert code == 0, text
        _, of_a = await gateway.ask("/quotas?cluster=a")
        assert [row["limit"] for row in of_a["quotas"]] == [2_000.0]


async def test_j06_upgrade_replaces_all_processes_and_refuses_no_client(tmp_path: Path) -> None:
    async with two_clusters(tmp_path) as gateway:
        before = await gateway.clusters()
        async with await gateway.connect("a") as old:
            assert await is_served(old)
            url = f"http://127.0.0.1:{gateway.admin_port}"
            parent = gateway.process.process.pid
            refused: list[str] = []
            over = asyncio.Event()

            async def connect_all_the_time() -> None:
                while not over.is_set():
                    async with await gateway.connect("b") as each:
                        if not await is_served(each):
                            refused.append("b")
                    await asyncio.sleep(0.02)

            newcomers = asyncio.create_task(connect_all_the_time())
            assert await command("upgrade", "--admin", url) == (0, f"process {parent} serves\n")
            found = await gateway.until(
                lambda found: all(
                    found[name]["ready"] and found[name]["pid"] != before[name]["pid"] for name in ("a", "b")
                )
            )
            over.set()
            await newcomers
            assert refused == []
            assert [each["restarts"] for each in found.values()] == [0, 0]
        await gateway.until_alone()
        # One cluster alone.
        code, text = await command("upgrade", "--admin", url, "--cluster", "a")
        assert (code, text.startswith("process ")) == (0, True)
        pid = int(text.split()[1])
        last = await gateway.until(lambda now: now["a"]["pid"] == pid and now["a"]["ready"])
        assert last["b"] == found["b"]
        gateway.process.signal(signal.SIGTERM)
        assert await gateway.process.exit_code(seconds=PATIENCE_S) == 0
        await all_ended(gateway)


async def test_quotas_records_and_metrics_are_of_one_cluster_and_the_end_waits_for_the_drains_of_all(
    tmp_path: Path,
) -> None:
    tables = f'[clusters.usage]\nkind = "files"\ndirectory = "{tmp_path}/usage-NAME"\nrotate_seconds = 1\n'
    async with two_clusters(tmp_path, tables) as gateway:
        url = f"http://127.0.0.1:{gateway.admin_port}"
        code, text = await command(
            *("quotas", "set", "--admin", url, "--cluster", "a"), *("--client-id", "x", "--config", "/dev/null")
        )
        assert code == 2  # a store is in no file
        body = '{"entity": [{"type": "client-id", "name": "x"}], "quota": "producer_byte_rate", "limit": 5}\n'
        headers = {"Content-Type": "application/x-ndjson"}
        status, answer = await gateway.ask("/clusters/a/quotas/import", "POST", data=body, headers=headers)
        assert (status, answer.get("made")) == (200, True), answer
        _, of_a = await gateway.ask("/quotas?cluster=a")
        _, of_b = await gateway.ask("/quotas?cluster=b")
        assert [row["limit"] for row in of_a["quotas"]] == [5.0]
        assert of_b["quotas"] == []
        async with await gateway.connect("b") as client:
            assert await is_served(client)
        assert await metric_of(gateway.admin_port, "gateway_connections_opened_total", cluster="a") == 0
        assert await metric_of(gateway.admin_port, "gateway_connections_opened_total", cluster="b") == 1
        gateway.process.signal(signal.SIGTERM)
        assert await gateway.process.exit_code(seconds=PATIENCE_S) == 0
        assert members(gateway.process.process.pid) == []
        lines = gateway.process.stderr.decode()
        assert "Traceback" not in lines
        for name in ("a", "b"):
            assert sum("event=stopped" in each and f"cluster={name}" in each for each in lines.splitlines()) == 1
            code, text = await command("usage", "--config", gateway.file, "--cluster", name, "--json")
            assert code == 0, text
            files = sorted((tmp_path / f"usage-{name}").rglob("*.gz"))
            assert files
            assert all(f".{name}" in str(each) for each in files)
