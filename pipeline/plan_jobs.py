"""`sluice-pipeline plan show|diff|apply|revert`: from a plan to the quotas in force, and back.

Applying asks first whether everything would be accepted (validate_only), then writes the revert file, and only then
alters. So a plan that is refused in part changes nothing, and whatever is changed can be taken back, even when the
connection breaks half way. The revert files of earlier plans tell which quotas are ours to change.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pipeline.errors import JobError
from pipeline.plan import Action, Plan, PlanError
from pipeline.plan_changes import (
    Change,
    Difference,
    Revert,
    State,
    differences,
    last_changes,
    reverting,
    to_do,
)
from pipeline.quota_client import QuotaClient, QuotaClientError, Refusal, Setting
from pipeline.text import number, table
from quotas.entities import QuotaEntity, QuotaKey

OK: Final = 0
NOT_DONE: Final = 1

_VERIFY_TIMEOUT_S: Final = 10.0
_VERIFY_POLL_S: Final = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `plan`."""
    steps = parser.add_subparsers(dest="step", required=True, metavar="show|diff|apply|revert")
    show = steps.add_parser("show", help="what a plan says, and why")
    show.add_argument("plan", type=Path, help="plan.json, from recommend")
    show.add_argument("--all", action="store_true", help="also what it leaves alone")
    for name, what in (("diff", "a plan beside the quotas that are set"), ("apply", "set a plan's quotas")):
        step = steps.add_parser(name, help=what)
        step.add_argument("plan", type=Path, help="plan.json, from recommend")
        _connection_arguments(step)
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
    revert = steps.add_parser("revert", help="take back what apply did")
    revert.add_argument("revert_file", type=Path, help="the file that apply wrote")
    _connection_arguments(revert)
    revert.add_argument("--force", action="store_true", help="also what was changed again meanwhile")


