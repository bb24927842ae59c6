"""Which histories of transactions are anomalous."""

from __future__ import annotations

import pytest

from campaigns.transactions.verdict import Anomaly, Outcome, Record, Told, anomalies, chance, difference, incomplete

TOLD = {
    ("a", 1): Told((0, 1), Outcome.COMMITTED),
    ("a", 2): Told((0,), Outcome.ABORTED),
    ("a", 3): Told((0, 0), Outcome.UNKNOWN),
    ("b", 1): Told((1,), Outcome.COMMITTED),
}


def records(*names: str) -> list[Record]:
    """From names such as a3.1: the second record of a's third transaction."""
    return [Record(name[0], int(name[1]), int(name[3])) for name in names]


@pytest.mark.parametrize(
    "zero", [("a1.0",), ("a1.0", "a3.0", "a3.1")], ids=["the unknown one was aborted", "it was committed"]
)
def test_a_history_as_it_should_be(zero: tuple[str, ...]) -> None:
    assert anomalies(TOLD, {0: records(*zero), 1: records("a1.1", "b1.0")}) == {}
    assert anomalies(TOLD, {0: records(*zero), 1: records("b1.0", "a1.1")}) == {}


@pytest.mark.parametrize(
    ("zero", "one", "expected"),
    [
        (("a1.0", "a2.0"), ("a1.1", "b1.0"), {Anomaly.ABORTED_READ: 1}),
        (("a1.0",), ("a1.1",), {Anomaly.LOST: 1}),
        (("a1.0", "a3.1"), ("a1.1", "b1.0"), {Anomaly.FRACTURED: 1}),
        (("a1.0",), ("b1.0",), {Anomaly.LOST: 1}),
        (("a1.0", "a1.0"), ("a1.1", "b1.0"), {Anomaly.DOUBLED: 1}),
        (("a3.0", "a3.1", "a1.0"), ("a1.1", "b1.0"), {Anomaly.REORDERED: 1}),
        (("a1.0", "a3.1", "a3.0"), ("a1.1", "b1.0"), {Anomaly.REORDERED: 1}),
        (("a1.0", "c1.0"), ("a1.1", "b1.0"), {Anomaly.UNTOLD: 1}),
        (("a1.0", "b1.0"), ("a1.1",), {Anomaly.UNTOLD: 1}),
        (("a1.0",), ("a1.1", "b1.0", "a1.2"), {Anomaly.UNTOLD: 1}),
    ],
)
def test_each_anomaly_is_found(zero: tuple[str, ...], one: tuple[str, ...], expected: dict[Anomaly, int]) -> None:
    assert anomalies(TOLD, {0: records(*zero), 1: records(*one)}) == expected


def test_views_differ_by_partition() -> None:
    assert difference({0: records("a1.0")}, {0: records("a1.0"), 1: []}) == 0
    assert difference({0: records("a1.0"), 1: records("b1.0")}, {0: records("a1.0")}) == 1
    assert difference({0: records("a1.0", "b1.0")}, {0: records("b1.0", "a1.0")}) == 1


def test_a_transaction_without_all_of_its_records_is_named() -> None:
    view = {0: records("a1.0", "a3.1"), 1: records("b1.0")}
    assert list(incomplete(TOLD, view)) == [
        "a 1, committed: partitions (0, 1), without [1]",
        "a 3, unknown: partitions (0, 0), without [0]",
    ]


def test_anomalies_are_a_finding_when_they_are_more_than_elsewhere() -> None:
    assert chance(0, 100, 0, 200) == 1.0
    assert chance(0, 100, 5, 200) == pytest.approx(1.0)
    assert chance(1, 100, 0, 100) == 0.5
    assert chance(2, 100, 0, 100) == 0.25
    assert chance(1, 100, 2, 200) == pytest.approx(1 - (2 / 3) ** 3)
    assert chance(7, 100, 0, 100) < 0.01 < chance(6, 100, 0, 100)
