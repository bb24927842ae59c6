"""A report as one HTML page with its plots; it loads nothing. Jinja escapes all names."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from pipeline.client_tables.profile import CLIENT, NEAR, STEP_S
from pipeline.client_tables.timelines import Timeline
from pipeline.pages.frame import page
from pipeline.plans.plan import Action, Plan, PlanEntry, too_little_text
from pipeline.replay.demand import API_OF_KEY
from pipeline.report.report import STACKED, UNITS, Report
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi

_CLOSEST: Final = 20
_SHOWN: Final = 10
"""Rows of a table of changes that are visible without expanding it."""
_COLOURS: Final = ("#1f6feb", "#2da44e", "#bf8700", "#8250df", "#cf222e", "#1b7c83", "#8c959f")
_SOFT: Final = "#8c959f"
_CALM, _CLOSE, _OVER = "#2da44e", "#d4a72c", "#cf222e"
_CHANGES: Final = {
    "less": ("Who gets less", "This is the risk: talk to these before you apply the plan."),
    "first": (
        "Who gets a limit for the first time",
        "Until now no limit applied to them, or it is not known.",
    ),
    "more": ("Who gets more", ""),
}
"""Kinds of changes, the riskiest first: title, and explanation."""

_TITLES: Final = {
    UsageApi.PRODUCE: "Produce",
    UsageApi.FETCH: "Fetch",
    UsageApi.REQUEST: "Request time",
    UsageApi.MUTATION: "Controller mutations",
    UsageApi.CONNECT: "Connections",
    UsageApi.USER_CONNECT: "Connections of users",
    UsageApi.METADATA: "Metadata",
    UsageApi.OFFSET_COMMIT: "Offset commits",
    UsageApi.GROUP_MEMBERSHIP: "Group membership",
    UsageApi.FIND_COORDINATOR: "FindCoordinator",
    UsageApi.INIT_PRODUCER_ID: "InitProducerId",
    UsageApi.LIST_OFFSETS: "ListOffsets",
    UsageApi.DESCRIBE_CONFIGS: "DescribeConfigs",
    UsageApi.ALTER_CONFIGS: "Changes of configurations",
}


def render(report: Report, *, top: int, plan: Plan | None = None) -> str:
    """The page.

    Args:
        report: the content.
        top: clients per API in the tables.
        plan: its changes are shown too.
    """
    template = page(
        "pipeline.report",
        "report.html",
        quantity=quantity,
        share=share,
        duration=duration,
        name_of=name_of,
        quota=quota,
        limit=limit,
        change=change,
        heat=heat,
    )
    sections = [_section(report, api, top) for api in UsageApi if report.of_api(api)]
    return template.render(
        report=report,
        totals=report.totals(),
        teams=report.teams(),
        top=top,
        units=UNITS,
        titles=_TITLES,
        sections=sections,
        closest=_closest_plot(report),
        plan=plan,
        changes=_changes(plan, top) if plan else [],
        shown=_SHOWN,
        unknown=too_little_text(plan.too_little) if plan else "",
        near=NEAR,
        step_s=STEP_S,
    )


def _changes(plan: Plan, top: int) -> list[dict[str, Any]]:
    """The plan's changes in tables: lower quotas first, as they are the risk; in each the largest changes first."""
    kinds: dict[str, list[PlanEntry]] = {"less": [], "first": [], "more": []}
    for entry in plan.entries:
        if entry.action is Action.SET:
            kind = "first" if entry.old is None else "less" if entry.value < entry.old else "more"
            kinds[kind].append(entry)
    found = []
    for kind, (title, note) in _CHANGES.items():
        entries = sorted(kinds[kind], key=lambda entry: -_size(entry))
        if entries:
            more = max(0, len(entries) - top)
            found.append(
                {
                    "kind": kind,
                    "title": title,
                    "note": note,
                    "count": len(entries),
                    "entries": entries[:top],
                    "more": more,
                }
            )
    return found


def _size(entry: PlanEntry) -> float:
    """The size of an entry's change; for a client without a limit before, the share that would wait."""
    if not entry.old:
        return entry.expected_throttled or 0.0
    return abs(entry.value - entry.old) / entry.old


def _section(report: Report, api: UsageApi, top: int) -> Mapping[str, Any]:
    clients = report.of_api(api)
    return {
        "api": api.value,
        "title": _TITLES[api],
        "unit": UNITS[api],
        "clients": clients[:top],
        "more": max(0, len(clients) - top),
        "plot": _use_plot(report, clients, api),
    }


def name_of(client: Mapping[str, Any]) -> str:
    """A client's displayed name: user and client id, as far as its counter distinguishes them."""
    parts = [part for part in (client["user"], client["client_id"]) if part]
    return " / ".join(parts) or "(no name)"


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _plain(text: str) -> str:
    # matplotlib would read a formula after a dollar sign.
    return _short(text).replace("$", r"\$")


