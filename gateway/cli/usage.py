"""``sluice usage``: the use of each client in the last minutes, from usage files. Needs no Spark."""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import config
from gateway.cli.admin_port import add_cluster_argument
from gateway.cli.table import aligned, how_many, number
from gateway.cli.topic_usage import summarise_topics, topic_blocks, topics_json
from gateway.usage.reader import Readings, name_of_row, read_last, rows_of
from quotas.entities import OTHER_CLIENTS, counted, format_name
from quotas.usage_record import FLEET, Row, UsageApi

CLOSE: Final = 0.8
"""A client is close to its limit from this part of it on."""

_UNITS: Final = {
    UsageApi.PRODUCE: "B/s",
    UsageApi.FETCH: "B/s",
    UsageApi.REQUEST: "ms/s",
    UsageApi.MUTATION: "/s",
    UsageApi.CONNECT: "/s",
    UsageApi.USER_CONNECT: "/s",
}
_REQUEST_MS_PER_PERCENT: Final = 10.0  # 1 % of a core is 10 ms of each second


@dataclass(slots=True)
class Use:
    """The use of one API by one client; rates are averages over the whole time, in the unit of the API.

    Attributes:
        rate, peak: the average rate, and the rate of the busiest second.
        quota: the limit at the end; None: unlimited.
        used: rate over quota, for the counter with the highest part: of a fleet, a gateway, or a gateway's broker.
        requests, delayed, rejected: counts.
        throttle_s: the sum of throttle times sent.
        muted: the part of the time in which a connection was muted.
    """

    api: str
    user: str
    client_id: str
    rate: float = 0.0
    peak: float = 0.0
    quota: float | None = None
    used: float | None = None
    requests: int = 0
    delayed: int = 0
    rejected: int = 0
    throttle_s: float = 0.0
    muted: float = 0.0
    by_counter: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_second: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    muted_ms: dict[int, int] = field(default_factory=dict)


