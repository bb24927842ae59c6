"""Gateways for the faults: processes with small disks, certificates and limits that can be reached."""

from __future__ import annotations

import datetime
import http.client
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from testkit.certificates import Authority, KeyPair
from testkit.faults.effects import SmallDisk
from testkit.gateway import free_ports
from testkit.process_group import kill_all
from testkit.raw_client import HOST

FEW: Final = 20
"""Connection limit of the listener whose connections are used up."""

IMPORTANT_BYTES_PER_S: Final = 1_000
NEAR_BYTES_PER_S: Final = 10_000
NEAR: Final = "near"
_BROKER_PORTS: Final = 2
_PORTS: Final = 1 + _BROKER_PORTS


class FaultyGateway:
    """One gateway, and operations on it.

    Attributes:
        admin: its admin port.
        port, few_port, secure_port: ports of its listeners: a usual one, one with few connections, one that requires
            client certificates.
        store_disk, usage_disk: the disks of its quotas and its usage records.
        billing: the certificate of the important client.
        authority: the authority that has signed it.
    """

    def __init__(self, folder: Path, brokers: str, *, topic: str | None = None) -> None:
        """Prepare the gateway without starting it.

        Args:
            folder: its own folder; created here.
            brokers: the cluster, as TOML texts.
            topic: the topic of its quotas, as a member of a fleet; None for a file without a fleet.
        """
        folder.mkdir()
        self._folder = folder
        self.store_disk = SmallDisk(folder / "store-disk", "256k")
        self.usage_disk = SmallDisk(folder / "usage-disk", "1m")
        self.authority = Authority(folder)
        self._pair = self.authority.issue("gateway", "gateway", hosts=(HOST,))
        self.billing: KeyPair = self.authority.issue("billing", "billing")
        self.issue(days=90)
        first = free_ports(3 * _PORTS + 1)
        self.port, self.few_port, self.secure_port = first, first + _PORTS, first + 2 * _PORTS
        self.admin = f"{HOST}:{first + 3 * _PORTS}"
        self._config = folder / "gateway.toml"
        self.text = self._configuration(brokers, topic)
        self._config.write_text(self.text)
        self._log = folder / "gateway.log"
        self._process: subprocess.Popen[bytes] | None = None

    def _configuration(self, brokers: str, topic: str | None) -> str:
        store = (
            f'kind = "topic"\ntopic = "{topic}"' if topic else f'data_dir = "{self.store_disk.folder}/store"'
        )
        listener = (
            '[[listeners]]\nname = "{}"\nbind = "{}:{}"\nfirst_broker_port = {}\nlowest_broker_id = 1\n'
            f"broker_ports = {_BROKER_PORTS}\n"
        )
        return (
            f'[upstream]\nbootstrap = [{brokers}]\n[admin]\nbind = "{self.admin}"\n[quota_store]\n{store}\n'
            'write_timeout_ms = 3000\n[usage]\nkind = "files"\n'
            f'directory = "{self.usage_disk.folder}/usage"\nmax_queued_bytes = 1048576\nrotate_seconds = 5\n'
            "keep_bytes = 1048576\n"
            + listener.format("any", HOST, self.port, self.port + 1)
            + listener.format("few", HOST, self.few_port, self.few_port + 1)
            + f"max_connections = {FEW}\n"
            + listener.format("secure", HOST, self.secure_port, self.secure_port + 1)
            + f'security_protocol = "SSL"\n[listeners.tls]\ncertificate = "{self._pair.certificate}"\n'
            f'key = "{self._pair.key}"\nclient_auth = "required"\nclient_ca = "{self.authority.certificate}"\n'
            'principal_mapping_rules = "RULE:^CN=(.*?)$/$1/"\n'
            f'[[quotas]]\nuser = "billing"\nproducer_byte_rate = {IMPORTANT_BYTES_PER_S}\n'
            f'[[quotas]]\nclient_id = "{NEAR}"\nproducer_byte_rate = {NEAR_BYTES_PER_S}\n'
            + ('[client_quota]\nscope = "fleet"\n' if topic else "")
        )

    def issue(self, *, days: int) -> None:
        """Install a new certificate that expires in `days` days."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
        new = self.authority.issue("new", "gateway", hosts=(HOST,), valid_until=until)
        new.key.replace(self._pair.key)
        new.certificate.replace(self._pair.certificate)

    def start(self, *, ready: bool = True) -> None:
        """Start it and wait until it can serve clients, or only until it listens."""
        with self._log.open("ab") as log:
            program = Path(sys.executable).with_name("sluice")
            command = [str(program), "serve", "--config", str(self._config)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        wait_for(lambda: self.status("/readyz" if ready else "/healthz") == 200, self.log_tail)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(10)

    def stop(self) -> None:
        """SIGTERM."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        self._process.wait(30)

    def configure(self, text: str) -> None:
        """Write the text to its configuration file and reload it."""
        self._config.write_text(text)
        self.signal(signal.SIGHUP)

    def status(
        self, path: str, *, method: str = "GET", body: str = "", kind: str = "application/json"
    ) -> int:
        """The admin port's status code; 0 without an answer."""
        data = body.encode() if body else None
        asked = urllib.request.Request(
            f"http://{self.admin}{path}",
            data=data,
            headers={"Content-Type": kind} if body else {},
            method=method,
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code
        except (OSError, http.client.HTTPException):
            return 0

    def alter(self, user: str, limit: float) -> bool:
        """Set a quota; whether that succeeded."""
        line = {"entity": [{"type": "user", "name": user}], "quota": "producer_byte_rate", "limit": limit}
        types = "application/x-ndjson"
        return self.status("/quotas/import", method="POST", body=json.dumps(line), kind=types) == 200

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3_000:]

    def close(self) -> None:
        """Stop it and remove its disks."""
        if self._process is not None:
            kill_all(self._process.pid)
            self._process.wait()
        self.store_disk.unmount()
        self.usage_disk.unmount()


def wait_for(fact: Callable[[], bool], told: Callable[[], str] = str, *, seconds: float = 120) -> None:
    """Wait until `fact` is true."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not happen in {seconds:.0f} s: {told()}")
        time.sleep(0.1)
