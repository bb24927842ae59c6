"""Changes as an HTML page that loads nothing, and as JSON. Jinja escapes all names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from pipeline.changes.weeks import DAYS, Calendar, Change, Kind
from pipeline.pages.frame import page
from pipeline.report.page import name_of, quantity, quota, share
from pipeline.report.report import UNITS
from quotas.usage_record import UsageApi

FORMAT: Final = "sluice-changes"
VERSION: Final = 1
_MOST_SIGNS: Final = 60
TITLES: Final = MappingProxyType(
    {
        Kind.NEW: "New",
        Kind.VANISHED: "Vanished",
        Kind.GROWN: "Twice as much or more",
        Kind.THROTTLED: "Throttled more",
        Kind.OUTGROWN: "Quota no longer fits",
        Kind.UNUSUAL: "Unusual hour",
    }
)


@dataclass(frozen=True, slots=True)
class Changes:
    """The content of the page.

    Attributes:
        calendar: the weeks.
        changes: the largest first.
        completeness: of the worst day of both weeks, 0 to 1.
        open_days: days of both weeks that were not closed when they were compacted.
    """

    calendar: Calendar
    changes: Sequence[Change]
    completeness: float
    open_days: Sequence[str] = ()

    def of_kind(self, kind: Kind) -> list[Change]:
        """The changes of one kind."""
        return [each for each in self.changes if kind in each.kinds]

    def to_json(self) -> str:
        """The changes as JSON; use is in units per day."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "last_day": self.calendar.last.isoformat(),
                "missing_days": self.calendar.missing,
                "open_days": list(self.open_days),
                "completeness": self.completeness,
                "usual_known": self.calendar.usual,
                "clients": [asdict(each) for each in self.changes],
            },
            indent=1,
            ensure_ascii=False,
            allow_nan=False,
        )


def render(changes: Changes, *, top: int) -> str:
    """The page, with the `top` clients of each kind."""
    template = page(
        "pipeline.changes",
        "changes.html",
        client=lambda change: name_of(asdict(change)),
        use=use,
        share=share,
        quota=quota,
    )
    week = changes.calendar.days_of(0)
    kinds = [(kind, TITLES[kind], changes.of_kind(kind)) for kind in Kind]
    return template.render(
        changes=changes,
        first=week[0],
        last=week[-1],
        days=DAYS,
        kinds=[(kind.name.lower(), title, found) for kind, title, found in kinds if found],
        top=top,
    )


def lines(changes: Changes, most: int) -> list[str]:
    """The changes for a chat: a line for each kind, with up to `most` of the largest clients."""
    found = [f"The week to {changes.calendar.last} beside the week before:"]
    for kind in Kind:
        # Each client once, even if it has several APIs.
        names = list(dict.fromkeys(name_of(asdict(each)) for each in changes.of_kind(kind)))
        if names:
            more = f" and {len(names) - most} more" if len(names) > most else ""
            found.append(f"{TITLES[kind]}: {', '.join(map(_plain, names[:most]))}{more}")
    return found if len(found) > 1 else [f"{found[0]} nothing has changed"]


def _plain(name: str) -> str:
    """A name without characters that format a line, colour a terminal or mention people: clients choose names."""
    shown = "".join(sign if sign.isprintable() and sign not in "@<>" else "?" for sign in name)
    return shown if len(shown) <= _MOST_SIGNS else shown[: _MOST_SIGNS - 1] + "…"


def use(units: float, api: str) -> str:
    """Use per day with its unit."""
    if api == UsageApi.REQUEST:
        # The value is in percent-seconds of a core.
        return f"{quantity(units / 100)} s"
    unit: Any = UNITS[UsageApi(api)]
    return quantity(units, unit) if unit == "bytes" else f"{quantity(units)} {unit}"
