"""``sluice enforcement``: shows or changes the enforcement mode of a running gateway (the kill switch)."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from gateway.cli import admin_port
from quotas.limits import Enforcement


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "enforcement",
        help="show or change whether a running gateway enforces its quotas",
        description="Show or change the mode of a running gateway. The change takes effect at once. enforce: quotas "
        "throttle clients. observe: quotas are computed and reported, but no client is throttled or refused. off: "
        "quotas are not computed. Clients that are throttled already stay so until their time is over. The mode "
        "lasts until the next change, until a reload with another mode in the configuration file, or until a "
        "restart. An upgrade keeps it.",
        allow_abbrev=False,
    )
    parser.add_argument("mode", nargs="?", choices=[mode.value for mode in Enforcement])
    admin_port.add_argument(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the mode; 1 when the gateway can't be reached or refuses."""
    return admin_port.exit_code(arguments.admin, partial(_exchange, arguments.admin, arguments.mode))


def _exchange(url: str, mode: str | None) -> int:
    if mode is None:
        status, answer = admin_port.ask(url, "/enforcement")
    else:
        status, answer = admin_port.ask(url, "/enforcement", method="PUT", body={"mode": mode})
    if status != 200:
        print(f"sluice: refused: {answer['error']}", file=sys.stderr)
        return 1
    print(_told(mode, answer))
    return 0


def _told(wanted: str | None, answer: Any) -> str:
    mode = str(answer["mode"])
    if wanted is None:
        configured = answer["configured"]
        return mode if configured == mode else f"{mode} (the configuration file says {configured})"
    before = answer["before"]
    return mode if before == mode else f"{mode} (was {before})"
