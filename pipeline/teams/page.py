"""The costs of a month as one HTML page that loads nothing, and as rows of files. Jinja escapes all names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from pipeline.pages.frame import page
from pipeline.teams.bill import Bill, Line
from pipeline.teams.members import NO_TEAM, Members
from pipeline.teams.month import MonthUse
from pipeline.teams.prices import Prices
from pipeline.teams.use import AMOUNTS
from quotas.groups import Group
from quotas.groups_file import Team

IDLE_ROW: Final = "(idle)"
"""The name for idle cost that no team bears; no group can have this name."""

TOTAL: Final = "total"
_TITLES: Final = MappingProxyType(
    {
        "gb_in": "GB in",
        "gb_out": "GB out",
        "request_hour": "request hour",
        "partition_mutation": "partition mutation",
        "connection": "connection",
        "stored_gb_month": "GB-month stored",
    }
)
_MONEY: Final = pa.decimal128(38, 2)


@dataclass(frozen=True, slots=True)
class MonthCost:
    """A month's use by team, and its cost.

    Attributes:
        use: the use of teams.
        members: the teams.
        prices, bill: None: without prices.
    """

    use: MonthUse
    members: Members
    prices: Prices | None
    bill: Bill | None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each team, for clients without a team, and for idle cost that no team bears."""
        teams = self.use.by_team(self.members)
        lines = {line.team: line for line in self.bill.lines} if self.bill else {}
        found = [self._row(team, amounts, lines.get(team)) for team, amounts in teams.items()]
        if self.bill is not None and self.bill.idle is not None:
            nothing = dict.fromkeys((*AMOUNTS, "requests"), 0)
            found.append({**self._row(IDLE_ROW, nothing, Line("", {})), TOTAL: self.bill.idle})
        return found

    def about(self, team: str) -> dict[str, Any]:
        """The data of a team in the file of groups, without names of people, because results are kept."""
        known = self.members.teams.get(team) or Team(Group(team))
        return {"cost_center": known.cost_center, "tier": "" if known.tier is None else known.tier}

    def _row(self, team: str, amounts: dict[str, int], line: Line | None) -> dict[str, Any]:
        row = {"month": self.use.month, "zone": self.use.zone, "team": team or NO_TEAM, **self.about(team)}
        row |= {name: amounts[name] for name in (*AMOUNTS, "requests")}
        if self.prices is not None and self.bill is not None and line is not None:
            row |= {f"cost_{name}": line.costs.get(name, Decimal("0.00")) for name in self.bill.columns}
            row |= {TOTAL: line.total, "currency": self.prices.currency}
        return row


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of `MonthCost.rows` as CSV with a head."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_arrow(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The same as an Arrow table; money is decimal."""
    columns = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        kind = (
            _MONEY
            if isinstance(first, Decimal)
            else pa.int64()
            if isinstance(first, int) and name != "tier"
            else pa.string()
        )
        columns[name] = pa.array(map(str, values) if kind == pa.string() else values, kind)
    return pa.table(columns)


def render(month: MonthCost) -> str:
    """The page."""
    template = page(
        "pipeline.teams",
        "cost.html",
        money="{:,.2f}".format,
        count="{:,}".format,
        share="{:.2%}".format,
        gb=lambda size_bytes: f"{size_bytes / 1e9:,.3f}",
        gb_months=lambda byte_hours: f"{float(byte_hours / month.use.hours) / 1e9:,.3f}",
        hours=lambda time_us: f"{time_us / 3.6e9:,.3f}",
        sum_of=lambda lines, name: sum((line.costs[name] for line in lines), Decimal()),
    )
    teams = month.use.by_team(month.members)
    all_bytes = sum(each["bytes_in"] + each["bytes_out"] for each in teams.values())
    total = month.bill.total if month.bill else Decimal()
    return template.render(
        use=month.use,
        prices=month.prices,
        bill=month.bill,
        teams=teams,
        titles=_TITLES,
        no_team=NO_TEAM,
        about=month.about,
        part=lambda cost: float(100 * cost / total) if total else 0.0,
        of_bytes=lambda each: 100 * (each["bytes_in"] + each["bytes_out"]) / all_bytes if all_bytes else 0.0,
    )
