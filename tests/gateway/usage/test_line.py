"""Lines: what stands in them, and that no name can break them (hazard I14)."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.usage.line import Line
from gateway.usage.names import Names
from gateway.usage.recorder import LineBuilder
from gateway.usage.row import RowValues
from gateway.usage.table import EventValues, UsageTable
from quotas.usage_record import Event, Row, UsageApi


def finish(builder: LineBuilder, events: list[EventValues] | None = None, **changes: Any) -> Line:
    settings: dict[str, Any] = {
        "gateway": "a", "boot": 1_700_000_000_000, "seq": 7, "ts": 1_700_000_060, "dur_ms": 1_000,
        "algorithm": "token_bucket", "scope": "gateway", "clock_offset_ms": 5_000, "dropped": (0, 0),
    }  # fmt: skip
    return builder.finish(events=events or [], **{**settings, **changes})


def rows_of(*names: str) -> list[RowValues]:
    table = UsageTable(Names())
    for name in names:
        table.row("in", name, name, UsageApi.PRODUCE, 1).count(1)
    return [table.values(row, begin_ms=0, now_ms=1_000) for row in table.take_listed(now_ms=1_000)]


def test_an_empty_second_is_a_line_too_with_the_rows_of_all_slices() -> None:
    line = finish(LineBuilder())
    assert json.loads(line.data) == {
        "v": 1, "gw": "a", "boot": 1_700_000_000_000, "seq": 7, "ts": 1_700_000_060, "dur_ms": 1_000,
        "algo": "token_bucket", "scope": "gateway", "rows": [], "events": [], "dropped_rows": 0, "dropped_events": 0,
    }  # fmt: skip
    assert (line.seq, line.rows, line.events) == (7, 0, 0)
    builder = LineBuilder()
    builder.add_rows(rows_of("a", "b"))
    builder.add_rows([])
    builder.add_rows(rows_of("c"))
    line = finish(builder, dropped=(4, 5))
    told = json.loads(line.data)
    assert [row[Row.USER] for row in told["rows"]] == ["a", "b", "c"]
    assert line.rows == 3
    assert (told["dropped_rows"], told["dropped_events"]) == (4, 5)


def test_i15_events_tell_their_time_within_the_second_and_a_clock_that_was_set_is_flagged() -> None:
    event: EventValues = (5_250, "in", "alice", "app", "create_topics", 3.0, 1, 0, 12_000, 9, 1)
    line = finish(LineBuilder(), [event])
    (told,) = json.loads(line.data)["events"]
    assert len(told) == len(Event)
    assert told[Event.OFFSET_MS] == 250
    assert (told[Event.UNITS], told[Event.STRICT], told[Event.ADMITTED]) == (3, 1, 0)
    assert line.events == 1
    assert "scope" not in json.loads(finish(LineBuilder(), scope="").data)
    assert "jump_ms" not in json.loads(finish(LineBuilder()).data)
    assert json.loads(finish(LineBuilder(), jump_ms=-3_600_000).data)["jump_ms"] == -3_600_000


Property = Callable[..., None]

HOSTILE = (
    '","x":1,"', "a\nb\r\nc", "\x00\x1f\x7f\u2028\u2029\ufeff", '\\"\\u0000\\', "]]}\n{", "\ud800",
    "🜃" * 70, "x" * 40_000, "<script>", "NaN",
)  # fmt: skip


def refuse_constants(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def strictly(data: bytes) -> Any:
    """As a reader does that takes no liberties."""
    return json.loads(data.decode("utf-8", "strict"), parse_constant=refuse_constants, strict=True)


def of_each_hostile(property_of: Property) -> Property:
    """The property for a line with each of these names, and for one with all."""
    for names in ([*HOSTILE], *([name] for name in HOSTILE)):
        property_of = example(names)(property_of)
    return property_of


@of_each_hostile
@given(st.lists(st.text(st.characters(), max_size=300), max_size=20))
def test_i14_lines_parse_whatever_clients_call_themselves(names: list[str]) -> None:
    builder = LineBuilder()
    builder.add_rows(rows_of(*names))
    data = finish(builder).data
    assert b"\n" not in data
    told = strictly(data)
    written = [Names().written(name) for name in dict.fromkeys(names)]
    for at in (Row.USER, Row.CLIENT_ID):
        assert list(dict.fromkeys(row[at] for row in told["rows"])) == list(dict.fromkeys(written))
    assert {len(row) for row in told["rows"]} <= {len(Row)}
