"""The command line, ``sluice``, and its exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, Final, NoReturn

from gateway.cli.output import discard
from gateway.cli.tunables import start_with_tunables

EXIT_CODES: Final = {
    0: "done; sluice why: the gateway was asked, whether it throttled the client or not; sluice quotas diff and "
    "apply: what is set is what the file says",
    1: "a running gateway did not answer or refused; sluice usage: there are no usage records; sluice quotas diff "
    "and apply: any fault, wrong arguments and a wrong file among them",
    2: "the arguments or the configuration are wrong, or the gateway cannot start; standard error says why; sluice "
    "quotas diff and apply: the file differs from what is set, or somebody else changed it meanwhile",
    3: "check-config --strict alone: the file has notes and no error",
    130: "interrupted before the gateway served clients",
}
"""Exit codes of all commands."""


class _Parser(argparse.ArgumentParser):
    wrong_arguments = 2
    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        # argparse takes the word after a misspelt option for a command.
        unknown = self._unknown_option() if "invalid choice" in message else None
        if unknown is not None:
            close = get_close_matches(unknown, self._option_string_actions, n=1)
            message = f"unknown option {unknown}" + (f"; did you mean {close[0]}?" if close else "")
        # One line without the usage, which would hide it.
        self.exit(self.code(self.words), f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _unknown_option(self) -> str | None:
        """An option that this parser does not have, if no command was given that could have it."""
        if any(
            isinstance(each.choices, dict) and each.choices.keys() & set(self.words) for each in self._actions
        ):
            return None
        options = (word.partition("=")[0] for word in self.words if word.startswith("--"))
        return next((option for option in options if option not in self._option_string_actions), None)

    def code(self, words: Sequence[str]) -> int:
        """The exit code for wrong arguments: that of the command that these words name, if any."""
        for action in self._actions:
            below = action.choices if isinstance(action.choices, dict) else {}
            for at, word in enumerate(words):
                if word in below:
                    return int(below[word].code(words[at + 1 :]))
        return self.wrong_arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments after the program's name; those of the process if not given.

    Returns:
        The exit code.
    """
    if argv is None and sys.argv[1:2] == ["serve"]:
        start_with_tunables()
    # This import takes half a second.
    from config import ConfigError
    from gateway.cli import admin_port

    parser = make_parser()
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        getattr(arguments, "command", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    admin_port.complete(arguments)
    code = 0
    try:
        code = arguments.run(arguments)
        print(end="", flush=True)  # also if there is no standard output
    except ConfigError as exc:
        for line in exc.lines:
            print(f"sluice: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has closed, as in `sluice quotas | head`.
        discard(sys.stdout)
    return code


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from gateway.cli import (
        check_config,
        completion,
        enforcement,
        groups,
        kafka_tool,
        quotas,
        reload,
        serve,
        shed,
        top,
        upgrade,
        usage,
        why,
    )
    from gateway.runtime.compiled_core import core_name

    codes = "\n".join(["exit codes:", *(f"  {code:<4} {meaning}" for code, meaning in EXIT_CODES.items())])
    parser = _Parser(
        prog="sluice",
        description="A quota gateway for Apache Kafka.",
        epilog=codes,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sluice {version('sluice')}, {core_name()}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in (
        serve,
        check_config,
        quotas,
        groups,
        usage,
        top,
        why,
        enforcement,
        shed,
        reload,
        upgrade,
        kafka_tool,
    ):
        command.add_parser(commands)
    completion.add_parser(commands, parser)
    return parser
