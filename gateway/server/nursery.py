"""The nursery: a process with one thread and all modules loaded, which forks workers. [io]

The nursery is forked before the supervisor has a loop, a thread or a port. A fork of the supervisor itself would copy
locks that other threads hold, the listening sockets, and clients' connections on their way to another worker.
Importing the modules takes 1.8 s, a fork milliseconds, and forked processes share the modules' memory.

A worker is a child of the nursery, so the supervisor detects a worker's end by its sockets.

When the supervisor is gone, workers drain by themselves. The nursery lives until the last of them has ended. It kills
workers that exceed the longest drain, so that a worker that hangs does not stay forever.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

IGNORED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""The nursery and workers ignore these: they reach the whole group or unit, and the supervisor handles them."""

_ANSWER_S: Final = 5.0
"""How long the nursery may take to fork; it has no other work."""

_SOCKETS: Final = 3
_REQUEST: Final = struct.Struct("!iI")
"""The number of the worker to fork, or `_NONE`, and the longest drain in ms."""
_NONE: Final = -1
_REPLY: Final = struct.Struct("!i")

_END_S: Final = 5.0
"""How long a worker may take to end after its drain."""
_LOOK_S: Final = 0.1

_log = structlog.get_logger("gateway.workers")


@dataclass(frozen=True, slots=True)
class WorkerSockets:
    """The sockets between a worker and its supervisor; each has its own ends.

    Attributes:
        handover: whole messages, each with an accepted socket.
        link: a stream: see `gateway.server.link`.
        asking: a stream with blocking questions of the worker.
    """

    handover: socket.socket
    link: socket.socket
    asking: socket.socket

    @classmethod
    def pair(cls) -> tuple[WorkerSockets, WorkerSockets]:
        """Both ends."""
        pairs = [
            socket.socketpair(socket.AF_UNIX, kind)
            for kind in (socket.SOCK_SEQPACKET, socket.SOCK_STREAM, socket.SOCK_STREAM)
        ]
        return cls(*(ours for ours, _ in pairs)), cls(*(theirs for _, theirs in pairs))

    @property
    def all(self) -> tuple[socket.socket, ...]:
        """All three."""
        return self.handover, self.link, self.asking

    def close(self) -> None:
        """Close this end."""
        for sock in self.all:
            sock.close()


WorkerMain = Callable[[int, WorkerSockets], None]
"""Runs a worker, given its number and its sockets."""


class Nursery:
    """The supervisor's end.

    Attributes:
        pid: of the nursery process.
        gone: it forks no more. The supervisor has threads and ports by now, so it cannot start another nursery.
    """

    def __init__(self, work: WorkerMain, *, longest_drain_ms: int) -> None:
        """Fork the nursery. Must be called while the process has one thread and no loop.

        Args:
            work: run by each worker, in a process of its own.
            longest_drain_ms: see `set_longest_drain`.
        """
        self._longest_drain_ms = longest_drain_ms
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        gc.freeze()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._sock.close()
            _in_child(lambda: _nurse(theirs, work))
        theirs.close()
        self._sock.settimeout(_ANSWER_S)
        self.gone = False

    def fork(self, number: int, sockets: WorkerSockets) -> int:
        """Fork a worker.

        Args:
            number: for its name in logs and metrics.
            sockets: the worker's end; closed here.

        Returns:
            The worker's process id.

        Raises:
            OSError: the nursery is gone, or the system can't fork.
        """
        try:
            if self.gone:
                raise OSError("the process that forks workers is gone")
            descriptors = [sock.fileno() for sock in sockets.all]
            socket.send_fds(self._sock, [_REQUEST.pack(number, self._longest_drain_ms)], descriptors)
            reply = self._sock.recv(_REPLY.size)
        except (TimeoutError, ConnectionError):
            self._give_up()  # a late reply would be taken for the next one
            raise
        finally:
            sockets.close()
        if len(reply) < _REPLY.size:
            self._give_up()
            raise OSError("the process that forks workers is gone")
        (pid,) = _REPLY.unpack(reply)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def set_longest_drain(self, longest_drain_ms: int) -> None:
        """Set how long workers may drain after this process is gone; then the nursery kills them."""
        self._longest_drain_ms = longest_drain_ms
        if not self.gone:
            try:
                self._sock.send(_REQUEST.pack(_NONE, longest_drain_ms))
            except OSError:
                self._give_up()

    def stop(self) -> None:
        """End the nursery; remaining workers were asked to end before."""
        self.set_longest_drain(0)
        self._sock.close()
        if self.gone:
            # It may hang. It was not reaped yet, so the process id is still its own.
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _give_up(self) -> None:
        self.gone = True
        self._sock.close()


def _in_child(live: Callable[[], None]) -> None:
    """Run the rest of a forked process; never returns into the code that forked it."""
    status = 1
    try:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        live()
        status = 0
    except BaseException:  # noqa: BLE001  (nothing above may run twice)
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _nurse(requests: socket.socket, work: WorkerMain) -> None:
    workers: dict[int, int] = {}  # process id -> number
    longest_drain_ms = 0
    # SIGCHLD is blocked and not ignored: `_await_end` waits for it, also if it came earlier.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST.size, _SOCKETS)
        except ConnectionError:
            message, descriptors = b"", []
        if not message:
            _await_end(workers, longest_drain_ms / 1000 + _END_S)
            return
        number, longest_drain_ms = _REQUEST.unpack(message)
        _forget_ended(workers)
        if number == _NONE:
            continue
        received = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        if len(received) < _SOCKETS:  # this process has no free descriptors
            for sock in received:
                sock.close()
            _reply(requests, -errno.EMFILE)
            continue
        sockets = WorkerSockets(*received)
        try:
            pid = os.fork()
        except OSError as exc:
            pid = -(exc.errno or 1)
        if not pid:
            requests.close()
            _in_child(lambda: _work(work, number, sockets))  # noqa: B023  (ends before the next turn)
        sockets.close()
        if pid > 0:
            workers[pid] = number
        _reply(requests, pid)


def _reply(requests: socket.socket, pid: int) -> None:
    with suppress(ConnectionError):  # the supervisor is gone, which the next turn detects
        requests.send(_REPLY.pack(pid))


def _work(work: WorkerMain, number: int, sockets: WorkerSockets) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    work(number, sockets)


def _forget_ended(workers: dict[int, int]) -> None:
    """Reap workers that have ended. Until then the system does not reuse their process ids."""
    while workers:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        workers.pop(pid, None)


def _await_end(workers: dict[int, int], within_s: float) -> None:
    """Wait until all workers have ended; kill those that have not by then."""
    # Counts looks instead of using a clock: time in which this process itself was stopped does not count.
    looks = round(within_s / _LOOK_S)
    _forget_ended(workers)
    while workers and looks > 0:
        if signal.sigtimedwait([signal.SIGCHLD], _LOOK_S) is None:
            looks -= 1
        _forget_ended(workers)
    for pid, number in workers.items():
        _log.error("worker_killed", worker=number, pid=pid, reason="it has not ended after its supervisor")
        os.kill(pid, signal.SIGKILL)
    for pid in workers:
        os.waitpid(pid, 0)
