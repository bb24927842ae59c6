"""``sluice reload``: makes a running gateway read its configuration file again, and prints the result."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from gateway.cli import admin_port


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "reload",
        help="reload the configuration file of a running gateway",
        description="Make a running gateway read its configuration file again, as SIGHUP does. No connection ends. "
        "If the file is not valid, nothing changes: exit code 1, and the errors on standard error.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the changed settings; 1 when the configuration could not be reloaded."""
    return admin_port.exit_code(arguments.admin, partial(_exchange, arguments.admin))


def _exchange(url: str) -> int:
    status, answer = admin_port.ask(url, "/reload", method="POST", body={})
    for line in [answer["error"]] if "error" in answer else answer["faults"]:
        print(f"sluice: not reloaded: {line}", file=sys.stderr)
    if status != 200:
        return 1
    print(f"changed: {', '.join(answer['applied']) or 'nothing'}")
    if answer["needs_restart"]:
        print(f"needs a restart: {', '.join(answer['needs_restart'])}")
    return 0
