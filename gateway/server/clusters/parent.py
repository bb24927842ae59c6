"""The parent of a gateway with several clusters: starts, watches, reloads, upgrades and ends their processes. [io]

It serves no Kafka clients. An upgrade of the parent starts its new program in place, with the same process id; the
new program gets clusters and sockets through one environment variable.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog
import uvloop
from prometheus_client.core import Metric

from config import Clusters, Config, ConfigError
from config.clusters import SharedSettings
from config.host_port import HostPort, parse_host_port
from config.sections.admin import AdminSettings
from config.sections.log import LogSettings
from config.sections.upstream import UpstreamSettings
from gateway.observability.events import ReloadResult
from gateway.observability.operation_metrics import AdminPortMetrics
from gateway.runtime.clock import loop_clock
from gateway.server.admin import AdminServer
from gateway.server.admin_access import AdminAccess, pod_hosts
from gateway.server.admin_keys import AdminKeys
from gateway.server.clusters import IN_PLACE
from gateway.server.clusters.front import Front
from gateway.server.clusters.member import cluster_control_name, environment_of_member
from gateway.server.clusters.notices import Notices
from gateway.server.clusters.process import STALLED_S, ClusterProcess, ClusterState
from gateway.server.control import Control, UpgradeReport, ask_for_upgrade, control_name
from gateway.server.operations import ReloadReport
from gateway.server.reload import changed_settings, waiting_settings
from gateway.server.systemd import Notify
from gateway.server.tls_setup import TlsParts
from gateway.server.upgrade import UPGRADE_S, command_of_this_process

_LOOK_S: Final = 1.0
_AWAY_S: Final = 5.0
_SETTLED_S: Final = 20.0
_RELOAD_S: Final = 60.0
_STARTS_S: Final = 20.0
"""How long a starting process may take to reload: less than the 30 s for which `sluice reload` waits."""
_ENDS_S: Final = 0.5
"""How long the end of a process may take to be noticed after its connections have ended."""
_AT_A_TIME: Final = 4
"""Clusters that are upgraded at the same time; each upgrade starts a program."""
_CHECK_S: Final = 60.0
_END_S: Final = 15.0
"""How long a process may take to end, in addition to the longest drain."""
_IGNORED: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_log = structlog.get_logger("gateway.clusters")


@dataclass(frozen=True, slots=True)
class ClustersSource:
    """The source of the clusters' configuration.

    Attributes:
        file: its path.
        read: reads the present file; may block, raises `config.ConfigError`.
        set_log: puts new log settings in force.
    """

    file: str
    read: Callable[[], Config | Clusters]
    set_log: Callable[[LogSettings], None]


def run(found: Clusters, source: ClustersSource, *, banner: str) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the drains at once.

    Args:
        found: valid.
        source: of `found`.
        banner: printed once all clusters serve or have tried to.

    Returns:
        The process's exit code: 0, or 2 when the admin port cannot be bound.
    """
    left = os.environ.pop(IN_PLACE, None)
    again = uvloop.run(_serve(found, source, banner, None if left is None else json.loads(left)))
    if not isinstance(again, int):
        sys.stdout.flush()
        sys.stderr.flush()
        command = command_of_this_process()
        os.execve(command[0], command, {**os.environ, IN_PLACE: json.dumps(again)})
    return again


async def _serve(
    found: Clusters, source: ClustersSource, banner: str, left: dict[str, Any] | None
) -> int | dict[str, Any]:
    parent = ClusterParent(found, source)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            parent.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, on_signal)
    tasks: set[asyncio.Task[Any]] = set()

    def begin(step: Callable[[str], Awaitable[Any]], by: str) -> None:
        if len(tasks) < 2:
            tasks.add(task := asyncio.ensure_future(step(by)))
            task.add_done_callback(tasks.discard)

    _on_signal(signal.SIGHUP, lambda: begin(parent.reload_by_signal, "SIGHUP"))
    _on_signal(signal.SIGUSR2, lambda: begin(parent.upgrade, "SIGUSR2"))
    _on_signal(signal.SIGUSR1, lambda: _log.info("signal_ignored", signal="SIGUSR1"))
    try:
        await parent.start(left)
    except OSError as exc:
        print(f"sluice: cannot listen: {exc}", file=sys.stderr)
        return 2
    await _first_of(stop, parent.settled)
    if left is None and not stop.is_set():
        print(banner, flush=True)
    parent.notify.ready()
    await _first_of(stop, parent.upgraded)
    if not stop.is_set():
        state = await parent.leave()
        for number in _IGNORED:  # until the new program handles them
            signal.signal(number, signal.SIG_IGN)
        return state
    await parent.drain()
    await parent.stop()
    for number in (*_IGNORED, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    _log.info("stopped")
    return 0


def _on_signal(number: signal.Signals, call: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))


