"""Processes pinned to a core, and their CPU time and memory as the kernel reports them."""

import contextlib
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

RUN_SECONDS: Final = 700.0
QUICK_SECONDS: Final = 85.0
_PORTS: Final = range(10_000, 20_000)
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class ProcessDied(Exception):
    """A process of the benchmark ended too early; the text contains the end of its log."""


class Budget:
    """Ends a run early on a machine that is too busy to finish all rounds in time."""

    def __init__(self, seconds: float) -> None:
        self._began = self._round_began = time.monotonic()
        self._deadline = self._began + seconds

    def rounds(self, wanted: int) -> Iterator[int]:
        """Numbers of rounds, until they are all done or the next one would last too long."""
        for number in range(wanted):
            now = time.monotonic()
            if number and now + (now - self._round_began) > self._deadline:
                print(f"out of time after {number} rounds", file=sys.stderr)
                return
            self._round_began = now
            yield number


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores of the proxy and of the load."""

    load: int
    proxy: int

    def take_load(self) -> None:
        """Move this process, and so its later children, to the load's core."""
        os.sched_setaffinity(0, {self.load})


def choose_cores() -> Cores:
    """Two cores of those this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == 1:
        print("only one core: proxy and load share it, and the numbers say little", file=sys.stderr)
    return Cores(load=allowed[0], proxy=allowed[-1])


def free_port(*, block: int = 1) -> int:
    """The first of `block` consecutive TCP ports of the loopback address on which no process listens.

    They are below the kernel's ports for outgoing connections, of which the idle rows use thousands.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with ExitStack() as stack:
            try:
                for number in range(port, port + block):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
        return port
    raise OSError("no free ports")


def allow_many_descriptors() -> None:
    """Raise this process's limit, which its children inherit: the idle rows use thousands of sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PinnedProcess:
    """A child on one core, which dies with its parent."""

    def __init__(self, argv: Sequence[str], *, core: int, log: Path, piped: bool = False) -> None:
        """Starts the process.

        Args:
            argv: the program and its arguments.
            core: the only core it may run on.
            log: file that takes stderr, and stdout unless piped.
            piped: keep pipes to stdin and from stdout.
        """
        self.log = log
        self.argv = list(argv)
        with log.open("ab") as sink:
            self._popen = subprocess.Popen(
                # Both exec in place, so that the pid is the program's own.
                ["setpriv", "--pdeathsig", "KILL", "taskset", "-c", str(core), *argv],
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else sink,
                stderr=sink,
                start_new_session=True,
            )
        self.pid = self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    def died(self) -> ProcessDied:
        """An error that contains the end of the process's log."""
        return ProcessDied(f"{' '.join(self.argv)} ended with {self._popen.poll()}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Stdin and stdout of a piped process."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        return self._popen.stdin, self._popen.stdout

    def cpu_s(self) -> float:
        """User and system seconds since the process started, all threads.

        The process's CPU clock: the same count that utime + stime of ``/proc/PID/stat`` round to ticks of 10 ms.
        """
        # Linux builds the clock's id from the pid (clock_getcpuclockid); 2 selects the scheduler's exact count.
        return time.clock_gettime((~self.pid << 3) | 2)

    def stat_cpu_s(self) -> tuple[float, float]:
        """User and system seconds from ``/proc/PID/stat``, for the split and as a cross-check."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S

    def rss_bytes(self) -> int:
        """Resident memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise self.died()

    def stop(self, *, patience_s: float = 5.0) -> None:
        """Ask the process to end, then kill it."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(patience_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def wait(self, timeout_s: float) -> int:
        """Waits for the process to end by itself and returns its status."""
        try:
            return self._popen.wait(timeout_s)
        finally:
            self.stop()


def machine_busy_s() -> tuple[float, float]:
    """Seconds all cores were busy, and seconds the hypervisor took from them, since boot."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S
