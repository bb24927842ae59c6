"""``python -m campaigns.scoreboard.catalogue``: runs the tests of all hazards, and counts hazards without a test."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from testkit.hazards import NOT_APPLICABLE, ROOT, applicable, shown, without_test

_SELECTED: Final = "not integration and not spark and not campaign"


def summary() -> str:
    """How many hazards have a test, and which have none."""
    known, missing = len(applicable()), without_test()
    names = f": {', '.join(missing)}" if missing else ""
    return (
        f"**{known - len(missing)} of {known} have a test, {len(missing)} without{names}; "
        f"{len(NOT_APPLICABLE)} not applicable**"
    )


def main() -> int:
    """Run the tests that need neither brokers nor minutes; 1 when one fails, or while a hazard has no test."""
    tests = sorted({f"tests/{path}::{test}" for found in shown().values() for path, test in found})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _SELECTED, *tests]
    done = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(summary())
    return int(done != 0 or bool(without_test()))


if __name__ == "__main__":
    sys.exit(main())
