"""Alterations under way: answered once each, whatever the store does; and the audit lines."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import structlog

from gateway.observability.logging_setup import setup
from gateway.quota_admin.alterations import AlterationRunner
from gateway.quota_admin.audit import AuditLog
from gateway.quota_admin.rights import Asker
from gateway.quota_admin.store.interface import Alteration
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from quotas.entities import QuotaEntity, QuotaKey
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits

NOW_MS = 7_300_000
RATE = QuotaKey.PRODUCER_BYTE_RATE
ALICE = QuotaEntity(user="alice")
ASKER = Asker("alice", "192.0.2.1:40000", "tests")


def alteration(value: float) -> Alteration:
    return Alteration("alice", "a test", (QuotaChange(ALICE, RATE, value),))


def run(step: Coroutine[Any, Any, None]) -> None:
    asyncio.run(step)


class Told:
    """What the client of an alteration is told."""

    def __init__(self) -> None:
        self.answers: list[tuple[str | None, int]] = []

    def __call__(self, failure: str | None, now_ms: int) -> None:
        self.answers.append((failure, now_ms))


async def opened(store: MemoryStore) -> tuple[AlterationRunner, LiveQuotas]:
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: NOW_MS)
    await live.open()
    return AlterationRunner(live, lambda: NOW_MS), live


def test_an_alteration_is_answered_when_it_is_in_force_and_not_from_within_the_call() -> None:
    async def steps() -> None:
        desk, live = await opened(MemoryStore(now_ms=lambda: 0))
        told = Told()
        desk.alter(alteration(5), told)
        assert told.answers == []
        await desk.finish()
        assert told.answers == [(None, NOW_MS)]
        assert live.quotas.limits.get(ALICE, RATE) == 5

    run(steps())


def test_the_stores_own_words_are_the_answer_when_it_can_not() -> None:
    async def steps() -> None:
        store = MemoryStore(now_ms=lambda: 0)
        store.read_only = "the disk is full"
        desk, live = await opened(store)
        told = Told()
        desk.alter(alteration(5), told)
        await desk.finish()
        assert told.answers == [("the disk is full", NOW_MS)]
        assert live.quotas.limits.get(ALICE, RATE) is None

    run(steps())


def test_a_bug_of_the_store_is_answered_without_its_words() -> None:
    class Broken(MemoryStore):
        async def write(self, alteration: Alteration) -> int:
            raise RuntimeError("secret")

    async def steps() -> None:
        desk, _ = await opened(Broken(now_ms=lambda: 0))
        told = Told()
        desk.alter(alteration(5), told)
        await desk.finish()
        assert told.answers == [("the quota store failed", NOW_MS)]

    run(steps())


def test_g16_a_draining_gateway_refuses_alterations_and_says_so() -> None:
    async def steps() -> None:
        desk, live = await opened(MemoryStore(now_ms=lambda: 0))
        live.drain()
        told = Told()
        desk.alter(alteration(5), told)
        await desk.finish()
        assert told.answers == [("the gateway is shutting down", NOW_MS)]

    run(steps())


def test_a_connection_that_fails_to_take_its_answer_stops_nobody() -> None:
    def fails(_failure: str | None, _now_ms: int) -> None:
        raise RuntimeError("gone")

    async def steps() -> None:
        desk, live = await opened(MemoryStore(now_ms=lambda: 0))
        desk.alter(alteration(5), fails)
        await desk.finish()
        assert live.quotas.limits.get(ALICE, RATE) == 5

    run(steps())


def test_g06_of_fifty_concurrent_alterations_each_is_answered_and_the_last_stands() -> None:
    async def steps() -> None:
        desk, live = await opened(MemoryStore(now_ms=lambda: 0))
        told = Told()
        for value in range(1, 51):
            desk.alter(alteration(value), told)
        await desk.finish()
        assert told.answers == [(None, NOW_MS)] * 50
        assert live.quotas.limits.get(ALICE, RATE) == 50

    run(steps())


def test_long_work_leaves_room_for_others_between_its_steps() -> None:
    seen: list[object] = []

    def steps() -> Iterator[None]:
        for at in range(3):
            seen.append(at)
            yield

    async def others() -> None:
        for _ in range(3):
            seen.append("other")
            await asyncio.sleep(0)

    async def both() -> None:
        desk, _ = await opened(MemoryStore(now_ms=lambda: 0))
        desk.slowly(steps(), seen.append)
        await others()
        await desk.finish()

    run(both())
    assert seen == ["other", 0, "other", 1, "other", 2, NOW_MS]


def test_long_work_is_done_one_after_the_other() -> None:
    # However many ask for a list of everything at once, a turn of the loop has one step of one of them.
    seen: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for _ in range(3):
            seen.append(name)
            yield

    async def all_at_once() -> None:
        desk, _ = await opened(MemoryStore(now_ms=lambda: 0))
        for name in "abc":
            desk.slowly(steps(name), lambda _now_ms: None)
        await desk.finish()

    run(all_at_once())
    assert "".join(seen) == "aaabbbccc"


def test_long_work_that_fails_ends_alone() -> None:
    def steps() -> Iterator[None]:
        yield
        raise RuntimeError("a bug")

    async def alone() -> None:
        desk, _ = await opened(MemoryStore(now_ms=lambda: 0))
        told: list[int] = []
        desk.slowly(steps(), told.append)
        await desk.finish()
        assert told == []

    run(alone())


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is written to the log meanwhile."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    setup(stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


def test_a_change_is_one_line_with_who_what_and_both_values(log: io.StringIO) -> None:
    AuditLog().changed(ASKER, "user=bob", RATE, None, 5.0)
    (line,) = log.getvalue().splitlines()
    assert line.startswith("event=quota_changed level=info")
    for part in (
        "principal=alice",
        "peer=192.0.2.1:40000",
        'entity="user=bob"',
        "key=producer_byte_rate",
        "new=5.0",
    ):
        assert part in line
    assert "audit" not in line.replace("gateway.audit", "")


def test_changes_and_refusals_are_told_whatever_the_level_is(log: io.StringIO) -> None:
    setup("error", stream=log)
    AuditLog().changed(ASKER, "user=bob", RATE, None, 5.0)
    AuditLog().refused(ASKER, "user=bob", RATE, None, 5.0)
    AuditLog().description_refused(ASKER)
    assert [line.split()[0] for line in log.getvalue().splitlines()] == [
        "event=quota_changed",
        "event=quota_change_refused",
        "event=quota_description_refused",
    ]


def test_i12_changes_are_never_left_out_of_the_log_and_a_flood_of_refusals_is(log: io.StringIO) -> None:
    audit = AuditLog()
    for value in range(100):
        audit.changed(ASKER, "user=bob", RATE, None, float(value))
        audit.refused(ASKER, "user=bob", RATE, None, float(value))
        audit.description_refused(ASKER)
    lines = log.getvalue().splitlines()
    assert sum("event=quota_changed" in line for line in lines) == 100
    assert sum("event=quota_change_refused" in line for line in lines) == 20
    assert sum("event=quota_description_refused" in line for line in lines) == 20
