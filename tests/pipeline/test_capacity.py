"""A capacity divided by what clients and teams require, what they use together, and when it is full."""

from __future__ import annotations

import csv
import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.capacity.claims import Claimant, ClaimRule, Claims, read_claims
from pipeline.capacity.forecast import (
    DAYS_FOR_WEEKDAYS,
    INTERVAL,
    LEAST_DAYS,
    Line,
    forecast,
    hours_of_week,
    quantile_of_t,
    walk_forward,
)
from pipeline.capacity.page import busy_hours
from pipeline.capacity.shares import divided
from pipeline.capacity.sums import load_of, passed, sums_of
from pipeline.cli import main
from pipeline.client_tables import tables
from pipeline.erase.client import Client
from pipeline.erase.results import erase_results
from pipeline.errors import Exit
from pipeline.replay.kernels.deferral import debts
from quotas.entities import QuotaKey
from quotas.lending import Claim, divide
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import compacted_rows, write_compacted
from testkit.pipeline.local_session import LocalSession
from testkit.pipeline.usage_lines import LONG_AFTER

MONDAY = datetime.date(2026, 9, 28)
PRODUCE = QuotaKey.PRODUCER_BYTE_RATE
A, B, C = (Claimant("u", name) for name in "abc")


def dates(count: int) -> list[str]:
    return [(MONDAY + datetime.timedelta(days=at)).isoformat() for at in range(count)]


# -- when it is full -------------------------------------------------------------------------------------------------
def test_a_peak_that_grows_by_the_same_part_is_forecast_to_the_day() -> None:
    seen = {date: 100.0 * 1.02**at for at, date in enumerate(dates(10))}
    found = forecast(seen, 100.0 * 1.02**21 - 0.1, 30)

    assert found is not None
    assert found.full == found.earliest == found.latest == dates(22)[21]
    assert found.growth_per_week == pytest.approx(1.02**7 - 1)
    assert [each.mape for each in found.errors if each.days] == pytest.approx([0.0], abs=1e-9)


def test_quiet_weekends_are_part_of_the_line_once_there_are_three_of_them() -> None:
    def peak(at: int) -> float:
        return (100.0 if at % 7 < 5 else 40.0) * 1.01**at

    seen = {date: peak(at) for at, date in enumerate(dates(DAYS_FOR_WEEKDAYS))}
    found = forecast(seen, 1_000.0, 14)

    assert found is not None
    assert found.by_weekday
    assert [each.peak for each in found.expected] == pytest.approx([peak(at) for at in range(21, 35)])
    before = forecast({date: seen[date] for date in dates(DAYS_FOR_WEEKDAYS - 1)}, 1_000.0, 14)
    assert before is not None
    assert not before.by_weekday


def test_gaps_and_days_without_use_do_not_move_the_line() -> None:
    all_dates = dates(20)
    seen = {all_dates[at]: 50.0 * 1.03**at for at in (0, 1, 2, 9, 10, 14, 19)} | {all_dates[5]: 0.0}
    found = forecast(seen, 1_000.0, 1)

    assert found is not None
    assert found.expected[0].peak == pytest.approx(50.0 * 1.03**20)
    assert all_dates[5] not in found.seen


def test_growth_without_end_stays_a_number() -> None:
    found = forecast({date: 10.0**at for at, date in enumerate(dates(8))}, 1e300, 3_650)

    assert found is not None
    assert all(math.isfinite(each.high) for each in found.expected)


def test_fewer_days_than_needed_have_no_forecast() -> None:
    assert forecast(dict.fromkeys(dates(LEAST_DAYS - 1), 1.0), 10.0, 30) is None
    with pytest.raises(ValueError, match="are fewer than"):
        Line(range(LEAST_DAYS - 1), [1.0] * (LEAST_DAYS - 1))


def test_the_interval_holds_about_as_many_days_as_it_says() -> None:
    """Over 60 series the share is known to about 0.01; the interval is exact where noise is a part of the peak."""
    held, counted = 0.0, 0
    for seed in range(60):
        noise = np.random.default_rng(seed).lognormal(0, 0.2, 35)
        by_day = {at: (70 if at % 7 > 4 else 100) * 1.01**at * noise[at] for at in range(35)}
        found = walk_forward({day: peak for day, peak in by_day.items() if day % 7 < 5}, 1)
        held += found.held * found.days
        counted += found.days
    assert held / counted == pytest.approx(INTERVAL, abs=0.04)


