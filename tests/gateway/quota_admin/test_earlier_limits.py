"""A file of connection limits that an earlier version kept is taken over once; what is not whole stops the start."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import config
from config.sections.quota_admin import LimitsBy, QuotaAdminSettings
from gateway.quota_admin.earlier_limits import FILE_NAME, TAKEN_OVER, read_limits, sum_of, take_over
from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.live import LiveQuotas
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from testkit.broker_limits import TEXT, ScriptedLimits
from testkit.gateway import gateway_config, running_gateway
from testkit.quota_stores import Seen, limit_alteration, sqlite_store

MAX, RATE = "max.connections", "max.connection.creation.rate"
GONE = "listener.name.gone.max.connections"


def text_of(limits: Mapping[str, str]) -> str:
    return json.dumps({"format": 1, "limits": limits, "sum": sum_of(limits)}, indent=1)


async def start(directory: Path, board: ScriptedLimits, *, read_only: bool = False) -> LiveQuotas:
    """As a gateway does; the store is closed again."""
    live = LiveQuotas(LayeredQuotas(Limits()), sqlite_store(directory), now_ms=lambda: 0)
    found = config.parse(f'{TEXT}[quota_store]\ndata_dir = "{directory}"\n', name="f")
    await live.open()
    if read_only:
        live.store.read_only = "no"  # type: ignore[misc]
    try:
        await take_over(found, live, board.limits)
        live.follow_limits(board.limits)
    finally:
        await live.close()
    return live


@pytest.mark.parametrize("before_formats", [False, True])
def test_limits_are_taken_over_once(tmp_path: Path, before_formats: bool) -> None:
    limits = {RATE: "7", MAX: "2147483647", GONE: "5"}
    text = json.dumps({**limits, RATE: " 7 "}) if before_formats else text_of(limits)
    (tmp_path / FILE_NAME).write_text(text)

    async def steps() -> None:
        board = ScriptedLimits()
        live = await start(tmp_path, board)
        assert (live.kept_limits, board.limits.values) == (limits, {RATE: "7", MAX: "2147483647"})
        assert board.in_force.max_connection_creation_rate == 7
        assert not (tmp_path / FILE_NAME).exists()
        assert (tmp_path / TAKEN_OVER).read_text() == text

        store = sqlite_store(tmp_path)
        await store.open(Seen())
        await store.write(limit_alteration(max_connections=None, max_connection_creation_rate="8"))
        found = [(entry.by, entry.via, entry.key, entry.new) for entry in await store.history(10)]
        assert found[2:] == [("sluice", FILE_NAME, key, limits[key]) for key in (GONE, MAX, RATE)]
        await store.close()

        again = ScriptedLimits()
        await start(tmp_path, again)
        assert again.limits.values == {RATE: "8"}

    asyncio.run(steps())


def test_a_gateway_that_was_killed_before_the_file_was_renamed_takes_it_over_again(tmp_path: Path) -> None:
    async def steps() -> None:
        (tmp_path / FILE_NAME).write_text(text_of({RATE: "7"}))
        await start(tmp_path, ScriptedLimits())
        (tmp_path / TAKEN_OVER).rename(tmp_path / FILE_NAME)
        live = await start(tmp_path, ScriptedLimits())
        assert (live.kept_limits, live.store.version) == ({RATE: "7"}, 1)

    asyncio.run(steps())


def test_where_nothing_can_be_written_the_file_is_in_force_and_stays(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(text_of({RATE: "7"}))
    board = ScriptedLimits()
    asyncio.run(start(tmp_path, board, read_only=True))
    assert board.limits.values == {RATE: "7"}
    assert (tmp_path / FILE_NAME).exists()


def test_a_file_of_before_there_was_a_format_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{}\n")
    live = asyncio.run(start(tmp_path, ScriptedLimits()))
    assert live.kept_limits == {}
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize("text", [
    *("", "{", "[]", "5", "null", '{"foo": "bar"}', "x" * (1 << 21), "[" * 100_000, "\x00"),
    *('{"max.connections": 5}', '{"max.connections": null}', '{"max.connections": "5", "foo": "bar"}'),
    *('{"format": 1}', '{"format": 1, "limits": {}}', '{"format": true, "limits": {}, "sum": ""}'),
    *('{"format": "1", "limits": "5"}', '{"format": 0, "max.connections": "5"}'),
    '{"format": 1, "limits": {"max.connections": "5"}, "sum": ""}',
    '{"format": 1, "limits": [], "sum": ""}',
    # Each could be in force with other limits, or elsewhere.
    *(text_of({"max.connections.per.ip": "0"}), text_of({MAX: "100000"})),
])  # fmt: skip
def test_g04_a_file_that_is_not_whole_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    board = ScriptedLimits()
    with pytest.raises(StoreError, match=rf"{FILE_NAME}: .*; remove it to do without them"):
        asyncio.run(start(tmp_path, board))
    assert board.limits.values == {}
    assert (tmp_path / FILE_NAME).read_text() == text


@pytest.mark.parametrize(("setting", "value"), [
    *((MAX, value) for value in ("-5", "0", "five", "5.0", "٥", "2147483648", "1" * 5_000)),
    *((RATE, value) for value in ("0", "")),
    ("max.connections.per.ip", "-1"),
    ("max.connections.per.ip.overrides", "here:5"),
    ("max.connections.per.ip.overrides", "10.0.0.1:-5"),
    ("listener.name.clients.max.connections", "0"),
    (GONE, "0"),
    ("listener.name.clients.max.connections.per.ip", "5"),
    ("max.idle.ms", "5"),
])  # fmt: skip
def test_g04_a_limit_that_could_not_be_set_stops_the_start(tmp_path: Path, setting: str, value: str) -> None:
    for text in (text_of({setting: value}), json.dumps({setting: value})):
        (tmp_path / FILE_NAME).write_text(text)
        board = ScriptedLimits()
        with pytest.raises(StoreError, match=FILE_NAME):
            asyncio.run(start(tmp_path, board))
        assert board.limits.values == {}


@pytest.mark.slow
def test_g04_no_character_of_the_file_can_be_another_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    limits = {MAX: "20", "listener.name.clients.max.connections": "7"}
    whole = text_of(limits).encode()
    for at, byte in enumerate(whole):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([byte ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert read_limits(path) == limits
            except StoreError:
                continue


def test_limits_of_a_newer_version_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"format": 2, "all": "new"}')
    with pytest.raises(StoreError, match=r"newer version of sluice \(format 2; this one reads 1\)"):
        asyncio.run(start(tmp_path, ScriptedLimits()))


def test_the_file_is_not_looked_at_where_limits_are_the_brokers(tmp_path: Path) -> None:
    async def in_force(limits_by: LimitsBy) -> int | None:
        found = gateway_config([9], quota_store={"kind": "sqlite", "data_dir": str(tmp_path)})
        rights = QuotaAdminSettings(broker_limits=limits_by)
        async with running_gateway(config=found.model_copy(update={"quota_admin": rights})) as running:
            return running.gateway.connections.configured.max_connection_creation_rate

    (tmp_path / FILE_NAME).write_text(json.dumps({RATE: "7"}))
    assert asyncio.run(in_force(LimitsBy.RELAY)) is None
    assert asyncio.run(in_force(LimitsBy.GATEWAY)) == 7
    assert asyncio.run(in_force(LimitsBy.RELAY)) is None
