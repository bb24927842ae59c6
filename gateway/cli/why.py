"""``sluice why``: which quota throttled a client, the measured rate, and the reported wait."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode

from gateway.cli import admin_port
from gateway.cli.durations import seconds_of
from gateway.cli.table import aligned, how_many, number
from quotas.entities import BURST_KEYS, client_name, counted, counter_name

_UNITS: Final = {
    "produce": "B/s",
    "fetch": "B/s",
    "request": "%",
    "controller_mutation": "partitions/s",
    "connection": "connections/s",
    "connection_count": "connections",
    "produce_records": "records/s",
    "fetch_records": "records/s",
}
_OF_CONNECTIONS: Final = ("connection", "connection_count")
# The journal's words, and those for people.
_OUTCOMES: Final = {"held": "throttled"}
_WHAT: Final = " that explains throttles"
_OBSERVED: Final = (
    " Quotas that are only observed throttle no client, so the journal has none of theirs: the metrics "
    "gateway_..._would_throttle_total count what they would throttle."
)
_NAMES: Final = " To see whether the name is right: sluice top lists the clients."


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "why",
        help="why a client was throttled: the quota, the measured rate and the time",
        description="Show why a running gateway throttled a client: when, for how long, by which quota, and which "
        "rate it measured. Also show the quotas that apply to the client now. The journal is in memory and "
        "bounded. It has one entry per second for the last half minute of throttles, and one per minute before that.",
        allow_abbrev=False,
    )
    admin_port.add_argument(parser)
    parser.add_argument(
        "--user", metavar="NAME", help="default: all users; clients that did not log in are ANONYMOUS"
    )
    parser.add_argument(
        "--client-id", metavar="ID", help='default: all client ids; "" is a client without a client id'
    )
    parser.add_argument(
        "--ip", metavar="ADDRESS", help="show the throttled connections of this address instead"
    )
    parser.add_argument(
        "--at",
        metavar="T",
        type=_moment,
        help="the throttle at this time (UTC), or else the nearest one and how far away it is: 2026-11-22T18:03:00, "
        "18:03, or 5m for five minutes ago",
    )
    parser.add_argument(
        "--limit", metavar="N", type=how_many, default=10, help="show at most the latest N; default: 10"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def _moment(text: str, now_s: float | None = None) -> int:
    """A time of day, a date with time, or a duration ago, in UTC, as milliseconds since the epoch."""
    now = datetime.fromtimestamp(time.time() if now_s is None else now_s, UTC)
    ago_s = seconds_of(text)
    if ago_s is not None:
        return int((now - timedelta(seconds=ago_s)).timestamp() * 1000)
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            moment = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text}+00:00")
            # A time later than now is meant as yesterday's.
            moment -= timedelta(days=moment > now)
        else:
            moment = datetime.fromisoformat(text)
            moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{json.dumps(text)} is not a time such as 2026-11-22T18:03:00, 18:03, or 5m for five minutes ago"
        ) from None
    return int(moment.timestamp() * 1000)


def run(arguments: argparse.Namespace) -> int:
    """Prints the throttles, or that there are none; 1 when the gateway can't be reached, 2 without a client."""
    if arguments.user is arguments.client_id is arguments.ip is None:
        print(
            "sluice: name a client with --client-id or --user, or an address with --ip (sluice top lists the "
            "clients)",
            file=sys.stderr,
        )
        return 2
    return admin_port.exit_code(arguments.admin, partial(_exchange, arguments), what=_WHAT)


def path_of(user: str | None, client_id: str | None, ip: str = "") -> str:
    """The path of the request to the admin port; None stands for any name."""
    names = {"ip": ip} if ip else {"user": user, "client_id": client_id}
    query = {name: value for name, value in names.items() if value is not None}
    return f"/why?{urlencode(query, errors='surrogatepass')}"


def _exchange(arguments: argparse.Namespace) -> int:
    path = path_of(arguments.user, arguments.client_id, arguments.ip or "")
    status, answer = admin_port.ask(arguments.admin, path)
    if status != 200:
        print(f"sluice: refused: {answer['error']}", file=sys.stderr)
        return 1
    entries = answer["throttles"]
    answer["longest"] = max(entries, key=lambda entry: int(entry["told_ms"]), default=None)
    if arguments.at is not None:
        entries, away_ms = _nearest(entries, arguments.at)
        answer["asked"] = {"at_ms": arguments.at, "away_ms": away_ms}
    entries = entries[-arguments.limit :]
    answer["throttles"] = entries
    clients = "" if arguments.ip else clients_of(arguments.user, arguments.client_id)
    print(json.dumps(answer, indent=2) if arguments.json else text_of(answer, clients))
    return 0


def _nearest(entries: list[dict[str, Any]], at_ms: int) -> tuple[list[dict[str, Any]], int]:
    """The entries in force at that moment, else the nearest one, and how many ms later it was (< 0: earlier)."""

    def away_ms(entry: dict[str, Any]) -> int:
        end_ms = max(entry["last_ms"], entry["until_ms"])
        return int(max(entry["first_ms"] - at_ms, 0) or min(end_ms - at_ms, 0))

    hit = [entry for entry in entries if away_ms(entry) == 0]
    nearest = hit or sorted(entries, key=lambda entry: abs(away_ms(entry)))[:1]
    return nearest, away_ms(nearest[0]) if nearest else 0


def clients_of(user: str | None, client_id: str | None) -> str:
    """All clients with these names, in words; "" if both names are known."""
    if user is not None and client_id is not None:
        return ""
    if user is None:
        return f"clients with {client_name(client_id=client_id)}, of all users"
    return f"clients with {client_name(user)}, of all client ids"


