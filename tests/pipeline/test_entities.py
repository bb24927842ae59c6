"""Plans for users, client ids, prefixes and teams."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.errors import Exit
from pipeline.plans.plan import Plan, TooLittle
from testkit.pipeline.client_days import write_client_tables
from testkit.pipeline.compacted_days import write_compacted
from testkit.pipeline.usage_lines import LONG_AFTER

GROUPS = """
[[groups]]
name = "orders"
client_ids = ["orders-*"]

[[groups]]
name = "idle"
users = ["nobody-is-called-so"]
"""
DAYS = [datetime.date(2026, 11, day) for day in (1, 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days on which pods of one application take turns, each with a name of its own, which never comes back."""
    folder = tmp_path_factory.mktemp("entities")
    rows: list[dict[str, Any]] = [
        {
            "date": date,
            "user": f"team-{pod % 2}",
            "client_id": f"orders-{date.day}-{pod}",
            "api": "produce",
            "t": list(range(3_600 * pod, 3_600 * pod + 600)),
            "offered": [1e6] * 600,
        }
        for date in DAYS
        for pod in range(6)
    ]
    rows.append(
        {
            "date": DAYS[1],
            "user": "eve",
            "client_id": "tool",
            "api": "produce",
            "t": [*range(40)],
            "offered": [1e6] * 40,
        }
    )
    write_compacted(folder / "out", rows, gateways={"": 1.0})
    write_client_tables(folder / "out")
    (folder / "groups.toml").write_text(GROUPS)
    return folder


def plan_for(folder: Path, to: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Plan:
    monkeypatch.setattr("pipeline.jobs.recommend.expectation_of", lambda _: LONG_AFTER)
    file = to / "plan.json"
    job = ["recommend", "--out", str(folder / "out"), "--history", "2", "--plan", str(file), *words]
    assert main(job) == Exit.DONE
    return Plan.from_json(file.read_bytes())


def quotas_of(plan: Plan) -> dict[tuple[str, str], float]:
    return {(str(entry.entity), str(entry.key)): entry.value for entry in plan.entries}


@pytest.mark.slow
def test_a_team_gets_one_quota_of_its_group_for_what_its_pods_used_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_for(folder, tmp_path, monkeypatch, "--for", "team", "--groups", str(folder / "groups.toml"))

    ((name, key),) = quotas_of(plan)
    assert (name, key) == ("group=orders", "producer_byte_rate")
    (entry,) = plan.entries
    # Six pods take turns: each alone would get about as much, all of them six times.
    assert 0.9e6 < entry.value < 1.3e6
    assert entry.expected_throttled is not None
    assert entry.expected_throttled <= 0.01
    assert entry.days == 2
    capsys.readouterr()
    assert main(["plan", "show", str(tmp_path / "plan.json")]) == Exit.DONE
    assert "group=orders" in capsys.readouterr().out


def test_a_team_gets_a_quota_for_what_its_pods_mutate_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "date": date,
            "user": f"team-{pod % 2}",
            "client_id": f"orders-{pod}",
            "api": "mutation",
            "t": list(range(0, 600, 10)),
            "offered": [20.0] * 60,
            "requests": [1] * 60,
            "e_ms": [1_000 * second for second in range(0, 600, 10)],
            "e_units": [20.0] * 60,
        }
        for date in DAYS
        for pod in range(4)
    ]
    write_compacted(tmp_path / "out", rows, gateways={"": 1.0})
    write_client_tables(tmp_path / "out")
    (tmp_path / "groups.toml").write_text(GROUPS)
    plan = plan_for(tmp_path, tmp_path, monkeypatch, "--for", "team", "--groups", str(tmp_path / "groups.toml"))
    ((place, value),) = quotas_of(plan).items()
    assert place == ("group=orders", "controller_mutation_rate")
    assert 4 < value < 12  # each of them needs two partitions a second


