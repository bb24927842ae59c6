"""Quotas of one address in several spellings: one entity, wherever it is written and whatever a store has kept."""

import json
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from gateway.quota_admin.store.interface import StoredChange
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.sqlite_format import SUM_MODULUS, State, number_of
from gateway.quota_admin.store.topic_log import Record, TopicLog
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.ip_limits import IpLimits
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits
from quotas.quota_alterations import plan_alterations
from quotas.quota_filters import make_filter
from testkit.quota_stores import alteration, sqlite_store

RATE: Final = QuotaKey.CONNECTION_CREATION_RATE
KEPT: Final = {
    "10.0.0.1": 50.0,
    "::ffff:10.0.0.1": 5.0,
    "::ffff:10.0.0.2": 6.0,
    "::FFFF:10.0.0.2": 60.0,
    "::ffff:11.0.0.0/104": 7.0,
    "2001:DB8::/32": 8.0,
    "fe80::%1/64": 9.0,
}
"""As earlier versions kept them."""

IN_FORCE: Final = {"10.0.0.1": 50.0, "10.0.0.2": 60.0, "11.0.0.0/8": 7.0, "2001:db8::/32": 8.0, "fe80::/64": 9.0}
"""The right spelling decides, else the first in the alphabet."""


def live_on(path: Path) -> LiveQuotas:
    limits = Limits()
    limits.set(QuotaEntity(ip=DEFAULT), RATE, 1)
    return LiveQuotas(LayeredQuotas(limits), sqlite_store(path), now_ms=lambda: 0)


def overrides(live: LiveQuotas) -> dict[object, float]:
    return {entity.ip: value for entity, _, value in live.quotas.overrides()}


async def keep(path: Path, rows: dict[str, float]) -> None:
    """A store that has these rows, as an earlier version has written them."""
    live = live_on(path)
    await live.open()
    await live.alter(alteration((QuotaEntity(user="alice"), QuotaKey.PRODUCER_BYTE_RATE, 3.0)))
    await live.close()
    database = sqlite3.connect(path / "quotas.db")
    for name, value in rows.items():
        database.execute(
            "INSERT INTO quotas (entity, key, value) VALUES (?, ?, ?)", (f"ip={name}", RATE.value, value)
        )
    total = sum(number_of(*row) for row in database.execute("SELECT entity, key, value FROM quotas"))
    store_id, version, count = database.execute("SELECT id, version, count FROM state").fetchone()
    state = State(store_id, version, count + len(rows), total % SUM_MODULUS)
    database.execute("UPDATE state SET count = ?, sum = ?, seal = ?", (state.count, f"{state.sum:x}", state.seal))
    database.commit()
    database.close()


def rows_of(path: Path) -> dict[str, float]:
    database = sqlite3.connect(path / "quotas.db")
    found = dict(database.execute("SELECT entity, value FROM quotas WHERE entity LIKE 'ip=%'"))
    database.close()
    return found


async def test_b19_a_store_with_several_spellings_of_an_address_has_one_meaning_and_is_cleaned_by_a_change(
    tmp_path: Path,
) -> None:
    for at, names in enumerate((KEPT, dict(reversed(KEPT.items())))):
        path = tmp_path / str(at)
        await keep(path, names)
        live = live_on(path)
        await live.open()
        assert overrides(live) == {None: 3.0} | IN_FORCE
        assert IpLimits(live.quotas.limits).limit("11.0.0.1").rate_per_s == 7
        # Set, set to what it seems to be, removed.
        await live.alter(
            alteration(
                (QuotaEntity(ip="10.0.0.1"), RATE, 51.0),
                (QuotaEntity(ip="10.0.0.2"), RATE, None),
                (QuotaEntity(ip="2001:DB8::/32"), RATE, 8.0),
                (QuotaEntity(ip="fe80::/64"), RATE, 10.0),
            )
        )
        history = [(entry.old, entry.new) for entry in await live.history(3)]
        assert sorted(history, key=str) == [(50.0, 51.0), (60.0, None), (9.0, 10.0)]
        after = IN_FORCE | {"10.0.0.1": 51.0, "fe80::/64": 10.0}
        del after["10.0.0.2"]
        assert overrides(live) == {None: 3.0} | after
        await live.close()
        assert rows_of(path) == {
            "ip=10.0.0.1": 51.0,
            "ip=::ffff:11.0.0.0/104": 7.0,
            "ip=2001:DB8::/32": 8.0,
            "ip=fe80::/64": 10.0,
        }

        again = live_on(path)  # which checks the sums too
        await again.open()
        assert overrides(again) == {None: 3.0} | after
        await again.alter(alteration(*((QuotaEntity(ip=name), RATE, None) for name in after)))
        await again.close()
        assert rows_of(path) == {}


