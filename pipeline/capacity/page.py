"""A study of a capacity as one HTML page that loads nothing, as JSON and as CSV. Jinja escapes all names."""

from __future__ import annotations

import calendar
import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from pipeline.capacity.forecast import INTERVAL, LEAST_DAYS, Expected, Floats, Forecast
from pipeline.capacity.study import OfKey, Study, weeks
from pipeline.pages.frame import page
from pipeline.recommend.recommendation import amount
from pipeline.replay.demand import API_OF_KEY
from quotas.entities import QuotaKey, counted
from quotas.lending import TIERS

FORMAT: Final = "sluice-capacity"
VERSION: Final = 1
_SHOWN: Final = 50
_BUSY_HOURS: Final = 3
_NOTICED: Final = 0.001
"""A weekly growth below this fraction is reported as no growth."""
_WIDTH, _HEIGHT = 900.0, 220.0


def summary(study: Study) -> Iterator[str]:
    """The results as text: a few lines for each quota."""
    for key, own in study.of_key.items():
        shares = own.shares
        short = sum(each.missing > 0 for each in shares.shares)
        yield (
            f"{key}: {counted(len(shares.shares), 'claim')} for {amount(shares.required, key)} of "
            f"{amount(shares.capacity, key)} ({shares.required / shares.capacity:.3g} times); "
            f"{short or 'none'} get{'s' * (short == 1)} less than required"
        )
        load = own.loads.with_required
        yield (
            f"{key}: with what each requires as its quota, all together use at most {amount(load.highest, key)} in a "
            f"second, p99 {amount(load.p99, key)}; above the capacity in {counted(load.above_s, 'second')}"
        )
        yield f"{key}: {forecast_text(own, key, study.question.horizon)}"
        if own.censored >= 0.01:
            yield f"{key}: {_censored(own)}"
    for key in study.question.capacity.keys() - study.of_key.keys():
        yield f"{key}: was not used on these days"
    for each in study.left_out:
        yield each.text()
    if study.left_from_forecast:
        yield (
            "not in sums and forecast, as records are missing or occur twice: "
            f"{', '.join(study.left_from_forecast)}"
        )


def forecast_text(own: OfKey, key: QuotaKey, horizon: int) -> str:
    """When the capacity is full, and how wrong such forecasts were, as text."""
    found = own.forecast
    if found is None:
        return f"no forecast: it needs {LEAST_DAYS} complete days"
    highest = max(found.seen.values())
    growth = found.growth_per_week
    text = f"peaks {'grow' if growth > 0 else 'fall'} by {abs(growth):.1%} a week; "
    if abs(growth) < _NOTICED:
        text = "peaks stay the same; "
    if highest >= own.shares.capacity:
        text += f"full: the highest peak was {amount(highest, key)}"
    elif found.full:
        text += f"full on {found.full} ({_span(found)})"
    elif found.earliest:
        text += (
            f"not expected to be full within {counted(horizon, 'day')}, but may be from {found.earliest} on"
        )
    else:
        text += f"not full within {counted(horizon, 'day')}"
    wrong = [
        f"{counted(each.ahead_days, 'day')} ahead {each.mape:.1%} ({each.held:.0%} of {counted(each.days, 'day')} in "
        "the interval)"
        for each in found.errors
        if each.days
    ]
    return f"{text}. Forecasts of known days were wrong by: {', '.join(wrong) or 'not known, there are too few days'}"


def _span(found: Forecast) -> str:
    return f"{found.earliest} to {found.latest or 'later'}"


def _censored(own: OfKey) -> str:
    return (
        f"clients were muted in {own.censored:.1%} of their active seconds, so what they wanted is not known: "
        "requirements and forecast may be too low"
    )


def to_csv(study: Study) -> str:
    """A row for each quota and client or team; rates are per second."""
    return _csv(
        ("quota", "claimant", "tier", "weight", "floor", "ceiling", "required", "share", "missing"),
        (
            (
                str(key),
                str(each.claimant),
                each.claim.tier,
                each.claim.weight,
                each.claim.guarantee,
                "" if math.isinf(each.claim.ceiling) else each.claim.ceiling,
                each.claim.demand,
                each.share,
                each.missing,
            )
            for key, own in study.of_key.items()
            for each in own.shares.shares
        ),
    )


