"""Shows, compares, applies and reverts a plan; each step prints its result and returns an exit code.

`apply` first asks the cluster whether it would accept all changes (validate_only), then writes the revert file, and
only then changes quotas. So a plan that is refused in part changes nothing, and all changes can be reverted, even if
the connection breaks half-way. The revert files of earlier plans record which quotas plans have set.

All steps raise `PlanError` for a file that is not a plan, and `QuotaClientError` if a cluster can't be reached.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pipeline.errors import Exit
from pipeline.plans.changes import (
    Change,
    Difference,
    Revert,
    State,
    differences,
    for_a_person,
    last_changes,
    reverting,
    to_do,
)
from pipeline.plans.plan import Action, Plan, PlanError, too_little_text
from pipeline.plans.text import number, table
from quota_client.client import Counting, QuotaClient, Refusal, Setting
from quota_client.properties import read_properties
from quotas.entities import QuotaEntity, QuotaKey, counted

_VERIFY_TIMEOUT_S: Final = 10.0
_VERIFY_POLL_S: Final = 0.2
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster whose quotas are read or changed.

    Attributes:
        bootstrap: HOST:PORT of a gateway or a broker.
        client_config: a file with the connection's settings, see `read_properties`.
        counts: what one counter covers there (fleet, gateway or broker), if the operator gives it; see `misfit`.
    """

    bootstrap: str
    client_config: Path | None
    counts: str | None = None

    def connect(self) -> QuotaClient:
        """Opens a connection; see `QuotaClient` for the errors."""
        return QuotaClient(self.bootstrap, read_properties(self.client_config))


def show(path: Path, *, keep_too: bool) -> Exit:
    """Prints a plan with its reasons.

    Args:
        path: the plan's file.
        keep_too: also print the quotas that it leaves alone.
    """
    plan = _read_plan(path)
    basis = plan.basis
    print(
        f"made {plan.made_at} from {counted(basis.days, 'day')}, {basis.first_day} to {basis.last_day}, "
        f"{basis.completeness:.2%} complete; at most {basis.target:.1%} throttled, margin {basis.margin:g}"
    )
    for note in basis.notes():
        print(note)
    for check in plan.capacity:
        print(f"{check.key}: {'fits' if check.fits else 'DOES NOT FIT'}; {check.note}")
    print(f"for counters of a {basis.scope}, with {basis.window_num} windows of {basis.window_ms} ms")
    for each in plan.left_out:
        print(each.text())
    if plan.too_little:
        print(too_little_text(plan.too_little))
    shown = [entry for entry in plan.entries if keep_too or entry.action is Action.SET]
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
    kept = len(plan.entries) - len(shown)
    hint = f"; --all shows also {counted(kept, 'quota')} that the plan leaves as they are" if kept else ""
    print(f"{len(shown)} of {len(plan.entries)} entries{hint}")
    return Exit.DONE


def diff(path: Path, cluster: Cluster, *, previous: Sequence[Path] = ()) -> Exit:
    """Prints a plan beside the quotas that are set.

    Args:
        path: the plan's file.
        cluster: the cluster to compare with.
        previous: revert files of earlier plans; empty: those that `_last_changes` finds.
    """
    plan = _read_plan(path)
    with cluster.connect() as client:
        found = differences(plan, client.describe(), last=_last_changes(path, cluster, previous))
        fault = misfit(plan, client.counting(), cluster.counts)
    _print_differences(found)
    if fault:
        print(f"not to be applied there: {fault}")
    return Exit.DONE


def apply(
    path: Path,
    cluster: Cluster,
    *,
    previous: Sequence[Path] = (),
    revert_file: Path | None = None,
    force: bool = False,
    validate_only: bool = False,
    largest_change: float | None = None,
) -> Exit:
    """Sets a plan's quotas.

    Args:
        path: the plan's file.
        cluster: the cluster to change.
        previous: see `diff`.
        revert_file: the file for reverting the plan; None: a file beside the plan.
        force: also overwrite quotas that were changed meanwhile.
        validate_only: only ask whether the cluster would accept the changes.
        largest_change: no person has checked the plan: refuse it if `for_a_person` finds a reason.
    """
    plan = _read_plan(path)
    revert_file = revert_file or path.with_suffix(".revert.json")
    with cluster.connect() as client:
        fault = misfit(plan, client.counting(), cluster.counts)
        if fault:
            return _refused(f"{fault}; nothing was done")
        found = differences(plan, client.describe(), last=_last_changes(path, cluster, previous))
        drifted = [each for each in found if each.state is State.DRIFT]
        if drifted and not force:
            _print_differences(drifted)
            return _refused(
                f"{counted(len(drifted), 'quota')} set to a value that neither this plan nor an earlier one has; "
                "nothing was done (--force)"
            )
        changes = to_do(found, force=force)
        if not changes:
            print("everything is as planned already")
            return Exit.NOTHING_TO_DO
        if largest_change is not None and (reasons := for_a_person(plan, changes, largest_change)):
            shown = "; ".join(reasons[:_SHOWN])
            more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
            return _refused(
                f"{path} is for a person to decide: {shown}{more}; nothing was done (apply it without --unattended)"
            )
        refused = client.alter(_settings(changes), validate_only=True)
        if refused:
            _print_refusals(refused)
            return _refused("the plan would be refused in part; nothing was done")
        if validate_only:
            print(f"{counted(len(changes), 'quota')} would be set")
            return Exit.DONE
        if revert_file.exists():
            return _refused(
                f"{revert_file} exists: it takes an earlier change back; name another --revert-file"
            )
        _write(revert_file, Revert(_now(), cluster.bootstrap, _as_changes(changes)).to_json())
        print(f"{revert_file} takes this back")
        return _carry_out(client, changes, "set")


