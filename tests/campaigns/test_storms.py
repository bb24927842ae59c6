"""What the campaign of storms judges: each planted fault is found, and a storm that was limited has none."""

from dataclasses import replace

import pytest

from campaigns.storms.campaign import LIMIT_PER_S, java_hash, summary
from campaigns.storms.client import COMMIT, Answer
from campaigns.storms.verdict import Storm, faults, median_ratio, p99, too_early

CONNECTIONS = 10
SECONDS = 8.0
BEGAN_S = 100.0


def answers(*, per_s: float = LIMIT_PER_S, burst: int = 100, wait_ms: int = 200) -> tuple[Answer, ...]:
    """A burst in the first instant, and then the limit; each answer after the burst says how long to wait."""
    first = [Answer(at % CONNECTIONS, BEGAN_S + 0.001 * at, 0.0, 0, COMMIT) for at in range(burst)]
    count = int(per_s * (SECONDS - 0.2))
    later = [Answer(at % CONNECTIONS, BEGAN_S + 0.2 + at / per_s, 0.0, wait_ms, COMMIT) for at in range(count)]
    return (*first, *later)


def storm(**more: object) -> Storm:
    """A window in which all is well."""
    of_storm = answers()
    plain = Storm(
        kind=COMMIT,
        limit_per_s=LIMIT_PER_S,
        connections=CONNECTIONS,
        seconds=SECONDS,
        began_s=BEGAN_S,
        sent=20_000,
        answers=of_storm,
        throttled=len(of_storm),
        at_broker=len(of_storm) + 3,
        calm_s=(0.001,) * 98 + (0.010,) * 2,
        storm_s=(0.001,) * 98 + (0.011,) * 2,
    )
    return replace(plain, **more)  # type: ignore[arg-type]


def test_a_storm_that_is_limited_has_no_fault() -> None:
    assert faults(storm()) == []


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"answers": answers(per_s=60, wait_ms=150)}, "60 requests/s passed after 2 s"),
        ({"answers": answers(burst=200)}, "590 requests passed"),
        ({"answers": answers(wait_ms=0)}, "no answer had a wait"),
        ({"answers": answers(wait_ms=300)}, "answers came on connections that had to wait"),
        ({"throttled": 389}, "390 answers had a wait, and 389 were counted"),
        ({"sent": 900}, "only 900 requests were sent"),
        ({"at_broker": 489}, "the broker has 489 of 490 requests"),
        ({"at_broker": 501}, "the broker has 501 of 490 requests"),
    ],
)
def test_each_planted_fault_is_found(more: dict[str, object], fault: str) -> None:
    enough = {"throttled": 1_000, "at_broker": None}
    assert any(fault in each for each in faults(storm(**(enough | more))))


def test_an_answer_may_come_when_the_wait_of_the_one_before_is_over_and_not_earlier() -> None:
    first, second = Answer(0, BEGAN_S, 0.0, 500, COMMIT), Answer(0, BEGAN_S + 0.5, 0.0, 0, COMMIT)
    on_another = Answer(1, BEGAN_S + 0.1, 0.0, 0, COMMIT)
    assert too_early(storm(answers=(first, on_another, second))) == 0
    early = second._replace(at_s=BEGAN_S + 0.4)
    assert too_early(storm(answers=(first, on_another, early))) == 1


def test_latencies_are_judged_by_the_median_of_the_windows() -> None:
    slow = storm(storm_s=(0.001,) * 98 + (0.013,) * 2)
    assert median_ratio([storm(), slow, slow]) == pytest.approx(1.3)
    assert median_ratio([storm(), storm(), slow]) == pytest.approx(1.1)
    assert "p99 1.30; 1 faults**" in summary({COMMIT: [slow]}, 1)


def test_the_99th_percentile_leaves_out_one_of_a_hundred() -> None:
    assert p99(range(1, 101)) == 99
    assert p99([7.0]) == 7.0


def test_groups_have_the_partitions_that_brokers_choose() -> None:
    assert java_hash("hello") == 99_162_322
    assert java_hash("polygenelubricants") == 0  # its hashCode() is the lowest int