def text_of(answer: dict[str, Any], clients: str = "") -> str:
    """The response as text for people.

    Args:
        answer: the response of the admin port.
        clients: see `clients_of`.
    """
    client = f"client {_name(answer)}"
    blocks = [clients or client]
    if (asked := answer.get("asked")) is not None and asked["away_ms"]:
        away = f"{_duration(abs(asked['away_ms']))} {'later' if asked['away_ms'] > 0 else 'earlier'}"
        blocks.append(f"not throttled at {_time(asked['at_ms'])}; the nearest throttle was {away}:")
    # The last entry comes first, because people look for it most often.
    blocks += ["\n".join(entry_lines(entry)) for entry in reversed(answer["throttles"])]
    longest = answer.get("longest")
    if longest and longest["told_ms"] and longest not in answer["throttles"]:
        whose = "" if longest["ip"] else f", of {_name(longest)}"
        blocks.append(
            f"longest wait in the journal: {longest['told_ms']} ms, at {_time(longest['first_ms'])}{whose}"
        )
    if not answer["throttles"]:
        none = f"no throttle is recorded since {_time(answer['since_ms'])}, when the journal began"
        lost = "; some older entries were dropped" if answer["forgotten"] else ""
        brokers = "The journal does not record throttles by the brokers' own quotas"
        observed = answer.get("mode") == "observe" or any(quota["observe"] for quota in answer["quotas"])
        blocks.append(
            f"{none}{lost}. {brokers}.{_OBSERVED if observed else ''}{_NAMES if answer['quotas'] else ''}"
        )
    if answer["quotas"]:
        rows = [("NOW", "LIMIT", "LEVEL", "ENTITY")]
        for quota in answer["quotas"]:
            limit = number(quota["limit"])
            if quota.get("burst_s") is not None and quota["quota"] in BURST_KEYS:
                limit += f", bucket of {number(quota['burst_s'])} s"
            limit += " (observed only)" if quota["observe"] else ""
            rows.append((quota["quota"], limit, quota["rule"], quota["entity"] or "-"))
        table = aligned(rows)
        blocks.append("\n".join([f"quotas of {client}", *table] if clients else table))
    return "\n\n".join(blocks)


def entry_lines(entry: dict[str, Any]) -> list[str]:
    """The text of a journal's entry."""
    when = _time(entry["first_ms"])
    if entry["last_ms"] // 1000 != entry["first_ms"] // 1000:
        when += f" to {_time(entry['last_ms'])[11:]}"
    waits = f"throttled for {entry['told_ms']} ms"
    if entry["count"] > 1:
        waits = (
            f"throttled {entry['count']} times, for at most {entry['told_ms']} ms, {entry['total_ms']} ms in "
            "total"
        )
    by = entry["by"]
    unit = _UNITS.get(by, "requests/s")
    if by in _OF_CONNECTIONS:
        waits = f"{counted(entry['count'], 'connection')} {_OUTCOMES.get(entry['api'], entry['api'])}" + (
            f", for at most {entry['told_ms']} ms" if entry["told_ms"] else ""
        )
    level = "" if entry["rule"] == "none" else f", level {entry['rule']}"
    rule = f"{by} quota{level}"
    # A share of a capacity changes each second and has many digits.
    limit = number(entry["limit"] if entry.get("lent") is None else _six_digits(entry["limit"]))
    facts = [("rule", f"{rule}: {entry['entity'] or 'none'} {limit} {unit}")]
    if not entry["ip"]:
        whose = client_name(entry["user"]) if by in _OF_CONNECTIONS else _name(entry)
        facts.insert(0, ("client", whose))
    if entry["rule"] == "capacity":
        facts.append(("capacity", "the limit is what new clients share of it, for a second"))
    elif (lent := entry.get("lent")) is not None:
        ceiling = "all of it" if lent["ceiling"] is None else f"{number(lent['ceiling'])} {unit}"
        facts.append(
            (
                "capacity",
                f"the limit is its share; guaranteed {number(lent['guarantee'])} {unit}, at most {ceiling}, "
                f"weight {lent['weight']:g}, tier {lent['tier']}",
            )
        )
    if (cut := entry.get("cut")) is not None:
        facts.append(("cause", cut["text"]))
    facts.append(("measured", _measured(entry, unit)))
    if by not in _OF_CONNECTIONS:
        counter = counter_name(entry["counter"]["user"], entry["counter"]["client_id"])
        shared = "; too many clients for a counter each, so they share one" if entry["shared"] else ""
        if entry["rule"] == "group":
            counter = f"{entry['entity']}, all its members together"
        elif entry["rule"] == "capacity":
            counter = "all clients that are new together, until the capacity is divided again"
        facts.append(("counted by", counter + shared))
        facts.insert(1, ("request", entry["api"]))
    return [f"{when}  {waits}", *aligned(facts, indent="    ")]


def _name(client: dict[str, Any]) -> str:
    if client["ip"]:
        return client_name(ip=client["ip"])
    return client_name(client["user"], client["client_id"])


def _measured(entry: dict[str, Any], unit: str) -> str:
    found = entry["measured"]
    if found["tokens"] is not None:
        # For byte rates a token is a byte. Tokens below zero are use beyond the limit.
        return f"{found['tokens']:.1f} {'bytes' if unit == 'B/s' else 'tokens'} in the bucket"
    if found["rate"] is None:
        return "-"
    text = f"{number(_six_digits(found['rate']))} {unit}"
    if found["window_ms"] is not None:
        text += f" over {found['window_ms'] / 1000:g} s"
    if found["blocked_ms"]:
        text += f"; two windows are used up, so no request passes for {found['blocked_ms']} ms"
    return text


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def _duration(ms: int) -> str:
    seconds = max(1, round(ms / 1000))
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds} s"


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
