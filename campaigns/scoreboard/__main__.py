"""``python -m campaigns.scoreboard``: judges the kept results and writes the page and README's line; 1 for a miss.

A missed goal is no error if the page gives the reason.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from campaigns.peers.page import RESULT
from campaigns.scoreboard.judged import Judged, exit_code, judge_all
from campaigns.scoreboard.kept import last_release, results
from campaigns.scoreboard.page import page, summary, with_summary
from campaigns.scoreboard.rows import ROWS

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "reference" / "reliability.md"
README: Final = ROOT / "README.md"


def judged_on(today: date, folder: Path = RESULTS) -> tuple[Judged, ...]:
    """All rows, judged by the results in a folder."""
    found = results(folder, [RESULT, *(source for row in ROWS for source in row.sources)])
    return judge_all(ROWS, found, today=today, released=last_release((ROOT / "CHANGELOG.md").read_text()))


def write(today: date, folder: Path = RESULTS) -> int:
    """Judge, write both pages and print the result; the exit code."""
    judged = judged_on(today, folder)
    PAGE.write_text(page(judged, today=today), encoding="utf-8")
    README.write_text(with_summary(README.read_text(encoding="utf-8"), judged), encoding="utf-8")
    return said(judged)


def said(judged: tuple[Judged, ...]) -> int:
    """Print the counts and each miss; the exit code."""
    print(summary(judged))
    for each in judged:
        if each.misses:
            print(
                f"  {each.row.number} missed: {'; '.join(each.misses)}. "
                f"{' '.join(each.reasons)}{'' if each.explained else ' Not all of it has a reason.'}"
            )
    return exit_code(judged)


def main() -> int:
    """Write the pages, or only judge."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.scoreboard", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of kept results")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    today = datetime.now(UTC).date()
    return said(judged_on(today, options.results)) if options.check else write(today, options.results)


if __name__ == "__main__":
    sys.exit(main())
