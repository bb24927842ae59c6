"""What the SQLite store promises to anyone who alters quotas."""

import asyncio
import fcntl
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.sqlite_file import QuotaFile
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.limits import allowed_keys, validate
from testkit.quota_stores import ALICE, APP, FETCH, PRODUCE, alteration, opened, sqlite_store
from testkit.raw_client import until


async def test_g06_fifty_at_once_are_serialised_and_none_is_lost(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)) as seen:
        entities = [QuotaEntity(user=f"user-{number}") for number in range(50)]
        versions = await asyncio.gather(
            *(
                store.write(alteration((ALICE, PRODUCE, at + 1), (entity, PRODUCE, 5)))
                for at, entity in enumerate(entities)
            )
        )
        assert sorted(versions) == list(range(1, 51))
        winner = versions.index(50) + 1
        expected = {(entity, PRODUCE): 5 for entity in entities} | {(ALICE, PRODUCE): winner}
        assert seen.values == expected
        # The order that was reported is the order of the versions.
        assert [version for _, version in seen.calls] == list(range(51))
        history = await store.history(200)
        of_alice = [entry for entry in reversed(history) if entry.entity == ALICE]
        assert [entry.old for entry in of_alice[1:]] == [entry.new for entry in of_alice[:-1]]
    async with opened(sqlite_store(tmp_path)) as again:
        assert again.values == expected


async def test_caller_that_goes_away_leaves_file_and_memory_alike(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)) as seen:
        task = asyncio.create_task(store.write(alteration((ALICE, PRODUCE, 1.0))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await store.write(alteration((APP, FETCH, 1.0))) == 2
        in_force = dict(seen.values)
    async with opened(sqlite_store(tmp_path)) as again:
        assert again.values == in_force == {(ALICE, PRODUCE): 1.0, (APP, FETCH): 1.0}


async def test_f19_only_the_owner_may_read_it_and_each_alteration_leaves_an_empty_log(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path / "a" / "data")):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        for path in [tmp_path / "a" / "data", *(tmp_path / "a" / "data").iterdir()]:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        await store.history(1)  # comes after the tidying in the same thread
        assert (tmp_path / "quotas.db-wal").stat().st_size == 0


async def test_store_that_is_not_open_refuses(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        pass
    with pytest.raises(StoreError, match="closed"):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
    await store.close()
    assert not (tmp_path / "quotas.db-wal").exists()
    with sqlite3.connect(tmp_path / "quotas.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
    assert os.listdir(tmp_path)


async def test_file_that_is_lent_is_written_by_the_other_process_alone(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        # As after a start on a full disk.
        store._trying_again = asyncio.create_task(asyncio.sleep(60))
        await store.lend()
        async with opened(other := sqlite_store(tmp_path)):
            with pytest.raises(StoreError, match="being replaced"):
                await store.write(alteration((APP, FETCH, 1.0)))
            assert await other.write(alteration((ALICE, PRODUCE, 2.0))) == 2
        await store.take_back()
        assert await store.write(alteration((APP, FETCH, 1.0))) == 3


async def test_file_that_another_program_holds_after_an_upgrade_that_failed_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.quota_admin.store.sqlite_store._TRY_AGAIN_S", 0.02)
    async with opened(store := sqlite_store(tmp_path)):
        assert await store.lend()
        with (tmp_path / "quotas.lock").open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StoreError, match="in use by another gateway"):
                await store.take_back()
            with pytest.raises(StoreError, match=r"let go of for an upgrade and can't be used since: .* in use by"):
                await store.write(alteration((ALICE, PRODUCE, 1.0)))
            assert await store.lend()  # for the next upgrade
            with pytest.raises(StoreError, match="in use by another gateway"):
                await store.take_back()
        await until(lambda: store.read_only is None)
        assert await store.write(alteration((ALICE, PRODUCE, 1.0))) == 1


async def test_backup_that_reads_the_file_is_in_nobodys_way(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        backup = sqlite3.connect(tmp_path / "quotas.db")
        try:
            backup.execute("BEGIN")
            assert backup.execute("SELECT count(*) FROM quotas").fetchone() == (1,)
            await store.write(alteration((ALICE, PRODUCE, 2.0)))
            await store.write(alteration((APP, FETCH, 2.0)))
            assert len(seen.values) == 2
        finally:
            backup.close()
    async with opened(sqlite_store(tmp_path)) as again:
        assert again.values == {(ALICE, PRODUCE): 2.0, (APP, FETCH): 2.0}


async def test_file_that_somebody_else_has_changed_is_not_written(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path)) as seen:
        await store.write(alteration((ALICE, PRODUCE, 1.0)))
        with sqlite3.connect(tmp_path / "quotas.db") as other:
            other.execute("UPDATE state SET version = 7")
        other.close()
        with pytest.raises(StoreError, match="checksum is wrong"):
            await store.write(alteration((ALICE, PRODUCE, 2.0)))
        assert seen.values == {(ALICE, PRODUCE): 1.0}


async def test_disk_that_is_full_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(alteration((ALICE, PRODUCE, 1.0)))

    def full(_self: QuotaFile) -> sqlite3.Connection:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(QuotaFile, "_connect", full)  # for reading too
        with pytest.raises(StoreError, match=r"can't be used: database or disk is full$"):
            async with opened(sqlite_store(tmp_path)):
                pass
    async with opened(sqlite_store(tmp_path)) as again:
        assert again.values == {(ALICE, PRODUCE): 1.0}


_NAMES = st.one_of(
    st.just(DEFAULT), st.just("<default>"), st.text(min_size=1, max_size=30), st.just("%41%2F"), st.just("x" * 10_240)
)


@pytest.mark.slow
@given(user=_NAMES, client_id=st.one_of(st.none(), _NAMES), value=st.floats(5e-324, 1e308))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_g17_any_name_and_value_come_back(
    tmp_path: Path, user: str, client_id: str | None, value: float
) -> None:
    entity, key = QuotaEntity(user=user, client_id=client_id), QuotaKey.REQUEST_PERCENTAGE
    async with opened(store := sqlite_store(tmp_path)) as seen:
        await store.write(alteration((entity, key, value)))
    async with opened(store := sqlite_store(tmp_path)) as again:
        assert again.values == seen.values
        assert again.values[entity, key] == value
        await store.write(alteration(*((*at, None) for at in again.values)))
        assert again.values == {}


@pytest.mark.parametrize("tried", [(0.0, 5e-324, 1.0), (1e300, 1e9, 3.0, 1.0)], ids=["least", "largest"])
async def test_g17_the_least_and_the_largest_value_of_each_quota_come_back(
    tmp_path: Path, tried: tuple[float, ...]
) -> None:
    changes = [
        (entity, key, next(value for value in tried if validate(entity, key, value) is None))
        for entity in (QuotaEntity("u"), QuotaEntity(ip="10.0.0.1"), QuotaEntity(topic="t"), QuotaEntity(group="g"))
        for key in allowed_keys(entity)
    ]
    assert {key for _, key, _ in changes} == set(QuotaKey)
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(alteration(*changes))
    async with opened(sqlite_store(tmp_path)) as again:
        assert again.values == {(entity, key): value for entity, key, value in changes}
