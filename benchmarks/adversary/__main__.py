"""``python -m benchmarks.adversary``: 10,000 scripts in half an hour; results are kept. Exit code 1 for a finding."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.adversary.report import page, piece_of
from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.adversary.campaign import AT_ONCE, Campaign, Report
from campaigns.adversary.script import Script
from campaigns.adversary.stage import Stage
from campaigns.adversary.verdict import judge
from campaigns.adversary.watch import Watch

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
HOLED: Final = (sys.executable, "-m", "campaigns.adversary.holed_gateway")
TIMED: Final = (sys.executable, "-m", "campaigns.adversary.timed_gateway")


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=30.0, help="at most, without shrinking")
    parser.add_argument("--at-once", type=int, default=2 * AT_ONCE)
    parser.add_argument("--planted", action="store_true", help="a gateway with a hole; ends when it is found")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="play this script three times, and nothing else"
    )
    parser.add_argument(
        "--add", action="store_true", help="to those on the page, of whatever commits, which go otherwise"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.replay is not None:
        return asyncio.run(_replay(Script.parse(options.replay.read_text()), planted=options.planted))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine()
    report = asyncio.run(_run(options))
    piece = {
        "command": command_line("benchmarks.adversary"),
        "started": started,
        "commit": machine.get("commit", "?"),
        "load_average": [machine["load_average_before"], load_average()],
        "first_seed": options.seed,
        "next_seed": options.seed + report.episodes,
        **piece_of(report),
    }
    pieces = [*(_kept(options.output) if options.add else []), piece]
    text = page(pieces)
    if not options.planted:
        keep_results({"machine": machine, "rows": pieces}, text, options.output, "adversary")
    print(text)
    print(f"continue with --add --seed {piece['next_seed']}")
    return int(bool(report.findings))


def _kept(folder: Path) -> list[dict[str, Any]]:
    """The pieces that earlier runs have kept."""
    file = folder / "adversary.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return [row for row in rows if "first_seed" in row]


async def _run(options: argparse.Namespace) -> Report:
    program = HOLED if options.planted else TIMED
    async with Stage(program=program, write_topics=5 * options.at_once) as stage:
        campaign = Campaign(
            stage,
            first_seed=options.seed,
            episodes=options.episodes,
            seconds=options.minutes * 60,
            at_once=options.at_once,
            ends_at=frozenset({"partitions"} if options.planted else ()),
            tell=lambda line: print(line, flush=True),
        )
        return await campaign.run()


async def _replay(script: Script, *, planted: bool) -> int:
    failed = 0
    async with Stage(program=HOLED if planted else TIMED) as stage:
        watch = Watch(stage)
        for _ in range(3):
            outcome, found = await stage.play(script)
            violations = judge(script, outcome, found) + [violation for violation, _ in watch.look()]
            failed += bool(violations)
            print(outcome, found, *violations, sep="\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
