"""The quota store of one gateway: a SQLite file in its data directory, written by one thread."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from gateway.quota_admin.store.data_dir import DataDirectory
from gateway.quota_admin.store.interface import Alteration, HistoryEntry, OnChange, StoredChange, StoreError
from gateway.quota_admin.store.sqlite_file import DiskError, QuotaFile
from gateway.quota_admin.store.sqlite_format import create
from gateway.quota_admin.store.writing import WritesInProgress
from gateway.runtime.durable import sync_directory

_TRY_AGAIN_S: Final = 5.0

_log = structlog.get_logger("gateway.store")


class SqliteStore:
    """See the module.

    Attributes:
        version, read_only, bad_records, unsigned_records, stale: see `QuotaStore`; a bad record here is damage.
    """

    def __init__(self, path: Path, *, now_ms: Callable[[], int], max_quotas: int, max_history: int) -> None:
        """Accesses no file yet.

        Args:
            path: the data directory.
            now_ms: Unix time, for the history.
            max_quotas: the most overrides.
            max_history: the most changes in the history.
        """
        self.version = 0
        self.bad_records = 0
        self.unsigned_records = 0
        self.read_only: str | None = None
        self.stale: str | None = None
        self._directory = DataDirectory(path)
        self._file = QuotaFile(self._directory.database, max_quotas=max_quotas, max_history=max_history)
        self._now_ms = now_ms
        self._max_history = max_history
        self._old_history: list[HistoryEntry] = []
        self._on_change: OnChange
        self._thread: ThreadPoolExecutor | None = None
        self._one_at_a_time = asyncio.Lock()
        self._writing = WritesInProgress()
        # Runs while the disk can't be written but may be writable again later.
        self._trying_again: asyncio.Task[None] | None = None
        # The value of `read_only` before another process got the file.
        self._lent: tuple[str | None] | None = None

    async def open(self, on_change: OnChange) -> None:
        """See `QuotaStore`. With a directory that can't be written, its quotas apply and alterations are refused.

        If the disk is full, alterations are possible again when there is space (hazard L03).
        """
        self._on_change = on_change
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="quota-store")
        # Without this the garbage collector would walk a hundred thousand new, permanent objects again and again.
        collects = gc.isenabled()
        gc.disable()
        try:
            changes = await asyncio.get_running_loop().run_in_executor(self._thread, self._load)
            self.version = self._file.state.version
            if self.read_only is not None:
                _log.warning("quota_store_read_only", reason=self.read_only)
            await on_change(changes, self.version)
        finally:
            if collects:
                gc.enable()
        if self.read_only is not None and self._directory.read_only is None:
            self._trying_again = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        while self.read_only is not None:
            await asyncio.sleep(_TRY_AGAIN_S)
            await self._become_writable()

    async def _become_writable(self) -> None:
        reason = await asyncio.get_running_loop().run_in_executor(self._open_thread, self._open_for_writing)
        if self._lent is not None:  # meanwhile; another process may have it open
            return
        self.read_only = reason
        if self.read_only is None:
            _log.warning("quota_store_writable")

    async def write(self, alteration: Alteration) -> int:
        """See `QuotaStore`."""
        if self._lent is None and self._trying_again is not None and self.read_only is not None:
            await self._become_writable()
        if self.read_only is not None:
            raise StoreError(self.read_only)
        return await self._writing.carry_out(self._write(alteration))

    async def catch_up(self) -> None:
        """Does nothing: no other gateway uses this store."""

    async def history(self, limit: int) -> list[HistoryEntry]:
        """See `QuotaStore`."""
        if self.read_only is not None:
            return self._old_history[:limit]
        return await asyncio.get_running_loop().run_in_executor(self._open_thread, self._file.history, limit)

    async def lend(self) -> bool:
        """Release the file for the new process in an upgrade. Until `take_back` alterations are refused.

        Returns:
            Whether the file could be written before.
        """
        if self._thread is None:
            return False
        if self._trying_again is not None:
            self._trying_again.cancel()
            self._trying_again = None
        if self._lent is None:
            self._lent = (self.read_only,)
        self.read_only = "the gateway is being replaced; try again"
        await self._writing.done()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._release)
        return self._lent[0] is None

    async def take_back(self) -> None:
        """Use the file again, because the new process does not replace this one.

        Raises:
            StoreError: the file can't be used. Alterations are refused until a later attempt succeeds.
        """
        if self._lent is None:
            return
        try:
            await self._take_back()
        except StoreError as exc:
            self.read_only = f"the quota store was let go of for an upgrade and can't be used since: {exc}"
            self._trying_again = asyncio.create_task(self._try_to_take_back())
            raise

    async def _try_to_take_back(self) -> None:
        while self._lent is not None:
            await asyncio.sleep(_TRY_AGAIN_S)
            with contextlib.suppress(StoreError):
                await self._take_back()
        _log.warning("quota_store_taken_back")

    async def _take_back(self) -> None:
        loop = asyncio.get_running_loop()
        before = self.version
        changes = await loop.run_in_executor(self._open_thread, self._load)
        self._lent = None
        self.version = self._file.state.version
        if self.version != before:
            await self._on_change(changes, self.version)
        if self.read_only is not None and self._directory.read_only is None:
            self._trying_again = asyncio.create_task(self._try_again())

    async def close(self) -> None:
        """See `QuotaStore`; alterations in progress are completed first."""
        thread = self._thread
        if thread is None:
            return
        if self._trying_again is not None:
            self._trying_again.cancel()
        await self._writing.done()
        self._thread = None
        await asyncio.get_running_loop().run_in_executor(thread, self._release)
        thread.shutdown()

    @property
    def _open_thread(self) -> ThreadPoolExecutor:
        if self._thread is None:
            raise StoreError("the quota store is closed")
        return self._thread

    async def _write(self, alteration: Alteration) -> int:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            changes, version = await loop.run_in_executor(self._open_thread, self._make, alteration)
            self.version = version
            if changes:
                await self._on_change(changes, version)
                # There is no wait here; the next alteration follows in the same thread.
                loop.run_in_executor(self._open_thread, self._tidy)
        return version

    # -- in the thread ---------------------------------------------------------------------------------------

    def _load(self) -> list[StoredChange]:
        directory = self._directory
        directory.acquire()
        try:
            store_id = directory.store_id()
            self.read_only = directory.read_only
            if self.read_only is not None:
                return self._load_read_only(store_id)
            if not directory.database.exists():
                self._create(store_id)
            try:
                changes = self._file.open(store_id=store_id)
            except DiskError as exc:
                changes = self._load_read_only(store_id)
                self.read_only = f"the quota store can't be written for now: {exc}"
            else:
                if store_id is None:
                    directory.set_store_id(self._file.state.id)
        except OSError as exc:
            self._release()
            raise StoreError(f"{directory.path}: {exc.strerror}") from exc
        except StoreError:
            self._release()
            raise
        return changes

    def _create(self, store_id: str | None) -> None:
        path = self._directory.database
        if store_id is not None or Path(f"{path}-wal").exists():
            raise StoreError(
                f"{path} is missing, and there was one. Put a copy back, or remove quotas.id and {path.name}-wal "
                "to begin without any quota of the store"
            )
        try:
            create(path)
        except sqlite3.Error as exc:
            raise StoreError(f"{path} can't be made: {exc}") from exc
        sync_directory(self._directory.path)

    def _load_read_only(self, store_id: str | None) -> list[StoredChange]:
        path = self._directory.database
        if not path.exists():
            if store_id is not None:
                raise StoreError(f"{path} is missing, and there was one. Put a copy back")
            return []
        file = QuotaFile(path, read_only=True)
        try:
            changes = file.open(store_id=store_id)
            self._old_history = file.history(self._max_history)
        finally:
            file.close()
        self._file.state = file.state
        return changes

    def _open_for_writing(self) -> str | None:
        """After a read-only start: why the file still can't be written; None: it can."""
        served = self._file.state
        if self.read_only is None:
            return None
        try:
            self._file.open(store_id=served.id)
            if self._directory.store_id() is None:
                self._directory.set_store_id(served.id)
        except (StoreError, OSError) as exc:
            self._file.close()
            self._file.state = served
            return f"the quota store can't be written for now: {exc}"
        if self._file.state != served:
            self._file.close()
            self._file.state = served
            return f"{self._directory.database} has changed behind the gateway, which has to be started again"
        return None

    def _make(self, alteration: Alteration) -> tuple[list[StoredChange], int]:
        changes = self._file.write(alteration, at_ms=self._now_ms())
        return changes, self._file.state.version

    def _tidy(self) -> None:
        try:
            self._file.tidy()
        except StoreError as exc:
            _log.warning("quota_store_not_tidied", error=str(exc))

    def _release(self) -> None:
        self._file.close()
        self._directory.release()
