"""Members of a fleet divide one capacity, also among names that no division knows yet."""

from __future__ import annotations

import pytest

from gateway.fleet.counters import counters_of
from gateway.fleet.exchange import Exchange, FleetRules
from gateway.fleet.shares import Member
from quotas.entities import QuotaKey
from quotas.lending import Brake
from quotas.lent_rates import Lender
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings, RequestTimeQuotas

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
CAPACITY = 1_000_000
START_MS = 7_300_000
STEP_MS = 20


class DividingMember:
    """The counters of a gateway with a capacity, and its exchange."""

    def __init__(self, id_: str) -> None:
        self.id_ = id_
        self.limits = Limits()
        self.quotas = ByteRateQuotas(self.limits, PRODUCE, RateSettings())
        self.quotas.lend(Lender(self.limits, PRODUCE, CAPACITY, now_ms=START_MS), now_ms=START_MS)
        self.limits.set_divided({PRODUCE})
        fetch = ByteRateQuotas(self.limits, QuotaKey.CONSUMER_BYTE_RATE, RateSettings())
        counters = counters_of(self.quotas, fetch, RequestTimeQuotas(self.limits, RateSettings()), None)
        self.exchange = Exchange(Member(id_, id_), counters, FleetRules(), now_ms=START_MS)

    def send(self, client_id: str, size: int, *, now_ms: int) -> int:
        """Returns the bytes that pass: all or none."""
        tracker = self.quotas.tracker(client_id, client_id, now_ms=now_ms)
        assert tracker is not None
        counters = (tracker, *self.quotas.shared_by_new(tracker, now_ms=now_ms))
        if any(now_ms < counter.blocked_until_ms for counter in counters):
            return 0
        for counter in counters:
            counter.record(size, now_ms=now_ms)
        return size


def passed_by_second(
    count: int, *, names: int, life_ms: int, size: int, seconds: int, part: float | None = None
) -> list[float]:
    """The bytes that all members pass in each second, as parts of the capacity.

    Args:
        count: the number of members. Their divisions are at different times.
        names: the names that use a member at the same time. In each step all of them want to send.
        life_ms: the age at which a name is replaced by a new one.
        size: bytes of a request.
        seconds: how long, after three seconds without clients.
        part: the part of the capacity that a brake leaves; None: no brake.
    """
    members = [DividingMember(f"m{at}") for at in range(count)]
    if part is not None:
        brake = Brake(part, START_MS + 3_600_000, "ops", {PRODUCE: CAPACITY})
        for member in members:
            member.limits.brakes = {2: brake}
    passed = [0.0] * (seconds + 3)
    for at_ms in range(0, 1000 * len(passed), STEP_MS):
        now_ms = START_MS + STEP_MS + at_ms
        if at_ms % 100 == 0:
            for member in members:
                for share in member.exchange.tick(now_ms=now_ms):
                    for each in members:
                        each.exchange.receive(share, now_ms=now_ms)
        for number, member in enumerate(members):
            if at_ms % 1000 == 140 * number:
                list(member.quotas.divide(now_ms=now_ms))
            for name in range(names) if at_ms >= 3_000 else ():
                client_id = f"{member.id_}-{name}-{at_ms // life_ms}"
                passed[at_ms // 1000] += member.send(client_id, size, now_ms=now_ms) / CAPACITY
    return passed[3:]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_names_that_live_for_a_moment_share_one_capacity_at_all_members(count: int) -> None:
    passed = passed_by_second(count, names=4, life_ms=STEP_MS, size=10_000, seconds=8)
    assert 0.85 < sum(passed[2:]) / 6 < 1.15, passed


def test_members_hear_of_new_names_although_each_uses_little_of_its_own_limit() -> None:
    """Each name may use the whole rest, so its use alone is far below its limit."""
    passed = passed_by_second(4, names=8, life_ms=500, size=5_000, seconds=1)
    assert passed[0] < 2.6, "the capacity, and for each member a bucket of 0.2 s and one exchange"


@pytest.mark.parametrize("count", [1, 4])
def test_new_names_at_all_members_share_what_a_brake_leaves(count: int) -> None:
    passed = passed_by_second(count, names=4, life_ms=STEP_MS, size=2_000, seconds=8, part=0.2)
    assert 0.15 < sum(passed[2:]) / 6 < 0.25, passed
