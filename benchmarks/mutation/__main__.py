"""``python -m benchmarks.mutation``: what share of small faults in the pure code the unit tests find.

Exit code 1 when a mutant's process did not end normally. There is no result if a test fails without a mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.mutation.mutants import Mutant, places, sample
from benchmarks.mutation.runs import Covered, Outcome, try_mutants
from benchmarks.relay.machine import describe_machine, load_average

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"

PACKAGES: Final = {
    "quotas": (160, ["quotas"]),
    "session": (120, ["gateway/session"]),
    "protocol": (140, ["protocol"]),
}
"""Numbers of mutants, and their files and folders."""

FOUND: Final = {"killed", "timeout"}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="only each so many-th of the sample: for a look")
    parser.add_argument("--before", type=Path, help="raw data of an earlier run to be compared with")
    parser.add_argument("--name", default="mutation", help="of the files that are kept")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    machine = describe_machine()
    files = {package: _modules(paths) for package, (_, paths) in PACKAGES.items()}
    rows: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    tests = 0
    # A copy of stderr, because pytest captures the original.
    progress = os.fdopen(os.dup(2), "w")

    def choose(covered: Covered) -> Iterator[Mutant]:
        nonlocal tests
        tests = len(covered.seconds)
        for package, (number, _) in PACKAGES.items():
            found = places(files[package], lambda file, lines: covered.tests_of(file, lines) is not None)
            known[package] = len(found)
            yield from sample(found, number, options.seed)[:: options.every]

    def report(mutant: Mutant, outcome: Outcome) -> None:
        row = {
            "package": next(package for package, each in files.items() if Path(mutant.file) in each),
            "outcome": outcome[0],
            "by": outcome[1],
            "place": f"{mutant.file}:{mutant.line}",
            "operator": mutant.operator,
            "change": " → ".join(mutant.lines),
            "key": mutant.key,
        }
        rows.append(row)
        print(round(time.monotonic() - began), len(rows), *row.values(), file=progress, flush=True)

    try_mutants([file for each in files.values() for file in each], choose, report)
    document = {
        "command": command_line("benchmarks.mutation"),
        "started": started,
        "seconds": round(time.monotonic() - began),
        "seed": options.seed,
        "cosmic-ray": version("cosmic-ray"),
        "machine": machine | {"load_average_after": load_average()},
        "tests": tests,
        "places": known,
        "rows": rows,
    }
    before = json.loads(options.before.read_text()) if options.before else None
    page = render(document, before)
    keep_results(document, page, options.output, options.name)
    print(page)
    return int(any(row["outcome"] == "fault" for row in rows))


def _modules(paths: list[str]) -> list[Path]:
    found = [file for path in map(Path, paths) for file in (path.rglob("*.py") if path.is_dir() else [path])]
    return sorted(found)


def interval_pct(share: float, number: int) -> tuple[float, float]:
    """The interval that contains the share of all mutants with 95 % confidence (Wilson)."""
    z2 = 1.96**2
    middle = (share + z2 / (2 * number)) / (1 + z2 / number)
    reach = (z2 * (share * (1 - share) + z2 / (4 * number)) / number) ** 0.5 / (1 + z2 / number)
    return 100 * (middle - reach), 100 * (middle + reach)


def render(document: dict[str, Any], before: dict[str, Any] | None) -> str:
    """The page."""
    lines = [
        "# Mutants that the unit tests find",
        "",
        f"`{document['command']}`, {document['started']}, commit {document['machine']['commit']}, seed "
        f"{document['seed']}, cosmic-ray {document['cosmic-ray']}, {document['seconds']} s.",
        "",
        *_table(document),
    ]
    if before is not None:
        lines += [
            "",
            f"Before, commit {before['machine']['commit']}, seed {before['seed']}:",
            "",
            *_table(before),
        ]
        lines += ["", *_in_both(document, before)]
    lines += [
        "",
        f"A mutant is tried with those of the {document['tests']:,} unit tests that run its statement, and is killed "
        "by the first that fails. Killed counts what ran out of CPU time, too. Without a mutant all of them pass, "
        "twice in the same way. Not among them: tests with an event loop, a socket, a thread or another process, and "
        "those of the pipeline. What imports run is not changed (tables, defaults, decorators), nor are annotations. "
        "A place that one operator changes in several ways is one place.",
        "",
        "## Survivors",
        "",
    ]
    for row in document["rows"]:
        if row["outcome"] not in FOUND:
            lines.append(
                f"* `{row['place']}` {row['operator']}{', no test runs it' * bool(row['by'])}: `{row['change']}`"
            )
    return "\n".join(lines) + "\n"


def _table(document: dict[str, Any]) -> list[str]:
    lines = [
        "| package | places | mutants | killed | of these out of time | survived | share killed | 95 % interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for package in (*document["places"], "all"):
        outcomes = Counter(row["outcome"] for row in document["rows"] if package in (row["package"], "all"))
        number, killed = outcomes.total(), sum(outcomes[each] for each in FOUND)
        low, high = interval_pct(killed / number, number)
        places_of = document["places"].get(package) or sum(document["places"].values())
        lines.append(
            f"| {package} | {places_of:,} | {number} | {killed} | {outcomes['timeout']} | {number - killed} | "
            f"{100 * killed / number:.1f} % | {low:.1f} to {high:.1f} % |"
        )
    return lines


def _in_both(document: dict[str, Any], before: dict[str, Any]) -> list[str]:
    earlier = {(row["package"], row["key"]): row for row in before["rows"]}
    pairs = [(earlier.get((row["package"], row["key"])), row) for row in document["rows"]]
    both = [(old, new) for old, new in pairs if old is not None]
    killed = [sum(pair[at]["outcome"] in FOUND for pair in both) for at in (0, 1)]
    lines = [
        f"The same change of the same line in both: {len(both)} mutants, {killed[0]} killed before, {killed[1]} now."
    ]
    for old, new in both:
        if old["outcome"] in FOUND and new["outcome"] not in FOUND:
            lines += [
                "",
                f"* Not killed any more: `{new['place']}` {new['operator']}, before by `{old['by']}`",
            ]
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
