"""SQL views: sums are those of the records, to the byte, in DuckDB and in Spark; and the notebook that reads them."""

import datetime
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import duckdb
import pytest

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.report.views import Engine, statements
from pipeline.teams.members import NO_TEAM, read_members
from pipeline.teams.month import month_use
from testkit.pipeline.compacted_days import write_compacted
from testkit.pipeline.usage_lines import LONG_AFTER

NOTEBOOK: Final = Path(__file__).parents[2] / "docs/how-to/usage.ipynb"
GROUPS: Final = r"""
[[groups]]
name = "orders"
users = ["orders", "a'; drop view x; --\\"]
owner = "Ann \\ O'Hara"
cost_center = "C-1"

[[groups]]
name = "search"
client_ids = ["indexer-*", "odd\u0000\n"]
addresses = ["10.2.0.0/16"]
"""
CLIENTS: Final = [
    ("orders", "indexer-1"),
    ("a'; drop view x; --\\", "%"),
    ("", "indexer-7"),
    ("eve", "odd\0\n"),
    ("", "10.2.0.1"),
    ("", "~other"),
]
SUMS: Final = ("bytes_in", "bytes_out", "request_us", "mutations", "connections", "requests")
Query = Callable[[str], list[tuple[Any, ...]]]


def day_rows(chance: random.Random, day: int) -> list[dict[str, Any]]:
    """Compacted rows of all clients and APIs at two gateways."""
    rows = []
    for user, client_id in CLIENTS:
        for at, api in enumerate(("produce", "fetch", "request", "mutation") * 2):
            times = sorted(chance.sample(range(86_400), 5))
            admitted = [chance.randrange(10**6) for _ in times]
            row = {
                "date": datetime.date(2026, 11, day),
                "gw": f"gateway-{at // 4}",
                "user": user,
                "client_id": client_id,
                "api": api,
                "t": times,
                "offered": [float(each) for each in admitted],
                "admitted": [each / 1000 if api == "request" else float(each) for each in admitted],
            }
            most = {"requests": 9, "bytes_in": 1 << 52, "bytes_out": 1 << 52, "delayed": 9, "throttle_ms": 999}
            rows.append(row | {name: [chance.randrange(below) for _ in times] for name, below in most.items()})
    return rows


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Of three days of November; the third of the month has none."""
    chance = random.Random(7)
    found = [row for day in (1, 2, 4) for row in day_rows(chance, day)]
    others = {"date": datetime.date(2026, 11, 4), "gw": "gateway-0", "user": ""}
    connects = {"api": "connect", "client_id": "10.2.0.1", "t": [3, 86_399], "offered": [2.0, 3.0]}
    stored = {"api": "stored", "client_id": "indexer-1", "t": [0], "offered": [1e12]}
    return [*found, *({**others, **each, "admitted": each["offered"]} for each in (connects, stored))]


@pytest.fixture(scope="module")
def folder(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline's folder and a file of groups, which tests only read. Its name has signs of patterns."""
    folder = tmp_path_factory.mktemp("views") / "it's {a,b} [c] *"
    write_compacted(folder / "out", [row for row in rows if row["date"].day < 4])
    write_compacted(folder / "out", [row for row in rows if row["date"].day == 4], completeness=0.75)
    (folder / "groups.toml").write_text(GROUPS)
    return folder


def views_of(folder: Path, engine: Engine) -> list[str]:
    members = read_members(str(folder / "groups.toml"))
    return statements(str(folder / "out"), engine, LONG_AFTER, members)


def team_sums(folder: Path) -> set[tuple[Any, ...]]:
    """Team, day and sums, as the job `cost` has them."""
    members = read_members(str(folder / "groups.toml"))
    use = month_use(str(folder / "out"), "2026-11", ZoneInfo("UTC"), members, LONG_AFTER, allow_gaps=True)
    found = [(row["team"] or NO_TEAM, row["day"], *(row[name] for name in SUMS)) for row in use.rows.to_pylist()]
    # A team may have stored bytes alone.
    return {each for each in found if any(each[2:])}


