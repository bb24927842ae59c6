"""`sluice-pipeline recommend`: a plan of quotas out of some days of packed records.

Workers find each client's need of each day (`day_needs`); what to make of them is decided in one place
(`pipeline.advice`), and the plan is then replayed over the same days, so that it says what it would have done.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.advice import AdviceSettings, ClientHistory, DayNeed, Rule, advise, entity_of
from pipeline.batches import with_losses
from pipeline.candidates import of_plan
from pipeline.demand import ENTITY, KEY_OF_API, Demand, demands
from pipeline.entity_days import Scope
from pipeline.errors import JobError
from pipeline.kernels.deferral import needs
from pipeline.layout import COMPLETE_ENOUGH, KEY, PackedDay, published_days, results_dir
from pipeline.packed_days import PackedDays, Work
from pipeline.plan import Basis, Plan, PlanEntry
from pipeline.replay import Model, ReplaySettings
from pipeline.session import open_session, open_to_look
from pipeline.simulate import add_master_argument, simulate
from pipeline.store import local_result
from quotas.entities import QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi

STEP_S: Final = 10
_STEPS: Final = 86_400 // STEP_S

NEED: Final = ", ".join(
    [
        *(f"`{name}` {KEY[name]}" for name in ENTITY),
        "need double, active_s int, censored_s int, quota double, steps array<double>",
    ]
)
"""A day of one client; or, where `steps` is set, what all clients of a worker used together in each ten seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The job's arguments."""
    parser.add_argument("--out", required=True, help="the pipeline's folder; it has packed days")
    parser.add_argument("--plan", metavar="FILE", help="where to write the plan; else below OUT/results/plan")
    parser.add_argument("--history", type=int, default=7, metavar="DAYS", help="days to look at (7)")
    parser.add_argument(
        "--to", dest="last", metavar="DATE", help="the last of them; else the last packed day"
    )
    parser.add_argument("--target", type=float, default=0.01, help="share of use that may wait (0.01)")
    parser.add_argument(
        "--rule",
        choices=list(Rule),
        default=Rule.DECAYED,
        help="decayed: recent days count more; largest: for clients with one busy day a week (%(default)s)",
    )
    parser.add_argument("--margin", type=float, default=1.25, help="factor on the need (1.25)")
    parser.add_argument(
        "--capacity",
        default="",
        metavar="API=VALUE,...",
        help="what the cluster can take per second, such as produce=200e6,mutation=50",
    )
    parser.add_argument(
        "--default-plus-overrides",
        type=int,
        metavar="COUNT",
        help="quotas of their own for the COUNT largest clients of each kind, a default for the others",
    )
    parser.add_argument(
        "--scope", choices=list(Scope), default=Scope.GATEWAY, help="the gateway's quota scope"
    )
    parser.add_argument(
        "--window-num", type=int, default=11, help="samples of a rate, windows of a burst (11)"
    )
    parser.add_argument("--window-ms", type=int, default=1_000, help="length of one (1000)")
    parser.add_argument("--allow-gaps", action="store_true", help="go on with days missing or incomplete")
    add_master_argument(parser)


def burst_s(api: UsageApi, window_num: int, window_ms: int) -> float:
    """Seconds of quota that can be used at once: a bucket holds all its windows, a Rate passes all but one."""
    windows = window_num if api is UsageApi.MUTATION else max(1, window_num - 1)
    return windows * window_ms / 1000


def find_needs(
    days: PackedDays, target: float, window_num: int, window_ms: int, *, scope: Scope = Scope.GATEWAY
) -> Any:
    """Clients' days as a DataFrame with the columns of `NEED`; see `add_arguments` for the numbers."""
    finder = need_finder(target, window_num, window_ms)
    return days.map_entities(finder, NEED, scope=scope, arrays=("censored", "quota"))