def test_a_day_is_forecast_from_earlier_days_alone() -> None:
    peaks = {day: 100.0 + (day * 37) % 11 for day in range(20)}
    whole = walk_forward(peaks, 3)
    assert whole.days == 20 - LEAST_DAYS - 2

    last = {**peaks, 19: 1e9}
    assert walk_forward({day: last[day] for day in range(19)}, 3) == walk_forward(
        {day: peaks[day] for day in range(19)}, 3
    )
    assert walk_forward(last, 3).mape > whole.mape
    assert walk_forward(dict.fromkeys(range(5), 1.0), 1).days == 0


@pytest.mark.parametrize(("free", "table"), [(5, 2.01505), (6, 1.94318), (13, 1.77093), (27, 1.70329)])
def test_the_quantiles_of_t_are_those_of_the_tables(free: int, table: float) -> None:
    assert quantile_of_t(0.95, free) == pytest.approx(table, abs=1e-3)


def test_the_busy_hours_are_those_of_the_day_of_the_week() -> None:
    hours = {date: [1.0] * 24 for date in dates(14)}
    hours[dates(1)[0]][14] = 4.0
    hours[dates(8)[7]][14] = 2.0

    shares = hours_of_week(hours)
    assert shares[0, 14] == 1.0
    assert shares[0, 13] == shares[6, 14] == 1 / 3
    assert busy_hours(shares)[0] == "Monday 14:00"
    # A day that is quiet as a whole has no busy hour.
    hours = {date: [0.1 if at % 7 == 5 else 2.0] * 24 for at, date in enumerate(dates(14))}
    assert not any("Saturday" in each for each in busy_hours(hours_of_week(hours)))
    assert np.isnan(hours_of_week({})).all()


# -- who gets what ---------------------------------------------------------------------------------------------------
def test_shares_are_those_of_the_gateways_own_division() -> None:
    claims = Claims(
        read_claims(
            """
            [[claims]]
            user = "u"
            client_id = "a"
            tier = 0
            floor = { produce = "50B/s" }
            [[claims]]
            client_id = "b*"
            weight = 3
            ceiling = { produce = 40 }
            """
        )
    )
    found = divided(PRODUCE, 100.0, {A: 70.0, B: 60.0, C: 30.0}, claims, usable=0.6)

    own = [Claim(50.0, math.inf, 1.0, 0, 70.0), Claim(0.0, 40.0, 3.0, 2, 60.0), Claim(demand=30.0)]
    assert [each.claim for each in found.shares] == own
    division = divide(100.0, own)
    assert [each.share for each in found.shares] == [division.share(claim) for claim in own]
    assert [each.share for each in found.shares] == pytest.approx([60.0, 30.0, 10.0])
    assert [each.missing for each in found.shares] == pytest.approx([10.0, 30.0, 20.0])
    assert found.required == 160.0
    # With 60 left the lower tier loses first, and keeps a twentieth.
    assert found.tiers[0].kept == pytest.approx(58.0)
    assert found.tiers[2].kept == pytest.approx(2.0)


amounts = st.floats(0.01, 1e6)


@given(st.lists(st.tuples(amounts, amounts, amounts, st.integers(0, 3)), min_size=1, max_size=8), amounts)
def test_no_more_than_the_capacity_is_given_and_none_more_than_it_requires(
    drawn: list[tuple[float, float, float, int]], capacity: float
) -> None:
    rules = tuple(
        ClaimRule({"client_id": str(at)}, tier, weight, {PRODUCE: floor}, {PRODUCE: floor * 2})
        for at, (_, floor, weight, tier) in enumerate(drawn)
    )
    required = {Claimant("u", str(at)): need for at, (need, _, _, _) in enumerate(drawn)}
    found = divided(PRODUCE, capacity, required, Claims(rules), usable=0.5)

    for each in found.shares:
        assert each.share <= each.claim.wanted
    # Each has at least a twentieth of an equal part, so that it gets an answer.
    assert math.fsum(each.share for each in found.shares) <= capacity * 1.05 * (1 + 1e-9)
    for tier in found.tiers.values():
        assert tier.kept <= tier.share


