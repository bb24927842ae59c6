"""Stored bytes: what teams pay for is what samples say, to the byte, however many gateways have taken them."""

import csv
import datetime
import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from pipeline.cli import main
from pipeline.client_tables.tables import client_use_table, clients_table
from pipeline.erase.client import Client
from pipeline.errors import Exit
from pipeline.ingest.lines import Line, Torn, read_line, texts_of
from pipeline.storage.compacted_days import compacted_table, published_days
from pipeline.storage.raw_table import raw_table
from pipeline.teams.members import Members
from pipeline.teams.month import MonthUse, month_use
from quotas.groups import Group
from quotas.groups_file import Team
from testkit.pipeline.local_session import LocalSession, compact_all, ingest_files
from testkit.pipeline.usage_lines import BOOT, DAY, LONG_AFTER, line, place, row

HOUR_S = 3_600
MEMBERS = Members(
    (
        Team(Group("orders", users=("o",)), topics=("orders-*", "common")),
        Team(Group("search", users=("s",)), topics=("index", "common", "orders-index")),
        Team(Group("lab", users=("l",))),
    )
)
TOPICS = ("orders-1", "orders-index", "common", "index", "__consumer_offsets", "indexes")
TEAM_OF = dict(zip(TOPICS, ("orders", "orders", "orders", "search", "", ""), strict=True))
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata", "America/Los_Angeles")


