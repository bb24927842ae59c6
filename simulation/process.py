"""A process of the simulated world: the asyncio loop, its sockets and its machine.

While a world runs, `machine` replaces the real sockets, clocks and threads by simulated ones. Compiled modules call
each other natively. So only names that they look up in a module at each call can be replaced.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import gateway.app
import gateway.net.channel
import gateway.net.listening
import gateway.net.peer_close
import gateway.quota_admin.store.interface
import gateway.runtime.slices
import gateway.server.admin_connections
import gateway.server.carrier
import gateway.server.control
import gateway.server.loop_watchdog
import gateway.server.merged_status
import gateway.server.nursery
import gateway.server.replacement
import gateway.server.status_routes
import gateway.server.worker
import gateway.server.workers
import gateway.upstream.keepalive
from simulation.network import End, File, Network, SimSocket, Transport
from simulation.world import Process, World


class Machine:
    """A computer with an address, on which processes run."""

    def __init__(self, network: Network, ip: str) -> None:
        self.network = network
        self.ip = ip


class HostedProcess(Process):
    """A process on a machine; see the module's docstring.

    Attributes:
        ip: address of its machine.
        on_transport: called with each transport of a connection over the network, and whether this side opened it.
        steps_ns: by how much its machine's wall clock was set.
    """

    def __init__(self, network: Network, name: str, ip: str, *, most_cost_ns: int = 60_000) -> None:
        super().__init__(network.world, name, most_cost_ns=most_cost_ns)
        self.network = network
        self.ip = ip
        self.on_transport: Callable[[Transport, SimSocket, bool], None] | None = None
        self._stopped = 0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the process in the middle of a turn: meanwhile it gets no turns."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()
        self._stopped += 1
        loop, current = asyncio.events._get_running_loop(), self.world.current
        asyncio.events._set_running_loop(None)
        self.world.current = None
        try:
            yield
        finally:
            self._stopped -= 1
            asyncio.events._set_running_loop(loop)
            self.world.current = current

    @property
    def in_turn(self) -> bool:
        """Whether it stands still in the middle of a turn, for example until its supervisor has answered."""
        return self._stopped > 0

    def _be_due(self, when_ns: int) -> None:
        if not self._stopped:
            super()._be_due(when_ns)

    def enter(self, call: Callable[..., object], *args: Any) -> Any:
        """See `Process`; must not be called while the process stands still."""
        assert not self._stopped
        return super().enter(call, *args)

    def kill(self) -> None:
        """Kills it like SIGKILL."""
        if self.alive:
            super().kill()
            self.network.process_ended(self)

    # -- asyncio ---------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """See asyncio."""
        await self._after(0.0005)
        names = self.network.names
        if not host:
            host = self.ip
        if host not in names and not host[0].isdigit():
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (names.get(host, host), port))]

    def _after(self, delay_s: float) -> asyncio.Future[None]:
        """A future that is done after a delay. Not a task, since some of the gateway's coroutines run without one."""
        future: asyncio.Future[None] = self.create_future()
        self.call_later(delay_s, lambda: None if future.done() else future.set_result(None))
        return future

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """See asyncio."""
        file = self.network.file(fd)
        file.process = self
        file.reader = (callback, args)
        if file.has_input:
            file.readable()

    def remove_reader(self, fd: Any) -> bool:
        """See asyncio."""
        return self._remove(fd, "reader")

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        """See asyncio."""
        file = self.network.file(fd)
        file.process = self
        file.writer = (callback, args)
        file.writable()

    def remove_writer(self, fd: Any) -> bool:
        """See asyncio."""
        return self._remove(fd, "writer")

    def _remove(self, fd: int, which: str) -> bool:
        file = self.network.files.get(fd)
        if file is None or getattr(file, which) is None:
            return False
        setattr(file, which, None)
        return True

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        """See asyncio."""
        assert sock is None
        done: asyncio.Future[End] = self.create_future()
        give_up = self.network.connect(
            self.ip,
            (self.network.names.get(host, host), port),
            partial(self.post, self._connected, done),
            partial(self.post, self._refused, done),
        )
        try:
            end = await done
        except asyncio.CancelledError:
            give_up()
            if done.done() and not done.cancelled() and done.exception() is None:
                done.result().abort()
            raise
        descriptor = self.network.open(File(self.network, end=end), self)
        return self._attach(protocol_factory, SimSocket(self.network, descriptor=descriptor), ours=True)

    def _connected(self, done: asyncio.Future[End], end: End) -> None:
        if done.done() or not self.alive:
            end.abort()
        else:
            done.set_result(end)

    def _refused(self, done: asyncio.Future[End], exc: OSError) -> None:
        if not done.done():
            done.set_exception(exc)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        """See asyncio."""
        await self._after(0)
        return self._attach(protocol_factory, sock, ours=False)

    async def create_unix_connection(
        self, protocol_factory: Any, path: Any = None, *, sock: Any = None, **_: Any
    ) -> Any:
        """See asyncio; of a socket that is connected."""
        assert path is None
        await self._after(0)
        return self._attach(protocol_factory, sock, ours=None)

    def _attach(self, protocol_factory: Any, sock: SimSocket, *, ours: bool | None) -> Any:
        protocol = protocol_factory()
        transport = Transport(self, sock, protocol)
        if ours is not None and self.on_transport is not None:
            self.on_transport(transport, sock, ours)
        transport.start()
        return transport, protocol


