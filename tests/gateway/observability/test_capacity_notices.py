"""What takes from tiers, in plain words: brakes, slow brokers, and the times in which they did or would have."""

from __future__ import annotations

import pytest

from gateway.observability.capacity_notices import MOST_EPISODES, Episodes, brakes_json, cut_json, overload_json
from quotas.entities import QuotaEntity, QuotaKey
from quotas.lending import Brake, Cut, CutBy
from quotas.lent_rates import Lender
from quotas.limits import Limits
from quotas.overload import Overload
from quotas.rate_quotas import ByteRateQuotas, RateSettings

PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
WALL_MS = 1_800_000_000_000


class Divided:
    """A capacity of 1,000 bytes per second, of which a client of tier 0 and one of tier 3 want all."""

    def __init__(self, *, enforce: bool) -> None:
        limits = Limits()
        self.quotas = ByteRateQuotas(limits, PRODUCE, RateSettings())
        self.lender = Lender(limits, PRODUCE, 1_000, now_ms=0)
        self.quotas.lend(self.lender, now_ms=0)
        limits.set_divided({PRODUCE})
        for user, tier in (("a", 0), ("c", 3)):
            limits.set(QuotaEntity(user=user), PRODUCE, 10_000)
            limits.set(QuotaEntity(user=user), QuotaKey.TIER, tier)
        self.overload = Overload(500, enforce=enforce)
        self.now_ms = 0

    def second(self, time_ms: int) -> None:
        """Each client sends 500 bytes; brokers take so long."""
        self.now_ms += 1_000
        for user in ("a", "c"):
            tracker = self.quotas.tracker(user, "", now_ms=self.now_ms)
            assert tracker is not None
            tracker.record(500, now_ms=self.now_ms)
        for user in ("a", "b", "c"):
            sample = self.overload.times.send(user, None, idle=True, now_ms=self.now_ms)
            assert sample is not None
            sample.answer(now_ms=self.now_ms + time_ms)
        self.overload.close([self.lender], now_ms=self.now_ms)
        list(self.quotas.divide(now_ms=self.now_ms))


@pytest.mark.parametrize(
    ("cut", "text"),
    [
        (
            Cut(CutBy.BRAKE, 3, 0.2, until_ms=WALL_MS, author="ops"),
            "brake of tier 3 until 2027-01-15 08:00:00 UTC, set by ops: its clients together keep 20 % of what they "
            "used before",
        ),
        (
            Cut(CutBy.OVERLOAD, 2, 0.456, from_ms=WALL_MS),
            "brokers are slow since 2027-01-15 08:00:00 UTC: clients of tier 2 together keep 45.6 % of their share "
            "of the capacity",
        ),
        (
            Cut(CutBy.OVERLOAD, 0, 1.0, from_ms=WALL_MS),
            "brokers are slow since 2027-01-15 08:00:00 UTC: clients of tier 0 together keep as much as they used",
        ),
    ],
)
def test_a_cut_says_what_took_from_whom_how_much_and_until_or_since_when(cut: Cut, text: str) -> None:
    assert cut_json(cut)["text"] == text


def test_brakes_that_are_over_are_not_shown_and_the_others_have_wall_times() -> None:
    brakes = {3: Brake(0.2, 9_000, "ops"), 1: Brake(0.5, 4_000, "ops")}
    (told,) = brakes_json(brakes, now_ms=4_000, wall_ms=WALL_MS)
    assert (told["tier"], told["percent"], told["until_ms"]) == (3, 20, WALL_MS + 5_000)


@pytest.mark.parametrize("enforce", [True, False])
def test_a_time_in_which_a_tier_lost_has_a_begin_an_end_and_the_least_that_was_left(enforce: bool) -> None:
    world, episodes = Divided(enforce=enforce), Episodes()

    def second(time_ms: int) -> list[tuple[int, bool]]:
        world.second(time_ms)
        found = episodes.follow(world.overload, {"produce": world.quotas}, wall_ms=WALL_MS + world.now_ms)
        return [(each.tier, each.until_ms is None) for each in found]

    assert second(100) == second(100) == []
    assert second(1_000) == [(3, True)]
    assert second(1_100) == []
    (now,) = episodes.latest()
    assert now.percent == now.least_percent < 100
    assert now.text == (
        f"tier 3 {'keeps' if enforce else 'would keep'} {now.percent:.3g} % of its produce share since "
        "2027-01-15 08:00:03"
    )
    told = overload_json(world.overload, episodes, now_ms=world.now_ms, wall_ms=WALL_MS)
    assert told is not None
    assert told["since_ms"] == WALL_MS - 1_000
    assert f"{'clients may' if enforce else 'only observed: clients would'} use " in told["text"]
    least = now.least_percent
    while world.overload.usable < 1:
        changed = second(0)
    assert changed == [(3, False)]
    (over,) = episodes.latest()
    assert over.least_percent == pytest.approx(least)
    assert over.until_ms == WALL_MS + world.now_ms
    assert over.text.startswith(f"tier 3 {'kept' if enforce else 'would have kept'} at least {least:.3g} % of its ")
    assert " since 2027-01-15 08:00:03 until 2027-01-15 08:" in over.text
    told = overload_json(world.overload, episodes, now_ms=world.now_ms, wall_ms=WALL_MS)
    assert told is not None
    assert (told["text"], told["since_ms"]) == ("", None)


def test_episodes_are_bounded_and_end_with_the_overload() -> None:
    world, episodes = Divided(enforce=True), Episodes()
    for _ in range(3):
        world.second(1_000)
    for _ in range(2 * MOST_EPISODES):
        episodes.follow(world.overload, {"produce": world.quotas}, wall_ms=WALL_MS)
        (ended,) = episodes.follow(None, {"produce": world.quotas}, wall_ms=WALL_MS)
        assert ended.until_ms == WALL_MS
    assert len(episodes.latest()) == MOST_EPISODES
    assert overload_json(None, episodes, now_ms=0, wall_ms=0) is None


def test_one_client_alone_is_said_to_be_too_few_to_measure() -> None:
    overload = Overload(500, enforce=True)

    def text(*clients: str) -> str:
        for client in clients:
            sample = overload.times.send(client, None, idle=True, now_ms=0)
            assert sample is not None
            sample.answer(now_ms=30)
        overload.close([], now_ms=1_000)
        told = overload_json(overload, Episodes(), now_ms=1_000, wall_ms=WALL_MS)
        assert told is not None
        return str(told["text"])

    assert text("a") == (
        "slow brokers are not noticed: requests of 1 client were measured in the last second, and 2 are needed"
    )
    assert text("a", "b") == text() == ""
