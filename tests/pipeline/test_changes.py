"""What changed: a week beside the week before it, client by client."""

import datetime
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.changes.find import find
from pipeline.changes.page import Changes, lines
from pipeline.changes.weeks import LEAST, READ_DAYS, READ_HOURS, Calendar, Found, Kind, compare
from pipeline.cli import main
from pipeline.erase.client import Client
from pipeline.erase.results import erase_results
from pipeline.errors import Exit
from pipeline.spark.runner import InProcess
from pipeline.storage.compacted_days import compacted_days
from pipeline.storage.entity_days import Scope
from testkit.pipeline.client_days import client_table, client_tables_of, write_client_tables
from testkit.pipeline.compacted_days import write_compacted

LAST = datetime.date(2026, 11, 22)
DAYS = [LAST - datetime.timedelta(back) for back in range(27, -1, -1)]
THIS, BEFORE = DAYS[-7:], DAYS[-14:-7]
NOON = 12 * 3_600


def day(client_id: str, date: datetime.date, units: float, **more: Any) -> dict[str, Any]:
    """A client's day with four seconds of use at noon."""
    seconds = [NOON + at for at in range(4)]
    return {"user": "", "client_id": client_id, "date": date, "t": seconds, "offered": [units / 4] * 4, **more}


def month() -> list[dict[str, Any]]:
    """Four weeks of clients, each of which is different in its own way in the last."""
    rows = []
    for date in DAYS:
        now = date in THIS
        rows.append(day("steady", date, 1_000.0, quota=[900.0] * 4))
        rows.append(day("grown", date, 3_000.0 if now else 1_000.0))
        rows.append(day("throttled", date, 1_000.0, delayed=[int(now), 0, 0, 0]))
        rows.append(day("outgrown", date, 1_900.0 if now else 1_000.0, quota=[120.0] * 4))
        rows.append(day("tiny", date, 0.2 if now else 0.1))
        rows.append(day("unusual", date, 1_000.0))
        if date == THIS[2]:
            rows[-1] |= {"t": [3 * 3_600], "offered": [1_300.0]}
        if now:
            rows.append(day("new", date, 2_000.0, user="alice"))
        else:
            rows.append(day("vanished", date, 500.0))
    return rows


def published(out: Path, rows: list[dict[str, Any]]) -> str:
    write_compacted(out, rows)
    write_client_tables(out, use=False)
    return str(out)


@pytest.fixture(scope="module")
def whole_month(tmp_path_factory: pytest.TempPathFactory) -> str:
    return published(tmp_path_factory.mktemp("month"), month())


def found_in(rows: list[dict[str, Any]], dates: list[datetime.date] | None = None) -> Found:
    calendar = Calendar.of(LAST, [each.isoformat() for each in dates or DAYS])
    hours, of_days = client_tables_of(rows, "client_hour", "client_day")
    return compare(hours.select(READ_HOURS), of_days.select(READ_DAYS), calendar)


@pytest.mark.slow
def test_each_client_that_changed_is_named_with_what_is_different(
    whole_month: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["changes", "--out", whole_month, "--to-dir", str(tmp_path / "page")]) is Exit.DONE
    told = capsys.readouterr().out.splitlines()
    assert told[:7] == [
        "The week to 2026-11-22 beside the week before:",
        "New: alice / new",
        "Vanished: vanished",
        "Twice as much or more: grown",
        "Throttled more: throttled",
        "Quota no longer fits: outgrown",
        "Unusual hour: grown, outgrown, unusual",
    ]
    assert (tmp_path / "page" / "chat.txt").read_text().splitlines() == told[:7]
    data = json.loads((tmp_path / "page" / "changes.json").read_text())
    clients = {each["client_id"]: each for each in data["clients"]}
    assert set(clients) == {"new", "vanished", "grown", "throttled", "outgrown", "unusual"}
    assert (clients["grown"]["before"], clients["grown"]["now"]) == (1_000.0, 3_000.0)
    assert (clients["throttled"]["waited_before"], clients["throttled"]["waited_now"]) == (0.0, 0.25)
    assert clients["outgrown"]["quota"] == 120.0 < clients["outgrown"]["required"]
    assert clients["unusual"]["hour"] == f"{THIS[2]}T03"
    assert clients["unusual"]["z"] > 6
    page = (tmp_path / "page" / "index.html").read_text()
    assert "alice / new" in page
    assert "steady" not in page
    assert "tiny" not in page


