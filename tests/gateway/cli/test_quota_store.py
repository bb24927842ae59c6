"""``sluice quotas`` and its sub-commands against a running gateway and its store."""

import asyncio
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.sections.client_ids import ClientIdSettings
from gateway.cli import admin_port
from gateway.cli.quota_view import of_gateway
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import Enforcement
from testkit.admin_commands import sluice
from testkit.gateway import broker_and_gateway, gateway_config, running_gateway
from testkit.quota_stores import ALICE, ANYBODY, APP, FETCH, PRODUCE, alteration

pytestmark = pytest.mark.asyncio
Yaml = Callable[[str], str]
Capsys = pytest.CaptureFixture[str]

FROM_FILE = [
    {"user": "alice", "producer_byte_rate": 100, "consumer_byte_rate": 200},
    {"default_user": True, "observe": True, "producer_byte_rate": 5},
]
FILE_QUOTA = {"user": "alice", "producer_byte_rate": 7}
NO_LOGIN = (
    "sluice: note: user=alice: no listener has SASL or client certificates, so all clients are ANONYMOUS and none "
    "has this name\n"
)
PAIR = QuotaEntity(user=DEFAULT, client_id="app")
TEXT = """\
quotas:
- user: alice
  producer_byte_rate: 1000
- default-user: true
  client-id: app
  request_percentage: 12.5
"""
KEPT = "sluice: note: import is kept for scripts that have it; its name is now: sluice quotas "


@pytest.fixture
def yaml(tmp_path: Path) -> Callable[[str], str]:
    """Writes a file of quotas."""
    path = tmp_path / "quotas.yaml"
    return lambda text: str(path) if path.write_text(text) else ""


async def test_list_says_where_each_value_came_from(capsys: Capsys) -> None:
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
        origins = [("store", 100), ("file", 5), ("file", 200), ("store", None)]
        assert [(row["source"], row["file"]) for row in json.loads(out)] == origins


async def test_walk_shows_the_groups_of_the_running_gateway(capsys: Capsys) -> None:
    groups = [{"name": "team", "users": ["al*"]}, {"name": "other", "users": ["bob"]}]
    quotas = [{"group": name, "producer_byte_rate": 1_000} for name in ("team", "other")]
    async with running_gateway(9, quotas=quotas, groups=groups) as running:
        _, out, _ = await sluice(running, capsys, "quotas", "--user", "alice", "--json")
        found = {each["quota"]: each["groups"] for each in json.loads(out)["quotas"]}
        entity = [{"type": "group", "name": "team"}]
        team = {"entity": entity, "limit": 1_000, "burst_seconds": None, "observe": False}
        assert found["producer_byte_rate"] == [team]


async def test_walk_is_that_of_the_running_gateway(capsys: Capsys) -> None:
    async with running_gateway(9, quotas=FROM_FILE) as running:
        await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 50.0)))
        running.gateway.operations.set_mode(Enforcement.OBSERVE, by="a test")
        _, out, _ = await sluice(running, capsys, "quotas", "--user", "alice", "--client-id", "x")
        assert "enforcement  observe" in out
        assert "limit       50 B/s, bursts up to 500" in out
        _, out, _ = await sluice(running, capsys, "quotas", "--ip", "10.0.0.1")
        assert "10.0.0.1" in out


async def test_what_does_not_tell_quotas_is_no_gateway() -> None:
    async with broker_and_gateway() as (_, running):
        port = running.gateway.admin.port
        with pytest.raises(admin_port.AdminPortError, match="not a Sluice admin port"):
            await asyncio.to_thread(of_gateway, f"http://127.0.0.1:{port}/healthz?")


async def test_history_says_who_when_what_and_how(
    yaml: Yaml, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "olga")
    path = yaml("quotas:\n- user: alice\n  producer_byte_rate: 9\n")
    async with running_gateway(9) as running:
        assert await sluice(running, capsys, "quotas", "history") == (0, "no changes yet\n", "")
        await running.gateway.live_quotas.alter(alteration((ALICE, PRODUCE, 5.0), by="User:bob"))
        await sluice(running, capsys, "quotas", "import", path)
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
        assert (entries[2]["by"], entries[2]["old"]) == ("User:bob", None)


