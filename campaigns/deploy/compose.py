"""``python -m campaigns.deploy.compose``: starts the services of docker-compose.yml here and throttles a client.

Each service is a process in its own network namespace, with the files, arguments, variables, names, users and
published ports that docker-compose.yml gives it. Its programs are those of this machine: the embedded Kafka, this
checkout's gateway, Debian's Prometheus. Grafana is in no package registry, so only tests/contract/test_compose.py
checks its files. Needs root. Exit code 1 when a check failed.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from confluent_kafka import KafkaError, Message, Producer

from campaigns.deploy.private_network import Network, enter
from embedded_kafka import jars
from testkit.packages import require_package

ROOT: Final = Path(__file__).parents[2]
_HANGS_S: Final = 120.0
_CLIENT_ID: Final = "loader"


class Service:
    """A service of docker-compose.yml, as a process of this machine."""

    def __init__(self, name: str, described: dict[str, Any], folder: Path) -> None:
        """Prepare the service without starting it.

        Args:
            name: name of the service.
            described: its entry in the file.
            folder: for its volumes and its log.
        """
        self.name = name
        self.environment: dict[str, str] = {
            key: str(value) for key, value in described.get("environment", {}).items()
        }
        self.ports = [each.split(":") for each in described.get("ports", ())]
        self.log = folder / f"{name}.log"
        self._root = folder / "root" / name
        self._targets: list[str] = []
        for volume in described.get("volumes", ()):
            source, target = volume.split(":")[:2]
            inside = self._root / target[1:]
            inside.parent.mkdir(parents=True, exist_ok=True)
            if source.startswith("."):
                inside.symlink_to(ROOT / source)
            else:
                inside.mkdir()
            self._targets.append(target)
        self.user = described.get("user")
        self.words: list[str] = described.get("command", [])

    def here(self, text: str) -> str:
        """An argument, with the container's root put before mounted paths."""
        for target in self._targets:
            text = re.sub(rf"(^|=)({re.escape(target)})($|/)", rf"\g<1>{self._root}\g<2>\g<3>", text)
        return text


def _kafka(service: Service, folder: Path) -> list[str]:
    """The broker's command, with the properties that its image makes from the variables."""
    properties = {
        key.removeprefix("KAFKA_").lower().replace("_", "."): service.here(value)
        for key, value in service.environment.items()
    }
    data = Path(properties["log.dirs"])
    install = jars.installed()
    shutil.copytree(install.formatted, data, dirs_exist_ok=True)
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id={properties['node.id']}\ndirectory.id=Zk1vVdBsQ0y9fPpW3c7hYg\n"
    )
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return jars.java_command(
        install, "kafka.Kafka", [str(file)], jvm_options=jars.QUICK_START, log_level="INFO"
    )


def _gateway(service: Service) -> list[str]:
    """The image's entry point and command, run as its user without privileges."""
    last = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", last, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.+)$", last, re.MULTILINE)
    program, *words = json.loads(entry) + json.loads(command)
    user, group = str(service.user).split(":")
    drop = [
        "setpriv",
        f"--reuid={user}",
        f"--regid={group}",
        "--clear-groups",
        "--no-new-privs",
        "--bounding-set=-all",
    ]
    return [*drop, str(Path(sys.executable).with_name(program)), *(service.here(word) for word in words)]


def main() -> int:
    """Start everything, throttle a client, and check."""
    enter()
    described: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    began = time.monotonic()
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        services = {
            each: Service(each, what, folder) for each, what in described.items() if each != "grafana"
        }
        network = Network(list(services), folder)
        for service in services.values():
            if service.name == "kafka":
                command = _kafka(service, folder)
            elif service.name == "prometheus":
                program = require_package("prometheus")
                command = [program, *(service.here(word) for word in service.words)]
            else:
                command = _gateway(service)
            _start(stack, service, [*network.command(service.name), *command], folder)
            for host, outside, inside in service.ports:
                network.publish(host, int(outside), service.name, int(inside))
        try:
            found = _look()
        except BaseException:
            for service in services.values():
                print(
                    f"--- {service.name}\n{service.log.read_text(errors='replace')[-3000:]}", file=sys.stderr
                )
            raise
    print(f"**{len(services)} services; {found}; {time.monotonic() - began:.0f} s**")
    return 0


def _start(stack: ExitStack, service: Service, command: list[str], folder: Path) -> None:
    log = stack.enter_context(service.log.open("wb"))
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), **service.environment}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def stop() -> None:
        process.terminate()
        try:
            process.wait(_HANGS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def _look() -> str:
    gateways = {"gateway-1": "127.0.0.1", "gateway-2": "127.0.0.2"}
    for host in gateways.values():
        _until(_is_in_fleet, host)
    waited = {name: _throttled(host) for name, host in gateways.items()}
    for name in gateways:
        _until(_is_scraped, name)
    rules = _ask("rules")["groups"]
    assert sum(len(group["rules"]) for group in rules) > 10, rules
    return ", ".join(f"client throttled by {name} for up to {ms} ms" for name, ms in waited.items())


def _is_in_fleet(host: str) -> bool:
    """Whether a gateway is ready and knows the other one."""
    ready = _get(f"http://{host}:9644/readyz")
    return ready is not None and "gateway_fleet_members 2.0" in (_get(f"http://{host}:9644/metrics") or "")


def _is_scraped(name: str) -> bool:
    """Whether Prometheus has scraped a gateway's throttles."""
    query = f'sum(gateway_produce_throttled_requests_total{{instance="{name}:9644"}}) > 0'
    return bool(_ask(f"query?query={urllib.parse.quote(query)}")["result"])


def _throttled(host: str) -> int:
    """Produce through one gateway until it throttles; the client's longest wait."""
    waits: list[int] = []
    undelivered: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            undelivered.append(error)

    producer = Producer(
        {
            "bootstrap.servers": f"{host}:19092",
            "client.id": _CLIENT_ID,
            "linger.ms": 0,
            "throttle_cb": lambda event: waits.append(round(event.throttle_time * 1000)),
        }
    )
    deadline = time.monotonic() + _HANGS_S
    while not waits:
        assert time.monotonic() < deadline, f"no throttle at {host}"
        for _ in range(8):
            producer.produce("load", b"x" * 500_000, on_delivery=delivered)
        assert producer.flush(_HANGS_S) == 0
    assert not undelivered, undelivered
    return max(waits)


def _ask(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        _get(f"http://127.0.0.1:9090/api/v1/{path}") or '{"data": {"result": []}}'
    )["data"]
    return found


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return None


def _until(holds: Callable[[str], bool], subject: str) -> None:
    deadline = time.monotonic() + _HANGS_S
    while not holds(subject):
        assert time.monotonic() < deadline, f"{holds.__name__} {subject}: never"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
