"""``sluice check-config FILE``: checks a configuration file without starting anything."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import stat
import sys
from pathlib import Path
from typing import Any, Final

import config
from config.host_port import HostPort
from config.server_names import BOOTSTRAP
from gateway.cli.table import aligned
from quotas.limits import Enforcement

NOTES: Final = 3
"""The exit code with --strict if there are notes and no errors."""

_OF_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH

_MODES: Final = {
    Enforcement.ENFORCE: "enforced",
    Enforcement.OBSERVE: "all only observed",
    Enforcement.OFF: "all switched off",
}


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "check-config",
        help="check a configuration file without starting anything",
        description="Check a configuration file, and the certificates, passwords and secrets that it names. Nothing "
        "is started. Exit code 0: as far as the file says, the gateway starts and gets ready; there may be notes "
        "about what can hardly be meant. Exit code 2: the file cannot be read, or the gateway would not start, "
        "would never be ready, or would do something else than what is written. With --strict, exit code 3: there "
        "are notes and nothing worse.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", nargs="?")
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 3 if there are notes; for pipelines"
    )
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of the file (draft 2020-12), for editors; takes no FILE",
    )
    parser.set_defaults(run=run, command=parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary; errors and notes go to standard error."""
    file = arguments.file
    if arguments.schema:
        if file is not None or arguments.strict:
            arguments.command.error("argument --schema: not allowed with other arguments")
        from config.json_schema import schema_text

        print(schema_text(), end="")
        return 0
    if file is None:
        arguments.command.error("the following arguments are required: FILE")
    found = config.load_file(file)
    source = config.Source(file)
    if isinstance(found, config.Clusters):
        clusters, findings = found.by_name, config.cluster_findings(found)
    else:
        clusters, findings = {"": found}, config.findings(found)
    faults = [str(each) for each in findings if each.severity is config.Severity.ERROR]
    notes = [str(each) for each in findings if each.severity is config.Severity.NOTE]
    for name, one in clusters.items():
        path = f"clusters.{name}." if name else ""
        faults += [f"{path}{line}" for line in _faults_of_files(one)]
        notes += [
            f"{path}{line}" for line in _open_files(one.private_files()) + _too_much_for_this_machine(one)
        ]
        if not faults:
            notes += [f"{path}{line}" for line in _hosts_without_certificate(one)]
    first = next(iter(clusters.values()))  # the admin port is the same for all
    notes += _literal_tokens(source, first) + _open_files(source.files)
    if not faults:
        notes += _keys_without_tokens(first)
    for line in source.located(notes, kind="note: "):
        print(f"sluice: {line}", file=sys.stderr)
    if faults:
        raise config.ConfigError(source.located(faults))
    many = "" if not notes else f", with {len(notes)} note{'s' if len(notes) > 1 else ''}"
    print(f"{file}: ok{many}")
    tables = [([("cluster", name)] if name else []) + _summary(one) for name, one in clusters.items()]
    rows = _by_source("variable", source.variables) + _by_source("file", source.files)
    if isinstance(found, config.Clusters):
        tables.append(rows)
    else:
        tables[0] += rows
    for table in tables:
        for line in aligned([(source.hide(name), source.hide(text)) for name, text in table], indent="  "):
            print(line)
    return NOTES if notes and arguments.strict else 0


def _faults_of_files(found: config.Config) -> list[str]:
    """The faults that `serve` would find in the named files and needed packages."""
    faults: list[str] = []
    for key, file in found.secret_files().items():
        try:
            config.read_secret(key, file)
        except config.ConfigError as exc:
            faults += exc.lines
    try:
        _read_admin_keys(found)
    except config.ConfigError as exc:
        faults += exc.lines
    protocols = [each.security_protocol for each in found.listeners]
    protocols += [each.security_protocol for each in found.all_upstreams]
    # Most configurations have neither TLS nor SASL, and need not wait for these imports.
    if any(protocol.sasl for protocol in protocols):
        from gateway.upstream.login import BrokerLogin

        for upstream in found.all_upstreams:
            login = BrokerLogin.of(upstream.sasl, upstream=upstream.path, path=upstream.path, client_id="")
            if login is not None:
                faults += login.faults()
    if found.admin.tls is not None or any(protocol.tls for protocol in protocols):
        from gateway.server.tls_setup import load_identities

        try:
            load_identities(found)
        except config.ConfigError as exc:
            faults += exc.lines
    if found.traces.endpoint is not None or found.metrics.endpoint is not None:
        from gateway.app import otlp_classes

        try:
            otlp_classes(found)
        except config.ConfigError as exc:
            faults += exc.lines
    return faults


