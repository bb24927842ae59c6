"""Teams and what they cost: sums equal the records to the byte, and lines and columns of a bill add up."""

import csv
import datetime
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import main
from pipeline.errors import ArgumentError, Exit, NotYetCompleteError
from pipeline.storage.coverage import Expectation
from pipeline.teams.bill import bill_of
from pipeline.teams.members import NO_TEAM, Members, read_members
from pipeline.teams.month import largest_of_no_team, month_use
from pipeline.teams.prices import Prices, SharedCost, Split, read_prices
from pipeline.teams.use import AMOUNTS, READ, added, use_of, utc_days
from quotas.groups import Group
from quotas.groups_file import Team
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import compacted_rows, write_compacted
from testkit.pipeline.local_session import compact_all, ingest_files
from testkit.pipeline.usage_lines import DAY, LONG_AFTER, line, place, row

MEMBERS = Members(
    (
        Team(Group("orders", users=("orders", "orders-*"), client_ids=("bait",)), "C-1", "Ann", 0),
        Team(Group("search", client_ids=("indexer-*",), addresses=("10.2.0.0/16",)), "C-2"),
        Team(Group("lab", users=("lab", "orders-lab"), client_ids=("indexer-*", "x"))),
    )
)
CLIENTS = [
    ("orders", "a", "orders"),
    ("orders-7", "indexer-1", "orders"),
    ("ann", "indexer-77", "search"),
    ("lab", "indexer-1", "lab"),
    ("", "x", "lab"),
    ("eve", "evil", ""),
    ("", "~other", ""),
]
MONTH = Fraction(720)
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/Los_Angeles")
GROUPS = """
[[groups]]
name = "orders"
users = ["orders"]
cost_center = "C-1"
owner = "Ann"
tier = 0

[[groups]]
name = "search"
client_ids = ["indexer-*"]
"""
PRICES = """
currency = "EUR"
[prices]
gb_in = 0.10
gb_out = 0.05
[cluster]
monthly_cost = 100
[[shared]]
name = "platform"
monthly_cost = 10
split = "even"
"""


@pytest.mark.parametrize(("user", "client_id", "team"), CLIENTS)
def test_a_client_belongs_to_the_team_of_its_user_and_then_to_that_of_its_client_id(
    user: str, client_id: str, team: str
) -> None:
    assert MEMBERS.team_of(user, client_id, "produce") == team


def test_a_client_cannot_choose_by_its_client_id_which_team_pays() -> None:
    assert MEMBERS.team_of("lab", "bait", "produce") == "lab"


def test_of_several_teams_that_list_the_same_user_the_first_in_the_file_answers() -> None:
    assert MEMBERS.team_of("orders-lab", "", "produce") == "orders"


