"""``sluice quotas export``: text for Git, and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.main import main
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from testkit.admin_commands import sluice
from testkit.gateway import running_gateway
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration, opened, sqlite_store

pytestmark = pytest.mark.asyncio


async def test_export_has_the_stores_quotas_in_one_order_and_comes_back_by_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [
        (APP, FETCH, 5.0),
        (QuotaEntity(user=DEFAULT), FETCH, 2.0),
        (ALICE, FETCH, 3.0),
        (ALICE, PRODUCE, 4.0),
    ]
    async with running_gateway(9, quotas=[{"user": "carol", "producer_byte_rate": 7}]) as running:
        await running.gateway.live_quotas.alter(alteration(*changes))
        code, text, err = await sluice(running, capsys, "quotas", "export")
        assert (code, err) == (0, "")
        _, all_of_it, _ = await sluice(running, capsys, "quotas", "export", "--all")
    assert text == (
        "quotas:\n- user: alice\n  producer_byte_rate: 4\n  consumer_byte_rate: 3\n"
        "- default_user: true\n  consumer_byte_rate: 2\n- client_id: app\n  consumer_byte_rate: 5\n"
    )
    assert "carol" in all_of_it
    file = tmp_path / "quotas.yaml"
    file.write_text(text)
    async with running_gateway(9) as other:
        await other.gateway.live_quotas.alter(alteration(*reversed(changes[1:])))
        code, out, _ = await sluice(other, capsys, "quotas", "import", str(file))
        assert (code, out) == (0, "+ client-id=app consumer_byte_rate 5\n1 changed, version 2\n")
        assert (await sluice(other, capsys, "quotas", "export"))[1] == text


async def test_addresses_that_were_kept_with_other_spellings_are_listed_and_exported_in_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = {"2001:DB8::1": 5.0, "2001:0db8::2": 6.0, "2001:db8::2": 7.0, "::ffff:10.0.0.0/104": 8.0}
    changes = [(QuotaEntity(ip=name), QuotaKey.CONNECTION_CREATION_RATE, rate) for name, rate in kept.items()]
    store = sqlite_store(tmp_path)
    async with opened(store):
        await store.write(alteration(*changes))
    section = {"kind": "sqlite", "data_dir": str(tmp_path)}
    async with running_gateway(9, quota_store=section) as running:
        code, listed, _ = await sluice(running, capsys, "quotas")
        assert code == 0
        assert all(name in listed for name in kept)
        code, told, _ = await sluice(running, capsys, "quotas", "--ip", "2001:db8::1")
        assert code == 0
        assert "2001:DB8::1" in told
        code, text, err = await sluice(running, capsys, "quotas", "export")
    assert code == 0
    assert text == (
        "quotas:\n- ip: 2001:db8::1\n  connection_creation_rate: 5\n"
        "- ip: 2001:db8::2\n  connection_creation_rate: 7\n"
    )
    assert "::ffff:10.0.0.0/104 connection_creation_rate is left out: it matches no address" in err
    file = tmp_path / "quotas.yaml"
    file.write_text(text)
    async with running_gateway(9) as other:
        assert (await sluice(other, capsys, "quotas", "import", str(file)))[0] == 0


async def test_export_of_nothing_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    async with running_gateway(9) as running:
        assert await sluice(running, capsys, "quotas", "export") == (0, "quotas: []\n", "")


FILE = (
    '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:19092"\n'
    '[[quotas]]\nuser = "carol"\nproducer_byte_rate = 7\n'
)


@pytest.mark.parametrize("before", [True, False], ids=["before the sub-command", "behind it"])
async def test_export_of_a_configuration_file_needs_no_gateway_wherever_config_stands(
    before: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(FILE)
    named = ("--config", str(file))
    assert main(["quotas", *named, "export"] if before else ["quotas", "export", *named]) == 0
    assert capsys.readouterr().out == "quotas:\n- user: carol\n  producer_byte_rate: 7\n"


@pytest.mark.parametrize("command", [("history",), ("import", "-")])
async def test_what_needs_a_store_says_so_when_a_file_is_named_instead(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(FILE)
    assert main(["quotas", "--config", str(file), *command]) == 2
    assert "--admin names the gateway that has it" in capsys.readouterr().err
