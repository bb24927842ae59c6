"""The admin port's part about quotas: what it takes, from whom, and what it says."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from gateway.quota_admin.store.interface import StoreError
from quotas.layered_quotas import Owner
from testkit.gateway import RunningGateway, running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration
from testkit.raw_client import HOST

ALICE_JSON = [{"type": "user", "name": "alice"}]
LINES = {"Content-Type": "application/x-ndjson"}
ONE = {"entity": ALICE_JSON, "quota": "producer_byte_rate", "limit": 5}


@pytest_asyncio.fixture
async def running() -> AsyncIterator[RunningGateway]:
    async with running_gateway(9, quotas=[{"user": "alice", "producer_byte_rate": 100}]) as running:
        yield running


async def ask(running: RunningGateway, method: str, path: str, **options: Any) -> tuple[int, Any]:
    url = f"http://{HOST}:{running.gateway.admin.port}{path}"
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return answer.status, await answer.json()


async def import_(running: RunningGateway, *rows: Any, query: str = "") -> tuple[int, Any]:
    body = "\n".join(json.dumps(row) for row in rows)
    return await ask(running, "POST", f"/quotas/import{query}", data=body, headers=LINES)


async def test_all_in_force_is_told_with_where_it_came_from(running: RunningGateway) -> None:
    await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 5.0), (APP, FETCH, 2.0)))
    status, answer = await ask(running, "GET", "/quotas")
    assert status == 200
    assert (answer["version"], answer["kind"], answer["read_only"]) == (1, "memory", None)
    assert answer["quotas"] == [
        {
            "entity": ALICE_JSON,
            "quota": "producer_byte_rate",
            "limit": 5.0,
            "source": "store",
            "owner": "",
            "file": 100.0,
        },
        {
            "entity": [{"type": "client-id", "name": "app"}],
            "quota": "consumer_byte_rate",
            "limit": 2.0,
            "source": "store",
            "owner": "",
            "file": None,
        },
    ]


async def test_import_makes_one_alteration_and_tells_the_difference(running: RunningGateway) -> None:
    status, answer = await import_(running, ONE)
    assert (status, answer["made"], answer["version"]) == (200, True, 1)
    assert answer["changes"] == [{"entity": ALICE_JSON, "quota": "producer_byte_rate", "old": None, "new": 5.0}]
    assert running.gateway.limits.get(ALICE, PRODUCE) == 5
    (entry,) = (await ask(running, "GET", "/quotas/history"))[1]["history"]
    assert (entry["by"], entry["via"]) == ("admin port", "admin port, 127.0.0.1")


async def test_name_that_the_caller_gives_is_cut_and_shown_as_told_by_him(running: RunningGateway) -> None:
    assert (await import_(running, ONE, query=f"?user=mallory%1b[2J{'x' * 1000}"))[0] == 200
    (entry,) = (await ask(running, "GET", "/quotas/history"))[1]["history"]
    assert entry["by"] == "admin port"
    assert entry["via"].isprintable()
    assert len(entry["via"]) < 100


@pytest.mark.parametrize(
    ("rows", "headers", "status"),
    [
        ([ONE], {"Origin": "http://127.0.0.1:9644"}, 403),
        ([ONE], {"Content-Type": "application/json"}, 415),
        ([[1]], {}, 422),
        ([7], {}, 422),
        ([{**ONE, "limit": "5"}], {}, 422),
        ([{**ONE, "limit": True}], {}, 422),
        ([{**ONE, "limit": -1}], {}, 422),
        ([{**ONE, "limit": 10**400}], {}, 422),
        ([{**ONE, "quota": "speed"}], {}, 422),
        ([{**ONE, "quota": None}], {}, 422),
        ([{**ONE, "entity": []}], {}, 422),
        ([{**ONE, "entity": "user=alice"}], {}, 422),
        ([{**ONE, "entity": [{"type": "cluster", "name": "a"}]}], {}, 422),
        ([{**ONE, "entity": [*ALICE_JSON, *ALICE_JSON]}], {}, 422),
        ([{**ONE, "entity": [{"type": "user", "name": 7}]}], {}, 422),
        ([ONE, ONE], {}, 422),
    ],
)
async def test_what_is_not_valid_or_not_allowed_changes_nothing(
    running: RunningGateway, rows: list[Any], headers: dict[str, str], status: int
) -> None:
    body = "\n".join(json.dumps(row) for row in rows)
    found, answer = await ask(running, "POST", "/quotas/import", data=body, headers={**LINES, **headers})
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
    assert await import_(running, ONE) == (503, {"error": "disk full"})
    assert running.gateway.limits.get(ALICE, PRODUCE) == 100


async def test_import_replaces_what_another_gateway_has_set_a_moment_ago(
    running: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = running.gateway.live_quotas
    await live.alter(alteration((ALICE, PRODUCE, ONE["limit"])))

    async def catch_up() -> None:
        await live.alter(alteration((ALICE, PRODUCE, 10.0)))

    monkeypatch.setattr(live.store, "catch_up", catch_up)
    status, answer = await import_(running, ONE)
    assert (status, answer["made"]) == (200, True)
    assert running.gateway.limits.get(ALICE, PRODUCE) == ONE["limit"]


async def test_import_that_cannot_see_what_others_have_set_is_refused(
    running: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def catch_up() -> None:
        raise StoreError("no broker")

    monkeypatch.setattr(running.gateway.live_quotas.store, "catch_up", catch_up)
    answer = await import_(running, ONE)
    assert answer == (503, {"error": "no broker"})
    status, _ = await import_(running, ONE, query="?dry_run=true")
    assert status == 200


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5", "9999999999", ""])
async def test_history_has_a_range(running: RunningGateway, limit: str) -> None:
    status, answer = await ask(running, "GET", f"/quotas/history?limit={limit}")
    assert (status, answer["error"]) == (400, "limit has to be 1..100000")


async def test_a_change_is_only_made_where_what_it_expects_is_set(running: RunningGateway) -> None:
    live = running.gateway.live_quotas
    await live.alter(alteration((ALICE, PRODUCE, 7.0)))
    other = {
        "entity": [{"type": "client-id", "name": "app"}],
        "quota": "consumer_byte_rate",
        "limit": 5,
        "expected": None,
    }
    status, answer = await import_(running, other, {**ONE, "expected": 6})
    assert (status, answer["error"]) == (409, "1 quota changed meanwhile, so nothing was changed")
    assert answer["changed"] == [{"entity": ALICE_JSON, "quota": "producer_byte_rate", "expected": 6.0, "found": 7.0}]
    status, _ = await import_(running, {**ONE, "limit": None, "expected": None})
    assert (status, live.store.version) == (409, 1)
    gone = {"entity": other["entity"], "quota": "producer_byte_rate", "limit": None, "expected": 5}
    assert (await import_(running, gone))[0] == 409
    assert (await import_(running, {**ONE, "limit": 7, "expected": 3}))[0] == 409
    assert (await import_(running, {**ONE, "expected": True}))[0] == 422
    assert (await import_(running, other, {**ONE, "expected": 7}))[0] == 200
    assert (live.quotas.override(ALICE, PRODUCE), live.quotas.override(APP, FETCH)) == (5.0, 5.0)


async def test_with_a_file_the_owner_is_apply_and_history_and_audit_name_it(running: RunningGateway) -> None:
    digest = "0123456789abcdef" * 4
    live = running.gateway.live_quotas
    with capture_logs() as lines:
        status, _ = await import_(running, ONE, query=f"?user=olga&file=quotas.yaml&sha256={digest}")
        assert (status, live.quotas.owner(ALICE, PRODUCE)) == (200, Owner.APPLY)
        await import_(running, {**ONE, "limit": 6}, query="?user=olga&file=evil%1b[2J&sha256=no")
        await import_(running, {**ONE, "limit": 7}, query=f"?sha256={digest}")
    assert live.quotas.owner(ALICE, PRODUCE) is Owner.SET
    history = (await ask(running, "GET", "/quotas/history"))[1]["history"]
    assert [entry["via"] for entry in history] == [
        "admin port, 127.0.0.1",
        "admin port, 127.0.0.1, olga, file evil[2J",
        "admin port, 127.0.0.1, olga, file quotas.yaml, sha256 0123456789ab",
    ]
    audit = [line for line in lines if line["event"] == "quota_changed"]
    assert [(line.get("user"), line.get("file"), line.get("sha256")) for line in audit] == [
        ("olga", "quotas.yaml", digest),
        ("olga", "evil[2J", None),
        (None, None, None),
    ]


async def test_an_import_can_not_empty_the_store(running: RunningGateway) -> None:
    await running.gateway.live_quotas.alter(alteration((APP, FETCH, 7.0)))
    status, answer = await import_(running, ONE, query="?prune=true")
    assert (status, answer["error"]) == (
        400,
        "prune is not known: name each quota that is to go, with the limit null",
    )
    assert running.gateway.limits.get(APP, FETCH) == 7.0
