"""A link to a network namespace, which can be cut with `effects.Parted`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cable:
    """A link with two ends, one of them in a network namespace.

    Attributes:
        namespace: the namespace in which programs at the other end run.
        subnet: such as 10.231.77.
    """

    namespace: str
    subnet: str

    @property
    def link(self) -> str:
        """The link's name at this end; at the other end it is `far`."""
        return f"c{self.namespace}"[-15:]

    @property
    def ours(self) -> str:
        """The address of this end."""
        return f"{self.subnet}.1"

    @property
    def theirs(self) -> str:
        """The address of the other end."""
        return f"{self.subnet}.2"

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command prefix that runs a program at the other end."""
        return ("ip", "netns", "exec", self.namespace)


@contextmanager
def cable(name: str, subnet: str) -> Iterator[Cable]:
    """Makes a link.

    Args:
        name: the namespace's name, to which this process's id is added.
        subnet: one that no other link of the machine has.

    Raises:
        OSError: the link can't be made; only root may do it.
    """
    made = Cable(f"{name}-{os.getpid()}", subnet)
    try:
        _ip("netns", "add", made.namespace)
    except subprocess.CalledProcessError as exc:
        raise OSError(f"no network namespace: {exc.stderr.decode().strip()}") from exc
    try:
        _ip("link", "add", made.link, "type", "veth", "peer", "name", "far", "netns", made.namespace)
        _ip("addr", "add", f"{made.ours}/24", "dev", made.link)
        _ip("link", "set", made.link, "up")
        _ip("-n", made.namespace, "addr", "add", f"{made.theirs}/24", "dev", "far")
        _ip("-n", made.namespace, "link", "set", "far", "up")
        yield made
    finally:
        subprocess.run(["ip", "link", "del", made.link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", made.namespace], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
