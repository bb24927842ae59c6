"""Which hazard is shown by which test: docs/hazards.md is made from the names of the tests.

`python -m testkit.hazards` writes the page; a test of the contract room says when it is out of date.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "hazards.md"

_TEST: Final = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
_NUMBER: Final = re.compile(r"(?<=_)([a-i]\d\d)(?=_)")
_ROOMS: Final = {
    "A": "Frames and decoding",
    "B": "Transport peers",
    "C": "Quotas, throttling, pipelining",
    "D": "Upstream broker faults",
    "E": "Address rewriting and topology",
    "F": "Process and host",
    "G": "Quota store and admin path",
    "H": "Identity, SASL, TLS, PROXY",
    "I": "Cardinality, metrics, logs, events",
}


def shown() -> dict[str, list[tuple[str, str]]]:
    """Hazard number -> (test file, test name), both sorted."""
    found = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for test in _TEST.findall(path.read_text()):
            for number in _NUMBER.findall(test):
                found[number.upper()].add((str(path.relative_to(ROOT)), test))
    return {number: sorted(tests) for number, tests in sorted(found.items())}


def page() -> str:
    """docs/hazards.md as it should be."""
    lines = [
        "# Hazards, and the tests that show them",
        "",
        "Faults, attacks and client quirks by number. A test carries the numbers of what it shows in its name, which",
        "says what must happen. Made by `python -m testkit.hazards`.",
    ]
    room = ""
    for number, tests in shown().items():
        if number[0] != room:
            room = number[0]
            lines += ["", f"## {room}: {_ROOMS[room]}", "", "| hazard | shown by | in |", "|---|---|---|"]
        for path, test in tests:
            sentence = re.sub(r"^test_(?:[a-i]\d\d_)+", "", test).replace("_", " ")
            lines.append(f"| {number} | {sentence} | `{path.removeprefix('tests/')}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