def test_connections_belong_to_the_team_of_their_address() -> None:
    assert MEMBERS.team_of("", "10.2.3.4", "connect") == "search"
    assert MEMBERS.team_of("", "10.3.3.4", "connect") == ""
    assert MEMBERS.team_of("", "x", "connect") == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_sums_of_teams_are_those_of_the_records_to_the_byte(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    expected: dict[str, dict[tuple[str, str], int]] = {zone: {} for zone in ZONES}
    lines = []
    for seq in sorted(chance.sample(range(2 * 86_400, 4 * 86_400), 200)):  # from 2026-09-30 to 2026-10-01
        rows = []
        for user, client_id, team in chance.sample(CLIENTS, 4):
            for api, amount in (("produce", "bytes_in"), ("fetch", "bytes_out"), ("mutation", "mutations")):
                units = chance.randrange(1_000 if api == "mutation" else 1 << 52)
                of_bytes = {"bytes_in": 0, "bytes_out": 0, amount: units}
                of_bytes.pop("mutations", None)
                rows.append(row(client_id, units, user=user, api=api, node=chance.randrange(3), **of_bytes))
                for zone, sums in expected.items():
                    if datetime.datetime.fromtimestamp(DAY + seq, ZoneInfo(zone)).month == 9:
                        sums[team, amount] = sums.get((team, amount), 0) + units
        lines.append(line(seq, *rows))
    file = place(tmp_path / "in", "usage-a.jsonl.gz", *lines)
    ingest_files(str(tmp_path / "out"), tmp_path / "checkpoint", file)
    compact_all(str(tmp_path / "out"))

    for zone, sums in expected.items():
        use = month_use(str(tmp_path / "out"), "2026-09", ZoneInfo(zone), MEMBERS, LONG_AFTER, allow_gaps=True)

        found = {
            (team, name): amount
            for team, amounts in use.by_team(MEMBERS).items()
            for name, amount in amounts.items()
            if amount and name != "requests"
        }
        assert found == sums


@given(st.dates(datetime.date(1990, 1, 1), datetime.date(2037, 12, 30)), st.sampled_from([*ZONES, "America/Sao_Paulo",
       "Pacific/Apia", "Asia/Kathmandu", "Africa/Cairo", "Australia/Lord_Howe"]), st.integers(0, 86_399))  # fmt: skip
def test_each_second_belongs_to_the_day_that_a_calendar_there_shows(
    date: datetime.date, zone: str, second: int
) -> None:
    moment = datetime.datetime.combine(date, datetime.time(), datetime.UTC) + datetime.timedelta(seconds=second)
    row_of = {"date": date, "user": "u", "t": [second], "bytes_in": [7], "api": "produce"}
    batch = compacted_rows([row_of]).select(READ)

    (found,) = use_of([batch], MEMBERS, ZoneInfo(zone)).to_pylist()

    local = moment.astimezone(ZoneInfo(zone)).date()
    assert (found["day"], found["bytes_in"]) == (local, 7)
    assert date.isoformat() in utc_days(local, local, ZoneInfo(zone))


def test_sums_of_parts_are_the_sum_of_the_whole() -> None:
    rows = [
        {"user": user, "client_id": client_id, "t": [1, 2], "offered": [3.5, 4.0], "api": api}
        for user, client_id, _ in CLIENTS
        for api in ("request", "connect", "mutation")
    ]
    batch = compacted_rows(rows).select(READ)
    parts = [use_of([batch.slice(at, 2)], MEMBERS, ZoneInfo("UTC")) for at in range(0, batch.num_rows, 2)]

    whole = use_of([batch], MEMBERS, ZoneInfo("UTC"))

    assert added(pa.concat_tables(parts)).equals(whole)
    assert sum(whole.column("request_us").to_pylist()) == 7_500 * len(CLIENTS)
    assert sum(whole.column("connections").to_pylist()) == 8 * len(CLIENTS)


AMOUNT = st.integers(0, 10**15)
COST = st.decimals(0, 10**6, allow_nan=False, allow_infinity=False, places=4)


@given(
    st.lists(st.tuples(*[AMOUNT] * len(AMOUNTS)), min_size=1, max_size=8),
    COST,
    st.one_of(st.none(), COST),
    st.sampled_from(list(Split)),
    st.lists(st.tuples(COST, st.sampled_from([Split.WEIGHTED, Split.EVEN])), max_size=3),
)
def test_lines_and_columns_of_a_bill_add_up_to_the_hundredth(
    amounts: list[tuple[int, ...]],
    price: Decimal,
    cluster: Decimal | None,
    idle: Split,
    shared: list[tuple[Decimal, Split]],
) -> None:
    use = {f"t{at}": dict(zip(AMOUNTS, each, strict=True)) for at, each in enumerate(amounts)}
    costs = tuple(SharedCost(f"s{at}", cost, split) for at, (cost, split) in enumerate(shared))
    prices = Prices("EUR", {"gb_in": price, "request_hour": price}, cluster, idle, costs)

    bill = bill_of(use, prices, MONTH)

    cents = Decimal("0.01")
    for at, (cost, _) in enumerate(shared):
        assert sum(line.costs[f"s{at}"] for line in bill.lines) == cost.quantize(cents)
    exact = sum(Fraction(price) * each["bytes_in"] / 10**9 for each in use.values())
    assert sum(line.costs["gb_in"] for line in bill.lines) * 100 == round(exact * 100)
    assert all(cost >= 0 for line in bill.lines for cost in line.costs.values())
    assert bill.total == sum(sum(line.costs.values()) for line in bill.lines) + (bill.idle or 0)
    if cluster is not None:
        assert bill.total - bill.over == sum(
            (cost.quantize(cents) for cost in (cluster, *(cost for cost, _ in shared))), Decimal()
        )


def test_idle_cost_is_divided_in_proportion_to_use_or_in_equal_parts_or_not_at_all() -> None:
    nothing = dict.fromkeys(AMOUNTS, 0)
    use = {"a": {**nothing, "bytes_in": 3 * 10**9}, "b": {**nothing, "bytes_in": 10**9}, "": nothing}
    by_split = {
        split: bill_of(use, Prices("EUR", {"gb_in": Decimal(10)}, Decimal(100), split), MONTH) for split in Split
    }

    assert [line.total for line in by_split[Split.WEIGHTED].lines] == [75, 25, 0]
    assert [line.total for line in by_split[Split.EVEN].lines] == [50, 30, 20]
    assert [line.total for line in by_split[Split.SEPARATE].lines] == [30, 10, 0]
    assert [bill.idle for bill in by_split.values()] == [None, None, 60]
    dear = bill_of(use, Prices("EUR", {"gb_in": Decimal(50)}, Decimal(100), Split.EVEN), MONTH)
    assert (dear.over, dear.total) == (100, 200)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "currency: is not a text of 1 to 10 characters"),
        ("currency = 'EUR'\nprice = 1", "price: unknown key; known keys: currency, prices, cluster, shared"),
        ("currency = 'EUR'\n[prices]\ngb = 1", "prices.gb: unknown key; known keys: gb_in, gb_out, request_hour, "
         "partition_mutation, connection, stored_gb_month"),
        ("currency = 'EUR'\n[prices]\ngb_in = -1", "prices.gb_in: is not a number from 0 to 1000000000"),
        ("currency = 'EUR'\n[prices]\ngb_in = 1e40", "prices.gb_in: is not a number from 0 to 1000000000"),
        ("currency = 'EUR'\n[prices]\ngb_in = nan", "prices.gb_in: is not a number from 0 to 1000000000"),
        ("currency = 'EUR'\n[prices]\ngb_in = true", "prices.gb_in: is not a number"),
        ("currency = 'EUR'\n[cluster]\nidle = 'even'", "cluster.monthly_cost: required with idle, but missing"),
        ("currency = 'EUR'\n[cluster]\nmonthly_cost = 1\nidle = 'some'",
         "cluster.idle: is not one of weighted, even, "
         "separate"),
        ("currency = 'EUR'\n[[shared]]\nname = 'x'", "shared.0.monthly_cost: required, but missing"),
        ("currency = 'EUR'\n[[shared]]\nname = 'x'\nmonthly_cost = 1\nsplit = 'separate'",
         "shared.0.split: is not one "
         "of weighted, even"),
        ("currency = 'EUR'\n[[shared]]\nname = 'idle'\nmonthly_cost = 1", "shared.0.name: idle is another column "
         "already"),
        ("currency = ", "not TOML: Invalid value (at end of document)"),
    ],
)  # fmt: skip
def test_a_fault_in_the_prices_says_where(text: str, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_prices(text)
    assert str(caught.value) == fault


def test_a_fault_in_the_groups_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "groups.toml").write_text('[[groups]]\nname = "a"\n')
    with pytest.raises(ArgumentError, match=r"groups.toml: groups.0: has no members"):
        read_members(str(tmp_path / "groups.toml"))