@pytest.mark.parametrize(("text", "fault"), [
    ("[[claims]]\nname = 'a'", "claims.0.name: unknown key"),
    ("[[claims]]\ntier = 1", "names neither a team"),
    ("[[claims]]\nteam = 'a'\nuser = 'b'", "names neither a team"),
    ("[[claims]]\nuser = 'a'\ntier = 4", "claims.0.tier: is not a whole number in 0..3"),
    ("[[claims]]\nuser = 'a'\nweight = 0", "claims.0.weight: is not a number above 0"),
    ("[[claims]]\nuser = 'a'\nfloor = 5", "claims.0.floor: is not a table"),
    ("[[claims]]\nuser = 'a'\nfloor = { produce = '5kg' }", "claims.0.floor.produce: has the unknown unit kg"),
    ("[[claims]]\nuser = 'a'\nfloor = { rate = 5 }", "claims.0.floor.rate: unknown key"),
    ("[[claims]]\nuser = 'a'\nfloor = { produce = 5 }\nceiling = { produce = 4 }", "above the ceiling"),
    ("claims = 3", "claims: is not an array"), ("[[teams]]", "teams: unknown key"), ("[", "not TOML"),
])  # fmt: skip
def test_what_is_wrong_in_a_file_of_claims_is_named(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault.replace("[", r"\[")):
        read_claims(text)


# -- what all use together -------------------------------------------------------------------------------------------
def bucket(seconds: list[float], quota: float, burst_s: float) -> list[float]:
    """The literal model: a full bucket, a queue, one second after the other."""
    tokens, waiting, found = quota * burst_s, 0.0, []
    for units in seconds:
        waiting += units
        now = min(waiting, tokens)
        found.append(now)
        waiting -= now
        tokens = min(quota * burst_s, tokens - now + quota)
    return found


@given(
    st.lists(st.integers(0, 50).map(float), min_size=1, max_size=40),
    st.integers(1, 20).map(float),
    st.integers(1, 11).map(float),
)
def test_what_passes_is_what_a_bucket_lets_pass(seconds: list[float], quota: float, burst_s: float) -> None:
    found = passed(np.array(seconds), quota, burst_s)

    if max(seconds) <= quota:
        assert found.tolist() == seconds
    else:
        assert found.tolist() == pytest.approx(bucket(seconds, quota, burst_s))
    # What waits is what the kernel of required rates says: its debt beyond the bucket.
    at = np.arange(len(seconds)) * 1_000
    waiting = np.cumsum(seconds) - np.cumsum(found)
    debt = debts(at, np.array(seconds), quota)
    assert waiting.tolist() == pytest.approx(np.maximum(0.0, debt - quota * burst_s).tolist())


def test_the_sum_adds_up_all_gateways_of_a_client_before_its_quota() -> None:
    rows: list[dict[str, Any]] = [
        {"gw": gw, "user": "u", "client_id": name, "api": "produce", "t": [7], "offered": [units]}
        for name, gw, units in (("a", "g1", 60.0), ("a", "g2", 50.0), ("b", "g1", 5.0))
    ]
    found = sums_of(
        [compacted_rows(rows[:1]), compacted_rows(rows[1:])],
        lambda user, client_id, api: Claimant(user, client_id),
        {PRODUCE: 1.0},
        [{(PRODUCE, A): 80.0}, {}],
    )

    recorded, limited, unlimited = found.by_key[PRODUCE]
    assert (recorded[7], recorded.sum()) == (115.0, 115.0)
    assert limited[7:9].tolist() == [85.0, 30.0]
    assert unlimited.tolist() == recorded.tolist()
    load = load_of(recorded, 100.0)
    assert (load.highest, load.p99, load.above_s) == (115.0, 0.0, 1)


