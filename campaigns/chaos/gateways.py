"""The gateways of a campaign: processes that are killed, stopped and paused, and their output."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from embedded_kafka.kafka import KafkaCluster
from testkit.faults.effects import Away, SmallDisk, Stopped
from testkit.gateway import free_ports
from testkit.process_group import kill_all
from testkit.raw_client import HOST

_ROOT: Final = Path(__file__).parents[2]
_DEBUG_MODES: Final = ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE")
_PACKAGES: Final = (
    "config",
    "embedded_kafka",
    "gateway",
    "pinned_jars",
    "protocol",
    "quotas",
    "campaigns",
    "testkit",
)
_START_S: Final = 60.0
_STOP_S: Final = 60.0
FRAME_TIMEOUT_MS: Final = 1_000
DRAIN_TIMEOUT_MS: Final = 30_000
KEEP_HOURS: Final = 24
MOST_TIMES: Final = 3
"""A deadline may be extended to this many times its length, however busy the machine is."""

_USAGE_LINES: Final = re.compile(r'^gateway_usage_lines_total\{result="(\w+)"\} (\S+)$', re.MULTILINE)


def copy_of_source(folder: Path) -> Path:
    """A copy of the gateways' source, so that changes of the source do not affect a long campaign."""
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, folder / package)
    return folder


def broker_away(cluster: KafkaCluster, broker: int, end: Callable[[int], None]) -> Away:
    """A broker that is down meanwhile; `end` ends it."""
    return Away(lambda: end(broker), lambda: cluster.start_broker(broker), lambda: broker in cluster.running)


class Patience:
    """A deadline for a gateway. Time in which it waits for a CPU that others use does not count, up to a bound."""

    def __init__(self, gateway: ChaosGateway, within_s: float) -> None:
        """Start the deadline now."""
        self._gateway, self._within_s = gateway, within_s
        self._began_s, self._starved_before_s = time.monotonic(), gateway.starved_s()
        self._process = gateway.pid

    @property
    def over(self) -> bool:
        """Whether the deadline is over."""
        elapsed_s = time.monotonic() - self._began_s
        return elapsed_s >= MOST_TIMES * self._within_s or elapsed_s - self._starved_s >= self._within_s

    @property
    def _starved_s(self) -> float:
        # The count starts at 0 for a new process and for one that has ended.
        before_s = self._starved_before_s if self._gateway.pid == self._process else 0.0
        return max(0.0, self._gateway.starved_s() - before_s)

    def __str__(self) -> str:
        """The length of the deadline as text."""
        elapsed_s = time.monotonic() - self._began_s
        return f"{elapsed_s:.1f} s, of which it waited {self._starved_s:.1f} s for a CPU"


