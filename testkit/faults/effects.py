"""The effects of faults on real processes, each for the time of a `with`.

Begin and end are checked from outside: a fault without effect, or one that remains afterwards, is an error.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from testkit.tap import Tap

TAKES_S: Final = 20.0
"""How long a fault may take to begin, and to end."""

_LOOK_S: Final = 0.005
_WRITES: Final = "write,pwrite64,writev,fsync,fdatasync"


class Effect(ABC):
    """A fault that lasts for some time."""

    def __enter__(self) -> None:
        """Begins the fault.

        Raises:
            TimeoutError: it has no effect.
        """
        self._begin()
        try:
            self._await(True)
        except TimeoutError:
            self._end()
            raise

    def __exit__(self, *_exc: object) -> None:
        """Ends the fault.

        Raises:
            TimeoutError: it is still in force.
        """
        self._end()
        self._await(False)

    @abstractmethod
    def in_force(self) -> bool | None:
        """Whether it affects the target now; None: it affects a part of the target."""

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    def _await(self, wanted: bool) -> None:
        end_s = time.monotonic() + TAKES_S
        while self.in_force() is not wanted:
            if time.monotonic() > end_s:
                raise TimeoutError(
                    f"{type(self).__name__} {'has no effect' if wanted else 'is still in force'}"
                )
            time.sleep(_LOOK_S)


class Away(Effect):
    """A process that is ended, and then started again."""

    def __init__(
        self, end: Callable[[], object], start: Callable[[], object], running: Callable[[], bool]
    ) -> None:
        """Describes a running process.

        Args:
            end: ends or kills it.
            start: starts it again.
            running: returns whether it runs.
        """
        self._ends, self._starts, self._running = end, start, running

    def in_force(self) -> bool:
        return not self._running()

    def _begin(self) -> None:
        self._ends()

    def _end(self) -> None:
        self._starts()


class Stopped(Effect):
    """Processes that are stopped by SIGSTOP."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    def in_force(self) -> bool | None:
        stopped = {state == "T" for pid in self._pids for state in _states(pid)}
        return None if len(stopped) > 1 else True in stopped  # a process that has ended does not stand still

    def _begin(self) -> None:
        self._send(signal.SIGSTOP)

    def _end(self) -> None:
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _states(pid: int) -> Iterator[str]:
    """The states of all threads of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            yield task.read_text(encoding="utf-8").rpartition(")")[2].split()[0]


class SmallDisk:
    """A separate file system, which can be filled.

    Attributes:
        folder: its mount point.
        mounted: False if this process may not mount one.
    """

    def __init__(self, folder: Path, size: str) -> None:
        """Makes the folder, and mounts a file system there.

        Args:
            folder: must not exist yet.
            size: in mount's form; "": nothing is mounted and the folder stays on its disk.
        """
        folder.mkdir()
        self.folder = folder
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "sluice", str(folder)]
        may = size and os.geteuid() == 0 and shutil.which("mount") is not None
        self.mounted = bool(may) and not subprocess.run(command, capture_output=True, check=False).returncode

    def fill(self, left_bytes: int = 0) -> None:
        """Fills the disk except for `left_bytes`."""
        with (self.folder / "filler").open("wb", buffering=0) as file:
            with suppress(OSError):
                while file.write(bytes(4_096)):
                    pass
            file.truncate(max(0, file.tell() - left_bytes))

    def free(self) -> None:
        """Frees the disk again."""
        (self.folder / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmounts the file system."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class FullDisk(Effect):
    """A small disk without free space."""

    def __init__(self, disk: SmallDisk) -> None:
        self._disk = disk

    def in_force(self) -> bool:
        return os.statvfs(self._disk.folder).f_bavail == 0

    def _begin(self) -> None:
        self._disk.fill()

    def _end(self) -> None:
        self._disk.free()


@contextmanager
def strace(thread: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Attaches strace to a thread, and detaches it afterwards."""
    tracer = subprocess.Popen(
        ["strace", *options, "-p", str(thread)], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert tracer.stderr is not None
    try:
        line = tracer.stderr.readline()
        assert "attached" in line, line
        yield tracer
    finally:
        with suppress(ProcessLookupError):
            tracer.send_signal(signal.SIGINT)
        tracer.stderr.close()
        tracer.wait(TAKES_S)


class SlowDisk(Effect):
    """A process whose write calls take longer, because strace delays them."""

    def __init__(self, pid: int, delay_ms: int) -> None:
        injection = f"inject={_WRITES}:delay_exit={delay_ms * 1_000}"
        self._pid, self._stack = pid, ExitStack()
        self._options = ("-f", "-o", "/dev/null", "-e", f"trace={_WRITES}", "-e", injection)

    def in_force(self) -> bool:
        status = Path(f"/proc/{self._pid}/status").read_text(encoding="utf-8")
        return "\nTracerPid:\t0\n" not in status

    def _begin(self) -> None:
        self._stack.enter_context(strace(self._pid, *self._options))

    def _end(self) -> None:
        self._stack.close()


class SteppedClock(Effect):
    """A wall clock that is ahead, in a process with `stepped_clock`."""

    def __init__(self, file: Path, ahead_s: float) -> None:
        self._file, self._ahead_s = file, ahead_s

    def in_force(self) -> bool:
        return self._file.exists() and float(self._file.read_text(encoding="ascii")) != 0

    def _begin(self) -> None:
        self._set(self._ahead_s)

    def _end(self) -> None:
        self._set(0)

    def _set(self, ahead_s: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(ahead_s), encoding="ascii")
        new.rename(self._file)


class Parted(Effect):
    """A partition: the link to a network namespace is down."""

    def __init__(self, link: str) -> None:
        self._link = link

    def in_force(self) -> bool:
        shown = subprocess.run(["ip", "link", "show", self._link], capture_output=True, text=True, check=True)
        return ",UP" not in shown.stdout.partition(">")[0]

    def _begin(self) -> None:
        self._set("down")

    def _end(self) -> None:
        self._set("up")

    def _set(self, state: str) -> None:
        subprocess.run(["ip", "link", "set", self._link, state], check=True)


class Delayed(Effect):
    """A relay that delays each piece, in both directions."""

    def __init__(self, tap: Tap, delay_ms: int) -> None:
        self._tap, self._delay_ms = tap, delay_ms

    def in_force(self) -> bool:
        return self._tap.delay_s > 0

    def _begin(self) -> None:
        self._tap.delay_s = self._delay_ms / 1_000

    def _end(self) -> None:
        self._tap.delay_s = 0.0
