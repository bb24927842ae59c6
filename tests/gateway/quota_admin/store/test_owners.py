"""Every store keeps how a quota got its value, and makes a change only where what it expects is still there."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.quota_admin.store.interface import (
    Alteration,
    ChangedMeanwhileError,
    Expected,
    HistoryEntry,
    LimitChange,
    StoredChange,
)
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.quota_admin.store.topic_log import Record, TopicLog
from quotas.entities import QuotaKey
from quotas.layered_quotas import Owner, QuotaChange
from testkit.quota_stores import ALICE, ANYBODY, APP, AT_MS, FETCH, PRODUCE, Seen, alteration, opened, sqlite_store
from testkit.quota_topic import QuotaTopic
from tests.gateway.quota_admin.store.test_stores import Stores, make

__all__ = ["make"]

RELEASED = Path(__file__).resolve().parents[3] / "golden" / "quota_store_0.1.0"


def by(owner: Owner, value: float | None, expected: Expected | None = None) -> Alteration:
    return Alteration("User:ops", "a test", (QuotaChange(ALICE, PRODUCE, value, owner),), expected or {})


def last(seen: Seen) -> Sequence[StoredChange]:
    return seen.calls[-1][0]


async def test_the_owner_is_that_of_the_last_change_of_the_value(make: Stores) -> None:
    async with opened(store := make()) as seen:
        await store.write(by(Owner.API, 1.0))
        assert last(seen) == (QuotaChange(ALICE, PRODUCE, 1.0, Owner.API),)
        version = await store.write(by(Owner.SET, 2.0))
        assert last(seen) == (QuotaChange(ALICE, PRODUCE, 2.0, Owner.SET),)
        assert await store.write(by(Owner.API, 2.0)) == version, "the value was there already"


async def test_a_file_takes_over_a_quota_that_has_its_value_already(make: Stores) -> None:
    async with opened(store := make()) as seen:
        version = await store.write(by(Owner.API, 1.0))
        assert await store.write(by(Owner.APPLY, 1.0)) > version
        assert last(seen) == (QuotaChange(ALICE, PRODUCE, 1.0, Owner.APPLY),)
        again = await store.write(by(Owner.APPLY, 1.0))
        assert (await store.history(1))[0].version == again
        assert [(entry.old, entry.new) for entry in await store.history(9)] == [(1.0, 1.0), (None, 1.0)]


async def test_nothing_is_changed_where_something_else_is_there_than_expected(make: Stores) -> None:
    async with opened(store := make()) as seen:
        await store.write(by(Owner.API, 1.0))
        calls = len(seen.calls)
        both = (QuotaChange(APP, FETCH, 7.0, Owner.APPLY), QuotaChange(ALICE, PRODUCE, 2.0, Owner.APPLY))
        asked = Alteration("User:ops", "a test", both, {(APP, FETCH): None, (ALICE, PRODUCE): 3.0})
        with pytest.raises(
            ChangedMeanwhileError, match="1 quota changed meanwhile, so nothing was changed"
        ) as caught:
            await store.write(asked)
        assert caught.value.found == [((ALICE, PRODUCE), 3.0, 1.0)]
        with pytest.raises(ChangedMeanwhileError):
            await store.write(by(Owner.APPLY, None, {(ALICE, PRODUCE): None}))
        assert (len(seen.calls), seen.values) == (calls, {(ALICE, PRODUCE): 1.0})
        await store.write(by(Owner.APPLY, 2.0, {(ALICE, PRODUCE): 1.0}))
        assert seen.values == {(ALICE, PRODUCE): 2.0}


async def test_an_owner_is_there_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(by(Owner.APPLY, 1.0))
    async with opened(sqlite_store(tmp_path)) as seen:
        assert seen.calls[0][0] == (QuotaChange(ALICE, PRODUCE, 1.0, Owner.APPLY),)
    topic = QuotaTopic(monkeypatch)
    async with opened(store := topic.store()):
        await store.write(by(Owner.APPLY, 1.0))
    async with opened(topic.store()) as seen:
        assert [change for changes, _ in seen.calls for change in changes] == [
            QuotaChange(ALICE, PRODUCE, 1.0, Owner.APPLY)
        ]


async def test_a_file_of_0_1_0_is_read_upgraded_and_written(tmp_path: Path) -> None:
    shutil.copytree(RELEASED, tmp_path, dirs_exist_ok=True)
    values = {
        (ALICE, PRODUCE): 1048576.0, (APP, FETCH): 2097152.0, (ANYBODY, QuotaKey.REQUEST_PERCENTAGE): 33.3,
        (None, "max.connections"): "500",
    }  # fmt: skip
    async with opened(store := sqlite_store(tmp_path)) as seen:
        assert seen.values == values
        quotas = [change for change in seen.calls[0][0] if isinstance(change, QuotaChange)]
        assert {change.owner for change in quotas} == {Owner.UNKNOWN}
        assert len(await store.history(99)) == 6
        await store.write(by(Owner.APPLY, 1048576.0))
        await store.write(alteration((APP, FETCH, None)))
    async with opened(store := sqlite_store(tmp_path)) as seen:
        assert QuotaChange(ALICE, PRODUCE, 1048576.0, Owner.APPLY) in seen.calls[0][0]
        assert LimitChange("max.connections", "500") in seen.calls[0][0]
        assert (APP, FETCH) not in seen.values
        assert (await store.history(1))[0] == HistoryEntry(
            6, AT_MS, "User:admin", "a test", APP, FETCH, 2097152.0, None
        )


def test_records_of_0_1_0_have_no_owner_and_later_owners_are_unknown() -> None:
    log = TopicLog()
    key = b'{"quota":"user=alice","key":"producer_byte_rate"}'
    for at, value in enumerate((b'{"format":1,"value":5.0}', b'{"format":1,"value":6.0,"owner":"robot"}')):
        log.feed([Record(at, key, value, None)])
        assert log.values() == [QuotaChange(ALICE, PRODUCE, 5.0 + at)]
    assert log.bad_records == 0


async def test_a_limit_of_brokers_has_no_owner() -> None:
    store = MemoryStore(now_ms=lambda: AT_MS)
    async with opened(store):
        version = await store.write(Alteration("a", "b", (LimitChange("max.connections", "5"),)))
        assert await store.write(Alteration("a", "b", (LimitChange("max.connections", "5"),))) == version
