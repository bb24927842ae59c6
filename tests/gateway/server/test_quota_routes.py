"""The admin port's part about quotas: what it takes, from whom, and what it tells."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from gateway.quota_admin.store.interface import StoreError
from testkit.gateway import RunningGateway, running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration
from testkit.raw_client import HOST

pytestmark = pytest.mark.asyncio

ALICE_JSON = [{"type": "user", "name": "alice"}]
ONE = {"entity": ALICE_JSON, "quota": "producer_byte_rate", "limit": 5}


@pytest_asyncio.fixture
async def running() -> AsyncIterator[RunningGateway]:
    async with running_gateway(9, quotas=[{"user": "alice", "producer_byte_rate": 100}]) as running:
        yield running


async def ask(running: RunningGateway, method: str, path: str, **options: Any) -> tuple[int, Any]:
    url = f"http://{HOST}:{running.gateway.admin.port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return answer.status, await answer.json()


async def test_all_in_force_is_told_with_where_it_came_from(running: RunningGateway) -> None:
    await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 5.0), (APP, FETCH, 2.0)))
    status, answer = await ask(running, "GET", "/quotas")
    assert status == 200
    assert (answer["version"], answer["kind"], answer["read_only"]) == (1, "memory", None)
    assert answer["quotas"] == [
        {"entity": ALICE_JSON, "quota": "producer_byte_rate", "limit": 5.0, "source": "store", "file": 100.0},
        {
            "entity": [{"type": "client-id", "name": "app"}],
            "quota": "consumer_byte_rate",
            "limit": 2.0,
            "source": "store",
            "file": None,
        },
    ]


async def test_import_makes_one_alteration_and_tells_the_difference(running: RunningGateway) -> None:
    status, answer = await ask(running, "POST", "/quotas/import", json={"quotas": [ONE]})
    assert (status, answer["made"], answer["version"]) == (200, True, 1)
    assert answer["changes"] == [
        {"entity": ALICE_JSON, "quota": "producer_byte_rate", "old": None, "new": 5.0}
    ]
    assert running.gateway.limits.get(ALICE, PRODUCE) == 5
    (entry,) = (await ask(running, "GET", "/quotas/history"))[1]["history"]
    assert (entry["by"], entry["via"]) == ("admin port", "admin port, 127.0.0.1")


async def test_name_that_the_caller_gives_is_cut_and_shown_as_told_by_him(running: RunningGateway) -> None:
    body = {"quotas": [ONE], "user": "mallory\x1b[2J" + "x" * 1000}
    assert (await ask(running, "POST", "/quotas/import", json=body))[0] == 200
    (entry,) = (await ask(running, "GET", "/quotas/history"))[1]["history"]
    assert entry["by"] == "admin port"
    assert entry["via"].isprintable()
    assert len(entry["via"]) < 100


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"json": {"quotas": [ONE]}, "headers": {"Origin": "http://127.0.0.1:9644"}}, 403),
        ({"data": b'{"quotas":[]}', "headers": {"Content-Type": "text/plain"}}, 415),
        ({"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
        ({"json": [1]}, 400),
        ({"json": {}}, 422),
        ({"json": {"quotas": {"a": 1}}}, 422),
        ({"json": {"quotas": [7]}}, 422),
        ({"json": {"quotas": [{**ONE, "limit": "5"}]}}, 422),
        ({"json": {"quotas": [{**ONE, "limit": True}]}}, 422),
        ({"json": {"quotas": [{**ONE, "limit": -1}]}}, 422),
        ({"json": {"quotas": [{**ONE, "limit": 10**400}]}}, 422),
        ({"json": {"quotas": [{**ONE, "quota": "speed"}]}}, 422),
        ({"json": {"quotas": [{**ONE, "quota": None}]}}, 422),
        ({"json": {"quotas": [{**ONE, "entity": []}]}}, 422),
        ({"json": {"quotas": [{**ONE, "entity": "user=alice"}]}}, 422),
        ({"json": {"quotas": [{**ONE, "entity": [{"type": "group", "name": "a"}]}]}}, 422),
        ({"json": {"quotas": [{**ONE, "entity": [*ALICE_JSON, *ALICE_JSON]}]}}, 422),
        ({"json": {"quotas": [{**ONE, "entity": [{"type": "user", "name": 7}]}]}}, 422),
        ({"json": {"quotas": [ONE, ONE]}}, 422),
    ],
)
async def test_what_is_not_valid_or_not_allowed_changes_nothing(
    running: RunningGateway, options: dict[str, Any], status: int
) -> None:
    found, answer = await ask(running, "POST", "/quotas/import", **options)
    assert found == status
    assert answer["error"]
    assert running.gateway.limits.get(ALICE, PRODUCE) == 100
    assert running.gateway.live_quotas.store.version == 0


async def test_store_that_refuses_is_told_and_nothing_changes(
    running: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_alteration: object) -> int:
        raise StoreError("disk full")

    monkeypatch.setattr(running.gateway.live_quotas.store, "write", refuse)
    assert await ask(running, "POST", "/quotas/import", json={"quotas": [ONE]}) == (
        503,
        {"error": "disk full"},
    )
    assert running.gateway.limits.get(ALICE, PRODUCE) == 100


async def test_import_replaces_what_another_gateway_has_set_a_moment_ago(
    running: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = running.gateway.live_quotas
    await live.alter(alteration((ALICE, PRODUCE, ONE["limit"])))

    async def catch_up() -> None:
        await live.alter(alteration((ALICE, PRODUCE, 10.0)))

    monkeypatch.setattr(live.store, "catch_up", catch_up)
    status, answer = await ask(running, "POST", "/quotas/import", json={"quotas": [ONE]})
    assert (status, answer["made"]) == (200, True)
    assert running.gateway.limits.get(ALICE, PRODUCE) == ONE["limit"]


async def test_import_that_cannot_see_what_others_have_set_is_refused(
    running: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def catch_up() -> None:
        raise StoreError("no broker")

    monkeypatch.setattr(running.gateway.live_quotas.store, "catch_up", catch_up)
    answer = await ask(running, "POST", "/quotas/import", json={"quotas": [ONE]})
    assert answer == (503, {"error": "no broker"})
    status, _ = await ask(running, "POST", "/quotas/import", json={"quotas": [ONE], "dry_run": True})
    assert status == 200


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "9999999999", ""])
async def test_history_has_a_range(running: RunningGateway, limit: str) -> None:
    status, answer = await ask(running, "GET", f"/quotas/history?limit={limit}")
    assert (status, answer["error"]) == (400, "limit has to be 1..100000")
