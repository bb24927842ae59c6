"""The supervisor's side of workers: starts them, gives them connections, replaces dead ones. [io]

A connection that was admitted goes to the worker with the fewest open ones. Its place is given back when the worker
reports its end, or dies. What has to be in force in all workers is asked of all of them at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import structlog

from gateway.net.accepted_socket import AcceptedSocket
from gateway.runtime.clock import NowMs
from gateway.server.link import Link
from gateway.server.nursery import Nursery, WorkerSockets
from gateway.server.start_error import StartError
from gateway.server.worker import handover_message

ACKNOWLEDGED_S: Final = 2.0
"""How long an answer waits for workers to have a change in force."""

SILENT_MS: Final = 1_000
"""A worker that has given no sign of life for so long gets no connections while others do."""

_START_S: Final = 30.0
_END_S: Final = 5.0
_AGAIN_S: Final = 1.0
_SEND_AGAIN_S: Final = 0.05
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ECONNREFUSED})

_log = structlog.get_logger("gateway.workers")


class _Places(Protocol):
    def release(self, listener: str, ip: str) -> None: ...


class Worker:
    """One worker, as the supervisor sees it.

    Attributes:
        number: its name in logs and metrics; that of the one it replaces.
        pid: the process.
        link: to it.
        places: its open connections, by listener and address.
        connections: how many.
        serves: it takes connections.
        follows: it has the quotas of the store, and is to have what changes of them.
        heard_ms: its last sign of life.
    """

    def __init__(self, number: int, pid: int, sockets: WorkerSockets, link: Link, asked: Link) -> None:
        self.number = number
        self.pid = pid
        self.link = link
        self.asked = asked
        self.places: Counter[tuple[str, str]] = Counter()
        self.connections = 0
        self.serves = False
        self.follows = False
        self.heard_ms = 0
        self._handover = sockets.handover
        self._handover.setblocking(False)
        self._unsent: deque[tuple[bytes, AcceptedSocket]] = deque()
        self._retry: asyncio.TimerHandle | None = None

    def hand_over(self, listener: str, accepted: AcceptedSocket) -> None:
        """It is the worker's from now on; this process closes its copy."""
        self.places[listener, accepted.ip] += 1
        self.connections += 1
        self._unsent.append((handover_message(listener, accepted), accepted))
        if len(self._unsent) == 1:
            self._send()

    def ended(self, listener: str, ip: str) -> None:
        """One of its connections has."""
        self.connections -= 1
        self.places[listener, ip] -= 1
        if not self.places[listener, ip]:
            del self.places[listener, ip]

    def close(self) -> None:
        """Release everything but its places."""
        if self._retry is not None:
            self._retry.cancel()
        asyncio.get_running_loop().remove_writer(self._handover.fileno())
        self._handover.close()
        for _, accepted in self._unsent:
            accepted.sock.close()
        self._unsent.clear()
        self.link.close()
        self.asked.close()

    def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsent:
            message, accepted = self._unsent[0]
            try:
                socket.send_fds(self._handover, [message], [accepted.sock.fileno()])
            except (BlockingIOError, InterruptedError):
                loop.add_writer(self._handover.fileno(), self._send)
                return
            except OSError as exc:
                if exc.errno in _GONE:
                    break  # as the link will report
                # Out of buffers, or of descriptors under way: the kernel has some again as workers take theirs.
                self._retry = loop.call_later(_SEND_AGAIN_S, self._send)
                return
            accepted.sock.close()
            self._unsent.popleft()
        loop.remove_writer(self._handover.fileno())


