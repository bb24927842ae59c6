"""``python -m benchmarks.backtest_feedback``: quotas recommended from usage that earlier recommendations limited.

Clients begin with three tenths of the quota that they need. Each night the recommendation for the next day
(`pipeline.recommend.recommendation`) is made from the recorded usage. For refused requests a gateway records all
*offered* demand. For a muted connection it records *observed* usage: here a client that sends its backlog as smoothly
as its quota allows. The result is the quota divided by the rate that the day required (geometric mean over clients).
Goal: with offered demand the result is back at 1.0 within two days.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.keep import keep_results
from benchmarks.relay.machine import describe_machine, load_average
from pipeline.plans.plan import Basis
from pipeline.recommend.recommendation import ClientDay, ClientHistory, RecommendationSettings, recommend
from pipeline.replay.kernels.deferral import required_rates
from pipeline.replay.kernels.ragged import Ragged
from quotas.entities import QuotaKey
from quotas.usage_record import UsageApi
from testkit.pipeline.traces import DAY_S, day_of, entities_of

Floats = NDArray[np.float64]

RESULTS: Final = Path(__file__).resolve().parent / "results"
BURST_S: Final = 10.0
TARGET: Final = 0.01
START: Final = 0.3
GOAL_DAYS: Final = 2
_FIRST: Final = date(2026, 9, 28)


@dataclass(frozen=True, slots=True)
class Mode:
    """What a gateway records, and which settings the recommendation uses."""

    name: str
    observed: bool
    settings: RecommendationSettings


MODES: Final = (
    Mode("offered", False, RecommendationSettings()),
    Mode("observed", True, RecommendationSettings()),
    Mode("observed, no bump", True, RecommendationSettings(bump=1.0)),
    Mode("observed, no bump, no margin", True, RecommendationSettings(bump=1.0, margin=1.0)),
)


def main() -> int:
    """Run, report and keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backtest_feedback", description=__doc__)
    parser.add_argument("--entities", type=int, default=60)
    parser.add_argument("--days", type=int, default=12)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    machine = describe_machine()
    ratios = {mode.name: run(mode, options.seed, options.entities, options.days) for mode in MODES}
    back = next((day for day, ratio in enumerate(ratios["offered"]) if ratio >= 1.0), options.days)
    document = {
        "command": f"python -m benchmarks.backtest_feedback --entities {options.entities} --days {options.days} "
        f"--seed {options.seed}",
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine | {"load_average_after": load_average()},
        "ratios": ratios,
    }
    page = render(document, ratios, back)
    keep_results(document, page, options.output, "backtest-feedback")
    print(page)
    return int(back > GOAL_DAYS)


def run(mode: Mode, seed: int, entities: int, days: int) -> list[float]:
    """Quota over required rate, geometric mean over clients, day by day."""
    chosen = [entity.index for entity in entities_of(seed, entities) if entity.api != "mutation"]
    quotas: dict[int, float] = {}
    history: dict[int, list[ClientDay]] = {index: [] for index in chosen}
    ratios = []
    for day in range(days):
        of_day: list[float] = []
        for index, seconds, units in _demands(seed, entities, day, chosen):
            required = _required_rate(seconds, units)
            if required <= 0:
                continue
            quota = quotas.setdefault(index, START * required)
            of_day.append(quota / required)
            recorded, censored_s = required, 0
            if mode.observed:
                at, sent, censored_s = released(seconds, units, quota)
                recorded = _required_rate(at, sent)
            date_text = (_FIRST + timedelta(days=day)).isoformat()
            history[index].append(ClientDay(date_text, recorded, len(seconds), censored_s, quota))
        ratios.append(float(np.exp(np.log(of_day).mean())))
        quotas |= _recommended(history, mode.settings)
    return ratios


def released(seconds: Any, units: Floats, quota: float) -> tuple[Any, Floats, int]:
    """Usage of a client that keeps to its quota: its seconds, its units, and in how many seconds it was delayed."""
    wanted = np.bincount(seconds, weights=units, minlength=DAY_S)[:DAY_S]
    level = np.cumsum(wanted) - wanted - quota * np.arange(DAY_S)
    waiting = np.maximum(level - np.minimum.accumulate(level) + wanted - quota * BURST_S, 0.0)
    sent = np.maximum(wanted + np.concatenate(([0.0], waiting[:-1])) - waiting, 0.0)
    at = np.flatnonzero(sent > 1e-9)
    return at, sent[at], int((waiting[at] > 0).sum())


def _recommended(history: dict[int, list[ClientDay]], settings: RecommendationSettings) -> dict[int, float]:
    histories = [
        ClientHistory("", f"c{index}", UsageApi.PRODUCE, QuotaKey.PRODUCER_BYTE_RATE, tuple(days[-7:]))
        for index, days in history.items()
    ]
    plan = recommend(
        histories, settings, Basis("", "", 7, 1.0, TARGET, settings.margin, "deferral"), made_at=""
    )
    return {int(str(entry.entity.client_id)[1:]): entry.value for entry in plan.entries}


def _demands(seed: int, entities: int, day: int, chosen: list[int]) -> Iterator[tuple[int, Any, Floats]]:
    demand = day_of(seed, entities, day, bursts=0.0)
    for index in chosen:
        part = slice(demand.starts[index], demand.starts[index + 1])
        yield index, demand.t[part], demand.units[part]


def _required_rate(seconds: Any, units: Floats) -> float:
    ragged = Ragged.build(np.array([0, len(seconds)]), np.asarray(seconds, np.int64) * 1000, units)
    return float(required_rates(ragged, TARGET, burst_s=BURST_S)[0])


def render(document: dict[str, Any], ratios: dict[str, list[float]], back: int) -> str:
    """The page."""
    machine = document["machine"]
    days = len(next(iter(ratios.values())))
    lines = [
        "# Feedback",
        "",
        f"`{document['command']}`, {document['started']}, commit {machine['commit']}; load average after "
        f"{machine['load_average_after']}.",
        "",
        "Quota over the rate that the day really required (geometric mean over clients), when each day's quota is "
        "recommended from records of throttled days. With offered demand, which the record then has whole, at 1.0 "
        f"again after {back} day{'s' * (back != 1)}; goal: {GOAL_DAYS}, {'met' if back <= GOAL_DAYS else 'missed'}.",
        "",
        "| recorded | " + " | ".join(f"day {day}" for day in range(days)) + " |",
        "|---|" + "---|" * days,
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{ratio:.2f}" for ratio in row) + " |" for name, row in ratios.items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