# -- the job ---------------------------------------------------------------------------------------------------------
GROUPS = """
[[groups]]
name = "orders"
users = ["orders"]
tier = 0
"""
CLAIMS = """
[[claims]]
team = "orders"
floor = { produce = "3kB" }
"""
DAYS = 9


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two pods that take turns, another client that grows, and a gateway with a gap on the third day."""
    folder = tmp_path_factory.mktemp("capacity")
    for at in range(DAYS):
        date = MONDAY + datetime.timedelta(days=at)
        rows: list[dict[str, Any]] = [
            {
                "date": date,
                "gw": gw,
                "user": user,
                "client_id": client_id,
                "api": api,
                "t": list(range(begin, begin + 600)),
                "offered": [units] * 600,
            }
            for api in ("produce", "fetch")
            for user, client_id, gw, begin, units in (
                ("orders", "pod-1", "g1", 0, 2_000.0),
                ("orders", "pod-2", "g2", 3_600, 2_000.0),
                ("lab", "x", "g1", 50_000, 1_000.0 + 100 * at),
            )
        ]
        write_compacted(folder / "out", rows, gateways={"g1": 0.5 if at == 2 else 1.0, "g2": 1.0})
    write_client_tables(folder / "out")
    return str(folder / "out")


def study(out: str, to: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> dict[str, Any]:
    monkeypatch.setattr("pipeline.jobs.capacity.expectation_of", lambda _: LONG_AFTER)
    job = ["capacity", "--out", out, "--capacity", "produce=4kB,mutation=5/s", "--to-dir", str(to), *more]
    assert main(job) == Exit.DONE
    found: dict[str, Any] = json.loads((to / "capacity.json").read_text())
    del found["made_at"]
    return found


@pytest.mark.slow
def test_the_capacity_is_divided_among_clients_and_the_page_says_when_it_is_full(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = study(out, tmp_path / "to", monkeypatch)["quotas"]
    said = capsys.readouterr().out

    own = found["producer_byte_rate"]
    assert [each["claimant"] for each in own["claims"]] == [
        "user=orders,client-id=pod-1", "user=orders,client-id=pod-2", "user=lab,client-id=x",
    ]  # fmt: skip
    assert own["required"] > 4_000 == own["capacity"]
    assert sum(each["share"] for each in own["claims"]) == pytest.approx(4_000)
    # Together they need more than there is, but not at the same time.
    assert own["together"]["recorded"]["highest"] == 2_000
    assert own["together"]["with_required"]["above_s"] == 0
    # 1.8 kB on the last day, 100 B more each; pods are 2 kB on all days, so their sum is what counts first.
    assert own["forecast"]["seen"][dates(1)[0]] == 2_000
    assert dates(3)[2] not in own["forecast"]["seen"]
    assert "g1 is 50.0% complete" in said
    assert "producer_byte_rate: 3 claims for" in said
    assert "controller_mutation_rate: was not used" in said
    rows = list(csv.DictReader((tmp_path / "to" / "capacity.csv").read_text().splitlines()))
    assert [float(row["share"]) for row in rows] == [each["share"] for each in own["claims"]]
    days = list(csv.DictReader((tmp_path / "to" / "forecast.csv").read_text().splitlines()))
    assert len(days) == DAYS - 1 + 90
    page = (tmp_path / "to" / "index.html").read_text()
    assert page.count("<svg") == 1
    assert "user=orders,client-id=pod-1" in page
    assert dates(3)[2] in page


@pytest.mark.slow
@pytest.mark.parametrize("groups", [(), ("--groups", "groups.toml")])
def test_days_with_missing_or_doubled_records_are_in_no_sum(
    groups: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("groups.toml").write_text(GROUPS)
    faults: list[dict[str, Any]] = [{"gateways": {"g1": 0.5}}, {"set_back_ms": {"g1": 3_600_000}}, {}]
    for at, fault in enumerate(faults):
        users = {"orders": 3_000.0 - 1_000 * at, "lab": 300.0 - 100 * at}
        rows: list[dict[str, Any]] = [
            {
                "date": MONDAY + datetime.timedelta(days=at), "gw": "g1", "user": user, "client_id": "x",
                "api": "produce", "t": list(range(600)), "offered": [units] * 600,
            }
            for user, units in users.items()
        ]  # fmt: skip
        write_compacted(tmp_path / "out", rows, **{"gateways": {"g1": 1.0}, **fault})
    out = str(tmp_path / "out")
    write_client_tables(tmp_path / "out")

    def highest(*more: str) -> float:
        own = study(out, tmp_path / "to", monkeypatch, *groups, *more)["quotas"]["producer_byte_rate"]
        return float(own["together"]["recorded"]["highest"])

    assert highest() == 1_100
    assert "not in sums and forecast, as records are missing or occur twice: " in capsys.readouterr().out
    assert highest("--allow-gaps") == 3_300
    last = (MONDAY + datetime.timedelta(days=1)).isoformat()
    job = ["capacity", "--out", out, "--capacity", "produce=4kB", "--to", last, *groups]
    assert main(job) == Exit.NOT_YET_COMPLETE
    said = capsys.readouterr().err
    assert f"{MONDAY}: g1 is 50.0% complete; {last}: g1 had its clock set back by 3600 s" in said


@pytest.mark.slow
def test_a_team_claims_what_its_clients_require_together_and_others_claim_for_themselves(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "groups.toml").write_text(GROUPS)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    files = ("--groups", str(tmp_path / "groups.toml"), "--claims", str(tmp_path / "claims.toml"))
    found = study(out, tmp_path / "to", monkeypatch, *files, "--usable", "0.8")
    apart = study(out, tmp_path / "apart", monkeypatch)

    own = found["quotas"]["producer_byte_rate"]
    team, other = own["claims"]
    assert (team["claimant"], team["tier"], team["floor"]) == ("team=orders", 0, 3_000)
    assert (other["claimant"], other["tier"]) == ("user=lab,client-id=x", 2)
    # Its pods take turns.
    of_pod = apart["quotas"]["producer_byte_rate"]["claims"][0]["required"]
    assert of_pod <= team["required"] < 1.2 * of_pod
    assert own["together"]["recorded"] == apart["quotas"]["producer_byte_rate"]["together"]["recorded"]
    assert own["tiers"]["0"]["kept"] == own["tiers"]["0"]["share"]
    assert own["tiers"]["2"]["kept"] < own["tiers"]["2"]["share"]
    assert found["clients"] == [{"user": "lab", "client_id": "x", "api": "produce"}]


@pytest.mark.slow
def test_the_study_is_the_same_however_many_parts_it_has(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = study(out, tmp_path / "once", monkeypatch)
    monkeypatch.setattr(tables, "ROWS_PER_PART", 2)
    assert study(out, tmp_path / "parts", monkeypatch) == once
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession(3))
    assert study(out, tmp_path / "spark", monkeypatch, "--master", "spark://there:7077") == once


@pytest.mark.slow
def test_a_client_that_is_erased_takes_the_study_with_it(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = Path(out, "results", "capacity", "run=1")
    study(out, to, monkeypatch)
    other = Client.named(user=None, client_id="pod-3", ip=None)
    assert erase_results(str(to.parent), other, write=True)[0].total() == 0
    client = Client.named(user=None, client_id="pod-1", ip=None)
    assert erase_results(str(to.parent), client, write=True)[0].total() == 1
    assert [path.name for path in to.iterdir()] == ["forecast.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("user", ["", "alice"])
def test_connections_are_those_of_addresses_also_where_users_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    by_user = [("alice", "", "user_connect")] if user else []
    for at in range(DAYS):
        rows: list[dict[str, Any]] = [
            {
                "date": MONDAY + datetime.timedelta(days=at),
                "gw": "g1",
                "user": user,
                "client_id": client_id,
                "api": api,
                "t": list(range(600)),
                "offered": [5.0] * 600,
            }
            for user, client_id, api in [("", "10.0.0.1", "connect"), *by_user]
        ]
        write_compacted(tmp_path / "out", rows, gateways={"g1": 1.0})
    out = str(tmp_path / "out")
    write_client_tables(out)
    to = Path(out, "results", "capacity", "run=1")
    own = study(out, to, monkeypatch, "--capacity", "connect=100/s")["quotas"]["connection_creation_rate"]
    assert [each["claimant"] for each in own["claims"]] == ["client-id=10.0.0.1"]
    assert own["together"]["recorded"]["highest"] == 5
    assert set(own["forecast"]["seen"].values()) == {5}
    address = Client.named(user=None, client_id=None, ip="10.0.0.1")
    assert erase_results(str(to.parent), address, write=True)[0].total() == 1


@pytest.mark.parametrize(("words", "fault"), [
    ("--capacity produce=0", "each with more than 0"), ("--capacity ,", "name at least one API"),
    ("--capacity produce=1 --usable 0", "--usable above 0"), ("--capacity produce=1 --horizon 0", "--horizon 1 to"),
    ("--capacity produce=1 --from 2026-11-02 --to 2026-11-01", "--to 2026-11-01 is before --from"),
    ("--capacity produce=1 --from 20261102", "--from '20261102': say a day as 2026-11-21"),
])  # fmt: skip
def test_wrong_arguments_are_named(
    words: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", "--out", str(tmp_path), *words.split()]) == Exit.WRONG_ARGUMENTS
    assert fault in capsys.readouterr().err


def test_without_a_closed_day_there_is_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ["capacity", "--out", str(tmp_path), "--capacity", "produce=1MB"]
    when = "a day is closed 60 minutes after midnight UTC at the earliest; run `sluice-pipeline compact` then"
    assert main(job) == Exit.NOT_YET_COMPLETE
    assert f"no closed day is compacted: {when}" in capsys.readouterr().err
    assert main([*job, "--from", "2026-09-28"]) == Exit.NOT_YET_COMPLETE
    assert f"no closed day of those that --from and --to ask for is compacted: {when}" in capsys.readouterr().err
