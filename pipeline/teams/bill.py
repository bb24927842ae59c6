"""What each team pays for its use, for idle capacity and for shared costs. Pure and exact.

The method is that of OpenCost, whose specification has workload cost, idle cost and shared cost. A team pays for what
it used at a price. Where the cost of the cluster is given, what no use pays for is *idle*. It stands alone, or teams
bear it in proportion to their use or in equal parts. *Shared* costs are divided in the same two ways. Clients of no
team are one line, which bears its part as a team does, so that no team pays for them. OpenCost divides idle cost for
each resource apart. Here the cluster has one cost: a gateway does not see what a disk or a core of a broker costs.

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
    """What a team pays.

    Attributes:
        team: its name; "": clients of no team.
        costs: by column: the keys of prices that are set, `IDLE` if it is divided, and the names of shared costs.
    """

    team: str
    costs: Mapping[str, Decimal]

    @property
    def total(self) -> Decimal:
        """Of all columns."""
        return sum(self.costs.values(), Decimal())


@dataclass(frozen=True, slots=True)
class Bill:
    """What all teams pay.

    Attributes:
        columns: see `Line.costs`, in order.
        lines: of each team.
        idle: idle cost that no team bears; None: there is none, or teams bear it.
        over: by how much use at these prices is more than the cluster costs; 0: it is not.
    """

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    idle: Decimal | None
    over: Decimal

    @property
    def total(self) -> Decimal:
        """Of all lines, and idle cost."""
        return sum((line.total for line in self.lines), self.idle or Decimal())


def bill_of(use: Mapping[str, Mapping[str, int]], prices: Prices, hours: Fraction) -> Bill:
    """The bill of a month.

    Args:
        use: amounts by team, "": clients of no team.
        prices: see there.
        hours: of the month.
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
        # Of what is rounded already: then use and idle cost are what the cluster costs, to the hundredth.
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
    """A cost in parts; in equal ones where no use has a price."""
    whole = sum(direct)
    if split is Split.EVEN or not whole:
        return [cost / len(direct) for _ in direct]
    return [cost * each / whole for each in direct]


def _rounded(costs: Sequence[Fraction]) -> list[Decimal]:
    """To hundredths, so that the parts add up to the rounded sum: the largest remainders are rounded up."""
    cents = [math.floor(100 * cost) for cost in costs]
    left = round(100 * sum(costs)) - sum(cents)
    order = sorted(range(len(costs)), key=lambda at: (cents[at] - 100 * costs[at], at))
    for at in order[:left]:
        cents[at] += 1
    return [_money(each) for each in cents]


def _money(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)
