"""Runs `sluice` in forks of a process that has loaded its modules, because importing them takes a second of CPU.

A fork calls `gateway.cli.main` like the installed program, with its own arguments, environment and session. Its
command line in /proc is that of the forking process. Tests about the program's own start run the real program.
"""

from __future__ import annotations

import asyncio
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
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from testkit.secrets import OUTPUTS

ROOT: Final = Path(__file__).resolve().parent.parent
_PROGRAM: Final = str(Path(sys.executable).with_name("sluice"))
_SAFE_PATH: Final = ["-P"] if sys.flags.safe_path else []
"""Where the tests import the compiled core, the gateway does as well."""
_MOST_BYTES: Final = 1 << 20
_DESCRIPTORS: Final = 3
_File: TypeAlias = BinaryIO | FileIO


class ForkedSluice:
    """One fork, with those parts of `subprocess.Popen` that tests use.

    Attributes:
        pid: id of the process, which leads a session and a group.
    """

    def __init__(self, pid: int, ended: int) -> None:
        """Refers to a running process.

        Args:
            pid: its id.
            ended: a pipe that gets the exit code.
        """
        self.pid = pid
        self._ended = ended
        self._code: int | None = None
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while the process runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(_PROGRAM, timeout or 0.0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._ended], [], [], timeout)[0]:
            with self._reading:  # the first of two threads reads it
                if self._code is None:
                    code = os.read(self._ended, 16)
                    if not code:
                        raise ChildProcessError("the process that forks has ended")
                    self._code = int(code)
        return self._code

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Sends SIGTERM, unless the process has ended."""
        self.send_signal(signal.SIGTERM)

    def release(self) -> None:
        """Gives up the ended process. From then on another process may get its id."""
        os.close(self._ended)


class ForkedProcess:
    """One fork, with those parts of `asyncio.subprocess.Process` that tests use.

    Attributes:
        pid: see `ForkedSluice`.
        stdout: its standard output.
        stderr: its standard error.
    """

    def __init__(self) -> None:
        """Nothing runs yet."""
        self.pid = 0
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        self._fork: ForkedSluice
        self._transports: list[asyncio.ReadTransport] = []

    async def start(self, arguments: list[str]) -> None:
        """Starts `sluice` with these arguments and this process's environment, without input."""
        with contextlib.ExitStack() as stack:
            output, errors = [await self._pipe(stack, stream) for stream in (self.stdout, self.stderr)]
            self._fork = await asyncio.to_thread(start_forked, arguments, errors, output)
        self.pid = self._fork.pid

    async def _pipe(self, stack: contextlib.ExitStack, stream: asyncio.StreamReader) -> FileIO:
        """The other end of a stream; the stack closes it here."""
        reading, writing = os.pipe()
        ours, theirs = os.fdopen(reading, "rb", 0), os.fdopen(writing, "wb", 0)
        stack.enter_context(theirs)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), ours)
        self._transports.append(transport)
        return theirs

    @property
    def returncode(self) -> int | None:
        """See `ForkedSluice.poll`."""
        return self._fork.poll()

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        self._fork.send_signal(number)

    def terminate(self) -> None:
        """Sends SIGTERM, unless the process has ended."""
        self._fork.terminate()

    async def wait(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        while (code := self.returncode) is None:  # noqa: ASYNC110 - a pipe, read by `poll`
            await asyncio.sleep(0.01)
        return code

    async def communicate(self) -> tuple[bytes, bytes]:
        """Waits for the end of the process and returns the rest of its output and errors."""
        told = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return told

    def release(self) -> None:
        """See `ForkedSluice.release`."""
        for each in self._transports:
            each.close()
        self._fork.release()


class _Nursery:
    """The process that forks; it is started for the first fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket  # while there is a process

    def start(self, arguments: list[str], errors: _File, output: _File | None) -> ForkedSluice:
        with self._lock:
            if self._process is None:
                self._process = self._begin()
            elif (code := self._process.poll()) is not None:
                raise ChildProcessError(f"the process that forks has ended with {code}")
            ended, report = os.pipe()
            environment = dict(os.environ)
            asked = json.dumps([[_PROGRAM, *arguments], environment, os.getcwd()]).encode()
            # In /proc a fork has the arguments and environment of the forking process.
            OUTPUTS.look_at("arguments and environment of a gateway", asked)
            files = [errors] if output is None else [errors, output]
            socket.send_fds(self._requests, [asked], [report, *(each.fileno() for each in files)])
            os.close(report)
            return ForkedSluice(int(self._requests.recv(16)), ended)

    def _begin(self) -> subprocess.Popen[bytes]:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return subprocess.Popen(
                [sys.executable, *_SAFE_PATH, "-m", "testkit.forked_sluice", str(theirs.fileno())],
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


def start_forked(arguments: list[str], errors: _File, output: _File | None = None) -> ForkedSluice:
    """Starts `sluice` with these arguments and this process's environment, without input.

    Args:
        arguments: the arguments after the program's name.
        errors: gets its standard error.
        output: gets its standard output; None: it is lost.
    """
    return _NURSERY.start(arguments, errors, output)


def stop_forking() -> None:
    """Ends the forking process. Running forks continue."""
    _NURSERY.stop()


def _nurse(requests: socket.socket) -> bool:
    """Forks until no more requests can come. Returns True in each fork, and False in the forking process.

    A fork that has ended stays a zombie until its test releases it. So its id, and that of its group, are not reused.
    """
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    forks: dict[int, tuple[int, int]] = {}
    ended: dict[int, int] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in forks:
                pid, report = forks.pop(descriptor)
                poll.unregister(descriptor)
                found = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
                os.close(descriptor)
                assert found is not None
                code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
                with contextlib.suppress(BrokenPipeError):  # its test has already released it
                    os.write(report, str(code).encode())
                ended[report] = pid
                poll.register(report, 0)  # reports the error when the other end is closed
                continue
            if descriptor in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                os.waitpid(ended.pop(descriptor), 0)
                continue
            message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, _DESCRIPTORS)
            if not message:
                return False
            report, *files = descriptors
            pid = os.fork()
            if not pid:
                requests.close()
                for other in (*forks, *(each for _, each in forks.values()), *ended, report):
                    os.close(other)
                _become(message, files)
                return True
            for each in files:
                os.close(each)
            forks[ends := os.pidfd_open(pid)] = (pid, report)
            poll.register(ends, select.POLLIN)
            requests.send(str(pid).encode())


def _become(message: bytes, files: list[int]) -> None:
    os.setsid()
    for each, standard in zip(files, (2, 1), strict=False):
        os.dup2(each, standard)
        os.close(each)
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
