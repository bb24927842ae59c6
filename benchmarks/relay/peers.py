"""Other projects' proxies for comparison: Kroxylicious, which knows Kafka's protocol, and a TCP proxy in Go.

Both have pinned versions, are fetched once, and run with their defaults. Kroxylicious has no filters, so it forwards
frames unchanged.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from benchmarks.relay.native_build import CACHE
from benchmarks.relay.paths import RunningPath
from benchmarks.relay.processes import PinnedProcess, free_port
from pinned_jars import cache_dir, ensure, program

KROXYLICIOUS: Final = "Kroxylicious 0.12.0"
GO_PROXY: Final = "Go tcpproxy"

_HERE: Final = Path(__file__).resolve().parent
_JAVA: Final = _HERE / "kroxylicious_peer"
_GO: Final = _HERE / "go_proxy"
KROXYLICIOUS_CONFIG: Final = """\
virtualClusters:
  - name: bench
    targetCluster:
      bootstrapServers: 127.0.0.1:{upstream_port}
    gateways:
      - name: default
        portIdentifiesNode:
          bootstrapAddress: 127.0.0.1:{listen_port}
          advertisedBrokerAddressPattern: 127.0.0.1
          nodeStartPort: {node_port}
          nodeIdRanges:
            - name: brokers
              start: 1
              end: 1
"""


def kroxylicious_command(upstream_port: int, folder: Path) -> tuple[list[str], int]:
    """How to start Kroxylicious, and the port at which it then listens.

    Raises:
        MissingProgramError: no Java or no Maven on this machine.
        FetchError: Maven failed.
    """
    libs = cache_dir() / KROXYLICIOUS.replace(" ", "-").lower() / "libs"
    ensure(libs, _JAVA / "pom.xml", f"{KROXYLICIOUS} (30 MB)")
    port = free_port(block=2)
    config = folder / f"kroxylicious-{port}.yaml"
    config.write_text(
        KROXYLICIOUS_CONFIG.format(upstream_port=upstream_port, listen_port=port, node_port=port + 1)
    )
    java = program("java", package="default-jdk-headless")
    return [java, "-Xmx1g", "-cp", f"{libs}/*", str(_JAVA / "StartKroxylicious.java"), str(config)], port


def start_kroxylicious(upstream_port: int, core: int, folder: Path) -> RunningPath:
    """Kroxylicious on one core; raises as `kroxylicious_command` does."""
    argv, port = kroxylicious_command(upstream_port, folder)
    log = folder / f"kroxylicious-{port}.log"
    return RunningPath(KROXYLICIOUS, port, PinnedProcess(argv, core=core, log=log))


def start_go_proxy(upstream_port: int, core: int, folder: Path) -> RunningPath:
    """A proxy that copies bytes, with one thread for Go's goroutines.

    Raises:
        MissingProgramError: Go is not installed.
        SystemExit: Go could not build it.
    """
    binary = CACHE / "go_proxy"
    CACHE.mkdir(parents=True, exist_ok=True)
    go = program("go", package="golang-go")
    if subprocess.run([go, "build", "-o", str(binary), "."], cwd=_GO, check=False).returncode:
        raise SystemExit("cannot build the Go proxy")
    port = free_port()
    argv = ["env", "GOMAXPROCS=1", str(binary), f"127.0.0.1:{port}", f"127.0.0.1:{upstream_port}"]
    return RunningPath(GO_PROXY, port, PinnedProcess(argv, core=core, log=folder / f"go-{port}.log"))
