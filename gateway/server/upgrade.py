"""The old process of an upgrade: starts the new one, hands its state over, and drains. [io]

    new process                         this process
    hello                          ->
                                   <-   socket (descriptor) ..., sockets_end
    lend                           ->   closes the store's file; alterations are refused from here on
                                   <-   lent
    ready: it could serve          ->   accepts no more: connections wait in the kernel
                                   <-   states, rates, counts, mode, waiting (descriptor) ..., go
                                   <-   reload, mode, at any time so far
    serving                        ->   informs systemd, drains
                                   <-   left (the fleet)
                                   <-   main
    use                           <->   use, counts, until this process ends
    quotas, mode, reload           ->   in force here too, as soon as they arrive

Rows of topics are sent as topic_states and topic_use.

Nothing is final until this process reads `serving`. If the new process ends or takes too long before that, this one
continues with all that it had. Afterwards there is no way back, and none is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.net.accepted_socket import AcceptedSocket
from gateway.server.carried import USE, USER_COUNTS, CarriedCounts, Row, connection_rows, messages
from gateway.server.control import UpgradeReport
from gateway.server.forwarded_changes import CHANGES, MODE
from gateway.server.handover_link import DESCRIPTOR, FORMAT, HandoverLink
from gateway.server.replacement import Replaceable, waiting_row

UPGRADE_S: Final = 60.0
HANDED_S: Final = 15.0
"""How long new connections wait for a new process that may hang, from the moment at which none is accepted."""
_TELL_S: Final = 0.1
_END_S: Final = 5.0

_log = structlog.get_logger("gateway.upgrade")


def command_of_this_process() -> list[str]:
    """The command that started this process; a script is looked up again, since a new one may be installed."""
    script = Path(sys.argv[0])
    if script.suffix != ".py" and (found := shutil.which(script)) is not None:
        return [found, *sys.argv[1:]]
    return [sys.executable, *sys.orig_argv[1:]]


class Upgrade:
    """See the module.

    Attributes:
        replaced: the new process serves; this one drains.
    """

    def __init__(
        self,
        gateway: Replaceable,
        *,
        refusal: Callable[[], str | None],
        on_replaced: Callable[[int], None],
        command: Sequence[str] | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            gateway: the gateway to replace.
            refusal: why an upgrade is not possible now; None: it is.
            on_replaced: called with the process id of the new process.
            command: starts the new process; None: see `command_of_this_process`.
        """
        self.replaced = False
        self._gateway = gateway
        self._refusal = refusal
        self._on_replaced = on_replaced
        self._command = command
        self._link: HandoverLink | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._done: asyncio.Future[str | None] | None = None
        self._steps: set[asyncio.Task[None]] = set()
        self._lent = self._aborted = False
        self._suspended: dict[str, AcceptedSocket] | None = None
        self._forget_counts()
        self._timer: asyncio.TimerHandle | None = None
        self._handed: asyncio.TimerHandle | None = None

    async def run(self, by: str) -> UpgradeReport:
        """Have a new process take over.

        Args:
            by: the author, for the log.
        """
        reason = self._refusal()
        if self._done is not None:
            reason = reason or "an upgrade is under way"
        if reason is not None:
            _log.warning("upgrade_refused", by=by, reason=reason)
            return UpgradeReport(os.getpid(), reason)
        self._done = asyncio.get_running_loop().create_future()
        error = self._start()
        self._gateway.changes.tell_next(self._send_rows)
        _log.info("upgrade_begun", by=by, **self._pids())
        try:
            async with asyncio.timeout(UPGRADE_S):
                error = error or await self._done
        except TimeoutError:
            # The new process may have taken over in the same iteration of the loop.
            error = None if self.replaced else f"the new process was not ready within {UPGRADE_S:.0f} s"
        if error is None:
            assert self._process is not None
            return UpgradeReport(self._process.pid)
        await self._go_on(error)
        return UpgradeReport(os.getpid(), error)

    def abort(self) -> None:
        """End a new process that does not serve yet, because this process is to end."""
        self._aborted = True
        if self._done is not None and not self._done.done():
            self._done.set_result("the gateway was stopped meanwhile")

    async def stop(self) -> None:
        """Send what the new process has not received yet, if it reads; then close the link. This process ends."""
        if self._timer is not None:
            self._timer.cancel()
        link = self._link
        if link is None or not self.replaced:
            return
        self._gateway.carrier.stop()
        self._tell_counts()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await link.flush()
        link.close()

    # -- the other process -----------------------------------------------------------------------------------

    def _start(self) -> str | None:
        self._process = None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            return f"it can't be started: {exc}"
        environment = {**os.environ, DESCRIPTOR: str(theirs.fileno())}
        environment.pop("WATCHDOG_PID", None)  # the new process takes over the watchdog
        try:
            self._process = subprocess.Popen(
                self._command or command_of_this_process(),
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        except OSError as exc:
            ours.close()
            return f"it can't be started: {exc}"
        finally:
            theirs.close()
        self._link = HandoverLink(ours, self._received, self._lost)
        self._link.open()
        return None

    def _pids(self) -> dict[str, int]:
        """Process ids for the log, to which both processes write."""
        new = {} if self._process is None else {"new_pid": self._process.pid}
        return {"old_pid": os.getpid(), **new}

    def _lost(self) -> None:
        if self.replaced:
            _log.error("successor_lost", **self._pids())
        elif self._done is not None and not self._done.done():
            self._done.set_result("the new process ended before it served; its log says why")

    async def _go_on(self, error: str) -> None:
        """Continue as before, since the upgrade failed."""
        self._gateway.changes.stop()
        self._gateway.carrier.stop()
        if self._handed is not None:
            self._handed.cancel()
        for step in (steps := list(self._steps)):
            step.cancel()
        await asyncio.gather(*steps, return_exceptions=True)
        if self._link is not None:
            self._link.close()
            self._link = None
        pids = self._pids()
        if self._process is not None:
            self._process.kill()
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
        suspended, self._suspended = self._suspended, None
        lent, self._lent = self._lent, False
        self._forget_counts()
        self._done = None
        _log.error("upgrade_failed", reason=error, **pids)
        if self._aborted:  # this process drains
            for accepted in (suspended or {}).values():
                accepted.sock.close()
            return
        if suspended is not None:
            self._gateway.resume(suspended)
        if lent:
            try:
                await self._gateway.take_back()
            except Exception as exc:  # noqa: BLE001  (then alterations stay refused, and clients are served)
                _log.error("quota_store_not_taken_back", error=str(exc))

    # -- messages --------------------------------------------------------------------------------------------

    def _received(self, what: str, body: Any, _descriptors: Sequence[int]) -> None:
        if self._done is None:
            return
        if what in USE and self.replaced:
            self._gateway.carrier.take_use(body)
        elif what in CHANGES and self.replaced:
            self._step(self._gateway.changes.take(what, body))
        elif self._done.done():
            return
        elif what == "failed":
            self._done.set_result(body)
        elif what == "hello":
            self._hand_sockets()
        elif what == "lend":
            self._step(self._lend())
        elif what == "ready":
            self._step(self._hand_over())
        elif what == "serving":
            self._replace()

    def _step(self, step: Any) -> None:
        self._steps.add(task := asyncio.get_running_loop().create_task(step))
        task.add_done_callback(self._stepped)

    def _stepped(self, task: asyncio.Task[None]) -> None:
        self._steps.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("upgrade_step_failed", exc_info=failure)
            if self._done is not None and not self._done.done():
                self._done.set_result(f"{type(failure).__name__}: {failure}")

    def _send(self, what: str, body: Any = None, descriptors: Sequence[int] = ()) -> None:
        if self._link is not None:
            self._link.send(what, body, descriptors)

    def _send_rows(self, what: str, rows: Sequence[Any], *, only_now: bool = False) -> None:
        if self._link is not None:
            self._link.send_rows(what, rows, only_now=only_now)

    def _send_counters(self, what: str, rows: Sequence[Row], *, only_now: bool = False) -> None:
        for kind, some in messages(what, rows):
            self._send_rows(kind, some, only_now=only_now)

    def _hand_sockets(self) -> None:
        for kind, (host, port), sock in self._gateway.sockets():
            self._send("socket", [kind, host, port], [sock.fileno()])
        self._send("sockets_end", FORMAT)

    async def _lend(self) -> None:
        self._lent = True
        self._send("lent", await self._gateway.lend())

    async def _hand_over(self) -> None:
        gateway = self._gateway
        self._handed = asyncio.get_running_loop().call_later(HANDED_S, self._not_taken)
        self._suspended = gateway.suspend()
        self._send_counters("states", await gateway.carrier.states())
        self._send_rows("rates", list(connection_rows(gateway.connections.rates(now_ms=gateway.now_ms()))))
        self._tell_counts()
        self._send(MODE, gateway.changes.mode)
        for name, accepted in self._suspended.items():
            self._send("waiting", waiting_row(name, accepted), [accepted.sock.fileno()])
        self._send("go")

    def _not_taken(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(f"the new process has not served within {HANDED_S:.0f} s of being ready")

    def _replace(self) -> None:
        assert self._done is not None
        assert self._process is not None
        if self._handed is not None:
            self._handed.cancel()
        for accepted in (self._suspended or {}).values():
            accepted.sock.close()
        self.replaced = True
        self._gateway.changes.stop()
        self._gateway.carrier.tell_use(lambda rows: self._send_counters("use", rows, only_now=True))
        self._tick()
        self._on_replaced(self._process.pid)
        _log.info("replaced", **self._pids())
        self._done.set_result(None)

    def tell_left(self) -> None:
        """Report that this process has left the fleet: the new one reports its clients' usage from now on."""
        self._gateway.carrier.tell_now()
        self._send("left")

    def tell_main(self) -> None:
        """Report that the new process is the main process of the service from now on."""
        self._send("main")

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TELL_S, self._tick)
        self._tell_counts()

    def _forget_counts(self) -> None:
        self._counts, self._user_counts = CarriedCounts(2), CarriedCounts(1)

    def _tell_counts(self) -> None:
        if rows := self._counts.changed(self._gateway.connections.counts()):
            self._send_rows("counts", rows)
        if rows := self._user_counts.changed([self._gateway.users.counts()]):
            self._send_rows(USER_COUNTS, rows)
