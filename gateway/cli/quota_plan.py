"""The changes that applying a file of quotas would make, and their text. Pure."""

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
    """The current value of a quota.

    Attributes:
        limit: in the key's unit.
        owner: how the value was set; None: the endpoint does not store owners.
    """

    limit: float
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One quota that a plan changes.

    Attributes:
        quota: the quota.
        old, new: its limit before and after; None: there is none. Both are equal if a file only takes a quota over.
    """

    quota: Quota
    old: float | None
    new: float | None

    def __str__(self) -> str:
        """The step as text."""
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
    """The effect of applying a file.

    Attributes:
        steps: limits that change, in a fixed order.
        taken_over: quotas that already have the file's limit, but another owner.
        left: quotas within the scope that are not in the file, and are kept.
    """

    steps: tuple[Step, ...]
    taken_over: tuple[Step, ...]
    left: tuple[Quota, ...]

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """All changes, including quotas that are only taken over."""
        return self.steps + self.taken_over


def make_plan(
    wanted: Mapping[Quota, float], current: Mapping[Quota, Current], scope: Scope | None, *, prune: bool
) -> Plan:
    """The difference between a file and the current quotas.

    Args:
        wanted: the quotas of the file, all within the scope.
        current: the current quotas.
        scope: the entities that the file is about; None: those that it names.
        prune: whether to remove quotas that are in the scope and not in the file; needs a scope.
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
    """The text of a plan.

    Args:
        plan: the plan.
        authors: who set or removed the quotas' current limits, if known.
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
