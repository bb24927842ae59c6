"""A wall clock that can be set. CLOCK_OFFSET names a file with the seconds by which the clock is ahead."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

_real_ns: Final = time.time_ns
_FILE: Final = Path(os.environ.get("CLOCK_OFFSET", "/nonexistent"))


def stepped_time_ns() -> int:
    """The time, as a replacement of `time.time_ns`."""
    try:
        return _real_ns() + int(float(_FILE.read_text(encoding="ascii")) * 1e9)
    except (OSError, ValueError):
        return _real_ns()


def install() -> None:
    """Replaces `time.time_ns`."""
    time.time_ns = stepped_time_ns
