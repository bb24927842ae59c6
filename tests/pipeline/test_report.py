"""Profiles of clients, use over time, the page, and the report over compacted days."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import main
from pipeline.client_tables.profile import PARTIAL, PROFILE, STEP_S, merge_profiles, profile_rows
from pipeline.client_tables.timelines import BINS, KEPT, SUMMARY, Timeline, summarise
from pipeline.errors import JobError
from pipeline.plans.plan import Action
from pipeline.report import report
from pipeline.report.page import axis_unit, duration, heat, quantity, quota, render, share
from pipeline.report.report import Report
from pipeline.spark.runner import InProcess
from pipeline.storage.layout import CompactedDay
from pipeline.teams.members import NO_TEAM, Members
from quotas.entities import QuotaEntity
from quotas.groups import Group
from quotas.groups_file import Team
from quotas.usage_record import OTHER
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import write_compacted
from testkit.pipeline.compacted_rows import compacted_batch
from testkit.pipeline.usage_lines import LONG_AFTER
from tests.pipeline.test_plans import plan_of

# -- profiles --------------------------------------------------------------------------------------------------------
MIDNIGHT_S = 1_795_219_200  # 2026-11-21T00:00:00Z
DAY = date(2026, 11, 21)


def partial_of(*rows: dict[str, Any]) -> pa.Table:
    """What one worker makes of compacted rows."""
    batch = compacted_batch(*({"date": DAY} | row for row in rows))
    return pa.Table.from_batches(list(profile_rows(iter([batch]))), schema=PARTIAL)


def profile_of(*rows: dict[str, Any]) -> dict[str, Any]:
    """The profile of compacted rows that are one client's."""
    merged = merge_profiles(partial_of(*rows))
    assert merged.schema == PROFILE
    return dict(merged.to_pylist()[0])


