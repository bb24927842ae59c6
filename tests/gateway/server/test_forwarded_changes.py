"""Two processes of an upgrade, as far as quotas and their enforcement go, with a queue for the link between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from config import Config
from gateway.quota_admin.store.interface import Alteration, LimitChange
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.server.forwarded_changes import MODE, ForwardedChanges
from gateway.server.operations import ConfigSource, Operations
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, Owner, QuotaChange
from quotas.limits import Enforcement

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
ALICE, ALL = QuotaEntity("alice"), QuotaEntity(client_id=DEFAULT)
BASE: dict[str, Any] = {"upstream": {"bootstrap": ["k:1"]}, "listeners": [{"name": "a", "bind": "127.0.0.1:19092"}]}


class Process:
    """Its quotas are those of a file that both read, and of a store in memory."""

    def __init__(self, file: dict[str, Any], *, both_follow: bool = False) -> None:
        config = Config.model_validate(file)
        self.file = file
        self.limits = config.quota_limits()
        layered = LayeredQuotas(self.limits)
        self.live = LiveQuotas(layered, MemoryStore(now_ms=lambda: 0), now_ms=lambda: 0)

        async def tier_use(_tier: int) -> dict[QuotaKey, float]:
            return {}

        self.operations = Operations(
            config,
            layered,
            ConfigSource(lambda: Config.model_validate(file), lambda _log: None),
            apply=lambda _plan: None,
            on_reload=lambda _report: None,
            tier_use=tier_use,
        )
        self.changes = ForwardedChanges(self.live, self.operations, both_follow=both_follow)

    def quota(self, entity: QuotaEntity) -> float | None:
        return self.limits.get(entity, PRODUCE)

    async def alter(self, *changes: QuotaChange | LimitChange) -> None:
        await self.live.alter(Alteration("a test", "a test", changes))


@pytest.fixture
def file() -> dict[str, Any]:
    return {**BASE, "quotas": [{"user": "alice", "producer_byte_rate": 1_000}]}


async def test_what_is_changed_in_the_new_process_holds_in_the_old_one_too(file: dict[str, Any]) -> None:
    old, new = Process(file), Process(file)
    await old.live.open()
    await new.live.open()
    sent: list[tuple[str, Sequence[Any]]] = []
    new.changes.tell(lambda what, rows: sent.append((what, rows)))

    async def arrive() -> None:
        for what, rows in sent:
            await old.changes.take(what, rows)
        sent.clear()

    await new.alter(
        QuotaChange(ALICE, PRODUCE, 5.0, Owner.SET),
        QuotaChange(ALL, PRODUCE, 7.0),
        LimitChange("max.connections", "9"),
    )
    await arrive()
    assert (old.quota(ALICE), old.quota(ALL)) == (5.0, 7.0)
    assert old.live.quotas.owner(ALICE, PRODUCE) is Owner.SET
    await new.alter(QuotaChange(ALICE, PRODUCE, None), QuotaChange(ALL, PRODUCE, None))
    await arrive()
    assert (old.quota(ALICE), old.quota(ALL)) == (1_000, None)
    await new.operations.switch(Enforcement.OFF, by="a test")
    await arrive()
    assert old.operations.mode is Enforcement.OFF
    file["quotas"] = [{"user": "alice", "producer_byte_rate": 2_000}]
    await new.operations.reload(by="a test")
    await arrive()
    assert old.quota(ALICE) == 2_000
    await old.changes.take("quotas", [["of another version"], [[{"type": "team", "name": "a"}], PRODUCE, 5.0, ""]])
    new.changes.stop()
    await new.operations.switch(Enforcement.ENFORCE, by="a test")
    await new.alter(QuotaChange(ALICE, PRODUCE, 5.0))
    assert not sent


async def test_changes_that_both_read_from_a_topic_are_not_passed_on(file: dict[str, Any]) -> None:
    new = Process(file, both_follow=True)
    await new.live.open()
    sent: list[str] = []
    new.changes.tell(lambda what, _rows: sent.append(what))
    await new.alter(QuotaChange(ALICE, PRODUCE, 5.0))
    await new.operations.switch(Enforcement.OFF, by="a test")
    assert sent == [MODE]


@pytest.mark.parametrize(
    ("set_by_hand", "file_mode", "new_file_mode", "taken_over"),
    [
        ("observe", "enforce", "enforce", "observe"),
        ("enforce", "observe", "observe", "enforce"),
        (None, "enforce", "enforce", "enforce"),
        ("observe", "enforce", "off", "off"),  # the file was changed since
    ],
)
async def test_the_new_process_keeps_a_mode_that_was_set_by_hand(
    file: dict[str, Any], set_by_hand: str | None, file_mode: str, new_file_mode: str, taken_over: str
) -> None:
    old = Process({**file, "enforcement": {"mode": file_mode}})
    new = Process({**file, "enforcement": {"mode": new_file_mode}})
    if set_by_hand is not None:
        await old.operations.switch(Enforcement(set_by_hand), by="a test")
    for told in (old.changes.mode, [], ["of another version", file_mode]):
        await new.changes.take_mode(told)
    assert new.operations.mode.value == taken_over


@pytest.mark.parametrize("new_file_mode", ["enforce", "observe"])
async def test_a_mode_that_was_set_by_hand_outlives_a_reload_in_both_processes(
    file: dict[str, Any], new_file_mode: str
) -> None:
    """Also where the old process was started with another mode in the file."""
    old = Process({**file, "enforcement": {"mode": "enforce"}})
    new_file = {**file, "enforcement": {"mode": new_file_mode}}
    new = Process(new_file)
    old.file |= new_file
    sent: list[tuple[str, Sequence[Any]]] = []
    new.changes.tell(lambda what, rows: sent.append((what, rows)))
    await new.operations.switch(Enforcement.OFF, by="a test")
    await new.operations.reload(by="a test")
    for what, rows in sent:
        await old.changes.take(what, rows)
    assert (old.operations.mode, new.operations.mode) == (Enforcement.OFF, Enforcement.OFF)
