"""Notifies systemd: sd_notify(3) over its datagram socket. [io]

It sends only if systemd has set NOTIFY_SOCKET. Failures must neither delay nor end the gateway.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

import structlog

_AGAIN_S: Final = 0.02
_AGAIN_FOR_S: Final = 10.0
"""How long a message is sent again while the receiver's queue is full."""
_READY: Final = "READY=1"

_log = structlog.get_logger("gateway.systemd")


class Notify:
    """The messages of one process."""

    def __init__(self, environment: MutableMapping[str, str], *, successor: bool = False) -> None:
        """Nothing is sent yet.

        Args:
            environment: of the process.
            successor: this process replaces another one, for which systemd has set the watchdog.
        """
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: dict[str, float] = {}  # messages that are sent again, each until a time of the loop
        self._again: asyncio.TimerHandle | None = None
        self._named: asyncio.Event | None = None  # if the name of the next main process did not fit at once
        watched = successor or environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = environment.get("WATCHDOG_USEC", "")
        self._watchdog_s = int(usec) / 1e6 if watched and usec.isdigit() else 0.0
        if self._address:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def ready(self) -> None:
        """The gateway serves: at the start, after a reload, or in place of another process. Feeds the watchdog."""
        self._send_patiently(_READY)
        if self._timer is None:
            self._feed()

    def reloading(self) -> None:
        """A reload begins."""
        self._unsent.pop(_READY, None)  # it would end this reload
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={usec}")

    def stopping(self) -> None:
        """The gateway ends."""
        self._unsent.pop(_READY, None)
        self._send("STOPPING=1")

    def replaced_by(self, pid: int) -> None:
        """Another process is the service's main process from now on; systemd ignores later messages of this one.

        Without this message the end of this process would count as that of the service. The queue of a receiver that
        stood still is full, so it is sent again; see `sent`.
        """
        sock, self._sock = self._sock, None
        self.close()
        if sock is not None:
            self._name_main(sock, pid)

    def _name_main(self, sock: socket.socket, pid: int) -> None:
        message = f"MAINPID={pid}"
        error = self._error_of(sock, message)
        if isinstance(error, BlockingIOError):
            self._named = self._named or asyncio.Event()
            asyncio.get_running_loop().call_later(_AGAIN_S, self._name_main, sock, pid)
            return
        if self._named is not None:
            self._named.set()
        sock.close()
        if error is not None:
            _log.warning("systemd_not_told", error=error.strerror, message=message)

    async def sent(self) -> None:
        """Wait until nothing is to be sent again, for at most ten seconds. To be called before the process ends."""
        if self._named is None:
            return
        try:
            async with asyncio.timeout(_AGAIN_FOR_S):
                await self._named.wait()
        except TimeoutError:
            _log.warning("systemd_not_told", error="the queue is full", message="MAINPID")

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._unsent.clear()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _feed(self) -> None:
        # A loop that hangs does not feed the watchdog.
        if self._watchdog_s and self._sock is not None:
            self._send_patiently("WATCHDOG=1")
            self._timer = asyncio.get_running_loop().call_later(self._watchdog_s / 3, self._feed)

    def _send(self, text: str) -> None:
        if self._sock is not None and (error := self._error_of(self._sock, text)) is not None:
            _log.warning("systemd_not_told", error=error.strerror, message=text.split("\n")[0])

    def _send_patiently(self, text: str) -> None:
        """Send a message; send it again while the receiver's queue is full, for at most ten seconds."""
        if self._sock is not None:
            self._unsent[text] = asyncio.get_running_loop().time() + _AGAIN_FOR_S
            self._send_unsent()

    def _send_unsent(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        assert self._sock is not None
        loop = asyncio.get_running_loop()
        for text, until in [*self._unsent.items()]:
            error = self._error_of(self._sock, text)
            if isinstance(error, BlockingIOError) and loop.time() < until:
                self._again = loop.call_later(_AGAIN_S, self._send_unsent)
                return
            del self._unsent[text]
            if error is not None:
                _log.warning("systemd_not_told", error=error.strerror, message=text)

    def _error_of(self, sock: socket.socket, text: str) -> OSError | None:
        """Send a message; why that failed."""
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            sock.sendto(text.encode(), address)
        except OSError as exc:
            return exc
        return None
