"""What applying a plan changes, and the file that reverts it. Pure.

A plan has the quota that the records saw (`old`) and the quota that it wants. If an operator has set another value
meanwhile, that is a *drift*, and a plan does not overwrite it except with force. Records do not say which quota was
set last, and they do not show defaults. The quotas that an earlier plan has set are known from its revert file.

The revert file is JSON, with the value before (null: none) and the value after each change.

    {"format": "sluice-revert", "version": 1, "made_at": "...", "bootstrap": "...",
     "changes": [{"entity": {"user": "alice"}, "key": "producer_byte_rate", "before": null, "after": 1048576.0}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pipeline.plans.plan import (
    Action,
    Plan,
    PlanError,
    check_keys,
    entity_from_json,
    entity_to_json,
    names_of,
)
from pipeline.plans.text import number
from quotas.entities import QuotaEntity, QuotaKey

REVERT_FORMAT: Final = "sluice-revert"
REVERT_VERSION: Final = 1
_ROUNDED: Final = 0.01


class State(StrEnum):
    """How the quota in force relates to the wanted one."""

    SET = "set"  # the entity has no quota yet
    CHANGE = "change"
    SAME = "same"  # already the wanted value
    DRIFT = "drift"  # another value was set meanwhile


@dataclass(frozen=True, slots=True)
class Difference:
    """The set and the wanted value of one quota; None: no quota."""

    entity: QuotaEntity
    key: QuotaKey
    now: float | None
    wanted: float | None
    state: State


@dataclass(frozen=True, slots=True)
class Change:
    """The values of one quota before and after it was altered; None: no quota."""

    entity: QuotaEntity
    key: QuotaKey
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Revert:
    """The changes that a plan made, where and when (ISO time), for reverting it."""

    made_at: str
    bootstrap: str
    changes: tuple[Change, ...]

    def to_json(self) -> str:
        """The file's text, one change per line."""
        lines = ",\n  ".join(
            json.dumps(
                {
                    "entity": entity_to_json(each.entity),
                    "key": each.key,
                    "before": each.before,
                    "after": each.after,
                },
                ensure_ascii=False,
            )
            for each in self.changes
        )
        head = {
            "format": REVERT_FORMAT,
            "version": REVERT_VERSION,
            "made_at": self.made_at,
            "bootstrap": self.bootstrap,
        }
        return f'{json.dumps(head)[:-1]},\n "changes": [\n  {lines}]}}\n'

    @classmethod
    def from_json(cls, text: str | bytes) -> Revert:
        """Reads the text that `to_json` wrote.

        Raises:
            PlanError: the text has another form.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise PlanError(f"a revert file is a JSON object, this is none: {exc}") from None
        if not isinstance(data, dict) or data.get("format") != REVERT_FORMAT:
            raise PlanError(f'a revert file is a JSON object with "format": "{REVERT_FORMAT}"')
        if data.get("version") != REVERT_VERSION:
            raise PlanError(f"version: this program reads {REVERT_VERSION}, not {data.get('version')!r}")
        check_keys(data, ("format", "version", *names_of(cls)), "revert file")
        changes = data.get("changes")
        if not isinstance(changes, list):
            raise PlanError("changes: a list is needed")
        return cls(
            made_at=str(data.get("made_at")),
            bootstrap=str(data.get("bootstrap")),
            changes=tuple(_change(each, f"changes[{at}]") for at, each in enumerate(changes)),
        )


def last_changes(reverts: Iterable[Revert]) -> dict[tuple[QuotaEntity, QuotaKey], Change]:
    """The last change of each quota by earlier plans. Among files of the same second the later one counts."""
    found: dict[tuple[QuotaEntity, QuotaKey], Change] = {}
    for revert in sorted(reverts, key=lambda each: each.made_at):
        found.update({(change.entity, change.key): change for change in revert.changes})
    return found


def differences(
    plan: Plan,
    in_force: Mapping[tuple[QuotaEntity, QuotaKey], float],
    *,
    last: Mapping[tuple[QuotaEntity, QuotaKey], Change] | None = None,
    keep_too: bool = False,
) -> list[Difference]:
    """Compares a plan with the quotas that are set.

    Args:
        plan: its entries with action `set` are compared.
        in_force: the response to DescribeClientQuotas.
        last: last changes by earlier plans. A quota that a plan has set is no drift while it keeps that value.
        keep_too: also compare the entries that the plan leaves alone; the result is always `same` or `drift`.

    Returns:
        In the plan's order.
    """
    found = []
    for entry in plan.entries:
        if entry.action is Action.KEEP and not keep_too:
            continue
        now = in_force.get((entry.entity, entry.key))
        change = (last or {}).get((entry.entity, entry.key))
        # The value before counts too: an earlier plan may have been reverted, or interrupted half-way.
        expected = (entry.old,) if change is None else (change.before, change.after)
        state = _state(now, entry.value, expected)
        found.append(Difference(entry.entity, entry.key, now, entry.value, state))
    return found


def reverting(revert: Revert, in_force: Mapping[tuple[QuotaEntity, QuotaKey], float]) -> list[Difference]:
    """Compares a revert file with the quotas that are set; the newest change comes first."""
    found = []
    for change in reversed(revert.changes):
        now = in_force.get((change.entity, change.key))
        if now == change.before:
            state = State.SAME
        elif now == change.after:
            state = State.SET if now is None else State.CHANGE
        else:
            state = State.DRIFT
        found.append(Difference(change.entity, change.key, now, change.before, state))
    return found


def to_do(found: Iterable[Difference], *, force: bool) -> list[Difference]:
    """The quotas that have to be altered; drifts only with force."""
    return [
        each for each in found if each.state is not State.SAME and (force or each.state is not State.DRIFT)
    ]


def _state(now: float | None, wanted: float, expected: tuple[float | None, ...]) -> State:
    if now == wanted:
        return State.SAME
    if now is None:
        # The recorded value may come from a default. So no quota of the entity itself is overwritten.
        return State.SET
    return State.CHANGE if now in expected else State.DRIFT


def _change(data: Any, where: str) -> Change:
    if not isinstance(data, dict) or not isinstance(data.get("entity"), dict):
        raise PlanError(f"{where}: entity is missing")
    check_keys(data, names_of(Change), where)
    try:
        key = QuotaKey(str(data.get("key")))
    except ValueError:
        raise PlanError(f"{where}: key {data.get('key')!r} is not one of {', '.join(QuotaKey)}") from None
    values = []
    for name in ("before", "after"):
        if name not in data:
            raise PlanError(f"{where}: {name} is missing")
        value = data[name]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise PlanError(f"{where}: {name} is a number or null, not {value!r}")
        values.append(None if value is None else float(value))
    return Change(entity_from_json(data["entity"], where), key, values[0], values[1])


def for_a_person(plan: Plan, changes: Iterable[Difference], largest_change: float) -> list[str]:
    """Reasons why a person should check a plan before it is applied; empty if there are none.

    The newest day weighs most, so a plan is not applied if a part of that day is missing. Records have no earlier
    value of a team's quota, so `recommend` cannot limit its change. This function does.

    Args:
        plan: any plan.
        changes: the changes that it would make now.
        largest_change: a quota in force may be multiplied or divided by at most this.
    """
    newest = plan.basis.last_day
    found = [each.text() for each in plan.left_out if each.date in ("", newest)]
    # Quotas are rounded up: bytes to whole numbers, others to hundredths.
    most = largest_change * (1 + _ROUNDED)
    for each in changes:
        if each.now is None or each.wanted is None:
            continue
        if each.wanted > each.now * most + _ROUNDED or each.wanted < each.now / most:
            found.append(
                f"{each.entity} {each.key}: {number(each.now)} to {number(each.wanted)} is more than may be changed "
                f"at once, {largest_change:g} times"
            )
    return found