class WorkerPool:
    """See the module.

    Attributes:
        count: how many workers there are to be.
        workers: those that live, by number.
        restarts: how many were replaced.
        handlers: what workers may send and ask, each called with the worker first; others add theirs before `start`.
        on_ready, on_lost: called with a worker that serves from now on, and of one that is gone.
    """

    def __init__(self, nursery: Nursery, count: int, *, now_ms: NowMs) -> None:
        """None is started yet.

        Args:
            nursery: forks them.
            count: see above.
            now_ms: the clock.
        """
        self.count = count
        self.workers: dict[int, Worker] = {}
        self.restarts = 0
        self.handlers: dict[str, Callable[..., Any]] = {
            "ready": self._ready,
            "alive": self._alive,
            "ended": self._ended,
        }
        self.on_ready: list[Callable[[Worker], None]] = []
        self.on_lost: list[Callable[[Worker], None]] = []
        self._nursery = nursery
        self._now_ms = now_ms
        self._places: _Places | None = None
        self._on_place_freed: Callable[[str], None] = lambda _listener: None
        self._stopping = False
        self._changed = asyncio.Event()
        self._forking: set[asyncio.Future[None]] = set()

    def give_back_to(self, places: _Places, on_place_freed: Callable[[str], None]) -> None:
        """Where places are counted, and what is called after one of a listener is free."""
        self._places, self._on_place_freed = places, on_place_freed

    async def start(self) -> None:
        """Start all of them; returns when all take connections.

        Raises:
            StartError: they do not.
        """
        for number in range(self.count):
            await self._fork(number)
        try:
            async with asyncio.timeout(_START_S):
                while sum(worker.serves for worker in self.workers.values()) < self.count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StartError(
                f"the workers have not started within {_START_S:g} s; see worker_not_started and worker_lost in "
                "the log"
            ) from None

    def set_longest_drain(self, longest_drain_ms: int) -> None:
        """See `Nursery.set_longest_drain`."""
        self._nursery.set_longest_drain(longest_drain_ms)

    def why_not_ready(self) -> str | None:
        """None while one of them takes connections, and one that dies could be replaced."""
        if not any(worker.serves for worker in self.workers.values()):
            return "no worker serves"
        return "workers cannot be replaced: restart the gateway" if self._nursery.gone else None

    async def _fork(self, number: int) -> None:
        ours = None
        try:
            ours, theirs = WorkerSockets.pair()
            pid = self._nursery.fork(number, theirs)
        except OSError as exc:
            if ours is not None:
                ours.close()
            _log.error("worker_not_started", worker=number, error=str(exc))
            asyncio.get_running_loop().call_later(_AGAIN_S, self._replace, number)
            return
        bound: dict[str, Callable[..., Any]] = {}
        worker = Worker(
            number, pid, ours, Link(bound, partial(self._lost, number, pid)), Link(bound, lambda: None)
        )
        bound |= {what: partial(handle, worker) for what, handle in self.handlers.items()}
        worker.heard_ms = self._now_ms()
        self.workers[number] = worker
        await worker.link.open(ours.link)
        await worker.asked.open(ours.asking)

    # -- connections -----------------------------------------------------------------------------------------

    def hand_over(self, listener: str, accepted: AcceptedSocket) -> None:
        """Give an admitted socket to the worker with the fewest connections."""
        worker = self._least_loaded()
        if worker is None:
            accepted.sock.close()
            self._give_back(listener, accepted.ip)
        else:
            worker.hand_over(listener, accepted)

    def _least_loaded(self) -> Worker | None:
        serving = [worker for worker in self.workers.values() if worker.serves]
        now_ms = self._now_ms()
        lively = [worker for worker in serving if now_ms - worker.heard_ms < SILENT_MS]
        return min(lively or serving, key=lambda worker: worker.connections, default=None)

    def _ended(self, worker: Worker, ended: list[tuple[str, str]]) -> None:
        for listener, ip in ended:
            worker.ended(listener, ip)
            self._give_back(listener, ip)

    def _give_back(self, listener: str, ip: str) -> None:
        assert self._places is not None
        self._places.release(listener, ip)
        self._on_place_freed(listener)

    # -- lives -----------------------------------------------------------------------------------------------

    def _ready(self, worker: Worker) -> None:
        worker.serves = True
        for told in self.on_ready:
            told(worker)
        _log.info("worker_ready", worker=worker.number, pid=worker.pid)
        self._changed.set()

    def _alive(self, worker: Worker) -> None:
        worker.heard_ms = self._now_ms()

    def _lost(self, number: int, pid: int) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.pid != pid:
            return
        del self.workers[number]
        worker.close()
        for (listener, ip), count in worker.places.items():
            for _ in range(count):
                self._give_back(listener, ip)
        for told in self.on_lost:
            told(worker)
        self._changed.set()
        if self._stopping:
            return
        self.restarts += 1
        _log.error("worker_lost", worker=number, pid=pid, connections=worker.connections)
        # One that dies as soon as it lives is not forked in a tight loop.
        if worker.serves:
            self._replace(number)
        else:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._replace, number)

    def _replace(self, number: int) -> None:
        if not self._stopping:
            self._forking.add(task := asyncio.ensure_future(self._fork(number)))
            task.add_done_callback(self._forking.discard)

    # -- all of them -----------------------------------------------------------------------------------------

    def tell_all(self, what: str, *values: Any, but: Worker | None = None) -> None:
        """Send to every worker, or to all but one."""
        for worker in self.workers.values():
            if worker is not but:
                worker.link.tell(what, *values)

    async def ask_all(
        self, what: str, *values: Any, following: bool = False, within_s: float = ACKNOWLEDGED_S
    ) -> dict[int, Any]:
        """Ask every worker that serves; the answers that came in time, by worker.

        Args:
            what, values: the question.
            following: ask those that follow the store, also when they do not serve yet.
            within_s: workers that have not answered by then are left out, with a line in the log.
        """
        workers = {
            number: worker
            for number, worker in self.workers.items()
            if (worker.follows if following else worker.serves)
        }
        asked = {
            number: asyncio.ensure_future(worker.link.ask(what, *values))
            for number, worker in workers.items()
        }
        if not asked:
            return {}
        done, late = await asyncio.wait(asked.values(), timeout=within_s)
        for each in late:
            each.cancel()
        if late:
            silent = [str(number) for number, each in asked.items() if each in late]
            _log.warning("worker_silent", workers=",".join(silent), question=what)
        return {
            number: each.result()
            for number, each in asked.items()
            # Reports of one that is gone by now are with those of the dead already (`on_lost`).
            if each in done and not each.exception() and self.workers.get(number) is workers[number]
        }

    # -- the end ---------------------------------------------------------------------------------------------

    async def drain(self, within_s: float, *, hurry: asyncio.Event, gently: bool = False) -> None:
        """They take nothing more, and end when no reply is outstanding.

        Args:
            within_s: the time that they have for it; those that take much longer are killed.
            hurry: when set, they close what is left at once.
            gently: another process accepts; see `Gateway.drain`.
        """
        self._stopping = True
        self.tell_all("drain", gently)
        hurrying = asyncio.ensure_future(hurry.wait())
        hurrying.add_done_callback(self._hurry_if_asked)
        try:
            async with asyncio.timeout(within_s + _END_S):
                while self.workers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            for worker in list(self.workers.values()):
                _log.error("worker_killed", worker=worker.number, pid=worker.pid)
                os.kill(worker.pid, signal.SIGKILL)
        finally:
            hurrying.cancel()

    def _hurry_if_asked(self, hurrying: asyncio.Future[Any]) -> None:
        if not hurrying.cancelled():
            self.tell_all("hurry")

    def stop(self) -> None:
        """End what is left, and the nursery."""
        self._stopping = True
        for worker in list(self.workers.values()):
            self._lost(worker.number, worker.pid)
        self._nursery.stop()

    def processes(self) -> Iterator[tuple[str, int, int]]:
        """Name, process id and connections of each process of the gateway."""
        yield "supervisor", os.getpid(), 0
        for number, worker in sorted(self.workers.items()):
            yield str(number), worker.pid, worker.connections
