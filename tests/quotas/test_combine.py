from typing import Any

import pytest

from quotas.combine import Throttle, ThrottledBy, combine
from testkit.scenarios import scenarios


@pytest.mark.parametrize("row", [p for p in scenarios("combine") if p.id == "RQ-16"])
def test_scenario_combine(row: dict[str, Any]) -> None:
    for case in row["rows"]:
        request_ms = 0 if case.get("acks") == 0 else case["request"]
        for family in (ThrottledBy.PRODUCE, ThrottledBy.FETCH):
            throttle = combine(family, case["bandwidth"], request_ms=request_ms)
            booked = family if "Produce" in case["metric"] else ThrottledBy.REQUEST
            assert throttle == Throttle(case["applied"], booked)


def test_mutation_throttle_is_booked_there_only_when_strictly_longer() -> None:
    assert combine(ThrottledBy.CONTROLLER_MUTATION, 5_000, request_ms=1_000).by is ThrottledBy.CONTROLLER_MUTATION
    assert combine(ThrottledBy.CONTROLLER_MUTATION, 1_000, request_ms=1_000).by is ThrottledBy.REQUEST


@pytest.mark.parametrize(
    ("ours", "brokers", "told", "by"),
    [
        (0, 300, 300, ThrottledBy.UPSTREAM),
        (300, 300, 300, ThrottledBy.PRODUCE),
        (300, 200, 300, ThrottledBy.PRODUCE),
        (200, 300, 300, ThrottledBy.UPSTREAM),
        (0, 0, 0, ThrottledBy.NONE),
    ],
)
def test_what_the_broker_wrote_is_never_lowered(ours: int, brokers: int, told: int, by: ThrottledBy) -> None:
    assert combine(ThrottledBy.PRODUCE, ours, upstream_ms=brokers) == Throttle(told, by)
