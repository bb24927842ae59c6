from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pipeline.columns import SCHEMA, Collector, Skip
from pipeline.layout import EVENTS, LINES, RAW, SERIES
from tests.pipeline.usage_lines import BOOT, DAY, content, event, line, row


def collected(*lines: bytes, skip: Skip = frozenset()) -> dict[str, list[dict[str, Any]]]:
    """Raw rows by kind."""
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "events": [], "lines": [], "torn": []}
    for batch in Collector(skip).file("f", content(*lines)):
        assert batch.schema == SCHEMA
        for told in batch.to_pylist():
            found[told["kind"]].append(told)
    return found


def test_the_rows_of_a_client_are_one_raw_row() -> None:
    (a, b) = collected(line(0, row("a", 10), row("b", 1)), line(1), line(2, row("a", 30, flags=1)))["rows"]
    assert (a["client_id"], a["seq"], a["t"], a["offered"], a["censored"]) == (
        "a", [0, 2], [0, 2], [10, 30], [False, True],
    )  # fmt: skip
    assert (b["client_id"], b["seq"], b["bytes_in"]) == ("b", [0], [1])
    assert (a["gw"], a["boot"], a["first_seq"], str(a["date"])) == ("a", BOOT, 0, "2026-09-28")


def test_every_position_of_a_row_lands_in_its_column() -> None:
    values: dict[str, Any] = {
        "requests": 1, "bytes_in": 2, "bytes_out": 3, "offered": 4.5, "admitted": 5.5, "max_units": 6.5,
        "rejected": 7, "rejected_units": 8.5, "delayed": 9, "throttle_ms": 10, "muted_ms": 11,
        "quota": 12.5, "level_end": -13.5,
    }  # fmt: skip
    (told,) = collected(line(5, row(**values)))["rows"]
    assert {name: told[name] for name in values} == {name: [value] for name, value in values.items()}
    assert {told[name] for name in ("listener", "user", "api")} == {"plain", "alice", "produce"}
    assert told["node"] == 1


def test_no_quota_and_no_level_are_nulls() -> None:
    (told,) = collected(line(0, row()), line(1, row(quota=5, level_end=1)))["rows"]
    assert (told["quota"], told["level_end"]) == ([None, 5.0], [None, 1.0])


def test_events_keep_their_millisecond_and_their_fields() -> None:
    one = event(
        offset_ms=250, units=7, strict=False, admitted=False, throttle_ms=90, correlation_id=8, attempt=2
    )
    (told,) = collected(line(3, events=(one, event(api="delete_topics"), event(api="new"))))["events"]
    assert told["e_ms"] == [3250, 3000, 3000]
    assert told["e_kind"] == [0, 2, -1]
    first = [told[name][0] for name in list(EVENTS)[2:]]
    assert first == [7, False, False, 90, 8, 2]
    assert (told["api"], told["node"]) == ("mutation", -1)


def test_an_event_of_the_last_second_stays_in_its_day() -> None:
    (told,) = collected(line(86_399, events=(event(offset_ms=1_004),)))["events"]
    assert told["e_ms"] == [86_399_999]


def test_lines_are_told_also_when_nothing_happened_in_them() -> None:
    (told,) = collected(line(0), line(1, row(), dropped_rows=3, dropped_events=4, dur_ms=1003))["lines"]
    expected = [[0, 1], [0, 1], [DAY, DAY + 1], [1000, 1003], [0, 1], [0, 3], [0, 4]]
    assert [told[name] for name in LINES] == expected


def test_midnight_divides() -> None:
    found = collected(line(86_399, row()), line(86_400, row()))
    assert [str(told["date"]) for told in found["rows"]] == ["2026-09-28", "2026-09-29"]
    assert [told["t"] for told in found["rows"]] == [[86_399], [0]]
    assert len(found["lines"]) == 2


def test_skipped_lines_are_neither_rows_nor_lines() -> None:
    found = collected(line(0, row()), line(0, row()), skip=frozenset({("f", 1)}))
    assert found["rows"][0]["seq"] == found["lines"][0]["seq"] == [0]


@pytest.mark.parametrize(
    "bad",
    [
        row(requests="many"), row(client_id=5), row(node=None), row(api="guess"), row(offered=None),
        row(requests=2**40), row(flags="x"), row(quota="none"), row(bytes_in=[1]),
    ],
)  # fmt: skip
def test_a_wrong_value_costs_its_line_and_no_other(bad: list[Any]) -> None:
    found = collected(line(0, row()), line(1, row(), bad), line(2, row()))
    assert [told["at"] for told in found["torn"]] == [1]
    assert found["torn"][0]["text"] == line(1, row(), bad)
    assert [told["seq"] for told in found["lines"]] == [[0], [2]]
    assert sum(len(told["t"]) for told in found["rows"]) == 2


@pytest.mark.parametrize(
    "bad", [event(units="x"), event(user=None), event(offset_ms="x"), event(units=2**40)]
)
def test_a_wrong_value_in_an_event_costs_its_line(bad: list[Any]) -> None:
    found = collected(line(0, row(), events=(bad,)), line(1, row()))
    assert [told["at"] for told in found["torn"]] == [0]
    assert [told["seq"] for told in found["rows"]] == [[1]]


def test_a_file_of_many_lines_is_gathered_in_pieces_without_losing_any() -> None:
    lines = [line(seq, *(row(f"c{number}") for number in range(50))) for seq in range(3_000)]
    found = collected(*lines)
    assert sum(len(told["t"]) for told in found["rows"]) == 150_000
    assert len(found["rows"]) < 150_000 / 50
    assert [seq for told in found["lines"] for seq in told["seq"]] == list(range(3_000))


def test_names_are_kept_letter_by_letter() -> None:
    name = '{"\\u0000":"\\"}\n\x00‮ünïcode🙂'
    (told,) = collected(line(0, row(name, user=name)))["rows"]
    assert told["client_id"] == told["user"] == name


def test_messages_of_a_topic_are_read_alike() -> None:
    batches = Collector().messages("topic-3", [(70, line(0, row())), (71, b"junk"), (73, line(1, row()))])
    found = [told for batch in batches for told in batch.to_pylist()]
    assert {told["kind"] for told in found} == {"rows", "lines", "torn"}
    (lines,) = (told for told in found if told["kind"] == "lines")
    assert (lines["source"], lines["position"]) == ("topic-3", [70, 73])
    (torn,) = (told for told in found if told["kind"] == "torn")
    assert (torn["source"], torn["at"], torn["text"]) == ("topic-3", 71, b"junk")


def test_the_columns_are_those_that_spark_is_told() -> None:
    spark = {"string": "string", "date": "date", "int": "int", "bigint": "bigint", "binary": "binary"}
    arrow = {pa.string(): "string", pa.date32(): "date", pa.int32(): "int", pa.int64(): "bigint"}
    arrow |= {pa.binary(): "binary", pa.float64(): "double", pa.bool_(): "boolean"}
    told = [part.replace("`", "").split(" ") for part in RAW.split(", ")]
    assert len(told) == len(SCHEMA)
    for (name, kind), field in zip(told, SCHEMA, strict=True):
        assert name == field.name
        if pa.types.is_list(field.type):
            assert kind == f"array<{arrow[field.type.value_type]}>"
        else:
            assert spark[kind] == arrow[field.type]
    assert set(SERIES) | set(EVENTS) | set(LINES) <= set(SCHEMA.names)
