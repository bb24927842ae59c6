"""What is served with which arguments; the gateway and the embedded Kafka themselves are tested elsewhere."""

import json
import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

import config
from config.sections.quota_admin import Authorize
from embedded_kafka import kafka
from gateway import app
from gateway.cli import serve
from gateway.cli.kafka_tool import TOOLS
from gateway.observability import logging_setup
from gateway.server.operations import ConfigSource
from tests.gateway.cli.conftest import Run

TEXT = '[upstream]\nbootstrap = ["k:1"]\n[[listeners]]\nname = "a"\nbind = "127.0.0.1:29092"\n'


@pytest.fixture(autouse=True)
def _restore(signal_handlers: None) -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[config.Config, str]]:
    """What the gateway would have been run with; log settings are left alone."""
    calls: list[tuple[config.Config, str]] = []

    def run(found: config.Config, *, banner: str, source: ConfigSource | None, member: None) -> int:
        assert source is None or source.read() == found
        calls.append((found, banner))
        return 7

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(logging_setup, "setup", lambda level, format, cluster: None)
    monkeypatch.setattr(logging_setup, "report_suppressed", lambda limiter: None)
    return calls


Served = list[tuple[config.Config, str]]


def test_file_is_served_and_the_gateways_exit_code_returned(served: Served, file: Path, run: Run) -> None:
    file.write_text(TEXT)
    assert run("serve", "--config", file)[0] == 7
    assert [found for found, _ in served] == [config.load(file)]


def test_upstream_without_a_file_is_served_on_loopback(served: Served, run: Run) -> None:
    assert run("serve", "--upstream", "a:1,b:2", "c:3", "--upstream", "[::1]:4")[0] == 7
    brokers = config.parse_bootstrap("a:1,b:2,c:3,[::1]:4")
    assert [found for found, _ in served] == [config.default_config(brokers)]


def test_upstream_wins_over_the_file_and_keeps_the_rest_of_it(served: Served, file: Path, run: Run) -> None:
    file.write_text(TEXT)
    run("serve", "--config", file, "--upstream", "z:9")
    ((found, banner),) = served
    assert found.upstream.bootstrap == config.parse_bootstrap("z:9")
    assert found.listeners == config.load(file).listeners
    assert all(text in banner for text in ("z:9", "127.0.0.1:29092", "http://127.0.0.1:9644/metrics"))


def test_own_port_as_upstream_is_refused(served: Served, run: Run) -> None:
    code, _, err = run("serve", "--upstream", "127.0.0.1:19092")
    assert (code, err.count("\n"), served) == (2, 1, [])


class FakeCluster:
    """Stands for the embedded Kafka."""

    bootstrap = "127.0.0.1:25001"
    directory = Path("/of/kafka")
    fails: Exception | None = None
    log: list[str]

    def start(self) -> None:
        self.log.append("start")
        if self.fails is not None:
            raise self.fails

    def stop(self) -> None:
        self.log.append("stop")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    fake: Any = type("Fake", (FakeCluster,), {"log": []})
    monkeypatch.setattr(kafka, "KafkaCluster", fake)
    monkeypatch.setattr(serve, "_DEMO_PORTS", ())
    return fake


def test_without_arguments_a_kafka_is_started_and_stopped(
    served: Served, cluster: type[FakeCluster], run: Run
) -> None:
    assert run("serve")[0] == 7
    ((found, banner),) = served
    assert found.upstream.bootstrap == config.parse_bootstrap(FakeCluster.bootstrap)
    assert cluster.log == ["start", "stop"]
    assert found.quota_store.data_dir == "/of/kafka/gateway"
    assert (found.usage.kind, found.usage.directory) == ("files", "/of/kafka/usage")
    for text in ("usage /of/kafka/usage", "127.0.0.1:19092", "http://127.0.0.1:9644/metrics", "Ctrl-C"):
        assert text in banner


def test_kafka_that_does_not_start_is_cleaned_up(served: Served, cluster: type[FakeCluster], run: Run) -> None:
    cluster.fails = kafka.KafkaStartError("broker 1 ended")
    assert run("serve")[::2] == (2, "sluice: broker 1 ended\n")
    assert (cluster.log, served) == (["start", "stop"], [])


def test_no_kafka_is_fetched_or_started_while_a_port_is_taken(
    served: Served, cluster: type[FakeCluster], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = config.HostPort("127.0.0.1", taken.getsockname()[1])
        monkeypatch.setattr(serve, "_DEMO_PORTS", (address,))
        assert run("serve")[::2] == (2, f"sluice: cannot listen on {address}: Address already in use\n")
    assert (cluster.log, served) == ([], [])


def demonstration() -> config.Config:
    """What the banner is made for."""
    return config.default_config(config.parse_bootstrap("k:1"), quota_admin=serve._DEMO_RIGHTS)


def test_demonstration_uses_its_quota_up_lets_anybody_change_it_and_warns_of_it() -> None:
    found = demonstration()
    settings = found.mutation_settings()
    burst = serve._DEMO_RATE * settings.window_num * settings.window_ms / 1000
    banner = serve.demo_banner(found)
    commands = [line for line in banner.splitlines() if f"client_id={serve._DEMO_CLIENT_ID}" in line]
    partitions = [int(re.findall(r"--num-partitions (\d+)", line)[0]) for line in commands]
    assert len(partitions) == 2
    # Deep enough for the second command to be typed while the debt lasts.
    assert (partitions[0] - burst) / serve._DEMO_RATE > 30
    found = demonstration()
    assert found.quota_admin.authorize is Authorize.ANYONE
    assert any("quota_admin.authorize" in line for line in map(str, config.findings(found)))
    assert config.default_config(config.parse_bootstrap("k:1")).quota_admin.authorize is Authorize.DENY


def test_demonstrated_commands_are_shell_words_and_ours_are_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = r"^ {2,4}\S.*? {2,}(\S*(?:python\S* -m|sluice) .*)$"
    commands = re.findall(shown, serve.demo_banner(demonstration()), re.MULTILINE)
    assert len(commands) >= 6
    assert all(shlex.split(command) for command in commands)
    monkeypatch.setattr("sys.executable", "/opt/it/bin/python")
    ours = re.findall(r"/opt/it/bin/sluice (\S+) (\S+)", serve.demo_banner(demonstration()))
    assert ("kafka-tool", "kafka-configs") in ours
    assert {command for command, _ in ours} == {"kafka-tool", "quotas", "top", "usage", "why"}
    assert {tool for command, tool in ours if command == "kafka-tool"} <= TOOLS.keys()


def test_a_gateway_with_a_kafka_of_its_own_is_not_replaced_and_the_one_that_asked_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setenv("SLUICE_UPGRADE_FD", str(theirs.detach()))
    assert run("serve")[0] == 2
    assert json.loads(ours.recv(4096)) == ["failed", "a gateway with a Kafka of its own cannot be upgraded"]
    ours.close()