@pytest.mark.slow
def test_a_list_of_changes_goes_as_a_whole_when_one_of_its_clients_is_erased(
    whole_month: str, tmp_path: Path
) -> None:
    assert main(["changes", "--out", whole_month, "--to-dir", str(tmp_path)]) is Exit.DONE
    found, left = erase_results(str(tmp_path), Client.named(user=None, client_id="steady", ip=None), write=True)
    assert (found.total(), left) == (0, [])
    found, left = erase_results(str(tmp_path), Client.named(user=None, client_id="grown", ip=None), write=True)
    assert (found.total(), left) == (1, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_parts_of_clients_find_the_same(whole_month: str) -> None:
    days = compacted_days(whole_month)
    calendar = Calendar.of(LAST, (each.date for each in days))
    one, many = (find(InProcess(cores), whole_month, days, calendar, LEAST, Scope.GATEWAY) for cores in (1, 9))
    assert len(one.significant(LEAST)) == 6
    assert one.significant(LEAST) == many.significant(LEAST)
    assert one.clients == many.clients == 8


@pytest.mark.slow
def test_missing_days_are_named_and_count_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = (THIS[3], BEFORE[0], BEFORE[1])
    out = published(tmp_path, [row for row in month() if row["date"] in {*THIS, *BEFORE} - {*gone}])
    assert main(["changes", "--out", out, "--to-dir", str(tmp_path / "page")]) is Exit.DONE
    told = capsys.readouterr().out
    assert f"not compacted, so not compared: {BEFORE[0]}, {BEFORE[1]}, {THIS[3]}" in told
    data = json.loads((tmp_path / "page" / "changes.json").read_text())
    assert {each["client_id"]: each["now"] for each in data["clients"]}["grown"] == 3_000.0
    assert "steady" not in told


@pytest.mark.slow
@pytest.mark.parametrize("kept", [THIS, BEFORE])
def test_one_week_alone_is_not_compared(
    kept: list[datetime.date], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = published(tmp_path, [row for row in month() if row["date"] in kept])
    assert main(["changes", "--out", out, "--to", LAST.isoformat()]) is Exit.NOT_YET_COMPLETE
    assert "no day is compacted of the 7 days" in capsys.readouterr().err


def test_what_is_usual_needs_three_earlier_weeks() -> None:
    rows = [row for row in month() if row["date"] >= DAYS[7]]
    found = found_in(rows, DAYS[7:])
    assert not any(Kind.UNUSUAL in each.kinds for each in found.changes)
    assert all(each.z is None for each in found.changes)
    assert not Calendar.of(LAST, [each.isoformat() for each in DAYS[7:]]).usual


def test_lines_for_a_chat_end_with_how_many_more_there_are() -> None:
    rows = [day(f"new-{at}", date, 1_000.0 + at) for at in range(8) for date in THIS] + [
        day("steady", date, 1_000.0) for date in DAYS
    ]
    calendar = Calendar.of(LAST, [each.isoformat() for each in DAYS])
    told = lines(Changes(calendar, found_in(rows).significant(LEAST), 1.0), 2)
    assert told[1] == "New: new-7, new-6 and 6 more"
    assert lines(Changes(calendar, [], 1.0), 2) == [
        "The week to 2026-11-22 beside the week before: nothing has changed"
    ]


uses = st.lists(st.integers(1, 10**9), min_size=7, max_size=7)


@pytest.mark.slow
@given(uses, st.integers(0, 23))
def test_a_client_that_does_the_same_each_week_never_shows(units: list[int], hour: int) -> None:
    rows = [
        {"client_id": "a", "date": date, "t": [hour * 3_600], "offered": [float(units[date.weekday()])]}
        for date in DAYS
    ]
    assert found_in(rows).changes == []


def test_the_order_of_parts_does_not_matter() -> None:
    clients = sorted({row["client_id"] for row in month()})
    parts = [found_in([row for row in month() if row["client_id"] == name]) for name in clients]
    together = found_in(month()).significant(LEAST)
    for seed in range(20):
        random.Random(seed).shuffle(parts)
        found = Found()
        for part in parts:
            found.add(part)
        assert found.significant(LEAST) == together


def test_names_that_clients_choose_break_nothing_and_forge_no_line() -> None:
    odd = "x\0y\nNew: everybody\x1b[31m @channel"
    found = found_in([day(odd, date, 1_000.0) for date in THIS] + [day("steady", date, 1_000.0) for date in DAYS])
    assert [each.client_id for each in found.changes] == [odd]
    calendar = Calendar.of(LAST, [each.isoformat() for each in DAYS])
    told = lines(Changes(calendar, found.changes, 1.0), 2)
    assert told[1:] == ["New: x?y?New: everybody?[31m ?channel"]
    assert len(lines(Changes(calendar, [replace(found.changes[0], client_id="a" * 500)], 1.0), 2)[1]) < 80


def test_clients_without_a_row_of_their_own_count_and_are_not_named() -> None:
    found = found_in(
        [day("~other", date, 1_000.0) for date in THIS] + [day("steady", date, 1_000.0) for date in DAYS]
    )
    assert found.changes == []
    assert found.totals["produce"] == (1_000.0, 2_000.0)


def test_a_quota_that_is_gone_on_the_last_day_is_none() -> None:
    rows = [
        day("a", date, 1_900.0 if date in THIS else 1_000.0, **({} if date == LAST else {"quota": [120.0] * 4}))
        for date in DAYS
    ]
    assert not any(Kind.OUTGROWN in each.kinds for each in found_in(rows).changes)


@pytest.mark.slow
def test_a_quota_fits_what_one_counter_covers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        day("a", date, 1_000.0 if date in THIS else 600.0, node=node, quota=[120.0] * 4)
        for date in (*BEFORE, *THIS)
        for node in (1, 2)
    ]
    out = published(tmp_path, rows)
    for scope, said in (("gateway", True), ("broker", False)):
        assert main(["changes", "--out", out, "--scope", scope, "--to-dir", str(tmp_path / scope)]) is Exit.DONE
        assert ("Quota no longer fits" in capsys.readouterr().out) is said


def test_no_clients_are_no_changes() -> None:
    calendar = Calendar.of(LAST, [each.isoformat() for each in DAYS])
    nothing = [
        client_table([], name).select(columns)
        for name, columns in (("client_hour", READ_HOURS), ("client_day", READ_DAYS))
    ]
    assert all(isinstance(each, pa.Table) for each in nothing)
    assert compare(*nothing, calendar) == Found()