def misfit(plan: Plan, there: Counting, counts: str | None) -> str:
    """Why a plan's numbers have another meaning on the target cluster; empty if they do not.

    Kafka counts on each broker separately. A gateway with `scope = "gateway"` counts all brokers together, and a
    fleet counts all gateways together. So with another scope the same quota is several times too large or too small.
    Controller mutations of one gateway, or of a cluster, are counted in one place.

    Args:
        plan: any plan.
        there: what the cluster says about its counting.
        counts: what one counter covers there, if the operator gives it; else the gateway's own information is used.
        An
            older gateway is assumed to count as the plan does, and Kafka's brokers to count separately.
    """
    scope = plan.basis.scope
    known = there.scope or (scope if there.cluster is False else "broker" if there.cluster else None)
    found = counts or known
    if there.brokers < 2 or all(entry.key is QuotaKey.CONTROLLER_MUTATION_RATE for entry in plan.entries):
        if found is None or (found == "broker" and there.cluster is not False):
            return ""
        # The gateway has only one broker.
        scope, found = ("gateway" if each == "broker" else each for each in (scope, found))
    if found is None:
        return (
            f"it is not known whether each of the {there.brokers} brokers counts by itself, and the plan is for "
            f"counters of a {scope}: add --counts fleet, --counts gateway or --counts broker"
        )
    if found == scope:
        return ""
    if found == "broker":
        return (
            f"each of the {there.brokers} brokers there counts by itself, so it would let {there.brokers} times the "
            "plan's quotas through: recommend with --scope broker"
        )
    if scope == "broker":
        return (
            f"all {there.brokers} brokers there count together, and the plan is for each by itself: recommend with "
            f"--scope {found}"
        )
    if found == "gateway":
        return (
            "each gateway there counts by itself, and the plan is for all gateways of a fleet together, so each "
            "would let all of the plan's quotas through: recommend with --scope gateway"
        )
    return (
        "the gateways there share their counters, and the plan is for each of them by itself: recommend with "
        "--scope fleet"
    )


def revert(path: Path, cluster: Cluster, *, force: bool, elsewhere: bool) -> Exit:
    """Reverts what `apply` did.

    Args:
        path: the revert file.
        cluster: the cluster to change.
        force: also revert quotas that were changed again meanwhile.
        elsewhere: accept a file that was written for another address, which may be one of the same cluster.
    """
    wanted = _read_revert(path)
    if wanted.bootstrap != cluster.bootstrap and not elsewhere:
        return _refused(
            f"{path} takes back what was done at {wanted.bootstrap}, not at {cluster.bootstrap}; --elsewhere if that "
            "is the same cluster"
        )
    with cluster.connect() as client:
        found = reverting(wanted, client.describe())
        drifted = [each for each in found if each.state is State.DRIFT and not force]
        changes = to_do(found, force=force)
        done = _carry_out(client, changes, "taken back") if changes else Exit.DONE
    if drifted:
        _print_differences(drifted)
        stay = _refused(
            f"{counted(len(drifted), 'quota')} changed again since then, left unchanged (--force)"
        )
        return done if done is Exit.FAILED else stay
    if not changes:
        print("everything is as it was already")
        return Exit.NOTHING_TO_DO
    return done


def _carry_out(client: QuotaClient, changes: Sequence[Difference], done: str) -> Exit:
    refused = client.alter(_settings(changes), validate_only=False)
    if refused:
        _print_refusals(refused)
    kept_out = {each.entity for each in refused}
    wanted = {(each.entity, each.key): each.wanted for each in changes if each.entity not in kept_out}
    missing = _await(client, wanted)
    print(f"{counted(len(wanted) - len(missing), 'quota')} {done}")
    if missing:
        names = ", ".join(f"{entity} {key}" for entity, key in missing[:10])
        print(
            f"sluice-pipeline: {counted(len(missing), 'quota')} accepted but not in force: {names}",
            file=sys.stderr,
        )
        return Exit.FAILED
    return Exit.REFUSED if refused else Exit.DONE


def _await(
    client: QuotaClient, wanted: Mapping[tuple[QuotaEntity, QuotaKey], float | None]
) -> list[tuple[QuotaEntity, QuotaKey]]:
    """Waits for changes to take effect, which takes a moment. Returns those that did not."""
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


def _last_changes(
    plan: Path, cluster: Cluster, previous: Sequence[Path]
) -> dict[tuple[QuotaEntity, QuotaKey], Change]:
    """The last change of each quota of this cluster by earlier plans."""
    if previous:
        return last_changes(_read_revert(path) for path in previous)
    folder = plan.absolute().parent
    files = set(folder.glob("*.revert.json"))
    if folder.name.startswith("run="):
        files |= set(folder.parent.glob("run=*/*.revert.json"))
    reverts = [_read_revert(path) for path in sorted(files)]
    return last_changes(each for each in reverts if each.bootstrap == cluster.bootstrap)


def _write(path: Path, text: str) -> None:
    """Writes the file durably, before any quota is changed."""
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


def _refused(text: str) -> Exit:
    print(f"sluice-pipeline: {text}", file=sys.stderr)
    return Exit.REFUSED


def _print_differences(found: Sequence[Difference]) -> None:
    rows = [
        (str(each.entity), each.key.value, number(each.now), number(each.wanted), each.state.value)
        for each in found
    ]
    print(table(("entity", "quota", "now", "plan", ""), rows))


def _print_refusals(refused: Sequence[Refusal]) -> None:
    rows = [(str(each.entity), str(each.code), each.text) for each in refused]
    print(table(("refused", "error", "why"), rows), file=sys.stderr)