def need_finder(target: float, window_num: int, window_ms: int) -> Work:
    """What each worker does with its batches of clients' days: rows of `NEED`. Needs no Spark."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        steps: dict[tuple[datetime.date, str], Any] = {}
        for batch in batches:
            for demand in demands(batch):
                yield _day_needs(demand, target, burst_s(demand.api, window_num, window_ms))
                _add_steps(demand, steps)
        if steps:
            yield _steps_batch(steps)

    return work


def _day_needs(demand: Demand, target: float, burst: float) -> pa.RecordBatch:
    columns: dict[str, Any] = {name: demand.names.column(name) for name in ENTITY}
    columns["need"] = needs(demand.by_second(), target, burst_s=burst)
    columns["active_s"] = np.diff(demand.offsets).astype(np.int32)
    columns["censored_s"] = demand.sums(demand.censored).astype(np.int32)
    lasts = [
        demand.quota[end - 1] if end > begin else np.nan
        for begin, end in zip(demand.offsets[:-1], demand.offsets[1:])
    ]
    quotas = np.array(lasts, np.float64)
    columns["quota"] = pa.array(quotas, mask=~np.isfinite(quotas))
    columns["steps"] = pa.nulls(len(demand), pa.list_(pa.float64()))
    return pa.RecordBatch.from_pydict(columns)


def _add_steps(demand: Demand, steps: dict[tuple[datetime.date, str], Any]) -> None:
    dates = demand.names.column("date").to_pylist()
    for date in set(dates):
        rows = np.repeat([each == date for each in dates], np.diff(demand.offsets))
        used = np.bincount(demand.seconds[rows] // STEP_S, weights=demand.units[rows], minlength=_STEPS)
        total = steps.setdefault((date, demand.api.value), np.zeros(_STEPS))
        total += used[:_STEPS]


def _steps_batch(steps: Mapping[tuple[datetime.date, str], Any]) -> pa.RecordBatch:
    rows = len(steps)
    return pa.RecordBatch.from_pydict(
        {
            "date": pa.array([date for date, _ in steps], pa.date32()),
            "gw": pa.array([""] * rows),
            "user": pa.array([""] * rows),
            "client_id": pa.array([""] * rows),
            "api": pa.array([api for _, api in steps]),
            "node": pa.array([-1] * rows, pa.int32()),
            "need": pa.array([0.0] * rows),
            "active_s": pa.array([0] * rows, pa.int32()),
            "censored_s": pa.array([0] * rows, pa.int32()),
            "quota": pa.nulls(rows, pa.float64()),
            "steps": pa.array(list(steps.values()), pa.list_(pa.float64())),
        }
    )


def gather(rows: Iterable[Any]) -> tuple[list[ClientHistory], dict[QuotaKey, float]]:
    """Histories of all clients, and per key the most that all used together, per second.

    Args:
        rows: of `NEED`, in any order, as mappings.
    """
    found: dict[tuple[str, str, str], dict[str, list[Any]]] = {}
    together: dict[tuple[str, str], Any] = {}
    for row in rows:
        date = row["date"].isoformat()
        if row["steps"] is not None:
            total = together.setdefault((date, row["api"]), np.zeros(_STEPS))
            total += np.asarray(row["steps"])
            continue
        client = (row["user"], row["client_id"], row["api"])
        found.setdefault(client, {}).setdefault(date, []).append(row)
    histories = [
        ClientHistory(
            user=user,
            client_id=client_id,
            api=UsageApi(api),
            key=KEY_OF_API[UsageApi(api)],
            days=tuple(_day(date, of_day) for date, of_day in sorted(days.items())),
        )
        for (user, client_id, api), days in sorted(found.items())
    ]
    peaks: dict[QuotaKey, float] = {}
    for (_, api), total in together.items():
        key = KEY_OF_API[UsageApi(api)]
        peaks[key] = max(peaks.get(key, 0.0), float(total.max()) / STEP_S)
    return histories, peaks


def _day(date: str, rows: list[Any]) -> DayNeed:
    # Quotas hold for each gateway (and in scope broker, each broker) by itself: the one in most need decides.
    quotas = [row["quota"] for row in rows if row["quota"] is not None]
    return DayNeed(
        date=date,
        need=max(row["need"] for row in rows),
        active_s=sum(row["active_s"] for row in rows),
        censored_s=sum(row["censored_s"] for row in rows),
        quota=min(quotas) if quotas else None,
        gateways=len({(row["gw"], row["node"]) for row in rows}),
    )


def history_days(
    days: list[PackedDay], history: int, last: str | None, *, allow_gaps: bool
) -> list[PackedDay]:
    """The days to look at.

    Args:
        days: all that are packed, by date.
        history: how many are wanted.
        last: the last one; else the last packed.
        allow_gaps: go on with days missing or incomplete.

    Raises:
        JobError: some are missing or incomplete; it says which. Or `last` is no day.
    """
    if not days:
        raise JobError("no day is packed: run `sluice-pipeline pack` first")
    try:
        end = datetime.date.fromisoformat(last or days[-1].date)
    except ValueError as exc:
        raise JobError(f"--to {last!r}: say a day as 2026-11-21") from exc
    wanted = [(end - datetime.timedelta(days=back)).isoformat() for back in range(history)][::-1]
    there = {day.date: day for day in days}
    missing = [date for date in wanted if date not in there]
    poor = [date for date in wanted if date in there and there[date].completeness < COMPLETE_ENOUGH]
    chosen = [there[date] for date in wanted if date in there]
    if not chosen or ((missing or poor) and not allow_gaps):
        faults = [f"{', '.join(missing)} not packed"] if missing else []
        faults += [f"{date} is {there[date].completeness:.1%} complete" for date in poor]
        raise JobError(
            f"a history of {history} days to {end} is wanted, and {'; '.join(faults)}. Quotas from half of the "
            "records would be too low: pack the days, shorten --history, or say --allow-gaps"
        )
    return chosen


def parse_capacity(text: str) -> dict[QuotaKey, float]:
    """``produce=200e6,mutation=50`` by quota key.

    Raises:
        JobError: it has another form.
    """
    found = {}
    for part in filter(None, text.split(",")):
        api, _, value = part.partition("=")
        try:
            found[KEY_OF_API[UsageApi(api.strip())]] = float(value)
        except ValueError:
            raise JobError(
                f"--capacity {part}: expected API=VALUE with one of {', '.join(UsageApi)}"
            ) from None
    return found


def with_expectations(plan: Plan, rows: Iterable[Any]) -> Plan:
    """The plan with what it would have done.

    Args:
        plan: any.
        rows: mappings with user, client_id, api, units and throttled_units, summed over the history.
    """
    shares: dict[tuple[QuotaEntity, QuotaKey], float] = {}
    for row in rows:
        key = KEY_OF_API[UsageApi(row["api"])]
        entity = entity_of(ClientHistory(row["user"], row["client_id"], UsageApi(row["api"]), key, ()))
        if entity is not None and row["units"] > 0:
            shares[entity, key] = row["throttled_units"] / row["units"]

    def told(entry: PlanEntry) -> PlanEntry:
        return replace(entry, expected_throttled=shares.get((entry.entity, entry.key)))

    return replace(plan, entries=tuple(told(entry) for entry in plan.entries))


def run(arguments: argparse.Namespace) -> int:
    """The job; see the module."""
    if not 0 <= arguments.target < 1 or not arguments.margin >= 1 or arguments.history < 1:
        raise JobError("--target is in [0, 1), --margin at least 1, --history at least 1")
    capacity = parse_capacity(arguments.capacity)
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    folder = results_dir(arguments.out, "plan", made_at.replace(":", ""))
    file = local_result(arguments.plan, "--plan", f"{folder}/plan.json")
    look = open_to_look("sluice-recommend", arguments.out, master=arguments.master)
    chosen = history_days(
        with_losses(published_days(arguments.out, spark=look), arguments.out, look),
        arguments.history,
        arguments.last,
        allow_gaps=arguments.allow_gaps,
    )
    spark = open_session("sluice-recommend", master=arguments.master)
    days = PackedDays.of(spark, arguments.out, chosen[0].date, chosen[-1].date)
    scope, windows = Scope(arguments.scope), (arguments.window_num, arguments.window_ms)
    histories, peaks = gather(find_needs(days, arguments.target, *windows, scope=scope).toLocalIterator())
    basis = Basis(
        first_day=chosen[0].date,
        last_day=chosen[-1].date,
        days=len(chosen),
        completeness=min(day.completeness for day in chosen),
        target=arguments.target,
        margin=arguments.margin,
        model=Model.DEFERRAL.value,
    )
    settings = AdviceSettings(
        arguments.target,
        Rule(arguments.rule),
        arguments.margin,
        overrides=arguments.default_plus_overrides,
    )
    plan = advise(histories, settings, basis, made_at=made_at, capacity=capacity, peaks=peaks)
    plan = with_expectations(plan, _expected(days, plan, *windows, scope))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(plan.to_json(), encoding="utf-8")
    for check in plan.capacity:
        print(f"{check.key}: {check.note}")
    changes = sum(entry.action == "set" for entry in plan.entries)
    print(
        f"{len(plan.entries)} quotas, {changes} to be set: sluice-pipeline plan show {json.dumps(str(file))}"
    )
    return 0


def _expected(days: PackedDays, plan: Plan, window_num: int, window_ms: int, scope: Scope) -> Iterator[Any]:
    """The plan replayed: mutations as the gateway decides them, everything else in the model of the needs."""
    from pyspark.sql import functions

    rate = ReplaySettings(model=Model.DEFERRAL, window_num=max(1, window_num - 1), window_ms=window_ms)
    bucket = ReplaySettings(window_num=window_num, window_ms=window_ms)
    others = [api for api in UsageApi if api is not UsageApi.MUTATION]
    for apis, settings in ((others, rate), ([UsageApi.MUTATION], bucket)):
        replayed = simulate(days, of_plan(plan), settings, scope=scope, apis=apis)
        result = replayed.where("quota is not null")
        yield from (
            result.groupBy("user", "client_id", "api")
            .agg(*(functions.sum(name).alias(name) for name in ("units", "throttled_units")))
            .toLocalIterator()
        )
