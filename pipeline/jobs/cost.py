"""``sluice-pipeline cost``: the use of each team in a month, and its cost.

Reads compacted days, without Spark. Writes `index.html` for people, `cost.csv` and `cost.parquet` with a row for each
team, and `days.parquet` with a row for each team and day. The same records, groups and prices give the same files.
"""

from __future__ import annotations

import argparse
import datetime
import zoneinfo

from pipeline.errors import ArgumentError, Exit
from pipeline.jobs.arguments import add_expectation, add_out, expectation_of
from pipeline.storage.layout import results_dir
from quotas.entities import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser, "the pipeline's folder; it has compacted days")
    parser.add_argument(
        "--groups", required=True, metavar="FILE", help="groups.toml: the teams and their members"
    )
    parser.add_argument("--prices", metavar="FILE", help="prices.toml; without it only use is written")
    parser.add_argument("--month", metavar="MONTH", help="as 2026-11; else the last month that is over")
    parser.add_argument(
        "--zone",
        default="UTC",
        metavar="NAME",
        help="whose days these are, such as Europe/Berlin (%(default)s)",
    )
    parser.add_argument("--allow-gaps", action="store_true", help="continue without days that are missing")
    add_expectation(parser)
    parser.add_argument("--to-dir", metavar="DIR", help="where to write; else below OUT/results/cost")


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    import pyarrow.parquet as pq

    from pipeline.storage.files import local_result
    from pipeline.teams.bill import bill_of
    from pipeline.teams.members import NO_TEAM, read_members
    from pipeline.teams.month import largest_of_no_team, largest_topics_of_no_team, month_use
    from pipeline.teams.page import MonthCost, render, to_arrow, to_csv
    from pipeline.teams.prices import prices_of

    members = read_members(arguments.groups)
    prices = prices_of(arguments.prices) if arguments.prices else None
    zone = _zone(arguments.zone)
    expectation = expectation_of(arguments)
    month = arguments.month or _last_month(expectation.now_s, zone)
    run = f"{month}-{zone.key.replace('/', '-')}"
    folder = local_result(arguments.to_dir, "--to-dir", results_dir(arguments.out, "cost", run))
    use = month_use(arguments.out, month, zone, members, expectation, allow_gaps=arguments.allow_gaps)
    found = MonthCost(
        use, members, prices, bill_of(use.by_team(members), prices, use.hours) if prices is not None else None
    )
    rows = found.rows()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cost.csv").write_text(to_csv(rows), encoding="utf-8")
    pq.write_table(to_arrow(rows), folder / "cost.parquet", compression="zstd")
    pq.write_table(use.rows, folder / "days.parquet", compression="zstd")
    (folder / "index.html").write_text(render(found), encoding="utf-8")
    print(f"{month} in {zone.key}: {counted(len(members.teams), 'team')}, {use.completeness:.2%} complete")
    for row in rows:
        cost = f", {row['total']} {row['currency']}" if "total" in row else ""
        print(f"{row['team']}: {row['bytes_in']} bytes in, {row['bytes_out']} bytes out{cost}")
    if prices is not None and "stored_gb_month" in prices.prices and not use.stored_hours:
        print("stored_gb_month has a price, and the records have no stored bytes: set usage.stored")
    for user, client_id, sent in largest_of_no_team(arguments.out, use, members):
        print(f"{NO_TEAM}: user {user or '-'}, client id {client_id or '-'}: {counted(sent, 'byte')}")
    for topic, size in largest_topics_of_no_team(arguments.out, use, members):
        print(f"{NO_TEAM}: topic {topic}: {counted(size, 'byte')} stored")
    print(folder / "index.html")
    return Exit.DONE


def _zone(name: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ArgumentError(
            f"--zone {name!r}: not a time zone of this machine, such as Europe/Berlin"
        ) from None


def _last_month(now_s: int, zone: zoneinfo.ZoneInfo) -> str:
    today = datetime.datetime.fromtimestamp(now_s, zone).date()
    return f"{today.replace(day=1) - datetime.timedelta(days=1):%Y-%m}"
