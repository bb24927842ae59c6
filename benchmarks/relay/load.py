"""Drives the load program through a path and counts what the proxy spent on it."""

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.relay.native_build import NativePrograms
from benchmarks.relay.paths import RunningPath
from benchmarks.relay.processes import PinnedProcess, ProcessDied, machine_busy_s
from benchmarks.relay.workloads import (
    LATENCY_FRAME_BYTES,
    LATENCY_PER_SECOND,
    LATENCY_WARM_UP,
    Workload,
)

CLIENT_ID = "bench"
_WINDOW_LIMIT_S = 60.0

Row = dict[str, Any]


class NullBroker:
    """The null broker's process and its counters."""

    def __init__(self, programs: NativePrograms, *, port: int, core: int, folder: Path) -> None:
        self.port = port
        self.process = PinnedProcess(
            [str(programs.null_broker), str(port)], core=core, log=folder / "null_broker.log", piped=True
        )

    def counters(self) -> dict[str, int]:
        """Counts of requests and bytes since the broker started."""
        os.kill(self.process.pid, signal.SIGUSR1)
        return read_json_line(self.process, 5.0)


def read_json_line(process: PinnedProcess, timeout_s: float) -> dict[str, Any]:
    """The next line that a piped process prints, as JSON.

    Raises:
        ProcessDied: the process ended, or printed nothing in time.
    """
    _, stdout = process.pipes()
    ready, _, _ = select.select([stdout], [], [], timeout_s)
    line = stdout.readline() if ready else b""
    if not line:
        if process.running and not ready:
            raise ProcessDied(f"{' '.join(process.argv)} said nothing for {timeout_s} s")
        time.sleep(0.05)
        raise process.died()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