def sample(
    at_s: int, topics: dict[str, int], *, node: int = 1, cluster: str = "c", parts: int = 1
) -> list[list[Any]]:
    """The parts of a sample, the last one with its total."""
    names = list(topics.items())
    size = -(-len(names) // parts)
    found: list[list[Any]] = [
        [cluster, node, at_s, None, [list(each) for each in names[at : at + size]]]
        for at in range(0, len(names), size or 1)
    ]
    found = found or [[cluster, node, at_s, None, []]]
    found[-1][3] = sum(topics.values())
    return found


def use_of(folder: Path, lines: list[bytes], zone: str = "UTC", month: str = "2026-09") -> MonthUse:
    file = place(folder / "in", "usage-a.jsonl.gz", *lines)
    ingest_files(str(folder / "out"), folder / "checkpoint", file)
    compact_all(str(folder / "out"))
    return month_use(str(folder / "out"), month, ZoneInfo(zone), MEMBERS, LONG_AFTER, allow_gaps=True)


def stored(use: MonthUse) -> dict[str, int]:
    return {
        team: amounts["stored_byte_hours"]
        for team, amounts in use.by_team(MEMBERS).items()
        if amounts["stored_byte_hours"]
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_sums_of_teams_are_those_of_the_samples_to_the_byte(tmp_path: Path, seed: int) -> None:
    """Two gateways sample three brokers of two clusters on four days, here and there twice an hour, or not at all."""
    chance = random.Random(seed)
    lines: list[bytes] = []
    whole: dict[tuple[str, int, int], list[tuple[int, str, dict[str, int]]]] = {}
    for gw in ("a", "b"):
        seq = 0
        for hour in range(48, 96):  # from 2026-09-30 to 2026-10-01
            moments = sorted(chance.sample(range(HOUR_S - 60), chance.choice([0, 1, 1, 2])))
            for moment in moments:
                at_s = DAY + hour * HOUR_S + moment
                for cluster, node in (("c", 1), ("c", 2), ("d", 1)):
                    topics = {name: chance.randrange(2**44) for name in TOPICS if chance.random() < 0.8}
                    for part in sample(at_s, topics, node=node, cluster=cluster, parts=chance.randrange(1, 4)):
                        clients = row("app", chance.randrange(100), user="o")
                        lines.append(line(seq, clients, gw=gw, ts=at_s + seq % 30, stored=[part]))
                        seq += 1
                    whole.setdefault((cluster, node, hour), []).append((at_s, gw, topics))
    expected: dict[str, Counter[str]] = {zone: Counter() for zone in ZONES}
    for (_, _, hour), samples in whole.items():
        _, _, topics = min(samples, key=lambda each: each[:2])
        for zone, sums in expected.items():
            begins = datetime.datetime.fromtimestamp(DAY + hour * HOUR_S, ZoneInfo(zone))
            if begins.month == 9:
                for name, size in topics.items():
                    sums[TEAM_OF[name]] += size

    use_of(tmp_path, lines)

    for zone, sums in expected.items():
        out = str(tmp_path / "out")
        use = month_use(out, "2026-09", ZoneInfo(zone), MEMBERS, LONG_AFTER, allow_gaps=True)
        assert stored(use) == dict(sums)
        assert use.stored_torn == 0


def test_of_samples_that_lack_a_part_the_largest_counts_and_a_whole_one_before_it(tmp_path: Path) -> None:
    big = {"orders-1": 100, "index": 900}
    first, second = (DAY + 5, DAY + HOUR_S + 5)
    lines = [
        line(5, stored=sample(first, big, parts=2)[1:]),  # whose first part is lost
        line(6, stored=sample(first + 1, {"orders-1": 7})),
        line(HOUR_S + 5, ts=second, stored=sample(second, big, parts=2)[:1]),
        line(HOUR_S + 6, ts=second + 1, stored=sample(second + 1, big, parts=2)[1:]),
    ]

    use = use_of(tmp_path, lines)

    assert stored(use) == {"orders": 7, "search": 900}
    assert (use.stored_hours, use.stored_torn) == (2, 1)


def test_an_empty_broker_has_a_sample_and_an_hour_without_one_costs_nothing(tmp_path: Path) -> None:
    use = use_of(tmp_path, [line(5, stored=sample(DAY + 5, {}))])

    assert (stored(use), use.stored_hours, use.stored_torn) == ({}, 1, 0)


@pytest.mark.slow
def test_what_brokers_store_is_no_client_of_any_other_table(tmp_path: Path) -> None:
    lines = [line(5, row("app", 10, user="o"), stored=sample(DAY + 5, {"app": 3, "orders-1": 4}))]
    use_of(tmp_path / "with", lines)
    use_of(tmp_path / "without", [line(5, row("app", 10, user="o"))])

    def tables(folder: Path) -> list[list[dict[str, Any]]]:
        out = str(folder / "out")
        found = []
        for table in (clients_table(out), client_use_table(out)):
            batches = [batch for file in table.read().files for batch in table.rows_of(file)]
            found.append([each for batch in batches for each in batch.to_pylist()])
        return found

    assert tables(tmp_path / "with") == tables(tmp_path / "without")
    (day,) = published_days(str(tmp_path / "with" / "out"))
    assert (day.rows, day.several_brokers) == (4, False)


@pytest.mark.slow
def test_a_client_that_is_called_as_a_topic_is_erased_and_the_topic_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.spark.session.open_session", lambda *_, **__: LocalSession())
    file = place(
        tmp_path / "usage",
        "usage-a-1-0.jsonl.gz",
        line(5, row("index", 10, user="o"), row("app", 5), stored=sample(DAY + 5, {"index": 3})),
    )
    out = str(tmp_path / "out")
    ingest_files(out, tmp_path / "checkpoint", file)
    compact_all(out)
    before = month_use(out, "2026-09", ZoneInfo("UTC"), MEMBERS, LONG_AFTER, allow_gaps=True)

    words = ["erase", "--out", out, "--usage", str(tmp_path / "usage"), "--client-id", "index", "--yes"]
    assert main(words) == Exit.DONE

    compact_all(out)
    after = month_use(out, "2026-09", ZoneInfo("UTC"), MEMBERS, LONG_AFTER, allow_gaps=True)
    assert stored(after) == stored(before) == {"search": 3}
    client = Client.named(user=None, client_id="index", ip=None)
    for table in (raw_table(out), compacted_table(out)):
        for each in table.read().files:
            for batch in table.rows_of(each, ["user", "client_id", "api"]):
                assert not any(client.rows(batch).to_pylist())
    left = read_line(next(iter(lines_of(file))), 0)
    assert isinstance(left, Line)
    assert ([each[2] for each in left.rows], left.stored[0][4]) == (["app"], [["index", 3]])


def lines_of(file: Path) -> list[bytes]:
    return [text for text in texts_of(file.read_bytes()) if isinstance(text, bytes)]


@pytest.mark.parametrize(
    "stored",
    [
        7,
        [7],
        [["c", 1, 5, None]],
        [[1, 1, 5, None, []]],
        [["c", "1", 5, None, []]],
        [["c", 1, 5.5, None, []]],
        [["c", 1, 5, -1, []]],
        [["c", 1, 5, 2**53 + 1, []]],
        [["c", 1, 5, True, []]],
        [["c", 1, 5, None, [["a"]]]],
        [["c", 1, 5, None, [["", 1]]]],
        [["c", 1, 5, None, [["a", -1]]]],
        [["c", 1, 5, None, [["a", 1.5]]]],
    ],
)
def test_a_sample_of_a_wrong_shape_is_quarantined_with_its_line(stored: Any) -> None:
    read = read_line(line(0, stored=stored), 0)

    assert isinstance(read, Torn)
    assert read.reason == "stored is not a list of samples of brokers"


def test_a_newer_gateway_may_say_more_of_a_sample() -> None:
    (part,) = sample(DAY, {"a": 1})
    read = read_line(line(0, stored=[[*part, "new"]]), 0)

    assert isinstance(read, Line)
    assert read.stored[0][:5] == part


@pytest.mark.slow
def test_a_gigabyte_that_is_there_all_month_costs_what_a_gb_month_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = int(datetime.datetime(2026, 10, 1, tzinfo=ZoneInfo("Europe/Berlin")).timestamp())
    hours = 31 * 24 + 1  # clocks go back in October
    lines = []
    for hour in range(-3, hours + 3):
        at_s = first + hour * HOUR_S + 7
        stored = [
            part for node in (1, 2, 3) for part in sample(at_s, {"orders-1": 10**9, "x": 500 * 10**6}, node=node)
        ]
        lines.append(line(hour + 3, ts=at_s, boot=BOOT, stored=stored))
    file = place(tmp_path / "in", "usage-a.jsonl.gz", *lines)
    out = str(tmp_path / "out")
    ingest_files(out, tmp_path / "checkpoint", file)
    compact_all(out)
    (tmp_path / "groups.toml").write_text('[[groups]]\nname = "orders"\nusers = ["o"]\ntopics = ["orders-*"]\n')
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[prices]\nstored_gb_month = 0.1\n')
    monkeypatch.setattr("pipeline.jobs.cost.expectation_of", lambda _: LONG_AFTER)

    words = ["cost", "--out", out, "--groups", str(tmp_path / "groups.toml"), "--month", "2026-10"]
    more = ["--prices", str(tmp_path / "prices.toml"), "--to-dir", str(tmp_path / "cost"), "--zone", "Europe/Berlin"]
    assert main([*words, *more]) == Exit.DONE

    with (tmp_path / "cost" / "cost.csv").open() as text:
        rows = list(csv.DictReader(text))
    assert [(each["team"], each["stored_byte_hours"], each["cost_stored_gb_month"]) for each in rows] == [
        ("orders", str(3 * 10**9 * hours), "0.30"),
        ("(no team)", str(3 * 500 * 10**6 * hours), "0.15"),
    ]
    page = (tmp_path / "cost" / "index.html").read_text()
    assert "745 of 745 hours have a sample" in page
    assert "3.000" in page
    said = capsys.readouterr().out
    assert "no stored bytes" not in said
    assert "(no team): topic x: 1500000000 bytes stored" in said
    assert "topic orders-1" not in said


@pytest.mark.slow
def test_a_price_without_any_sample_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use = use_of(tmp_path, [line(5, row())])
    assert (use.stored_hours, use.hours) == (0, Fraction(720))
    (tmp_path / "groups.toml").write_text('[[groups]]\nname = "orders"\nusers = ["o"]\n')
    (tmp_path / "prices.toml").write_text('currency = "EUR"\n[prices]\nstored_gb_month = 0.1\n')
    monkeypatch.setattr("pipeline.jobs.cost.expectation_of", lambda _: LONG_AFTER)

    words = ["cost", "--out", str(tmp_path / "out"), "--groups", str(tmp_path / "groups.toml"), "--month", "2026-09"]
    more = ["--prices", str(tmp_path / "prices.toml"), "--to-dir", str(tmp_path / "cost"), "--allow-gaps"]
    assert main([*words, *more]) == Exit.DONE

    assert "stored_gb_month has a price, and the records have no stored bytes" in capsys.readouterr().out
