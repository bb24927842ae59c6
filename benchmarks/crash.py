"""``python -m benchmarks.crash``: a process that alters quotas ends, or fails, at every system call; power cuts too.

Exit code 1 when the store was afterwards neither the old nor the new one, or an acknowledged change was lost. The
result is kept.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from campaigns.crash_points import CrashPoints, Outcome
from campaigns.crash_scenarios import SCENARIOS
from campaigns.power_loss import images

RESULTS: Final = Path(__file__).resolve().parent / "results"

_PARTS: Final = 5

# Errors of system calls when the disk is full or broken.
FAILING: Final = {
    "pwrite64": ("ENOSPC", "EIO"),
    "fdatasync": ("EIO", "ENOSPC"),
    "fsync": ("EIO",),
    "ftruncate": ("EIO",),
    "openat": ("ENOSPC", "EMFILE"),
    "pread64": ("EIO",),
    "rename": ("ENOSPC", "EIO"),
    "mkdir": ("ENOSPC",),
}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="only each so many-th point")
    parser.add_argument("--rounds", type=int, default=1, help="how often each point is tried")
    parser.add_argument("--folder", type=Path, help="on the file system to test; default: of temporary files")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    kills: list[Outcome] = []
    failures: list[tuple[str, Outcome]] = []
    with tempfile.TemporaryDirectory(prefix="crash-", dir=options.folder) as folder:
        crash = CrashPoints(Path(folder))
        points = list(crash.points())
        for _ in range(options.rounds):
            for point in points[:: options.every]:
                kills.append(crash.kill(*point))
            for scenario, call, at in points[:: options.every]:
                for error in FAILING.get(call, ()):
                    failures.append((error, crash.fail(scenario, call, at, error)))
        # Power cuts take a sample of the alterations instead of a sample of the points.
        altering = [scenario for scenario in SCENARIOS if scenario.change is not None]
        power = [
            (scenario.name, image.call, image.answered, crash.state(image.files, scenario))
            for scenario in altering[:: min(options.every, 6)]
            for image in images(crash, scenario, each=_PARTS, seed=options.every)
        ]
    document: dict[str, Any] = {
        "command": f"python -m benchmarks.crash --every {options.every} --rounds {options.rounds}"
        + (f" --folder {options.folder}" if options.folder else ""),
        "started": started,
        "seconds": round(time.monotonic() - began),
        "machine": describe_machine() | {"load_average_after": load_average()},
        "kills": _counts(kills),
        "failures": _counts([outcome for _, outcome in failures]),
    }
    faults = [f"{o.scenario}, killed at {o.call} {o.at}: {o.fault}" for o in kills if o.fault]
    faults += [f"{o.scenario}, {error} from {o.call} {o.at}: {o.fault}" for error, o in failures if o.fault]
    faults += [
        f"{name}, power gone after call {call}: {'answered, and ' if answered else ''}{found}"
        for name, call, answered, found in power
        if found not in (("new",) if answered else ("old", "new"))
    ]
    document["faults"] = faults
    document["power"] = {
        "images": len(power),
        "before the answer": sum(not answered for _, _, answered, _ in power),
        "old": sum(found == "old" for *_, found in power),
        "new": sum(found == "new" for *_, found in power),
    }
    page = render(document, kills, failures)
    keep_results(document, page, options.output, "crash")
    print(page)
    return int(bool(faults))


def _counts(outcomes: list[Outcome]) -> dict[str, int]:
    return {
        "points": len(outcomes),
        "ended there": sum(each.reached for each in outcomes),
        "found old": sum(each.found == "old" for each in outcomes),
        "found new": sum(each.found == "new" for each in outcomes),
        "acknowledged": sum(each.acknowledged for each in outcomes),
        "refused": sum(each.refused for each in outcomes),
        "faults": sum(each.fault is not None for each in outcomes),
    }


def render(document: dict[str, Any], kills: list[Outcome], failures: list[tuple[str, Outcome]]) -> str:
    """The page."""
    killed, failed = document["kills"], document["failures"]
    lines = [
        "# Crash points of the quota store",
        "",
        f"`{document['command']}`, {document['started']}, commit {document['machine']['commit']}; load average "
        f"after: {document['machine']['load_average_after']}, with other load on the machine.",
        "",
        f"**{killed['ended there']:,} processes killed at the entry of a system call, {failed['points']:,} calls "
        f"that failed; {len(document['faults'])} stores torn, lost or not to be opened**, "
        f"in {document['seconds']} s.",
        "",
        "strace attaches to the thread that writes the SQLite file and ends the process with SIGKILL at the n-th "
        "call of a kind, or makes that call fail once. Then the store is opened again: it has to be the old or the "
        "new one, the new one if the alteration was acknowledged; and it has to take the next alteration. An "
        "alteration that was refused must not be in force, and is asked for again in the same process, which has to "
        "work then. "
        "What a store that is just made has is nothing, before and after.",
        "",
        "| alteration | killed at | old | new | of these acknowledged | faults |",
        "|---|---|---|---|---|---|",
    ]
    for scenario in SCENARIOS:
        mine = [each for each in kills if each.scenario == scenario.name and each.reached]
        found = collections.Counter(each.found for each in mine)
        lines.append(
            f"| {scenario.name} | {len(mine)} | {found['old']} | {found['new']} | "
            f"{sum(each.acknowledged for each in mine)} | {sum(each.fault is not None for each in mine)} |"
        )
    lines += [
        "",
        "| call that failed | error | times | acknowledged | refused | faults |",
        "|---|---|---|---|---|---|",
    ]
    for call, errors in FAILING.items():
        for error in errors:
            mine = [each for name, each in failures if (each.call, name) == (call, error)]
            lines.append(
                f"| {call} | {error} | {len(mine)} | {sum(each.acknowledged for each in mine)} | "
                f"{sum(each.refused for each in mine)} | {sum(each.fault is not None for each in mine)} |"
            )
    power = document["power"]
    lines += [
        "",
        f"**Power:** the writes and syncs of each alteration were recorded, and {power['images']:,} states of the "
        f"disk made from them: after each call, what was synced alone, and {_PARTS} times with any part of the rest. "
        f"{power['before the answer']:,} of them before the answer: has to be old or new; the others after it: has "
        f"to be new. Found: {power['old']:,} old, {power['new']:,} new.",
    ]
    if document["faults"]:
        lines += ["", "Faults:", "", *(f"* {fault}" for fault in document["faults"])]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
