"""What every store promises to its callers, whatever keeps the quotas."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from gateway.quota_admin.store.interface import (
    NOTHING,
    HistoryEntry,
    Kept,
    QuotaStore,
    Slot,
    StoreError,
    check_count,
    effective,
)
from gateway.quota_admin.store.memory_store import MemoryStore
from quotas.layered_quotas import QuotaChange
from testkit.quota_stores import ALICE, ANYBODY, APP, AT_MS, FETCH, PRODUCE, alteration, opened, sqlite_store
from testkit.quota_topic import QuotaTopic

Stores: TypeAlias = Callable[..., QuotaStore]


@pytest.fixture(params=["memory", "sqlite", "topic"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stores:
    def made(**bounds: Any) -> QuotaStore:
        if request.param == "sqlite":
            return sqlite_store(tmp_path, **bounds)
        if request.param == "topic":
            return QuotaTopic(monkeypatch).store(**bounds)
        return MemoryStore(now_ms=lambda: AT_MS, **bounds)

    return made


async def test_history_says_who_when_old_and_new_and_is_bounded(make: Stores) -> None:
    async with opened(store := make(max_history=3)) as seen:
        for value, by in ((1.0, "User:admin"), (2.0, "User:admin"), (3.0, "User:bob"), (None, "User:admin")):
            version = await store.write(alteration((ALICE, PRODUCE, value), by=by))
        assert seen.values == {}
        found = await store.history(10)
        assert [(entry.by, entry.old, entry.new) for entry in found] == [
            ("User:admin", 3.0, None),
            ("User:bob", 2.0, 3.0),
            ("User:admin", 1.0, 2.0),
        ]
        assert found[0] == HistoryEntry(version, AT_MS, "User:admin", "a test", ALICE, PRODUCE, 3.0, None)
        assert await store.history(1) == found[:1]


async def test_what_changes_nothing_is_no_version_and_no_history(make: Stores) -> None:
    async with opened(store := make()) as seen:
        version = await store.write(alteration((ALICE, PRODUCE, 1.0)))
        assert await store.write(alteration((ALICE, PRODUCE, 1.0), (APP, FETCH, None))) == version
        assert (len(await store.history(10)), len(seen.calls)) == (1, 2)


async def test_of_two_changes_of_one_quota_the_later_counts(make: Stores) -> None:
    async with opened(store := make()) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0), (ALICE, PRODUCE, 2.0)))
        assert seen.values == {(ALICE, PRODUCE): 2.0}
        assert [entry.new for entry in await store.history(10)] == [2.0]


async def test_full_store_refuses_to_grow_and_nothing_of_the_alteration_is_made(make: Stores) -> None:
    async with opened(store := make(max_quotas=2)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        with pytest.raises(StoreError, match="would be 3 quotas, and quota_store"):
            await store.write(alteration((ALICE, PRODUCE, 9.0), (ANYBODY, FETCH, 1), (APP, FETCH, 1)))
        await store.write(alteration((ALICE, FETCH, 1.0)))
        assert seen.values == {(ALICE, PRODUCE): 1.0, (ALICE, FETCH): 1.0}
        await store.write(alteration((ALICE, FETCH, None), (APP, FETCH, 1.0)))
        assert seen.values == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 1.0}


def test_of_changes_the_last_counts_and_a_full_store_does_not_grow() -> None:
    changes = (
        QuotaChange(ALICE, PRODUCE, 1.0), QuotaChange(ALICE, PRODUCE, 2.0), QuotaChange(ALICE, FETCH, 3.0),
        QuotaChange(ANYBODY, FETCH, None),
    )  # fmt: skip
    before: dict[Slot, Kept] = {(ALICE, PRODUCE): Kept(9.0), (ALICE, FETCH): Kept(3.0)}
    assert effective(changes, lambda slot: before.get(slot, NOTHING), {}) == [(QuotaChange(ALICE, PRODUCE, 2.0), 9.0)]
    check_count(5, 4, grows=False)
    with pytest.raises(StoreError, match=r"there would be 5 quotas, and quota_store\.max_quotas allows 4"):
        check_count(5, 4, grows=True)
