"""``sluice shed``: limits clients of a tier to a part of their use, for a time (a brake)."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from gateway.cli import admin_port
from gateway.cli.durations import seconds_of
from gateway.cli.table import aligned
from quotas.lending import MOST_BRAKE_S, TIERS

# Whether each of --tier, --end, --to and --for is given.
_SHOW: Final = (False, False, False, False)
_END: Final = (True, True, False, False)
_SET: Final = (True, False, True, True)


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "shed",
        help="leave clients of a tier a part of what they use, for a time",
        description="Show or set the brakes of a running gateway. A brake leaves all clients of a tier together a "
        "part of the bytes per second that they produced and fetched in the ten seconds before it. Guarantees of the "
        "tier do not count meanwhile. Other clients may have the rest. The configuration needs [capacity]. A brake "
        "takes effect within a second, and ends by itself, with an upgrade or with a restart. It is for this gateway "
        "alone: set it at each one of a fleet.",
        allow_abbrev=False,
    )
    parser.add_argument("--tier", type=int, choices=range(TIERS), help="the tier of the clients")
    parser.add_argument("--to", metavar="PERCENT", type=_percent, help="what it keeps, such as 20%%")
    parser.add_argument(
        "--for",
        dest="seconds",
        metavar="TIME",
        type=_seconds,
        help="how long, such as 90s, 10m or 2h; at most 24h",
    )
    parser.add_argument("--end", action="store_true", help="end the brake of the tier now")
    admin_port.add_argument(parser)
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the brakes in force; 1 when the gateway can't be reached or refuses."""
    tier, percent, seconds = arguments.tier, arguments.to, arguments.seconds
    given = (tier is not None, arguments.end, percent is not None, seconds is not None)
    if given not in (_SHOW, _END, _SET):
        arguments.parser.error("give --tier with --to and --for, or with --end, or nothing to see the brakes")
    body = None if given == _SHOW else {"tier": tier, "percent": percent, "seconds": seconds}
    return admin_port.exit_code(arguments.admin, partial(_exchange, arguments.admin, body))


def _exchange(url: str, body: dict[str, Any] | None) -> int:
    if body is None:
        status, answer = admin_port.ask(url, "/shed")
    else:
        status, answer = admin_port.ask(url, "/shed", method="PUT", body=body)
    if status != 200:
        print(f"sluice: refused: {answer['error']}", file=sys.stderr)
        return 1
    print("\n".join(_lines(answer, datetime.now(UTC))))
    return 0


def _lines(answer: Any, now: datetime) -> list[str]:
    tiers = answer["tiers"]
    if not tiers:
        return ["no tier has a brake"]
    rows = [("TIER", "KEEPS", "UNTIL (UTC)", "BY")]
    for each in tiers:
        until = now + timedelta(seconds=each["seconds_left"])
        rows.append((str(each["tier"]), f"{each['percent']:g}%", f"{until:%Y-%m-%d %H:%M:%S}", each["by"]))
    lines = aligned(rows)
    if answer["fault"] is not None:
        lines.append(f"without effect: {answer['fault']}")
    return lines


def _percent(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%?", text)
    if found is None or not 0 < (percent := float(found[1])) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage above 0 and up to 100, such as 20%")
    return percent


def _seconds(text: str) -> int:
    seconds = seconds_of(text)
    if seconds is None or seconds > MOST_BRAKE_S or text.startswith("0") or not text.isascii():
        raise argparse.ArgumentTypeError(f"{text!r} is no time up to 24h, such as 90s, 10m or 2h")
    return seconds
