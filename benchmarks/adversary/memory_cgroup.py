"""A control group with a memory limit for one process: version 2 if the machine has it, else version 1."""

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
    """One control group.

    Attributes:
        prefix: words to put before a command line, so that the command runs in the group.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Create the group; needs root.

        Args:
            folder: the group's folder, which must not exist yet.
            limit_bytes: memory limit of all its processes together.
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
        """The group's peak memory, page cache included."""
        return int(
            (self._folder / ("memory.max_usage_in_bytes" if self._first else "memory.peak")).read_text()
        )

    @property
    def killed(self) -> int:
        """How many of its processes the kernel has killed because memory ran out."""
        text = (self._folder / ("memory.oom_control" if self._first else "memory.events")).read_text()
        found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
        return int(found[1]) if found else 0

    def remove(self) -> None:
        """Remove the group. Its processes must have ended."""
        self._folder.rmdir()


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """Create a group below the group of this process, and remove it at the end.

    Raises:
        OSError: this system or this user cannot create one.
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
