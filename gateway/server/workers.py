"""The supervisor's side of workers: starts them, gives them connections, replaces dead ones. [io]

An admitted connection goes to the worker with the fewest connections. Its place is freed when the worker reports its
end, or dies. Changes that must be in force in all workers are sent to all of them at once.
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
"""How long an answer waits until all workers have a change in force."""

SILENT_MS: Final = 1_000
"""A worker without a sign of life for so long gets no connections while others give signs."""

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
        number: its name in logs and metrics; a replacement keeps the number.
        pid: the process.
        link: to the worker.
        places: its open connections, by listener and address.
        connections: their number.
        serves: it takes connections.
        follows: it has the store's quotas, and must get their changes.
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
        """Send an accepted socket to the worker; this process closes its copy."""
        self.places[listener, accepted.ip] += 1
        self.connections += 1
        self._unsent.append((handover_message(listener, accepted), accepted))
        if len(self._unsent) == 1:
            self._send()

    def ended(self, listener: str, ip: str) -> None:
        """One of its connections has ended."""
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
                    break  # the link reports it
                # Out of buffers, or of descriptors in transit: the kernel has some again as workers receive theirs.
                self._retry = loop.call_later(_SEND_AGAIN_S, self._send)
                return
            accepted.sock.close()
            self._unsent.popleft()
        loop.remove_writer(self._handover.fileno())


class WorkerPool:
    """See the module.

    Attributes:
        count: the configured number of workers.
        workers: the living ones, by number.
        restarts: how many were replaced.
        handlers: for messages and questions of workers, each called with the worker first; others add theirs before
            `start`.
        on_ready, on_lost: called with a worker that serves from now on, or that is gone.
        stopping: workers that end are not replaced.
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
        self.on_lost: list[Callable[[Worker], object]] = []
        self._nursery = nursery
        self._now_ms = now_ms
        self._places: _Places | None = None
        self._on_place_freed: Callable[[str], None] = lambda _listener: None
        self.stopping = False
        self._changed = asyncio.Event()
        self._forking: set[asyncio.Future[None]] = set()

    def give_back_to(self, places: _Places, on_place_freed: Callable[[str], None]) -> None:
        """Set where places are counted, and the callback for a freed place of a listener."""
        self._places, self._on_place_freed = places, on_place_freed

    async def start(self) -> None:
        """Start all workers; returns when all take connections.

        Raises:
            StartError: a worker did not start in time.
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
        """None while a worker takes connections and dead workers can be replaced."""
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
        if self.stopping:
            return
        self.restarts += 1
        _log.error("worker_lost", worker=number, pid=pid, connections=worker.connections)
        # A worker that dies before it serves is not forked again in a tight loop.
        if worker.serves:
            self._replace(number)
        else:
            asyncio.get_running_loop().call_later(_AGAIN_S, self._replace, number)

    def _replace(self, number: int) -> None:
        if not self.stopping:
            self._forking.add(task := asyncio.ensure_future(self._fork(number)))
            task.add_done_callback(self._forking.discard)

    # -- all of them -----------------------------------------------------------------------------------------

    def tell_all(self, what: str, *values: Any) -> None:
        """Send a message to every worker that serves. One that was just forked has no handler for it yet."""
        for worker in self.workers.values():
            if worker.serves:
                worker.link.tell(what, *values)

    async def ask_all(
        self, what: str, *values: Any, following: bool = False, within_s: float = ACKNOWLEDGED_S
    ) -> dict[int, Any]:
        """Ask every worker that serves; returns the answers that came in time, by worker.

        Args:
            what, values: the question.
            following: ask workers that follow the store, even if they do not serve yet.
            within_s: workers that have not answered by then are left out, and logged.
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
            # The last report of a worker that is gone was already counted by `on_lost`.
            if each in done and not each.exception() and self.workers.get(number) is workers[number]
        }

    # -- the end ---------------------------------------------------------------------------------------------

    async def drain(self, within_s: float, *, hurry: asyncio.Event, gently: bool = False) -> None:
        """Drain all workers: they accept nothing more, and end when no reply is outstanding.

        Args:
            within_s: how long they may take; workers that take much longer are killed.
            hurry: when set, workers close remaining connections at once.
            gently: the new process accepts; see `Gateway.drain`.
        """
        self.stopping = True
        for worker in self.workers.values():  # also those that do not serve yet
            worker.link.tell("drain", gently)
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
            for worker in self.workers.values():
                worker.link.tell("hurry")

    def stop(self) -> None:
        """End remaining workers, and the nursery."""
        self.stopping = True
        for worker in list(self.workers.values()):
            self._lost(worker.number, worker.pid)
        self._nursery.stop()

    def processes(self) -> Iterator[tuple[str, int, int]]:
        """Name, process id and connections of each process of the gateway."""
        yield "supervisor", os.getpid(), 0
        for number, worker in sorted(self.workers.items()):
            yield str(number), worker.pid, worker.connections
