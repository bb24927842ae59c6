"""The new process of an upgrade: what it receives from the old one. `upgrade.py` has the order. [io]

If the old process ends before everything was handed over, this one serves with what it received.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

import structlog

from gateway.net.accepted_socket import AcceptedSocket
from gateway.server.carried import STATES, USE, USER_COUNTS, CarriedCounts, connection_rates, messages
from gateway.server.forwarded_changes import MODE, RELOAD
from gateway.server.handover_link import DESCRIPTOR, HandoverLink
from gateway.server.replacement import Replaceable, waiting_socket
from gateway.server.start_error import StartError
from gateway.upstream.topology import Address
from quotas.connections import CarriedConnections

_ANSWER_S: Final = 30.0
_PEER: Final = struct.Struct("3i")  # process, user, group
_MOST_REASON: Final = 2_000
_inherited: list[socket.socket] = []

_log = structlog.get_logger("gateway.upgrade")


class Predecessor:
    """See the module.

    Attributes:
        draining: the old process still has connections.
        sockets: the listening sockets, by kind and address.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Nothing is sent yet; needs a running loop.

        Args:
            sock: this end of the link.
        """
        self.draining = True
        self._pid = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[0]
        self.sockets: dict[tuple[str, Address], list[socket.socket]] = defaultdict(list)
        self._link = HandoverLink(sock, self._received, self._lost)
        self._came: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._gone = asyncio.Event()
        self._gateway: Replaceable | None = None
        self._states: list[Any] = []
        self._rates: list[Any] = []
        self._mode: list[str] = []
        self._reloaded = self._stands_there = False
        self._steps: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, AcceptedSocket] = {}
        self._counts, self._user_counts = CarriedCounts(2), CarriedCounts(1)
        self._serves = False
        self._lent_writable = False

    async def begin(self) -> None:
        """Get the listening sockets."""
        self._link.open()
        self._link.send("hello", os.getpid())
        await self._until("sockets_end")

    async def borrow_store(self) -> None:
        """Have the old process close the store's file."""
        self._link.send("lend")
        await self._until("lent")
        if self._gone.is_set():
            await self._ended()

    async def _ended(self) -> None:
        """Wait for the end of a killed process: its link is closed a moment before its files."""
        try:
            ends = os.pidfd_open(self._pid)
        except OSError:
            return  # it has ended
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(ends, ended.set)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await ended.wait()
        except TimeoutError:
            _log.warning("predecessor_does_not_end", old_pid=self._pid, new_pid=os.getpid())
        finally:
            loop.remove_reader(ends)
            os.close(ends)

    def store_lost(self, gateway: Replaceable) -> str | None:
        """Why this process cannot change quotas although the old one could; None: there is no such difference."""
        store = gateway.store
        return store.read_only if store is not None and self._lent_writable else None

    async def take_over(self, gateway: Replaceable) -> dict[str, AcceptedSocket]:
        """Have the old process stop accepting, and take over its state.

        Args:
            gateway: this process's gateway, which is ready to serve.

        Returns:
            Accepted sockets that still wait, by listener.
        """
        self._gateway = gateway
        await self._follow(gateway)  # early, as it may take a while: the old process still serves
        self._link.send("ready")
        await self._until("go")
        gateway.carrier.take_states(self._states)
        gateway.connections.take_over(connection_rates(self._rates), now_ms=gateway.now_ms())
        await self._follow(gateway)
        self._stands_there = True
        self._states, self._rates = [], []
        return self._waiting

    async def _follow(self, gateway: Replaceable) -> None:
        """Put changes in force that the old process has made since this one read the file."""
        reloaded, self._reloaded = self._reloaded, False
        if reloaded:
            await gateway.changes.take(RELOAD, [])
        await gateway.changes.take_mode(self._mode)

    def _changed(self) -> None:
        if self._gateway is not None and self._stands_there:
            self._steps.add(step := asyncio.get_running_loop().create_task(self._follow(self._gateway)))
            step.add_done_callback(self._steps.discard)

    def serving(self) -> None:
        """Report to the old process that this one serves, and begin to send usage and changes."""
        assert self._gateway is not None
        self._serves = True
        if self.draining:
            self._gateway.carrier.tell_use(self._tell_use)
            self._gateway.changes.tell(self._link.send_rows)
        self._link.send("serving", os.getpid())

    async def main(self) -> None:
        """Wait until this process is the main process of the service."""
        await self._until("main", None)
        if self._gateway is not None:  # a version that sends no "left" has left the fleet too
            self._gateway.carrier.earlier_left_fleet()

    def stop(self) -> None:
        """Close the link, because this process ends."""
        if self._serves:  # otherwise `tell_failure` still needs the link
            self._link.close()

    def _tell_use(self, rows: list[Any]) -> None:
        for kind, some in messages("use", rows):
            self._link.send_rows(kind, some, only_now=True)

    async def _until(self, what: str, within_s: float | None = _ANSWER_S) -> None:
        waits = [asyncio.ensure_future(each.wait()) for each in (self._came[what], self._gone)]
        try:
            done, _ = await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        if not done:
            raise StartError(
                f'the process to replace has sent no "{what}" within {_ANSWER_S:g} s; it keeps serving, and its log '
                "says how far the upgrade came"
            )

    def _received(self, what: str, body: Any, descriptors: Sequence[int]) -> None:
        if what == "socket":
            kind, host, port = body
            self.sockets[kind, (host, port)] += [socket.socket(fileno=each) for each in descriptors]
        elif what in STATES:
            self._states += body
        elif what == "rates":
            self._rates += body
        elif what == MODE:
            self._mode = body
            self._changed()
        elif what == RELOAD:
            self._reloaded = True
            self._changed()
        elif what == "waiting":
            name, accepted = waiting_socket(body, descriptors[0])
            self._waiting[name] = accepted
        elif what == "counts":
            self._carry(CarriedConnections(*self._counts.take(body)))
        elif what == USER_COUNTS:
            self._carry_users(*self._user_counts.take(body))
        elif what in USE:
            assert self._gateway is not None
            self._gateway.carrier.take_use(body)
        elif what == "lent":
            self._lent_writable = body is True
            self._came[what].set()
        elif what == "left":
            assert self._gateway is not None
            self._gateway.carrier.earlier_left_fleet()
        else:
            self._came[what].set()

    def _carry(self, counts: CarriedConnections) -> None:
        if self._gateway is not None:
            self._gateway.connections.carry(counts)
            for listener in self._gateway.listeners.values():
                listener.slot_freed()

    def _carry_users(self, by_user: Mapping[str, int]) -> None:
        if self._gateway is not None:
            self._gateway.users.carry(by_user)

    def _lost(self) -> None:
        self.draining = False
        self._gone.set()
        self._carry(CarriedConnections({}, {}))
        self._carry_users({})
        if self._gateway is not None:
            self._gateway.carrier.stop()
            self._gateway.changes.stop()
        _log.info("predecessor_gone", old_pid=self._pid, new_pid=os.getpid())


def predecessor_socket(environment: MutableMapping[str, str]) -> socket.socket | None:
    """The link to the process that this one replaces; None: this process was started by hand."""
    descriptor = environment.pop(DESCRIPTOR, None)
    if descriptor is None:
        return None
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)
    # Forked workers must not keep it open when this process dies.
    os.register_at_fork(after_in_child=sock.close)
    _inherited.append(sock)
    return sock


def tell_failure(environment: MutableMapping[str, str], reason: str) -> None:
    """Send the reason to the process that this one cannot replace; does nothing if there is none."""
    predecessor_socket(environment)
    for sock in _inherited:
        with contextlib.suppress(OSError):
            sock.send(json.dumps(["failed", reason[:_MOST_REASON]]).encode())
