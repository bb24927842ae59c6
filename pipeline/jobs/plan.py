"""``sluice-pipeline plan show|diff|apply|revert``: see `pipeline.plans.steps`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pipeline.errors import ArgumentError, Exit, JobError
from pipeline.plans.plan import PlanError
from pipeline.plans.steps import Cluster, apply, diff, revert, show
from quota_client.client import QuotaClientError

_LARGEST_CHANGE: Final = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    steps = parser.add_subparsers(dest="step", required=True, metavar="show|diff|apply|revert")
    show = steps.add_parser("show", help="what a plan says, and why")
    show.add_argument("plan", type=Path, help="plan.json, from recommend")
    show.add_argument("--all", action="store_true", help="also what it leaves alone")
    for name, what in (("diff", "a plan beside the quotas that are set"), ("apply", "set a plan's quotas")):
        step = steps.add_parser(name, help=what)
        step.add_argument("plan", type=Path, help="plan.json, from recommend")
        _connection_arguments(step)
        step.add_argument(
            "--counts",
            choices=("fleet", "gateway", "broker"),
            help="what one counter covers there; else Kafka's brokers each by itself, and gateways as they say",
        )
        step.add_argument(
            "--previous",
            type=Path,
            action="append",
            metavar="FILE",
            help="revert file of an earlier plan, as often as needed; default: those beside the plan and, below "
            "OUT/results/plan, beside the others, as far as they name the same --bootstrap",
        )
        if name == "apply":
            step.add_argument("--revert-file", type=Path, help="default: the plan's name with .revert.json")
            step.add_argument("--force", action="store_true", help="also over what was changed meanwhile")
            step.add_argument(
                "--validate-only", action="store_true", help="only ask whether it would be accepted"
            )
            step.add_argument(
                "--unattended",
                action="store_true",
                help="no person has looked at it: refuse a plan whose newest day lacks records, or that changes a "
                "quota in force by more than --largest-change",
            )
            step.add_argument(
                "--largest-change",
                type=float,
                metavar="FACTOR",
                help=f"with --unattended: multiply or divide a quota by at most this ({_LARGEST_CHANGE:g})",
            )
    revert = steps.add_parser("revert", help="take back what apply did")
    revert.add_argument("revert_file", type=Path, help="the file that apply wrote")
    _connection_arguments(revert)
    revert.add_argument("--force", action="store_true", help="also what was changed again meanwhile")
    revert.add_argument(
        "--elsewhere",
        action="store_true",
        help="also where the file names another --bootstrap of the cluster",
    )


def _connection_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the gateway, or a broker")
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="name=value lines for the connection: security_protocol, ssl_cafile, sasl_mechanism, ...",
    )


def run(arguments: argparse.Namespace) -> Exit:
    """Runs one step."""
    try:
        return _step(arguments)
    except (PlanError, QuotaClientError) as exc:
        raise JobError(str(exc)) from exc


def _step(arguments: argparse.Namespace) -> Exit:
    if arguments.step == "show":
        return show(arguments.plan, keep_too=arguments.all)
    if arguments.step == "revert":
        cluster = Cluster(arguments.bootstrap, arguments.client_config)
        return revert(arguments.revert_file, cluster, force=arguments.force, elsewhere=arguments.elsewhere)
    cluster = Cluster(arguments.bootstrap, arguments.client_config, arguments.counts)
    previous = arguments.previous or ()
    if arguments.step == "diff":
        return diff(arguments.plan, cluster, previous=previous)
    return apply(
        arguments.plan,
        cluster,
        previous=previous,
        revert_file=arguments.revert_file,
        force=arguments.force,
        validate_only=arguments.validate_only,
        largest_change=_largest_change(arguments),
    )


def _largest_change(arguments: argparse.Namespace) -> float | None:
    """The factor by which quotas may change without a person's check; None: a person checks.

    Raises:
        ArgumentError: the arguments contradict each other.
    """
    given: float | None = arguments.largest_change
    if not arguments.unattended:
        if given is not None:
            raise ArgumentError("--largest-change goes with --unattended")
        return None
    if arguments.force:
        raise ArgumentError("--force is a decision of a person, and not with --unattended")
    factor = _LARGEST_CHANGE if given is None else given
    if not factor > 1:
        raise ArgumentError(f"--largest-change is above 1, not {factor:g}")
    return factor