class LoadRunner:
    """Runs one window after the other. Knows the broker, the load's core and where logs go."""

    def __init__(self, programs: NativePrograms, broker: NullBroker, *, core: int, folder: Path) -> None:
        self._program = str(programs.load)
        self._broker = broker
        self._core = core
        self._log = folder / "load.log"

    def _start(self, mode: str, path: RunningPath, *arguments: object) -> PinnedProcess:
        argv = [self._program, mode, str(path.port), CLIENT_ID, *map(str, arguments)]
        return PinnedProcess(argv, core=self._core, log=self._log, piped=True)

    def wait_until_open(self, path: RunningPath, *, timeout_s: float = 20.0) -> None:
        """Returns when a client gets a Produce reply through the path.

        Raises:
            ProcessDied: the proxy ended or never answered.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            argv = [self._program, "idle", str(path.port), CLIENT_ID, "1"]
            said = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False, text=True)
            if said.returncode == 0:
                return
            if path.proxy is not None and not path.proxy.running:
                raise path.proxy.died()
            if time.monotonic() > deadline:
                words = path.proxy.last_words() if path.proxy else ""
                raise ProcessDied(f"{path.name} does not answer: {said.stderr}\n{words}")
            time.sleep(0.1)

    def closed_loop(self, path: RunningPath, workload: Workload) -> Row:
        """One window of a workload.

        Returns:
            The load's own counts, the broker's counts, the proxy's CPU seconds, how disturbed the machine was, and
            ``invalid``: why the window must not be used, or None.
        """
        load = self._start(
            "closed",
            path,
            workload.verb,
            workload.frame_bytes,
            workload.in_flight,
            workload.warm_up,
            workload.requests,
        )
        row = self._window(path, load)
        row["workload"] = workload.key
        row["invalid"] = _reason_against(row, workload)
        row["figure"] = workload.figure(row["cpu_s"])
        return row

    def fixed_rate(self, path: RunningPath, *, requests: int) -> Row:
        """One open-loop window at the low rate: latency percentiles counted from the intended send time."""
        load = self._start("rate", path, LATENCY_FRAME_BYTES, LATENCY_WARM_UP, requests, LATENCY_PER_SECOND)
        row = self._window(path, load)
        row["workload"] = "latency"
        row["invalid"] = "throttled" if row["throttled"] else None
        return row

    def _window(self, path: RunningPath, load: PinnedProcess) -> Row:
        try:
            read_json_line(load, _WINDOW_LIMIT_S)
            stdin, _ = load.pipes()
            before, known_before = self._broker.counters(), self._known_cpu_s(path, load)
            busy_before, steal_before = machine_busy_s()
            stat_before = path.proxy.stat_cpu_s() if path.proxy else (0.0, 0.0)
            cpu_before = path.proxy.cpu_s() if path.proxy else 0.0
            stdin.write(b"go\n")
            stdin.flush()
            row = read_json_line(load, _WINDOW_LIMIT_S)
            cpu_after = path.proxy.cpu_s() if path.proxy else 0.0
            stat_after = path.proxy.stat_cpu_s() if path.proxy else (0.0, 0.0)
            busy_after, steal_after = machine_busy_s()
            known_after, after = self._known_cpu_s(path, load), self._broker.counters()
        finally:
            load.stop()
        elapsed_s = row["elapsed_ns"] / 1e9
        cores = os.cpu_count() or 1
        foreign_s = max(0.0, (busy_after - busy_before) - (known_after - known_before))
        row |= {f"broker_{key}": after[key] - before[key] for key in after if key != "produce_hash"}
        row |= {
            "path": path.name,
            "cpu_s": cpu_after - cpu_before,
            "stat_user_s": round(stat_after[0] - stat_before[0], 3),
            "stat_system_s": round(stat_after[1] - stat_before[1], 3),
            "produce_hash": after["produce_hash"],
            "load_cpu_s": (known_after - known_before) - (cpu_after - cpu_before),
            "foreign_share": foreign_s / elapsed_s / cores,
            "steal_share": (steal_after - steal_before) / elapsed_s / cores,
        }
        return row

    def _known_cpu_s(self, path: RunningPath, load: PinnedProcess) -> float:
        known = [load, self._broker.process] + ([path.proxy] if path.proxy else [])
        return sum(process.cpu_s() for process in known)

    def idle_memory(self, path: RunningPath, connections: int) -> Row:
        """Memory of a newly started proxy per connection that made one request and is then idle.

        The first measurement is taken with a tenth of the connections open. So memory that the proxy allocates once
        does not count.
        """
        assert path.proxy is not None
        few = self._hold(path, connections // 10)
        try:
            time.sleep(0.5)
            before = path.proxy.rss_bytes()
            many = self._hold(path, connections)
            try:
                time.sleep(1.0)
                after = path.proxy.rss_bytes()
            finally:
                many.stop()
        finally:
            few.stop()
        return {
            "workload": "idle",
            "path": path.name,
            "connections": connections,
            "rss_before_bytes": before,
            "rss_after_bytes": after,
            "per_connection_bytes": (after - before) / connections,
            "invalid": None,
        }

    def _hold(self, path: RunningPath, connections: int) -> PinnedProcess:
        holder = self._start_silent(path, connections)
        try:
            read_json_line(holder, 60.0)
        except ProcessDied:
            holder.stop()
            raise
        return holder

    def _start_silent(self, path: RunningPath, connections: int) -> PinnedProcess:
        return self._start("idle", path, connections)


def _reason_against(row: Row, workload: Workload) -> str | None:
    """Why a window must not be used: the path did not deliver the requested bytes."""
    fetch = workload.verb == "fetch"
    expected_bytes = workload.requests * workload.frame_bytes
    client, kind = ("reply_bytes", "fetch") if fetch else ("request_bytes", "produce")
    checks = {
        "requests": row["requests"] == workload.requests,
        "throttled": row["throttled"] == 0,
        "bytes at the client": row[client] == expected_bytes,
        "requests at the broker": row[f"broker_{kind}_requests"] == workload.requests,
        "bytes at the broker": row[f"broker_{kind}_bytes"] == expected_bytes,
    }
    return next((f"wrong: {name}" for name, holds in checks.items() if not holds), None)
