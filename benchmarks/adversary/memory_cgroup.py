"""A control group with a limit of memory, for one process: version 2 where it is, else version 1."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")


class MemoryGroup:
    """One group.

    Attributes:
        prefix: of a command line that is to run in it.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Make it; needs root.

        Args:
            folder: that does not exist yet.
            limit_bytes: of all processes in it together.
        """
        self._folder = folder
        folder.mkdir()
        self._first = not (folder / "cgroup.controllers").exists()
        limit = "memory.limit_in_bytes" if self._first else "memory.max"
        (folder / limit).write_text(str(limit_bytes))
        if not self._first:
            with contextlib.suppress(FileNotFoundError):  # without swap
                (folder / "memory.swap.max").write_text("0")
        self.prefix = ["sh", "-c", f'echo $$ > "{folder}/cgroup.procs" && exec "$0" "$@"']

    @property
    def most_bytes(self) -> int:
        """The most that was used at a time, page cache included."""
        return int(
            (self._folder / ("memory.max_usage_in_bytes" if self._first else "memory.peak")).read_text()
        )

    @property
    def killed(self) -> int:
        """How many of its processes the kernel has killed for the want of memory."""
        text = (self._folder / ("memory.oom_control" if self._first else "memory.events")).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Its processes have ended."""
        self._folder.rmdir()


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A group below that of this process.

    Raises:
        OSError: this system, or this user, can't make one.
    """
    group = MemoryGroup(_own_folder() / f"sluice-overload-{os.getpid()}", limit_bytes)
    try:
        yield group
    finally:
        group.remove()


def _own_folder() -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/")
        if not controllers and (_ROOT / "cgroup.controllers").exists():
            return _ROOT / path.lstrip("/")
    raise OSError("no control group for memory")