def _read_admin_keys(found: config.Config) -> None:
    if found.admin.keys:
        from gateway.server.admin_keys import load_all

        load_all(found.admin.keys)


def _keys_without_tokens(found: config.Config) -> list[str]:
    """Keys of the admin port with an empty token file; call it once all files are known to be readable."""
    files = {at: key.token_file for at, key in enumerate(found.admin.keys) if key.token_file is not None}
    if not files:
        return []
    from gateway.server.admin_keys import read_tokens

    return [
        f"admin.keys.{at}.token_file: {file} has no token, so the key opens nothing; add a line with one"
        for at, file in files.items()
        if not read_tokens(file)
    ]


def _literal_tokens(source: config.Source, found: config.Config) -> list[str]:
    """Tokens that are written in the configuration file itself."""
    not_here = {key for key, _ in source.variables + source.files}
    keys = (f"admin.keys.{at}.token" for at, each in enumerate(found.admin.keys) if each.token is not None)
    return [
        f'{key}: a token is in this file; use token_file, or take it from a file: token = "${{file:/PATH}}"'
        for key in keys
        if key not in not_here
    ]


def _open_files(files: list[tuple[str, str]]) -> list[str]:
    """Files with secrets that every user of this machine may read or write."""
    notes = []
    for key, file in files:
        with contextlib.suppress(OSError):  # another check reports missing files
            mode = Path(file).stat().st_mode
            if mode & _OF_OTHERS:
                notes.append(
                    f"{key}: {file} has mode {stat.S_IMODE(mode):04o}, so all users of this machine may read or "
                    f"change it; run chmod o-rwx {shlex.quote(file)}"
                )
    return notes


def _hosts_without_certificate(found: config.Config) -> list[str]:
    """Names of brokers that no certificate of their listener has."""
    named = [(each, each.sni.names) for each in found.listeners if each.sni is not None]
    if not named:
        return []
    from gateway.server.tls_setup import load_identities

    notes = []
    certificates, _ = load_identities(found)
    for listener, names in named:
        own = certificates[listener.name]
        missing = {"bootstrap_name": names.bootstrap, "broker_name": names.name_of(0)}
        hosts = {host for each in own.identities for host in each.hosts}
        if any(names.node_of(host) not in (None, BOOTSTRAP) for host in hosts):
            del missing["broker_name"]
        notes += [
            f"{listener.path}.sni.{key}: no certificate of the listener is made for {host}, so clients refuse it; "
            "give one in tls.certificates"
            for key, host in missing.items()
            if own.of(host) is None
        ]
    return notes


def _too_much_for_this_machine(found: config.Config) -> list[str]:
    """Limits above this process's limit of descriptors; the service may have another limit."""
    from gateway.server.connection_capacity import plan_descriptors, raise_descriptor_limit

    try:
        plan_descriptors(found, raise_descriptor_limit())
    except config.ConfigError as exc:
        return exc.lines
    return []


def _by_source(kind: str, found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The keys with values from variables or files, and their sources; the values may be secret and are not shown."""
    keys: dict[str, dict[str, None]] = {}
    for key, name in found:
        keys.setdefault(name, {})[key] = None
    return [(f"{kind} {name}", f"in {', '.join(where)}") for name, where in keys.items()]


def _summary(found: config.Config) -> list[tuple[str, str]]:
    rows = [("upstream", found.upstream.brokers)]
    for listener in found.listeners:
        if listener.sni is not None:
            port = listener.sni.advertised_port or listener.bind.port
            brokers = f"brokers at {HostPort(listener.sni.broker_name, port)}"
            rows.append((f"listener {listener.name}", f"{listener.bind}, {brokers}"))
            continue
        first = HostPort(listener.advertised_host, listener.first_broker_port)
        last_id = listener.lowest_broker_id + listener.broker_ports - 1
        brokers = f"brokers {listener.lowest_broker_id}..{last_id} at {first}..{listener.last_broker_port}"
        rows.append((f"listener {listener.name}", f"{listener.bind}, {brokers}"))
    rows.append(("admin", str(found.admin.bind)))
    rows.append(("quotas", f"{len(found.quota_items())}, {_MODES[found.enforcement.mode]}"))
    return rows
