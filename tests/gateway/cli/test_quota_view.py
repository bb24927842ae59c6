"""``sluice quotas`` of a running gateway: what is in force, and where it came from."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.cli import admin_port
from gateway.cli.quota_view import of_gateway
from quotas.limits import Enforcement
from testkit.admin_commands import sluice
from testkit.gateway import broker_and_gateway, running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration

pytestmark = pytest.mark.asyncio

FROM_FILE = [
    {"user": "alice", "producer_byte_rate": 100, "consumer_byte_rate": 200},
    {"default_user": True, "observe": True, "producer_byte_rate": 5},
]


async def test_list_says_where_each_value_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(9, quotas=FROM_FILE) as running:
        await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 50.0), (APP, FETCH, 7.0)))
        code, out, _ = await sluice(running, capsys, "quotas")
        assert code == 0
        assert [line.split(maxsplit=6)[:1] + line.split(maxsplit=6)[2:] for line in out.splitlines()] == [
            ["USER", "QUOTA", "LIMIT", "MODE", "SOURCE"],
            ["alice", "producer_byte_rate", "50", "B/s", "enforce", "store (file: 100)"],
            ["<default>", "producer_byte_rate", "5", "B/s", "observe", "file"],
            ["alice", "consumer_byte_rate", "200", "B/s", "enforce", "file"],
            ["-", "consumer_byte_rate", "7", "B/s", "enforce", "store"],
        ]
        _, out, _ = await sluice(running, capsys, "quotas", "--json")
        assert [(row["source"], row["file"]) for row in json.loads(out)] == [
            ("store", 100),
            ("file", 5),
            ("file", 200),
            ("store", None),
        ]


async def test_walk_is_that_of_the_running_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(9, quotas=FROM_FILE) as running:
        await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 50.0)))
        running.gateway.operations.set_mode(Enforcement.OBSERVE, by="a test")
        _, out, _ = await sluice(running, capsys, "quotas", "--user", "alice", "--client-id", "x")
        assert "enforcement  observe" in out
        assert "limit       50 B/s, in a burst up to 500" in out
        _, out, _ = await sluice(running, capsys, "quotas", "--ip", "10.0.0.1")
        assert "10.0.0.1" in out


async def test_what_does_not_tell_quotas_is_no_gateway() -> None:
    async with broker_and_gateway() as (_, running):
        port = running.gateway.admin.port
        with pytest.raises(admin_port.AdminPortError, match="no admin port"):
            await asyncio.to_thread(of_gateway, f"http://127.0.0.1:{port}/healthz?")
