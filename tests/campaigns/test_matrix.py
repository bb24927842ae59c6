"""How the matrix judges what it finds, and what its page says."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from campaigns.matrix.cells import LACKS, OK, Cell, Verdict
from campaigns.matrix.mixed import Offered, beyond, found_fault
from campaigns.matrix.page import page, summary
from campaigns.matrix.versions import BY_CHANCE

FAILED = "failed Timeout: after 60 s"


@pytest.mark.parametrize(
    ("direct", "through", "verdict"),
    [
        (OK, OK, Verdict.WORKS),
        (LACKS, LACKS, Verdict.LACKS),
        (FAILED, FAILED, Verdict.NEITHER),
        (OK, FAILED, Verdict.FAILS_THROUGH),
        (OK, LACKS, Verdict.FAILS_THROUGH),
        (FAILED, OK, Verdict.ONLY_THROUGH),
        (LACKS, FAILED, Verdict.NEITHER),
    ],
)
def test_a_step_that_works_directly_must_work_through(direct: str, through: str, verdict: Verdict) -> None:
    assert Cell("4.4.0", "Java", "produce", direct, through).verdict is verdict
    assert Cell(*next(iter(BY_CHANCE)), direct, through).verdict is Verdict.BY_CHANCE


def document(*cells: Cell, **more: Any) -> dict[str, Any]:
    rows = [asdict(cell) for cell in cells]
    empty = {
        "machine": {"cpu": "a", "cores": 2, "python": "3.11"},
        "dates": {},
        "unavailable": {},
        "leaks": [],
        "mixed": [],
        "judges": {"rows": []},
    }
    return empty | {"rows": rows} | more


def test_the_page_shows_what_fails_through_and_why_things_fail_directly() -> None:
    cells = [
        Cell("3.9.2", "Java 2.8.2", "produce", OK, FAILED),
        Cell("3.9.2", "Java 2.8.2", "consume", OK, OK),
        Cell("3.9.2", "Java 2.8.2", "share", LACKS, LACKS),
        Cell("3.9.2", "Java 4.4.0", "share", "failed No | group", FAILED),
        Cell("3.7.2", "Java 4.4.0", "share", "failed No | group", FAILED),
    ]
    text = page(document(*cells, unavailable={"kafkajs": "no npm"}))
    assert "| Java 2.8.2 |  | **FAILS THROUGH** | yes |  |  | - |  |  |  |  |" in text
    assert "| 3.9.2 | Java 2.8.2 | produce | Timeout: after 60 s |" in text
    assert "| Java 4.4.0 | share | 3.9.2, 3.7.2 | No / group |" in text
    assert "| kafkajs | no npm |" in text
    assert "3 pairs of a broker and a client, 5 steps: 1 work directly and through" in summary(cells, [])
    assert "1 work directly and fail through" in summary(cells, [])


BROKER = Offered({0: (3, 11), 1: (4, 17)}, {"metadata.version": 25})


@pytest.mark.parametrize(
    ("port", "faults"),
    [
        (BROKER, 0),
        (Offered({0: (3, 10)}, {"metadata.version": 24}), 0),
        (Offered({0: (3, 12)}, {}), 1),
        (Offered({0: (2, 11)}, {}), 1),
        (Offered({2: (0, 0), 1: (4, 18)}, {"metadata.version": 26, "share.version": 1}), 4),
    ],
)
def test_a_port_offers_no_more_than_its_broker_has(port: Offered, faults: int) -> None:
    assert len(beyond(port, BROKER)) == faults


FINE = {"missing": 0, "twice": 0, "unread": 0, "failures": [], "leaks": [], "stages": [{"beyond": []}]}


@pytest.mark.parametrize(
    "fault",
    [
        {"missing": 1},
        {"twice": 1},
        {"unread": 1},
        {"failures": ["x"]},
        {"leaks": ["x"]},
        {"stages": [{"beyond": ["x"]}]},
    ],
)
def test_each_fault_of_an_upgrade_is_found(fault: dict[str, Any]) -> None:
    assert not found_fault(FINE)
    assert found_fault(FINE | fault)
