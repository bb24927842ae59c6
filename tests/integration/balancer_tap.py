"""HAProxy where the tap stands, between clients and the gateway."""

from collections.abc import Iterable
from pathlib import Path

from testkit.haproxy import Haproxy
from tests.integration.gateway_process import TAP_HOST


class BalancerTap:
    """Stands where the tap stands, and says in every connection's PROXY header whose it is."""

    def __init__(self, folder: Path, server_options: str) -> None:
        self._folder = folder
        self._server_options = server_options
        self._running: dict[int, Haproxy] = {}

    def relay(self, port: int, target: tuple[str, int]) -> None:
        """See `Tap.relay`."""
        self._running[port] = Haproxy(self._folder, (TAP_HOST, port), target, server_options=self._server_options)

    def stop_relaying(self, ports: Iterable[int]) -> None:
        """See `Tap.stop_relaying`."""
        for port in ports:
            if port in self._running:
                self._running.pop(port).stop()