@pytest.fixture(scope="module")
def november(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a month of three clients, which tests only read."""
    folder = tmp_path_factory.mktemp("november")
    rows = [
        {
            "date": datetime.date(2026, 11, day),
            "user": user,
            "client_id": client_id,
            "api": api,
            "t": [0, 86_399],
            "offered": [1e9 * (1 + (api == "fetch"))] * 2,
            "bytes_in": [10**9 * (api == "produce")] * 2,
            "bytes_out": [2 * 10**9 * (api == "fetch")] * 2,
        }
        for day in range(1, 31)
        for user, client_id in (("orders", ""), ("ann", "indexer-1"), ("eve", "=cmd"))
        for api in ("produce", "fetch")
    ]
    write_compacted(folder / "out", rows)
    write_client_tables(folder / "out")
    (folder / "groups.toml").write_text(GROUPS)
    (folder / "prices.toml").write_text(PRICES)
    return folder


LAST_NOON = Expectation(int(datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC).timestamp()))
"""When the last day of the month is not over yet."""


def run_cost(monkeypatch: pytest.MonkeyPatch, now: Expectation, november: Path, *more: str) -> int:
    monkeypatch.setattr("pipeline.jobs.cost.expectation_of", lambda _: now)
    words = ["cost", "--out", str(november / "out"), "--groups", str(november / "groups.toml")]
    return main([*words, "--month", "2026-11", *more])


@pytest.mark.slow
def test_the_job_writes_the_month_for_people_and_programs_and_again_the_same(
    november: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--prices", str(november / "prices.toml"), "--to-dir", str(tmp_path))

    assert run_cost(monkeypatch, LONG_AFTER, november, *more) == Exit.DONE

    folder = tmp_path
    with (folder / "cost.csv").open() as text:
        rows = list(csv.DictReader(text))
    # 60 GB in at 0.10, 120 GB out at 0.05, a third of the platform; the rest of the cluster is idle.
    assert [(row["team"], row["bytes_in"], row["total"]) for row in rows] == [
        ("orders", "60000000000", "15.34"),
        ("search", "60000000000", "15.33"),
        (NO_TEAM, "60000000000", "15.33"),
        ("(idle)", "0", "64.00"),
    ]
    assert sum(Decimal(row["total"]) for row in rows) == 110
    assert (rows[0]["cost_center"], rows[0]["tier"], rows[1]["tier"]) == ("C-1", "0", "")
    table = pq.read_table(folder / "cost.parquet")
    assert [str(each) for each in table.column("total").to_pylist()] == [row["total"] for row in rows]
    days = pq.read_table(folder / "days.parquet")
    assert (len(days), sum(days.column("bytes_out").to_pylist())) == (90, 360 * 10**9)
    page = (folder / "index.html").read_text()
    assert "all records are present" in page
    assert "110.00" in page
    said = capsys.readouterr().out
    assert f"{NO_TEAM}: user eve, client id =cmd: 180000000000 bytes" in said
    kept = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert not any(b"eve" in content or b"Ann" in content for content in kept.values())
    assert run_cost(monkeypatch, LONG_AFTER, november, *more) == Exit.DONE
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == kept


@pytest.mark.slow
def test_a_month_with_missing_days_is_not_complete_yet_and_says_which(
    november: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--to-dir", str(tmp_path))

    assert run_cost(monkeypatch, LAST_NOON, november, *more) == Exit.NOT_YET_COMPLETE
    assert "2026-11-30 is not compacted or not over yet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert run_cost(monkeypatch, LAST_NOON, november, *more, "--allow-gaps") == Exit.DONE
    assert "days of UTC that are missing: 2026-11-30" in (tmp_path / "index.html").read_text()


@pytest.mark.slow
def test_a_month_of_a_zone_needs_the_days_of_utc_around_it(november: Path) -> None:
    out = str(november / "out")
    with pytest.raises(NotYetCompleteError, match="2026-10-31 is not compacted"):
        month_use(out, "2026-11", ZoneInfo("Europe/Berlin"), MEMBERS, LONG_AFTER, allow_gaps=False)
    use = month_use(out, "2026-11", ZoneInfo("UTC"), MEMBERS, LONG_AFTER, allow_gaps=False)
    assert largest_of_no_team(out, use, MEMBERS) == [("eve", "=cmd", 180 * 10**9)]


@pytest.mark.parametrize(
    "words", [("--month", "2026-13"), ("--month", "november"), ("--month", "9999-12"), ("--zone", "Mars/Base")]
)
def test_a_month_and_a_zone_that_do_not_exist_are_wrong_arguments(
    november: Path, words: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cost(monkeypatch, LONG_AFTER, november, *words) == Exit.WRONG_ARGUMENTS