def test_b19_a_topic_with_several_spellings_of_an_address_has_one_meaning_and_is_cleaned_by_a_change() -> None:
    for names in (list(KEPT), list(reversed(KEPT))):
        records = [(key_of(name), value_of(KEPT[name])) for name in names]
        log = log_of(records)
        assert log.bad_records == 0
        assert (values(log), log.size) == (IN_FORCE, len(IN_FORCE))
        changes: list[tuple[StoredChange, float | str | None]] = [
            (QuotaChange(QuotaEntity(ip="10.0.0.1"), RATE, 51.0), 50.0),
            (QuotaChange(QuotaEntity(ip="10.0.0.2"), RATE, None), 60.0),
            (QuotaChange(QuotaEntity(ip="fe80::/64"), RATE, 10.0), 9.0),
        ]
        written = log.write("a", alteration(), changes, at_ms=0, max_history=10)
        records += [(each.key, each.value) for each in written]
        after = IN_FORCE | {"10.0.0.1": 51.0, "fe80::/64": 10.0}
        del after["10.0.0.2"]
        # Followed, read from the beginning, and read when the topic was compacted.
        compacted = {key: (at, value) for at, (key, value) in enumerate(records)}
        kept = [(key, value) for key, (_, value) in sorted(compacted.items(), key=lambda item: item[1][0])]
        followed = log_of(records[: len(names)])
        followed.feed([Record(at, *each, "a") for at, each in enumerate(records[len(names) :], start=len(names))])
        for read in (followed, log_of(records), log_of([each for each in kept if each[1] is not None])):
            assert (values(read), read.size) == (after, len(after))


def test_b19_a_removal_by_an_earlier_version_leaves_the_other_spelling() -> None:
    both = [(key_of(name), value_of(KEPT[name])) for name in ("10.0.0.1", "::ffff:10.0.0.1")]
    assert values(log_of([*both, (key_of("10.0.0.1"), None)])) == {"10.0.0.1": 5.0}
    assert values(log_of([*both, (key_of("::ffff:10.0.0.1"), None)])) == {"10.0.0.1": 50.0}


def key_of(name: str) -> bytes:
    return json.dumps({"quota": f"ip={name}", "key": RATE}, separators=(",", ":")).encode()


def value_of(rate: float) -> bytes:
    return json.dumps({"format": 1, "value": rate}).encode()


def log_of(records: list[tuple[bytes, bytes | None]]) -> TopicLog:
    log = TopicLog()
    log.feed([Record(at, *each, None) for at, each in enumerate(records)])
    return log


def values(log: TopicLog) -> dict[object, float | None]:
    return {change.entity.ip: change.value for change in log.values() if isinstance(change, QuotaChange)}


@pytest.mark.parametrize("name", ["::ffff:10.0.0.1", "10.1", "[::FFFF:0A00:1]", "010.0.0.1"])
def test_b19_who_sets_another_spelling_sets_the_same_entity(name: str) -> None:
    quotas = LayeredQuotas(Limits())
    (planned,) = plan_alterations([({"ip": name}, [(RATE, 5.0, False)])], quotas)
    assert planned.names == {"ip": name}, "as it was asked for, in the answer"
    quotas.apply(planned.changes)
    assert list(quotas.overrides()) == [(QuotaEntity(ip="10.0.0.1"), RATE, 5.0)]
    for asked in (name, "10.0.0.1"):
        for strict in (False, True):
            found = make_filter([("ip", 0, asked)], strict=strict).select(quotas.limits)
            assert list(found) == [(QuotaEntity(ip="10.0.0.1"), {RATE: 5.0})]
    (planned,) = plan_alterations([({"ip": "0:0::FFFF:10.0.0.1"}, [(RATE, 0.0, True)])], quotas)
    quotas.apply(planned.changes)
    assert list(quotas.overrides()) == []


def test_b19_two_spellings_in_one_request_are_told_apart_from_two_entities() -> None:
    entries = [({"ip": name}, [(RATE, 5.0, False)]) for name in ("10.0.0.1", "10.1", "10.2", "10.1")]
    first, second, third = plan_alterations(entries, LayeredQuotas(Limits()))
    assert (first.fault, third.fault) == (None, None)
    assert second.fault == "Ignoring duplicate entity ClientQuotaEntity(entries={ip=10.1})"
    (_, same) = plan_alterations(entries[:2], LayeredQuotas(Limits()))
    assert same.fault == "10.1 is the same address as 10.0.0.1, which this request has too"
    assert same.changes == ()
