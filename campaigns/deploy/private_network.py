"""A network for one campaign, like a compose network: a namespace with a bridge, and one for each service.

All namespaces begin and end with this process. The machine's own network and files do not change.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

_INSIDE: Final = "SLUICE_PRIVATE_NETWORK"
_SUBNET: Final = "10.231.0"


def enter() -> None:
    """Run this program again in new namespaces for network, mounts and processes, unless it is already in them.

    Raises:
        SystemExit: the user is not root.
    """
    if os.environ.get(_INSIDE) == "1":
        return
    if os.geteuid() != 0:
        raise SystemExit("namespaces can only be made by root")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.environ[_INSIDE] = "1"
    os.execvp(command[0], [*command, *sys.orig_argv])


class Network:
    """A bridge, and a namespace with a name and an address for each service."""

    def __init__(self, names: list[str], folder: Path) -> None:
        """Create the network.

        Args:
            names: names under which the services find each other.
            folder: folder for the file with the names.
        """
        self.addresses = {name: f"{_SUBNET}.{at}" for at, name in enumerate(names, start=2)}
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "services", "type", "bridge")
        _ip("address", "add", f"{_SUBNET}.1/24", "dev", "services")
        _ip("link", "set", "services", "up")
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        for at, (name, address) in enumerate(self.addresses.items()):
            _ip("netns", "add", name)
            _ip("link", "add", f"outside{at}", "type", "veth", "peer", "name", "inside", "netns", name)
            _ip("link", "set", f"outside{at}", "master", "services", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "inside")
            for link in ("inside", "lo"):
                _ip("-n", name, "link", "set", link, "up")
        hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.addresses.items())]
        hosts.write_text("\n".join(lines) + "\n")
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)

    def command(self, name: str) -> list[str]:
        """The words that run a program in the namespace of a service."""
        return ["nsenter", f"--net=/run/netns/{name}"]

    def publish(self, host: str, port: int, name: str, inside: int) -> None:
        """Forward connections, as Docker does for a published port."""
        listener = socket.create_server((host, port))
        target = (self.addresses[name], inside)
        threading.Thread(target=_accept, args=(listener, target), daemon=True).start()


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        client, _ = listener.accept()
        try:
            service = socket.create_connection(target)
        except OSError:
            client.close()
            continue
        for one, other in ((client, service), (service, client)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        pass
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
