"""Campaigns run one after the other, and one page keeps a line of each."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaigns.__main__ import ROOT, Line, figure_of, keep, page, run_all
from campaigns.listed import CAMPAIGNS, SEED, Campaign
from campaigns.scoreboard import catalogue

PASSES = Campaign(CAMPAIGNS[0].name, "", ("-c", f"print('12 rounds, seed {SEED}\\nbye')"), r"rounds")
FAILS = Campaign(CAMPAIGNS[1].name, "", ("-c", "print('1 of 2 held'); exit(1)"))


def lines_of(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[2:] for row in rows}


def test_a_campaign_that_fails_is_a_finding_and_the_others_run_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_all([FAILS, PASSES], seed=7, commit="abc", folder=tmp_path, logs=tmp_path / "logs") == 1
    found = lines_of((tmp_path / "campaigns.md").read_text())
    assert found[PASSES.name][1:] == ["abc", "7", "12 rounds, seed 7", "passed"]
    assert found[FAILS.name][1:] == ["abc", "", "1 of 2 held", "**finding**"]
    assert "FINDING: 1 of 2 held" in capsys.readouterr().out
    assert (tmp_path / "logs" / f"{PASSES.name}.log").read_text() == "12 rounds, seed 7\nbye\n"


def test_a_new_run_replaces_the_line_of_its_campaign_alone(tmp_path: Path) -> None:
    for name, figure in ((CAMPAIGNS[0].name, "old"), (CAMPAIGNS[1].name, "other"), (CAMPAIGNS[0].name, "a | b")):
        keep(Line(name, "2026-01-01T00:00+00:00", "abc", 1, figure, True), tmp_path)
    found = lines_of((tmp_path / "campaigns.md").read_text())
    assert [found[each.name][3] for each in CAMPAIGNS[:2]] == ["a / b", "other"]
    assert found[CAMPAIGNS[2].name] == ["not run yet", "", "", "", ""]
    assert len(json.loads((tmp_path / "campaigns.json").read_text())) == 2


@pytest.mark.parametrize(
    ("output", "pattern", "says", "figure"),
    [
        ("**3 rounds**, in 2 s\nrest\n", r"^\*\*", "", "3 rounds, in 2 s"),
        ("1 rounds\n2 rounds\n", "rounds", "", "2 rounds"),
        ("| all | 7 | 2 |\n| one | 3 | 1 |\n", r"^\| all \| (\d) \| (\d)", r"\2 of \1 rounds", "2 of 7 rounds"),
        ("Traceback\nKeyError: 1\n\n", "rounds", r"\1 rounds", "KeyError: 1"),
        ("", "rounds", "", ""),
        ("x" * 1_000, "x", "", "x" * 160),
    ],
)
def test_figure_is_of_the_last_line_that_matches_or_else_the_last_one(
    output: str, pattern: str, says: str, figure: str
) -> None:
    assert figure_of(output, Campaign("any", "any", (), pattern, says)) == figure


@pytest.mark.parametrize(("failed", "missing", "code"), [(0, [], 0), (1, [], 1), (0, ["A01"], 1)])
def test_the_catalogue_is_a_finding_while_a_test_fails_or_a_hazard_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failed: int, missing: list[str], code: int
) -> None:
    monkeypatch.setattr(
        "campaigns.scoreboard.catalogue.subprocess.run", lambda *_, **__: SimpleNamespace(returncode=failed)
    )
    monkeypatch.setattr(catalogue, "without_test", lambda: missing)
    assert catalogue.main() == code
    assert f" {len(missing)} without" in capsys.readouterr().out


def test_the_kept_page_shows_every_campaign_that_there_is() -> None:
    folder = ROOT / "benchmarks" / "results"
    raw = folder / "campaigns.json"
    lines = [Line(**each) for each in json.loads(raw.read_text())] if raw.exists() else []
    assert (folder / "campaigns.md").read_text() == page(lines)
    assert len({campaign.name for campaign in CAMPAIGNS}) == len(CAMPAIGNS)
