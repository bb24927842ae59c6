"""Gateways that share their counters: a client's second is the sum over all of them, in every job."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.cli import main
from pipeline.client_tables.making import make_missing
from pipeline.client_tables.profile import PARTIAL, merge_profiles, profile_rows
from pipeline.errors import Exit, RefusedError
from pipeline.ingest.lines import Line, Torn, read_line
from pipeline.maintenance.compaction import compact
from pipeline.plans.plan import Plan
from pipeline.replay.candidates import Candidates
from pipeline.replay.dispatch import ReplaySettings
from pipeline.replay.simulation import simulate
from pipeline.storage.compacted_days import CompactedDays, published_days
from pipeline.storage.counting import fleets_of, recorded_scope
from pipeline.storage.entity_days import Scope
from pipeline.storage.joining import counted_together
from pipeline.storage.layout import CompactedDay
from pipeline.storage.raw_table import RawDay, RawState, newest_scopes
from quotas.usage_record import FLEET
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import DAY, compacted_rows, write_compacted
from testkit.pipeline.local_session import LocalSession
from testkit.pipeline.usage_lines import LONG_AFTER, line, place, row
from tests.pipeline.conftest import Ingest

Rows = list[dict[str, Any]]

ONE = f"{FLEET}cluster-1/shares"
TWO = f"{FLEET}cluster-2/shares"
NEXT = DAY + datetime.timedelta(days=1)
SECONDS = 3_000


def smooth(rng: np.random.Generator) -> NDArray[np.float64]:
    """About a megabyte in each second."""
    return np.rint(rng.normal(1e6, 3e4, SECONDS))


def bursty(rng: np.random.Generator) -> NDArray[np.float64]:
    """Ten seconds of two minutes with much, a little in all others."""
    busy = np.arange(SECONDS) % 120 < 10
    return np.rint(np.where(busy, rng.uniform(2e6, 6e6, SECONDS), 2e4))


def divided(
    offered: NDArray[np.float64], gateways: int, rng: np.random.Generator, *, balanced: bool
) -> list[NDArray[np.float64]]:
    """Each second over so many gateways: in about equal parts, or most of it at one that changes every minute."""
    parts = np.ones((gateways, len(offered)))
    if not balanced:
        busiest = rng.integers(0, gateways, len(offered) // 60 + 1)[np.arange(len(offered)) // 60]
        parts[busiest, np.arange(len(offered))] = 20.0
    parts *= rng.uniform(0.8, 1.2, parts.shape)
    shares = np.floor(offered * parts / parts.sum(axis=0))
    shares[0] += offered - shares.sum(axis=0)
    return list(shares)


def use(client_id: str, gw: str, offered: Sequence[float], **changed: Any) -> dict[str, Any]:
    return {"client_id": client_id, "gw": gw, "t": list(range(len(offered))), "offered": list(offered)} | changed


def recommended(out: Path, *arguments: str, days: int = 1) -> Plan:
    file = out / "plan.json"
    argv = ["recommend", "--out", str(out), "--plan", str(file), "--history", str(days), *arguments]
    assert main(argv) == Exit.DONE
    return Plan.from_json(file.read_bytes())


def quotas_of(plan: Plan) -> dict[str, float]:
    return {str(entry.entity.client_id or entry.entity.ip): entry.value for entry in plan.entries}


def written(out: Path, rows: Rows, scopes: Mapping[str, str]) -> Path:
    write_compacted(out, rows, scopes=scopes)
    write_client_tables(out, use=False)
    return out


@pytest.mark.slow
def test_m07_a_fleet_gets_the_quota_of_one_gateway_that_saw_everything(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    rows: Rows = []
    names = []
    for gateways in (1, 2, 4, 8):
        for kind in (smooth, bursty):
            for balanced in (True, False):
                name = f"{gateways}-{kind.__name__}-{'balanced' if balanced else 'unbalanced'}"
                names.append(name)
                offered = kind(rng)
                parts = divided(offered, gateways, rng, balanced=balanced)
                rows += [use(name, f"g{at}", part.tolist()) for at, part in enumerate(parts)]
                rows.append(use(f"all-{name}", "alone", offered.tolist()))
    scopes = dict.fromkeys((f"g{at}" for at in range(8)), ONE) | {"alone": "gateway"}
    plan = recommended(written(tmp_path, rows, scopes))
    quotas = quotas_of(plan)
    assert {name: quotas[name] / quotas[f"all-{name}"] for name in names} == pytest.approx(
        dict.fromkeys(names, 1), rel=0.02
    )
    assert plan.basis.scope == "fleet"
    # By gateways, as it was, the quota was below the mean use, and the less the more gateways there were.
    alone = quotas_of(recommended(tmp_path, "--scope", "gateway"))
    assert alone["4-smooth-balanced"] < 0.3 * quotas["4-smooth-balanced"]
    # What all may use at once counts the fleet's quota once.
    capacity = {check.key: check for check in plan.capacity}
    assert capacity[plan.entries[0].key].allocated == pytest.approx(sum(quotas.values()))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("gateway", ONE), (ONE, "gateway"), ("", ONE)])
def test_the_newest_lines_say_what_is_added_up_on_all_days(first: str, then: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    by_date = {}
    for date, scope in ((DAY, first), (NEXT, then)):
        offered = smooth(rng)
        rows = [
            use("c", f"g{at}", part.tolist(), date=date)
            for at, part in enumerate(divided(offered, 4, rng, balanced=True))
        ]
        rows.append(use("all", "alone", offered.tolist(), date=date))
        write_compacted(tmp_path, rows, scopes=dict.fromkeys(("g0", "g1", "g2", "g3"), scope) if scope else {})
        by_date[date] = rows
        # The tables of the first day are made anew when the second one says something else.
        write_client_tables(tmp_path, use=False)
    quotas = quotas_of(recommended(tmp_path, "--rule", "largest", days=2))
    share = 1.0 if then == ONE else 0.26
    assert quotas["c"] / quotas["all"] == pytest.approx(share, rel=0.05)
    for date in by_date:
        plan = recommended(tmp_path, "--to", date.isoformat())
        assert quotas_of(plan)["c"] / quotas_of(plan)["all"] == pytest.approx(share, rel=0.05)


def test_fleets_and_gateways_of_one_table_are_kept_apart(tmp_path: Path) -> None:
    # By name the gateways of the two fleets and the others come in turns.
    scopes = {"a": ONE, "b": TWO, "c": ONE, "d": "gateway", "e": TWO, "g": "gateway"}
    seconds = [1_000.0] * 600
    rows = [
        use("c", gw, [size * each for each in seconds])
        for gw, size in zip("abcdefg", (1, 5, 2, 4, 6, 1, 1), strict=True)
    ]
    rows += [use("c", "h", [13.0 * each for each in seconds]), use("small", "a", seconds), use("small", "c", seconds)]
    rows += [use("third", gw, seconds) for gw in "abcdefg"]
    plan = recommended(written(tmp_path, rows, scopes), "--margin", "1")
    quotas = quotas_of(plan)
    # 3 and 11 in the fleets; 13 in a gateway whose lines do not say.
    assert quotas["c"] == pytest.approx(13 * quotas["third"] / 2, rel=0.01)
    assert quotas["small"] == pytest.approx(quotas["third"], rel=0.01)
    fleets = fleets_of(published_days(str(tmp_path)))
    (batch,) = counted_together(
        [compacted_rows([use("c", gw, [float(at)]) for at, gw in enumerate("abcdefg")])], fleets
    )
    assert batch.column("gw").to_pylist() == ["d", "f", ONE, ONE, TWO, TWO, "g"]
    assert [each[0] for each in batch.column("offered").to_pylist()] == [3, 5, 0, 2, 1, 4, 6]


def test_connections_are_counted_by_each_gateway_and_mutations_by_the_fleet(tmp_path: Path) -> None:
    events: dict[str, Any] = {"api": "mutation", "t": [], "offered": []}
    rows: Rows = []
    for at, gw in enumerate("ab"):
        rows.append(use("10.0.0.1", gw, [4.0] * 300, api="connect", user=""))
        rows.append({**events, "client_id": "m", "gw": gw, "e_ms": [1_000 + at, 9_000 + at], "e_units": [30, 30]})
    rows.append(use("10.0.0.2", "alone", [4.0] * 300, api="connect", user=""))
    both = {"e_ms": [1_000, 1_001, 9_000, 9_001], "e_units": [30] * 4}
    rows.append({**events, "client_id": "all", "gw": "alone", **both})
    quotas = quotas_of(recommended(written(tmp_path, rows, {"a": ONE, "b": ONE})))
    assert quotas["10.0.0.1"] == quotas["10.0.0.2"]
    assert quotas["m"] == pytest.approx(quotas["all"], rel=0.001)


@pytest.mark.slow
def test_the_backtest_and_the_expected_waiting_are_of_the_fleet(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    rows: Rows = []
    by_date = {DAY + datetime.timedelta(days=back): bursty(rng) for back in range(3)}
    for date, offered in by_date.items():
        parts = divided(offered, 4, rng, balanced=False)
        rows += [use("c", f"g{at}", part.tolist(), date=date) for at, part in enumerate(parts)]
    written(tmp_path, rows, dict.fromkeys(("g0", "g1", "g2", "g3"), ONE))
    plan = recommended(tmp_path, "--margin", "1", "--rule", "largest", days=3)
    (entry,) = plan.entries
    # Judged by gateways a quota of the fleet seems to make nothing wait.
    assert entry.expected_throttled is not None
    assert 0.001 < entry.expected_throttled <= 0.0101
    # The same client seen by one gateway.
    seen = [use("c", "alone", offered.tolist(), date=date) for date, offered in by_date.items()]
    one = written(tmp_path / "one", seen, {})
    assert backtested(tmp_path) == [pytest.approx(rule, rel=0.01) for rule in backtested(one)]
    assert backtested(tmp_path, "--scope", "gateway") != backtested(tmp_path)


def backtested(out: Path, *arguments: str) -> list[dict[str, Any]]:
    argv = ["backtest", "--out", str(out), "--test", "1", "--horizons", "1", "--result", str(out / "result")]
    assert main([*argv, *arguments]) == Exit.DONE
    rules = json.loads((out / "result" / "backtest.json").read_text())["rules"]
    return [{name: value for name, value in rule.items() if name != "name"} for rule in rules]


def test_mutations_of_a_fleet_are_as_near_to_their_limit_as_all_its_gateways_came() -> None:
    rows = [
        {"api": "mutation", "gw": gw, "t": [1, 2], "offered": [10.0, 5.0], "quota": [2.0, 2.0]}
        for gw in ("a", "b", "c")
    ]
    partial = pa.Table.from_batches(profile_rows(iter([compacted_rows(rows)])), schema=PARTIAL)
    (alone,) = merge_profiles(partial).to_pylist()
    (shared,) = merge_profiles(partial, {"a": ONE, "b": ONE}).to_pylist()
    assert (alone["closest"], alone["near_s"]) == (0.75, 0)
    assert (shared["closest"], shared["near_s"]) == (1.5, 4)


@pytest.mark.slow
def test_from_lines_to_a_plan(local_ingest: Ingest, tmp_path: Path) -> None:
    rng, session = np.random.default_rng(10), LocalSession(2)
    offered = smooth(rng)[:600]
    parts = divided(offered, 2, rng, balanced=False)
    by_gateway = {"a": (parts[0], "shared", ONE), "b": (parts[1], "shared", ONE), "c": (offered, "all", "gateway")}
    for gw, (units, client_id, scope) in by_gateway.items():
        texts = [line(at, row(client_id, each), gw=gw, scope=scope) for at, each in enumerate(units.tolist())]
        place(tmp_path / "in", f"{gw}.jsonl.gz", *texts)
    local_ingest()
    out = str(tmp_path / "out")
    compact(session, out, LONG_AFTER)
    make_missing(session, out)
    plan = recommended(tmp_path / "out", "--allow-gaps")
    assert plan.basis.scope == "fleet"
    quotas = quotas_of(plan)
    assert quotas["shared"] == pytest.approx(quotas["all"], rel=0.001)
    days = CompactedDays.of(session, out)
    simulated = simulate(days, Candidates(values=(5e5,)), ReplaySettings(), scope=Scope.FLEET).toArrow().to_pylist()
    units = {each["client_id"]: (each["gw"], each["units"]) for each in simulated}
    assert units == {"shared": (ONE, offered.sum()), "all": ("c", offered.sum())}
    # Nothing is made again while nothing changes, and all days are when gateways join or leave.
    assert make_missing(session, out) == []
    place(tmp_path / "in", "later.jsonl.gz", line(600, gw="c", scope=ONE))
    local_ingest()
    compact(session, out, LONG_AFTER)
    assert make_missing(session, out) == [days.days[0].date]
    assert recorded_scope(published_days(out)) is Scope.FLEET
    assert set(fleets_of(published_days(out))) == {"a", "b", "c"}


# -- what lines say -------------------------------------------------------------------------------------------------
def test_the_newest_line_tells_in_whatever_order_lines_came() -> None:
    told = [("a", (1, 7, ONE)), ("a", (1, 9, "gateway")), ("b", (5, 0, TWO)), ("b", (4, 99, ONE))]
    newest = {"a": (1, 9, "gateway"), "b": (5, 0, TWO)}
    assert newest_scopes(told) == newest_scopes(reversed(told)) == newest
    first, second = RawDay(scopes=newest_scopes(told[::2])), RawDay(scopes=newest_scopes(told[1::2]))
    assert (first + second).scopes == (second + first).scopes == newest
    state = RawState(days={"2026-11-14": first + second})
    assert RawState.from_json(json.loads(json.dumps(state.to_json()))) == state


def day(date: str, **scopes: str) -> CompactedDay:
    return CompactedDay(date, scopes=scopes)


def test_the_scope_is_that_of_the_newest_lines() -> None:
    assert recorded_scope([]) is recorded_scope([day("2026-11-14")]) is Scope.GATEWAY
    days = [day("2026-11-14", a=ONE, b="gateway"), day("2026-11-15", a="gateway")]
    assert recorded_scope(days[:1]) is Scope.FLEET
    assert recorded_scope(days[::-1]) is Scope.GATEWAY
    assert recorded_scope([day("2026-11-14", a="broker")]) is Scope.BROKER
    assert recorded_scope([day("2026-11-14", a="a kind of a newer gateway")]) is Scope.GATEWAY
    with pytest.raises(RefusedError, match=r"covers broker \(a\), gateway \(b\): say which with --scope"):
        recorded_scope([*days, day("2026-11-16", a="broker")])


def test_a_fleet_that_no_line_tells_of_can_not_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, [use("c", "a", [1.0])], {})
    argv = ["recommend", "--out", str(tmp_path), "--history", "1", "--scope", "fleet"]
    assert main(argv) == Exit.WRONG_ARGUMENTS
    assert "no record names a fleet" in capsys.readouterr().err


def test_lines_of_an_older_gateway_tell_no_scope_and_wrong_ones_are_torn() -> None:
    old, new = read_line(line(0, row()), 0), read_line(line(0, row(), scope=ONE), 0)
    assert isinstance(old, Line)
    assert isinstance(new, Line)
    assert (old.scope, new) == ("", replace_scope(old, new))
    for wrong in (7, None, "x" * 513):
        torn = read_line(line(0, row(), scope=wrong), 0)
        assert isinstance(torn, Torn)
        assert "scope is not a string" in torn.reason


def replace_scope(old: Line, new: Line) -> Line:
    return old._replace(scope=ONE, text=new.text)