async def test_export_has_the_stores_quotas_in_order_and_comes_back_by_import(yaml: Yaml, capsys: Capsys) -> None:
    changes = [(APP, FETCH, 5.0), (ANYBODY, FETCH, 2.0), (ALICE, FETCH, 3.0), (ALICE, PRODUCE, 4.0)]
    async with running_gateway(9, quotas=[{"user": "carol", "producer_byte_rate": 7}]) as running:
        assert await sluice(running, capsys, "quotas", "export") == (0, "quotas: []\n", "")
        await running.gateway.live_quotas.alter(alteration(*changes))
        code, text, err = await sluice(running, capsys, "quotas", "export")
        assert (code, err) == (0, "")
        assert "carol" in (await sluice(running, capsys, "quotas", "export", "--all"))[1]
    assert text == (
        "quotas:\n- user: alice\n  producer_byte_rate: 4\n  consumer_byte_rate: 3\n"
        "- default-user: true\n  consumer_byte_rate: 2\n- client-id: app\n  consumer_byte_rate: 5\n"
    )
    path = yaml(text)
    async with running_gateway(9) as other:
        await other.gateway.live_quotas.alter(alteration(*reversed(changes[1:])))
        code, out, _ = await sluice(other, capsys, "quotas", "import", path)
        assert (code, out.splitlines()[0]) == (0, "+ client-id=app consumer_byte_rate 5")
        assert (await sluice(other, capsys, "quotas", "export"))[1] == text


async def test_import_sets_what_the_file_says_and_leaves_the_rest(yaml: Yaml, capsys: Capsys) -> None:
    path = yaml(TEXT)
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        limits = running.gateway.limits
        await running.gateway.live_quotas.alter(alteration((APP, FETCH, 5.0)))
        assert await sluice(running, capsys, "quotas", "import", path, "--dry-run") == (
            0,
            "+ user=<default>,client-id=app request_percentage 12.5%\n"
            "+ user=alice producer_byte_rate 1kB\n"
            "2 to change; nothing was changed\n",
            f"{NO_LOGIN}{KEPT}diff\n",
        )
        assert limits.get(ALICE, PRODUCE) == 7
        code, out, _ = await sluice(running, capsys, "quotas", "import", path)
        assert (code, out.splitlines()[-1].partition(" (")[0]) == (0, "2 changed, version 2, from quotas.yaml")
        assert limits.get(ALICE, PRODUCE) == 1000
        assert limits.get(PAIR, QuotaKey.REQUEST_PERCENTAGE) == 12.5
        assert limits.get(APP, FETCH) == 5
        assert await sluice(running, capsys, "quotas", "import", path) == (
            0,
            "no difference\n",
            f"{NO_LOGIN}{KEPT}apply --yes\n",
        )


async def test_import_with_prune_removes_what_the_file_does_not_name(yaml: Yaml, capsys: Capsys) -> None:
    path = yaml("quotas:\n- user: alice\n  consumer_byte_rate: 6\n")
    kept = alteration((ALICE, FETCH, 5), (ALICE, PRODUCE, 1), (APP, FETCH, 2))
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        await running.gateway.live_quotas.alter(kept)
        code, out, _ = await sluice(running, capsys, "quotas", "import", path, "--prune")
        assert (code, [line.partition(" (")[0] for line in out.splitlines()]) == (0, [
            "- client-id=app consumer_byte_rate 2", "~ user=alice consumer_byte_rate 5 -> 6",
            "- user=alice producer_byte_rate 1", "3 to change", "3 changed, version 2, from quotas.yaml",
        ])  # fmt: skip
        # What the configuration says is not the store's, so it is back.
        assert set(running.gateway.limits.items()) == {(ALICE, PRODUCE, 7), (ALICE, FETCH, 6)}