def add_parser(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "usage",
        help="show what each client used in the last minutes",
        description="Show what clients used, how close to their limits they came and how long they were throttled. "
        "The numbers come from the usage records of the last minutes ([usage] with kind = files).",
        allow_abbrev=False,
    )
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="directory of the usage files; default: that of --config"
    )
    parser.add_argument("--config", metavar="FILE", help="the configuration file")
    add_cluster_argument(parser)
    parser.add_argument(
        "--minutes", metavar="N", type=how_many, default=5, help="how many minutes back; default: 5"
    )
    parser.add_argument("--top", metavar="N", type=how_many, default=10, help="clients per API; default: 10")
    parser.add_argument("--api", choices=[each.value for each in UsageApi], help="show only this API")
    parser.add_argument(
        "--topics",
        action="store_true",
        help="show which topics clients produced to and fetched from (needs [usage] topics = true)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON with all clients, for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the table; 1 when there are no records."""
    directory = arguments.directory
    if directory is None and arguments.config is not None:
        directory = config.load(arguments.config, cluster=arguments.cluster).usage.directory
    if directory is None:
        raise config.ConfigError(["name the directory of the usage records, or a --config that has one"])
    try:
        readings = read_last(Path(directory), arguments.minutes * 60)
    except OSError as exc:
        raise config.ConfigError([f"{directory}: cannot be read: {exc.strerror}"]) from exc
    if arguments.topics:
        print(_topics(readings, arguments))
        return 0 if readings.lines else 1
    uses = summarise(readings)
    if arguments.api is not None:
        uses = [use for use in uses if use.api == arguments.api]
    print(_json(readings, uses) if arguments.json else _text(readings, uses, arguments.top))
    return 0 if readings.lines else 1


def _topics(readings: Readings, arguments: argparse.Namespace) -> str:
    uses = summarise_topics(readings, covered_s(readings), api=arguments.api)
    if arguments.json:
        return json.dumps({**_coverage(readings), "topics": topics_json(uses)}, indent=2)
    if not readings.lines:
        return "\n".join(["no usage records here", *_notes(readings)])
    blocks = topic_blocks(uses, arguments.top)
    none = [] if blocks else ["no topics in these records: [usage] topics is off, or no client was active"]
    return "\n\n".join(["\n".join([_head(readings), *_notes(readings)]), *blocks, *none])


def summarise(readings: Readings) -> list[Use]:
    """The use of each client, the busiest of each API first. Listeners and brokers are added up."""
    uses: dict[tuple[str, str, str], Use] = {}
    for line in readings.lines:
        ts = line["ts"]
        for row in rows_of(line):
            key = (row[Row.API], row[Row.USER], row[Row.CLIENT_ID])
            use = uses.get(key)
            if use is None:
                use = uses[key] = Use(*key)
            use.by_second[ts] += row[Row.OFFERED]
            use.by_counter[_counter(line, row)] += row[Row.OFFERED]
            use.requests += row[Row.REQUESTS]
            use.delayed += row[Row.DELAYED]
            use.rejected += row[Row.REJECTED]
            use.throttle_s += row[Row.THROTTLE_MS] / 1000
            use.muted_ms[ts] = max(use.muted_ms.get(ts, 0), row[Row.MUTED_MS])
            use.quota = row[Row.QUOTA]
    seconds = covered_s(readings)
    for use in uses.values():
        use.rate = sum(use.by_second.values()) / seconds
        use.peak = max(use.by_second.values())
        use.muted = min(1.0, sum(use.muted_ms.values()) / 1000 / seconds)
        if use.quota:
            per_unit = _REQUEST_MS_PER_PERCENT if use.api == UsageApi.REQUEST else 1.0
            use.used = max(use.by_counter.values()) / seconds / per_unit / use.quota
    order = {api.value: at for at, api in enumerate(UsageApi)}
    return sorted(uses.values(), key=lambda use: (order.get(use.api, len(order)), -use.rate))


def _counter(line: dict[str, Any], row: list[Any]) -> str:
    """The counter of a row. Connections are always counted per gateway."""
    scope = line.get("scope")
    if isinstance(scope, str) and row[Row.API] != UsageApi.CONNECT:
        if scope.startswith(FLEET):
            return scope
        if scope == "broker":
            return f"{line['gw']} {row[Row.NODE]}"
    return str(line["gw"])


def covered_s(readings: Readings) -> float:
    """The time that the records cover, of the gateway with the longest one."""
    covered: dict[str, int] = defaultdict(int)
    for line in readings.lines:
        covered[line["gw"]] += line["dur_ms"]
    return max(covered.values(), default=0) / 1000 or 1.0


def _text(readings: Readings, uses: list[Use], top: int) -> str:
    notes = _notes(readings)
    if not readings.lines:
        return "\n".join(["no usage records here", *notes])
    blocks = ["\n".join([_head(readings), *notes])]
    for api in dict.fromkeys(use.api for use in uses):
        found = [use for use in uses if use.api == api]
        unit = _UNITS.get(UsageApi(api), "/s") if api in set(UsageApi) else ""
        rows: list[tuple[str, ...]] = [
            (
                api.upper(),
                f"RATE {unit}",
                "PEAK",
                "QUOTA",
                "USED",
                "THROTTLED",
                "THROTTLE TIME",
                "PAUSED",
                "",
            )
        ]
        rows += [_cells(use) for use in found[:top]]
        more = [f"and {len(found) - top} more"] if len(found) > top else []
        blocks.append("\n".join([*aligned(rows), *more]))
    return "\n\n".join(blocks)


def _cells(use: Use) -> tuple[str, ...]:
    if use.rejected:
        remark = f"{use.rejected} refused"
    elif use.used is not None and use.used >= CLOSE:
        remark = "close to its limit"
    else:
        remark = ""
    return (
        name_of_row(use.api, use.user, use.client_id),
        _rate(use.rate),
        _rate(use.peak),
        number(use.quota),
        "-" if use.used is None else f"{use.used:.0%}",
        f"{use.delayed / use.requests:.1%}" if use.requests else "-",
        f"{use.throttle_s:.1f} s" if use.throttle_s else "-",
        f"{use.muted:.0%}" if use.muted else "-",
        remark,
    )


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _head(readings: Readings) -> str:
    until = datetime.fromtimestamp(readings.lines[-1]["ts"] + 1, UTC)
    gateways = sorted({line["gw"] for line in readings.lines})
    names = ", ".join(gateways[:3]) + (f" and {len(gateways) - 3} more" if len(gateways) > 3 else "")
    return f"{covered_s(readings):.0f} s until {until:%Y-%m-%d %H:%M:%S} UTC, gateway {names}"


def _notes(readings: Readings) -> list[str]:
    notes = []
    if missing := readings.missing():
        notes.append(f"{counted(missing, 'line')} missing: dropped, lost, or not in a file yet")
    if folded := sum(line["dropped_rows"] for line in readings.lines):
        notes.append(
            f"some seconds had more clients than rows: {counted(folded, 'row')} added to {OTHER_CLIENTS}"
        )
    if readings.unread_files:
        names = ", ".join(format_name(name) for name in readings.unread_files)
        notes.append(f"{counted(readings.unread, 'line')} skipped that are not usage records, in {names}")
    return notes


def _json(readings: Readings, uses: list[Use]) -> str:
    inner = ("by_counter", "by_second", "muted_ms")
    names = [each.name for each in fields(Use) if each.name not in inner]
    shown = [{name: getattr(use, name) for name in names} for use in uses]
    return json.dumps({**_coverage(readings), "clients": shown}, indent=2)


def _coverage(readings: Readings) -> dict[str, float]:
    return {
        "seconds": covered_s(readings) if readings.lines else 0,
        "missing_lines": readings.missing(),
        "unread_lines": readings.unread,
    }
