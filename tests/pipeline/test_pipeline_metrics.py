"""The state of a pipeline's folder as metrics."""

import datetime
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.maintenance.metrics import metrics_text
from pipeline.maintenance.status import status
from pipeline.storage.coverage import Expectation
from testkit.pipeline.local_session import compact_all, ingest_files
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, line, place, row

NEXT = DAY + 86_400


def folder_of(path: Path) -> str:
    """A folder with a whole day, a line of the next, a gap of 3 lines, a torn line, and a plan."""
    out = str(path / "out")
    lines = [line(seq, row(), dur_ms=1000) for seq in range(10) if seq not in (4, 5, 6)]
    file = place(path / "in", "usage-a.jsonl.gz", *lines, b"{torn", line(86_400, row(), ts=NEXT))
    ingest_files(out, path / "checkpoint", file, place(path / "in", "again.jsonl.gz", lines[0]))
    compact_all(out)
    plan = path / "out" / "results" / "plan" / "run=2026-09-29T010000Z"
    plan.mkdir(parents=True)
    entries = [{"action": action} for action in ("set", "keep", "keep")]
    # Clients that were seen too briefly lack no records.
    reasons = ("2026-09-28 left out for a", "2026-09-28 left out for b", "seen for only 20 s, on 2026-09-28")
    too_little = [{"client": "produce of user=bob", "reason": reason} for reason in reasons]
    told = {"made_at": "2026-09-29T01:00:00Z", "entries": entries, "too_little": too_little}
    (plan / "plan.json").write_text(json.dumps(told))
    return out


def values(out: str, expectation: Expectation = LONG_AFTER) -> dict[str, float]:
    """Each series of a folder without the beginning of its name, and its value."""
    text = metrics_text(status(out, expectation), out, now_s=expectation.now_s)
    return {
        sample.name.removeprefix("sluice_pipeline_")
        + "".join(f":{label}" for label in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric_names(path: Path) -> set[str]:
    """All metrics that there can be."""
    return {f"sluice_pipeline_{name.partition(':')[0]}" for name in values(folder_of(path))}


@pytest.mark.slow
def test_the_metrics_say_what_was_read_what_is_missing_and_what_is_compacted(tmp_path: Path) -> None:
    found = values(folder_of(tmp_path))

    assert found.pop("newest_day_completeness_ratio") < 0.01
    assert found == {
        "status_timestamp_seconds": 2**32,
        "newest_line_timestamp_seconds": NEXT,
        "newest_day_timestamp_seconds": NEXT + 86_400,
        "days_not_compacted": 0,
        "days_with_late_lines": 0,
        "missing_lines": 86_400 - 10 + 3,
        "read_lines": 8,
        "duplicate_lines": 1,
        "unreadable_lines": 1,
        "plan_timestamp_seconds": datetime.datetime(2026, 9, 29, 1, tzinfo=datetime.UTC).timestamp(),
        "plan_quotas:set": 1,
        "plan_quotas:keep": 2,
        "plan_quotas:left_out": 2,
    }


def test_lines_of_a_clock_that_is_ahead_do_not_hide_that_no_new_ones_come(tmp_path: Path) -> None:
    out, now_s = str(tmp_path / "out"), DAY + 86_400

    def newest_with(name: str, *lines: bytes) -> float:
        ingest_files(out, tmp_path / "checkpoint", place(tmp_path / "in", name, *lines))
        return values(out, Expectation(now_s))["newest_line_timestamp_seconds"]

    assert newest_with("a", line(0, row())) == DAY
    assert newest_with("b", line(0, row(), gw="years ahead", ts=DAY + 4 * 365 * 86_400), line(1)) == DAY + 1
    # Such a clock may run on for hours before it is noticed.
    late = now_s + 3_590
    ahead = [line(seq, gw="ahead", boot=late * 1000, ts=late + seq) for seq in range(40)]
    assert newest_with("c", *ahead) == now_s + 3_600


@pytest.mark.slow
def test_an_open_day_is_not_the_newest_compacted_one(tmp_path: Path) -> None:
    found = values(folder_of(tmp_path), Expectation(NEXT + 7_200))

    assert found["newest_day_timestamp_seconds"] == NEXT


@pytest.mark.slow
def test_the_newest_plan_counts_also_where_an_older_one_is_beside_it(tmp_path: Path) -> None:
    out = folder_of(tmp_path)
    older = tmp_path / "out" / "results" / "plan" / "run=2026-09-28T010000Z"
    older.mkdir()
    (older / "plan.json").write_text(json.dumps({"made_at": "2026-09-28T01:00:00Z", "entries": []}))

    assert values(out)["plan_quotas:set"] == 1


@pytest.mark.slow
def test_the_job_writes_a_file_or_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file = folder_of(tmp_path), tmp_path / "sluice.prom"
    capsys.readouterr()

    assert main(["status", "--out", out, "--prometheus", str(file)]) == Exit.DONE
    assert capsys.readouterr().out == ""
    assert [each.name for each in tmp_path.glob("sluice*")] == ["sluice.prom"]
    assert main(["status", "--out", out, "--prometheus", "-"]) == Exit.DONE
    printed = capsys.readouterr().out
    without_time = [
        [text for text in each.splitlines() if "status_timestamp" not in text] for each in (printed, file.read_text())
    ]
    assert without_time[0] == without_time[1]
    assert main(["status", "--out", out, "--prometheus", f"{tmp_path}/none/x.prom"]) == Exit.FAILED
    assert "No such file or directory" in capsys.readouterr().err


def test_an_empty_folder_has_metrics_that_say_so(tmp_path: Path) -> None:
    assert values(str(tmp_path / "out"))["read_lines"] == 0
    assert main(["status", "--out", str(tmp_path / "out"), "--prometheus", "-"]) == Exit.NOT_YET_COMPLETE
