from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from pipeline import plan_jobs
from pipeline.advice import AdviceSettings, ClientHistory, DayNeed, advise
from pipeline.errors import JobError
from pipeline.plan import Action
from pipeline.plan_jobs import NOT_DONE, OK, read_properties
from pipeline.quota_client import Refusal, Setting
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from quotas.usage_record import UsageApi
from tests.pipeline.test_plan_changes import plan_of


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    plan_jobs.add_arguments(parser)
    return plan_jobs.run(parser.parse_args([str(each) for each in arguments]))


def test_an_unreadable_plan_is_named(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    with pytest.raises(JobError, match=r"plan\.json: a plan is a JSON object"):
        run("show", plan)


def test_a_plan_is_shown_with_its_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    entity = QuotaEntity(user="alice")
    plan.write_text(plan_of((entity, Action.SET, 1000.0, None), (entity, Action.KEEP, 5.0, 5.0)).to_json())
    assert run("show", plan) == OK
    shown = capsys.readouterr().out
    assert "user=alice" in shown
    assert "because" in shown
    assert "1 of 2 entries" in shown


def test_connection_properties_are_read_with_their_types(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# how\nsecurity.protocol = SSL\nssl_check_hostname=false\nrequest_timeout_ms=500\n\n"
        "sasl_plain_username=a=b\nsasl_plain_password=12345\n"
    )
    assert read_properties(file) == {
        "security_protocol": "SSL",
        "ssl_check_hostname": False,
        "request_timeout_ms": 500,
        "sasl_plain_username": "a=b",
        "sasl_plain_password": "12345",
    }


def test_a_faulty_line_of_connection_properties_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("my secret\n")
    with pytest.raises(ValueError, match="line 1: expected name=value") as caught:
        read_properties(file)
    assert "secret" not in str(caught.value)


# -- one plan after the other ------------------------------------------------------------------------------------

RATE = QuotaKey.PRODUCER_BYTE_RATE
OTHERS = QuotaEntity(client_id=DEFAULT)
WHERE = ("--bootstrap", "gateway:9092")


class Cluster:
    """Quotas as Describe and Alter show them; in place of the client that asks for them."""

    def __init__(self) -> None:
        self.quotas: dict[tuple[QuotaEntity, QuotaKey], float] = {}

    def __call__(self, *_: Any) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

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
    monkeypatch.setattr(plan_jobs, "QuotaClient", found)
    return found


def recommended(folder: Path, week: int, **needs: float) -> Path:
    """What `recommend --default-plus-overrides 1` leaves below OUT/results/plan, of clients with these needs."""
    histories = [
        ClientHistory("", name, UsageApi.PRODUCE, RATE, (DayNeed("2026-11-20", need, 100, 0, None),))
        for name, need in needs.items()
    ]
    basis = plan_of().basis
    plan = advise(histories, AdviceSettings(overrides=1), basis, made_at=f"2026-11-{week:02}")
    path = folder / f"run=2026-11-{week:02}" / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_text(plan.to_json())
    return path


def test_plans_follow_each_other_without_force_while_nobody_else_changes_a_quota(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second, third = (
        recommended(tmp_path, week, big=9_000 * week, small=100 * week, tiny=10) for week in (1, 8, 15)
    )
    assert run("apply", first, *WHERE) == OK
    assert cluster.quotas[OTHERS, RATE] == 125
    assert run("apply", second, *WHERE) == OK
    assert cluster.quotas == {(QuotaEntity(client_id="big"), RATE): 90_000, (OTHERS, RATE): 1_000}
    assert run("revert", second.with_suffix(".revert.json"), *WHERE) == OK
    assert cluster.quotas[OTHERS, RATE] == 125
    assert run("apply", third, *WHERE) == OK
    assert cluster.quotas[OTHERS, RATE] == 1_875


def test_a_default_that_somebody_else_has_changed_between_two_plans_is_not_written_over(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (recommended(tmp_path, week, big=9_000, small=100 * week) for week in (1, 8))
    assert run("apply", first, *WHERE) == OK
    cluster.quotas[OTHERS, RATE] = 777
    assert run("apply", second, *WHERE) == NOT_DONE
    assert "drift" in capsys.readouterr().out
    assert cluster.quotas[OTHERS, RATE] == 777
    assert run("apply", second, "--force", *WHERE) == OK
    assert cluster.quotas[OTHERS, RATE] == 1_000


def test_what_a_plan_has_set_in_another_cluster_is_not_ours_in_this_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, second = (recommended(tmp_path, week, big=9_000, small=100 * week) for week in (1, 8))
    assert run("apply", first, "--bootstrap", "elsewhere:9092") == OK
    assert run("apply", second, *WHERE) == NOT_DONE
    assert run("apply", second, "--previous", first.with_suffix(".revert.json"), *WHERE) == OK


def test_what_was_changed_again_is_left_and_all_else_is_taken_back(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = recommended(tmp_path, 1, big=9_000, small=100)
    big = QuotaEntity(client_id="big")
    assert run("apply", first, *WHERE) == OK
    cluster.quotas[big, RATE] = 77_777
    assert run("revert", first.with_suffix(".revert.json"), *WHERE) == NOT_DONE
    told = capsys.readouterr()
    assert "1 quotas taken back" in told.out
    assert "drift" in told.out
    assert "1 quotas were changed again since and stay as they are" in told.err
    assert cluster.quotas == {(big, RATE): 77_777}
    assert run("revert", first.with_suffix(".revert.json"), "--force", *WHERE) == OK
    assert cluster.quotas == {}


def test_a_revert_file_that_is_none_is_named(cluster: Cluster, tmp_path: Path) -> None:
    plan = recommended(tmp_path, 1, big=9_000)
    (tmp_path / "run=0").mkdir()
    (tmp_path / "run=0" / "plan.revert.json").write_text("{}")
    with pytest.raises(JobError, match=r"run=0/plan\.revert\.json: a revert file is a JSON object"):
        run("diff", plan, *WHERE)
