from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest

from pipeline import report
from pipeline.errors import JobError
from pipeline.layout import PackedDay
from pipeline.plan import Action
from pipeline.profile import PARTIAL, merge_profiles, profile_rows
from pipeline.report import Report
from pipeline.report_page import duration, heat, quantity, quota, render, share
from pipeline.report_series import SUMMARY, summarise
from quotas.entities import QuotaEntity
from tests.pipeline.test_plan_changes import plan_of
from tests.support.packed_rows import packed_batch

HOSTILE = "<script>alert(1)</script>$x_{1}$&\"'\u202e"


def report_of(*rows: dict[str, Any], completeness: float = 1.0) -> Report:
    """A report in which each row is a client."""
    found = []
    for row in rows:
        partial = profile_rows(iter([packed_batch({"date": date(2026, 11, 21), **row})]))
        found.append(merge_profiles(pa.Table.from_batches(list(partial), schema=PARTIAL)))
    day = PackedDay("2026-11-21", "", run=1, rows=10, keys=1, completeness=completeness, batches=[])
    return report.report_of(pa.Table.from_batches(list(summarise(found)), schema=SUMMARY), [day])


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
            name in ("src", "onload", "onerror") or (name == "href" and tag != "use") for name, _ in attrs
        )
        if tag in ("script", "iframe", "object", "img") or (loads and tag != "image"):
            self.active.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_hostile_names_are_shown_and_never_run() -> None:
    report = report_of(
        {
            "client_id": HOSTILE,
            "t": [1, 2],
            "offered": [5.0, 6.0],
            "quota": [7.0, 7.0],
            "level_end": [8.0, 1.0],
        }
    )
    page = Page(render(report, top=5, plan=plan_of((QuotaEntity(user=HOSTILE), Action.SET, 10.0, None))))
    assert page.active == []
    assert any(HOSTILE in text for text in page.text)


def test_the_page_is_whole_and_holds_a_picture_for_each_api_and_one_for_limits() -> None:
    report = report_of(
        {"t": [1, 20], "offered": [5.0, 6e6], "quota": [7.0, 7.0], "level_end": [8.0, 1.0]},
        {"api": "mutation", "t": [1], "offered": [5.0], "quota": [2.0], "requests": [3], "delayed": [1]},
    )
    text = render(report, top=5)
    page = Page(text)
    assert page.pictures == 3
    for at, picture in enumerate(text.split("<svg")[1:]):
        ET.fromstring("<svg" + picture[: picture.index("</svg>")] + "</svg>")
        assert "</svg>" in picture, at
    assert "33.3 %" in text
    assert "every record is there" in text


def test_lost_records_are_told_at_the_top() -> None:
    text = render(report_of({"t": [1], "offered": [5.0]}, completeness=0.97), top=5)
    assert "3 % of the records of the worst day are missing" in text
    assert "every record is there" not in text


def test_days_that_are_not_there_are_told_at_the_top_and_to_programs() -> None:
    found = report_of({"t": [1], "offered": [5.0]})
    absent = report.absent_days(found.days, "2026-11-18", "2026-11-22")
    told = replace(found, absent=absent)
    text = render(told, top=5)
    assert "not packed, and so not in here: 2026-11-18, 2026-11-19, 2026-11-20, 2026-11-22" in text
    assert "every record is there" not in text
    assert json.loads(told.to_json())["absent_days"] == list(absent)
    assert report.absent_days(found.days, None, None) == ()
    assert report.absent_days(found.days, "2026-11-10", None)[0] == "2026-11-10"
    with pytest.raises(JobError, match="--from, --to: say days as 2026-11-21"):
        report.absent_days(found.days, "last week", None)


def test_many_absent_days_are_counted() -> None:
    found = report_of({"t": [1], "offered": [5.0]})
    told = replace(found, absent=report.absent_days(found.days, "2026-01-01", None))
    assert told.absent_text.endswith("2026-01-07 and 317 more")


def test_what_does_not_fit_on_the_page_is_counted() -> None:
    rows = [{"client_id": f"c{at}", "t": [1], "offered": [float(at)]} for at in range(9)]
    text = render(report_of(*rows), top=4)
    assert "and 5 more in report.json" in text


def test_the_same_as_json_for_programs() -> None:
    report = report_of(
        {"t": [1, 2], "offered": [5.0, 5.0], "requests": [1, 3], "delayed": [0, 1]}, completeness=0.5
    )
    told = json.loads(report.to_json())
    assert told["days"] == [{"date": "2026-11-21", "completeness": 0.5, "seconds": 10, "keys": 1}]
    assert told["totals"][0]["offered"] == 10.0
    assert told["clients"][0]["delayed_share"] == 0.25
    assert told["clients"][0]["unit"] == "bytes"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "bytes", "–"),
        (0.0, "bytes", "0 B"),
        (1234.0, "bytes", "1.23 kB"),
        (5e9, "", "5 G"),
        (7.0, "", "7"),
    ],
)
def test_quantities_have_three_digits(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_little_is_not_rounded_to_nothing() -> None:
    assert share(0.0) == "0 %"
    assert share(0.00001) == "<0.01 %"
    assert share(None) == "–"
    assert (duration(0), duration(90_000), duration(1_500)) == ("0", "1.5 min", "1.5 s")


def test_a_limit_is_told_in_the_unit_of_its_key() -> None:
    assert quota(1e6, "produce") == "1 MB/s"
    assert quota(150.0, "request") == "150 %"
    assert quota(None, "fetch") == "none"


def test_near_and_over_look_different() -> None:
    assert [heat(each) for each in (None, 0.5, 0.8, 1.0, 1.01)] == ["", "", "close", "close", "over"]
