"""What applying a file of quotas would change, and the text that shows it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.cli.quota_scope import Scope
from quotas.entities import QuotaEntity, QuotaKey, counted
from quotas.layered_quotas import Owner
from quotas.units import amount_text

Quota: TypeAlias = tuple[QuotaEntity, QuotaKey]


@dataclass(frozen=True, slots=True)
class Current:
    """What is set.

    Attributes:
        limit: in the key's unit.
        owner: how it got there; None: no owners are kept there.
    """

    limit: float
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One quota that a plan changes.

    Attributes:
        quota: which.
        old, new: its limit before and after; None: there is none. Both are the same where a file takes a quota over.
    """

    quota: Quota
    old: float | None
    new: float | None

    def __str__(self) -> str:
        """As it is shown."""
        entity, key = self.quota
        what = f"{entity} {key}"
        if self.old is None:
            return f"+ {what} {_amount(key, self.new)}"
        if self.new is None:
            return f"- {what} {_amount(key, self.old)}"
        if self.old == self.new:
            return f"= {what} {_amount(key, self.old)}, the owner becomes apply"
        return f"~ {what} {_amount(key, self.old)} -> {_amount(key, self.new)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying a file would do.

    Attributes:
        steps: limits that change, in a fixed order.
        taken_over: quotas that have the limit of the file already, and another owner.
        left: quotas within the scope that are not in the file, and stay.
    """

    steps: tuple[Step, ...]
    taken_over: tuple[Step, ...]
    left: tuple[Quota, ...]

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """Everything that is to be done."""
        return self.steps + self.taken_over


def make_plan(
    wanted: Mapping[Quota, float], current: Mapping[Quota, Current], scope: Scope | None, *, prune: bool
) -> Plan:
    """The difference of a file and what is set.

    Args:
        wanted: what the file says, all of it within the scope.
        current: what is set.
        scope: which entities the file is about; None: those that it names.
        prune: whether to remove what is in the scope and not in the file; needs a scope.
    """
    steps, taken_over, left = [], [], []
    for quota, limit in wanted.items():
        now = current.get(quota)
        if now is None or now.limit != limit:
            steps.append(Step(quota, None if now is None else now.limit, limit))
        elif now.owner is not None and now.owner is not Owner.APPLY:
            taken_over.append(Step(quota, limit, limit))
    for quota, now in current.items():
        if quota not in wanted and scope is not None and scope.covers(quota[0]):
            if prune:
                steps.append(Step(quota, now.limit, None))
            else:
                left.append(quota)
    return Plan(
        tuple(sorted(steps, key=_order)),
        tuple(sorted(taken_over, key=_order)),
        tuple(sorted(left, key=_name)),
    )


def plan_lines(plan: Plan, authors: Mapping[Quota, str]) -> Iterator[str]:
    """A plan as it is shown.

    Args:
        plan: the plan.
        authors: who gave quotas their present limit, or removed them, as far as that is known.
    """
    for step in plan.all_steps:
        author = authors.get(step.quota)
        yield (
            str(step)
            if author is None
            else f"{step} ({'removed' if step.old is None else 'set'} by {author})"
        )
    if plan.left:
        yield f"{counted(len(plan.left), 'quota')} of the scope not in the file, and left alone without --prune:"
        yield from (f"  {entity} {key}" for entity, key in plan.left)


def _amount(key: QuotaKey, value: float | None) -> str:
    return "nothing" if value is None else amount_text(key, value)


def _order(step: Step) -> tuple[str, str]:
    return _name(step.quota)


def _name(quota: Quota) -> tuple[str, str]:
    return str(quota[0]), quota[1]
