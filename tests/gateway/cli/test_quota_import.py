"""``sluice quotas import`` against a running gateway."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from testkit.admin_commands import sluice
from testkit.gateway import running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration

pytestmark = pytest.mark.asyncio

TEXT = """\
quotas:
- user: alice
  producer_byte_rate: 1000
- default_user: true
  client_id: app
  request_percentage: 12.5
"""
PAIR = QuotaEntity(user=DEFAULT, client_id="app")
FILE_QUOTA = {"user": "alice", "producer_byte_rate": 7}


async def test_import_sets_what_the_file_says_and_leaves_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(TEXT)
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        limits = running.gateway.limits
        await running.gateway.live_quotas.alter(alteration((APP, FETCH, 5.0)))
        assert await sluice(running, capsys, "quotas", "import", str(file), "--dry-run") == (
            0,
            "+ user=<default>,client-id=app request_percentage 12.5\n"
            "+ user=alice producer_byte_rate 1000\n"
            "2 to change; nothing was, since this is a dry run\n",
            "",
        )
        assert limits.get(ALICE, PRODUCE) == 7
        code, out, _ = await sluice(running, capsys, "quotas", "import", str(file))
        assert (code, out.splitlines()[-1]) == (0, "2 changed, version 2")
        assert limits.get(ALICE, PRODUCE) == 1000
        assert limits.get(PAIR, QuotaKey.REQUEST_PERCENTAGE) == 12.5
        assert limits.get(APP, FETCH) == 5
        assert await sluice(running, capsys, "quotas", "import", str(file)) == (0, "no difference\n", "")


async def test_import_with_prune_removes_what_the_file_does_not_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text("quotas:\n- user: alice\n  consumer_byte_rate: 6\n")
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        await running.gateway.live_quotas.alter(
            alteration((ALICE, FETCH, 5), (ALICE, PRODUCE, 1), (APP, FETCH, 2))
        )
        code, out, _ = await sluice(running, capsys, "quotas", "import", str(file), "--prune")
        assert (code, out.splitlines()) == (
            0,
            [
                "- client-id=app consumer_byte_rate 2",
                "~ user=alice consumer_byte_rate 5 -> 6",
                "- user=alice producer_byte_rate 1",
                "3 changed, version 2",
            ],
        )
        # What the configuration says is not the store's, so it is back.
        assert set(running.gateway.limits.items()) == {(ALICE, PRODUCE, 7), (ALICE, FETCH, 6)}


async def test_one_fault_and_nothing_is_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(TEXT + "- ip: here\n  connection_creation_rate: 1\n- user: bob\n  speed: 1\n")
    async with running_gateway(9) as running:
        assert await sluice(running, capsys, "quotas", "import", str(file)) == (
            2,
            "",
            f"sluice: {file}: quotas.2: ip=here: here is not a valid IP or resolvable host.\n"
            f"sluice: {file}: quotas.3: user=bob: Invalid configuration key speed\n",
        )
        assert list(running.gateway.limits.items()) == []


async def test_store_that_refuses_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    async with running_gateway(9, quota_store={"max_quotas": 1}) as running:
        assert await sluice(running, capsys, "quotas", "import", "-") == (
            1,
            "",
            "sluice: refused: there would be 2 quotas, and quota_store.max_quotas allows 1\n",
        )


async def test_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(9) as running:
        code, _, err = await sluice(running, capsys, "quotas", "import", "/nowhere/q.yaml")
        assert (code, err) == (2, "sluice: /nowhere/q.yaml: cannot be read: No such file or directory\n")
