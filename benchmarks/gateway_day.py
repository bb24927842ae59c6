"""``python -m benchmarks.gateway_day``: a gateway's day from its files to a plan, stage by stage; 20 minutes.

The files have a line for each second of the day. Some hours of records are made up client by client. The other hours
repeat them with their own numbers and times, because making up 86 million rows takes longer than the whole
measurement. Then the jobs run from the command line, each in its own process with its own Spark and JVM start. Goal:
86.4 M rows from records to plan in at most 15 minutes on two cores. ``--part 0.1`` takes a tenth of the clients, over
the whole day. Exit code 1 when the goal, in proportion to the part, is missed.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.pipeline_job import JobRun, run_job
from benchmarks.relay.machine import describe_machine, load_average
from testkit.pipeline.traces import DAY_S
from testkit.pipeline.usage_files import FIRST_BOOT_MS, Load, write_usage

RESULTS: Final = Path(__file__).resolve().parent / "results"
GOAL_S: Final = 900.0
GOAL_ROWS: Final = 86_400_000
_ENTITIES: Final = 12_000  # with a row in every twelfth second, by night as by day
_MADE_UP_S: Final = 7_200
_HEAD: Final = re.compile(rb'"seq":(\d+),"ts":(\d+)')


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_day", description=__doc__)
    parser.add_argument("--part", type=float, default=1.0, help="of the clients (1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; else the system's for temporary files")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    with tempfile.TemporaryDirectory(prefix="gateway-day-", dir=options.folder) as name:
        folder = Path(name)
        began = time.perf_counter()
        rows = write_day(folder / "in", Load(seed=options.seed, entities=round(_ENTITIES * options.part)))
        made_s = time.perf_counter() - began
        size = sum(path.stat().st_size for path in (folder / "in").iterdir())
        stages = through(folder)
    wall_s = sum(stage.wall_s for stage in stages)
    document = {
        "command": f"python -m benchmarks.gateway_day --part {options.part:g} --seed {options.seed}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "recorded": rows,
        "file_bytes": size,
        "made_s": made_s,
        "wall_s": wall_s,
        "rows": [asdict(stage) for stage in stages],
    }
    page = render(document, stages)
    keep_results(document, page, options.output, "gateway-day")
    print(page)
    return int(_of_goal(wall_s, rows) > 1)


def write_day(folder: Path, load: Load) -> int:
    """Write the files of one gateway's whole day; the number of rows."""
    hours = folder.with_name("made-up")
    window = Load(seed=load.seed, entities=load.entities, seconds=_MADE_UP_S, gateways=1)
    truth = write_usage(hours, window)
    folder.mkdir()
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(_repeated, folder), sorted(hours.iterdir())))
    return truth.rows * (DAY_S // _MADE_UP_S)


def _repeated(folder: Path, file: Path) -> None:
    """Repeat a file's lines for all other times of the day."""
    lines = gzip.decompress(file.read_bytes())
    for later_s in range(0, DAY_S, _MADE_UP_S):

        def later(head: re.Match[bytes], by: int = later_s) -> bytes:
            return b'"seq":%d,"ts":%d' % (int(head[1]) + by, int(head[2]) + by)

        first = int(file.name.split("-")[-1].partition(".")[0]) + later_s
        name = f"usage-gw-0-{FIRST_BOOT_MS}-{first:09d}.jsonl.gz"
        (folder / name).write_bytes(gzip.compress(_HEAD.sub(later, lines), 1, mtime=0))


def through(folder: Path) -> list[JobRun]:
    """Run all jobs from the files to the plan."""
    out, plan = str(folder / "out"), str(folder / "plan.json")
    return [
        run_job("ingest", "--from", f"files:{folder}/in", "--out", out),
        run_job("compact", "--out", out),
        run_job("recommend", "--out", out, "--history", "1", "--plan", plan),
        run_job("plan", "show", plan),
    ]


def _of_goal(wall_s: float, rows: int) -> float:
    return wall_s / (GOAL_S * rows / GOAL_ROWS)


def render(document: dict[str, Any], stages: list[JobRun]) -> str:
    """The page."""
    machine, rows, wall_s = document["machine"], document["recorded"], document["wall_s"]
    share = rows / GOAL_ROWS
    met = "met" if _of_goal(wall_s, rows) <= 1 else "missed"
    lines = [
        "# A gateway's day from records to plan",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}. {machine['cpu']}, "
        f"{machine['cores']} cores; load average before {machine['load_average_before']}, after "
        f"{machine['load_average_after']}: where the machine did other things too, CPU time is the better measure.",
        "",
        f"{rows:,} rows in {DAY_S:,} lines of one gateway, {document['file_bytes'] / 1e6:,.0f} MB of files "
        f"(made in {document['made_s']:.0f} s, which does not count).",
        "",
        "| job | wall, s | CPU, s | k rows/s | largest Python process, MB | JVM, MB |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {stage.what} | {stage.wall_s} | {stage.cpu_s:.1f} | {rows / stage.wall_s / 1e3:,.0f} "
        f"| {max(stage.driver_mb, stage.worker_mb)} | {stage.jvm_mb or '–'} |"
        for stage in stages
    ]
    cpu_s = sum(stage.cpu_s for stage in stages)
    lines += [
        "",
        f"In all {wall_s / 60:.1f} min, {cpu_s / 60:.1f} min of CPU time. Goal: {GOAL_ROWS / 1e6:g} M rows in "
        f"{GOAL_S / 60:g} min, so these {share:.1%} of them in {GOAL_S / 60 * share:.1f} min ({met}).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
