"""The paths from the load to the broker: direct, or through one proxy."""

import contextlib
import shutil
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.relay.gateway_config import gateway_config
from benchmarks.relay.native_build import ROOT, NativePrograms
from benchmarks.relay.processes import PinnedProcess, ProcessDied, free_port

DIRECT: Final = "direct"
BARE_RELAY: Final = "bare C epoll relay"
UVLOOP_RELAY: Final = "bare uvloop relay"
HAPROXY: Final = "HAProxy TCP"
GATEWAY: Final = "Sluice"
GATEWAY_COMPILED: Final = "Sluice, compiled"
GATEWAY_WITH_BYTE_QUOTAS: Final = "Sluice, byte quotas"
GATEWAY_WITH_USAGE: Final = "Sluice, usage records"
GATEWAY_WITH_LIMITS: Final = "Sluice, every limit"
GATEWAY_WITH_TOPICS: Final = "Sluice, usage records by topic"

OF_OTHER_CHECKOUT: Final = ", before"

COMPILED: Final = ROOT / "build" / "compiled"
"""Where `make compiled` puts the packages."""

# Only what a TCP proxy needs. Buffers (tune.bufsize) and splicing have the defaults of Debian's package.
# The timeouts keep idle connections open during a run. maxconn fits a limit of 20,000 descriptors.
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
  bind 127.0.0.1:{listen_port}
  server broker 127.0.0.1:{upstream_port}
"""


@dataclass(frozen=True, slots=True)
class RunningPath:
    """An open path: where to connect, and the process whose CPU is measured (none on the direct path).

    The run gives the name, because there are many kinds of gateways.
    """

    name: str
    port: int
    proxy: PinnedProcess | None


Starter = Callable[[int, int, Path], RunningPath]
"""Upstream port, core, folder for files -> the running path."""


def start_direct(upstream_port: int, core: int, folder: Path) -> RunningPath:
    """The broker itself."""
    return RunningPath(DIRECT, upstream_port, None)


def start_relay(
    programs: NativePrograms, upstream_port: int, core: int, folder: Path, *, listen_port: int | None = None
) -> RunningPath:
    """The lower bound: a relay that only copies bytes."""
    port = listen_port or free_port()
    argv = [str(programs.relay), str(port), str(upstream_port)]
    return RunningPath(BARE_RELAY, port, PinnedProcess(argv, core=core, log=folder / "relay.log"))


def start_uvloop_relay(upstream_port: int, core: int, folder: Path) -> RunningPath:
    """The lower bound for Python: a relay that only copies bytes."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.relay.uvloop_relay", str(port), str(upstream_port)]
    return RunningPath(UVLOOP_RELAY, port, PinnedProcess(argv, core=core, log=folder / "uvloop_relay.log"))


def start_haproxy(
    upstream_port: int, core: int, folder: Path, *, listen_port: int | None = None
) -> RunningPath:
    """HAProxy in TCP mode, one thread.

    Raises:
        SystemExit: HAProxy is not installed.
    """
    haproxy = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if haproxy is None:
        raise SystemExit("the benchmark compares with HAProxy: apt-get install haproxy")
    port = listen_port or free_port()
    config = folder / f"haproxy-{port}.cfg"
    config.write_text(HAPROXY_CONFIG.format(listen_port=port, upstream_port=upstream_port))
    argv = [haproxy, "-db", "-f", str(config)]
    return RunningPath(HAPROXY, port, PinnedProcess(argv, core=core, log=folder / "haproxy.log"))


def start_gateway(
    upstream_port: int,
    core: int,
    folder: Path,
    *,
    byte_quotas: bool = False,
    usage: bool = False,
    compiled: bool = False,
    topics: bool = False,
    every_limit: bool = False,
    checkout: Path | None = None,
) -> RunningPath:
    """The gateway with KIP-599 and metrics; optionally with limits that are never reached, or usage records.

    `compiled` selects the compiled core. `checkout` selects another checkout with its own environment.
    """
    port = free_port()
    config = folder / f"sluice-{port}.toml"
    # The only broker has id 1 and so the block's second port.
    first_broker_port = free_port(block=2)
    text = gateway_config(
        f"127.0.0.1:{upstream_port}",
        port,
        free_port(),
        first_broker_port,
        byte_quotas=byte_quotas,
        usage=str(folder / f"usage-{port}") if usage or topics else "",
        topics=topics,
        every_limit=every_limit,
    )
    config.write_text(text)
    programs = Path(sys.executable).parent if checkout is None else checkout.resolve() / ".venv" / "bin"
    sluice = programs / "sluice"
    argv = [str(sluice), "serve", "--config", str(config)]
    if compiled:
        argv = with_compiled_core(argv, ROOT if checkout is None else checkout.resolve())
    elif checkout is not None:
        argv = ["env", f"PYTHONPATH={checkout.resolve()}", *argv]
    return RunningPath(GATEWAY, port, PinnedProcess(argv, core=core, log=folder / f"sluice-{port}.log"))


def with_compiled_core(argv: list[str], checkout: Path = ROOT) -> list[str]:
    """The same command with the compiled core of a checkout (`make compiled` there first)."""
    return ["env", f"PYTHONPATH={checkout / COMPILED.relative_to(ROOT)}", *argv]


def await_answer(path: RunningPath, *, timeout_s: float = 20.0) -> None:
    """Wait until an ApiVersions request through the path is answered.

    Raises:
        ProcessDied: the proxy ended, or the request was not answered in time.
    """
    request = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # version 0, correlation id 1, no client id
    deadline = time.monotonic() + timeout_s
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", path.port), timeout=2) as client,
        ):
            client.sendall(request)
            if len(client.recv(8, socket.MSG_WAITALL)) == 8:
                return
        if path.proxy is not None and not path.proxy.running:
            raise path.proxy.died()
        if time.monotonic() > deadline:
            words = path.proxy.last_words() if path.proxy else ""
            raise ProcessDied(f"{path.name} does not answer\n{words}")
        time.sleep(0.1)


def start_target(name: str, port: int, pid: int) -> RunningPath:
    """A proxy that another program started in front of the null broker, at a fixed port."""
    return RunningPath(name, port, ForeignProcess(pid))


class ForeignProcess(PinnedProcess):
    """A process that the benchmark measures but does not stop."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.argv = [f"pid {pid}"]
        self.log = Path("/dev/null")

    @property
    def running(self) -> bool:
        return Path(f"/proc/{self.pid}").exists()

    def stop(self, *, patience_s: float = 5.0) -> None:
        """Do nothing: another program stops it."""
