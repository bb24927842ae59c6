"""Host names of one test, for its clients alone: they see an /etc/hosts of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from testkit.packages import require_package


def write_hosts(file: Path, addresses: Mapping[str, str]) -> None:
    """An /etc/hosts with these addresses by name."""
    lines = [f"{address} {name}" for name, address in addresses.items()]
    file.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")


def with_hosts(file: Path, command: Sequence[str]) -> list[str]:
    """The command in a namespace in which this file is /etc/hosts."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [
        require_package("util-linux", "unshare"),
        *user,
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" /etc/hosts && exec "$@"',
        str(file),
        *command,
    ]
