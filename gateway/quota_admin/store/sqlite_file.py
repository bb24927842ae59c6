"""The open SQLite file with overrides and history. Everything here blocks and belongs to one thread.

Each alteration is one transaction, synced to the disk before it returns (WAL, synchronous=FULL). It is then moved
from the log into the file. If frames in the log were damaged, SQLite would read an older state that looks complete.

After a failed write nothing is tried again on that file descriptor, because after a failed fsync the kernel reports
success for data that it has dropped. A second connection is opened *before* the first is closed, so that SQLite does
not recover half a transaction from the log. Then the log is truncated, and the content is compared with the expected
one.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from pathlib import Path
from typing import Final

from gateway.quota_admin.broker_limits import LimitError, checked_limit
from gateway.quota_admin.store.interface import (
    ALL_BROKERS,
    NOTHING,
    Alteration,
    HistoryEntry,
    Kept,
    LimitChange,
    Slot,
    StoredChange,
    StoreError,
    Value,
    change_of,
    check_count,
    effective,
    entity_text,
    growth,
    owner_of,
    slot_of,
)
from gateway.quota_admin.store.sqlite_format import (
    FORMAT,
    OWNERS,
    QUOTA_KEYS,
    SUM_MODULUS,
    State,
    check_format,
    check_header,
    damaged,
    entity_from,
    number_of,
    upgrade,
)
from gateway.runtime.durable import sync_file
from quotas.entities import QuotaKey, parse_entity
from quotas.layered_quotas import Owner, QuotaChange

_NOT_THE_FILE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""Primary error codes that are not about the content of the file."""

_IN_USE: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class DiskError(StoreError):
    """The file can't be opened for writing now, for instance because the disk is full; it may be readable."""


