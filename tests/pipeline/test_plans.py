"""A plan as text, what it changes, and plans applied one after the other."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli import main
from pipeline.errors import ArgumentError, Exit, JobError
from pipeline.jobs import plan as job
from pipeline.plans import steps
from pipeline.plans.changes import (
    Change,
    Difference,
    Revert,
    State,
    differences,
    for_a_person,
    last_changes,
    reverting,
    to_do,
)
from pipeline.plans.plan import Action, Basis, CapacityCheck, LeftOut, Plan, PlanEntry, PlanError
from pipeline.plans.steps import misfit
from pipeline.recommend.recommendation import ClientDay, ClientHistory, RecommendationSettings, recommend
from quota_client.client import Counting, Refusal, Setting
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi

ALICE = QuotaEntity(user="alice")
APP = QuotaEntity(client_id="app")
RATE = QuotaKey.PRODUCER_BYTE_RATE


def plan_of(*entries: tuple[QuotaEntity, Action, float, float | None]) -> Plan:
    return Plan(
        "2026-11-21T00:00:00Z",
        Basis("2026-11-14", "2026-11-20", 7, 0.9998, 0.01, 1.15, "deferral"),
        (CapacityCheck(QuotaKey.PRODUCER_BYTE_RATE, None, 9e8, 1.6e8, 5.6, True, ""),),
        tuple(
            PlanEntry(entity, RATE, action, value, old, value, value, 0.0, 7, 0.0, "because")
            for entity, action, value, old in entries
        ),
    )


@pytest.mark.parametrize(("now", "old", "state"), [
    (None, None, State.SET),
    (None, 500.0, State.SET),  # the records saw a default's value
    (500.0, 500.0, State.CHANGE),
    (1000.0, 500.0, State.SAME),
    (700.0, 500.0, State.DRIFT),
    (700.0, None, State.DRIFT),
])  # fmt: skip
def test_a_value_that_nothing_knows_is_a_drift(now: float | None, old: float | None, state: State) -> None:
    in_force = {} if now is None else {(ALICE, RATE): now}
    found = differences(plan_of((ALICE, Action.SET, 1000.0, old)), in_force)
    assert found == [Difference(ALICE, RATE, now, 1000.0, state)]


@pytest.mark.parametrize(("now", "state"), [
    (300.0, State.CHANGE),  # as the earlier plan left it
    (200.0, State.CHANGE),  # as it found it: the plan was taken back, or broke off
    (500.0, State.DRIFT),  # the records saw it: somebody else has set it since
    (1000.0, State.SAME),
    (None, State.SET),
])  # fmt: skip
def test_of_a_quota_that_earlier_plan_has_set_anything_else_is_drift(now: float | None, state: State) -> None:
    in_force = {} if now is None else {(ALICE, RATE): now}
    last = last_changes([Revert("2026-11-21T00:00:00Z", "", (Change(ALICE, RATE, 200.0, 300.0),))])
    (found,) = differences(plan_of((ALICE, Action.SET, 1000.0, 500.0)), in_force, last=last)
    assert found.state is state


def test_of_several_plans_the_latest_counts_and_reverting_goes_backwards() -> None:
    first = Revert("2026-11-14T00:00:00Z", "", (Change(ALICE, RATE, None, 1.0), Change(APP, RATE, None, 2.0)))
    second = Revert("2026-11-21T00:00:00Z", "", (Change(ALICE, RATE, 1.0, 3.0),))
    assert last_changes([second, first]) == {
        (ALICE, RATE): Change(ALICE, RATE, 1.0, 3.0),
        (APP, RATE): Change(APP, RATE, None, 2.0),
    }
    bob = QuotaEntity(user="bob")
    changes = (Change(ALICE, RATE, 1.0, 2.0), Change(APP, RATE, None, 3.0), Change(bob, RATE, 4.0, 5.0))
    in_force = {(ALICE, RATE): 2.0, (bob, RATE): 6.0}
    assert reverting(Revert("", "", changes), in_force) == [
        Difference(bob, RATE, 6.0, 4.0, State.DRIFT),
        Difference(APP, RATE, None, None, State.SAME),
        Difference(ALICE, RATE, 2.0, 1.0, State.CHANGE),
    ]


def test_what_a_plan_keeps_is_not_touched_and_a_drift_only_by_force() -> None:
    plan = plan_of((ALICE, Action.KEEP, 1000.0, 1000.0), (APP, Action.SET, 5.0, None))
    assert [each.entity for each in differences(plan, {})] == [APP]
    assert [each.entity for each in differences(plan, {}, keep_too=True)] == [ALICE, APP]
    found = [
        Difference(ALICE, RATE, 1.0, 1.0, State.SAME),
        Difference(ALICE, RATE, 1.0, 2.0, State.DRIFT),
        Difference(APP, RATE, None, 2.0, State.SET),
    ]
    assert to_do(found, force=False) == found[2:]
    assert to_do(found, force=True) == found[1:]


def test_revert_files_come_back_as_written_and_the_default_is_no_user_called_so() -> None:
    revert = Revert(
        "2026-11-21T00:00:00Z",
        "127.0.0.1:9092",
        (
            Change(ALICE, RATE, None, 10.0),
            Change(QuotaEntity(user='o"d,d\n', client_id=DEFAULT), QuotaKey.REQUEST_PERCENTAGE, 0.5, 200.0),
        ),
    )
    text = revert.to_json()
    json.loads(text)
    assert Revert.from_json(text) == revert
    assert Revert.from_json(Revert("", "", ()).to_json()).changes == ()
    users = [QuotaEntity(user="<default>"), QuotaEntity(user=DEFAULT)]
    written = plan_of(*((user, Action.SET, 5.0, None) for user in users))
    texts = [each["entity"] for each in json.loads(written.to_json())["entries"]]
    assert texts == [{"user": "<default>"}, {"user": None}]
    assert Plan.from_json(written.to_json()) == written
    assert [line.count('"entity"') for line in written.to_json().splitlines() if "entity" in line] == [1, 1]


@pytest.mark.parametrize(("text", "named"), [
    ("[", "JSON"),
    ("{}", "sluice-revert"),
    ('{"format": "sluice-revert", "version": 2}', "version"),
    ('{"format": "sluice-revert", "version": 1}', "changes"),
    ('{"format": "sluice-revert", "version": 1, "changes": [{}]}', r"changes\[0\]"),
    (
        '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, "key": "x"}]}',
        "'x' is not one of",
    ),
    (
        '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, '
        '"key": "request_percentage", "before": "1"}]}',
        "before",
    ),
    (
        '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, '
        '"key": "request_percentage", "before": 1}]}',
        r"changes\[0\]: after is missing",
    ),
    (
        '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"user": "a"}, '
        '"key": "request_percentage", "befor": 1, "after": 2}]}',
        r"changes\[0\]: unknown key 'befor'; known keys: entity, key, before, after",
    ),
    (
        '{"format": "sluice-revert", "version": 1, "changes": [{"entity": {"client_id": "a"}, '
        '"key": "request_percentage", "before": 1, "after": 2}]}',
        r"changes\[0\]: entity: 'client_id' is not one of client-id, user, ip, topic, group",
    ),
    ('{"format": "sluice-revert", "version": 1, "changes": [], "more": 1}', "revert file: unknown key 'more'"),
])  # fmt: skip
def test_another_file_is_refused_with_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(PlanError, match=named):
        Revert.from_json(text)


# -- the file --------------------------------------------------------------------------------------------------------
names = st.one_of(st.just(DEFAULT), st.text(min_size=1, max_size=20))
entities = st.builds(QuotaEntity, user=names, client_id=st.one_of(st.none(), names))


@given(st.lists(entities, max_size=5), st.floats(1, 2**53).map(round))
def test_a_plan_comes_back_as_it_was_written(listed: list[QuotaEntity], value: int) -> None:
    written = plan_of(*((each, Action.SET, float(value), None) for each in listed))
    assert Plan.from_json(written.to_json()) == written


@pytest.mark.parametrize(("of_entry", "change", "fault"), [
    (False, {"format": "other"}, "format"), (False, {"version": 2}, "version"),
    (False, {"entries": None}, "entries"), (False, {"made_at": 5}, "made_at"),
    (False, {"basis": {}}, "basis: first_day is missing"),
    (True, {"key": "bytes"}, r"entries\[0\]: key 'bytes'"), (True, {"value": -1}, r"entries\[0\]"),
    (True, {"value": "many"}, r"entries\[0\]: value"),
    (True, {"entity": {"users": "a"}}, "'users' is not one of"),
    (True, {"entity": {"user": 7}}, "text or null"), (True, {"action": "drop"}, "action 'drop'"),
    (True, {"value": float("inf")}, "value is a finite number"),
    (True, {"lowest": 1}, r"entries\[0\]: unknown key 'lowest'; known keys: entity, key, action, value, "),
    (True, {"entity": {"client_id": "a"}}, r"entries\[0\]: entity: 'client_id' is not one of client-id, user, ip"),
    (False, {"scope": "fleet"}, "plan: unknown key 'scope'; known keys: format, version, made_at, basis, "),
    (False, {"basis": {"window-num": 1}}, "basis: unknown key 'window-num'; known keys: first_day, "),
    (False, {"capacity": [{"limits": 1}]}, r"capacity\[0\]: unknown key 'limits'; known keys: key, limit, "),
    (False, {"left_out": [{"gw": "a"}]}, r"left_out\[0\]: unknown key 'gw'; known keys: gateway, date, reason, "),
    (False, {"too_little": [{"name": "a"}]}, r"too_little\[0\]: unknown key 'name'; known keys: client, reason"),
])  # fmt: skip
def test_what_is_no_plan_is_refused_with_its_fault(of_entry: bool, change: dict[str, object], fault: str) -> None:
    data = json.loads(plan_of((ALICE, Action.SET, 5.0, None)).to_json())
    (data["entries"][0] if of_entry else data).update(change)
    with pytest.raises(PlanError, match=fault):
        Plan.from_json(json.dumps(data))
    with pytest.raises(PlanError, match="this is none"):
        Plan.from_json("key: value")


# -- one plan after the other ----------------------------------------------------------------------------------------
def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    return job.run(parser.parse_args([str(each) for each in arguments]))


def test_a_plan_is_shown_with_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    entity = QuotaEntity(user="alice")
    plan.write_text(plan_of((entity, Action.SET, 1000.0, None), (entity, Action.KEEP, 5.0, 5.0)).to_json())
    assert run("show", plan) == Exit.DONE
    shown = capsys.readouterr().out
    assert "user=alice" in shown
    assert "because" in shown
    assert "1 of 2 entries; --all shows also 1 quota that the plan leaves as they are" in shown


def test_a_plan_that_is_not_there_is_named_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert main(["plan", "show", str(path)]) == Exit.FAILED
    assert capsys.readouterr().err == f"sluice-pipeline plan: {path}: No such file or directory\n"


OTHERS = QuotaEntity(client_id=DEFAULT)
WHERE = ("--bootstrap", "gateway:9092")


class Cluster:
    """Quotas as Describe and Alter show them; in place of the client that asks for them."""

    def __init__(self) -> None:
        self.quotas: dict[tuple[QuotaEntity, QuotaKey], float] = {}
        self.there = Counting(3, False)

    def __call__(self, *_: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def counting(self) -> Counting:
        return self.there

    def describe(self) -> dict[tuple[QuotaEntity, QuotaKey], float]:
        return dict(self.quotas)

    def alter(self, settings: Sequence[Setting], *, validate_only: bool) -> list[Refusal]:
        for each in () if validate_only else settings:
            self.quotas.pop((each.entity, each.key), None)
            if each.value is not None:
                self.quotas[each.entity, each.key] = each.value
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster()
    monkeypatch.setattr(steps, "QuotaClient", found)
    return found


def recommended(folder: Path, week: int, **rates: float) -> Path:
    """What `recommend --default-plus-overrides 1` leaves below OUT/results/plan, by the clients' required rates."""
    histories = [
        ClientHistory("", name, UsageApi.PRODUCE, RATE, (ClientDay("2026-11-20", rate, 100, 0, None),))
        for name, rate in rates.items()
    ]
    basis = plan_of().basis
    plan = recommend(histories, RecommendationSettings(overrides=1), basis, made_at=f"2026-11-{week:02}")
    path = folder / f"run=2026-11-{week:02}" / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_text(plan.to_json())
    return path


