"""Alterations under way: answered once each, whatever the store does; and the audit lines."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

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


class Answers(list[tuple[str | None, int]]):
    """What the client of an alteration gets."""

    def __call__(self, failure: str | None, now_ms: int) -> None:
        self.append((failure, now_ms))


class BrokenStore(MemoryStore):
    """One with a bug."""

    async def write(self, alteration: Alteration) -> int:
        raise RuntimeError("secret")


async def opened(store: MemoryStore) -> tuple[AlterationRunner, LiveQuotas]:
    live = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: NOW_MS)
    await live.open()
    return AlterationRunner(live, lambda: NOW_MS), live


async def test_an_alteration_is_answered_when_it_is_in_force_and_not_from_within_the_call() -> None:
    runner, live = await opened(MemoryStore(now_ms=lambda: 0))
    answers = Answers()
    runner.alter(alteration(5), answers)
    assert answers == []
    await runner.finish()
    assert answers == [(None, NOW_MS)]
    assert live.quotas.limits.get(ALICE, RATE) == 5


@pytest.mark.parametrize(("store", "drain", "failure"), [
    (MemoryStore, False, "the disk is full"),  # the store's own words
    (BrokenStore, False, "the quota store failed"),  # not those of a bug
    pytest.param(MemoryStore, True, "the gateway is shutting down", id="g16"),
])  # fmt: skip
async def test_g16_an_alteration_that_fails_is_answered_with_the_reason_and_not_in_force(
    store: type[MemoryStore], drain: bool, failure: str
) -> None:
    kept = store(now_ms=lambda: 0)
    kept.read_only = "the disk is full"
    runner, live = await opened(kept)
    if drain:
        live.drain()
    answers = Answers()
    runner.alter(alteration(5), answers)
    await runner.finish()
    assert answers == [(failure, NOW_MS)]
    assert live.quotas.limits.get(ALICE, RATE) is None


async def test_a_connection_that_fails_to_take_its_answer_stops_no_other() -> None:
    def fails(_failure: str | None, _now_ms: int) -> None:
        raise RuntimeError("gone")

    runner, live = await opened(MemoryStore(now_ms=lambda: 0))
    answers = Answers()
    runner.alter(alteration(5), fails)
    runner.alter(alteration(6), answers)
    await runner.finish()
    assert answers == [(None, NOW_MS)]
    assert live.quotas.limits.get(ALICE, RATE) == 6


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
    for part in ("principal=alice", "peer=192.0.2.1:40000", 'entity="user=bob"', "key=producer_byte_rate", "new=5.0"):
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
