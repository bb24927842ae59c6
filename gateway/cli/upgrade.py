"""``sluice upgrade``: replaces a running gateway by a new process, and prints the result."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.cli import admin_port

_WITHIN_S: Final = 90.0
_ANY: Final = ("0.0.0.0", "::")


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "upgrade",
        help="replace a running gateway by a new process",
        description="Start a new process with the current program and configuration. It replaces a running gateway "
        "of the same user on this machine, as SIGUSR2 does. No connection is refused. If the new process cannot "
        "serve, the running one keeps serving: exit code 1, and the reason on standard error.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the process that serves now; 1 when it is the same as before."""
    # Imported here so that --help does not wait for these imports.
    from gateway.server.clusters.member import cluster_control_name
    from gateway.server.control import ask_for_upgrade, control_name

    parts = urlsplit(arguments.admin)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    reason = "not found"
    for host in (parts.hostname or "", *_ANY):
        name = control_name(host, port)
        if arguments.cluster is not None:
            name = cluster_control_name(host, port, arguments.cluster)
        try:
            report = ask_for_upgrade(name, within_s=_WITHIN_S)
        except OSError as exc:
            reason = str(exc) if not isinstance(exc, ConnectionRefusedError) else reason
            continue
        if report.error is not None:
            print(
                f"sluice: not upgraded, process {report.pid} keeps serving: {report.error}", file=sys.stderr
            )
            return 1
        print(f"process {report.pid} serves")
        return 0
    print(f"sluice: no gateway of this user with admin port {arguments.admin}: {reason}", file=sys.stderr)
    return 1
