"""Connection limits of brokers in the stores: durable, with a history, followed, and beside the quotas."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs

from gateway.quota_admin.store.interface import (
    NOTHING,
    HistoryEntry,
    Kept,
    LimitChange,
    QuotaStore,
    StoreError,
    effective,
)
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.memory_store import MemoryStore
from gateway.quota_admin.store.sqlite_format import APPLICATION_ID, FORMAT, State, number_of
from gateway.quota_admin.store.topic_log import Record, TopicLog
from quotas.layered_quotas import LayeredQuotas
from quotas.limits import Limits
from testkit.broker_limits import ScriptedLimits
from testkit.quota_stores import ALICE, AT_MS, PRODUCE, Seen, alteration, limit_alteration, opened, sqlite_store
from testkit.quota_topic import QuotaTopic

MAX, RATE, PER_IP = "max.connections", "max.connection.creation.rate", "max.connections.per.ip"

FORMAT_1: Final = f"""
PRAGMA page_size = 4096;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = 1;
CREATE TABLE quotas (
  entity TEXT NOT NULL, key TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY (entity, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE history (
  n INTEGER PRIMARY KEY, version INTEGER NOT NULL, at_ms INTEGER NOT NULL, by TEXT NOT NULL, via TEXT NOT NULL,
  entity TEXT NOT NULL, key TEXT NOT NULL, old REAL, new REAL
) STRICT;
CREATE TABLE state (
  one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL, version INTEGER NOT NULL, count INTEGER NOT NULL,
  sum TEXT NOT NULL, seal TEXT NOT NULL
) STRICT;
INSERT INTO quotas VALUES ('user=alice', 'producer_byte_rate', 5.0);
INSERT INTO history VALUES (NULL, 1, {AT_MS}, 'User:admin', 'a test', 'user=alice', 'producer_byte_rate', NULL, 5.0);
"""


def format_1_store(directory: Path) -> Path:
    """What a gateway before limits of brokers has left."""
    path = directory / "quotas.db"
    state = State("one", 1, 1, number_of("user=alice", "producer_byte_rate", 5.0))
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript(FORMAT_1)
        row = (state.id, state.version, state.count, f"{state.sum:x}", state.seal)
        database.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?)", row)
        database.commit()
        database.execute("PRAGMA journal_mode = WAL")
    (directory / "quotas.id").write_text("one\n")
    return path


def format_in_file(path: Path) -> int:
    """What a gateway looks at before it opens the file."""
    return int.from_bytes(path.read_bytes()[60:64], "big")


@pytest.fixture(params=["memory", "sqlite", "topic"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QuotaStore:
    if request.param == "sqlite":
        return sqlite_store(tmp_path)
    if request.param == "topic":
        return QuotaTopic(monkeypatch).store()
    return MemoryStore(now_ms=lambda: AT_MS)


async def test_limits_are_kept_beside_quotas_and_have_a_history(store: QuotaStore) -> None:
    async with opened(store) as seen:
        await store.write(limit_alteration(max_connections="20", max_connection_creation_rate="7"))
        await store.write(alteration((ALICE, PRODUCE, 5.0)))
        await store.write(limit_alteration(max_connections="30"))
        before = store.version
        await store.write(limit_alteration(max_connections="30"))
        assert store.version == before, "nothing was changed"
        await store.write(limit_alteration(max_connection_creation_rate=None))
        assert seen.values == {(None, MAX): "30", (ALICE, PRODUCE): 5.0}
        found = [(entry.entity, entry.key, entry.old, entry.new) for entry in await store.history(10)]
        assert found == [
            (None, RATE, "7", None), (None, MAX, "20", "30"), (ALICE, PRODUCE, None, 5.0),
            (None, RATE, None, "7"), (None, MAX, None, "20"),
        ]  # fmt: skip


async def test_limits_are_in_force_when_they_are_kept_and_do_not_count_as_quotas() -> None:
    async with opened(store := MemoryStore(now_ms=lambda: AT_MS, max_quotas=1)):
        await store.write(alteration((ALICE, PRODUCE, 5.0)))
        await store.write(limit_alteration(max_connections="20"))
    store = MemoryStore(now_ms=lambda: AT_MS)
    live, board = await live_on(store)
    gone = limit_alteration(listener_name_gone_max_connections="5", max_connections="20")
    await live.alter(gone)
    assert (board.limits.values, board.in_force.max_connections) == ({MAX: "20"}, 20)
    await live.alter(limit_alteration(max_connections=None))
    assert (board.limits.values, live.kept_limits) == ({}, {"listener.name.gone.max.connections": "5"})
    store.read_only = "no space"
    with pytest.raises(StoreError, match="no space"):
        await live.alter(limit_alteration(max_connections="9"))
    assert board.limits.values == {}


# -- a SQLite file -------------------------------------------------------------------------------------------
async def test_limits_in_a_file_are_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(store := sqlite_store(tmp_path, max_quotas=1)):
        await store.write(limit_alteration(max_connections="20", max_connection_creation_rate="7"))
        await store.write(alteration((ALICE, PRODUCE, 5.0)))
        await store.write(limit_alteration(max_connections=None))
    async with opened(store := sqlite_store(tmp_path)) as seen:
        assert seen.values == {(ALICE, PRODUCE): 5.0, (None, RATE): "7"}
        entry = HistoryEntry(3, AT_MS, "User:admin", "a test", None, MAX, "20", None)
        assert await store.history(1) == [entry]


@pytest.mark.parametrize(("statement", "text"), [
    ("UPDATE broker_limits SET value = '21'", "checksum"), ("DELETE FROM broker_limits", "checksum"),
    ("INSERT INTO broker_limits VALUES ('max.connection.creation.rate', '9')", "checksum"),
    ("UPDATE broker_limits SET value = '0'", "Invalid max.connections 0"),
    ("UPDATE broker_limits SET name = 'log.dirs'", "no limit of connections"),
    ("DROP TABLE broker_limits", "no such table"),
])  # fmt: skip
async def test_g04_limits_that_were_tampered_with_stop_the_start(tmp_path: Path, statement: str, text: str) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(limit_alteration(max_connections="20"))
    with contextlib.closing(sqlite3.connect(tmp_path / "quotas.db")) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(StoreError, match=rf"is damaged: .*{text}"):
        await sqlite_store(tmp_path).open(Seen())


async def test_a_file_of_the_format_without_limits_is_upgraded(tmp_path: Path) -> None:
    path = format_1_store(tmp_path)
    assert format_in_file(path) == 1
    async with opened(store := sqlite_store(tmp_path)) as seen:
        assert format_in_file(path) == FORMAT, "before anything is written that a gateway of format 1 cannot read"
        assert seen.values == {(ALICE, PRODUCE): 5.0}
        assert await store.write(limit_alteration(max_connections="20")) == 2
    async with opened(store := sqlite_store(tmp_path)) as seen:
        assert seen.values == {(ALICE, PRODUCE): 5.0, (None, MAX): "20"}
        assert [(entry.key, entry.new) for entry in await store.history(9)] == [(MAX, "20"), (PRODUCE, 5.0)]


async def test_an_upgrade_waits_for_the_end_of_a_backup(tmp_path: Path) -> None:
    path = format_1_store(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as backup:
        backup.execute("BEGIN")
        backup.execute("SELECT count(*) FROM quotas").fetchone()
        for _ in range(2):
            with pytest.raises(StoreError, match="can't be upgraded while another program reads it"):
                await sqlite_store(tmp_path).open(Seen())
    async with opened(sqlite_store(tmp_path)) as seen:
        assert seen.values == {(ALICE, PRODUCE): 5.0}
    assert format_in_file(path) == FORMAT


async def test_a_file_of_format_1_that_is_damaged_is_left_alone(tmp_path: Path) -> None:
    path = format_1_store(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE quotas SET value = 6.0")
        database.commit()
    with pytest.raises(StoreError, match="checksum is wrong"):
        await sqlite_store(tmp_path).open(Seen())
    assert format_in_file(path) == 1


# -- a topic -------------------------------------------------------------------------------------------------
async def test_records_of_limits_do_not_disturb_gateways_that_do_not_know_them() -> None:
    changes = effective(
        [LimitChange(MAX, "20"), LimitChange(RATE, None)],
        lambda slot: Kept("7") if slot == (None, RATE) else NOTHING,
        {},
    )
    asked = limit_alteration(max_connections="20", max_connection_creation_rate=None)
    one, other, history = TopicLog().write("a", asked, changes, at_ms=AT_MS, max_history=10)
    # No record of a quota, so such a gateway passes these over; of format 1, so that it continues after them.
    assert (one.key, one.value) == (b'{"broker_limit":"max.connections"}', b'{"format":1,"value":"20"}')
    assert (other.key, other.value) == (b'{"broker_limit":"max.connection.creation.rate"}', None)
    # It reads this one, and finds no change of a quota in it.
    read = json.loads(history.value or b"")
    assert (read["format"], read["last"], read["changes"]) == (1, True, [])
    assert read["limits"] == [{"limit": MAX, "old": None, "new": "20"}, {"limit": RATE, "old": "7", "new": None}]


@pytest.mark.parametrize("value", ['"0"', '"x"', "5", "null", "[]"])
async def test_g04_a_limit_that_can_not_be_is_passed_over(value: str) -> None:
    log = TopicLog()
    record = Record(0, b'{"broker_limit":"max.connections"}', b'{"format":1,"value":%s}' % value.encode(), None)
    assert log.feed([record]) == []
    assert (log.bad_records, log.values()) == (1, [])


async def test_limits_are_followed_by_the_other_gateways_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = QuotaTopic(monkeypatch)
    async with opened(here := topic.store()):
        await here.write(limit_alteration(max_connections="20"))
        async with opened(there := topic.store()) as seen:
            assert seen.values == {(None, MAX): "20"}
            await here.write(limit_alteration(max_connections="30"))
            await there.catch_up()
            assert seen.values == {(None, MAX): "30"}


# -- in force ------------------------------------------------------------------------------------------------
async def live_on(store: QuotaStore) -> tuple[LiveQuotas, ScriptedLimits]:
    live, board = LiveQuotas(LayeredQuotas(Limits()), store, now_ms=lambda: 0), ScriptedLimits()
    await live.open()
    live.follow_limits(board.limits)
    return live, board


@pytest.mark.parametrize(("limits", "text"), [
    ({"max_connections": "100000"}, "file descriptors"),
    ({"max_connections_per_ip": "0"}, "can be set to zero only if"),
    ({"max_connections": "0"}, "Invalid max.connections 0"),
    ({"log_dirs": "5"}, "log.dirs is no limit of connections"),
])  # fmt: skip
async def test_limits_that_can_not_be_in_force_are_not_kept(limits: dict[str, str], text: str) -> None:
    live, board = await live_on(MemoryStore(now_ms=lambda: AT_MS))
    with pytest.raises(StoreError, match=text):
        await live.alter(limit_alteration(**limits))
    assert (live.kept_limits, live.store.version, board.limits.values) == ({}, 0, {})


async def test_limits_that_are_too_much_together_or_here_leave_those_before() -> None:
    live, board = await live_on(MemoryStore(now_ms=lambda: AT_MS))
    overrides = {"max_connections_per_ip_overrides": "10.0.0.7:5"}
    await live.alter(limit_alteration(**overrides))
    made = await asyncio.gather(
        live.alter(limit_alteration(max_connections_per_ip="0")),
        live.alter(limit_alteration(max_connections_per_ip_overrides="")),
        return_exceptions=True,
    )
    assert [isinstance(each, StoreError) for each in made] == [False, True]
    assert board.limits.values[PER_IP] == "0"
    store = MemoryStore(now_ms=lambda: AT_MS)
    _, board = await live_on(store)
    await store.write(limit_alteration(max_connections="20"))
    with capture_logs() as lines:
        await store.write(limit_alteration(max_connections="100000"))
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["connection_limits_not_in_force"]
    assert board.limits.values == {MAX: "20"}
    await store.write(limit_alteration(max_connections="30"))
    assert board.limits.values == {MAX: "30"}


@pytest.mark.parametrize("limits", [{"max_connections": "100000"}, {"max_connections_per_ip": "0"}])
async def test_kept_limits_that_can_not_be_in_force_stop_the_start(tmp_path: Path, limits: dict[str, str]) -> None:
    async with opened(store := sqlite_store(tmp_path)):
        await store.write(limit_alteration(**limits))
    store = sqlite_store(tmp_path)
    with pytest.raises(StoreError, match="limits of brokers can't be in force"):
        await live_on(store)
    await store.close()