async def _first_of(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()


class ClusterParent:
    """See the module.

    Attributes:
        clusters: their processes, by name.
        settled: each cluster serves, or has tried to.
        upgraded: the clusters are upgraded; this process must start its new program.
        notify: messages to systemd, which started this process.
    """

    def __init__(self, found: Clusters, source: ClustersSource) -> None:
        """Nothing runs yet; needs the running loop."""
        self.clusters: dict[str, ClusterProcess] = {}
        self.settled, self.upgraded = asyncio.Event(), asyncio.Event()
        self.notify = Notify(os.environ)
        self._found = found
        self._source = source
        self._loop = asyncio.get_running_loop()
        admin = found.shared.admin
        self._tls = TlsParts(_without_clients(found), self._loop)
        self._keys = AdminKeys(admin.keys)
        self._tls.look_after(self._keys)
        tls = self._tls.admin_tls(admin.tls)
        access = AdminAccess(
            lambda: self._found.shared.admin,
            self._keys,
            loop_clock(self._loop),
            tls=tls,
            hosts=pod_hosts(os.environ),
        )
        self._admin_metrics = AdminPortMetrics(access, self._keys)
        self._front = Front(self.clusters, access, self._own_metrics)
        self._admin = AdminServer(
            self._front.metrics,
            self,
            ready=self._front.why_not_ready,
            remark=self._front.remark,
            access=access,
            tls=tls,
            quotas=self._front,
            first=self._front.for_one,
        )
        self._control = Control(self.upgrade)
        self._notices: Notices | None = None
        self._one_at_a_time = asyncio.Lock()
        self._draining = self._upgrading = self._checking = False
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self, left: dict[str, Any] | None) -> None:
        """Bind the admin port and start a process for each cluster.

        Args:
            left: the state that the previous program in this process left; None: there was none.

        Raises:
            OSError: the admin port cannot be bound; nothing runs.
        """
        await self._listen(left or {})
        self._notices = Notices(self._on_notice, None if left is None else left["notices"])
        states = (
            {} if left is None else {name: ClusterState(**each) for name, each in left["clusters"].items()}
        )
        for name, state in states.items():
            admin = socket.socket(fileno=state.admin)
            admin.set_inheritable(False)
            self.clusters[name] = ClusterProcess(name, admin, self._start, read_notices=self._read_notices)
            self.clusters[name].adopt(state)
        for name in self._found.by_name:
            if name not in self.clusters:
                self._add(name)
        for name in states.keys() - self._found.by_name.keys():
            self._remove(name)
        self._looking = asyncio.create_task(self._look())
        self._tls.start()

    def _own_metrics(self) -> Iterator[Metric]:
        yield from self._admin_metrics.collect()
        yield from self._tls.metrics.collect()

    async def _listen(self, left: dict[str, Any]) -> None:
        bind = self._found.shared.admin.bind
        sockets = [socket.socket(fileno=each) for each in left.get("admin", ())]
        controls = [socket.socket(fileno=each) for each in left.get("control", ())]
        for each in (*sockets, *controls):
            each.set_inheritable(False)
        before = parse_host_port(left["bind"], lowest_port=0) if sockets else bind
        if before != bind:
            sockets = await self._move(before, sockets)
            if sockets:
                bind = before
                admin = self._found.shared.admin.model_copy(update={"bind": before})
                shared = self._found.shared.model_copy(update={"admin": admin})
                self._found = Clusters(shared, self._found.by_name)
            else:
                for each in controls:
                    each.close()
                controls = []
        else:
            await self._admin.start(bind.host, bind.port, sockets)
        self._control.start(control_name(bind.host, self._admin.port), next(iter(controls), None))

    async def _move(self, before: HostPort, sockets: list[socket.socket]) -> list[socket.socket]:
        """Serve the admin port at its new address; returns the old sockets if only they can be served."""
        bind = self._found.shared.admin.bind
        while True:
            try:
                await self._admin.start(bind.host, bind.port)
                break
            except OSError as exc:
                # The clusters continue to serve.
                _log.error("admin_port_not_bound", error=str(exc))
                if sockets and (exc.errno != errno.EADDRINUSE or sockets[0].getsockname()[1] != bind.port):
                    await self._admin.start(before.host, before.port, sockets)
                    return sockets
            if not sockets:
                await asyncio.sleep(_LOOK_S)
            # The new address has the same port as the old one: the old sockets block it.
            for each in sockets:
                each.close()
            sockets = []
        for each in sockets:
            each.close()
        return []

    def _add(self, name: str) -> None:
        admin = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        admin.bind("")  # the kernel chooses a name
        admin.listen()
        self.clusters[name] = ClusterProcess(name, admin, self._start, read_notices=self._read_notices)
        self.clusters[name].start()

    def _remove(self, name: str) -> None:
        cluster = self.clusters[name]
        cluster.removed = True
        cluster.not_ready = "is not in the file any more"
        _log.warning("cluster_removed", cluster=name)
        cluster.stop()

        async def forget() -> None:
            await cluster.over()
            if self.clusters.get(name) is cluster:
                del self.clusters[name]
                await self._front.forget(name)
                cluster.admin.close()
                if name in self._found.by_name and not self._draining:  # a reload has added it again
                    self._add(name)

        self._tasks.add(task := asyncio.create_task(forget()))
        task.add_done_callback(self._tasks.discard)

    def _start(self, cluster: ClusterProcess) -> int:
        assert self._notices is not None
        host = self._found.shared.admin.bind.host
        cluster.control = cluster_control_name(host, self._admin.port, cluster.name)
        environment = environment_of_member(os.environ, cluster.admin, cluster.control)
        environment["NOTIFY_SOCKET"] = self._notices.address
        environment["WATCHDOG_USEC"] = str(int(STALLED_S * 1e6))
        environment.pop("WATCHDOG_PID", None)
        process = subprocess.Popen(
            [*command_of_this_process(), "--cluster", cluster.name],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=[cluster.admin.fileno()],
        )
        process.returncode = 0  # keeps Popen from waiting: ClusterProcess does
        return process.pid

    def _read_notices(self) -> None:
        if self._notices is not None:
            self._notices.read()

    def _on_notice(self, pid: int, line: str) -> None:
        for cluster in self.clusters.values():
            if cluster.notice(pid, line):
                break
        self._look_if_settled()

    def _look_if_settled(self) -> None:
        if all(each.settled for each in self.clusters.values()):
            self.settled.set()

    async def _look(self) -> None:
        began = seen = self._loop.time()
        while True:
            now = self._loop.time()
            for cluster in self.clusters.values():
                if now - seen > _AWAY_S:
                    cluster.was_away()
                cluster.look()
            seen = now
            if os.getpid() == 1 and not self._checking:
                _reap_orphans()
            self._look_if_settled()
            if now - began > _SETTLED_S:
                self.settled.set()
            await self._front.look()
            await asyncio.sleep(_LOOK_S)

    def hurry(self) -> None:
        """End draining processes at once."""
        for cluster in self.clusters.values():
            cluster.stop()

    async def drain(self) -> None:
        """End all clusters; the time is bounded by their drains."""
        self._draining = self._front.draining = True
        self.notify.stopping()
        self._control.stop()
        clusters = list(self.clusters.values())
        for cluster in clusters:
            cluster.stop()
        longest_ms = max(
            each.drain.longest_ms + each.quota_store.write_timeout_ms for each in self._found.by_name.values()
        )
        waiting = [asyncio.ensure_future(each.over()) for each in clusters]
        _, late = await asyncio.wait(waiting, timeout=longest_ms / 1000 + _END_S)
        if late:
            for cluster in clusters:
                cluster.kill()
            await asyncio.wait(waiting)

    async def stop(self) -> None:
        """Release every port and task."""
        await self._end_tasks()
        self._control.stop()
        await self._admin.stop()
        await self._front.stop()
        if self._notices is not None:
            self._notices.stop()
            self._notices = None
        for cluster in self.clusters.values():
            cluster.admin.close()
        self.notify.close()

    async def _end_tasks(self) -> None:
        await self._tls.stop()
        for task in (*self._tasks, *([] if self._looking is None else [self._looking])):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # -- reload ----------------------------------------------------------------------------------------------

    async def reload_by_signal(self, by: str) -> None:
        """Run `reload`, and report it to systemd."""
        self.notify.reloading()
        try:
            await self.reload(by=by)
        finally:
            self.notify.ready()

    async def reload(self, *, by: str) -> ReloadReport:
        """Read the file again: each cluster applies its part, and new clusters are started.

        An invalid file changes nothing. A cluster that is no longer in the file serves until an upgrade.

        Args:
            by: the author, for the log.
        """
        async with self._one_at_a_time:
            try:
                wanted = _clusters(await asyncio.to_thread(self._source.read), self._source.file)
                await asyncio.to_thread(self._keys.prepare, wanted.shared.admin.keys)
            except ConfigError as exc:
                for line in exc.lines:
                    _log.error("config_not_reloaded", by=by, fault=line)
                return ReloadReport(ReloadResult.INVALID, faults=tuple(exc.lines))
            applied: list[str] = []
            admin = self._admin_of(wanted.shared.admin)
            applied += changed_settings(self._found.shared.admin, admin, "admin")
            waits = [*changed_settings(admin, wanted.shared.admin, "admin")]
            self._keys.use(admin.keys)
            self._tls.look_now()
            faults: list[str] = []
            common = [each for each in self.clusters if each in wanted.by_name]
            for name, report in zip(
                common, await asyncio.gather(*(self._reload_one(each, by) for each in common)), strict=True
            ):
                applied += _keys_of_file(name, report.applied)
                waits += _keys_of_file(name, report.needs_restart)
                faults += [f"clusters.{name}: {line}" for line in report.faults]
            for name in wanted.by_name:
                if name not in self.clusters:
                    self._add(name)
                    applied.append(f"clusters.{name}")
            waits += [f"clusters.{name}" for name in self.clusters if name not in wanted.by_name]
            if wanted.shared.log != self._found.shared.log:
                self._source.set_log(wanted.shared.log)
            shared = self._found.shared.model_copy(update={"log": wanted.shared.log, "admin": admin})
            self._found = Clusters(shared, wanted.by_name)
        applied, waits = (
            list(dict.fromkeys(applied)),
            list(dict.fromkeys(waits)),
        )  # shared settings came once per cluster
        _log.info("config_reloaded", by=by, changed=",".join(applied) or "nothing")
        for key in waits:
            _log.warning("config_needs_restart", by=by, setting=key)
        for line in faults:
            _log.error("config_not_reloaded", by=by, fault=line)
        result = (
            ReloadResult.INVALID if faults else ReloadResult.NEEDS_RESTART if waits else ReloadResult.APPLIED
        )
        return ReloadReport(result, tuple(applied), tuple(waits), tuple(faults))

    def _admin_of(self, wanted: AdminSettings) -> AdminSettings:
        """The settings of the admin port that are in force after a reload."""
        found = self._found.shared.admin
        waiting = waiting_settings(found, wanted)
        kept = [key.removeprefix("admin.") for key in waiting if key.startswith("admin.")]
        return wanted.model_copy(update={key: getattr(found, key) for key in kept})

    async def _reload_one(self, name: str, by: str) -> ReloadReport:
        cluster = self.clusters[name]
        next_reads_it = ReloadReport(ReloadResult.APPLIED)
        if cluster.pid is None:
            return next_reads_it
        # A starting process may have read the file before it changed. Its socket keeps the request until it listens.
        within_s = _RELOAD_S if cluster.serves else _STARTS_S
        asked = asyncio.ensure_future(
            self._front.ask(name, "reload", within_s=within_s, method="POST", by=by)
        )
        ended = asyncio.ensure_future(cluster.ended.wait())
        try:
            await asyncio.wait((asked, ended), return_when=asyncio.FIRST_COMPLETED)
            answer = asked.result() if asked.done() else None
            if answer is None:
                await asyncio.wait((ended,), timeout=_ENDS_S)  # its connection may end a moment before it
                fault = "it does not answer"
                if not cluster.serves:
                    fault = f"it has not started within {within_s:g} s; reload again once it is ready"
                return next_reads_it if ended.done() else ReloadReport(ReloadResult.INVALID, faults=(fault,))
        finally:
            asked.cancel()
            ended.cancel()
        try:
            report = json.loads(answer[1])
            if "error" in report:
                return ReloadReport(ReloadResult.INVALID, faults=(report["error"],))
            return ReloadReport(
                ReloadResult(report["result"]),
                tuple(report["applied"]),
                tuple(report["needs_restart"]),
                tuple(report["faults"]),
            )
        except (ValueError, TypeError, KeyError):
            return ReloadReport(
                ReloadResult.INVALID, faults=(f"its answer with status {answer[0]} is no report",)
            )

    # -- upgrade ---------------------------------------------------------------------------------------------

    async def upgrade(self, by: str) -> UpgradeReport:
        """Upgrade each cluster, then this process.

        Args:
            by: the author, for the log.
        """
        reason = "the gateway drains" if self._draining else None
        if self._upgrading:
            reason = "an upgrade is under way"
        if reason is not None:
            _log.warning("upgrade_refused", by=by, reason=reason)
            return UpgradeReport(os.getpid(), reason)
        self._upgrading = True
        _log.info("upgrade_begun", by=by)
        try:
            async with self._one_at_a_time:
                reason = await self._upgrade()
        finally:
            self._upgrading = False
        if reason is not None:
            _log.error("upgrade_failed", by=by, reason=reason)
        return UpgradeReport(os.getpid(), reason)

    async def _upgrade(self) -> str | None:
        self._checking = True
        try:
            if (reason := await asyncio.to_thread(_why_not_valid, self._source.file)) is not None:
                return reason
        finally:
            self._checking = False
        wanted = set(self.clusters)
        with suppress(ConfigError):  # the file may have keys that only the new program knows
            found = await asyncio.to_thread(self._source.read)
            if isinstance(found, Config):
                return _no_clusters(self._source.file)
            wanted = set(found.by_name)
        places = asyncio.Semaphore(_AT_A_TIME)

        async def one(name: str) -> str | None:
            async with places:
                return await self._upgrade_one(name)

        names = [name for name, each in self.clusters.items() if name in wanted and each.serves]
        reasons = await asyncio.gather(*map(one, names))
        for name, each in self.clusters.items():
            if name not in names:
                each.start_anew()
        failed = [f"cluster {name}: {reason}" for name, reason in zip(names, reasons, strict=True) if reason]
        if failed and len(failed) == len(names):
            return "; ".join(failed)
        # The caller gets its answer before the new program starts.
        self._loop.call_soon(self.upgraded.set)
        if not failed:
            return None
        return "; ".join([*failed, "all others were upgraded"])

    async def _upgrade_one(self, name: str) -> str | None:
        control = self.clusters[name].control
        ask = lambda: ask_for_upgrade(control, within_s=UPGRADE_S + _END_S)  # noqa: E731
        try:
            return (await asyncio.to_thread(ask)).error
        except OSError as exc:
            return f"it cannot be asked: {exc}"

    async def leave(self) -> dict[str, Any]:
        """Stop everything but the clusters; returns the state for the next program in this process."""
        await self._control.answered()
        await self._end_tasks()
        assert self._notices is not None
        self._notices.stop_reading()
        admin = self._admin.connections.give_away()
        control = [sock for sock in [self._control.give_away()] if sock is not None]
        await self._admin.stop()
        await self._front.stop()
        state = {
            "bind": str(self._found.shared.admin.bind),
            "admin": [sock.fileno() for sock in admin],
            "control": [sock.fileno() for sock in control],
            "notices": self._notices.sock.fileno(),
            "clusters": {name: asdict(each.state()) for name, each in self.clusters.items()},
        }
        for cluster in self.clusters.values():
            cluster.let_go()
        for sock in [*admin, *control, self._notices.sock, *(each.admin for each in self.clusters.values())]:
            os.set_inheritable(sock.detach(), True)
        self._notices = None
        return state