def test_plans_follow_each_other_without_force_while_none_is_changed_by_hand(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second, third = (
        recommended(tmp_path, week, big=9_000 * week, small=100 * week, tiny=10) for week in (1, 8, 15)
    )
    assert run("apply", first, *WHERE) == Exit.DONE
    assert cluster.quotas[OTHERS, RATE] == 125
    assert run("apply", second, *WHERE) == Exit.DONE
    assert cluster.quotas == {(QuotaEntity(client_id="big"), RATE): 90_000, (OTHERS, RATE): 1_000}
    assert run("revert", second.with_suffix(".revert.json"), *WHERE) == Exit.DONE
    assert cluster.quotas[OTHERS, RATE] == 125
    assert run("apply", third, *WHERE) == Exit.DONE
    assert cluster.quotas[OTHERS, RATE] == 1_875


def test_a_plan_for_all_brokers_together_is_refused_where_each_counts_by_itself(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # It was applied, and let three times as much through.
    plan = recommended(tmp_path, 1, big=9_000)
    cluster.there = Counting(3, True, (11, 1_000))
    assert run("apply", plan, *WHERE) == Exit.REFUSED
    assert "would let 3 times the plan's quotas through" in capsys.readouterr().err
    assert cluster.quotas == {}
    assert run("diff", plan, *WHERE) == Exit.DONE
    assert "not to be applied there: each of the 3 brokers" in capsys.readouterr().out
    cluster.there = Counting(3, None)
    assert run("apply", plan, *WHERE) == Exit.REFUSED
    assert "add --counts fleet, --counts gateway or --counts broker" in capsys.readouterr().err
    assert run("apply", plan, "--counts", "gateway", *WHERE) == Exit.DONE


@pytest.mark.parametrize(("scope", "there", "counts", "fits"), [
    ("gateway", Counting(3, False), None, True), ("gateway", Counting(3, False), "broker", False),
    ("gateway", Counting(1, True), None, True), ("broker", Counting(3, True), None, True),
    ("broker", Counting(3, False), None, True), ("broker", Counting(3, False), "gateway", False),
    ("broker", Counting(3, None), "broker", True), ("fleet", Counting(3, False), None, True),
    ("fleet", Counting(3, True), None, False), ("fleet", Counting(1, True), None, True),
    ("fleet", Counting(3, None), "fleet", True), ("fleet", Counting(3, None), None, False),
    ("gateway", Counting(3, False, scope="gateway"), None, True),
    ("gateway", Counting(3, False, scope="broker"), None, False),
])  # fmt: skip
def test_what_one_counter_covers_has_to_be_the_same(
    scope: str, there: Counting, counts: str | None, fits: bool
) -> None:
    plan = plan_of((ALICE, Action.SET, 5.0, None))
    plan = replace(plan, basis=replace(plan.basis, scope=scope))
    assert (misfit(plan, there, counts) == "") == fits
    # Of mutations there is one counter, that of the controller.
    (entry,) = plan.entries
    mutations = replace(entry, key=QuotaKey.CONTROLLER_MUTATION_RATE)
    assert misfit(replace(plan, entries=(mutations,)), there, counts) == ""


@pytest.mark.parametrize("brokers", [1, 3])
@pytest.mark.parametrize("key", [RATE, QuotaKey.CONTROLLER_MUTATION_RATE])
def test_a_plan_of_a_fleet_is_not_for_gateways_that_count_by_themselves(brokers: int, key: QuotaKey) -> None:
    plan = plan_of((ALICE, Action.SET, 5.0, None))
    plan = replace(plan, entries=(replace(plan.entries[0], key=key),))
    fleet, gateway = (replace(plan, basis=replace(plan.basis, scope=scope)) for scope in ("fleet", "gateway"))
    shared, alone = (Counting(brokers, False, scope=scope) for scope in ("fleet", "gateway"))
    assert misfit(fleet, shared, None) == misfit(gateway, alone, None) == ""
    assert "would let all of the plan's quotas through: recommend with --scope gateway" in misfit(fleet, alone, None)
    assert "the gateways there share their counters" in misfit(gateway, shared, None)
    assert "recommend with --scope fleet" in misfit(gateway, shared, None)
    # An operator who knows better says so.
    assert misfit(fleet, alone, "fleet") == misfit(gateway, shared, "gateway") == ""


def test_a_default_changed_between_plans_is_not_written_over(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (recommended(tmp_path, week, big=9_000, small=100 * week) for week in (1, 8))
    assert run("apply", first, *WHERE) == Exit.DONE
    cluster.quotas[OTHERS, RATE] = 777
    assert run("apply", second, *WHERE) == Exit.REFUSED
    assert "drift" in capsys.readouterr().out
    assert cluster.quotas[OTHERS, RATE] == 777
    assert run("apply", second, "--force", *WHERE) == Exit.DONE
    assert cluster.quotas[OTHERS, RATE] == 1_000


def test_what_a_plan_has_set_in_another_cluster_is_not_ours_in_this_one(cluster: Cluster, tmp_path: Path) -> None:
    first, second = (recommended(tmp_path, week, big=9_000, small=100 * week) for week in (1, 8))
    assert run("apply", first, "--bootstrap", "elsewhere:9092") == Exit.DONE
    assert run("apply", second, *WHERE) == Exit.REFUSED
    assert run("apply", second, "--previous", first.with_suffix(".revert.json"), *WHERE) == Exit.DONE


def test_what_was_changed_again_is_left_and_the_rest_undone(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = recommended(tmp_path, 1, big=9_000, small=100)
    big = QuotaEntity(client_id="big")
    assert run("apply", first, *WHERE) == Exit.DONE
    cluster.quotas[big, RATE] = 77_777
    assert run("revert", first.with_suffix(".revert.json"), *WHERE) == Exit.REFUSED
    said = capsys.readouterr()
    assert "1 quota taken back" in said.out
    assert "drift" in said.out
    assert "1 quota changed again since then, left unchanged" in said.err
    assert cluster.quotas == {(big, RATE): 77_777}
    assert run("revert", first.with_suffix(".revert.json"), "--force", *WHERE) == Exit.DONE
    assert cluster.quotas == {}


def test_what_was_done_in_another_cluster_is_not_taken_back_in_this_one(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = recommended(tmp_path, 1, big=9_000, small=100)
    assert run("apply", first, *WHERE) == Exit.DONE
    there = dict(cluster.quotas)
    reverting = ("revert", first.with_suffix(".revert.json"), "--bootstrap", "elsewhere:9092")
    assert run(*reverting) == Exit.REFUSED
    assert "was done at gateway:9092, not at elsewhere:9092" in capsys.readouterr().err
    assert cluster.quotas == there
    assert run(*reverting, "--elsewhere") == Exit.DONE
    assert cluster.quotas == {}


@pytest.mark.parametrize(("left_out", "reasons"), [("2026-11-20", 1), ("2026-11-19", 0), ("", 1)])
def test_a_plan_is_for_a_person_if_part_of_its_newest_day_is_left_out(left_out: str, reasons: int) -> None:
    left = LeftOut("a", left_out, "is 50.0% complete", 3)
    found = for_a_person(replace(plan_of(), left_out=(left,)), (), 4.0)
    assert found == [left.text()] * reasons


@pytest.mark.parametrize(("now", "wanted", "fits"), [
    (100.0, 400.0, True), (100.0, 25.0, True), (100.0, 500.0, False), (100.0, 20.0, False), (None, 1e9, True),
    (0.0, 5.0, False),
    (333.0, 84.0, True),  # a quarter, rounded up
    (0.013, 0.06, True),  # four times, rounded up to hundredths
])  # fmt: skip
def test_a_plan_is_for_a_person_if_a_quota_would_change_by_more_than_the_limit(
    now: float | None, wanted: float, fits: bool
) -> None:
    found = for_a_person(plan_of(), [Difference(APP, RATE, now, wanted, State.CHANGE)], 4.0)
    assert found == [] if fits else "client-id=app producer_byte_rate: " in found[0]


def test_an_unattended_plan_is_held_back_with_its_reasons_and_applied_by_a_person(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    team = QuotaEntity(group="orders")
    first, second = (tmp_path / f"{name}.json" for name in ("first", "second"))
    first.write_text(plan_of((team, Action.SET, 100.0, None)).to_json())
    # The records of a team have no earlier value, so nothing has limited the change.
    second.write_text(plan_of((team, Action.SET, 500.0, None)).to_json())
    assert run("apply", first, "--unattended", *WHERE) == Exit.DONE
    assert run("apply", second, "--unattended", *WHERE) == Exit.REFUSED
    assert (
        "second.json is for a person to decide: group=orders producer_byte_rate: 100 to 500 is"
        in capsys.readouterr().err
    )
    assert cluster.quotas == {(team, RATE): 100}
    assert not second.with_suffix(".revert.json").exists()
    assert run("apply", second, "--unattended", "--largest-change", "5", *WHERE) == Exit.DONE
    assert run("apply", first, *WHERE) == Exit.REFUSED  # its revert file is there


@pytest.mark.parametrize(
    "words", [("--largest-change", "2"), ("--unattended", "--largest-change", "1"), ("--unattended", "--force")]
)
def test_limits_for_plans_without_a_person_have_to_make_sense(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentError):
        run("apply", recommended(tmp_path, 1, big=9_000), *words, *WHERE)


def test_a_revert_file_that_is_none_is_named(cluster: Cluster, tmp_path: Path) -> None:
    plan = recommended(tmp_path, 1, big=9_000)
    (tmp_path / "run=0").mkdir()
    (tmp_path / "run=0" / "plan.revert.json").write_text("{}")
    with pytest.raises(JobError, match=r"run=0/plan\.revert\.json: a revert file is a JSON object"):
        run("diff", plan, *WHERE)