class _NoThread:
    """A thread that does nothing, because its work is not simulated."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def start(self) -> None: ...

    def join(self, _timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool:
        return False


def _in_place_of(module: ModuleType, **replaced: Any) -> SimpleNamespace:
    """A module with some of its names replaced."""
    return SimpleNamespace(**{**vars(module), **replaced})


_SOCKETS: Final = (
    gateway.net.listening,
    gateway.server.admin_connections,
    gateway.server.control,
    gateway.server.nursery,
    gateway.server.replacement,
    gateway.server.worker,
    gateway.server.workers,
    gateway.upstream.keepalive,
)
_CLOCKS: Final = (
    gateway.runtime.slices,
    gateway.server.carrier,
    gateway.server.merged_status,
    gateway.server.status_routes,
)


@contextmanager
def machine(world: World, network: Network, kill: Callable[[int], None]) -> Iterator[None]:
    """Runs the gateway's code in a world.

    Args:
        world: its clock is used.
        network: its sockets are used.
        kill: replaces kill(2); gets the id of a process.
    """

    def cpu_ns() -> int:
        process = world.current
        return world.now_ns if process is None else process.cpu_clock_ns()

    def cpu_s() -> float:
        return cpu_ns() / 1e9

    def wall_ns() -> int:
        process = world.current
        return (world.now_ns if process is None else process.local_ns) + world.wall_offset_ns

    def new_socket(
        family: int = socket.AF_INET,
        type: int = socket.SOCK_STREAM,
        proto: int = 0,
        fileno: int | None = None,
    ) -> SimSocket:
        return SimSocket(network, family, type, descriptor=-1 if fileno is None else fileno)

    sockets = _in_place_of(
        socket,
        socket=new_socket,
        socketpair=network.socketpair,
        send_fds=network.send_fds,
        recv_fds=network.recv_fds,
    )
    clock = _in_place_of(
        time, perf_counter=cpu_s, perf_counter_ns=cpu_ns, thread_time=cpu_s, monotonic=cpu_s, time_ns=wall_ns
    )
    system = _in_place_of(
        os,
        kill=lambda pid, _number: kill(pid),
        getpid=lambda: world.current.pid if world.current is not None else 0,
    )
    quiet = SimpleNamespace(collect=lambda: 0, freeze=lambda: None)
    replaced: list[Any] = [mock.patch.object(module, "socket", sockets) for module in _SOCKETS]
    replaced += [mock.patch.object(module, "time", clock) for module in _CLOCKS]
    replaced += [
        mock.patch.object(gateway.net.listening, "PlainSocket", new_socket),
        mock.patch.object(gateway.server.worker, "PlainSocket", new_socket),
        mock.patch.object(gateway.server.replacement, "PlainSocket", new_socket),
        mock.patch.object(gateway.net.channel, "perf_counter_ns", cpu_ns),
        mock.patch.object(gateway.server.worker, "os", system),
        mock.patch.object(gateway.server.workers, "os", system),
        mock.patch.object(gateway.app, "gc", quiet),
        mock.patch.object(gateway.app, "freeze_survivors", return_value=None),
        mock.patch.object(
            gateway.app, "sys", _in_place_of(__import__("sys"), setswitchinterval=lambda _s: None)
        ),
        # Functions written in C, and names that compiled modules look up at each call.
        mock.patch.object(time, "time_ns", wall_ns),
        mock.patch.object(fcntl, "ioctl", network.ioctl),
        mock.patch.object(select, "poll", network.poll),
        mock.patch.object(
            gateway.server.loop_watchdog, "threading", _in_place_of(threading, Thread=_NoThread)
        ),
        mock.patch.object(gateway.server.loop_watchdog, "time", clock),
    ]
    for each in replaced:
        each.start()
    try:
        yield
    finally:
        for each in reversed(replaced):
            each.stop()
