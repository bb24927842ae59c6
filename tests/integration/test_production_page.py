"""The page about a production cluster, typed in before three brokers with SASL_SSL and ACLs."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType

from testkit.certificates import Authority
from testkit.loopback import own_host
from testkit.page_commands import DOCS, Block, blocks
from testkit.page_shell import type_in
from testkit.secure_kafka import PASSWORDS, SecureKafka
from tests.integration.conftest import eventually
from tests.integration.gateway_process import free_ports

pytestmark = [pytest.mark.integration, pytest.mark.campaign]  # minutes of Java

PAGE: Final = DOCS / "how-to" / "before-your-production-cluster.md"
HERE: Final = own_host(66, 5)
PORTS: Final = 22
TOOLS: Final = ("kafka-configs", "kafka-acls", "kafka-producer-perf-test")


@pytest.fixture(scope="module")
def brokers() -> Iterator[SecureKafka]:
    """Three with ACLs: `gateway` is their administrator, and `alice` may write to a topic."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:gateway",
    }
    with SecureKafka(3, own_host(77, 5), properties) as secure:
        secure.create_topic("orders")
        secure.allow("alice", AclOperation.WRITE, ResourceType.TOPIC, "orders")
        yield secure


class Place:
    """Where what the page names is: a folder, ports of this machine, and the three brokers."""

    def __init__(self, secure: SecureKafka, folder: Path) -> None:
        self.folder = folder
        self._secure = secure
        first, *_, admin = free_ports(PORTS)
        self.port = first
        self.admin = f"127.0.0.1:{admin}"
        pair = secure.authority.issue("listener", "sluice", hosts=(HERE,))
        for name, file in (("listener.crt", pair.certificate), ("listener.key", pair.key)):
            (folder / name).write_bytes(file.read_bytes())
        (folder / "listener.key").chmod(0o600)
        for name in ("cluster-ca.pem", "listener-ca.pem"):
            (folder / name).write_bytes(secure.authority.certificate.read_bytes())

    def written(self, text: str) -> str:
        """A text of the page with the names of this place."""
        addresses = self._secure.addresses("SASL_SSL")
        text = re.sub(r"kafka-(\d+)\.example:9093", lambda match: str(addresses[int(match[1])]), text)
        for page, here in {
            "0.0.0.0:19093": f"{HERE}:{self.port}",
            "sluice.example:19093": f"{HERE}:{self.port}",
            "sluice.example": HERE,
            "19101": str(self.port + 1),
            "127.0.0.1:9644": self.admin,
            "/etc/sluice": str(self.folder),
            "User:admin": "User:gateway",
            'username="admin" password="admin-secret"': f'username="gateway" password="{PASSWORDS["gateway"]}"',
            'username="app" password="app-secret"': f'username="alice" password="{PASSWORDS["alice"]}"',
            'user="app"': 'user="alice"',
            "user app": "user alice",
            "--entity-name app ": "--entity-name alice ",
        }.items():
            text = text.replace(page, here)
        return text

    @property
    def setup(self) -> str:
        """Kafka's tools under their names, and the gateway's admin port."""
        tools = "\n".join(f'{tool}() {{ sluice kafka-tool {tool} "$@" 2>&1; }}' for tool in TOOLS)
        return f"{tools}\nexport SLUICE_ADMIN=http://{self.admin}\n"


@pytest.fixture
def place(brokers: SecureKafka, tmp_path: Path) -> Place:
    return Place(brokers, tmp_path)


def steps() -> Iterator[Block]:
    """Files and commands of the page; the gateway stays until the end."""
    for block in blocks(PAGE):
        if block.title is not None or block.language == "console":
            stays = "stop with Ctrl-C" if "sluice serve" in block.text else None
            yield replace(block, ready_text=stays)


def test_from_an_empty_configuration_to_quotas_and_back(place: Place) -> None:
    type_in(steps(), place.folder, setup=place.setup, written_as=place.written)


# -- what fails ----------------------------------------------------------------------------------------------


@pytest.fixture
def user(brokers: SecureKafka) -> None:
    """Sluice's own, who may do nothing yet."""
    brokers.set_passwords({"sluice": "sluice-secret"})


def shown(text: str) -> bool:
    """Whether the page's table has it."""
    return f"`{text}`" in PAGE.read_text().partition("## What fails")[2]