class QuotaFile:
    """One store file, open for writing or only for reading.

    Attributes:
        state: the state of the file.
    """

    def __init__(
        self, path: Path, *, max_quotas: int = 0, max_history: int = 0, read_only: bool = False
    ) -> None:
        """Opens nothing yet.

        Args:
            path: the file.
            max_quotas: the most quotas.
            max_history: the most changes in the history.
            read_only: neither the file nor one beside it is written; do not call `write` and `tidy`.
        """
        self.state = State("", 0, 0, 0)
        self._path = path
        self._max_quotas = max_quotas
        self._max_history = max_history
        self._read_only = read_only
        self._database: sqlite3.Connection | None = None
        self._unsettled = False
        # Rows of earlier versions with other spellings of an address: slot -> entity as written -> value.
        self._misspelled: dict[Slot, dict[str, float]] = {}

    def open(self, *, store_id: str | None) -> list[StoredChange]:
        """Check the file and read all of it; a file of an earlier format is upgraded.

        Args:
            store_id: the expected store; None: any.

        Returns:
            Every quota and limit in it.

        Raises:
            DiskError: the file can't be opened for writing now.
            StoreError: the file can't be trusted.
        """
        in_file = check_header(self._path)
        try:
            self._database = self._connect()
            found = [row[0] for row in self._database.execute("PRAGMA integrity_check(3)")]
            if found != ["ok"]:
                raise StoreError(damaged(self._path, "; ".join(found)))
            self.state = self._read_state(self._database)
            (written,) = self._database.execute("PRAGMA user_version").fetchone()
            check_format(self._path, written)
            changes = self._read_changes(self._database, written)
            if store_id is not None and self.state.id != store_id:
                raise StoreError(
                    f"{self._path} is another store than the one that was made here (quotas.id); put the right file "
                    "back, or remove quotas.id to accept this one"
                )
            if not self._read_only:
                if written < FORMAT:
                    upgrade(self._database, written)
                # A program of the earlier format reads the file's header and not the log, and must refuse the file.
                if not self._checkpoint(self._database) and in_file < FORMAT:
                    raise StoreError(f"{self._path} can't be upgraded while another program reads it")
        except (sqlite3.Error, ValueError, KeyError, TypeError) as exc:
            self.close()
            # The advice "move it away" would be wrong if the disk is full.
            if (code := getattr(exc, "sqlite_errorcode", 0) & 0xFF) in _NOT_THE_FILE:
                kind = StoreError if code in _IN_USE else DiskError
                raise kind(f"{self._path} can't be used: {exc}") from exc
            raise StoreError(damaged(self._path, str(exc))) from exc
        except StoreError:
            self.close()
            raise
        return changes

    def write(self, alteration: Alteration, *, at_ms: int) -> list[StoredChange]:
        """Make an alteration durable.

        Args:
            alteration: the alteration.
            at_ms: Unix time, for the history.

        Returns:
            The changes that had an effect.

        Raises:
            StoreError: nothing was changed.
        """
        if self._unsettled and self._settle() != self.state:
            raise StoreError(f"{self._path} has changed behind the gateway, which has to be started again")
        database = self._database
        if database is None:
            raise StoreError(f"{self._path} is not open")
        before = self.state
        changes: list[StoredChange] = []
        try:
            database.execute("BEGIN IMMEDIATE")
            changes, after = self._alter(database, alteration, at_ms=at_ms)
            database.execute("COMMIT")
        except StoreError:
            database.execute("ROLLBACK")
            raise
        except sqlite3.Error as exc:
            # Another connection finds out whether the transaction was written.
            self._unsettled = True
            found = self._settle()
            if found == before:
                raise StoreError(f"the quota store could not be written: {exc}") from exc
            after = found
        self.state = after
        for change in changes:
            self._misspelled.pop(slot_of(change), None)
        return changes

    def tidy(self) -> None:
        """Move the log's content into the file, after the response to an alteration.

        Raises:
            StoreError: the content stays in the log for now, where it is durable too.
        """
        if self._database is None or self._unsettled:
            return
        try:
            self._checkpoint(self._database)
        except sqlite3.Error as exc:
            # The sync of the file itself may have failed, so its descriptor is not used again either.
            self._unsettled = True
            raise StoreError(f"{self._path}: the log stays beside the file for now: {exc}") from exc

    def history(self, limit: int) -> list[HistoryEntry]:
        """The latest changes, the last one first.

        Raises:
            StoreError: the history can't be read.
        """
        if self._database is None:
            raise StoreError(f"{self._path} is not open")
        try:
            rows = self._database.execute(
                "SELECT version, at_ms, by, via, entity, key, old, new FROM history ORDER BY n DESC LIMIT ?",
                (limit,),
            )
            return [
                HistoryEntry(version, at_ms, by, via, *_slot(entity, key), old, new)
                for version, at_ms, by, via, entity, key, old, new in rows
            ]
        except (sqlite3.Error, ValueError) as exc:
            raise StoreError(f"{self._path}: the history can't be read: {exc}") from exc

    def close(self) -> None:
        """Close the file."""
        database, self._database = self._database, None
        if database is not None:
            with contextlib.suppress(sqlite3.Error):
                database.close()

    # -- connections -----------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        pragmas = [
            "trusted_schema = OFF",
            "cell_size_check = ON",
            "mmap_size = 0",  # a damaged disk must cause an error and not a signal
        ]
        name = self._path.absolute().as_uri()
        if self._read_only:
            # SQLite creates an index beside a file that has a log. With "unix-none" it uses no locks, assumes that no
            # other process uses the file, and keeps the index in memory. Our lock (`data_dir.py`) excludes writers.
            # "immutable" ignores the log and with it the latest alterations, so it is used only without a log.
            logged = Path(f"{self._path}-wal").exists()
            name += "?mode=ro&vfs=unix-none" if logged else "?immutable=1"
            pragmas.insert(0, "locking_mode = EXCLUSIVE")
        else:
            pragmas += ["journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 0"]
        # Autocommit; transactions are begun explicitly. One thread uses it, but not the one that creates the object.
        database = sqlite3.connect(name, isolation_level=None, timeout=0.1, check_same_thread=False, uri=True)
        try:
            for pragma in pragmas:
                database.execute(f"PRAGMA {pragma}")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _checkpoint(self, database: sqlite3.Connection) -> bool:
        """Whether all of the log is in the file now. It is not while another program, such as a backup, reads it."""
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy

    def _settle(self) -> State:
        """After a failure: find out the state on a new connection, and truncate the log.

        Returns:
            The state of the file.

        Raises:
            StoreError: that fails too; the next alteration tries again.
        """
        failed = self._database
        fresh: sqlite3.Connection | None = None
        try:
            if failed is not None and failed.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    failed.execute("ROLLBACK")
            fresh = self._connect()
            if not self._checkpoint(fresh):
                raise StoreError("another program reads it")
            self._sync_log()
            state = self._read_state(fresh)
        except (sqlite3.Error, OSError, StoreError) as exc:
            if fresh is not None:
                with contextlib.suppress(sqlite3.Error):
                    fresh.close()
            raise StoreError(f"the quota store could not be written, and can't be for now: {exc}") from exc
        if failed is not None:
            with contextlib.suppress(sqlite3.Error):
                failed.close()
        self._database = fresh
        self._unsettled = False
        return state

    def _sync_log(self) -> None:
        """Make the truncation of the log durable, because SQLite does not."""
        with contextlib.suppress(FileNotFoundError):
            sync_file(Path(f"{self._path}-wal"))

    # -- contents --------------------------------------------------------------------------------------------

    def _read_state(self, database: sqlite3.Connection) -> State:
        rows = database.execute("SELECT id, version, count, sum, seal FROM state").fetchall()
        if len(rows) != 1:
            raise StoreError(damaged(self._path, "it does not say its version"))
        store_id, version, count, total, seal = rows[0]
        state = State(store_id, version, count, int(total, 16))
        if state.seal != seal:
            raise StoreError(damaged(self._path, "its checksum is wrong"))
        return state

    def _read_changes(self, database: sqlite3.Connection, written: int) -> list[StoredChange]:
        total = count = 0
        quotas: dict[Slot, StoredChange] = {}
        self._misspelled = {}
        owner_column = "owner" if written > 2 else "''"
        for text, key, value, owner in database.execute(
            f"SELECT entity, key, value, {owner_column} FROM quotas"
        ):
            total += number_of(text, key, value, owner)
            entity = entity_from(text)
            # The checksum shows that Sluice wrote the value, which was valid then. Only the worst faults are checked.
            if not 0 <= value < math.inf or entity.family is None:  # 0 is the most important tier
                raise StoreError(damaged(self._path, f"{text} {key} is {value}"))
            count += 1
            slot: Slot = (entity, QUOTA_KEYS[key])
            if entity.ip is not None and text != str(entity):
                self._misspelled.setdefault(slot, {})[text] = value
            else:
                quotas[slot] = QuotaChange(entity, QUOTA_KEYS[key], value, OWNERS[owner])
        for slot in self._misspelled:
            quotas.setdefault(slot, change_of(slot, self._value_of_misspelled(slot)))
        limits: list[StoredChange] = []
        for name, value in database.execute("SELECT name, value FROM broker_limits") if written > 1 else ():
            total += number_of(ALL_BROKERS, name, value)
            try:
                limits.append(LimitChange(name, checked_limit(name, value)))
            except LimitError as exc:
                raise StoreError(damaged(self._path, str(exc))) from exc
        if (count, total % SUM_MODULUS) != (self.state.count, self.state.sum):
            raise StoreError(damaged(self._path, "its checksum is wrong"))
        return [*quotas.values(), *limits]

    def _value_of_misspelled(self, slot: Slot) -> float | None:
        """The value of a slot that has only rows in other spellings: that of the first in the alphabet."""
        rows = self._misspelled.get(slot)
        return None if rows is None else rows[min(rows)]

    def _alter(
        self, database: sqlite3.Connection, alteration: Alteration, *, at_ms: int
    ) -> tuple[list[StoredChange], State]:
        def row_of(slot: Slot) -> Kept:
            entity, key = slot
            if entity is None:
                row = database.execute("SELECT value FROM broker_limits WHERE name = ?", (key,)).fetchone()
                return NOTHING if row is None else Kept(str(row[0]))
            row = database.execute(
                "SELECT value, owner FROM quotas WHERE entity = ? AND key = ?", (str(entity), str(key))
            ).fetchone()
            return NOTHING if row is None else Kept(float(row[0]), OWNERS[row[1]])

        rows: dict[Slot, Kept] = {}

        def kept_of(slot: Slot) -> Kept:
            row = rows[slot] = row_of(slot)
            return Kept(self._value_of_misspelled(slot)) if row is NOTHING else row

        if self._read_state(database) != self.state:
            raise StoreError(f"{self._path} has changed behind the gateway, which has to be started again")
        changes = effective(alteration.changes, kept_of, alteration.expected)
        if not changes:
            return [], self.state
        count, total, version = self.state.count + growth(changes), self.state.sum, self.state.version + 1
        for change, old in changes:
            slot = slot_of(change)
            text, key, new, owner = entity_text(slot[0]), str(slot[1]), change.value, owner_of(change)
            row = rows[slot]
            if misspelled := self._misspelled.get(slot):
                # The value came from a misspelled row and not from a row of this slot. The misspelled rows are
                # deleted.
                count -= len(misspelled) - (row is NOTHING)
                for other, value in misspelled.items():
                    total -= number_of(other, key, value)
                    _put(database, other, key, None, Owner.UNKNOWN)
            total -= 0 if row.value is None else number_of(text, key, row.value, row.owner)
            total += 0 if new is None else number_of(text, key, new, owner)
            _put(database, text, key, new, owner)
            database.execute(
                "INSERT INTO history VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
                (version, at_ms, alteration.by, alteration.via, text, key, old, _native(new)),
            )
        check_count(count, self._max_quotas, grows=count > self.state.count)
        database.execute(
            "DELETE FROM history WHERE n <= (SELECT max(n) FROM history) - ?", (self._max_history,)
        )
        after = State(self.state.id, version, count, total % SUM_MODULUS)
        database.execute(
            "UPDATE state SET version = ?, count = ?, sum = ?, seal = ?",
            (after.version, after.count, f"{after.sum:x}", after.seal),
        )
        return [change for change, _ in changes], after


def _put(database: sqlite3.Connection, entity: str, key: str, value: Value | None, owner: Owner) -> None:
    if entity == ALL_BROKERS:
        if value is None:
            database.execute("DELETE FROM broker_limits WHERE name = ?", (key,))
        else:
            database.execute("INSERT OR REPLACE INTO broker_limits VALUES (?, ?)", (key, value))
    elif value is None:
        database.execute("DELETE FROM quotas WHERE entity = ? AND key = ?", (entity, key))
    else:
        database.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?, ?)", (entity, key, value, owner))


def _native(value: Value | None) -> Value | None:
    """The value for the history, whose columns accept any type: a number is stored as a float."""
    return float(value) if isinstance(value, int) else value


def _slot(entity: str, key: str) -> Slot:
    return (None, key) if entity == ALL_BROKERS else (parse_entity(entity), QuotaKey(key))
