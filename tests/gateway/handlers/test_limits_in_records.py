"""Usage records name the limit that made a client wait, where that is not the quota of the row."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gateway.usage.table import UsageTable
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.groups import Group, Groups
from quotas.lending import Brake
from quotas.usage_record import Row
from testkit import wire
from testkit.conversation import Conversation
from testkit.core import START_MS, GatewayCore
from testkit.frames import batch, produce_reply

PRODUCE: Final = QuotaKey.PRODUCER_BYTE_RATE
ALICE: Final = QuotaEntity(user="alice")


@pytest.mark.parametrize(
    ("limits", "capacity", "named"),
    [
        ({ALICE: {PRODUCE: 100}}, None, None),
        ({ALICE: {PRODUCE: 1e9}, QuotaEntity(group="team"): {PRODUCE: 100}}, None, ("group", "team")),
        ({QuotaEntity(topic="t"): {PRODUCE: 100}}, None, ("topic", "t")),
        ({QuotaEntity(user="alice", topic=DEFAULT): {PRODUCE: 100}}, None, ("topic", "<default>")),
        ({ALICE: {QuotaKey.PRODUCER_RECORD_RATE: 1}}, None, ("records", "")),
        ({ALICE: {PRODUCE: 1e9}}, 1_000, ("capacity", "")),
        # Its quota is below its share.
        ({ALICE: {PRODUCE: 100}}, 1_000_000, None),
    ],
)
def test_a_wait_is_in_the_record_with_the_limit_that_asked_for_it(
    limits: dict[QuotaEntity, dict[QuotaKey, float]], capacity: float | None, named: tuple[str, str] | None
) -> None:
    core = GatewayCore(usage=UsageTable())
    core.limits.set_groups(Groups([Group("team", users=("alice",))]))
    for entity, values in limits.items():
        for key, value in values.items():
            core.limits.set(entity, key, value)
    if capacity is not None:
        core.client_quotas.set_capacity({PRODUCE: capacity}, observe=False, now_ms=core.clock.now_ms)
    c = Conversation(core=core, principal="alice")
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch(500, 5_000)}]}]
    frame = wire.request("Produce", 9, correlation_id=1, acks=1, timeout_ms=1, topic_data=topics)
    c.client_sends(frame).upstream_sees(frame).upstream_answers(produce_reply(1))
    told_ms = wire.decode_response("Produce", 9, c.take_client()).throttle_time_ms
    assert told_ms > 0
    (row,) = (row for row in _rows(core) if row[Row.API] == "produce")
    assert row[Row.THROTTLE_MS] == told_ms
    assert row[Row.BESIDE] == (None if named is None else [[*named, 1, told_ms]])
    in_force = row[Row.IN_FORCE]
    assert in_force == (capacity if named == ("capacity", "") else 0)
    assert row[Row.QUOTA] == limits.get(ALICE, {}).get(PRODUCE)


@pytest.mark.parametrize(("by", "named"), [("brake", ["brake", "3"]), ("overload", ["overload", "3"])])
def test_a_wait_under_a_brake_or_for_slow_brokers_names_the_tier_and_the_limit_in_force(
    by: str, named: list[str]
) -> None:
    core = GatewayCore(usage=UsageTable())
    core.limits.set(ALICE, PRODUCE, 1e9)
    core.limits.set(ALICE, QuotaKey.TIER, 3)
    quotas, clock = core.client_quotas, core.clock
    quotas.set_capacity({PRODUCE: 1_000_000}, observe=False, now_ms=clock.now_ms)
    lender = quotas.produce.lender
    assert lender is not None
    if by == "brake":
        core.limits.brakes = {3: Brake(0.5, clock.now_ms + 60_000, "ops", {PRODUCE: 20_000})}
    else:
        lender.usable_part, lender.sheds = 0.002, True
    c = Conversation(core=core, principal="alice")
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": batch(500, 50_000)}]}]
    frame = wire.request("Produce", 9, correlation_id=1, acks=1, timeout_ms=1, topic_data=topics)
    c.client_sends(frame).upstream_answers(produce_reply(1))
    _rows(core)
    for step_ms in (1_000, 20_000):  # the second division knows what it uses
        c.at(clock.now_ms - START_MS + step_ms)
        list(quotas.divide(now_ms=clock.now_ms))
        c.client_sends(frame).upstream_answers(produce_reply(1))
        rows = [row for row in _rows(core) if row[Row.API] == "produce"]
    (row,) = rows
    ((*limit, delayed, waited_ms),) = row[Row.BESIDE]
    assert (limit, delayed) == (named, 1)
    assert waited_ms == row[Row.THROTTLE_MS] > 0
    assert row[Row.QUOTA] == 1e9
    tracker = quotas.produce.tracker("alice", "tests", now_ms=clock.now_ms)
    assert tracker is not None
    assert row[Row.IN_FORCE] == pytest.approx(tracker.match.limit)
    assert 0 < row[Row.IN_FORCE] < 100_000


def _rows(core: GatewayCore) -> list[Any]:
    table, now_ms = core.client_quotas.usage, core.clock.now_ms
    assert table is not None
    return [table.values(row, begin_ms=now_ms, now_ms=now_ms) for row in table.take_listed(now_ms=now_ms)]
