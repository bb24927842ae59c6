"""What the documentation names exists, and the generated pages are up to date."""

import re
from pathlib import Path
from typing import Any

import pytest

from quotas.usage_record import Event, Row, TopicRow
from testkit import (
    cli_page,
    configuration_page,
    configuration_schema,
    exit_codes_page,
    hazards,
    limits_page,
    module_map,
    sasl_matrix,
    upstream_page,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "benchmarks",
    "campaigns",
    "config",
    "docs",
    "embedded_kafka",
    "gateway",
    "monitoring",
    "pinned_jars",
    "pipeline",
    "protocol",
    "quota_client",
    "quotas",
    "simulation",
    "sluice",
    "testkit",
    "tests",
)
DECISIONS = ROOT / "docs" / "decisions"
PAGES = (
    "README.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")) if DECISIONS not in path.parents),
)
GLOSSARY = "docs/reference/glossary.md"
MADE_BY_A_JOB = "quarantine/"  # no folder of the project

_PATH = re.compile(r"`([\w./-]+(?:\.py|\.md|\.toml|/))`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_DEFINED = re.compile(r"^\s*(?:class|def|async def) (\w+)|^([A-Z_]+)\b.*=", re.MULTILINE)


def _present() -> set[str]:
    """Every end of every path of the project: a table under `gateway/net/` may say `acceptor.py` alone."""
    found = set()
    for path in (each for package in PACKAGES for each in (ROOT / package).rglob("*")):
        parts = path.relative_to(ROOT).parts
        found |= {"/".join(parts[at:]) + "/" * path.is_dir() for at in range(len(parts))}
    return found | {MADE_BY_A_JOB} | {f"{package}/" for package in PACKAGES} | {path.name for path in ROOT.iterdir()}


PRESENT = _present()


@pytest.mark.parametrize("page", PAGES)
def test_every_path_and_link_on_a_page_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [path for path in _PATH.findall(text) if path not in PRESENT] + _broken_links(ROOT / page) == []


@pytest.mark.parametrize("page", sorted(path.name for path in DECISIONS.glob("*.md")))
def test_every_link_of_a_decision_leads_somewhere(page: str) -> None:
    assert _broken_links(DECISIONS / page) == []


def _broken_links(page: Path) -> list[str]:
    links: list[str] = _LINK.findall(page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]


def test_every_name_in_the_glossary_is_defined_somewhere() -> None:
    sources = (path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    defined = {name for text in sources for pair in _DEFINED.findall(text) for name in pair}
    rows = [line.split(" | ") for line in (ROOT / GLOSSARY).read_text().splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[2])}
    assert len(rows) > len(named) > 40
    assert sorted(named - defined) == []


@pytest.mark.parametrize(
    "made",
    [
        hazards,
        configuration_page,
        configuration_schema,
        cli_page,
        exit_codes_page,
        limits_page,
        module_map,
        upstream_page,
    ],
    ids=lambda made: made.__name__.rpartition(".")[2],
)
def test_a_generated_page_is_up_to_date(made: Any) -> None:
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), f"run: python -m {made.__name__}"


def test_the_first_line_of_every_module_is_a_whole_sentence() -> None:
    lines = {str(path.relative_to(ROOT)): module_map.first_line(path) for path in module_map.modules()}
    assert len(lines) > 500
    assert {path: line for path, line in lines.items() if not re.search(r"[.?\])]$", line) or len(line) < 15} == {}


@pytest.mark.parametrize("fields", [Row, Event, TopicRow], ids=lambda fields: fields.__name__)
def test_the_page_of_usage_records_has_every_field(fields: Any) -> None:
    text = (ROOT / "docs" / "reference" / "usage-records.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, -]+) \| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \|", text, re.MULTILINE)
    named = [(positions, re.findall(r"\w+", names)) for positions, names in rows]
    assert [each.name for each in fields] in _tables(named)


def _tables(rows: list[tuple[str, list[str]]]) -> list[list[str]]:
    """The names of each table; every table begins with position 0."""
    found: list[list[str]] = []
    for positions, names in rows:
        if positions.startswith("0"):
            found.append([])
        found[-1] += names
    return found


def test_every_hazard_has_a_test_that_is_no_campaign() -> None:
    assert hazards.shown_by_campaigns_alone() == set()


def test_a_hazard_that_does_not_apply_is_known_and_has_no_test() -> None:
    assert hazards.NOT_APPLICABLE
    for number in hazards.NOT_APPLICABLE:
        assert number in hazards.HAZARDS[number[0]]
    assert not hazards.NOT_APPLICABLE.keys() & hazards.shown().keys()


@pytest.mark.slow
def test_every_hazard_that_a_comment_cites_is_on_the_page() -> None:
    assert sorted(hazards.cited() - set(hazards.shown())) == []


def test_the_page_about_sasl_has_every_combination_that_is_tested() -> None:
    text = sasl_matrix.PAGE.read_text(encoding="utf-8")
    assert sasl_matrix.page(text) == text, "run python -m testkit.sasl_matrix"
    assert len({cell.client_id for cell in sasl_matrix.CELLS}) == len(sasl_matrix.CELLS) == 4 * 4 * 5
    assert sasl_matrix.table().count("\n| ") == 1 + 16 - 1