def own_store(written: str) -> str:
    """The configuration with quotas in a file, which takes no rights."""
    return written.replace('kind = "topic"', 'kind = "memory"')


def configured(place: Place, change: Callable[[str], str] = lambda text: text) -> list[str]:
    """The command that serves with the page's configuration, changed."""
    (file,) = (block.text for block in blocks(PAGE) if block.title == "sluice.toml")
    place.folder.joinpath("sluice.toml").write_text(change(place.written(file)))
    password = place.folder / "upstream.password"
    if not password.exists():
        password.write_text("sluice-secret")
        password.chmod(0o600)
    return [str(Path(sys.executable).parent / "sluice"), "serve", "--config", str(place.folder / "sluice.toml")]


@contextmanager
def serving(command: list[str]) -> Iterator[Path]:
    """The gateway, whether or not it is ready; gives the file of its log."""
    log = Path(command[-1]).with_suffix(".log")
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield log
    finally:
        process.terminate()
        assert process.wait(60) == 0


def asked(place: Place, path: str) -> str:
    """What the admin port answers; nothing while it is not open."""
    try:
        with urllib.request.urlopen(f"http://{place.admin}{path}", timeout=20) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as exc:
        return exc.read().decode()
    except OSError:
        return ""


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("text", ["certificate verify failed", "SASL authentication error", "no broker answers"])
def test_readyz_says_why_no_broker_is_reached(place: Place, text: str) -> None:
    def change(written: str) -> str:
        if text == "certificate verify failed":
            other = Authority(place.folder, "other").certificate
            (place.folder / "cluster-ca.pem").write_bytes(other.read_bytes())
        elif text == "SASL authentication error":
            (place.folder / "upstream.password").write_text("wrong")
        else:
            return written.replace("SASL_SSL", "SASL_PLAINTEXT", 1).replace("[upstream.tls]\nca", "#", 1)
        return written

    assert shown(text)
    with serving(configured(place, change)):
        eventually(lambda: text in asked(place, "/readyz"))


@pytest.mark.usefixtures("user")
def test_without_rights_a_wrong_key_or_with_a_port_in_use_it_does_not_start(place: Place) -> None:
    def refusal(change: Callable[[str], str] = own_store) -> str:
        done = subprocess.run(configured(place, change), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode != 0
        return done.stderr

    assert shown(text := "needs the rights DESCRIBE, READ and WRITE")
    assert text.removeprefix("needs ") in refusal(lambda written: written)
    assert shown(text := "Address already in use")
    with socket.create_server((HERE, place.port)):
        assert text in refusal()
    assert shown(text := "tls.key")
    key = Authority(place.folder, "another").issue("another", "another").key
    (place.folder / "listener.key").write_bytes(key.read_bytes())
    assert text in refusal()


def is_counted(place: Place, series: re.Pattern[str]) -> bool:
    """Whether a metric has a series like this, above zero."""
    return series.search(asked(place, "/metrics")) is not None


@pytest.mark.usefixtures("user")
def test_brokers_without_a_port_are_named_and_clients_that_fail_are_counted(place: Place) -> None:
    def change(written: str) -> str:
        return own_store(written.replace("broker_ports = 20", "broker_ports = 2"))

    trusted = str(place.folder / "listener-ca.pem")
    other = str(Authority(place.folder, "other").certificate)
    faults = {
        'gateway_tls_handshake_failures_total{reason="rejected_by_peer"}': (other, PASSWORDS["alice"]),
        'gateway_authentications_total{result="failed"}': (trusted, "wrong"),
    }
    with serving(configured(place, change)) as log:
        eventually(lambda: asked(place, "/readyz").startswith("ready"))
        assert shown("brokers_hidden")
        assert "event=brokers_hidden" in log.read_text()
        for series, (authority, password) in faults.items():
            assert shown(series)
            client = AdminClient(
                {
                    "bootstrap.servers": f"{HERE}:{place.port}",
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": authority,
                    "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "alice",
                    "sasl.password": password,
                }
            )
            with pytest.raises(KafkaException):
                client.list_topics(timeout=5)
            name, label = series.rstrip("}").split("{")
            counted = re.compile(rf"^{name}{{.*{label}.*}} ([1-9]\d*)", re.MULTILINE)
            eventually(partial(is_counted, place, counted))
