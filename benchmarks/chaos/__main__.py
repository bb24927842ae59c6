"""``python -m benchmarks.chaos``: 300 rounds of faults; keeps results. Exit code 1 when a check failed."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import command_line, keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.chaos.campaign import ChaosCampaign
from campaigns.chaos.schedule import KINDS
from testkit.faults.schedule import add_option

ROWS: Final = ("L01", "L02", "L03", "L04", "L05", "L06")
COUNTED: Final = ("alterations", "records", "drained", "looks", "green", "usage_lines")
RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=75.0, help="at most")
    parser.add_argument(
        "--round", type=int, default=0, help="the first one; with --rounds 1 it is played again"
    )
    parser.add_argument("--rounds", type=int, default=300, help="at most")
    parser.add_argument(
        "--planted",
        choices=ROWS,
        default="",
        help="gateways without the mending of this row; ends when it is found",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where logs and files of the gateways stay"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    add_option(parser, KINDS)
    parser.add_argument(
        "--add",
        action="store_true",
        help="to the rounds on the page, of whatever commits, which go otherwise",
    )
    options = parser.parse_args()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    machine = describe_machine()
    campaign = ChaosCampaign(
        seed=options.seed,
        tell=lambda line: print(line, flush=True),
        without=options.planted,
        folder=options.keep,
    )
    report = campaign.run(
        seconds=options.minutes * 60,
        first_round=options.round,
        most_rounds=options.rounds,
        schedule=options.schedule,
    )
    piece = {
        "command": command_line("benchmarks.chaos"),
        "started": started,
        "commit": machine.get("commit", "?"),
        "load_average": [machine["load_average_before"], load_average()],
        "seed": options.seed,
        "first_round": options.round,
        "rounds": report.rounds,
        "seconds": round(report.seconds),
        "faults": dict(report.faults),
        **{name: getattr(report, name) for name in COUNTED},
        "violations": report.violations,
    }
    kept = _kept(options.output) if options.add else []
    document = {"machine": machine, "rows": [*kept, piece]}
    text = page(document["rows"])
    if not options.planted and options.schedule is None:
        keep_results(document, text, options.output, "chaos")
    print(text)
    return int(bool(report.violations))


def _kept(folder: Path) -> list[dict[str, Any]]:
    """The pieces that earlier runs have kept."""
    file = folder / "chaos.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return [row for row in rows if "first_round" in row]


def page(pieces: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    rounds = sum(piece["rounds"] for piece in pieces)
    different = {
        (piece["seed"], at)
        for piece in pieces
        for at in range(piece["first_round"], piece["first_round"] + piece["rounds"])
    }
    seconds = sum(piece["seconds"] for piece in pieces)
    total = {name: sum(piece[name] for piece in pieces) for name in COUNTED}
    faults = sum((Counter(piece["faults"]) for piece in pieces), Counter[str]())
    violations = sum(len(piece["violations"]) for piece in pieces)
    return "\n".join(
        [
            "# Chaos",
            "",
            "Two gateways on a quota topic and one on a SQLite file, before three brokers; a writer at each, "
            "an idempotent producer and a consumer through them, usage records. In each round one to three faults at "
            "once. All the time: a gateway that says it is ready has what was acknowledged 5 s before. After each "
            "round: acknowledged alterations in force, views equal within 5 s; no record lost, twice or reordered, "
            "the consumer at the end within 20 s; each usage line in the files once, but for two that a killed "
            "process may take with it. At each drain: no reply of a request that was carried out is lost. Deadlines "
            "of a gateway leave out what it waited for a CPU.",
            "",
            f"{rounds} rounds, {len(different)} of them different, in {seconds} s "
            f"({seconds / max(1, rounds):.1f} s each): {total['alterations']} acknowledged alterations, "
            f"{total['records']} acknowledged records, {total['drained']} requests carried out at drains, "
            f"{total['usage_lines']} usage lines; asked {total['looks']} times whether they are ready, gateways were "
            f"it {total['green']} times. **{violations} violations.**",
            "",
            "| Piece | Commit | Started | Seed | Rounds | Seconds each | Load before and after | Violations |",
            "|---|---|---|---|---|---|---|---|",
            *(
                f"| {at} | {piece['commit']} | {piece['started']} | {piece['seed']} | {piece['first_round']} to "
                f"{piece['first_round'] + piece['rounds'] - 1} | {piece['seconds'] / max(1, piece['rounds']):.1f} | "
                f"{piece['load_average'][0][0]}, {piece['load_average'][1][0]} | {len(piece['violations'])} |"
                for at, piece in enumerate(pieces, start=1)
            ),
            "",
            "| Fault | Times |",
            "|---|---|",
            *(f"| {fault} | {count} |" for fault, count in sorted(faults.items())),
            "",
            *(
                f"* piece {at}, {each}"
                for at, piece in enumerate(pieces, start=1)
                for each in piece["violations"]
            ),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
