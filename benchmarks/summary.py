"""``python -m benchmarks.summary``: compares the last run of `make bench` with the committed one.

A row got worse when the two intervals of its ratio to HAProxy do not overlap and the new one is above. The machine
hardly matters, because each run was compared with HAProxy on its own machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from benchmarks.pairs import Ratio, paired_ratio
from benchmarks.relay.native_build import ROOT

BENCHES: Final = ("relay", "connections", "tls")
_GATEWAY: Final = "Sluice"
_BASE: Final = "HAProxy"
_NOT_OURS: Final = ", before"
_FEWEST_PAIRS: Final = 5


def main() -> int:
    """Prints the rows of all benches; 1 when one got worse."""
    worse = []
    for bench in BENCHES:
        name = f"benchmarks/results/{bench}.json"
        now = json.loads((ROOT / name).read_text())
        shown = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, check=False)
        kept: dict[str, Any] = (
            json.loads(shown.stdout) if shown.returncode == 0 else {"rows": [], "started": "never"}
        )
        print(f"\n{bench}, HAProxy = 1.00: kept {kept['started']}, now {now['started']}")
        before, after = ratios(kept["rows"]), ratios(now["rows"])
        for key, ratio in after.items():
            old = before.get(key)
            verdict = "" if old is None else said_of(old, ratio)
            if verdict == "WORSE":
                worse.append(f"{bench}: {' '.join(key)}")
            was = "-" if old is None else str(old)
            print(f"  {key[0]:<26} {key[1]:<18} {was:>22}  now {ratio!s:>22}  {verdict}")
    print(f"\nworse: {'; '.join(worse)}" if worse else "\nnothing got worse")
    return 1 if worse else 0


def ratios(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Ratio]:
    """By workload and path, the ratio of each gateway's figure to HAProxy's in the same round."""
    found = {}
    for workload in dict.fromkeys(row["workload"] for row in rows):
        paths = dict.fromkeys(row["path"] for row in rows if row["workload"] == workload)
        base = next((path for path in paths if path.startswith(_BASE)), None)
        for path in paths:
            if base is not None and path.startswith(_GATEWAY) and not path.endswith(_NOT_OURS):
                ratio = paired_ratio(rows, workload, path, base)
                if ratio is not None:
                    found[workload, path] = ratio
    return found


def said_of(old: Ratio, new: Ratio) -> str:
    """Better or worse where the intervals lie apart; empty where they overlap."""
    if min(old.pairs, new.pairs) < _FEWEST_PAIRS:
        return "too few rounds to decide"
    if new.low > old.high:
        return "WORSE"
    return "better" if new.high < old.low else ""


if __name__ == "__main__":
    sys.exit(main())
