"""``sluice quotas history``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from gateway.cli.main import main
from testkit.admin_commands import sluice
from testkit.gateway import running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration

pytestmark = pytest.mark.asyncio


async def test_history_says_who_when_what_and_through_which_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    file = tmp_path / "quotas.yaml"
    file.write_text("quotas:\n- user: alice\n  producer_byte_rate: 9\n")
    async with running_gateway(9) as running:
        assert await sluice(running, capsys, "quotas", "history") == (0, "nothing was changed so far\n", "")
        await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 5.0), by="User:bob"))
        await sluice(running, capsys, "quotas", "import", str(file))
        await running.gateway.live_quotas.alter(alteration((APP, FETCH, 5.0), by="evil\x1b[2J"))
        code, out, _ = await sluice(running, capsys, "quotas", "history", "--limit", "2")
        assert code == 0
        head, foreign, imported = out.splitlines()
        assert head.split() == ["VERSION", "TIME", "BY", "VIA", "ENTITY", "QUOTA", "OLD", "NEW"]
        assert "\x1b" not in foreign
        assert imported.startswith("2  ")
        assert "admin port, 127.0.0.1, olga" in imported
        assert imported.split()[-4:] == ["user=alice", "producer_byte_rate", "5", "9"]
        _, out, _ = await sluice(running, capsys, "quotas", "history", "--json")
        entries = json.loads(out)
        assert [entry["version"] for entry in entries] == [3, 2, 1]
        assert entries[2]["by"] == "User:bob"
        assert entries[2]["old"] is None


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1e3", "100001", "٣"])
async def test_limit_has_a_range(capsys: pytest.CaptureFixture[str], limit: str) -> None:
    with pytest.raises(SystemExit):
        main(["quotas", "history", f"--limit={limit}"])
    assert "1..100000" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["history"], ["export"], ["import", "-"]])
async def test_admin_port_may_stand_before_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"quotas: []")))
    assert main(["quotas", "--admin", "127.0.0.1:9", *command]) == 1
    assert "http://127.0.0.1:9:" in capsys.readouterr().err
