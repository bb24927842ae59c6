"""A gap is of one gateway and a span: days of clients that may be in it are left out, and everything else stays."""

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.plans.plan import LeftOut, Plan, TooLittle
from pipeline.storage.coverage import Expectation, coverage
from pipeline.storage.layout import CompactedDay
from pipeline.storage.offset_index import DAY_S, Interval, OffsetIndex, Run
from pipeline.storage.raw_table import RawDay, RawState, raw_table
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import compacted_table_of, publish_day, publish_days
from tests.pipeline.test_plans import plan_of

FIRST = datetime.date(2026, 9, 1)
MIDNIGHT = int(datetime.datetime.combine(FIRST, datetime.time(), datetime.UTC).timestamp())
GATEWAYS = ("g1", "g2", "g3")
NOON = DAY_S // 2
DAYS = 6
SILENT, SET_BACK = 2, 4
LATER = Expectation(MIDNIGHT + 60 * DAY_S)


def date(day: int) -> datetime.date:
    return FIRST + datetime.timedelta(days=day)


@dataclass
class History:
    """Days of clients over three gateways, and what is wrong with them.

    Attributes:
        lines: by gateway, spans of lines that are there, in seconds since the first midnight.
        set_back_ms: by gateway and day, how far its clock was set back.
        scope: what one counter of the gateways covers.
        clients: by name, its gateways and days.
    """

    lines: dict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: {gw: [(0, DAYS * DAY_S)] for gw in GATEWAYS}
    )
    set_back_ms: dict[tuple[str, int], int] = field(default_factory=dict)
    scope: str = "gateway"
    clients: dict[str, tuple[tuple[str, ...], range]] = field(default_factory=dict)

    def silent(self, gw: str, day: int) -> None:
        """A gateway writes nothing in the second half of a day."""
        begin, end = day * DAY_S + NOON, (day + 1) * DAY_S
        self.lines[gw] = [(0, begin), (end, DAYS * DAY_S)]

    def has(self, gw: str, at: int) -> bool:
        return any(begin <= at < end for begin, end in self.lines[gw])

    def rows(self, day: int) -> list[dict[str, Any]]:
        """What was recorded of a day, in which each client is active every ten minutes; seconds may stand twice."""
        rng = np.random.default_rng(day)
        found = []
        for at, (name, (gateways, days)) in enumerate(self.clients.items()):
            for gw in gateways if day in days else ():
                seconds = [second for second in range(at, DAY_S, 600) if self.has(gw, day * DAY_S + second)]
                doubled = seconds[:30] if (gw, day) in self.set_back_ms else []
                seconds = sorted([*seconds, *doubled])
                offered = rng.integers(900, 1_100, len(seconds)) * float(at + 1)
                found.append(
                    {"client_id": name, "gw": gw, "t": seconds, "offered": offered.tolist(), "date": date(day)}
                )
        return found

    def write(self, out: Path) -> Path:
        """Writes what ingest and compact make of it."""
        runs = {
            Run(gw, MIDNIGHT * 1000): tuple(
                Interval(begin, end - 1, MIDNIGHT + begin, MIDNIGHT + end - 1) for begin, end in spans
            )
            for gw, spans in self.lines.items()
        }
        index = OffsetIndex(runs)
        read, published = {}, []
        known = coverage(index, LATER)
        for day in range(DAYS):
            name = date(day).isoformat()
            set_back_ms = {gw: by_ms for (gw, of_day), by_ms in self.set_back_ms.items() if of_day == day}
            rows = self.rows(day)
            if not any(row["t"] for row in rows):
                continue
            read[name] = RawDay(lines=1, rows=1, set_back_ms=set_back_ms)
            about = CompactedDay(
                name,
                completeness=known[name].share,
                gateways=known[name].shares(),
                silent=known[name].silent(),
                set_back_ms=set_back_ms,
                scopes=dict.fromkeys(GATEWAYS, self.scope),
            )
            published.append((about, [compacted_table_of(rows)]))
        publish_days(str(out), published)
        table = raw_table(str(out))
        table.commit(table.prepared(), state=RawState(index=index, days=read).to_json())
        write_client_tables(out, use=False)
        return out


def everywhere(count: int = 6, **history: Any) -> History:
    """Clients behind a load balancer, so that each uses all gateways on all days."""
    return History(clients={f"c{at:02}": (GATEWAYS, range(DAYS)) for at in range(count)}, **history)


def recommended(out: Path, *arguments: str, days: int = DAYS) -> tuple[int, Plan]:
    file = out / "plan.json"
    code = main(["recommend", "--out", str(out), "--plan", str(file), "--history", str(days), *arguments])
    return code, Plan.from_json(file.read_bytes())


