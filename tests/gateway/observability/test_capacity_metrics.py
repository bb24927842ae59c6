"""What each client lends and borrows of a capacity by the last division, in metrics and in the status."""

from __future__ import annotations

from typing import Final

import pytest

from gateway.observability.capacity_metrics import PARTS, CapacityMetrics, capacity_json
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.lent_rates import MOST_SHARES, Lender
from quotas.limits import Limits
from quotas.rate_quotas import ByteRateQuotas, RateSettings

PRODUCE: Final = QuotaKey.PRODUCER_BYTE_RATE
START_MS: Final = 7_300_000


class Divided:
    """A capacity of 1,000 B/s, 600 of it guaranteed to alice."""

    def __init__(self) -> None:
        self.limits = Limits()
        self.limits.set(QuotaEntity(user=DEFAULT), PRODUCE, 1_000)
        self.limits.set(QuotaEntity(user="alice"), PRODUCE, 1_000)
        self.limits.set(QuotaEntity(user="alice"), QuotaKey.PRODUCER_BYTE_GUARANTEE, 600)
        self.quotas = ByteRateQuotas(self.limits, PRODUCE, RateSettings())
        self.quotas.lend(Lender(self.limits, PRODUCE, 1_000, now_ms=START_MS), now_ms=START_MS)
        self.limits.set_divided({PRODUCE})
        self.now_ms = START_MS

    def second(self, **used: float) -> None:
        """One second, in which users use so much, and the division at its end."""
        for user, value in used.items():
            tracker = self.quotas.tracker(user, "", now_ms=self.now_ms)
            assert tracker is not None
            tracker.record(value, now_ms=self.now_ms)
        self.now_ms += 1_000
        list(self.quotas.divide(now_ms=self.now_ms))

    def shares(self) -> dict[tuple[str, str], float]:
        """The series: by user and part."""
        (family,) = (
            each for each in CapacityMetrics({"produce": self.quotas}).collect() if "capacity_share" in each.name
        )
        return {(each.labels["user"], each.labels["part"]): each.value for each in family.samples}


def test_a_share_says_what_is_lent_borrowed_and_taken_back() -> None:
    divided = Divided()
    divided.second(alice=0, bob=0)
    divided.second(alice=100, bob=700)
    found = divided.shares()
    assert [found["alice", part] for part in PARTS] == [600, 500, 0, 0]
    assert [found["bob", part] for part in PARTS] == [0, 0, 700, 0]
    divided.second(alice=0, bob=700)
    assert divided.shares()["alice", "lent"] == 600
    divided.second(alice=600, bob=700)
    found = divided.shares()
    assert [found["alice", part] for part in PARTS] == [600, 0, 0, 0]
    assert [found["bob", part] for part in PARTS] == [0, 0, 700, pytest.approx(300)]
    told = capacity_json({"produce": divided.quotas})["produce"]
    assert (told["capacity"], told["guaranteed"], told["lent"]) == (1_000, 600, 700)
    assert [share["name"] for share in told["shares"]] == ["user=alice", "user=bob"]


def test_a_lender_that_is_silent_still_shows() -> None:
    divided = Divided()
    for _ in range(5):
        divided.second(alice=0)
    assert divided.shares()["alice", "lent"] == 600


def test_the_number_of_series_is_bounded_and_guarantees_come_first() -> None:
    divided = Divided()
    users = {f"user-{at}": 10.0 + at for at in range(3 * MOST_SHARES)}
    divided.second(alice=1, **users)
    divided.second(alice=1, **users)
    found = divided.shares()
    assert len(found) == MOST_SHARES * len(PARTS)
    assert ("alice", "lent") in found
    assert (f"user-{3 * MOST_SHARES - 1}", "borrowed") in found
    assert ("user-0", "borrowed") not in found


def test_without_a_capacity_there_is_nothing_to_show() -> None:
    divided = Divided()
    divided.second(bob=5)
    divided.quotas.lend(None, now_ms=divided.now_ms)
    assert divided.shares() == {}
    assert capacity_json({"produce": divided.quotas}) == {}
