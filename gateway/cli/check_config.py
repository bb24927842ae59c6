"""``sluice check-config FILE``: is this file a configuration, and what does it come to."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

import config
from config.host_port import HostPort
from gateway.cli.table import aligned
from quotas.limits import Enforcement

_MODES: Final = {
    Enforcement.ENFORCE: "enforced",
    Enforcement.OBSERVE: "all only observed",
    Enforcement.OFF: "all switched off",
}


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "check-config",
        help="check a configuration file; nothing is started",
        description="Check a configuration file, and the certificates that it names; nothing is started. Exit code 0 "
        "when all is right, else 2.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary; what is allowed but looks like a mistake goes to standard error."""
    found = config.load(arguments.file)
    _check_certificates(found, arguments.file)
    print(f"{arguments.file}: ok")
    for line in aligned(_summary(found), indent="  "):
        print(line)
    for line in found.warnings():
        print(f"sluice: {arguments.file}: {line}", file=sys.stderr)
    return 0


def _check_certificates(found: config.Config, file: str) -> None:
    protocols = [each.security_protocol for each in found.listeners]
    protocols += [each.security_protocol for each in (found.upstream, *found.upstreams)]
    if not any(protocol.tls for protocol in protocols):
        return
    # Most files have no TLS, and need not wait for its imports.
    from gateway.server.tls_setup import load_identities

    try:
        load_identities(found)
    except config.ConfigError as exc:
        raise config.ConfigError([f"{file}: {line}" for line in exc.lines]) from exc


def _summary(found: config.Config) -> list[tuple[str, str]]:
    rows = [("upstream", ", ".join(str(broker) for broker in found.upstream.bootstrap))]
    for listener in found.listeners:
        first = HostPort(listener.advertised_host, listener.first_broker_port)
        last_id = listener.lowest_broker_id + listener.broker_ports - 1
        brokers = f"brokers {listener.lowest_broker_id}..{last_id} at {first}..{listener.last_broker_port}"
        rows.append((f"listener {listener.name}", f"{listener.bind}, {brokers}"))
    rows.append(("admin", str(found.admin.bind)))
    rows.append(("quotas", f"{len(found.quota_items())}, {_MODES[found.enforcement.mode]}"))
    return rows
