"""What the hour of faults makes of its readings."""

import pytest

from campaigns.soak.campaign import Reading, summarize

MIB = 1 << 20


def readings(*, leak_mib: float = 0.0, warm_up_mib: int = 0, tasks: int = 0) -> list[Reading]:
    """An hour in which memory grows by so much in ten minutes, and a task more is there every ten minutes."""
    return [
        Reading(
            at_s=minute * 60.0,
            rss_bytes=90 * MIB + int(leak_mib * MIB * minute / 10) - max(0, 5 - minute) * warm_up_mib * MIB,
            descriptors=30,
            tasks=5 + tasks * (minute // 10),
            opened=1_000 * minute + 4,
            closed=1_000 * minute,
            active=4,
        )
        for minute in range(1, 61)
    ]


@pytest.mark.parametrize("leak_mib", [0.0, 1.5, -0.5])
def test_slope_is_that_of_ten_minutes(leak_mib: float) -> None:
    assert summarize(readings(leak_mib=leak_mib))["rss_mib_in_10_minutes"] == pytest.approx(leak_mib, abs=1e-3)


def test_what_grows_in_the_first_sixth_is_no_leak() -> None:
    found = summarize(readings(warm_up_mib=10))
    assert found["rss_mib_in_10_minutes"] == pytest.approx(0)
    assert found["rss_mib_first"] == found["rss_mib_last"]


def test_tasks_that_stay_are_counted() -> None:
    assert summarize(readings())["tasks_more"] == 0
    assert summarize(readings(tasks=1))["tasks_more"] == 5


def test_each_reading_must_account_for_its_connections() -> None:
    found = readings()
    assert summarize(found)["connections_not_accounted"] == 0
    lost = found[30]
    found[30] = Reading(
        lost.at_s, lost.rss_bytes, lost.descriptors, lost.tasks, lost.opened + 3, lost.closed, lost.active
    )
    assert summarize(found)["connections_not_accounted"] == 3