def _without_clients(found: Clusters) -> Config:
    """A configuration that has only the certificates of the admin port."""
    config = next(iter(found.by_name.values()))
    upstream = UpstreamSettings(bootstrap=config.upstream.bootstrap)
    return config.model_copy(
        update={"listeners": (), "upstreams": (), "upstream": upstream, "admin": found.shared.admin}
    )


def _clusters(found: Config | Clusters, file: str) -> Clusters:
    if isinstance(found, Clusters):
        return found
    raise ConfigError([_no_clusters(file)])


def _no_clusters(file: str) -> str:
    return f"{file}: has no [[clusters]] any more; this needs a restart"


def _keys_of_file(name: str, keys: Iterable[str]) -> Iterator[str]:
    """The paths in the file of the settings that a cluster reports; [admin] belongs to the parent."""
    for key in keys:
        section = key.partition(".")[0]
        if section != "admin":
            yield key if section in SharedSettings.model_fields else f"clusters.{name}.{key}"


def _why_not_valid(file: str) -> str | None:
    """The errors that the installed program finds in the file; None: there are none."""
    command = command_of_this_process()
    program = command[: len(command) - len(sys.argv) + 1]
    try:
        checked = subprocess.run(
            [*program, "check-config", file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_CHECK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"the new program cannot check the file: {exc}"
    if checked.returncode == 0:
        return None
    lines = checked.stderr.decode(errors="replace").strip().splitlines()
    faults = [line.removeprefix("sluice: ") for line in lines if ": note: " not in line]
    return "; ".join(faults) or f"check-config ended with code {checked.returncode}"


def _reap_orphans() -> None:
    """Reap orphaned processes, as the first process of a container."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
