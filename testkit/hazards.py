"""tests/hazards.md: which test shows which hazard. `python -m testkit.hazards` writes it.

A contract test fails if the page is out of date. It is an error if a test or a comment cites a number that
hazards.toml does not explain.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "tests" / "hazards.md"

_TEST: Final = re.compile(r"^((?:@[^\n]+\n(?:[ )\]][^\n]*\n|\n)*)*)(?:async )?def (test_\w+)", re.MULTILINE)
_CAMPAIGN: Final = re.compile(r"^(?:@|pytestmark = .*)pytest\.mark\.campaign", re.MULTILINE)
_NUMBER: Final = re.compile(r"(?<=_)([a-m]\d\d)(?=_)")
_CITED: Final = re.compile(r"\bhazards? ([A-M]\d\d(?:(?:, | and )[A-M]\d\d)*)")
_SOURCES: Final = (
    "gateway",
    "config",
    "protocol",
    "quotas",
    "pipeline",
    "embedded_kafka",
    "campaigns",
    "testkit",
    "tests",
)

HAZARDS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
"""Letter -> title, and number -> description."""

NOT_APPLICABLE: Final[dict[str, str]] = HAZARDS.pop("not_applicable")
"""Number -> why the hazard cannot happen to Sluice, or is not its task."""


def shown() -> dict[str, list[tuple[str, str]]]:
    """Hazard number -> (test file, test name), both sorted."""
    found = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for _, test in _TEST.findall(path.read_text()):
            for number in _NUMBER.findall(test):
                found[number.upper()].add((str(path.relative_to(ROOT / "tests")), test))
    return {number: sorted(tests) for number, tests in sorted(found.items())}


def shown_by_campaigns_alone() -> set[str]:
    """The numbers of hazards that no test of `make test` shows."""
    quick, slow = set(), set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text()
        for decorators, test in _TEST.findall(text):
            numbers = {number.upper() for number in _NUMBER.findall(test)}
            whole_file = _CAMPAIGN.search(text.partition("\ndef ")[0].partition("\n@")[0]) is not None
            (slow if whole_file or _CAMPAIGN.search(decorators) else quick).update(numbers)
    return slow - quick


def cited() -> set[str]:
    """The numbers that comments and docstrings cite, in the form `hazard C07` or `hazards B11, D11`."""
    texts = (path.read_text() for source in _SOURCES for path in (ROOT / source).rglob("*.py"))
    return {
        number
        for text in texts
        for found in _CITED.findall(text)
        for number in found.replace(" and ", ", ").split(", ")
    }


def page() -> str:
    """tests/hazards.md as it should be.

    Raises:
        KeyError: a test has a number that hazards.toml does not explain.
    """
    lines = [
        "# Hazards, and the tests that show them",
        "",
        "Faults, attacks and client quirks by number. Comments cite them. A test has the numbers of what it shows in",
        "its name, which says what must happen. Paths are below `tests/`. Made by `python -m testkit.hazards`.",
    ]
    letter = ""
    for number, tests in shown().items():
        if number[0] != letter:
            letter = number[0]
            lines += [
                "",
                f"## {letter}: {HAZARDS[letter]['title']}",
                "",
                "| number | what it is | shown by |",
                "|---|---|---|",
            ]
        lines.append(f"| {number} | {HAZARDS[letter][number]} | {'<br>'.join(_by_file(tests))} |")
    lines += ["", "## Not applicable", "", "| number | what it is | why it does not apply |", "|---|---|---|"]
    lines += [
        f"| {number} | {HAZARDS[number[0]][number]} | {why} |"
        for number, why in sorted(NOT_APPLICABLE.items())
    ]
    if missing := without_test():
        lines += ["", "## Without a test", "", "No test carries these numbers.", ""]
        lines += ["| number | what it is |", "|---|---|"]
        lines += [f"| {number} | {HAZARDS[number[0]][number]} |" for number in missing]
    return "\n".join(lines) + "\n"


def applicable() -> set[str]:
    """The numbers that at least one test should have."""
    known = {number for hazards in HAZARDS.values() for number in hazards if number != "title"}
    return known - NOT_APPLICABLE.keys()


def without_test() -> list[str]:
    """The applicable numbers without a test."""
    return sorted(applicable() - shown().keys())


def _by_file(tests: list[tuple[str, str]]) -> Iterator[str]:
    sentences = defaultdict(list)
    for path, test in tests:
        sentences[path].append(re.sub(r"^test_(?:[a-m]\d\d_)+", "", test).replace("_", " "))
    for path, of_file in sentences.items():
        yield f"`{path}`: {'; '.join(of_file)}"


if __name__ == "__main__":
    PAGE.write_text(page())
