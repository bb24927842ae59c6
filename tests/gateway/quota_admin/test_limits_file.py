"""Limits that were set over the wire outlive the gateway; what is not ours in their place is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import config
from config.sections.quota_admin import LimitsBy, QuotaAdminSettings
from gateway.quota_admin.limits_file import FILE_NAME, LimitsFile, limits_directory, read_limits, write_limits
from gateway.quota_admin.store.interface import StoreError
from testkit.broker_limits import TEXT, ScriptedLimits
from testkit.gateway import gateway_config, running_gateway

RATE = "max.connection.creation.rate"


def run(step: Coroutine[Any, Any, None]) -> None:
    asyncio.run(step)


async def change(file: LimitsFile, **changes: str | None) -> str | None:
    told: list[str | None] = []
    file.change(
        {key.replace("_", "."): value for key, value in changes.items()},
        lambda failure, _now_ms: told.append(failure),
    )
    assert told == [], "never from within the call"
    await file.finish()
    (failure,) = told
    return failure


def test_what_was_set_is_in_force_again_after_a_restart(tmp_path: Path) -> None:
    async def steps() -> None:
        file = LimitsFile(tmp_path, lambda: 0)
        board = ScriptedLimits()
        await file.restore(board.limits)
        assert await change(file, max_connection_creation_rate="5") is None
        assert await change(file, max_connections="20") is None
        assert await change(file, max_connections=None) is None
        again = ScriptedLimits()
        await LimitsFile(tmp_path, lambda: 0).restore(again.limits)
        assert again.limits.values == {RATE: "5"}
        assert again.in_force.max_connection_creation_rate == 5

    run(steps())


def test_two_changes_at_once_are_both_made(tmp_path: Path) -> None:
    async def steps() -> None:
        file = LimitsFile(tmp_path, lambda: 0)
        board = ScriptedLimits()
        await file.restore(board.limits)
        told: list[str | None] = []
        file.change({RATE: "5"}, lambda failure, _now_ms: told.append(failure))
        file.change({"max.connections": "20"}, lambda failure, _now_ms: told.append(failure))
        await file.finish()
        assert told == [None, None]
        assert board.limits.values == {RATE: "5", "max.connections": "20"}
        assert json.loads((tmp_path / FILE_NAME).read_text())["limits"] == board.limits.values

    run(steps())


def test_g02_limits_that_can_not_be_kept_are_not_in_force(tmp_path: Path) -> None:
    async def steps() -> None:
        (tmp_path / "file").write_text("in the way")
        file = LimitsFile(tmp_path / "file" / "data", lambda: 0)
        board = ScriptedLimits()
        await file.restore(board.limits)
        failure = await change(file, max_connection_creation_rate="5")
        assert failure is not None
        assert failure.startswith("cannot keep the limits: ")
        assert board.limits.values == {}
        assert board.in_force.max_connection_creation_rate is None

    run(steps())


def test_without_a_directory_limits_last_as_long_as_the_process() -> None:
    async def steps() -> None:
        file = LimitsFile(None, lambda: 0)
        board = ScriptedLimits()
        await file.restore(board.limits)
        assert await change(file, max_connection_creation_rate="5") is None
        assert board.limits.values == {RATE: "5"}

    run(steps())


def test_more_than_the_machine_can_do_is_refused_when_it_is_to_be_made() -> None:
    async def steps() -> None:
        file = LimitsFile(None, lambda: 0)
        await file.restore(ScriptedLimits().limits)
        failure = await change(file, max_connections="100000")
        assert failure is not None
        assert "file descriptors" in failure

    run(steps())


def test_a_file_of_before_there_was_a_format_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{}\n")
    board = ScriptedLimits()
    run(LimitsFile(tmp_path, lambda: 0).restore(board.limits))
    assert board.limits.values == {}


def test_no_connections_of_any_address_without_overrides_stop_the_start(tmp_path: Path) -> None:
    write_limits(tmp_path / FILE_NAME, {"max.connections.per.ip": "0"})
    board = ScriptedLimits()
    with pytest.raises(StoreError, match="can be set to zero only if"):
        run(LimitsFile(tmp_path, lambda: 0).restore(board.limits))
    assert board.limits.values == {}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "5", "null", '{"foo": "bar"}', "x" * (1 << 21), "[" * 100_000, "\x00"),
        *('{"max.connections": 5}', '{"max.connections": null}', '{"max.connections": "5", "foo": "bar"}'),
        *('{"format": 1}', '{"format": 1, "limits": {}}', '{"format": true, "limits": {}, "sum": ""}'),
        *('{"format": "1", "limits": "5"}', '{"format": 0, "max.connections": "5"}'),
        '{"format": 1, "limits": {"max.connections": "5"}, "sum": ""}',
        '{"format": 1, "limits": [], "sum": ""}',
    ],
)
def test_g04_a_file_that_is_not_whole_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    board = ScriptedLimits()
    with pytest.raises(StoreError, match=rf"{FILE_NAME}: .*; remove it to do without them"):
        run(LimitsFile(tmp_path, lambda: 0).restore(board.limits))
    assert board.limits.values == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max.connections", "-5"),
        ("max.connections", "0"),
        ("max.connections", "five"),
        ("max.connections", "5.0"),
        ("max.connections", "٥"),
        ("max.connections", "2147483648"),
        ("max.connections", "1" * 5_000),
        (RATE, "0"),
        (RATE, ""),
        ("max.connections.per.ip", "-1"),
        ("max.connections.per.ip.overrides", "here:5"),
        ("max.connections.per.ip.overrides", "10.0.0.1:-5"),
        ("listener.name.clients.max.connections", "0"),
        ("listener.name.gone.max.connections", "0"),
        ("listener.name.clients.max.connections.per.ip", "5"),
        ("max.idle.ms", "5"),
    ],
)
def test_g04_a_limit_that_could_not_be_set_stops_the_start(tmp_path: Path, setting: str, value: str) -> None:
    write_limits(tmp_path / FILE_NAME, {setting: value})
    new = (tmp_path / FILE_NAME).read_text()
    for text in (new, json.dumps({setting: value})):
        (tmp_path / FILE_NAME).write_text(text)
        board = ScriptedLimits()
        with pytest.raises(StoreError, match=FILE_NAME):
            run(LimitsFile(tmp_path, lambda: 0).restore(board.limits))
        assert board.limits.values == {}


def test_g04_no_character_of_the_file_can_be_another_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    limits = {"max.connections": "20", "listener.name.clients.max.connections": "7"}
    write_limits(path, limits)
    whole = path.read_bytes()
    for at, byte in enumerate(whole):
        for bit in range(8):
            path.write_bytes(whole[:at] + bytes([byte ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert read_limits(path) == limits
            except StoreError:
                continue


def test_limits_of_before_there_was_a_format_are_read_and_kept_in_the_new_form(tmp_path: Path) -> None:
    async def steps() -> None:
        (tmp_path / FILE_NAME).write_text(json.dumps({RATE: " 7 ", "max.connections": "2147483647"}))
        file, board = LimitsFile(tmp_path, lambda: 0), ScriptedLimits()
        await file.restore(board.limits)
        assert board.limits.values == {RATE: "7", "max.connections": "2147483647"}
        assert await change(file, max_connections=None, **{RATE: None}) is None
        assert json.loads((tmp_path / FILE_NAME).read_text())["limits"] == {}
        again = ScriptedLimits()
        await LimitsFile(tmp_path, lambda: 0).restore(again.limits)
        assert again.limits.values == {}

    run(steps())


def test_limits_of_a_newer_version_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"format": 2, "all": "new"}')
    with pytest.raises(StoreError, match=r"newer version of sluice \(format 2; this one reads 1\)"):
        run(LimitsFile(tmp_path, lambda: 0).restore(ScriptedLimits().limits))


def test_limits_of_a_listener_that_is_gone_are_left_out(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"listener.name.gone.max.connections": "5", RATE: "7"}))
    board = ScriptedLimits()
    run(LimitsFile(tmp_path, lambda: 0).restore(board.limits))
    assert board.limits.values == {RATE: "7"}


def test_limits_are_kept_beside_the_quotas() -> None:
    assert limits_directory(config.parse(TEXT, name="f")) == Path("sluice-data")
    assert limits_directory(config.parse(f'{TEXT}[quota_store]\nkind = "memory"\n', name="f")) is None


def test_what_was_kept_is_not_in_force_where_limits_are_the_brokers(tmp_path: Path) -> None:
    async def in_force(limits_by: LimitsBy) -> int | None:
        found = gateway_config([9], quota_store={"kind": "sqlite", "data_dir": str(tmp_path)})
        rights = QuotaAdminSettings(broker_limits=limits_by)
        async with running_gateway(config=found.model_copy(update={"quota_admin": rights})) as running:
            return running.gateway.connections.configured.max_connection_creation_rate

    (tmp_path / FILE_NAME).write_text(json.dumps({RATE: "7"}))
    assert asyncio.run(in_force(LimitsBy.GATEWAY)) == 7
    assert asyncio.run(in_force(LimitsBy.RELAY)) is None