def _use_plot(report: Report, clients: Sequence[Mapping[str, Any]], api: UsageApi) -> Markup:
    """Use over time, stacked: the largest clients, and all others together; below it the issued throttle time."""
    use = report.use[api]
    begins, throttled, width = use.begins_s().tolist(), use.throttle_ms, use.width_s
    # Includes the end of the last bin, up to which its step is drawn.
    times = [datetime.fromtimestamp(at, UTC) for at in (*begins, begins[-1] + width)]
    layers = _layers(report, clients, use)
    some_waited = bool(throttled.any())
    figure = Figure(figsize=(9.2, 3.6 if some_waited else 2.8), layout="constrained")
    rows = figure.subplots(
        1 + some_waited, 1, sharex=True, squeeze=False, height_ratios=(3, 1)[: 1 + some_waited]
    )
    shown = rows[0][0]
    edges = [np.append(layer, layer[-1]) for layer in layers.values()]
    shown.stackplot(times, edges, labels=list(layers), colors=_COLOURS, step="post", linewidth=0)
    scale, unit = axis_unit(max((float(edge.max()) for edge in np.cumsum(edges, axis=0)), default=0.0), api)
    shown.set_ylabel(unit)
    shown.yaxis.set_major_formatter(lambda value, _: f"{value / scale:.3g}")
    shown.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    if some_waited:
        waits = rows[1][0]
        waits.bar(times[:-1], throttled / 1000, width=width / 86_400, align="edge", color=_OVER)
        waits.set_ylabel("throttle\ntime, s")
    for axes in rows[:, 0]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(bottom=0)
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.set_xlim(times[0], times[-1])
    return _svg(figure)


def _layers(report: Report, clients: Sequence[Mapping[str, Any]], use: Timeline) -> dict[str, Any]:
    """Use per second in each bin, of the largest clients by name, and of all others."""
    layers: dict[str, Any] = {}
    for client in clients[:STACKED]:
        name = _plain(name_of(client))
        while name in layers:  # shortened names may be equal
            name += "'"
        # A client that was not among the largest on any day has no timeline.
        own = report.use_of.get(tuple(client[each] for each in CLIENT), Timeline())
        layers[name] = own.on(use) / use.width_s
    if len(clients) > STACKED:
        rest = np.maximum(use.offered / use.width_s - sum(layers.values()), 0)
        layers[f"{len(clients) - STACKED} others"] = rest
    return layers


def _closest_plot(report: Report) -> Markup | None:
    """Clients by distance to their limits, the closest first; None if there are no limits."""
    limited = [client for client in report.clients if client["closest"] is not None]
    if not limited:
        return None
    nearest = sorted(limited, key=lambda client: -client["closest"])[:_CLOSEST]
    names = [f"{_plain(name_of(client))}  ({client['api']})" for client in nearest]
    shares = [min(client["closest"], 2.0) for client in nearest]
    colours = [_OVER if each > 1 else _CLOSE if each >= NEAR else _CALM for each in shares]
    figure = Figure(figsize=(9.2, 0.7 + 0.26 * len(nearest)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(nearest)), shares, color=colours)
    axes.set_yticks(range(len(nearest)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color=_SOFT, linewidth=1)
    for at, client in enumerate(nearest):
        axes.text(shares[at] + 0.01, at, share(client["closest"]), va="center", fontsize=8)
    axes.set_xlim(0, max(1.15, *shares) * 1.08)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("largest share of the limit")
    axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _svg(figure: Figure) -> Markup:
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sluice", "font.family": "sans-serif"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawn = text.getvalue()
    # Only the picture: the text before it is for separate files. matplotlib escapes the names in it.
    return Markup(drawn[drawn.index("<svg") :])


def axis_unit(largest: float, api: str) -> tuple[float, str]:
    """The unit of an axis: its factor and its name, such as (1e6, "MB/s").

    Args:
        largest: the largest value on the axis, per second.
        api: the API, which determines the unit.
    """
    unit = UNITS[UsageApi(api)]
    scales = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")) if unit == "bytes" else ()
    scale, prefix = next((each for each in scales if largest >= each[0]), (1.0, ""))
    return scale, f"{prefix}{'B' if unit == 'bytes' else unit}/s"


def quantity(value: float | None, unit: str = "") -> str:
    """A number with at most three digits and a power of thousand: ``1.24 MB`` for bytes."""
    if value is None:
        return "–"
    letter = "B" if unit == "bytes" else ""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{letter}"
    return f"{value:.3g}{' B' if letter else ''}"


def share(value: float | None) -> str:
    """A share as a percentage; a dash for none. A small share is not rounded to zero."""
    if value is None:
        return "–"
    if 0 < value < 0.0001:
        return "<0.01 %"
    return f"{value * 100:.3g} %" if value < 100 else f"{value:.0f} ×"


def duration(milliseconds: float) -> str:
    """A time in the unit that fits it."""
    seconds = milliseconds / 1000
    for scale, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds else "0"


def quota(value: float | None, api: str) -> str:
    """A limit in the unit of its key."""
    if value is None:
        return "none"
    if api == UsageApi.REQUEST:
        return f"{value:.4g} %"
    return f"{quantity(value, UNITS[UsageApi(api)])}/s"


def limit(value: float | None, key: QuotaKey) -> str:
    """A limit in the unit of its quota key."""
    return quota(value, API_OF_KEY[key])


def change(entry: PlanEntry) -> str:
    """The change of an entry with an old limit, relative to that limit."""
    if not entry.old:
        return "–"
    return f"{(entry.value - entry.old) / entry.old * 100:+.3g} %"


def heat(value: float | None) -> str:
    """The CSS class of a cell that shows how close to its limit a client is."""
    if value is None or value < NEAR:
        return ""
    return "over" if value > 1 else "close"
