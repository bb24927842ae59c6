"""Groups of the file are shown and changed at the admin port, and by ``sluice groups``."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import config
from config import Config
from gateway.app import Gateway
from gateway.cli.main import main
from gateway.runtime import durable
from gateway.server import operations
from gateway.server.operations import ConfigSource
from quotas import groups_text
from quotas.groups_file import read_teams
from quotas.groups_text import changed
from testkit.gateway import free_ports
from testkit.raw_client import HOST

ORDERS = '[[groups]]\nname = "orders"\nusers = ["orders-*"]  # all\nowner = "Ann"\n'


class Running:
    """A gateway with a configuration file."""

    def __init__(self, folder: Path, *, groups: str | None = ORDERS, more: str = "") -> None:
        self.groups = folder / "groups.toml"
        self.file = folder / "sluice.toml"
        section = ""
        if groups is not None:
            self.groups.write_text(groups)
            section = f'[groups_file]\npath = "{self.groups}"\n'
        self.port = free_ports(2)
        self.file.write_text(
            f'[upstream]\nbootstrap = ["{HOST}:9"]\n[[listeners]]\nname = "a"\nbind = "{HOST}:{self.port + 1}"\n'
            f'[admin]\nbind = "{HOST}:{self.port}"\n[quota_store]\ndata_dir = "{folder}/data"\n{section}{more}'
        )
        self.gateway = Gateway(self.load(), source=ConfigSource(self.load, lambda _log: None))

    def load(self) -> Config:
        return config.load(self.file)

    async def __aenter__(self) -> Running:
        await self.gateway.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.stop()

    async def ask(self, method: str = "GET", **options: Any) -> tuple[int, Any]:
        url = f"http://{HOST}:{self.gateway.admin.port}/groups"
        async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
            return answer.status, await answer.json()

    async def put(self, **body: Any) -> tuple[int, Any]:
        return await self.ask("PUT", json=body)

    def groups_of(self, user: str) -> tuple[str, ...]:
        return self.gateway.limits.groups.of(user, "c", "10.0.0.1")


async def test_a_member_is_in_the_group_when_the_change_is_answered(tmp_path: Path) -> None:
    async with Running(tmp_path) as running:
        running.groups.chmod(0o640)
        assert await running.ask() == (
            200, {"groups": [{"name": "orders", "users": ["orders-*"], "owner": "Ann"}]}
        )  # fmt: skip
        status, report = await running.put(group="orders", add={"users": ["bob"], "addresses": ["10.1.0.0/16"]})
        assert (status, report["applied"]) == (200, ["groups"])
        assert running.groups_of("bob") == ("orders",)
        assert running.groups.stat().st_mode & 0o777 == 0o640
        assert (await running.put(group="orders", remove={"users": ["bob"]}))[0] == 200
        assert running.groups_of("bob") == ()
        assert (await running.put(group="new", add={"users": ["bob"]}))[0] == 200
        assert running.groups_of("bob") == ("new",)
        assert (await running.put(group="new", delete=True))[0] == 200
        assert running.groups_of("bob") == ()
        assert sorted(os.listdir(tmp_path)) == ["data", "groups.toml", "sluice.toml"]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({"group": "orders", "remove": {"users": ["bob"]}}, 422, "has no 'bob' in users"),
        ({"group": "orders", "remove": {"users": ["orders-*"]}}, 422, "has no members"),
        ({"group": "own", "add": {"users": ["bob"]}}, 422, "is the name of a group in"),
        ({"group": "orders", "add": {"users": ["*"]}}, 422, "would be all clients"),
        ({"group": "orders", "add": {"users": ["\ud800"]}}, 422, "half of a surrogate pair"),
        ({"group": "none", "delete": True}, 422, "no group 'none'"),
        ({"group": "orders"}, 400, "give members"),
        ({"group": "orders", "delete": True, "add": {"users": ["bob"]}}, 400, "give members"),
        ({"group": "orders", "add": {"user": ["bob"]}}, 400, "lists of names by users"),
        ({"group": "orders", "add": {"users": "bob"}}, 400, "lists of names by users"),
        ({"group": "orders", "added": {}}, 400, "no such key: added"),
        ({"add": {"users": ["bob"]}}, 400, "group has to be a name"),
    ],
)
async def test_what_is_not_valid_changes_neither_the_file_nor_the_groups(
    body: dict[str, Any], status: int, why: str, tmp_path: Path
) -> None:
    async with Running(tmp_path, more='[[groups]]\nname = "own"\nusers = ["x"]\n') as running:
        found, answer = await running.put(**body)
        assert found == status
        assert why in answer["error"]
        assert running.groups.read_text() == ORDERS
        assert running.groups_of("orders-1") == ("orders",)


async def test_without_a_file_of_groups_there_is_a_clear_refusal(tmp_path: Path) -> None:
    async with Running(tmp_path, groups=None) as running:
        for status, answer in (await running.ask(), await running.put(group="a", add={"users": ["b"]})):
            assert status == 409
            assert answer["error"] == "there is no file of groups; set [groups_file] path in the configuration"


async def test_changes_at_once_are_all_in_the_file(tmp_path: Path) -> None:
    async with Running(tmp_path) as running:
        answers = await asyncio.gather(
            *(running.put(group="orders", add={"users": [f"user-{at}"]}) for at in range(8))
        )
        assert [status for status, _ in answers] == [200] * 8
        assert all(running.groups_of(f"user-{at}") == ("orders",) for at in range(8))


async def test_a_file_is_read_and_changed_while_clients_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            threads[name] = threading.get_ident()
            return function(*args, **options)

        return call

    monkeypatch.setattr(groups_text, "changed", noted("changed", changed))
    monkeypatch.setattr(operations, "read_teams", noted("read", read_teams))
    async with Running(tmp_path) as running:
        assert (await running.ask())[0] == 200
        assert (await running.put(group="orders", add={"users": ["bob"]}))[0] == 200
    assert threads.keys() == {"read", "changed"}
    assert threading.get_ident() not in threads.values()


async def test_a_change_that_others_make_to_the_file_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ORDERS + '[[groups]]\nname = "own"\nusers = ["y"]\n'
    async with Running(tmp_path, more='[[groups]]\nname = "own"\nusers = ["x"]\n') as running:

        def change(*args: Any, **options: Any) -> str:
            text = changed(*args, **options)
            running.groups.write_text(others)
            return text

        monkeypatch.setattr(groups_text, "changed", change)
        status, answer = await running.put(group="orders", add={"users": ["bob"]})
        assert (status, running.groups.read_text()) == (409, others)
        assert "was changed meanwhile" in answer["error"]


async def test_a_change_that_is_not_valid_does_not_take_back_one_that_others_make_meanwhile(tmp_path: Path) -> None:
    async with Running(tmp_path, more='[[groups]]\nname = "own"\nusers = ["x"]\n') as running:
        others = ORDERS + '[[groups]]\nname = "own"\nusers = ["y"]\n'

        def load() -> Config:
            try:
                return config.load(running.file)
            finally:
                running.groups.write_text(others)

        running.gateway.operations._source = ConfigSource(load, lambda _log: None)
        status, answer = await running.put(group="own", add={"users": ["bob"]})
        assert (status, running.groups.read_text()) == (422, others)
        assert "is the name of a group in" in answer["error"]
        assert "could not be put back" in answer["error"]


async def test_a_change_is_in_force_also_where_the_directory_can_not_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that may be written and not read, which would be no limit for root."""

    def refuse(_directory: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(durable, "sync_directory", refuse)
    async with Running(tmp_path) as running:
        status, _ = await running.put(group="orders", add={"users": ["bob"]})
        in_file = [each.group.users for each in read_teams(running.groups.read_text())]
        assert (status, in_file, running.groups_of("bob")) == (200, [("orders-*", "bob")], ("orders",))


async def test_the_command_shows_and_changes_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with Running(tmp_path) as running:

        async def sluice(*argv: str) -> tuple[int, str, str]:
            capsys.readouterr()
            url = f"{HOST}:{running.gateway.admin.port}"
            code = await asyncio.to_thread(main, ["groups", *argv, "--admin", url])
            out, err = capsys.readouterr()
            return code, "".join(line for line in out.splitlines(keepends=True) if not line.startswith("20")), err

        assert await sluice("add", "orders", "--user", "bob", "--client-id", "app") == (0, "changed: groups\n", "")
        assert await sluice() == (
            0, "GROUP   USERS         CLIENT IDS  ADDRESSES\norders  orders-* bob  app         -\n", ""
        )  # fmt: skip
        code, out, err = await sluice("remove", "orders", "--user", "ann")
        assert (code, out, err) == (1, "", "sluice: refused: group 'orders' has no 'ann' in users\n")
        assert await sluice("delete", "orders") == (0, "changed: groups\n", "")
        assert await sluice() == (0, "no groups in the file\n", "")
        with pytest.raises(SystemExit):
            await sluice("add", "orders")