def test_pods_that_never_come_back_get_no_quota_of_their_own_but_their_prefix_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(folder, tmp_path, monkeypatch, "--for", "prefix", "--groups", str(folder / "groups.toml"))

    of_bytes = {name for name, key in quotas_of(plan) if key == "producer_byte_rate"}
    assert of_bytes == {"user=team-0,client-id=orders-*", "user=team-1,client-id=orders-*", "user=eve,client-id=tool"}
    assert all(entry.entity.client_id in ("orders-*", "tool") for entry in plan.entries)
    whole = plan_for(folder, tmp_path, monkeypatch)
    assert len(whole.entries) == 13


@pytest.mark.parametrize(
    ("entities", "names"),
    [
        ("user", {"user=team-0", "user=team-1", "user=eve"}),
        ("client-id", {"client-id=tool", *(f"client-id=orders-{day}-{pod}" for day in (1, 2) for pod in range(6))}),
    ],
)
def test_users_and_client_ids_get_quotas_for_all_their_clients(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entities: str, names: set[str]
) -> None:
    plan = plan_for(folder, tmp_path, monkeypatch, "--for", entities)

    assert {name for name, _ in quotas_of(plan)} == names


@pytest.mark.parametrize(
    ("words", "name"), [((), "user=u,client-id=short"), (("--for", "client-id"), "client-id=short")]
)
def test_a_client_that_was_seen_for_seconds_only_is_named_and_gets_no_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], name: str
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "date": date,
            "client_id": client_id,
            "t": [*range(seconds)],
            "offered": [1e6] * seconds,
            "quota": [9e6] * seconds,
        }
        for date in DAYS
        for client_id, seconds in (("long", 600), *((("short", 20),) if date == DAYS[1] else ()))
    ]
    write_compacted(tmp_path / "out", rows, gateways={"": 1.0})
    write_client_tables(tmp_path / "out")
    plan = plan_for(tmp_path, tmp_path, monkeypatch, *words)
    assert {name.rpartition("=")[2] for name, _ in quotas_of(plan)} == {"long"}
    assert plan.too_little == (TooLittle(f"produce of {name}", f"seen for only 20 s, on {DAYS[1]}"),)


@pytest.mark.slow
def test_a_day_with_a_gap_is_left_out_for_all_teams(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"date": date, "client_id": "orders-1", "api": "produce", "t": list(range(600)), "offered": [size] * 600}
        for date, size in zip(DAYS, (1e6, 9e6), strict=True)
    ]
    write_compacted(tmp_path / "out", rows[:1], gateways={"": 1.0})
    write_compacted(tmp_path / "out", rows[1:], completeness=0.5, gateways={"": 0.5})
    write_client_tables(tmp_path / "out")
    (tmp_path / "groups.toml").write_text(GROUPS)
    words = ("--for", "team", "--groups", str(tmp_path / "groups.toml"))

    plan = plan_for(tmp_path, tmp_path, monkeypatch, *words)
    with_gaps = plan_for(tmp_path, tmp_path, monkeypatch, *words, "--allow-gaps")

    (entry,), (other,) = plan.entries, with_gaps.entries
    assert entry.value < 2e6 < 8e6 < other.value
    assert [(each.date, each.clients) for each in plan.left_out] == [("2026-11-02", 1)]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--for", "team"), "--for team and --for prefix need --groups FILE, and nothing else does"),
        (("--groups", "groups.toml"), "--for team and --for prefix need --groups FILE, and nothing else does"),
        (("--for", "team", "--groups", "g", "--default-plus-overrides", "3"),
         "--default-plus-overrides: groups have no default"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], fault: str
) -> None:
    assert main(["recommend", "--out", str(tmp_path), *words]) == Exit.WRONG_ARGUMENTS
    assert fault in capsys.readouterr().err


def test_a_plan_of_groups_is_read_as_it_was_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(folder, tmp_path, monkeypatch, "--for", "team", "--groups", str(folder / "groups.toml"))

    assert Plan.from_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["entries"][0]["entity"] == {"group": "orders"}
