"""The gateway with a count of its tasks: `python -m campaigns.soak.counted_gateway serve --config FILE`.

The file in TASKS has the number of unfinished tasks of the loop. It is at most a second old.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Final

from gateway.cli.main import main
from gateway.server.loop_watchdog import LoopWatchdog

_EVERY_S: Final = 0.5


def _count_tasks() -> None:
    file = Path(os.environ["TASKS"])
    tick = LoopWatchdog._tick
    next_s = 0.0

    def counted(watchdog: LoopWatchdog) -> None:
        nonlocal next_s
        if (now_s := time.monotonic()) >= next_s:
            next_s = now_s + _EVERY_S
            new = file.with_suffix(".new")
            new.write_text(str(len(asyncio.all_tasks())), encoding="ascii")
            new.rename(file)
        tick(watchdog)

    setattr(LoopWatchdog, "_tick", counted)  # noqa: B010 - a method that only passes on


if __name__ == "__main__":
    _count_tasks()
    sys.exit(main())