class ChaosGateway:
    """One gateway.

    Attributes:
        port: port for clients.
        disk: the disk of its SQLite file.
        clock: the file that sets its wall clock.
        folder: folder of its configuration, log, store and usage records.
        running: whether there is a process.
        exit_codes: exit codes of processes that were stopped with a signal.
        steady_since_s: when it was last started or continued after a pause.
        draining_s: how long its last drain took.
    """

    def __init__(
        self,
        folder: Path,
        brokers: str,
        *,
        topic: str | None,
        disk_bytes: int = 0,
        source: Path = _ROOT,
        without: str = "",
    ) -> None:
        """Prepare the gateway without starting it.

        Args:
            folder: its own folder; created here.
            brokers: the cluster, as TOML texts.
            topic: the topic of its quotas; None for a SQLite file.
            disk_bytes: size of the file's disk; 0 for no separate disk. Only root may mount one.
            source: folder of the programs.
            without: rows whose fix is removed; see `stepped_gateway`.
        """
        self._source, self._without = source, without
        self.steady_since_s = self.draining_s = 0.0
        self.folder = folder
        folder.mkdir(parents=True)
        self.disk = SmallDisk(folder / "disk", str(disk_bytes or ""))
        first = free_ports(6)
        self.port, self._admin = first, first + 1
        self._config = folder / "gateway.toml"
        store = f'kind = "topic"\ntopic = "{topic}"' if topic else f'data_dir = "{self.disk.folder}/store"'
        self._config.write_text(
            f'[upstream]\nbootstrap = [{brokers}]\n[[listeners]]\nname = "a"\nbind = "{HOST}:{self.port}"\n'
            f"first_broker_port = {first + 2}\nlowest_broker_id = 1\nbroker_ports = 4\n"
            f'[admin]\nbind = "{HOST}:{self._admin}"\n[quota_store]\n{store}\n'
            "max_history = 200\nwrite_timeout_ms = 5000\n"
            f"[limits]\nframe_timeout_ms = {FRAME_TIMEOUT_MS}\nfirst_frame_timeout_ms = {FRAME_TIMEOUT_MS}\n"
            f"[drain]\ntimeout_ms = {DRAIN_TIMEOUT_MS}\n"
            f'[usage]\nkind = "files"\ndirectory = "{folder}/usage"\nrotate_seconds = 1\nkeep_hours = {KEEP_HOURS}\n'
            f'gateway_id = "{folder.name}"\n'
        )
        self.clock, self._stalls = folder / "clock", folder / "stalls"
        self._process: subprocess.Popen[bytes] | None = None
        self.exit_codes: list[int] = []

    @property
    def usage(self) -> Path:
        """The folder of its usage records."""
        return self.folder / "usage"

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.folder / "gateway.log"

    @property
    def pid(self) -> int | None:
        """Process id of the latest process."""
        return self._process.pid if self._process is not None else None

    def starved_s(self) -> float:
        """How long its process's loop was ready to run while other programs used the CPU."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        except OSError:
            return 0.0

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it without waiting until it is ready."""
        self.steady_since_s = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "campaigns.chaos.stepped_gateway", "serve", "--config", self._config],
                cwd=self._source,
                env={
                    # Without the debug modes of the tests, because the process's time is measured.
                    **{key: value for key, value in os.environ.items() if key not in _DEBUG_MODES},
                    "CLOCK_OFFSET": str(self.clock),
                    "CHAOS_WITHOUT": self._without,
                    "STALLS": str(self._stalls),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop its process (SIGSTOP) meanwhile."""
        with Stopped([self.pid or 0]):
            try:
                yield
            finally:
                self.steady_since_s = time.monotonic()

    def away(self, number: signal.Signals) -> Away:
        """The gateway is down meanwhile; the signal ends it."""
        return Away(lambda: self.end(number), self.start, lambda: self.running)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait. After SIGTERM its exit code must be 0."""
        began_s = time.monotonic()
        self.signal(number)
        assert self._process is not None
        code = self._process.wait(_STOP_S)
        self.draining_s = time.monotonic() - began_s
        if number == signal.SIGTERM:
            self.exit_codes.append(code)

    def await_log(self, within_s: float = 2.0) -> None:
        """Wait until an alteration is in the log of the SQLite store and not yet in its file."""
        log = self.disk.folder / "store" / "quotas.db-wal"
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s and not (log.exists() and log.stat().st_size):
            time.sleep(0.0005)

    def stalls_ms(self) -> list[int]:
        """CPU time of each long turn of its loop."""
        return [int(line) for line in self._stalls.read_text().split()] if self._stalls.exists() else []

    def usage_lines(self) -> dict[str, int]:
        """Counts of its usage lines: made, delivered, dropped.

        Raises:
            OSError: it can't be asked.
        """
        with urllib.request.urlopen(f"http://{HOST}:{self._admin}/metrics", timeout=5) as answer:
            found = _USAGE_LINES.findall(answer.read().decode())
        return {result: int(float(count)) for result, count in found}

    def why_not_ready(self) -> str | None:
        """Why it is not ready; None if /readyz is green."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._admin}/readyz", timeout=2):
                return None
        except urllib.error.HTTPError as exc:
            return exc.read().decode().strip()
        except OSError as exc:
            return f"not reached: {exc}"

    def await_ready(self, within_s: float = _START_S) -> str | None:
        """Wait until it is ready; the reason if it is not, else None."""
        patience = Patience(self, within_s)
        while (why := self.why_not_ready()) is not None:
            if not self.running:
                return f"it has ended with {self._process.poll() if self._process else None}: {self._last_words()}"
            if patience.over:
                return f"{why} ({patience})"
            time.sleep(0.1)
        return None

    def _last_words(self) -> str:
        return self.log.read_bytes()[-1_000:].decode(errors="replace").strip().rpartition("\n")[2]

    def quotas(self) -> dict[str, float]:
        """The quotas in force: user -> limit.

        Raises:
            OSError: it can't be asked.
        """
        with urllib.request.urlopen(f"http://{HOST}:{self._admin}/quotas", timeout=5) as answer:
            rows: list[dict[str, Any]] = json.loads(answer.read())["quotas"]
        return {str(row["entity"][0]["name"]): float(row["limit"]) for row in rows}

    def set_quotas(
        self, limits: dict[str, float], timeout_s: float = 10.0, *, dry_run: bool = False
    ) -> str | None:
        """Set quotas through the admin port; the reason if that was not acknowledged, else None."""
        lines = "".join(
            json.dumps(
                {"entity": [{"type": "user", "name": user}], "quota": "producer_byte_rate", "limit": limit}
            )
            + "\n"
            for user, limit in limits.items()
        )
        request = urllib.request.Request(
            f"http://{HOST}:{self._admin}/quotas/import?dry_run={str(dry_run).lower()}",
            data=lines.encode(),
            headers={"Content-Type": "application/x-ndjson"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s):
                return None
        except urllib.error.HTTPError as exc:
            return f"{exc.code}: {exc.read(400).decode(errors='replace').strip()}"
        except OSError as exc:
            return f"not reached: {exc}"

    def close(self) -> None:
        """Stop it and remove its disk."""
        if self._process is not None:
            kill_all(self._process.pid)
            self._process.wait()
        self.disk.unmount()
