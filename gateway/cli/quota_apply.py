"""``sluice quotas diff`` and ``apply``: compares a file of quotas with the current ones, and puts it in force.

In 0.1.0 `apply` was called `import`, and `diff` was `import --dry-run`. `import` still works with the same code.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from config import ConfigError
from gateway.cli import admin_port
from gateway.cli.output import show
from gateway.cli.quota_endpoints import (
    ChangedMeanwhileError,
    Endpoint,
    EndpointError,
    GatewayEndpoint,
    KafkaEndpoint,
    Source,
)
from gateway.cli.quota_plan import Plan, make_plan, plan_lines
from gateway.cli.quota_scope import ALL, Scope, ScopeError
from gateway.cli.quota_view import refuse_config
from gateway.cli.quota_yaml import QuotaText, QuotaTextError, from_text, outside

IN_SYNC: Final = 0
FAULT: Final = 1
DRIFT: Final = 2

_MAX_TEXT_BYTES: Final = 32 * 1024 * 1024
_CODES: Final = (
    f"Exit codes: {IN_SYNC} in sync, {DRIFT} a difference, {FAULT} a fault, wrong arguments among them."
)


def add_parser(commands: Any) -> None:
    """Adds the commands to the subparsers."""
    diff = commands.add_parser(
        "diff",
        help="compare a YAML file of quotas with what is set",
        description="Show what `sluice quotas apply` with the same arguments would change, and who else has changed "
        f"these quotas. Nothing is changed. {_CODES}",
        allow_abbrev=False,
    )
    _add_arguments(diff)
    diff.set_defaults(run=run_diff)
    apply = commands.add_parser(
        "apply",
        help="set the quotas of a YAML file",
        description="Set the quotas of a YAML file, as `sluice quotas export` writes it. Shows the plan and asks "
        "before it changes anything. All of it is made or nothing: if somebody changes one of these quotas between "
        f"plan and application, nothing is changed. {_CODES}",
        allow_abbrev=False,
    )
    _add_arguments(apply)
    apply.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")
    apply.set_defaults(run=run_apply)
    earlier = commands.add_parser(
        "import",
        help="the earlier name of apply",
        description="The earlier name of `sluice quotas apply --yes`. With --dry-run it is that of `diff`, and ends "
        f"with 0 also where there is a difference. --prune is that of `apply --scope {ALL} --prune`.",
        allow_abbrev=False,
    )
    earlier.add_argument("file", metavar="FILE", help="the YAML file; - for standard input")
    earlier.add_argument("--dry-run", action="store_true", help="print the changes and do not make them")
    earlier.add_argument(
        "--prune", action="store_true", help="remove quotas of the store that are not in the file"
    )
    admin_port.add_argument(earlier, below=True)
    earlier.set_defaults(run=run_import, bootstrap_server=None, client_config=None, yes=True)


def _add_arguments(parser: Any) -> None:
    parser.add_argument("file", metavar="FILE", help="the YAML file; - for standard input")
    parser.add_argument(
        "--scope",
        action="append",
        metavar="ENTITY",
        help="the entities that the file is about, such as user=team-a-*; may be given several times; "
        f"{ALL}: every entity; default: scope in the file. Others are an error in the file, and never removed",
    )
    parser.add_argument(
        "--prune", action="store_true", help="remove quotas within the scope that are not in the file"
    )
    admin_port.add_argument(parser, below=True)
    parser.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        help="use AlterClientQuotas of this cluster or gateway instead of an admin port",
    )
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="settings of that connection, name=value per line, such as security_protocol=SASL_SSL",
    )
    # Wrong arguments must not look like a difference.
    parser.wrong_arguments = FAULT
    parser.set_defaults(command=parser)


def run_diff(arguments: argparse.Namespace) -> int:
    """Prints the difference; see the exit codes."""

    def step(change: _Change) -> int:
        lines = change.lines()
        lines.append(f"{change.summary}; nothing was changed" if change.plan.steps else "no difference")
        show("\n".join(lines))
        return DRIFT if change.plan.steps else IN_SYNC

    return _carry_out(arguments, step)


def run_apply(arguments: argparse.Namespace) -> int:
    """Prints the plan and applies it; see the exit codes."""

    def step(change: _Change) -> int:
        if not change.plan.all_steps:
            show("\n".join([*change.lines(), "no difference"]))
            return IN_SYNC
        shown = show("\n".join([*change.lines(), change.summary]))
        if not shown and not arguments.yes:
            raise ConfigError(["the plan could not be shown, so nothing was changed; give --yes"])
        if not arguments.yes and not _confirmed(arguments.file):
            show("nothing was changed")
            return DRIFT
        return change.apply()

    return _carry_out(arguments, step)


def run_import(arguments: argparse.Namespace) -> int:
    """See the module."""
    arguments.scope = [ALL] if arguments.prune else None
    code = run_diff(arguments) if arguments.dry_run else run_apply(arguments)
    if code != FAULT:
        now = "diff" if arguments.dry_run else "apply --yes"
        _say([f"note: import is kept for scripts that have it; its name is now: sluice quotas {now}"])
    return IN_SYNC if arguments.dry_run and code == DRIFT else code


class _Change:
    """A file of quotas, compared with the current quotas."""

    def __init__(self, endpoint: Endpoint, plan: Plan, source: Source) -> None:
        self.plan = plan
        self._endpoint = endpoint
        self._source = source

    @property
    def summary(self) -> str:
        """The number of changes, in words."""
        taken = len(self.plan.taken_over)
        return f"{len(self.plan.steps)} to change" + (f", {taken} to take over" if taken else "")

    def lines(self) -> list[str]:
        """The plan for people."""
        authors = self._endpoint.authors([step.quota for step in self.plan.all_steps])
        return list(plan_lines(self.plan, authors))

    def apply(self) -> int:
        """Apply the plan."""
        try:
            found = self._endpoint.apply(self.plan.all_steps, self._source)
        except ChangedMeanwhileError as exc:
            _say(exc.lines)
            return DRIFT
        version = "" if found is None else f", version {found}"
        count = len(self.plan.all_steps)
        show(f"{count} changed{version}, from {self._source.name} (sha256 {self._source.sha256})")
        return IN_SYNC


def _carry_out(arguments: argparse.Namespace, step: Callable[[_Change], int]) -> int:
    try:
        refuse_config(arguments)
        change = _compare(arguments)
        return step(change)
    except (ConfigError, EndpointError) as exc:
        _say(exc.lines)
    return FAULT


def _compare(arguments: argparse.Namespace) -> _Change:
    data = _read(arguments.file)
    text = _parse(arguments.file, data)
    _say([f"note: {arguments.file}: {note}" for note in text.notes])
    scope = text.scope
    if arguments.scope is not None:
        try:
            given = Scope.of(arguments.scope)
        except ScopeError as exc:
            raise ConfigError([f"--scope: {exc}"]) from exc
        if faults := outside(given, text.lines):
            raise ConfigError([f"{arguments.file}: {fault}" for fault in faults])
        if scope is not None and given.patterns and set(given.patterns) != set(scope.patterns):
            raise ConfigError(
                [f"--scope is {given}, and the scope of {arguments.file} is {scope}; give one of them"]
            )
        scope = scope or given
    if arguments.prune and scope is None:
        raise ConfigError(
            [
                f"--prune needs a scope: give --scope ENTITY, or scope in the file; --scope {ALL} is every quota"
            ]
        )
    endpoint = _endpoint(arguments)
    plan = make_plan(text.quotas, endpoint.read(), scope, prune=arguments.prune)
    _say([f"note: {note}" for note in endpoint.notes(text.quotas)])
    return _Change(endpoint, plan, Source.of(arguments.file, data))


def _endpoint(arguments: argparse.Namespace) -> Endpoint:
    if arguments.bootstrap_server is not None:
        return KafkaEndpoint(arguments.bootstrap_server, arguments.client_config)
    if arguments.client_config is not None:
        raise ConfigError(["--client-config is for --bootstrap-server, which is not given"])
    return GatewayEndpoint(arguments.admin)


def _read(file: str) -> bytes:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MAX_TEXT_BYTES + 1)
    except OSError as exc:
        raise ConfigError([f"{file}: cannot be read: {exc.strerror}"]) from exc
    if len(data) > _MAX_TEXT_BYTES:
        raise ConfigError([f"{file}: is larger than {_MAX_TEXT_BYTES} bytes"])
    return data


def _parse(file: str, data: bytes) -> QuotaText:
    try:
        return from_text(data.decode("utf-8"))
    except UnicodeDecodeError as exc:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {exc.start})"]) from exc
    except QuotaTextError as exc:
        raise ConfigError([f"{file}: {line}" for line in exc.lines]) from exc


def _confirmed(file: str) -> bool:
    """Whether a person at a terminal confirms the plan.

    Raises:
        ConfigError: there is no terminal.
    """
    if file == "-" or not sys.stdin.isatty():
        raise ConfigError(["there is no terminal to ask at, so nothing was changed; give --yes"])
    show("Change these quotas? [y/N] ", end="", error=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _say(lines: list[str]) -> None:
    for line in lines:
        show(f"sluice: {line}", error=True)
