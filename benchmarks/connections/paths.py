"""The two proxies of the connection benchmarks: the gateway and HAProxy, each with its limits on connections."""

import shutil
import sys
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.relay.native_build import NativePrograms, compile_program
from benchmarks.relay.paths import (
    COMPILED,
    GATEWAY,
    GATEWAY_COMPILED,
    HAPROXY,
    UVLOOP_RELAY,
    RunningPath,
    await_answer,
    start_uvloop_relay,
    with_compiled_core,
)
from benchmarks.relay.processes import PinnedProcess, free_port

SOURCES: Final = Path(__file__).resolve().parent / "native"

# One thread, as the gateway has one. `{limit}` is a line of the listen section.
HAPROXY_CONFIG: Final = """\
global
  nbthread 1
  maxconn 6000

defaults
  mode tcp
  timeout connect 5s
  timeout client 10m
  timeout server 10m

listen bench
  bind 127.0.0.1:{port}
  stick-table type ip size 100k expire 30s store conn_rate(10s)
  tcp-request connection track-sc0 src
  tcp-request connection reject if {{ {reject_if} }}
  server broker 127.0.0.1:{upstream_port}
"""


@dataclass(frozen=True, slots=True)
class Sluice:
    """A running gateway.

    Attributes:
        path: where clients connect, and the process whose CPU time is measured.
        admin_port: port of its metrics.
    """

    path: RunningPath
    admin_port: int

    @property
    def process(self) -> PinnedProcess:
        assert self.path.proxy is not None
        return self.path.proxy

    def metric(self, name: str, **labels: str) -> float:
        """The value of the matching series, or the sum of several."""
        # Imported here, so that measuring HAProxy alone needs no package.
        from prometheus_client.parser import text_string_to_metric_families

        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def compile_crowd() -> Path:
    """Compile the program that opens and closes connections; its path."""
    return compile_program(SOURCES / "crowd.c")


def start_sluice(
    upstream: str,
    core: int,
    folder: Path,
    *,
    tables: str = "",
    listener: str = "",
    more_listeners: Iterable[str] = (),
    limits: str = "",
    name: str = GATEWAY,
    port: int | None = None,
    compiled: bool = False,
) -> Sluice:
    """Start the gateway and wait until it answers.

    Args:
        upstream: bootstrap address, ``host:port``.
        core: the only core it may run on.
        folder: for its configuration and its log.
        tables: additional tables of the configuration, as TOML.
        listener: more keys of the listener.
        more_listeners: whole [[listeners]] tables.
        limits: keys of [limits].
        name: of the path, and of its files.
        port: where to listen; any free one by default.
        compiled: with the compiled core (`make compiled` first).
    """
    port = free_port() if port is None else port
    admin_port = free_port()
    brokers = free_port(block=3)
    key = name.replace(" ", "-")
    config = folder / f"{key}-{port}.toml"
    config.write_text(
        f'[upstream]\nbootstrap = ["{upstream}"]\n'
        f'[admin]\nbind = "127.0.0.1:{admin_port}"\n[quota_store]\nkind = "memory"\n'
        f'[[listeners]]\nname = "bench"\nbind = "127.0.0.1:{port}"\nfirst_broker_port = {brokers}\n'
        f"broker_ports = 3\n{listener}\n" + "\n".join(more_listeners) + f"\n[limits]\n{limits}\n{tables}\n"
    )
    program = Path(sys.executable).with_name("sluice")
    argv = [str(program), "serve", "--config", str(config)]
    if compiled:
        argv = with_compiled_core(argv)
    process = PinnedProcess(argv, core=core, log=folder / f"{key}-{port}.log")
    path = RunningPath(name, port, process)
    await_answer(path)
    return Sluice(path, admin_port)


def start_haproxy(upstream_port: int, core: int, folder: Path, *, reject_if: str, name: str) -> RunningPath:
    """Start HAProxy with a table of connection rates and wait until it answers.

    Args:
        upstream_port: port of the broker.
        core: the only core it may run on.
        folder: for its configuration and its log.
        reject_if: which connections are rejected.
        name: of the path, and of its files.

    Raises:
        SystemExit: HAProxy is not installed.
    """
    haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if haproxy is None:
        raise SystemExit("the benchmark compares with HAProxy: apt-get install haproxy")
    port = free_port()
    config = folder / f"{name.replace(' ', '-')}-{port}.cfg"
    config.write_text(HAPROXY_CONFIG.format(port=port, upstream_port=upstream_port, reject_if=reject_if))
    process = PinnedProcess([haproxy, "-db", "-f", str(config)], core=core, log=folder / "haproxy.log")
    path = RunningPath(name, port, process)
    await_answer(path)
    return path


def start_null_broker(
    programs: NativePrograms, core: int, folder: Path, *, send_buffer_bytes: int | None = None
) -> tuple[PinnedProcess, int]:
    """The null broker, which keeps no records, and its port; without a size the kernel chooses its send buffers."""
    port = free_port()
    words = [str(port), *([] if send_buffer_bytes is None else [str(send_buffer_bytes)])]
    process = PinnedProcess([str(programs.null_broker), *words], core=core, log=folder / "null_broker.log")
    return process, port


__all__ = [
    "COMPILED",
    "GATEWAY",
    "GATEWAY_COMPILED",
    "HAPROXY",
    "UVLOOP_RELAY",
    "Sluice",
    "await_answer",
    "compile_crowd",
    "start_haproxy",
    "start_null_broker",
    "start_sluice",
    "start_uvloop_relay",
]
