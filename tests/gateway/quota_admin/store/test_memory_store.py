"""The store that forgets, and the rules that it shares with the others."""

from __future__ import annotations

import pytest

from gateway.quota_admin.store.changes import effective
from gateway.quota_admin.store.interface import StoreError, check_count
from gateway.quota_admin.store.memory_store import MemoryStore
from quotas.layered_quotas import QuotaChange
from testkit.quota_stores import ALICE, ANYBODY, AT_MS, FETCH, PRODUCE, alteration, opened


def test_of_changes_of_one_quota_the_last_counts_and_what_changes_nothing_is_left_out() -> None:
    changes = (
        QuotaChange(ALICE, PRODUCE, 1.0),
        QuotaChange(ALICE, PRODUCE, 2.0),
        QuotaChange(ALICE, FETCH, 3.0),
        QuotaChange(ANYBODY, FETCH, None),
    )
    before = {(ALICE, PRODUCE): 9.0, (ALICE, FETCH): 3.0}
    found = effective(changes, before.get)
    assert found == [(QuotaChange(ALICE, PRODUCE, 2.0), 9.0)]


def test_a_full_store_may_shrink_and_not_grow() -> None:
    check_count(5, 4, grows=False)
    with pytest.raises(StoreError, match=r"there would be 5 quotas, and quota_store\.max_quotas allows 4"):
        check_count(5, 4, grows=True)


@pytest.mark.asyncio
async def test_it_holds_what_it_was_told_and_the_latest_changes_up_to_its_bound() -> None:
    store = MemoryStore(now_ms=lambda: AT_MS, max_quotas=1, max_history=2)
    async with opened(store) as seen:
        for value in (1.0, 2.0, 3.0, 3.0):
            await store.write(alteration((ALICE, PRODUCE, value), by="User:admin"))
        assert (store.version, seen.values) == (3, {(ALICE, PRODUCE): 3.0})
        told = [(entry.version, entry.old, entry.new, entry.by) for entry in await store.history(10)]
        assert told == [(3, 2.0, 3.0, "User:admin"), (2, 1.0, 2.0, "User:admin")]
        with pytest.raises(StoreError, match="max_quotas"):
            await store.write(alteration((ANYBODY, PRODUCE, 1.0)))
        await store.write(alteration((ANYBODY, PRODUCE, 1.0), (ALICE, PRODUCE, None)))
        assert seen.values == {(ANYBODY, PRODUCE): 1.0}


@pytest.mark.asyncio
async def test_while_it_may_not_be_written_it_says_why() -> None:
    store = MemoryStore(now_ms=lambda: AT_MS)
    async with opened(store) as seen:
        store.read_only = "not now"
        with pytest.raises(StoreError, match="not now"):
            await store.write(alteration((ALICE, PRODUCE, 1.0)))
        assert seen.values == {}