def check(query: Query, folder: Path, rows: list[dict[str, Any]]) -> None:
    """The views have the sums of the records of each hour, and those of the job `cost` of each team."""
    names = ("requests", "bytes_in", "bytes_out", "delayed", "throttle_ms")
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        for at, second in enumerate(row["t"]):
            hour = (row["date"], second // 3600, row["user"], row["client_id"], row["api"])
            mine = sums.setdefault(hour, [0] * len(names))
            for place, name in enumerate(names):
                mine[place] += row[name][at] if name in row else name == "requests"
    expected = {(*hour, *mine) for hour, mine in sums.items() if hour[-1] != "stored"}

    by_hour = query(f"SELECT date, hour, user_name, client_id, api, {', '.join(names)} FROM usage_by_hour")
    by_team = query(f"SELECT team, date, {', '.join(SUMS)} FROM usage_by_team")

    assert len(by_hour) == len(expected)
    assert set(by_hour) == expected
    assert len(by_team) == 9
    assert set(by_team) == team_sums(folder)
    assert set(query("SELECT DISTINCT team, owner, cost_center FROM usage_by_team")) == {
        ("orders", r"Ann \ O'Hara", "C-1"),
        ("search", "", ""),
        (NO_TEAM, None, None),
    }
    assert query("SELECT * FROM completeness ORDER BY date") == [
        (datetime.date(2026, 11, day), share, False) for day, share in ((1, 1.0), (2, 1.0), (3, 0.0), (4, 0.75))
    ]


@pytest.mark.slow
def test_the_views_of_duckdb_have_the_sums_of_the_records(folder: Path, rows: list[dict[str, Any]]) -> None:
    with duckdb.connect() as connection:
        for text in views_of(folder, Engine.DUCKDB):
            connection.execute(text)
        check(lambda sql: connection.sql(sql).fetchall(), folder, rows)


@pytest.mark.spark
def test_the_views_of_spark_have_the_sums_of_the_records(
    spark: Any, folder: Path, rows: list[dict[str, Any]]
) -> None:
    for text in views_of(folder, Engine.SPARK):
        spark.sql(text)
    check(lambda sql: [tuple(row) for row in spark.sql(sql).collect()], folder, rows)


@pytest.mark.parametrize("engine", Engine)
def test_a_name_that_a_client_chose_brings_no_control_characters_to_the_terminal(
    folder: Path, engine: Engine
) -> None:
    assert all(line.isprintable() for text in views_of(folder, engine) for line in text.split("\n"))


def test_without_groups_and_with_groups_of_no_client_there_are_views(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "views",
        "--engine",
        "duckdb",
        "--out",
        str(folder / "out"),
        "--from",
        "2026-11-02",
        "--to",
        "2026-11-03",
    ]
    (tmp_path / "groups.toml").write_text("")

    assert main(words) == Exit.DONE
    alone = capsys.readouterr().out
    assert main([*words, "--groups", str(tmp_path / "groups.toml")]) == Exit.DONE
    with_groups = capsys.readouterr().out

    assert with_groups.startswith(alone.rstrip("\n"))
    with duckdb.connect() as connection:
        connection.execute(with_groups)
        assert connection.sql("SELECT DISTINCT date FROM usage_by_day").fetchall() == [(datetime.date(2026, 11, 2),)]
        assert connection.sql("SELECT DISTINCT team FROM usage_by_team").fetchall() == [(NO_TEAM,)]
        assert connection.sql("SELECT completeness FROM completeness ORDER BY date").fetchall() == [(1.0,), (0.0,)]


def test_nothing_compacted_is_not_complete_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["views", "--engine", "spark", "--out", str(tmp_path)]) == Exit.NOT_YET_COMPLETE
    assert "no compacted day" in capsys.readouterr().err


@pytest.mark.slow
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = tmp_path / "sluice-pipeline"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pipeline "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[2]))
    monkeypatch.setenv("SLUICE_OUT", str(folder / "out"))
    monkeypatch.setenv("SLUICE_GROUPS", str(folder / "groups.toml"))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    names: dict[str, Any] = {}

    for cell in code:
        exec("".join(cell["source"]), names)

    with names["usage"]:
        sums: Counter[str] = Counter()
        for team, _, bytes_in, *_ in team_sums(folder):
            sums[team] += bytes_in
        assert {team: bytes_in for team, _, bytes_in, _ in names["teams"].fetchall()} == sums
        assert [row[1] for row in names["incomplete"].fetchall()] == [0.0, 0.75]
        assert len(names["busiest"].fetchall()) == len(names["throttled"].fetchall()) == 10
    assert "O'Hara" in capsys.readouterr().out
