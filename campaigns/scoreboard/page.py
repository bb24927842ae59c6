"""Renders the scoreboard as docs/reference/reliability.md and as a line of README.md."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

from campaigns.peers.page import BESIDE, RESULT
from campaigns.scoreboard.judged import Judged, State

_RESULTS: Final = "../../benchmarks/results"
_AS_OF: Final = re.compile(r"^As of (\d{4}-\d\d-\d\d)", re.MULTILINE)
_PAGE: Final = "docs/reference/reliability.md"
_COUNTED: Final = re.compile(rf"^Goals: \[[^]]*\]\({re.escape(_PAGE)}\)[^.]*\.$", re.MULTILINE)
_COLUMNS: Final = 100
_TITLE: Final = """\
# Reliability

What Sluice promises, and what was measured. `make scoreboard` measures all of it in at most six
hours, `make scoreboard-quick` the short part in 20 minutes. Both write this page from kept results;
nothing on it is written by hand. [Decision 58](../decisions/0058-the-scoreboard.md) says how.

* *In part*: all figures are within the goal, and a part of the goal is not measured.
* *Stale*: the figure is older than 30 days, older than the last release, or without a date.
* A time of `-` means that the result does not say how long it took. `-dirty` behind a commit means
  that files had changed since.
"""


def summary(judged: Sequence[Judged]) -> str:
    """How many goals are met, in one line."""
    counts = Counter(each.state for each in judged)
    parts = [f"{counts[State.MET]} of {len(judged)} goals met"]
    parts += [f"{counts[state]} {state}" for state in State if state is not State.MET and counts[state]]
    return ", ".join(parts)


def page(judged: Sequence[Judged], *, today: date) -> str:
    """The page.

    Args:
        judged: all rows.
        today: the day of the judgement; the page names it.
    """
    lines = [
        _TITLE,
        f"As of {today.isoformat()}: **{summary(judged)}.**",
        "",
        "| | What is shown | Goal | Figure | n | Time | Date | Commit | Beside it | From | Result |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(each) for each in judged]
    lines += _list(
        "Missed goals",
        ((each, "; ".join(each.misses) + ". " + " ".join(each.reasons)) for each in judged if each.misses),
    )
    lines += _list(
        "Parts that are not measured", ((each, each.row.without) for each in judged if each.row.without)
    )
    return "\n".join(lines) + "\n"


def day_of(text: str) -> date:
    """The day in a page's text."""
    found = _AS_OF.search(text)
    if found is None:
        raise ValueError("the page names no day")
    return date.fromisoformat(found[1])


def with_summary(readme: str, judged: Sequence[Judged]) -> str:
    """README.md with the counts, and a link from the first of them to the page."""
    met, *others = summary(judged).replace("goals met", "met").split(", ")
    sentence = f"Goals: {', '.join([f'[{met}]({_PAGE})', *others])}."
    wrapped = textwrap.fill(sentence, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    return _COUNTED.sub(lambda _: wrapped, readme)


def _line(judged: Judged) -> str:
    row = judged.row
    cells = (
        row.number,
        row.shows,
        row.goal or "; ".join(quantity.goal for quantity in row.quantities),
        "; ".join(judged.figures),
        judged.n,
        "" if judged.state is State.NOT_MEASURED else _time(judged.seconds),
        "" if judged.state is State.NOT_MEASURED else judged.day.isoformat() if judged.day else "-",
        ", ".join(judged.commits),
        "; ".join(judged.beside),
        ", ".join(_link(source) for source in (*row.sources, *([RESULT] if row.number in BESIDE else []))),
        judged.state if judged.state is State.MET else f"**{judged.state}**",
    )
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _link(source: str) -> str:
    if source.endswith(".json"):
        return f"[{source.removesuffix('.json')}]({_RESULTS}/{source.removesuffix('.json')}.md)"
    return f"[{source}]({_RESULTS}/campaigns.md)"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _list(title: str, entries: Iterable[tuple[Judged, str]]) -> list[str]:
    lines = [f"| {each.row.number} | {text} |" for each, text in entries]
    return ["", f"## {title}", "", "| | |", "|---|---|", *lines] if lines else []
