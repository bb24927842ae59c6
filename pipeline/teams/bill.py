"""Computes what each team pays for its use, for idle capacity and for shared costs. Pure and exact.

The method is that of OpenCost, whose specification has workload cost, idle cost and shared cost.

* A team pays the price of its use.
* If the cost of the cluster is given, the part that no use pays for is *idle*. It has a line of its own, or teams
bear
  it in proportion to their use or in equal parts.
* *Shared* costs are divided in the same two ways.

Clients without a team are one line, which bears its part like a team, so that no team pays for them. OpenCost divides
idle cost separately for each resource. Here the cluster has one cost, because a gateway does not know the cost of a
broker's disk or core.

Money is rounded to hundredths once, column by column, by the largest remainder. So lines and columns add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from pipeline.teams.prices import IDLE, PER, STORED_BYTE_HOURS, Prices, Split


@dataclass(frozen=True, slots=True)
class Line:
    """The payment of one team.

    Attributes:
        team: its name; "": clients without a team.
        costs: by column: the keys of prices that are set, `IDLE` if it is divided, and the names of shared costs.
    """

    team: str
    costs: Mapping[str, Decimal]

    @property
    def total(self) -> Decimal:
        """The sum of all columns."""
        return sum(self.costs.values(), Decimal())


@dataclass(frozen=True, slots=True)
class Bill:
    """The payments of all teams.

    Attributes:
        columns: see `Line.costs`, in order.
        lines: one for each team.
        idle: idle cost that no team bears; None: there is none, or teams bear it.
        over: by how much the price of all use exceeds the cost of the cluster; 0: it does not.
    """

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    idle: Decimal | None
    over: Decimal

    @property
    def total(self) -> Decimal:
        """The sum of all lines and idle cost."""
        return sum((line.total for line in self.lines), self.idle or Decimal())


def bill_of(use: Mapping[str, Mapping[str, int]], prices: Prices, hours: Fraction) -> Bill:
    """Makes the bill of a month.

    Args:
        use: amounts by team; "": clients without a team.
        prices: the prices.
        hours: hours of the month.
    """
    teams = list(use)
    exact: dict[str, list[Fraction]] = {}
    for key, price in prices.prices.items():
        amount, per = PER[key]
        whole = per * hours if amount == STORED_BYTE_HOURS else Fraction(per)
        exact[key] = [Fraction(price) * use[team][amount] / whole for team in teams]
    direct = [sum((costs[at] for costs in exact.values()), Fraction()) for at in range(len(teams))]
    columns = {name: _rounded(costs) for name, costs in exact.items()}
    idle: Decimal | None = None
    over = Decimal()
    if prices.cluster is not None:
        # From rounded amounts, so that use and idle cost add up exactly to the cost of the cluster.
        rest = _money(round(100 * Fraction(prices.cluster))) - sum(map(sum, columns.values()), Decimal())
        idle, over = max(rest, Decimal()), max(-rest, Decimal())
        if prices.idle is not Split.SEPARATE:
            columns[IDLE] = _rounded(_divided(Fraction(idle), direct, prices.idle))
            idle = None
    for each in prices.shared:
        columns[each.name] = _rounded(_divided(Fraction(each.monthly_cost), direct, each.split))
    lines = [Line(team, {name: columns[name][at] for name in columns}) for at, team in enumerate(teams)]
    return Bill(tuple(columns), tuple(lines), idle, over)


def _divided(cost: Fraction, direct: Sequence[Fraction], split: Split) -> list[Fraction]:
    """Divides a cost into parts; into equal parts if no use has a price."""
    whole = sum(direct)
    if split is Split.EVEN or not whole:
        return [cost / len(direct) for _ in direct]
    return [cost * each / whole for each in direct]


def _rounded(costs: Sequence[Fraction]) -> list[Decimal]:
    """Rounds to hundredths so that the parts add up to the rounded sum: the largest remainders are rounded up."""
    cents = [math.floor(100 * cost) for cost in costs]
    left = round(100 * sum(costs)) - sum(cents)
    order = sorted(range(len(costs)), key=lambda at: (cents[at] - 100 * costs[at], at))
    for at in order[:left]:
        cents[at] += 1
    return [_money(each) for each in cents]


def _money(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)
