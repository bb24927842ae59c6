"""``python -m campaigns``: runs the campaigns one after the other and keeps one line for each.

The page is benchmarks/results/campaigns.md. A campaign that fails gets the line "finding". The other campaigns still
run, and the exit code is 1 at the end. Some campaigns need root; `make campaigns` builds what the others need. The
output of each campaign is in `.cache/campaigns/`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from campaigns.listed import CAMPAIGNS, SEED, Campaign
from campaigns.scoreboard.__main__ import write
from campaigns.scoreboard.rows import ROWS, campaigns_of
from pinned_jars import cache_dir

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
_LOGS: Final = cache_dir() / "campaigns"
_HANGS_S: Final = 3 * 3_600.0
_MOST_CHARS: Final = 160
_TITLE: Final = """\
# Campaigns

The last run of each campaign. `make campaigns` runs all of them and `make campaigns ONLY="chaos order" SEED=7` some
of them. "finding" means that the campaign failed. Campaigns without a seed do the same each time.

"""


@dataclass(frozen=True, slots=True)
class Line:
    """The last run of a campaign, as the page shows it.

    Attributes:
        name: name of the campaign.
        date: when it began, in UTC.
        commit: commit of the sources.
        seed: seed of its random choices; None if it has none.
        figure: the line of its output with the main numbers.
        passed: whether its exit code was 0.
        seconds: how long it took; None in lines of older runs.
    """

    name: str
    date: str
    commit: str
    seed: int | None
    figure: str
    passed: bool
    seconds: int | None = None


def run(campaign: Campaign, *, seed: int, commit: str, logs: Path = _LOGS) -> Line:
    """Run one campaign.

    Args:
        campaign: the campaign.
        seed: replaces `SEED` in its command.
        commit: commit of the sources.
        logs: folder for its output.
    """
    date = datetime.now(UTC).isoformat(timespec="minutes")
    begun_s = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{campaign.name}.log"
    command = [sys.executable, *(argument.replace(SEED, str(seed)) for argument in campaign.command)]
    environment = os.environ | dict(campaign.environment)
    with log.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_HANGS_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            output.write(b"\nit did not end by itself\n")
            done = -1
    figure = figure_of(log.read_text(errors="replace"), campaign)
    seconds = round(time.monotonic() - begun_s)
    return Line(campaign.name, date, commit, seed if campaign.seeded else None, figure, done == 0, seconds)


def figure_of(output: str, campaign: Campaign) -> str:
    """The figure of a campaign's output, in at most 160 characters.

    It is from the last line that matches the campaign's pattern. Without such a line, it is the last line that is not
    empty.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if found := re.search(campaign.figure, line):
            return _shortened(found.expand(campaign.says) if campaign.says else line)
    return _shortened(lines[-1]) if lines else ""


def _shortened(line: str) -> str:
    return re.sub(r"\s+", " ", line.replace("**", "").strip("|* ="))[:_MOST_CHARS]


def page(lines: Iterable[Line]) -> str:
    """The page with these lines, in the order of the list of campaigns."""
    found = {line.name: line for line in lines}
    table = [
        "| Campaign | What it shows | Date | Commit | Seed | Figure | Result |",
        "|---|---|---|---|---|---|---|",
    ]
    for campaign in CAMPAIGNS:
        if (line := found.get(campaign.name)) is None:
            table.append(f"| {campaign.name} | {campaign.shows} | not run yet | | | | |")
            continue
        cells = (
            campaign.name,
            campaign.shows,
            line.date,
            line.commit,
            "" if line.seed is None else str(line.seed),
            line.figure,
            "passed" if line.passed else "**finding**",
        )
        table.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return _TITLE + "\n".join(table) + "\n"


def keep(line: Line, folder: Path) -> None:
    """Replace the campaign's line in both files, the page and its raw data."""
    raw = folder / "campaigns.json"
    kept = json.loads(raw.read_text()) if raw.exists() else []
    lines = [*(Line(**each) for each in kept if each["name"] != line.name), line]
    folder.mkdir(parents=True, exist_ok=True)
    raw.write_text("[\n " + ",\n ".join(json.dumps(asdict(each)) for each in lines) + "\n]\n")
    (folder / "campaigns.md").write_text(page(lines))


def run_all(chosen: Sequence[Campaign], *, seed: int, commit: str, folder: Path, logs: Path = _LOGS) -> int:
    """Run these campaigns and keep their lines; the number of failed campaigns."""
    findings = 0
    for campaign in chosen:
        print(f"{campaign.name}: {campaign.shows}", flush=True)
        line = run(campaign, seed=seed, commit=commit, logs=logs)
        keep(line, folder)
        print(f"  {'passed' if line.passed else 'FINDING'}: {line.figure}", flush=True)
        findings += not line.passed
    return findings


def commit_of(folder: Path) -> str:
    """The commit of a checkout by its hash, also where a tag is near; empty if it is none."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Run the selected campaigns."""
    parser = argparse.ArgumentParser(prog="python -m campaigns", description=__doc__)
    names = [campaign.name for campaign in CAMPAIGNS]
    parser.add_argument("only", nargs="*", metavar="NAME", help=f"these alone: {', '.join(names)}")
    parser.add_argument(
        "--scoreboard", action="store_true", help="those of the scoreboard; then write its page"
    )
    parser.add_argument("--quick", action="store_true", help="those of them that take 20 minutes together")
    parser.add_argument("--seed", type=int, help="of what is drawn at random; a new one by default")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder of the page")
    options = parser.parse_args()
    if unknown := set(options.only) - set(names):
        parser.error(f"no such campaign: {', '.join(sorted(unknown))}")
    wanted = set(options.only or names)
    if options.scoreboard:
        wanted &= {name for row in ROWS for name in campaigns_of(row)}
    chosen = [each for each in CAMPAIGNS if each.name in wanted and (each.quick or not options.quick)]
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    findings = run_all(chosen, seed=seed, commit=commit_of(ROOT), folder=options.output)
    missed = write(datetime.now(UTC).date(), options.output) if options.scoreboard else 0
    return int(findings > 0 or missed > 0)


if __name__ == "__main__":
    sys.exit(main())
