"""``python -m campaigns.deploy.image``: builds the image, starts it from its own files and sends clients through it.

The process gets the same environment as from a container engine: the image's files as its read-only root; the image's
user, variables and working directory; no privileges; separate namespaces for mounts, processes and network. Needs
root. Exit code 1 when a check failed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer

from campaigns.deploy.private_network import enter
from embedded_kafka.kafka import KafkaCluster

ROOT: Final = Path(__file__).parents[2]
BUILT: Final = ROOT / "build" / "image"
_HANGS_S: Final = 120.0
_RECORDS: Final = 20_000
_PR_SET_NO_NEW_PRIVS: Final = 38
_READ_ONLY: Final = os.ST_RDONLY
_CONFIG: Final = """
[upstream]
bootstrap = ["{bootstrap}"]
[[listeners]]
name = "clients"
bind = "127.0.0.1:19092"
[usage]
kind = "files"
directory = "usage"
"""
_UNWANTED: Final = ("bin/gcc", "bin/java", "bin/apt-get", "bin/perl5", "local/bin/pip")


class Container:
    """The image's files as the root of processes."""

    def __init__(self, config: str) -> None:
        """Mount the same file systems as a container engine.

        Args:
            config: the text of /etc/sluice/sluice.toml.
        """
        self.described: dict[str, Any] = json.loads((BUILT / "config.json").read_text())
        self.environment = dict(each.split("=", 1) for each in self.described["Env"])
        self._uid, self._gid = (int(each) for each in self.described["User"].split(":"))
        self.root = BUILT / "root"
        for name in ("etc/sluice", "proc", "dev"):
            (self.root / name).mkdir(exist_ok=True)
        (self.root / "etc/sluice/sluice.toml").write_text(config)
        _run("mount", "--bind", str(self.root), str(self.root))
        _run("mount", "-o", "remount,bind,ro", str(self.root))
        _run("mount", "-t", "proc", "proc", str(self.root / "proc"))
        _run("mount", "-t", "tmpfs", "tmpfs", str(self.root / "dev"))
        for device in ("null", "urandom"):
            (self.root / "dev" / device).touch()
            _run("mount", "--bind", f"/dev/{device}", str(self.root / "dev" / device))
        owner = f"uid={self._uid},gid={self._gid},mode=0750"
        _run("mount", "-t", "tmpfs", "-o", owner, "tmpfs", str(self.root / "var/lib/sluice"))

    def start(self, words: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program of the image."""
        folders = self.environment["PATH"].split(":")
        program = next(
            f"{folder}/{words[0]}" for folder in folders if os.path.lexists(self.root / folder[1:] / words[0])
        )
        return subprocess.Popen(
            [program, *words[1:]], env=self.environment, preexec_fn=self._enter, **options
        )

    def _enter(self) -> None:
        os.chroot(self.root)
        os.chdir(self.described["WorkingDir"])
        os.setgroups([])
        os.setgid(self._gid)
        os.setuid(self._uid)
        assert ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0

    def output(self, *words: str) -> tuple[int, str]:
        """The exit code and output of a program of the image."""
        process = self.start(list(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text, _ = process.communicate(timeout=_HANGS_S)
        return process.returncode, text.decode()

    def healthy(self) -> bool:
        """Whether the image's health check passes."""
        kind, *words = self.described["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.output(*words)[0] == 0


def main() -> int:
    """Build, start and check the image."""
    parser = argparse.ArgumentParser(prog="python -m campaigns.deploy.image", description=__doc__)
    parser.add_argument("--built", action="store_true", help="take what `make image` has left in build/image")
    options = parser.parse_args()
    figure = BUILT / "figure"
    if not options.built:
        began = time.monotonic()
        size = _run(str(ROOT / "deploy" / "image" / "build.sh")).splitlines()[-1]
        seconds = time.monotonic() - began
        bill = _run(
            sys.executable, "-m", "campaigns.deploy.sbom", str(BUILT / "root"), str(BUILT / "sluice.cdx.json")
        )
        figure.write_text(f"{size}, {bill.split()[-2]} components, built in {seconds:.0f} s")
        os.execv(sys.executable, [*sys.orig_argv, "--built"])
    enter()
    _run("ip", "link", "set", "lo", "up")
    with KafkaCluster(1) as kafka:
        seconds = _serve(Container(_CONFIG.format(bootstrap=kafka.bootstrap)))
    built = figure.read_text() if figure.exists() else "as built"
    print(f"**{built}; ready after {seconds:.1f} s; {_RECORDS:,} records through it**")
    return 0


def _serve(container: Container) -> float:
    files, described = container.root, container.described
    assert os.statvfs(files).f_flag & _READ_ONLY
    assert not [name for name in _UNWANTED if (files / "usr" / name).exists()]
    assert not list(files.glob("opt/sluice/bin/pip*"))
    assert (files / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 0, "authorities, for TLS to brokers"
    assert not _run("find", str(files / "usr"), "-xdev", "-type", "f", "-perm", "/6000"), (
        "nothing runs as its owner"
    )
    labels = {key.rpartition(".")[2]: value for key, value in described["Labels"].items()}
    assert labels["title"] == "Sluice"
    assert labels["licenses"] == "Apache-2.0"
    code, text = container.output("sluice", "--version")
    assert (code, text.strip()) == (0, f"sluice {labels['version']}, compiled core"), text
    assert container.output("sleep", "0") == (0, ""), "the chart's preStop needs it"
    assert not container.healthy(), "nothing serves yet"
    log = BUILT / "serve.log"
    with ExitStack() as stack:
        began = time.monotonic()
        words = [*described["Entrypoint"], *described["Cmd"]]
        process = container.start(
            words, stdout=subprocess.DEVNULL, stderr=stack.enter_context(log.open("wb"))
        )
        stack.callback(process.kill)
        try:
            seconds = _await_ready(began, process)
            status = Path(f"/proc/{process.pid}/status").read_text()
            facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert facts["Uid"].split() == [described["User"].split(":")[0]] * 4
            assert int(facts["CapEff"], 16) == 0
            assert container.healthy()
            _send_through()
            process.send_signal(signal.Signals[described["StopSignal"]])
            assert process.wait(_HANGS_S) == 0
        except BaseException:
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)
            raise
    state = {path.name for path in (files / "var/lib/sluice").iterdir()}
    assert {"sluice-data", "usage"} <= state, state
    return seconds


def _await_ready(began: float, process: subprocess.Popen[bytes]) -> float:
    while time.monotonic() - began < _HANGS_S:
        assert process.poll() is None, "it has ended"
        try:
            with urllib.request.urlopen("http://127.0.0.1:9644/readyz", timeout=5):
                return time.monotonic() - began
        except OSError:
            time.sleep(0.1)
    raise AssertionError("not ready")


def _send_through() -> None:
    """Send records through the gateway with a producer and a consumer of librdkafka."""
    undelivered: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            undelivered.append(error)

    producer = Producer({"bootstrap.servers": "127.0.0.1:19092", "queue.buffering.max.messages": _RECORDS})
    for number in range(_RECORDS):
        producer.produce("through", str(number).encode(), on_delivery=delivered)
    assert producer.flush(_HANGS_S) == 0
    assert not undelivered, undelivered
    consumer = Consumer(
        {"bootstrap.servers": "127.0.0.1:19092", "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["through"])
    found: set[int] = set()
    deadline = time.monotonic() + _HANGS_S
    while len(found) < _RECORDS:
        assert time.monotonic() < deadline, f"{len(found)} of {_RECORDS} came back"
        for message in consumer.consume(1_000, timeout=1.0):
            assert message.error() is None, message.error()
            found.add(int(message.value()))
    consumer.close()


def _run(*command: str) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
