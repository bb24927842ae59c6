"""Arguments that several jobs share."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pipeline.errors import ArgumentError
from pipeline.recommend.recommendation import Rule
from pipeline.storage.counting import fleets_of, recorded_scope
from pipeline.storage.coverage import GRACE_S, Expectation
from pipeline.storage.entity_days import Scope
from quotas.entities import QuotaKey
from quotas.limits import MOST_BURST_SECONDS
from quotas.units import KINDS, UnitError, amount_of, has_unit
from quotas.usage_record import UsageApi

if TYPE_CHECKING:
    from pipeline.spark.runner import Runner


def add_out(
    parser: argparse.ArgumentParser, text: str = "the pipeline's folder, the same for all jobs"
) -> None:
    """The folder that all jobs share."""
    parser.add_argument("--out", required=True, help=text)


def add_master(parser: argparse.ArgumentParser) -> None:
    """Where Spark runs."""
    parser.add_argument(
        "--master", help="Spark's cluster (spark-submit's, SPARK_MASTER, or this machine's cores)"
    )


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Where a job runs that needs no Spark on a single machine."""
    parser.add_argument(
        "--master",
        help="Spark's cluster, or local[2] (spark-submit's, SPARK_MASTER); default: without Spark, in this process",
    )


@contextmanager
def open_runner(arguments: argparse.Namespace, app: str) -> Iterator[Runner]:
    """Opens the runner for a job's parts: Spark if a cluster is named, else this process."""
    # `--help` must work without the packages of the extra.
    from pipeline.spark.runner import InProcess, OnSpark
    from pipeline.spark.session import is_asked_for, open_session

    if not is_asked_for(arguments.master):
        yield InProcess()
        return
    spark = open_session(app, master=arguments.master)
    try:
        yield OnSpark(spark)
    finally:
        spark.stop()


def add_scope(parser: argparse.ArgumentParser) -> None:
    """What one counter covers."""
    parser.add_argument(
        "--scope",
        choices=list(Scope),
        help="what one counter covers: all gateways of a fleet, a gateway, or each broker by itself; default: as in "
        "the newest records",
    )


def scope_of(arguments: argparse.Namespace) -> Scope:
    """What one counter covers.

    Raises:
        RefusedError: gateways count differently, and the arguments do not choose.
        ArgumentError: no gateway shares its counters.
    """
    # `--help` must work without the packages of the extra.
    from pipeline.storage.compacted_days import published_days

    days = published_days(arguments.out)
    if arguments.scope is None:
        return recorded_scope(days)
    scope = Scope(arguments.scope)
    if scope is Scope.FLEET and not fleets_of(days):
        raise ArgumentError(
            "--scope fleet: no record names a fleet, so it is not known which gateways share counters"
        )
    return scope


def add_windows(parser: argparse.ArgumentParser) -> None:
    """How quotas are measured."""
    parser.add_argument(
        "--window-num", type=int, default=11, help="samples of a rate, windows of a burst (11)"
    )
    parser.add_argument("--window-ms", type=int, default=1_000, help="length of one (1000)")


def add_rule(parser: argparse.ArgumentParser) -> None:
    """How required rates become a quota."""
    parser.add_argument(
        "--rule",
        choices=list(Rule),
        default=Rule.DECAYED,
        help="decayed: recent days count more; largest: for clients with one busy day a week (%(default)s)",
    )
    parser.add_argument("--margin", type=float, default=1.25, help="factor on the required rate (1.25)")


def add_burst(parser: argparse.ArgumentParser) -> None:
    """Whether byte rates are measured by buckets."""
    parser.add_argument(
        "--burst",
        type=float,
        metavar="SECONDS",
        help="byte rates have a bucket of so many seconds (producer_byte_burst_seconds, consumer_byte_burst_seconds) "
        "instead of Kafka's window",
    )


