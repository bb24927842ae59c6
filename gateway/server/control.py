"""The socket on which a gateway receives the requests of `sluice upgrade`. [io]

Only the gateway's user and root may use it: each side asks the kernel for the other's user. The name is in Linux'
abstract namespace and contains the admin port's address. So no file is left behind, and the socket is handed to the
next process like other ports.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

import structlog

_CREDENTIALS: Final = struct.Struct("3i")
_REQUEST: Final = b"upgrade\n"
_REQUEST_S: Final = 5.0
_BACKLOG: Final = 4
_RETRY_S: Final = 0.1

_log = structlog.get_logger("gateway.upgrade")


@dataclass(frozen=True, slots=True)
class UpgradeReport:
    """The outcome of an upgrade.

    Attributes:
        pid: of the process that serves now.
        error: why the upgrade failed and the old process still serves; None: the new process serves.
    """

    pid: int
    error: str | None = None


def control_name(host: str, port: int) -> str:
    """The name of the control socket of the gateway with this admin port."""
    return f"\0sluice-control-{host}:{port}"


class Control:
    """The gateway's side.

    Attributes:
        sock: the listening socket; None: there is none.
    """

    def __init__(self, upgrade: Callable[[str], Awaitable[UpgradeReport]]) -> None:
        """Nothing listens yet.

        Args:
            upgrade: replaces this process; its argument is the author.
        """
        self.sock: socket.socket | None = None
        self._upgrade = upgrade
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str, inherited: socket.socket | None = None) -> None:
        """Listen under this name; if that fails, log a warning and continue."""
        sock = inherited
        if sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(name)
                sock.listen(_BACKLOG)
            except OSError as exc:
                sock.close()
                _log.warning("control_socket_failed", error=exc.strerror)
                return
        sock.setblocking(False)
        self.sock = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._accept, sock)

    def give_away(self) -> socket.socket | None:
        """Accept no more; the caller owns the socket from now on."""
        given, self.sock = self.sock, None
        if given is not None:
            asyncio.get_running_loop().remove_reader(given.fileno())
        return given

    def stop(self) -> None:
        """Accept no more requests; those already accepted get their answers."""
        if (sock := self.give_away()) is not None:
            sock.close()

    async def answered(self) -> None:
        """Wait until all requests have their answers."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_REQUEST_S)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError:  # no descriptors: a waiting connection would wake the loop all the time
            loop = asyncio.get_running_loop()
            loop.remove_reader(listening.fileno())
            loop.call_later(_RETRY_S, self._listen_again, listening)
            return
        user = user_of(sock)
        if user not in (0, os.geteuid()) or len(self._tasks) >= _BACKLOG:
            _log.warning("upgrade_not_allowed", user=user)
            sock.close()
            return
        sock.setblocking(False)
        self._tasks.add(task := asyncio.get_running_loop().create_task(self._answer(sock, user)))
        task.add_done_callback(self._tasks.discard)

    def _listen_again(self, listening: socket.socket) -> None:
        if self.sock is listening:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)

    async def _answer(self, sock: socket.socket, user: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = await loop.sock_recv(sock, len(_REQUEST))
            if request == _REQUEST:
                report = await self._upgrade(f"sluice upgrade, user {user}")
                await loop.sock_sendall(sock, json.dumps(asdict(report)).encode() + b"\n")
        except OSError:  # the client does not wait for the answer
            pass
        finally:
            sock.close()


def ask_for_upgrade(name: str, *, within_s: float) -> UpgradeReport:
    """Request an upgrade through this control socket, and wait for its outcome.

    Args:
        name: see `control_name`.
        within_s: the timeout of each step.

    Raises:
        OSError: no gateway of this user answers.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(within_s)
        sock.connect(name)
        if os.geteuid() and user_of(sock) not in (0, os.geteuid()):
            raise PermissionError("what answers belongs to another user")
        sock.sendall(_REQUEST)
        text = b""
        while piece := sock.recv(4096):
            text += piece
    if not text:
        raise PermissionError("it ended without an answer: only its own user and root may ask")
    return UpgradeReport(**json.loads(text))


def user_of(sock: socket.socket) -> int:
    """The user of the process at the other end, according to the kernel."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
