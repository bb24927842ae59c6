"""The processes of one cluster, as the parent sees them: started, watched, restarted, ended. [io]

One process serves; after an upgrade the old one drains. Each process is watched by a descriptor (pidfd), because a
process that took over in an upgrade is no child of the parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
GOOD_S: Final = 60.0
"""A process that served for so long is restarted after the shortest wait."""
STALLED_S: Final = 30.0
"""A process whose loop hangs for so long is killed."""
_WATCH_AGAIN_S: Final = 1.0
_MOST_PID: Final = 1 << 22
"""The highest process id of Linux."""

_log = structlog.get_logger("gateway.clusters")


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state that the parent's next program takes over, as JSON.

    Attributes:
        pid: of the process that serves or starts; None: there is none.
        older: processes that drain.
        admin: descriptor of the cluster's admin socket.
        restarts: see `ClusterProcess.restarts`.
        control: see `ClusterProcess.control`.
        age_s: the time since the cluster was started.
        serves: see `ClusterProcess.serves`.
        not_ready: see `ClusterProcess.not_ready`.
    """

    pid: int | None
    older: list[int]
    admin: int
    restarts: int
    control: str
    age_s: float
    serves: bool
    not_ready: str | None


class ClusterProcess:
    """See the module.

    Attributes:
        name: of the cluster.
        admin: the socket of the cluster's admin port; it outlives the processes.
        address: the socket's name.
        control: the name of the socket for upgrade requests.
        pid: of the process that serves or starts; None: there is none now.
        restarts: how often a process ended by itself.
        serves: the process has reported that it serves.
        settled: a process has served, or ended, at least once.
        ended: set while no process serves or starts, after one has ended.
        removed: the file no longer has this cluster, and its processes end.
        since: when the cluster was started, in the loop's time.
        not_ready: why clients cannot be served now; None: they can.
    """

    def __init__(
        self,
        name: str,
        admin: socket.socket,
        start: Callable[[ClusterProcess], int],
        *,
        read_notices: Callable[[], object],
        stalled_s: float = STALLED_S,
    ) -> None:
        """Nothing runs yet.

        Args:
            name: of the cluster.
            admin: the listening socket.
            start: starts a process and returns its id; raises OSError.
            read_notices: calls `notice` for all lines that have come.
            stalled_s: see the constant.
        """
        self.name = name
        self.admin = admin
        self.address: bytes = admin.getsockname()
        self.control = ""
        self.pid: int | None = None
        self.restarts = 0
        self.serves = self.settled = self.removed = False
        self.ended = asyncio.Event()
        self.not_ready: str | None = "starting"
        self._start = start
        self._read_notices = read_notices
        self._stalled_s = stalled_s
        self._loop = asyncio.get_running_loop()
        self.since = self._loop.time()
        self._served_at: float | None = None
        self._fed_at: float | None = None
        self._failures = 0
        self._again: asyncio.TimerHandle | None = None
        self._ends: dict[int, int] = {}  # process id -> pidfd
        self._over = asyncio.Event()
        self._stopping = self._killed = False

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process."""
        self._again = None
        try:
            pid = self._start(self)
        except OSError as exc:
            _log.error("cluster_not_started", cluster=self.name, error=exc.strerror)
            self._start_later()
            return
        self._follow_main(pid)
        _log.info("cluster_started", cluster=self.name, pid=pid)

    def adopt(self, state: ClusterState) -> None:
        """Take over the processes that an earlier program of this process started."""
        self.restarts = state.restarts
        self.control = state.control
        self.since = self._loop.time() - state.age_s
        self.not_ready = state.not_ready
        self.settled = True
        for pid in state.older:
            self._follow(pid)
        if state.pid is None:
            self.start()
        else:
            self._follow_main(state.pid)
            self.serves = state.serves
            if self.serves:  # a starting process feeds no watchdog yet
                self._served_at = self._fed_at = self._loop.time()

    def state(self) -> ClusterState:
        """The state for the next program of this process."""
        older = [pid for pid in self._ends if pid != self.pid]
        return ClusterState(
            self.pid,
            older,
            self.admin.fileno(),
            self.restarts,
            self.control,
            self._loop.time() - self.since,
            self.serves,
            self.not_ready,
        )

    def stop(self) -> None:
        """Ask all processes to end; a second call ends them at once."""
        self._stopping = True
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._signal_all(signal.SIGTERM)
        self._look_if_over()

    def start_anew(self) -> None:
        """End a process that does not serve yet; its successor runs the program that is now installed."""
        if self.pid is not None and not self.serves:
            self._signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill all processes that have not ended."""
        self._killed = True
        self._signal_all(signal.SIGKILL)

    async def over(self) -> None:
        """Wait until no process is left after `stop`."""
        await self._over.wait()

    def let_go(self) -> None:
        """Stop watching the processes; the next program watches them."""
        if self._again is not None:
            self._again.cancel()
        for descriptor in self._ends.values():
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        self._ends.clear()

    # -- what comes ------------------------------------------------------------------------------------------

    def notice(self, pid: int, line: str) -> bool:
        """Take a line that a process sent; True: the process is one of this cluster's."""
        if pid != self.pid:
            return pid in self._ends
        key, _, value = line.partition("=")
        if key in ("READY", "WATCHDOG"):
            # Both mean that it serves: only then it feeds the watchdog, and READY may be lost.
            self._fed_at = self._loop.time()
            if not self.serves:
                self.serves = self.settled = True
                self._served_at = self._fed_at
        elif key == "MAINPID" and value.isdecimal() and 0 < int(value) <= _MOST_PID:
            _log.info("cluster_replaced", cluster=self.name, pid=int(value), before=pid)
            self._follow_main(int(value))
            if self._stopping:
                self._signal(self.pid, signal.SIGKILL if self._killed else signal.SIGTERM)
            self.serves = True
            self._served_at = self._fed_at = self._loop.time()
        return True

    def look(self) -> None:
        """Kill a process whose loop hangs. To be called about every second."""
        if self.pid is None or self._fed_at is None or self._stopping:
            return
        stood_s = self._loop.time() - self._fed_at
        if stood_s > self._stalled_s:
            _log.error("cluster_stalled", cluster=self.name, pid=self.pid, stood_s=round(stood_s))
            self._fed_at = None
            self._signal(self.pid, signal.SIGKILL)

    def was_away(self) -> None:
        """The parent itself hung, so it cannot judge which processes did: measure from now on."""
        if self._fed_at is not None:
            self._fed_at = self._loop.time()

    # -- processes -------------------------------------------------------------------------------------------

    def _follow_main(self, pid: int) -> None:
        self.pid = pid
        self.ended.clear()
        self.serves = False
        self._served_at = self._fed_at = None
        self._follow(pid)

    def _follow(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:  # the process has ended already
            self._loop.call_soon(self._process_ended, pid)
            return
        except OSError as exc:  # no descriptor is free
            _log.error("cluster_not_watched", cluster=self.name, pid=pid, error=exc.strerror)
            self._loop.call_later(_WATCH_AGAIN_S, self._follow, pid)
            return
        self._ends[pid] = descriptor
        self._loop.add_reader(descriptor, self._process_ended, pid)

    def _process_ended(self, pid: int) -> None:
        if (descriptor := self._ends.pop(pid, None)) is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)
        status = None
        with suppress(ChildProcessError):  # its parent is the process before it
            _, status = os.waitpid(pid, os.WNOHANG)
        self._read_notices()  # it may have named the process that took its place
        if pid == self.pid:
            self._main_ended(pid, status)
        self._look_if_over()

    def _main_ended(self, pid: int, status: int | None) -> None:
        served_s = 0.0 if self._served_at is None else self._loop.time() - self._served_at
        self.pid = None
        self.ended.set()
        self.serves, self.settled = False, True
        self._fed_at = self._served_at = None
        self.not_ready = "its process ended"
        if self._stopping:
            return
        self.restarts += 1
        self._failures = 0 if served_s >= GOOD_S else self._failures + 1
        code = None if status is None else os.waitstatus_to_exitcode(status)
        _log.error("cluster_ended", cluster=self.name, pid=pid, exit_code=code, wait_s=self._wait_s())
        self._start_later()

    def _wait_s(self) -> float:
        return min(FIRST_WAIT_S * 2.0 ** max(0, self._failures - 1), LONGEST_WAIT_S)

    def _start_later(self) -> None:
        self._again = self._loop.call_later(self._wait_s(), self.start)

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._ends:
            self._signal(pid, number)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, KeyError):  # it has ended
            # By descriptor: another process may have the process id by now.
            signal.pidfd_send_signal(self._ends[pid], number)

    def _look_if_over(self) -> None:
        if self._stopping and not self._ends:
            self._over.set()

    def summary(self) -> dict[str, Any]:
        """An entry in the index of all clusters."""
        return {
            "name": self.name,
            "ready": self.not_ready is None,
            "not_ready": self.not_ready,
            "pid": self.pid,
            "restarts": self.restarts,
        }