def quotas_of(plan: Plan) -> dict[str, float]:
    return {str(entry.entity.client_id): entry.value for entry in plan.entries}


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["gateway", "fleet:cluster/shares"])
def test_m08_one_silent_gateway_and_one_clock_set_back_cost_each_client_two_days(
    scope: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = everywhere(scope=scope)
    # Two more are only seen on the day of a gap.
    history.clients |= {
        "new": (("g3",), range(SILENT, SILENT + 1)),
        "short": (("g1", "g2"), range(SET_BACK, SET_BACK + 1)),
    }
    _, whole = recommended(history.write(tmp_path / "whole"))
    history.silent("g3", SILENT)
    history.set_back_ms["g2", SET_BACK] = 30_000
    code, plan = recommended(history.write(tmp_path / "out"))
    assert code == Exit.DONE
    quotas = quotas_of(plan)
    assert set(quotas) == {f"c{at:02}" for at in range(6)}
    assert {entry.days for entry in plan.entries} == {DAYS - 2}
    # They are what they would be without the faults.
    expected = quotas_of(whole)
    assert quotas == pytest.approx({name: expected[name] for name in quotas}, rel=0.05)
    day, after = date(SILENT), date(SILENT + 1)
    spans = f"without records {day:%m-%d}T12:00:00Z to {after:%m-%d}T00:00:00Z"
    # Who is only seen on other gateways keeps its day.
    assert plan.left_out == (
        LeftOut("g3", day.isoformat(), f"is 50.0% complete, {spans}", 7),
        LeftOut("g2", date(SET_BACK).isoformat(), "had its clock set back by 30 s", 7),
    )
    assert plan.too_little == (
        TooLittle("produce of user=u,client-id=new", f"{day} left out for g3"),
        TooLittle("produce of user=u,client-id=short", f"{date(SET_BACK)} left out for g2"),
    )
    said = capsys.readouterr().out
    assert all(left.text() in said for left in plan.left_out)
    assert (
        "no quota for 2 of the clients and APIs, as too little is known of them: produce of user=u,client-id=new"
        in said
    )
    # As they are, half of a day counts as a quiet one and the clients that are only there are known.
    code, plan = recommended(tmp_path / "out", "--allow-gaps")
    assert (code, len(plan.entries), plan.left_out, plan.too_little) == (Exit.DONE, 8, (), ())


@pytest.mark.slow
def test_clients_of_other_gateways_keep_all_their_days(tmp_path: Path) -> None:
    history = History()
    history.clients = {gw: ((gw,), range(DAYS)) for gw in GATEWAYS}
    history.silent("g3", SILENT)
    history.set_back_ms["g2", SET_BACK] = 30_000
    _, plan = recommended(history.write(tmp_path))
    assert {str(entry.entity.client_id): entry.days for entry in plan.entries} == {
        "g1": DAYS,
        "g2": DAYS - 1,
        "g3": DAYS - 1,
    }


@pytest.mark.slow
def test_a_default_covers_who_is_not_known_and_the_backtest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = everywhere(4)
    history.clients["new"] = (("g3",), range(SILENT, SILENT + 1))
    history.silent("g3", SILENT)
    code, plan = recommended(history.write(tmp_path), "--default-plus-overrides", "2")
    assert (code, len(plan.entries), len(plan.too_little)) == (Exit.DONE, 3, 1)
    assert "the default covers them too" in capsys.readouterr().out
    argv = ["backtest", "--out", str(tmp_path), "--horizons", "1", "--result", str(tmp_path / "result")]
    assert main(argv) == Exit.DONE
    assert plan.left_out[0].text() in capsys.readouterr().out
    assert (
        main([*argv, "--from", date(SILENT).isoformat(), "--to", date(SILENT + 1).isoformat()])
        == Exit.NOT_YET_COMPLETE
    )
    assert "no client has a day that is not left out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_day_on_which_no_gateway_wrote_is_left_out_too(tmp_path: Path) -> None:
    history = everywhere(3)
    history.lines = {gw: [(0, 3 * DAY_S), (4 * DAY_S, DAYS * DAY_S)] for gw in GATEWAYS}
    code, plan = recommended(history.write(tmp_path))
    assert (code, plan.basis.days) == (Exit.DONE, DAYS - 1)
    assert {entry.days for entry in plan.entries} == {DAYS - 1}
    assert plan.left_out == (LeftOut("", date(3).isoformat(), "has written nothing", 3),)


@pytest.mark.slow
def test_a_plan_without_any_quota_does_not_end_as_one_with_quotas(tmp_path: Path) -> None:
    history = everywhere(2)
    history.silent("g3", SILENT)
    out = history.write(tmp_path / "out")
    code, plan = recommended(out, "--to", date(SILENT).isoformat(), days=1)
    assert (code, plan.entries, len(plan.too_little)) == (Exit.NOT_YET_COMPLETE, (), 2)
    # All that it has are clients that no quota could be set for.
    history = History(clients={"": (("g1",), range(DAYS))})
    nameless = history.rows(0)
    for row in nameless:
        row["user"] = ""
    publish_day(str(tmp_path / "idle"), CompactedDay(date(0).isoformat()), [compacted_table_of(nameless)])
    write_client_tables(tmp_path / "idle")
    code, plan = recommended(tmp_path / "idle", days=1)
    assert (code, plan.entries, plan.too_little) == (Exit.NOTHING_TO_DO, (), ())


def test_a_plan_from_a_day_that_was_not_over_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    day = date(0).isoformat()
    rows = History(clients={"c": (("g1",), range(DAYS))}).rows(0)
    publish_day(str(tmp_path), CompactedDay(day, open=True), [compacted_table_of(rows)])
    write_client_tables(tmp_path)
    _, plan = recommended(tmp_path, "--allow-open", days=1)
    note = f"not over when compacted, so quotas may be too low: {day}"
    assert (plan.basis.open_days, note in capsys.readouterr().out) == (day, True)
    assert main(["plan", "show", str(tmp_path / "plan.json")]) == Exit.DONE
    assert note in capsys.readouterr().out


def test_a_plan_of_an_older_release_tells_its_clients_all_the_same() -> None:
    text = plan_of().to_json()
    old = '{"gateway": "g", "reason": "is 4.0% complete", "clients": ["produce of user=u"]}'
    plan = Plan.from_json(text.replace('"left_out": [],\n "too_little": []', f'"left_out": [{old}]'))
    assert plan.left_out == (LeftOut("g", "", "is 4.0% complete", 1),)
    assert plan.left_out[0].text() == "g is 4.0% complete; all days of 1 client are left out"
    assert plan.too_little == (TooLittle("produce of user=u", "g is 4.0% complete"),)
    assert Plan.from_json(plan.to_json()) == Plan.from_json(plan.to_json().replace("\n", ""))
