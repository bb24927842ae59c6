"""The layout of the SQLite file, and the marks by which it is recognised.

A file is accepted only if it passes all checks: SQLite's own check, this program's mark, and a checksum over every
value, the version and the store's name. The checksum is needed because SQLite does not notice a flipped bit inside a
value. Another file is refused with a text that says what to do. It is never read as "no quotas".

Format 1 had quotas only. Format 2 has connection limits of brokers too, and a history with values of both. Format 3
has the owner of each quota; owners of quotas that were set before are unknown. A file of an earlier format is
upgraded when it is opened for writing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.quota_admin.store.interface import StoreError, Value
from gateway.runtime.durable import sync_file
from quotas.entities import DEFAULT, Name, QuotaEntity, QuotaKey, parse_entity
from quotas.layered_quotas import Owner

APPLICATION_ID: Final = 0x534C5143  # "SLQC"
FORMAT: Final = 3

QUOTA_KEYS: Final = {key.value: key for key in QuotaKey}
OWNERS: Final = {owner.value: owner for owner in Owner}

_DEFAULT: Final = DEFAULT.value
_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100
SUM_MODULUS: Final = 2**64

_BROKER_LIMITS: Final = """\
CREATE TABLE broker_limits (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"""
_HISTORY: Final = """\
CREATE TABLE history (
  n INTEGER PRIMARY KEY, version INTEGER NOT NULL, at_ms INTEGER NOT NULL, by TEXT NOT NULL, via TEXT NOT NULL,
  entity TEXT NOT NULL, key TEXT NOT NULL, old ANY, new ANY
) STRICT"""

_SCHEMA: Final = f"""
PRAGMA page_size = 4096;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
CREATE TABLE quotas (
  entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, owner TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (entity, key)
) STRICT, WITHOUT ROWID;
{_BROKER_LIMITS};
{_HISTORY};
CREATE TABLE state (
  one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, version INTEGER NOT NULL, count INTEGER NOT NULL,
  sum TEXT NOT NULL, seal TEXT NOT NULL
) STRICT;
"""


_UPGRADES: Final = {
    1: (
        _BROKER_LIMITS,
        "ALTER TABLE history RENAME TO history_1",
        _HISTORY,
        "INSERT INTO history SELECT * FROM history_1",
        "DROP TABLE history_1",
    ),
    2: ("ALTER TABLE quotas ADD COLUMN owner TEXT NOT NULL DEFAULT ''",),
}
"""The statements that upgrade a file of a format to the next."""


@dataclass(frozen=True, slots=True)
class State:
    """The state that a file records about itself.

    Attributes:
        id: the store's id, which never changes.
        version: the version of its latest alteration.
        count: the number of quotas.
        sum: the sum of a number for each quota and each limit. So an alteration reads only the values that it
            changes.
    """

    id: str
    version: int
    count: int
    sum: int

    @property
    def seal(self) -> str:
        """A checksum over all attributes."""
        return hashlib.blake2b(
            f"{self.id} {self.version} {self.count} {self.sum}".encode(), digest_size=16
        ).hexdigest()


def create(path: Path) -> str:
    """Create an empty store. If this is interrupted, there is either the whole file or none.

    Returns:
        The new store's id.

    Raises:
        OSError, sqlite3.Error: the store can't be created.
    """
    new = path.with_name(f"{path.name}.new")
    for leftover in (new, *(Path(f"{new}-{kind}") for kind in ("journal", "wal", "shm"))):
        leftover.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    state = State(str(uuid.uuid4()), 0, 0, 0)
    with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        database.execute(
            "INSERT INTO state VALUES (1, ?, ?, ?, ?, ?)",
            (state.id, state.version, state.count, f"{state.sum:x}", state.seal),
        )
        database.execute("PRAGMA journal_mode = WAL")
    sync_file(new)
    new.rename(path)
    return state.id


def upgrade(database: sqlite3.Connection, written: int) -> None:
    """Upgrade a file of an earlier format to this one, or change nothing.

    Args:
        database: the open file.
        written: the file's format.

    Raises:
        sqlite3.Error: nothing was changed once the connection is closed.
    """
    database.execute("BEGIN IMMEDIATE")
    for earlier in range(written, FORMAT):
        for statement in _UPGRADES[earlier]:
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {FORMAT}")
    database.execute("COMMIT")


def check_header(path: Path) -> int:
    """Check the first bytes, before SQLite treats an empty file as a new database.

    Returns:
        The format of the file; the log beside it may have a newer one.

    Raises:
        StoreError: the file is no store of this version.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except OSError as exc:
        raise StoreError(f"{path} can't be read: {exc.strerror}") from exc
    if not header:
        raise StoreError(damaged(path, "it is empty"))
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StoreError(damaged(path, "it is no SQLite file"))
    application_id, written = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    if application_id != APPLICATION_ID:
        raise StoreError(f"{path} belongs to another program (application id {application_id:#x})")
    check_format(path, written)
    return written


def check_format(path: Path, written: int) -> None:
    """Refuse formats that this program does not read.

    Raises:
        StoreError: the format is not supported.
    """
    if written > FORMAT:
        raise StoreError(
            f"{path} was written by a newer version of sluice (format {written}; this one reads {FORMAT})"
        )
    if written < 1:
        raise StoreError(damaged(path, f"format {written} never existed"))


def number_of(entity: str, key: str, value: Value, owner: str = "") -> int:
    """The number that a quota or limit adds to `State.sum`; without an owner as in formats that had no owners."""
    text = f"{entity}\0{key}\0{value if isinstance(value, str) else float(value).hex()}"
    if owner:
        text += f"\0{owner}"
    return int.from_bytes(
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


def entity_from(text: str) -> QuotaEntity:
    """A faster `parse_entity` for texts that `str` of an entity has written, of which a start reads many.

    Raises:
        ValueError: another program has written the text.
    """
    if '"' in text:
        return parse_entity(text)
    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None
    topic: Name | None = None
    for part in text.split(","):
        kind, _, bare = part.partition("=")
        name = DEFAULT if bare == _DEFAULT else bare
        if kind == "user":
            user = name
        elif kind == "client-id":
            client_id = name
        elif kind == "ip":
            ip = name
        elif kind == "topic":
            topic = name
        else:
            return parse_entity(text)
    return QuotaEntity(user, client_id, ip, topic)


def damaged(path: Path, what: str) -> str:
    """The error text about a file that can't be trusted."""
    return (
        f"{path} is damaged: {what}. Put a copy back, or move quotas.db and quotas.id away to begin without any "
        "quota of the store"
    )