async def test_one_fault_and_nothing_is_changed(yaml: Yaml, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    path = yaml(TEXT + "- ip: here\n  connection_creation_rate: 1\n- user: bob\n  speed: 1\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    async with running_gateway(9, quota_store={"max_quotas": 1}) as running:
        assert await sluice(running, capsys, "quotas", "import", path) == (
            1,
            "",
            f"sluice: {path}: line 7: quotas.2: ip=here: here is a host name, which is not looked up here; "
            "give its address.\n"
            f"sluice: {path}: line 10: quotas.3.speed: unknown key; known keys: user, client-id, ip, topic, group, "
            f"default-user, default-client-id, default-ip, default-topic, {', '.join(QuotaKey)}\n",
        )
        refusal = (
            "sluice: refused: there would be 2 quotas, and quota_store.max_quotas allows 1\n"
            "sluice: the change was sent, and it may have been made in part; run sluice quotas diff\n"
        )
        code, _, err = await sluice(running, capsys, "quotas", "import", "-")
        assert (code, err) == (1, NO_LOGIN + refusal)
        missing = "sluice: /nowhere/q.yaml: cannot be read: No such file or directory\n"
        assert await sluice(running, capsys, "quotas", "import", "/nowhere/q.yaml") == (1, "", missing)
        assert list(running.gateway.limits.items()) == []


@pytest.mark.parametrize("prefixes", [False, True])
async def test_a_quota_that_no_client_can_match_is_set_with_a_note(
    prefixes: bool, yaml: Yaml, capsys: Capsys
) -> None:
    star = 'sluice: note: client-id=etl-*: the star in "etl-*" is part of the name; to match all names with this '
    config = gateway_config([9])
    prefixed = config.model_copy(update={"client_ids": ClientIdSettings(prefixes=prefixes)})
    async with running_gateway(config=prefixed) as running:
        quota = "producer_byte_rate=5"
        code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=etl-*", quota)
        assert (code, err.startswith(star), bool(err)) == (0, not prefixes, not prefixes)
        code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=etl", quota)
        assert (code, err) == (0, "")
        code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=etl-*", "producer_byte_rate=none")
        assert (code, err) == (0, "")
        code, _, err = await sluice(running, capsys, "quotas", "diff", yaml(TEXT))
        assert (code, err) == (2, NO_LOGIN)


@pytest.mark.parametrize(("text", "limit"), [("1MiB", 1048576.0), ("1.5kB/s", 1500.0), ("7", 7.0)])
async def test_set_takes_amounts_with_units(text: str, limit: float, capsys: Capsys) -> None:
    async with running_gateway(9) as running:
        code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=app", f"producer_byte_rate={text}")
        assert (code, err, running.gateway.limits.get(APP, PRODUCE)) == (0, "", limit)


@pytest.mark.parametrize(("text", "fault"), [
    ("1mib", "'1mib' has the unknown unit mib (did you mean 1MiB?); give a number of bytes per second, alone or "),
    ("fast", "'fast' is no number; give a number of bytes per second, alone or with B, kB, MB, GB, TB"),
    ("", "give producer_byte_rate=LIMIT or producer_byte_rate=none"),
    ("0", "must be greater than 0; producer_byte_rate=none removes it"),
])  # fmt: skip
async def test_set_says_how_to_write_a_limit(text: str, fault: str, capsys: Capsys) -> None:
    async with running_gateway(9) as running:
        code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=a", f"producer_byte_rate={text}")
    assert (code, fault in err) == (2, True)


async def test_set_refuses_a_guarantee_as_the_file_does(capsys: Capsys) -> None:
    guarantee = "producer_byte_guarantee=10"
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        for entity, more, fault in (
            ("user=bob", [], "needs producer_byte_rate, the most that this entity gets"),
            ("user=bob", ["--dry-run"], "needs producer_byte_rate, the most that this entity gets"),
            ("user=alice", [], "is more than producer_byte_rate, the most that this entity gets"),
        ):
            code, _, err = await sluice(running, capsys, "quotas", "set", entity, guarantee, *more)
            assert (code, f"sluice: {entity}: producer_byte_guarantee {fault}" in err) == (1, True)
        assert list(running.gateway.limits.entities(QuotaKey.PRODUCER_BYTE_GUARANTEE)) == []
        code, _, _ = await sluice(running, capsys, "quotas", "set", "user=bob", guarantee, "producer_byte_rate=10")
        assert code == 0
        code, _, _ = await sluice(running, capsys, "quotas", "set", "user=bob", "producer_byte_rate=none")
        assert (code, running.gateway.limits.get(QuotaEntity(user="bob"), PRODUCE)) == (1, 10.0)


async def test_set_notes_a_group_that_is_not_there(capsys: Capsys) -> None:
    async with running_gateway(9, groups=[{"name": "team", "users": ["alice"]}]) as running:
        for group, noted in (("team", False), ("tema", True)):
            code, _, err = await sluice(running, capsys, "quotas", "set", f"group={group}", "producer_byte_rate=5")
            assert (code, f"note: group={group}: no [[groups]] entry has this name" in err) == (0, noted)


async def test_set_notes_a_tier_that_has_no_effect(capsys: Capsys) -> None:
    noted = "client-id=a: tier has no effect: this entity has neither producer_byte_rate nor consumer_byte_rate"
    for capacity, keys, note in (
        ({}, ["tier=0"], False),
        ({"producer_byte_rate": 9}, ["tier=0", "consumer_byte_rate=5"], False),
        ({"producer_byte_rate": 9}, ["tier=0"], True),
    ):
        async with running_gateway(9, capacity=capacity) as running:
            for dry_run in (["--dry-run"], []):
                code, _, err = await sluice(running, capsys, "quotas", "set", "client-id=a", *keys, *dry_run)
                assert (code, noted in err) == (0, note)


@pytest.mark.parametrize("observe", [False, True])
async def test_a_running_gateway_says_which_rates_are_shares_of_a_capacity(observe: bool, capsys: Capsys) -> None:
    capacity = {"producer_byte_rate": 9, "observe": observe}
    async with running_gateway(9, quotas=[FILE_QUOTA], capacity=capacity) as running:
        _, out, _ = await sluice(running, capsys, "quotas", "--user", "alice")
    assert ("7 B/s or less, as its share of the capacity" in out) is not observe


async def test_set_sets_and_removes_quotas_of_topics_too(capsys: Capsys) -> None:
    async with running_gateway(9, quotas=[FILE_QUOTA]) as running:
        limits = running.gateway.limits
        topic = QuotaEntity(user="alice", topic="orders")
        code, out, _ = await sluice(
            running, capsys, "quotas", "set", "topic=orders,user=alice", "producer_byte_rate=5"
        )
        assert (code, limits.get(topic, PRODUCE)) == (0, 5.0)
        assert out.splitlines()[0] == "+ user=alice,topic=orders producer_byte_rate 5"
        _, out, _ = await sluice(running, capsys, "quotas")
        assert [line.split()[:3] for line in out.splitlines()][:1] == [["USER", "CLIENT-ID", "TOPIC"]]
        _, out, _ = await sluice(running, capsys, "quotas", "export")
        assert "topic: orders" in out

        for text in ("producer_byte_rate=none", "consumer_byte_rate=none"):
            code, out, _ = await sluice(running, capsys, "quotas", "set", "topic=orders,user=alice", text)
            assert code == 0
        assert limits.get(topic, PRODUCE) is None
        no_difference = "no difference; what the configuration file says stays\n"
        assert out == no_difference
        for address, limit, line in (("10.1", "5", "+ ip=10.0.0.1"), ("::ffff:10.0.0.1", "none", "- ip=10.0.0.1")):
            text = f"connection_creation_rate={limit}"
            _, out, _ = await sluice(running, capsys, "quotas", "set", f"ip={address}", text)
            assert out.startswith(f"{line} connection_creation_rate 5/s\n")
        _, out, _ = await sluice(running, capsys, "quotas", "set", "user=alice", "producer_byte_rate=none")
        assert (out, limits.get(ALICE, PRODUCE)) == (no_difference, 7.0)
        _, out, _ = await sluice(running, capsys, "quotas", "set", "group=team", "request_percentage=50")
        assert out.startswith("+ group=team request_percentage 50")
        assert limits.get(QuotaEntity(group="team"), QuotaKey.REQUEST_PERCENTAGE) == 50.0
        _, out, _ = await sluice(running, capsys, "quotas", "export")
        assert "group: team" in out
        for wrong in (
            "group=<default>",
            "group=g,user=a",
            "topic=a b",
            "topic=t,user=a,client-id=c",
            "topic=t,ip=::1",
        ):
            code, _, err = await sluice(running, capsys, "quotas", "set", wrong, "producer_byte_rate=5")
            assert (code, bool(err)) == (2, True)
        code, _, err = await sluice(running, capsys, "quotas", "set", "topic=t", "request_percentage=5")
        assert "has no such quota; give producer_byte_rate or consumer_byte_rate" in err
