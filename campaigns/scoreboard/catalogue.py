"""``python -m campaigns.scoreboard.catalogue``: runs the tests of all hazards, and counts hazards without a test."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from testkit.hazards import HAZARDS, ROOT, shown, without_test

_SELECTED: Final = "not integration and not spark and not campaign"


def summary() -> str:
    """How many hazards have a test, and which have none."""
    known = sum(number != "title" for hazards in HAZARDS.values() for number in hazards)
    missing = without_test()
    return f"**{known - len(missing)} of {known} have a test, {len(missing)} without: {', '.join(missing)}**"


def main() -> int:
    """Run the tests that need neither brokers nor minutes; 1 when one fails."""
    tests = sorted({f"tests/{path}::{test}" for found in shown().values() for path, test in found})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _SELECTED, *tests]
    done = subprocess.run(command, cwd=ROOT, check=False).returncode
    print(summary())
    return int(done != 0)


if __name__ == "__main__":
    sys.exit(main())
