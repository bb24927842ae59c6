"""The program `sluice` as forks of a process that has its modules loaded: importing them takes a second of CPU.

A fork calls `gateway.cli.main`, as the installed program does, with arguments, environment and session of its own.
Its command line in /proc is that of the process here. Tests about the program's own start run the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final

from testkit.secrets import OUTPUTS

ROOT: Final = Path(__file__).resolve().parent.parent
_PROGRAM: Final = str(Path(sys.executable).with_name("sluice"))
_MOST_BYTES: Final = 1 << 20
_DESCRIPTORS: Final = 2


class ForkedSluice:
    """One of the forks, with the part of `subprocess.Popen` that tests use.

    Attributes:
        pid: of the process, which leads a session and a group.
    """

    def __init__(self, pid: int, ended: int) -> None:
        """The process runs.

        Args:
            pid: its id.
            ended: a pipe that gets the exit code.
        """
        self.pid = pid
        self._ended = ended
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None as long as it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(_PROGRAM, timeout or 0.0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._ended], [], [], timeout)[0]:
            code = os.read(self._ended, 16)
            os.close(self._ended)
            if not code:
                raise ChildProcessError("the process that forks has ended")
            self._code = int(code)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            # It may have ended since, and its code may be on its way: there is no zombie that waits for us.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)


class _Nursery:
    """The process that forks; made when the first fork is asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = socket.socket()

    def start(self, arguments: list[str], errors: BinaryIO) -> ForkedSluice:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._begin()
            ended, report = os.pipe()
            environment = dict(os.environ)
            asked = json.dumps([[_PROGRAM, *arguments], environment, os.getcwd()]).encode()
            # In /proc a fork has those of the process that forks.
            OUTPUTS.look_at("arguments and environment of a gateway", asked)
            socket.send_fds(self._requests, [asked], [errors.fileno(), report])
            os.close(report)
            return ForkedSluice(int(self._requests.recv(16)), ended)

    def _begin(self) -> None:
        self._requests.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testkit.forked_sluice", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def stop(self) -> None:
        with self._lock:
            if self._process is not None:
                self._requests.close()
                self._process.wait()
                self._process = None


_NURSERY: Final = _Nursery()


def start_forked(arguments: list[str], errors: BinaryIO) -> ForkedSluice:
    """Start `sluice` with these arguments and this process's environment; without an input and an output.

    Args:
        arguments: after the program's name.
        errors: gets what it writes to standard error.
    """
    return _NURSERY.start(arguments, errors)


def stop_forking() -> None:
    """End the process that forks; forks that still run are not touched."""
    _NURSERY.stop()


def _nurse(requests: socket.socket) -> bool:
    """Forks until no one can ask any more; returns True in each fork, False in this process."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    forks: dict[int, tuple[int, int]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in forks:
                pid, report = forks.pop(descriptor)
                poll.unregister(descriptor)
                os.write(report, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(report)
                os.close(descriptor)
                continue
            message, (errors, report) = _received(requests)
            if not message:
                return False
            pid = os.fork()
            if not pid:
                requests.close()
                for ended, (_, other) in forks.items():
                    os.close(ended)
                    os.close(other)
                os.close(report)
                _become(message, errors)
                return True
            os.close(errors)
            forks[ended := os.pidfd_open(pid)] = (pid, report)
            poll.register(ended, select.POLLIN)
            requests.send(str(pid).encode())


def _received(requests: socket.socket) -> tuple[bytes, tuple[int, int]]:
    message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, _DESCRIPTORS)
    return message, (descriptors[0], descriptors[1]) if message else (-1, -1)


def _become(message: bytes, errors: int) -> None:
    os.setsid()
    os.dup2(errors, 2)
    os.close(errors)
    sys.argv, environment, folder = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


if __name__ == "__main__":
    from gateway.cli.main import main, make_parser
    from gateway.cli.tunables import TUNABLES, start_with_tunables

    start_with_tunables()
    make_parser()
    import_module("gateway.app")
    tunables = os.environ.get(TUNABLES)
    if _nurse(socket.socket(fileno=int(sys.argv[1]))):
        if tunables is not None:
            os.environ[TUNABLES] = tunables
        sys.exit(main())
