"""Limits that were set over the wire outlive the gateway; what is not ours in their place is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import config
from config.quota_admin_section import LimitsBy, QuotaAdminSettings
from gateway.limits_file import FILE_NAME, LimitsFile, limits_directory
from gateway.store.interface import StoreError
from tests.support.broker_limits import TEXT, ScriptedLimits
from tests.support.gateway import gateway_config, running_gateway

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
        assert json.loads((tmp_path / FILE_NAME).read_text()) == board.limits.values

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


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"max.connections": 5}', '{"max.connections": "five"}', "x" * (1 << 21)]
)
def test_g04_a_file_that_is_not_whole_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(StoreError, match=FILE_NAME):
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