def _connection_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="the gateway, or a broker")
    parser.add_argument(
        "--client-config",
        type=Path,
        metavar="FILE",
        help="name=value lines for the connection: security_protocol, ssl_cafile, sasl_mechanism, ...",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out one step; prints what it finds and does.

    Returns:
        0, or 1 when something was refused or has changed meanwhile.

    Raises:
        JobError: a file is no plan, or a cluster can't be asked.
    """
    steps: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "show": _show,
        "diff": _diff,
        "apply": _apply,
        "revert": _revert,
    }
    try:
        return steps[args.step](args)
    except (PlanError, QuotaClientError) as exc:
        raise JobError(str(exc)) from exc


def _show(args: argparse.Namespace) -> int:
    plan = _read_plan(args.plan)
    basis = plan.basis
    print(
        f"made {plan.made_at} from {basis.days} days, {basis.first_day} to {basis.last_day}, "
        f"{basis.completeness:.2%} complete; at most {basis.target:.1%} throttled, margin {basis.margin:g}"
    )
    for check in plan.capacity:
        print(f"{check.key}: {'fits' if check.fits else 'DOES NOT FIT'}; {check.note}")
    shown = [entry for entry in plan.entries if args.all or entry.action is Action.SET]
    rows = [
        (
            str(entry.entity),
            entry.key.value,
            entry.action.value,
            number(entry.old),
            number(entry.value),
            "" if entry.expected_throttled is None else f"{entry.expected_throttled:.2%}",
            entry.reason,
        )
        for entry in shown
    ]
    print(table(("entity", "quota", "", "was", "plan", "throttled", "why"), rows))
    print(f"{len(shown)} of {len(plan.entries)} entries")
    return OK


def _diff(args: argparse.Namespace) -> int:
    plan = _read_plan(args.plan)
    with _connect(args) as client:
        found = differences(plan, client.describe(), last=_last_changes(args))
    _print_differences(found)
    return OK


def _apply(args: argparse.Namespace) -> int:
    plan = _read_plan(args.plan)
    revert_file = args.revert_file or args.plan.with_suffix(".revert.json")
    with _connect(args) as client:
        found = differences(plan, client.describe(), last=_last_changes(args))
        drifted = [each for each in found if each.state is State.DRIFT]
        if drifted and not args.force:
            _print_differences(drifted)
            return _not_done(
                f"{len(drifted)} quotas are set to what neither this plan nor an earlier one knows of; "
                "nothing was done (--force)"
            )
        changes = to_do(found, force=args.force)
        if not changes:
            print("everything is as planned already")
            return OK
        refused = client.alter(_settings(changes), validate_only=True)
        if refused:
            _print_refusals(refused)
            return _not_done("the plan would be refused in part; nothing was done")
        if args.validate_only:
            print(f"{len(changes)} quotas would be set")
            return OK
        if revert_file.exists():
            return _not_done(
                f"{revert_file} exists: it takes an earlier change back; name another --revert-file"
            )
        _write(revert_file, Revert(_now(), args.bootstrap, _as_changes(changes)).to_json())
        print(f"{revert_file} takes this back")
        return _carry_out(client, changes, "set")


def _revert(args: argparse.Namespace) -> int:
    revert = _read_revert(args.revert_file)
    with _connect(args) as client:
        found = reverting(revert, client.describe())
        drifted = [each for each in found if each.state is State.DRIFT and not args.force]
        changes = to_do(found, force=args.force)
        done = _carry_out(client, changes, "taken back") if changes else OK
    if drifted:
        _print_differences(drifted)
        return _not_done(f"{len(drifted)} quotas were changed again since and stay as they are (--force)")
    if not changes:
        print("everything is as it was already")
    return done


def _carry_out(client: QuotaClient, changes: Sequence[Difference], done: str) -> int:
    refused = client.alter(_settings(changes), validate_only=False)
    if refused:
        _print_refusals(refused)
    kept_out = {each.entity for each in refused}
    wanted = {(each.entity, each.key): each.wanted for each in changes if each.entity not in kept_out}
    missing = _await(client, wanted)
    print(f"{len(wanted) - len(missing)} quotas {done}")
    if missing:
        names = ", ".join(f"{entity} {key}" for entity, key in missing[:10])
        return _not_done(f"{len(missing)} quotas were accepted and are not in force: {names}")
    return NOT_DONE if refused else OK


def _await(
    client: QuotaClient, wanted: Mapping[tuple[QuotaEntity, QuotaKey], float | None]
) -> list[tuple[QuotaEntity, QuotaKey]]:
    """What is not in force in the end; a cluster takes a moment from accepting to showing."""
    deadline = time.monotonic() + _VERIFY_TIMEOUT_S
    while True:
        in_force = client.describe()
        missing = [name for name, value in wanted.items() if in_force.get(name) != value]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(_VERIFY_POLL_S)


def _settings(changes: Iterable[Difference]) -> list[Setting]:
    return [Setting(each.entity, each.key, each.wanted) for each in changes]


def _as_changes(changes: Iterable[Difference]) -> tuple[Change, ...]:
    return tuple(Change(each.entity, each.key, each.now, each.wanted) for each in changes)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_bytes())
    except PlanError as exc:
        raise PlanError(f"{path}: {exc}") from None


def _read_revert(path: Path) -> Revert:
    try:
        return Revert.from_json(path.read_bytes())
    except PlanError as exc:
        raise PlanError(f"{path}: {exc}") from None


def _last_changes(args: argparse.Namespace) -> dict[tuple[QuotaEntity, QuotaKey], Change]:
    """What earlier plans did to the quotas of this cluster."""
    if args.previous:
        return last_changes(_read_revert(path) for path in args.previous)
    folder = args.plan.absolute().parent
    files = set(folder.glob("*.revert.json"))
    if folder.name.startswith("run="):
        files |= set(folder.parent.glob("run=*/*.revert.json"))
    reverts = [_read_revert(path) for path in sorted(files)]
    return last_changes(each for each in reverts if each.bootstrap == args.bootstrap)


def _connect(args: argparse.Namespace) -> QuotaClient:
    return QuotaClient(args.bootstrap, read_properties(args.client_config))


def read_properties(path: Path | None) -> dict[str, Any]:
    """``name=value`` lines, # for comments; names as kafka-python writes them, dots are taken as underscores.

    Raises:
        PlanError: a line has another form.
    """
    properties: dict[str, Any] = {}
    if path is None:
        return properties
    for at, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            # The line itself may hold a password.
            raise PlanError(f"{path}, line {at}: expected name=value")
        key = name.strip().replace(".", "_")
        properties[key] = _typed(key, value.strip())
    return properties


def _typed(key: str, text: str) -> str | bool | int:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    # Not everything that looks like a number is one: a password of digits stays text.
    return int(text) if key.endswith("_ms") and text.isdigit() else text


def _write(path: Path, text: str) -> None:
    """Durable before anything is altered."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _not_done(text: str) -> int:
    print(f"sluice-pipeline: {text}", file=sys.stderr)
    return NOT_DONE


def _print_differences(found: Sequence[Difference]) -> None:
    rows = [
        (str(each.entity), each.key.value, number(each.now), number(each.wanted), each.state.value)
        for each in found
    ]
    print(table(("entity", "quota", "now", "plan", ""), rows))


def _print_refusals(refused: Sequence[Refusal]) -> None:
    rows = [(str(each.entity), str(each.code), each.text) for each in refused]
    print(table(("refused", "error", "why"), rows), file=sys.stderr)
