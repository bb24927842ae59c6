"""The gateway as operators run it, `sluice serve --config FILE`, with the tap between it and its clients.

The gateway listens on GATEWAY_HOST and advertises TAP_HOST with the same ports; the tap listens there. With
SLUICE_TEST_WORKERS=3 in the environment all gateways have so many workers, and are to be the same.
"""

import contextlib
import http.client
import io
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gateway.cli.main import main
from testkit.forked_sluice import ForkedSluice, start_forked
from testkit.loopback import own_host
from testkit.polling import pause_s
from testkit.process_group import kill_all
from testkit.secrets import OUTPUTS
from testkit.tap import Tap

GATEWAY_HOST: Final = own_host(66)
TAP_HOST: Final = own_host(88)
BROKER_PORTS: Final = 4

# Below the ports that the kernel gives to outgoing connections.
_PORTS: Final = range(12_000, 19_000)
_GIVEN: Final[set[int]] = set()
_START_TIMEOUT_S: Final = 60.0


class Address(NamedTuple):
    """Where to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What tests want of a gateway.

    Attributes:
        quotas: client id -> controller mutations per second.
        upstream: more keys of this section of the configuration file, as TOML text.
        listener: more keys of the listener, and tables inside it.
        tables: more sections.
    """

    quotas: Mapping[str, float] = field(default_factory=dict)
    upstream: str = ""
    listener: str = ""
    tables: str = ""


class GatewayProcess:
    """One gateway behind the tap.

    Attributes:
        bootstrap: where clients go, on the tap.
        log_file: what it wrote to standard error.
    """

    def __init__(
        self, directory: Path, upstream: Iterable[tuple[str, int]], tap: Tap, options: GatewayOptions | None = None
    ) -> None:
        """Choose ports and write the configuration; nothing runs yet.

        Args:
            directory: for the configuration and the log; exists.
            upstream: the brokers to begin with.
            tap: relays to it while it runs.
            options: none for a gateway without quotas.
        """
        self._tap = tap
        self._ports = free_ports(2 + BROKER_PORTS)
        self.bootstrap = Address(TAP_HOST, self._ports[0])
        self._admin = Address(GATEWAY_HOST, self._ports[-1])
        self._config = directory / "gateway.toml"
        self.log_file = directory / "gateway.log"
        self._process: ForkedSluice | None = None
        brokers = ", ".join(f'"{host}:{port}"' for host, port in upstream)
        self._config.write_text(self._configuration(brokers, options or GatewayOptions()))

    def _configuration(self, brokers: str, options: GatewayOptions) -> str:
        text = f"""\
[upstream]
bootstrap = [{brokers}]
{options.upstream}

[[listeners]]
name = "tapped"
bind = "{GATEWAY_HOST}:{self._ports[0]}"
advertised_host = "{TAP_HOST}"
first_broker_port = {self._ports[1]}
lowest_broker_id = 1
broker_ports = {BROKER_PORTS}
{options.listener}

[admin]
bind = "{self._admin}"

{options.tables}
"""
        workers = os.environ.get("SLUICE_TEST_WORKERS")
        if workers is not None and "[server]" not in options.tables:
            text += f"[server]\nworkers = {workers}\n"
        if "[log]" not in options.tables:
            text += '[log]\nlevel = "debug"\n'  # what is never sent, is not there either (hazard H15)
        if "[quota_store]" not in options.tables:
            text += f'[quota_store]\ndata_dir = "{self._config.parent / "data"}"\n'
        for client_id, rate in options.quotas.items():
            text += f'\n[[quotas]]\nclient_id = "{client_id}"\ncontroller_mutation_rate = {float(rate)}\n'
        return text

    def broker(self, broker_id: int) -> Address:
        """Where clients find this broker, on the tap."""
        return Address(TAP_HOST, self._ports[broker_id])

    def behind_tap(self, broker_id: int) -> Address:
        """Where the gateway itself listens for this broker."""
        return Address(GATEWAY_HOST, self._ports[broker_id])

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    def start(self, *, ready: bool = True) -> None:
        """Start it.

        Args:
            ready: wait until clients can be served; otherwise only until it listens.
        """
        OUTPUTS.watch(self.log_file)
        if self._process is not None:
            self._process.release()
        with self.log_file.open("ab") as log:
            self._process = start_forked(["serve", "--config", str(self._config)], log)
        for port in self._ports[:-1]:
            self._tap.relay(port, (GATEWAY_HOST, port))
        try:
            self.eventually(lambda: self.http("/readyz")[0] == 200 if ready else self.http("/healthz")[0] == 200)
        except BaseException:
            self.stop()
            raise

    @property
    def config_file(self) -> Path:
        """What it was started with."""
        return self._config

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        assert self._process is not None
        return self._process.wait(timeout_s)

    def stop(self) -> None:
        """End all its processes, whatever state they are in; what it has let out is searched for secrets."""
        try:
            if self.running:
                with contextlib.suppress(OSError, http.client.HTTPException):  # it may be too busy to answer
                    OUTPUTS.look_at_process(self.pid, str(self._admin))
            self._tap.stop_relaying(self._ports[:-1])
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()
                # The second signal asks for no patience with what is still in flight.
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)
        finally:
            if self._process is not None:
                kill_all(self._process.pid)
                self._process.wait()
                self._process.release()
                self._process = None
        OUTPUTS.look()
        OUTPUTS.look_at_files(self._config.parent)

    def http(self, path: str) -> tuple[int, str]:
        """Ask the admin port: status and text; status 0 while no one listens."""
        try:
            with urllib.request.urlopen(f"http://{self._admin}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()
        except OSError:
            return 0, ""

    @property
    def admin(self) -> Address:
        """The admin port."""
        return self._admin

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """What a command of `sluice` does with this gateway, in this process: its imports take half a second."""
        arguments = [*words, "--admin", str(self._admin)]
        printed, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            code = main(arguments)
        return subprocess.CompletedProcess(arguments, code, printed.getvalue(), errors.getvalue())

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of one series, the sum when several fit the labels; None when there is none."""
        status, text = self.http("/metrics")
        assert status == 200
        found = [
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None

    def eventually(self, condition: Callable[[], bool], within_s: float = _START_TIMEOUT_S) -> None:
        """Wait for something; fails with the log when it does not come or the process ends."""
        began = time.monotonic()
        while not condition():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > began + within_s:
                what = "ended" if ended else "did not get there in time"
                raise AssertionError(f"the gateway {what}; its log:\n{self.log_file.read_text()[-4000:]}")
            time.sleep(pause_s(time.monotonic() - began))


def free_ports(count: int) -> list[int]:
    """That many consecutive ports, free on the gateway's address, on the tap's, and on that of the admin port.

    None twice: anyone who asked before may not have taken it yet.
    """
    dice = random.SystemRandom()  # the shared one is seeded alike in every process of a test run
    for first in dice.sample(_PORTS, len(_PORTS)):
        ports = list(range(first, first + count))
        if not _GIVEN.isdisjoint(ports):
            continue
        if all(_free(host, port) for port in ports for host in (GATEWAY_HOST, TAP_HOST, "127.0.0.1")):
            _GIVEN.update(ports)
            return ports
    raise OSError(f"no {count} consecutive free ports between {_PORTS.start} and {_PORTS.stop}")


def _free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
