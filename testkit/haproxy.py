"""HAProxy as a load balancer or as a plain relay of TCP, on loopback."""

import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from testkit.packages import require_package

BALANCER: Final = "127.66.0.9"
"""The address from which it connects."""

_CONFIG: Final = """\
global
  nbthread 1
defaults
  mode tcp
  timeout connect 5s
  timeout client 1m
  timeout server 1m
listen relay
  bind {bind} {bind_options}
  server behind {target} source {source} {server_options}
"""


class Haproxy:
    """One HAProxy process that relays one port."""

    def __init__(
        self,
        folder: Path,
        bind: tuple[str, int],
        target: tuple[str, int],
        *,
        bind_options: str = "",
        server_options: str = "",
    ) -> None:
        """Starts it and waits until it accepts connections.

        Args:
            folder: the folder for its configuration.
            bind: the address on which it listens.
            target: the address to which it connects.
            bind_options: such as ``accept-proxy``.
            server_options: such as ``send-proxy-v2``.
        """
        file = folder / f"haproxy-{bind[1]}.cfg"
        file.write_text(
            _CONFIG.format(
                bind=f"{bind[0]}:{bind[1]}",
                bind_options=bind_options,
                target=f"{target[0]}:{target[1]}",
                source=BALANCER,
                server_options=server_options,
            )
        )
        command = [require_package("haproxy"), "-q", "-db", "-f", str(file)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while True:
            assert self._process.poll() is None, "HAProxy did not start"
            with socket.socket() as probe:
                if probe.connect_ex(bind) == 0:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends it with all its connections."""
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """Sends SIGKILL without waiting."""
        self._process.kill()
