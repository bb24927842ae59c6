"""Quotas of one address under several spellings: refused when they are set, harmless where a store has them still."""

import json
from pathlib import Path
from typing import Final

import pytest

from gateway.quota_admin.store.interface import StoreError
from gateway.quota_admin.store.live import LiveQuotas
from gateway.quota_admin.store.topic_log import Record, TopicLog
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.ip_limits import IpLimits
from quotas.layered_quotas import LayeredQuotas, QuotaChange
from quotas.limits import Limits
from quotas.quota_alterations import plan_alterations
from testkit.quota_stores import alteration, sqlite_store

RATE: Final = QuotaKey.CONNECTION_CREATION_RATE
KEPT: Final = {
    "10.0.0.1": 50.0,
    "::ffff:10.0.0.1": 5.0,
    "::ffff:10.0.0.2": 6.0,
    "::ffff:11.0.0.0/104": 7.0,
    "2001:DB8::/32": 8.0,
    "fe80::%1/64": 9.0,
}
IN_FORCE: Final = {"10.0.0.1": 50, "10.0.0.2": 6, "11.0.0.1": 1, "2001:db8::1": 8, "fe80::1": 9}


def live_on(path: Path) -> LiveQuotas:
    limits = Limits()
    limits.set(QuotaEntity(ip=DEFAULT), RATE, 1)
    return LiveQuotas(LayeredQuotas(limits), sqlite_store(path), now_ms=lambda: 0)


def in_force(limits: Limits) -> dict[str, int]:
    return {address: IpLimits(limits).limit(address).rate_per_s for address in IN_FORCE}


async def test_b19_a_store_with_several_spellings_of_an_address_has_one_meaning_and_can_be_cleaned(
    tmp_path: Path,
) -> None:
    for at, names in enumerate((KEPT, reversed(KEPT))):
        path = tmp_path / str(at)
        live = live_on(path)
        await live.open()
        # As they were taken once; what alters quotas now refuses them.
        for name in names:
            await live.store.write(alteration((QuotaEntity(ip=name), RATE, KEPT[name])))
        assert in_force(live.quotas.limits) == IN_FORCE
        await live.close()

        again = live_on(path)
        await again.open()
        assert in_force(again.quotas.limits) == IN_FORCE
        for name in KEPT:
            entity = QuotaEntity(ip=name)
            if name != "10.0.0.1":
                with pytest.raises(StoreError, match=r"spelling|zone"):
                    await again.alter(alteration((entity, RATE, 3.0)))
            (planned,) = plan_alterations([({"ip": name}, [(RATE, 0.0, True)])], again.quotas)
            assert planned.fault is None
            await again.alter(alteration(*((each.entity, each.key, each.value) for each in planned.changes)))
        assert set(in_force(again.quotas.limits).values()) == {1}
        await again.close()


def test_b19_a_topic_with_several_spellings_of_an_address_is_read_as_it_is() -> None:
    log = TopicLog()
    for at, (name, rate) in enumerate(KEPT.items()):
        key = json.dumps({"quota": f"ip={name}", "key": RATE})
        log.feed([Record(at, key.encode(), json.dumps({"format": 1, "value": rate}).encode(), None)])
    assert log.bad_records == 0
    assert {change.entity.ip: change.value for change in log.values() if isinstance(change, QuotaChange)} == KEPT


@pytest.mark.parametrize("name", ["::ffff:10.0.0.1", "2001:DB8::1", "::ffff:10.0.0.0/104", "fe80::%1/64"])
def test_b19_who_sets_another_spelling_is_told_the_right_one(name: str) -> None:
    (planned,) = plan_alterations([({"ip": name}, [(RATE, 5.0, False)])], LayeredQuotas(Limits()))
    assert planned.changes == ()
    assert planned.fault is not None
    assert planned.fault.startswith(f"{name} has ")
