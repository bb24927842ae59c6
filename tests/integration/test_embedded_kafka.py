"""The embedded Kafka: starts, serves, loses brokers, keeps nothing running and nothing lying about."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from embedded_kafka import jars
from embedded_kafka.kafka import Address, KafkaCluster, KafkaStartError
from embedded_kafka.probe import ready
from embedded_kafka.tools import run_tool
from pinned_jars import MissingProgramError
from tests.integration.conftest import eventually

pytestmark = pytest.mark.integration

TOPICS = "org.apache.kafka.tools.TopicCommand"


def test_three_brokers_hold_three_replicas_and_lose_and_regain_one(kafka3: KafkaCluster) -> None:
    assert sorted(kafka3.running) == [1, 2, 3]
    assert topics(kafka3, "--create", "--topic", "replicated", "--replication-factor", "3").returncode == 0
    address, pid = kafka3.brokers[2], kafka3.pid(2)
    kafka3.kill_broker(2)
    try:
        assert sorted(kafka3.running) == [1, 3]
        assert not alive(pid)
        assert not listening(address)
    finally:
        kafka3.start_broker(2)
    assert kafka3.brokers[2] == address
    assert kafka3.pid(2) != pid
    assert ready(*address, broker_ids={1, 2, 3})


@pytest.fixture(scope="module")
def configured() -> Iterator[KafkaCluster]:
    """A broker with properties of ours, which may have ended."""
    properties = {"num.partitions": 7, "advertised.listeners": "PLAINTEXT://broker-{id}.invalid:{port}"}
    cluster = KafkaCluster(host="127.77.0.8", properties=properties).start()
    yield cluster
    cluster.stop()


def test_given_property_wins_and_knows_the_broker_it_is_for(configured: KafkaCluster) -> None:
    written = (configured.directory / "broker-1" / "server.properties").read_text()
    assert "num.partitions=7\n" in written
    assert f"advertised.listeners=PLAINTEXT://broker-1.invalid:{configured.brokers[1].port}\n" in written


def test_failed_start_says_why_and_keeps_the_log() -> None:
    cluster = KafkaCluster(host="127.77.0.8", properties={"log.retention.ms": "never"})
    with pytest.raises(KafkaStartError, match=r"(?s)broker 1 ended while it started.*log\.retention\.ms") as caught:
        cluster.start()
    assert str(cluster.log_file(1)) in str(caught.value)
    assert cluster.log_file(1).exists()
    assert cluster.running == []
    cluster.stop()
    assert not cluster.directory.exists()


def test_broker_dies_when_its_keeper_is_killed(configured: KafkaCluster) -> None:
    pid = configured.pid(1)
    os.kill(parent_of(pid), signal.SIGKILL)
    eventually(lambda: not alive(pid))
    eventually(lambda: configured.running == [])


def test_foreground_program_prints_its_address_and_stops_on_sigterm() -> None:
    command = [sys.executable, "-m", "embedded_kafka", "--host", "127.77.0.8"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        host, port = program.stdout.readline().removeprefix("bootstrap: ").strip().split(":")
        assert ready(host, int(port), broker_ids={1})
        program.terminate()
        assert program.wait(20) == 0
        assert not listening(Address(host, int(port)))


def test_probe_says_no_where_nobody_or_somebody_else_listens() -> None:
    with socket.create_server(("127.77.0.8", 0)) as server:
        address = Address(*server.getsockname())
        closer = threading.Thread(target=lambda: server.accept()[0].close())
        closer.start()
        assert not ready(*address, broker_ids={1})
        closer.join()
    assert not ready(*address, broker_ids={1})


def test_missing_java_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingProgramError, match="apt-get install default-jre-headless"):
        jars.java()


def test_cache_folder_can_be_moved_and_is_filled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = jars.installed()
    fake_maven = tmp_path / "bin" / "mvn"
    fake_maven.parent.mkdir()
    fake_maven.write_text(
        "#!/bin/sh\necho called >> $CALLS\nsleep 0.3\n"
        'for word; do case $word in -DoutputDirectory=*) cp -r "$JARS" "${word#*=}";; esac; done\n'
    )
    fake_maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake_maven.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("JARS", str(here.libs))
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "elsewhere"))
    command = [sys.executable, "-m", "embedded_kafka.jars"]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(subprocess.run, command, capture_output=True, text=True) for _ in range(2)]
    printed = [program.result().stdout.strip() for program in both]
    assert printed == [str(tmp_path / "elsewhere" / here.root.name)] * 2
    assert (tmp_path / "calls").read_text() == "called\n"
    assert any(jars.installed().formatted.rglob("*.checkpoint"))


def topics(cluster: KafkaCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_tool(TOPICS, ["--bootstrap-server", cluster.bootstrap, *arguments])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def listening(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=1).close()
    except OSError:
        return False
    return True