def burst_of(arguments: argparse.Namespace) -> float | None:
    """The burst that `add_burst` has read, in seconds.

    Raises:
        ArgumentError: no bucket can have it.
    """
    burst_s: float | None = arguments.burst
    if burst_s is not None and not 0 < burst_s <= MOST_BURST_SECONDS:
        raise ArgumentError(f"--burst is above 0 and at most {MOST_BURST_SECONDS:g} s, not {burst_s:g}")
    return burst_s


def add_expectation(parser: argparse.ArgumentParser) -> None:
    """Which gateways and days are expected; see `pipeline.storage.coverage`."""
    parser.add_argument(
        "--expect-gateways",
        default="",
        metavar="NAME,...",
        help="gateways that must have records every day; default: each gateway, until the day after its last record",
    )
    parser.add_argument(
        "--grace",
        type=int,
        default=GRACE_S // 60,
        metavar="MINUTES",
        help="how long after its end a day waits for late files before it is closed (%(default)s)",
    )


def add_allow_open(parser: argparse.ArgumentParser) -> None:
    """Whether days count that are not closed."""
    parser.add_argument("--allow-open", action="store_true", help="include days that may still get records")


def expectation_of(arguments: argparse.Namespace) -> Expectation:
    """The expectation that the arguments describe.

    Raises:
        ArgumentError: the arguments are wrong.
    """
    if arguments.grace < 0:
        raise ArgumentError(f"--grace is 0 or more minutes, not {arguments.grace}")
    names = frozenset(filter(None, (name.strip() for name in arguments.expect_gateways.split(","))))
    return Expectation(int(time.time()), arguments.grace * 60, names)


def add_days(parser: argparse.ArgumentParser, what: str = "to work on") -> None:
    """The range of days, for all jobs that work by day; `check_days` checks it."""
    for name, dest, end in (("--from", "first", "first"), ("--to", "last", "last")):
        parser.add_argument(
            name,
            dest=dest,
            metavar="DATE",
            help=f"the {end} day {what}, such as 2026-11-21; else the {end} there is",
        )


def check_days(arguments: argparse.Namespace) -> None:
    """Checks the days that `add_days` has read.

    Raises:
        ArgumentError: one is not a day, or the last is before the first.
    """
    for name, text in (("--from", arguments.first), ("--to", arguments.last)):
        if text is not None:
            day_of(text, name)
    if arguments.first and arguments.last and arguments.last < arguments.first:
        raise ArgumentError(f"--to {arguments.last} is before --from {arguments.first}")


def day_of(text: str, name: str) -> datetime.date:
    """Parses the day in an argument.

    Raises:
        ArgumentError: the text is not a day.
    """
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        day = None
    # Tables name days as text, so days in other spellings, such as 20261121, would not be found.
    if day is None or day.isoformat() != text:
        raise ArgumentError(f"{name} {text!r}: say a day as 2026-11-21")
    return day


def add_capacity(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """What the cluster can take."""
    parser.add_argument(
        "--capacity",
        required=required,
        default="",
        metavar="API=VALUE,...",
        help="what the cluster can take per second, such as produce=200MB,mutation=50/s",
    )


def parse_capacity(text: str) -> dict[QuotaKey, float]:
    """Parses ``produce=200MB,mutation=50/s`` to limits by quota key; numbers may have a unit.

    Raises:
        ArgumentError: it has another form.
    """
    # `--help` must work without the packages of the extra.
    from pipeline.replay.demand import KEY_OF_API

    found = {}
    for part in filter(None, text.split(",")):
        api, _, value = part.partition("=")
        try:
            key = KEY_OF_API[UsageApi(api.strip())]
            found[key] = float(amount_of(value, KINDS[key]) if has_unit(value) else value)
        except UnitError as exc:
            raise ArgumentError(f"--capacity {part}: {exc}") from None
        except ValueError:
            raise ArgumentError(
                f"--capacity {part}: expected API=VALUE with one of {', '.join(UsageApi)}"
            ) from None
    return found
