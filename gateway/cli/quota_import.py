"""``sluice quotas import``: sets the quotas of a YAML file in the store, or only shows the difference."""

from __future__ import annotations

import argparse
import getpass
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from config import ConfigError
from gateway.cli import admin_port
from gateway.cli.quota_view import MAX_ANSWER_BYTES, refuse_config
from gateway.cli.quota_yaml import QuotaTextError, from_text
from gateway.cli.table import number
from gateway.quota_admin.store.quota_json import entity_json, entity_of

_MAX_TEXT_BYTES: Final = 32 * 1024 * 1024
_TIMEOUT_S: Final = 120.0


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "import",
        help="set the quotas of a YAML file in the store",
        description="Set the quotas of a YAML file, as `sluice quotas export` writes it, in the store of a running "
        "gateway, and print what that changes. All of it or nothing: one fault, and nothing is changed. Quotas of "
        "the store that the file does not name stay, unless --prune is given.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="the YAML file; - for standard input")
    parser.add_argument("--dry-run", action="store_true", help="print the changes and do not make them")
    parser.add_argument(
        "--prune", action="store_true", help="remove quotas of the store that are not in the file"
    )
    admin_port.add_argument(parser, below=True)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the difference; 1 when the gateway can't be asked or refuses.

    Raises:
        ConfigError: the file is not valid, or a configuration file was named, which nothing is written to.
    """
    refuse_config(arguments)
    quotas = [
        {"entity": entity_json(entity), "quota": key.value, "limit": value}
        for (entity, key), value in _read(arguments.file).items()
    ]
    options = {"user": user_name()}
    if arguments.prune:
        options["prune"] = "true"
    if arguments.dry_run:
        options["dry_run"] = "true"
    step = partial(exchange, arguments.admin, quotas, options)
    return admin_port.exit_code(arguments.admin, step, what=" that takes quotas")


def exchange(url: str, quotas: list[dict[str, Any]], options: dict[str, str]) -> int:
    """Send quotas, a limit of None for one that goes, and print what that changes; the command's exit code."""
    status, answer = admin_port.ask(
        url,
        f"/quotas/import?{urlencode(options)}",
        method="POST",
        lines=quotas,
        max_bytes=MAX_ANSWER_BYTES,
        timeout_s=_TIMEOUT_S,
    )
    if status != 200:
        for line in answer.get("faults", []):
            print(f"sluice: {line}", file=sys.stderr)
        if (more := answer.get("fault_count", 0) - len(answer.get("faults", []))) > 0:
            print(f"sluice: and {more} more", file=sys.stderr)
        print(f"sluice: refused: {answer['error']}", file=sys.stderr)
        return 1
    for note in answer.get("notes", []):
        print(f"sluice: note: {note}", file=sys.stderr)
    lines = [_told(change) for change in sorted(answer["changes"], key=_order)]
    if not lines:
        removed = any(each["limit"] is None for each in quotas)
        lines.append("no difference" + ("; what the configuration file says stays" if removed else ""))
    elif "dry_run" in options:
        lines.append(f"{len(lines)} to change; nothing was, since this is a dry run")
    else:
        lines.append(f"{len(lines)} changed, version {answer['version']}")
    print("\n".join(lines))
    return 0


def _read(file: str) -> Any:
    try:
        if file == "-":
            data = sys.stdin.buffer.read(_MAX_TEXT_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(_MAX_TEXT_BYTES + 1)
        if len(data) > _MAX_TEXT_BYTES:
            raise ConfigError([f"{file}: is larger than {_MAX_TEXT_BYTES} bytes"])
        return from_text(data.decode("utf-8"))
    except OSError as exc:
        raise ConfigError([f"{file}: cannot be read: {exc.strerror}"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {exc.start})"]) from exc
    except QuotaTextError as exc:
        raise ConfigError([f"{file}: {line}" for line in exc.lines]) from exc


def user_name() -> str:
    """Of this process, for the history of changes."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def _order(change: dict[str, Any]) -> tuple[str, str]:
    return str(entity_of(change["entity"])), change["quota"]


def _told(change: dict[str, Any]) -> str:
    what = f"{entity_of(change['entity'])} {change['quota']}"
    if change["old"] is None:
        return f"+ {what} {number(change['new'])}"
    if change["new"] is None:
        return f"- {what} {number(change['old'])}"
    return f"~ {what} {number(change['old'])} -> {number(change['new'])}"