def to_forecast_csv(study: Study) -> str:
    """A row for each quota and day, known days first; rates are per second."""
    return _csv(
        ("quota", "date", "seen", "expected", "low", "high"),
        (
            (str(key), each.date, own.forecast.seen.get(each.date, ""), each.peak, each.low, each.high)
            for key, own in study.of_key.items()
            if own.forecast is not None
            for each in (*own.forecast.fitted, *own.forecast.expected)
        ),
    )


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def to_json(study: Study, made_at: str) -> str:
    """The study as text. Shares are fractions of 1, rates are per second, and null means not known or infinite."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "made_at": made_at,
        "days": [day.date for day in study.days],
        "history": [day.date for day in study.history],
        "left_from_forecast": list(study.left_from_forecast),
        "quotas": {str(key): _of_key(own, study.question.usable) for key, own in study.of_key.items()},
        # As in a report: `erase` finds by it the clients in these results.
        "clients": [
            {"user": each.claimant.user, "client_id": each.claimant.client_id, "api": str(API_OF_KEY[key])}
            for key, own in study.of_key.items()
            for each in own.shares.shares
            if not each.claimant.team
        ],
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def _of_key(own: OfKey, usable: float) -> dict[str, Any]:
    shares, found = own.shares, own.forecast
    loads = {name: getattr(own.loads, name) for name in own.loads.__slots__}
    return {
        "capacity": shares.capacity,
        "usable": usable,
        "required": shares.required,
        "guarantees_kept": shares.guarantees_kept,
        "censored": own.censored,
        "together": {name: {at: getattr(load, at) for at in load.__slots__} for name, load in loads.items()},
        "tiers": {
            str(tier): {name: getattr(each, name) for name in each.__slots__}
            for tier, each in shares.tiers.items()
        },
        "claims": [
            {
                "claimant": str(each.claimant),
                "tier": each.claim.tier,
                "weight": each.claim.weight,
                "floor": each.claim.guarantee,
                "ceiling": _number(each.claim.ceiling),
                "required": each.claim.demand,
                "share": each.share,
                "missing": each.missing,
            }
            for each in shares.shares
        ],
        "forecast": None if found is None else _forecast(found),
        "hours_of_week": [[_number(share) for share in day] for day in own.hours.tolist()],
    }


def _forecast(found: Forecast) -> dict[str, Any]:
    return {
        "growth_per_week": found.growth_per_week,
        "by_weekday": found.by_weekday,
        "interval": INTERVAL,
        "full": found.full or None,
        "earliest": found.earliest or None,
        "latest": found.latest or None,
        "errors": [
            {
                "ahead_days": each.ahead_days,
                "days": each.days,
                "mape": _number(each.mape),
                "held": _number(each.held),
            }
            for each in found.errors
        ],
        "seen": dict(found.seen),
        "expected": [{name: getattr(each, name) for name in each.__slots__} for each in found.expected],
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def render(study: Study) -> str:
    """The page."""
    template = page("pipeline.capacity", "capacity.html", share="{:.2%}".format, amount=amount)
    return template.render(
        study=study,
        shown=_SHOWN,
        tiers=TIERS,
        interval=INTERVAL,
        weeks=weeks,
        busy_hours=busy_hours,
        text=forecast_text,
        censored=_censored,
        infinite=math.inf,
        drawing=_drawing,
        width=_WIDTH,
        height=_HEIGHT,
    )


def busy_hours(hours: Floats) -> list[str]:
    """The hours of the week closest to the peak of their day, such as ``Monday 14:00``; UTC."""
    order = np.argsort(-np.nan_to_num(hours, nan=-1.0), axis=None, kind="stable")[:_BUSY_HOURS]
    places = (divmod(int(at), hours.shape[1]) for at in order)
    return [
        f"{calendar.day_name[weekday]} {hour:02}:00" for weekday, hour in places if hours[weekday, hour] > 0
    ]


def _drawing(found: Forecast, capacity: float) -> dict[str, Any]:
    """Points of the drawing: days to the right, peaks upwards."""
    line = [*found.fitted, *found.expected]
    most = max(capacity, max(found.seen.values()), max(each.peak for each in line)) * 1.05
    days = {each.date: at for at, each in enumerate(line)}

    def point(date: str, value: float) -> str:
        x = _WIDTH * days[date] / max(1, len(line) - 1)
        return f"{x:.1f},{_HEIGHT * (1 - min(value, most) / most):.1f}"

    def points(ends: Sequence[Expected], name: str) -> list[str]:
        return [point(each.date, getattr(each, name)) for each in ends]

    return {
        "seen": " ".join(point(date, value) for date, value in found.seen.items()),
        "line": " ".join(points(line, "peak")),
        "band": " ".join([*points(line, "high"), *reversed(points(line, "low"))]),
        "capacity": _HEIGHT * (1 - capacity / most),
    }