def test_sums_and_peaks_are_over_all_brokers_gateways_and_days() -> None:
    rows = [
        {"gw": "a", "node": 1, "t": [5, 6], "offered": [10.0, 20.0], "delayed": [1, 0]},
        {"gw": "b", "node": 2, "t": [5], "offered": [70.0], "throttle_ms": [1500]},
        {"date": date(2026, 11, 22), "gw": "a", "node": 1, "t": [0], "offered": [1.0]},
    ]
    found = profile_of(*rows)
    assert found["offered"] == 101.0
    assert (found["delayed"], found["throttle_ms"]) == (1, 1500)
    assert (found["gateways"], found["nodes"], found["active_s"]) == (2, 2, 4)
    assert found["step"] == [MIDNIGHT_S // 10, (MIDNIGHT_S + 86_400) // 10]
    assert found["step_offered"] == [100.0, 1.0]
    one = {"node": 1, "t": [0, 20], "offered": [100.0, 60.0]}
    two = {"node": 2, "t": [10, 25], "offered": [100.0, 60.0]}
    found = profile_of(one, two)
    assert found["peak_10s"] == 12.0
    assert found["peak_60s"] == pytest.approx(320 / 60)
    assert found["peak_1s"] == 100.0


def test_percentiles_leave_out_steps_without_use_and_rows_without_seconds_make_no_profile() -> None:
    found = profile_of({"t": [0, 10, 20, 30], "offered": [10.0, 0.0, 20.0, 30.0], "throttle_ms": [0, 900, 0, 0]})
    assert found["p50"] == 2.0
    assert found["step_throttle_ms"] == [0.0, 900.0, 0.0, 0.0]
    assert partial_of({"t": [], "offered": []}).num_rows == 0


def test_nearness_is_the_gateways_own_measure() -> None:
    row = {
        "t": [1, 2, 3, 4], "offered": [1.0] * 4, "quota": [None, 100.0, 100.0, 50.0],
        "level_end": [99.0, 79.0, None, 45.0],
    }  # fmt: skip
    found = profile_of(row)
    assert found["closest"] == pytest.approx(0.9)
    assert found["near_s"] == 1
    assert found["quota"] == 50.0
    row = {"api": "mutation", "t": [1, 2, 30], "offered": [40.0, 20.0, 1.0], "quota": [2.0] * 3}
    found = profile_of(row)
    assert found["closest"] == 3.0
    assert found["near_s"] == 2
    found = profile_of({"t": [1], "offered": [1e9]})
    assert (found["closest"], found["quota"], found["near_s"]) == (None, None, 0)


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 86_399), st.integers(0, 1000)), min_size=1, max_size=30),
        min_size=1,
        max_size=4,
    )
)
def test_however_a_clients_use_is_divided_its_sums_are_the_same(parts: list[list[tuple[int, int]]]) -> None:
    rows = []
    for node, part in enumerate(parts):
        part.sort()
        rows.append({"node": node, "t": [t for t, _ in part], "offered": [float(n) for _, n in part]})
    found = profile_of(*rows)
    flat = [each for part in parts for each in part]
    by_step: dict[int, float] = {}
    for t, units in flat:
        by_step[t // 10] = by_step.get(t // 10, 0.0) + units
    assert found["offered"] == sum(by_step.values())
    assert found["peak_10s"] == max(by_step.values()) / 10
    assert found["step_offered"] == [by_step[step] for step in sorted(by_step)]


def test_clients_come_apart_whatever_the_order_of_their_partial_profiles() -> None:
    rows = [
        {"client_id": name, "node": node, "t": [node], "offered": [size]}
        for node in (1, 2)
        for name, size in (("b", 5.0), ("a", 7.0))
    ]
    partial = partial_of(*rows)
    found = merge_profiles(partial).to_pylist()
    assert [(row["client_id"], row["offered"], row["nodes"]) for row in found] == [("a", 14.0, 2), ("b", 10.0, 2)]
    assert merge_profiles(partial.slice(0, 0)).num_rows == 0


# -- use over time ---------------------------------------------------------------------------------------------------
series = st.dictionaries(st.integers(10_000, 200_000), st.integers(1, 9), max_size=30)


def timeline(of: dict[int, int]) -> Timeline:
    made = Timeline()
    steps = np.array(sorted(of), np.int64)
    made.add(steps, [float(of[step]) for step in steps.tolist()], np.ones(len(steps)))
    return made


def seconds(of: Timeline) -> dict[int, float]:
    return {int(at): value for at, value in zip(of.begins_s(), of.offered, strict=True) if value}


@given(st.lists(series, max_size=6))
def test_timelines_added_up_are_the_timeline_of_everything(parts: list[dict[int, int]]) -> None:
    whole, together = Timeline(), Timeline()
    sums: dict[int, int] = {}
    for part in parts:
        together.add_all(timeline(part))
        for step, value in part.items():
            sums[step] = sums.get(step, 0) + value
    whole = timeline(sums)
    assert len(whole.offered) <= BINS
    assert (together.level, seconds(together)) == (whole.level, seconds(whole))
    assert together.throttle_ms.sum() == sum(map(len, parts))
    # A bin holds what was used between its beginning and the next one's.
    for begin, used in seconds(whole).items():
        assert used == sum(n for step, n in sums.items() if begin <= step * STEP_S < begin + whole.width_s)
    if sums:
        assert len(whole.offered) > BINS // 2 or whole.level == 0 or len(sums) < 3 or max(sums) - min(sums) < 2 * BINS


@given(series, series)
def test_a_part_is_shown_in_the_bins_of_the_whole(one: dict[int, int], other: dict[int, int]) -> None:
    part, whole = timeline(one), timeline(one)
    whole.add_all(timeline(other))
    shown = part.on(whole)
    assert shown.sum() == sum(one.values())
    assert (shown <= whole.offered).all()


def test_a_timeline_survives_its_row() -> None:
    made = timeline({5_000: 3, 9_000: 4})
    again = Timeline.from_dict(pa.Table.from_pylist([made.to_dict()], schema=SUMMARY).to_pylist()[0])
    assert (again.level, again.first, again.offered.tolist()) == (made.level, made.first, made.offered.tolist())


def test_the_largest_clients_keep_their_timelines_and_all_are_shown_in_numbers() -> None:
    rows = [{"client_id": f"c{n:03d}", "t": [1], "offered": [5.0]} for n in range(2 * KEPT + 20)]
    rows.append({**rows[0], "client_id": OTHER, "offered": [1e9]})
    parts = [merge_profiles(partial_of(*mine)) for mine in (rows[1::2], rows[::-2])]
    found = pa.Table.from_batches(list(summarise(parts)), schema=SUMMARY).to_pylist()
    lines = {row["client_id"] for row in found if row["bins_level"] is not None}
    # Each worker keeps as many: the first of all are among them, and not the rest as a whole.
    assert {f"c{n:03d}" for n in range(KEPT)} <= lines
    assert OTHER not in lines
    rows = [{"client_id": f"c{n}", "t": [1, 70_000], "offered": [float(n)] * 2} for n in range(2 * KEPT)]
    parts = [merge_profiles(partial_of(*rows))]
    found = pa.Table.from_batches(list(summarise(parts)), schema=SUMMARY).to_pylist()
    clients = [row for row in found if row["bins_level"] is None]
    assert sorted(row["offered"] for row in clients) == [2.0 * n for n in range(2 * KEPT)]
    lines = {row["client_id"]: row for row in found if row["bins_level"] is not None}
    assert sum(lines.pop(None)["bins_offered"]) == 2 * sum(range(2 * KEPT))
    assert sorted(lines) == sorted(f"c{n}" for n in range(KEPT, 2 * KEPT))
    assert {sum(row["bins_offered"]) for row in lines.values()} == {2.0 * n for n in range(KEPT, 2 * KEPT)}
    assert list(summarise([])) == []


# -- the page --------------------------------------------------------------------------------------------------------
HOSTILE = "<script>alert(1)</script>$x_{1}$&\"'\u202e"


def report_from(*rows: dict[str, Any], completeness: float = 1.0) -> Report:
    """A report in which each row is a client."""
    found = [merge_profiles(partial_of(row)) for row in rows]
    day = CompactedDay("2026-11-21", rows=10, keys=1, completeness=completeness)
    return report.report_of([pa.Table.from_batches(list(summarise(found)), schema=SUMMARY)], [day])


class Page(HTMLParser):
    """The texts of a page, and the elements that would run or load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.active: list[str] = []
        self.pictures = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.pictures += tag == "svg"
        loads = any(
            name in ("src", "onload", "onerror") or (name == "href" and not (value or "").startswith("#"))
            for name, value in attrs
        )
        if tag in ("script", "iframe", "object", "img") or (loads and tag != "image"):
            self.active.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_names_are_shown_and_never_run() -> None:
    found = report_from(
        {
            "client_id": HOSTILE, "t": [1, 2], "offered": [5.0, 6.0], "quota": [7.0, 7.0],
            "level_end": [8.0, 1.0],
        }
    )  # fmt: skip
    page = Page(render(found, top=5, plan=plan_of((QuotaEntity(user=HOSTILE), Action.SET, 10.0, None))))
    assert page.active == []
    assert any(HOSTILE in text for text in page.text)


@pytest.mark.slow
def test_the_page_begins_with_what_is_recommended_and_who_gets_less_comes_first() -> None:
    found = report_from({"t": [1], "offered": [5.0], "quota": [7.0], "level_end": [8.0]})
    entries = [
        (QuotaEntity(user="some-less"), Action.SET, 9e6, 10e6),
        (QuotaEntity(user="far-less"), Action.SET, 1e6, 10e6),
        (QuotaEntity(user="more"), Action.SET, 3e6, 2e6),
        (QuotaEntity(user="new"), Action.SET, 5e6, None),
        (QuotaEntity(user="kept"), Action.KEEP, 5e6, 5e6),
    ]
    told = [text.strip() for text in Page(render(found, top=5, plan=plan_of(*entries))).text if text.strip()]
    headings = [
        "Recommended", "Who gets less (2)", "Who gets a limit for the first time (1)", "Who gets more (1)",
        "Close to the limit", "Total",
    ]  # fmt: skip
    names = ["user=far-less", "user=some-less", "user=new", "user=more"]
    for part in (headings, names):
        assert sorted(part, key=told.index) == part
    assert "user=kept" not in told
    row = told[told.index("user=far-less") :][:5]
    assert row == ["user=far-less", "producer_byte_rate", "10 MB/s", "1 MB/s", "-90 %"]
    cut = Page(render(found, top=1, plan=plan_of(*entries))).text
    assert [text for text in cut if "more in the plan" in text] == ["and 1 more in the plan."]


@pytest.mark.slow
def test_clients_are_shown_by_team_and_each_team_has_a_link_to_its_own() -> None:
    teams = (
        Team(Group("orders", users=("orders",)), "C-1", HOSTILE, 0),
        Team(Group("idle", users=("idle",))),
        Team(Group("search", client_ids=("indexer-*",))),
    )
    rows = [
        {"user": "orders", "client_id": "a", "t": [1], "offered": [3e6], "delayed": [2], "throttle_ms": [1500]},
        {"user": "orders", "client_id": "b", "api": "fetch", "t": [1], "offered": [2e6]},
        *({"client_id": f"indexer-{n}", "t": [1], "offered": [10.0 + n]} for n in range(3)),
        {"client_id": HOSTILE, "t": [1], "offered": [5.0]},
    ]
    found = replace(report_from(*rows), members=Members(teams))

    text = render(found, top=2)

    assert Page(text).active == []
    links = [(at, name) for at, name in re.findall('<a href="#team-(.)">([^<]*)</a>', text)]
    assert links == [("1", "orders"), ("3", "search"), ("4", NO_TEAM)]
    own = {at: text.split(f'<h3 id="team-{at}">')[1].split("</table>")[0] for at, _ in links}
    assert ("orders / a" in own["1"], "orders / b" in own["1"], "indexer" in own["1"]) == (True, True, False)
    assert ("indexer-2" in own["3"], "indexer-0" in own["3"]) == (True, False)
    assert "and 1 more in report.json" in text
    kept = json.loads(found.to_json())
    names = ("team", "cost_center", "tier", "names", "produce", "fetch", "delayed", "throttle_ms")
    assert [tuple(team[name] for name in names) for team in kept["teams"]] == [
        ("orders", "C-1", 0, 2, 3e6, 2e6, 2, 1500),
        ("idle", "", None, 0, 0, 0, 0, 0),
        ("search", "", None, 3, 33.0, 0, 0, 0),
        (NO_TEAM, "", None, 1, 5.0, 0, 0, 0),
    ]
    assert Counter(client["team"] for client in kept["clients"]) == {"orders": 2, "search": 3, NO_TEAM: 1}
    alone = replace(found, members=None)
    assert "Teams" not in render(alone, top=2)
    assert "team" not in json.loads(alone.to_json())["clients"][0]


def test_without_a_plan_the_page_says_how_to_get_one() -> None:
    text = render(report_from({"t": [1], "offered": [5.0]}), top=5)
    assert text.index("sluice-pipeline recommend") < text.index("<h2>Total</h2>")


@pytest.mark.parametrize(("largest", "api", "axis"), [
    (0.0, "produce", (1.0, "B/s")), (999.0, "fetch", (1.0, "B/s")), (2_500_000.0, "produce", (1e6, "MB/s")),
    (3e9, "fetch", (1e9, "GB/s")), (5e6, "mutation", (1.0, "partitions/s")),
])  # fmt: skip
def test_axes_of_bytes_have_a_unit_that_fits_them(largest: float, api: str, axis: tuple[float, str]) -> None:
    assert axis_unit(largest, api) == axis


def test_numbers_on_an_axis_are_in_its_unit() -> None:
    found = report_from({"t": list(range(600)), "offered": [3e6] * 600})
    drawn = [text.strip() for text in Page(render(found, top=5)).text]
    assert "MB/s" in drawn
    assert {"0", "1", "2", "3"} <= set(drawn)


@pytest.mark.slow
def test_the_page_is_whole_and_holds_a_picture_for_each_api_and_one_for_limits() -> None:
    found = report_from(
        {"t": [1, 20], "offered": [5.0, 6e6], "quota": [7.0, 7.0], "level_end": [8.0, 1.0]},
        {"api": "mutation", "t": [1], "offered": [5.0], "quota": [2.0], "requests": [3], "delayed": [1]},
    )
    text = render(found, top=5)
    page = Page(text)
    assert page.pictures == 3
    for at, picture in enumerate(text.split("<svg")[1:]):
        ET.fromstring("<svg" + picture[: picture.index("</svg>")] + "</svg>")
        assert "</svg>" in picture, at
    assert "33.3 %" in text
    assert "all records are present" in text


@pytest.mark.slow
def test_what_is_not_on_the_page_is_told_on_it() -> None:
    text = render(report_from({"t": [1], "offered": [5.0]}, completeness=0.97), top=5)
    assert "3 % of the records of the worst day are missing" in text
    assert "all records are present" not in text
    rows = [{"client_id": f"c{at}", "t": [1], "offered": [float(at)]} for at in range(9)]
    text = render(report_from(*rows), top=4)
    assert "and 5 more in report.json" in text


def test_days_that_are_not_there_are_shown_at_the_top_and_to_programs() -> None:
    found = report_from({"t": [1], "offered": [5.0]})
    absent = report.absent_days(found.days, "2026-11-18", "2026-11-22")
    told = replace(found, absent=absent)
    text = render(told, top=5)
    assert "not compacted, so not included: 2026-11-18, 2026-11-19, 2026-11-20, 2026-11-22" in text
    assert "all records are present" not in text
    assert json.loads(told.to_json())["absent_days"] == list(absent)
    assert report.absent_days(found.days, None, None) == ()
    assert report.absent_days(found.days, "2026-11-10", None)[0] == "2026-11-10"
    many = replace(found, absent=report.absent_days(found.days, "2026-01-01", None))
    assert many.absent_text.endswith("2026-01-07 and 317 more")
    with pytest.raises(JobError, match="--from, --to: say days as 2026-11-21"):
        report.absent_days(found.days, "last week", None)


def test_an_open_day_and_a_gateway_that_is_short_are_told_first() -> None:
    found = report_from({"t": [1]}, {"t": [1], "api": "of_a_newer_gateway"})
    (day,) = found.days
    found = replace(
        found, days=(replace(day, open=True, gateways={"a": 1.0, "late": 0.04}, set_back_ms={"a": 30_000}),)
    )
    page = render(found, top=1)
    notes = (
        "2026-11-21 was not over when it was compacted",
        "of late only 4.0% on its worst day",
        "a had its clock set back by 30 s on 2026-11-21",
    )
    for note in notes:
        assert note in page
    assert "all records are present" not in page
    (told,) = json.loads(found.to_json())["days"]
    assert (told["open"], told["short_gateways"]) == (True, {"late": 0.04})


def test_the_same_as_json_for_programs() -> None:
    found = report_from({"t": [1, 2], "offered": [5.0, 5.0], "requests": [1, 3], "delayed": [0, 1]}, completeness=0.5)
    found = json.loads(found.to_json())
    whole = {"open": False, "short_gateways": {}}
    assert found["days"] == [{"date": "2026-11-21", "completeness": 0.5, "seconds": 10, "keys": 1, **whole}]
    assert found["totals"][0]["offered"] == 10.0
    assert found["clients"][0]["delayed_share"] == 0.25
    assert found["clients"][0]["unit"] == "bytes"


@pytest.mark.parametrize(("value", "unit", "text"), [
    (None, "bytes", "–"), (0.0, "bytes", "0 B"), (1234.0, "bytes", "1.23 kB"), (5e9, "", "5 G"),
    (7.0, "", "7"),
])  # fmt: skip
def test_quantities_have_three_digits(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_numbers_are_told_for_people() -> None:
    assert share(0.0) == "0 %"
    assert share(0.00001) == "<0.01 %"
    assert share(None) == "–"
    assert (duration(0), duration(90_000), duration(1_500)) == ("0", "1.5 min", "1.5 s")
    assert quota(1e6, "produce") == "1 MB/s"
    assert quota(150.0, "request") == "150 %"
    assert quota(None, "fetch") == "none"
    assert [heat(each) for each in (None, 0.5, 0.8, 1.0, 1.01)] == ["", "", "close", "close", "over"]


# -- over days -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_days_are_added_up_without_spark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monday = {"date": date(2026, 11, 16), "t": [1]}
    tuesday = {"date": date(2026, 11, 17)}
    rows = [
        {**monday, "offered": [10.0], "quota": [8.0]},
        {**monday, "client_id": "small", "offered": [5.0]},
        {**monday, "client_id": OTHER, "offered": [1e9]},
        {**tuesday, "node": 1, "t": [3, 4], "offered": [20.0, 30.0], "quota": [9.0, None]},
        {**tuesday, "node": 2, "t": [3], "offered": [40.0]},
        {**tuesday, "api": "mutation", "t": [9], "offered": [7.0]},
    ]
    write_compacted(tmp_path, rows[:3])
    write_compacted(tmp_path, rows[3:], completeness=0.99)
    with pytest.raises(JobError, match="no tables of clients yet"):
        report.make(InProcess(), str(tmp_path), LONG_AFTER)
    write_client_tables(tmp_path)
    for compacted in tmp_path.glob("compacted/date=*/*.parquet"):
        compacted.unlink()
    found = report.make(InProcess(), str(tmp_path), LONG_AFTER)
    assert [(client["api"], client["client_id"], client["offered"]) for client in found.clients] == [
        ("produce", "c", 100.0), ("produce", "small", 5.0), ("produce", OTHER, 1e9), ("mutation", "c", 7.0),
    ]  # fmt: skip
    assert found.completeness == 0.99
    names = ("active_s", "peak_10s", "p50", "nodes", "quota")
    assert [found.clients[0][name] for name in names] == [4, 9.0, 9.0, 2, 9.0]
    assert found.clients[1]["quota"] is None
    use = found.use["produce"]
    assert use.offered.sum() == 1e9 + 105
    assert found.use_of[tuple(found.clients[0][name] for name in ("user", "client_id", "api"))].on(use).sum() == 100.0
    # The job, of one of the days, leaves a page and a file for programs.
    page = tmp_path / "page"
    (tmp_path / "groups.toml").write_text('[[groups]]\nname = "smalls"\nclient_ids = ["small"]\n')
    words = ["report", "--out", str(tmp_path), "--to", "2026-11-16", "--to-dir", str(page)]
    assert main([*words, "--groups", str(tmp_path / "groups.toml")]) == 0
    assert "3 clients over 1 day, 100.00% complete" in capsys.readouterr().out
    kept = json.loads((page / "report.json").read_text())
    assert [client["offered"] for client in kept["clients"]] == [10.0, 5.0, 1e9]
    assert [client["team"] for client in kept["clients"]] == [NO_TEAM, "smalls", NO_TEAM]
    assert "all records are present" in (page / "index.html").read_text()


def test_a_client_that_was_never_among_the_largest_of_a_day_is_drawn_with_the_others() -> None:
    found = report_from({"t": [1], "offered": [5.0]}, {"client_id": "d", "t": [1], "offered": [4.0]})
    text = render(replace(found, use_of={}), top=5)
    assert Page(text).pictures == 1
