"""The gateway with a wall clock that can be set: `python -m campaigns.chaos.stepped_gateway serve --config FILE`.

The file in CLOCK_OFFSET has the seconds by which the clock is ahead. Completed files get this time, as on a machine
whose clock is wrong. CHAOS_WITHOUT names rows (L02,L05) whose fix is removed, to check that the campaign finds them.
For each long turn of the loop the gateway adds a line to the file in STALLS. The line has ms of CPU time, because
wall times depend on the machine's load.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from gateway.cli.main import main
from testkit.faults import stepped_clock

_LONG_S: Final = 0.05


def _step_the_clock() -> None:
    from gateway.usage.part_file import PartFile

    stepped_clock.install()
    publish = PartFile.publish

    def published(part: PartFile) -> Path:
        path = publish(part)
        os.utime(path, (time.time_ns() / 1e9,) * 2)
        return path

    setattr(PartFile, "publish", published)  # noqa: B010 - a method that only passes on


def _note_stalls() -> None:
    from gateway.server.loop_watchdog import LoopWatchdog

    tick = LoopWatchdog._tick

    def noted(watchdog: LoopWatchdog) -> None:
        if (worked_s := time.thread_time() - watchdog._cpu_s) >= _LONG_S:
            with Path(os.environ["STALLS"]).open("a", encoding="ascii") as file:
                file.write(f"{worked_s * 1000:.0f}\n")
        tick(watchdog)

    setattr(LoopWatchdog, "_tick", noted)  # noqa: B010


def _without(rows: str) -> None:
    """Remove the fixes of rows."""
    if "L01" in rows:
        from gateway.quota_admin.store import topic_reader

        # Sometimes librdkafka reports a lost topic by itself. The fix was not to depend on that.
        setattr(topic_reader, "_ENDS", ())  # noqa: B010
        setattr(topic_reader.TopicReader, "_check_identity", lambda _self: None)  # noqa: B010
    if "L02" in rows:
        from gateway.net.lingering import Lingering

        setattr(Lingering, "close", lambda _self, transport, *_a, **_k: transport.close())  # noqa: B010
    if "L03" in rows:
        from gateway.quota_admin.store import sqlite_store
        from gateway.quota_admin.store.interface import StoreError

        class Never(StoreError):
            """Is not raised."""

        setattr(sqlite_store, "DiskError", Never)  # noqa: B010
    if "L04" in rows:
        from gateway.runtime.slices import Slices

        setattr(Slices, "over", False)  # noqa: B010
    if "L05" in rows:
        from gateway.usage import file_sink, retention

        def as_dated(files: Any, *, now_s: float) -> Any:
            return sorted(files, key=lambda each: each.completed_s)

        setattr(file_sink, "in_order", as_dated)  # noqa: B010
        setattr(retention.AgeClock, "now_s", lambda self: self._wall_s())  # noqa: B010
    if "L06" in rows:
        from gateway.session import session

        setattr(session, "LATE_MS", 1 << 40)  # noqa: B010


if __name__ == "__main__":
    _step_the_clock()
    _note_stalls()
    _without(os.environ.get("CHAOS_WITHOUT", ""))
    sys.exit(main())
