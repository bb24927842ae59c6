"""``sluice groups``: shows and changes the groups of ``[groups_file]`` in a running gateway."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any, Final

from gateway.cli import admin_port
from gateway.cli.table import aligned

_OPTIONS: Final = {
    "--user": ("users", "a user, or the beginning of names with a star behind it"),
    "--client-id": ("client_ids", "a client id, or the beginning of some with a star behind it"),
    "--address": ("addresses", "an address or a block, such as 10.0.0.0/8"),
}


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "groups",
        help="show and change groups and their members",
        description="Show the groups of the file that [groups_file] names, or change one. The gateway writes the "
        "file anew and reloads its configuration, as sluice reload does. Groups in the configuration itself are not "
        "shown. Each gateway of a fleet has its own file: change it at each one.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.set_defaults(run=_show)
    actions = parser.add_subparsers(metavar="ACTION")
    _add_action(
        actions, "add", "add members to a group, which is made if there is none of this name", members=True
    )
    _add_action(actions, "remove", "remove members from a group", members=True)
    _add_action(actions, "delete", "delete a group; quotas of it that are set stay", members=False)


def _add_action(actions: Any, name: str, text: str, *, members: bool) -> None:
    parser = actions.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.add_argument("group", metavar="GROUP", help="its name")
    for option, (key, meaning) in _OPTIONS.items() if members else ():
        parser.add_argument(
            option, dest=key, metavar="NAME", action="append", default=[], help=f"{meaning}; repeatable"
        )
    admin_port.add_argument(parser)
    parser.set_defaults(run=_change, action=name, parser=parser)


def _show(arguments: argparse.Namespace) -> int:
    """Prints the groups; 1 when the gateway can't be reached or has no file of groups."""
    return admin_port.exit_code(arguments.admin, partial(_list, arguments.admin))


def _list(url: str) -> int:
    status, answer = admin_port.ask(url, "/groups")
    if status != 200:
        return _refused(answer)
    rows = [("GROUP", "USERS", "CLIENT IDS", "ADDRESSES")]
    for each in answer["groups"]:
        rows.append((each["name"], *(" ".join(each.get(key, ())) or "-" for key, _ in _OPTIONS.values())))
    print("\n".join(aligned(rows) if len(rows) > 1 else ["no groups in the file"]))
    return 0


def _change(arguments: argparse.Namespace) -> int:
    """Changes a group; 1 when the gateway can't be reached or refuses."""
    body: dict[str, Any] = {"group": arguments.group}
    if arguments.action == "delete":
        body["delete"] = True
    else:
        body[arguments.action] = {
            key: names for key, _ in _OPTIONS.values() if (names := getattr(arguments, key))
        }
        if not body[arguments.action]:
            arguments.parser.error(f"give members with {', '.join(_OPTIONS)}")
    return admin_port.exit_code(arguments.admin, partial(_send, arguments.admin, body))


def _send(url: str, body: dict[str, Any]) -> int:
    status, answer = admin_port.ask(url, "/groups", method="PUT", body=body)
    if status != 200:
        return _refused(answer)
    print(f"changed: {', '.join(answer['applied']) or 'nothing'}")
    return 0


def _refused(answer: Any) -> int:
    print(f"sluice: refused: {answer['error']}", file=sys.stderr)
    return 1
