"""The gateways of a campaign: processes that are killed, stopped and paused, and what they say."""

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
"""As long as a deadline may be extended to, however busy the machine is."""

_USAGE_LINES: Final = re.compile(r'^gateway_usage_lines_total\{result="(\w+)"\} (\S+)$', re.MULTILINE)


def copy_of_source(folder: Path) -> Path:
    """A copy of what gateways run from, so that a long campaign does not see how the source changes."""
    for package in _PACKAGES:
        shutil.copytree(_ROOT / package, folder / package)
    return folder


def broker_away(cluster: KafkaCluster, broker: int, end: Callable[[int], None]) -> Away:
    """A broker that `end` ends meanwhile."""
    return Away(lambda: end(broker), lambda: cluster.start_broker(broker), lambda: broker in cluster.running)


class Patience:
    """A deadline for a gateway: what it waits for a CPU that others use does not count, up to a bound."""

    def __init__(self, gateway: ChaosGateway, within_s: float) -> None:
        """From now on."""
        self._gateway, self._within_s = gateway, within_s
        self._began_s, self._starved_before_s = time.monotonic(), gateway.starved_s()
        self._process = gateway.pid

    @property
    def over(self) -> bool:
        """Whether it has had its time."""
        elapsed_s = time.monotonic() - self._began_s
        return elapsed_s >= MOST_TIMES * self._within_s or elapsed_s - self._starved_s >= self._within_s

    @property
    def _starved_s(self) -> float:
        # Another process begins with nothing; so does one that has ended.
        before_s = self._starved_before_s if self._gateway.pid == self._process else 0.0
        return max(0.0, self._gateway.starved_s() - before_s)

    def __str__(self) -> str:
        """How long it was."""
        elapsed_s = time.monotonic() - self._began_s
        return f"{elapsed_s:.1f} s, of which it waited {self._starved_s:.1f} s for a CPU"


class ChaosGateway:
    """One gateway.

    Attributes:
        port: for clients.
        disk: that its SQLite file is on.
        clock: the file that sets its wall clock.
        folder: its configuration, log, store and usage records.
        running: whether there is a process.
        exit_codes: of processes that were asked to end.
        steady_since_s: when it was last started or went on after a pause.
        draining_s: how long its last end took.
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
        """Nothing runs yet.

        Args:
            folder: of its own; made here.
            brokers: the cluster, as TOML texts.
            topic: that keeps its quotas; None: a SQLite file.
            disk_bytes: of the disk that the file is on; 0: any. Only root may mount one.
            source: where the programs are.
            without: rows whose mending is taken out; see `stepped_gateway`.
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
        """Its usage records."""
        return self.folder / "usage"

    @property
    def log(self) -> Path:
        """What it wrote."""
        return self.folder / "gateway.log"

    @property
    def pid(self) -> int | None:
        """Of the latest process."""
        return self._process.pid if self._process is not None else None

    def starved_s(self) -> float:
        """How long the loop of its process was ready to run, and others had the CPU."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
        except OSError:
            return 0.0

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it; it may get ready later."""
        self.steady_since_s = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "campaigns.chaos.stepped_gateway", "serve", "--config", self._config],
                cwd=self._source,
                env={
                    # Debug modes of the tests are not for processes whose time is measured.
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
        """Have its process stand still meanwhile."""
        with Stopped([self.pid or 0]):
            try:
                yield
            finally:
                self.steady_since_s = time.monotonic()

    def away(self, number: signal.Signals) -> Away:
        """Ended by a signal meanwhile."""
        return Away(lambda: self.end(number), self.start, lambda: self.running)

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait; SIGTERM has to end it with 0."""
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
        """Each time that its loop worked for long without a break: CPU time."""
        return [int(line) for line in self._stalls.read_text().split()] if self._stalls.exists() else []

    def usage_lines(self) -> dict[str, int]:
        """What became of its usage lines: made, delivered, dropped.

        Raises:
            OSError: it can't be asked.
        """
        with urllib.request.urlopen(f"http://{HOST}:{self._admin}/metrics", timeout=5) as answer:
            found = _USAGE_LINES.findall(answer.read().decode())
        return {result: int(float(count)) for result, count in found}

    def why_not_ready(self) -> str | None:
        """None: /readyz is green."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._admin}/readyz", timeout=2):
                return None
        except urllib.error.HTTPError as exc:
            return exc.read().decode().strip()
        except OSError as exc:
            return f"not reached: {exc}"

    def await_ready(self, within_s: float = _START_S) -> str | None:
        """Wait until it is ready; why it is not."""
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
        """User -> limit, of what is in force.

        Raises:
            OSError: it can't be asked.
        """
        with urllib.request.urlopen(f"http://{HOST}:{self._admin}/quotas", timeout=5) as answer:
            rows: list[dict[str, Any]] = json.loads(answer.read())["quotas"]
        return {str(row["entity"][0]["name"]): float(row["limit"]) for row in rows}

    def set_quotas(
        self, limits: dict[str, float], timeout_s: float = 10.0, *, dry_run: bool = False
    ) -> str | None:
        """Set them, by the admin port; why that was not acknowledged."""
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
        """End it for good."""
        if self._process is not None:
            kill_all(self._process.pid)
            self._process.wait()
        self.disk.unmount()
