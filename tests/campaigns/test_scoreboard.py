"""The scoreboard: each row says what its kept results say, and a figure beyond its goal turns it red."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from campaigns.at_least_once.verdict import Compared
from campaigns.listed import CAMPAIGNS
from campaigns.scoreboard.__main__ import PAGE, README, RESULTS, judged_on, said
from campaigns.scoreboard.judged import FRESH, State, exit_code, judge
from campaigns.scoreboard.kept import Result, last_release, results
from campaigns.scoreboard.page import day_of, page, with_summary
from campaigns.scoreboard.rows import MADE_BY, ROWS, Quantity, Row, campaigns_of

TODAY = date(2026, 12, 1)
LOST = Row("R99", "nothing is lost", ("some.json",), (Quantity("lost", lambda data: data["lost"], most=0),))


def result(lost: float = 0, day: date | None = TODAY, *, passed: bool = True) -> dict[str, Result]:
    return {"some.json": Result({"lost": lost}, day, "abc", 12.0, passed)}


def state(row: Row, found: dict[str, Result], released: date | None = None) -> State:
    return judge(row, found, today=TODAY, released=released).state


def test_a_row_is_met_missed_or_not_measured() -> None:
    assert state(LOST, result()) is State.MET
    assert state(LOST, result(1)) is State.MISSED
    assert state(LOST, result(float("nan"))) is State.MISSED
    assert state(LOST, {"some.json": Result({}, TODAY, "abc", 12.0)}) is State.MISSED
    assert state(LOST, result(passed=False)) is State.MISSED
    assert state(LOST, {}) is State.NOT_MEASURED
    assert state(Row("R98", "later", goal="0"), result()) is State.NOT_MEASURED
    assert state(Row("R97", "", LOST.sources, LOST.quantities, without="TLS"), result()) is State.IN_PART


def test_old_figures_are_stale_and_an_old_miss_stays_a_miss() -> None:
    old = TODAY - FRESH - timedelta(days=1)
    assert state(LOST, result(day=old)) is State.STALE
    assert state(LOST, result(day=None)) is State.STALE
    assert state(LOST, result(day=TODAY - FRESH)) is State.MET
    assert state(LOST, result(day=TODAY - timedelta(days=2)), TODAY - timedelta(days=1)) is State.STALE
    assert state(LOST, result(day=TODAY - timedelta(days=1)), TODAY - timedelta(days=1)) is State.MET
    assert state(LOST, result(1, old)) is State.MISSED


def test_a_miss_without_a_reason_is_an_error() -> None:
    (quantity,) = LOST.quantities
    known = replace(LOST, quantities=(replace(quantity, reason="It is known."),))
    other = replace(LOST, quantities=(*known.quantities, quantity))
    assert exit_code([judge(LOST, result(1), today=TODAY, released=None)]) == 1
    assert exit_code([judge(known, result(1), today=TODAY, released=None)]) == 0
    assert exit_code([judge(other, result(1), today=TODAY, released=None)]) == 1
    assert exit_code([judge(known, result(1, passed=False), today=TODAY, released=None)]) == 0
    assert exit_code([judge(known, result(passed=False), today=TODAY, released=None)]) == 1
    assert exit_code([judge(LOST, {}, today=TODAY, released=None)]) == 0


def _lose_a_request(order: Any) -> None:
    order["faults"].append("request 7 has no reply")
    order["requests"] = 5_000_000


def _run_out_of_memory(overload: Any) -> None:
    overload["killed"] = 1


def _let_more_through(accuracy: Any) -> None:
    next(row for row in accuracy["rows"] if row["side"] == "gateway")["ratio"] = 1.06


def _tear_a_store(crash: Any) -> None:
    crash["faults"].append("first quota, killed at 17")


def _tell_an_address(matrix: Any) -> None:
    matrix["leaks"].append("10.0.0.7")


def _break_a_step(matrix: Any) -> None:
    next(row for row in matrix["rows"] if row["direct"] == "ok")["through"] = "failed"


@pytest.mark.parametrize(
    ("number", "name", "plant"),
    [
        ("R9", "accuracy.json", _let_more_through),
        ("R17", "matrix.json", _tell_an_address),
        ("R23", "crash.json", _tear_a_store),
        ("R34", "matrix.json", _break_a_step),
        ("R39", "overload.json", _run_out_of_memory),
    ],
)
def test_a_planted_regression_turns_its_row_red_and_the_exit_code_to_1(
    number: str, name: str, plant: Callable[[Any], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    before = {each.row.number: each.state for each in judged_on(TODAY, tmp_path)}
    assert before[number] is not State.MISSED
    assert said(judged_on(TODAY, tmp_path)) == 0
    data = json.loads((tmp_path / name).read_text())
    plant(data)
    (tmp_path / name).write_text(json.dumps(data))
    after = judged_on(TODAY, tmp_path)
    changed = {each.row.number for each in after if each.state is not before[each.row.number]}
    assert changed == {number}
    assert next(each for each in after if each.row.number == number).state is State.MISSED
    assert said(after) == 1
    assert f"{number} missed" in capsys.readouterr().out


def test_a_reply_that_is_lost_is_named_also_in_a_row_that_is_missed_already(tmp_path: Path) -> None:
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    order = json.loads((tmp_path / "order.json").read_text())
    _lose_a_request(order)
    (tmp_path / "order.json").write_text(json.dumps(order))
    row = next(each for each in judged_on(TODAY, tmp_path) if each.row.number == "R12")
    assert row.misses == ("lost or changed: 1",)


def test_a_campaign_is_read_from_its_line_and_a_failed_one_is_a_miss(tmp_path: Path) -> None:
    line = {"name": "clocks", "date": "2026-11-30T01:00+00:00", "commit": "abc", "seed": None, "seconds": 30}
    row = next(row for row in ROWS if row.number == "R25")
    for figure, passed, expected in (
        ("12 passed, 3 deselected in 20.1s", True, State.MET),
        ("1 failed, 11 passed in 20.1s", False, State.MISSED),
        ("3 deselected in 1.0s", True, State.MISSED),
    ):
        (tmp_path / "campaigns.json").write_text(json.dumps([line | {"figure": figure, "passed": passed}]))
        judged = judge(row, results(tmp_path, row.sources), today=TODAY, released=None)
        assert (judged.state, judged.day, judged.seconds) == (expected, date(2026, 11, 30), 30)


@pytest.mark.parametrize(
    ("pattern", "planted"),
    [
        (r"\d+ lost", "1 lost"),
        (r"\d+ broker faults", "29 broker faults"),
        (r"\d+ gateway kills", "29 gateway kills"),
        (r"\([\d.]+\)", "(0.009)"),
        (r"\([\d.]+\)$", "(0.009)"),
        (r"\([\d.]+\)$", "("),
    ],
)
def test_a_planted_loss_or_double_without_idempotence_turns_its_row_red(
    pattern: str, planted: str, tmp_path: Path
) -> None:
    shutil.copytree(RESULTS, tmp_path, dirs_exist_ok=True)
    lines = json.loads((tmp_path / "campaigns.json").read_text())
    (line,) = (line for line in lines if line["name"] == "at-least-once")
    alike = Compared(((2, 1), (1, 2)), ((0, 0),))
    well = f"9,999 records, 0 lost; 30 broker faults: {alike}; 30 gateway kills: {alike}"
    line["passed"] = True
    for line["figure"], expected in ((well, State.MET), (re.sub(pattern, planted, well), State.MISSED)):
        (tmp_path / "campaigns.json").write_text(json.dumps(lines))
        row = next(each for each in ROWS if each.number == "R13")
        assert judge(row, results(tmp_path, row.sources), today=TODAY, released=None).state is expected


def test_the_last_release_is_the_newest_date_of_the_changelog() -> None:
    assert last_release("## Unreleased\n\n## 0.1.0\n") is None
    assert last_release("## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0 - 2026-10-01\n") == date(2026, 12, 1)
    assert last_release("## 0.2.0 - 2026-12-01, measured since 2026-11-29\n") == date(2026, 11, 29)


def test_every_row_names_campaigns_that_there_are() -> None:
    names = {campaign.name for campaign in CAMPAIGNS}
    assert {name for row in ROWS for name in campaigns_of(row)} <= names
    assert {source for row in ROWS for source in row.sources if source.endswith(".json")} == set(MADE_BY)
    assert [row.number for row in ROWS] == [f"R{number}" for number in range(1, 40)]
    assert [row.number for row in ROWS if bool(row.quantities) == bool(row.goal)] == []


def test_the_quick_part_takes_less_than_20_minutes() -> None:
    lines = {line["name"]: line for line in json.loads((RESULTS / "campaigns.json").read_text())}
    quick = [campaign.name for campaign in CAMPAIGNS if campaign.quick]
    assert sum(lines[name]["seconds"] for name in quick if name in lines) < 20 * 60


def test_the_page_and_the_readme_say_what_the_kept_results_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    judged = judged_on(day_of(text))
    assert text == page(judged, today=day_of(text)), "run: python -m campaigns.scoreboard"
    readme = README.read_text(encoding="utf-8")
    assert readme == with_summary(readme, judged), "run: python -m campaigns.scoreboard"
    assert re.search(r"^Goals: \[\d+ of 39 met\]", readme, re.MULTILINE)
