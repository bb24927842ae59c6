"""The usage sink into files of a directory. [io]: runs in the thread of a `ThreadedSink`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from gateway.runtime.clock import WallMs, wall_clock_ms
from gateway.usage.line import Line, Tally
from gateway.usage.part_file import PartFile, recover
from gateway.usage.retention import AgeClock, Retention, complete_files, in_order, left_parts, to_remove

_log = structlog.get_logger("gateway.usage")


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The directory of files, when they are complete, and how long they are kept.

    Attributes:
        directory: see `FileWriter`.
        rotate_s, rotate_bytes: a file is completed after so long, or with so many bytes.
        retention: the bounds for complete files.
    """

    directory: Path
    rotate_s: float
    rotate_bytes: int
    retention: Retention


class FileWriter:
    """A `sink.Writer`.

    Attributes:
        delivered: lines in complete files.
        lost: always empty: `write` raises if a file cannot take a line.
        completed: files that have their final name.
        removed: files deleted because of their age or of the total size.
        recovered: files completed that another process had left.
    """

    def __init__(
        self,
        settings: FileSettings,
        gateway: str,
        boot: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: WallMs = wall_clock_ms,
    ) -> None:
        """Nothing is touched yet.

        Args:
            settings: of the files.
            gateway: part of the files' names: letters, digits, "_", ".", "-".
            boot: when this gateway was started.
            clock: seconds, monotonic; for rotation.
            wall_ms: for retention.
        """
        self.delivered = Tally()
        self.lost = Tally()
        self.completed = 0
        self.removed = 0
        self.recovered = 0
        self._settings = settings
        self._gateway = gateway
        self._boot = boot
        self._clock = clock
        self._wall_ms = wall_ms
        self._age_clock = AgeClock(clock, self._wall_s)
        self._part: PartFile | None = None
        self._due_s = 0.0

    @property
    def pending(self) -> Tally:
        """The lines in the file that is being written."""
        return Tally() if self._part is None else self._part.tally

    def open(self) -> None:
        """See `sink.Writer`: complete files that other processes left, then remove files beyond the retention."""
        directory = self._settings.directory
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        for part in left_parts(directory):
            try:
                found = recover(part)
            except OSError as exc:
                # The next start tries again; new lines must not wait for it.
                _log.warning("usage_file_not_recovered", file=part.name, error=str(exc))
                continue
            if found is not None:
                self.recovered += 1
                _log.info("usage_file_recovered", file=found.name)
        self._age_clock.begin(complete_files(directory), keep_s=self._settings.retention.keep_s)
        self._make_room()

    def write(self, line: Line) -> None:
        """See `sink.Writer`."""
        if self._part is not None and self._part.bytes >= self._settings.retention.keep_bytes:
            self.maintain()  # it could not be completed for long, and must not grow: nothing is deleted meanwhile
        if self._part is None:
            self._part = PartFile(self._settings.directory, self._gateway, self._boot, line.seq)
            self._due_s = self._clock() + self._settings.rotate_s
        self._part.append(line)

    def maintain(self) -> None:
        """See `sink.Writer`."""
        part = self._part
        self._age_clock.now_s()
        if part is not None and (self._clock() >= self._due_s or part.bytes >= self._settings.rotate_bytes):
            self._make_room(completed=self._publish(part))

    def _publish(self, part: PartFile) -> Path | None:
        path = None
        if part.tally.lines:
            path = part.publish()
            self.delivered.add_all(part.tally)
            self.completed += 1
        else:
            part.discard()
        self._part = None
        return path

    def _wall_s(self) -> float:
        return self._wall_ms() / 1000

    def _make_room(self, *, completed: Path | None = None) -> None:
        files = in_order(complete_files(self._settings.directory), now_s=self._wall_s())
        now_s = self._age_clock.now_s()
        for each in to_remove(files, self._settings.retention, now_s=now_s, completed=completed):
            each.path.unlink(missing_ok=True)
            self.removed += 1

    def close(self, deadline_s: float) -> None:
        """See `sink.Writer`; a file that cannot be completed is left to the next start."""
        part = self._part
        if part is not None:
            try:
                self._publish(part)
            finally:
                part.close()
