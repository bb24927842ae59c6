"""``sluice-pipeline erase``: removes all rows of one client; without --yes it only counts them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.jobs.arguments import add_master, add_out

if TYPE_CHECKING:
    from pipeline.erase.erasure import Erasure

_NOT_REACHED = (
    "the usage topic: its messages go with the topic's retention. Ingest what is in it, then erase again",
    "what gateways have not completed yet, and lines that were never ingested: erase again after the next ingest",
    "backups, snapshots and older versions that the storage keeps",
    "files and folders that are not named here: archives of usage files, plans and reports elsewhere",
    "quotas that are set for the client, and logs, metrics and traces of gateways",
    "rows of ~other, which are sums of clients beyond a gateway's max_rows",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    add_out(parser)
    parser.add_argument("--user", metavar="NAME", help="rows of this user")
    parser.add_argument(
        "--client-id", metavar="NAME", help="rows of this client id; with --user of both together"
    )
    parser.add_argument("--ip", metavar="ADDRESS", help="connections of this address")
    parser.add_argument(
        "--salt-file",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help='the gateways\' salt, where records have hashed names (privacy = "hashed")',
    )
    parser.add_argument(
        "--usage",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder with usage files, of gateways or an archive; as often as needed",
    )
    parser.add_argument(
        "--results",
        type=Path,
        action="append",
        default=[],
        metavar="PATH",
        help="plans, revert files, reports or simulations outside OUT/results; as often as needed",
    )
    parser.add_argument("--yes", action="store_true", help="erase; else only say what there is")
    add_master(parser)


def run(arguments: argparse.Namespace) -> Exit:
    """Runs the job."""
    # `--help` must work without the packages of the extra.
    from pipeline.client_tables.making import make_missing
    from pipeline.erase.client import Client
    from pipeline.erase.erasure import Places, days_to_make, erase
    from pipeline.spark.runner import OnSpark
    from pipeline.spark.session import open_session
    from pipeline.storage.raw_table import raw_table

    out = arguments.out.rstrip("/")
    client = Client.named(
        user=arguments.user,
        client_id=arguments.client_id,
        ip=arguments.ip,
        salts=[path.read_bytes() for path in arguments.salt_file],
    )
    for path in (*arguments.usage, *arguments.results):
        if not path.exists():
            raise ArgumentError(f"{path} is not there")
    if raw_table(out).read().version < 0 and not (arguments.usage or arguments.results):
        raise NotYetCompleteError(f"{out}: nothing has been ingested there yet")
    done = erase(Places(out, arguments.usage, arguments.results), client, write=arguments.yes)
    _print(done)
    days = days_to_make(out) if arguments.yes else []
    if days:
        spark = open_session("sluice erase", master=arguments.master)
        try:
            make_missing(OnSpark(spark), out)
        finally:
            spark.stop()
        print(f"tables of clients made again of what is left: {', '.join(days)}")
    print("\n".join(["this command does not reach:", *(f"  {each}" for each in _NOT_REACHED)]))
    for text in done.left:
        print(f"can't be erased: {text}")
    if not arguments.yes:
        print("nothing was erased: say --yes" if done.found else "nothing to erase")
    elif done.left:
        return Exit.FAILED
    elif done.found or days:
        print("erased; earlier versions of the tables are deleted too (retention: 0 hours)")
    else:
        print("nothing to erase")
    return Exit.DONE if done.found or days else Exit.NOTHING_TO_DO


def _print(done: Erasure) -> None:
    places: dict[str, list[str]] = {}
    for (where, what), count in done.found.items():
        places.setdefault(where, []).append(f"{count} {what}")
    for where, counts in places.items():
        print(f"{where}: {', '.join(counts)}")
