"""The pipeline's plans and its quota client against a real Kafka, by the requests that a gateway answers too."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded_kafka.kafka import KafkaCluster
from pipeline.errors import Exit
from pipeline.plans.plan import Action
from quota_client.client import Counting, QuotaClient, Refusal, Setting
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.pipeline.test_plans import plan_of, run

pytestmark = pytest.mark.integration

RATE = QuotaKey.PRODUCER_BYTE_RATE


@pytest.fixture(autouse=True)
def no_quotas_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The broker is shared, and other tests expect it to have none."""
    yield
    if "kafka" in request.fixturenames:
        cluster: KafkaCluster = request.getfixturevalue("kafka")
        with QuotaClient(cluster.bootstrap) as client:
            client.alter([Setting(*name, None) for name in client.describe()], validate_only=False)
            eventually(lambda: not client.describe())


def test_quotas_are_set_listed_and_removed_entity_by_entity(kafka: KafkaCluster) -> None:
    pair = QuotaEntity(user="quota-client", client_id=DEFAULT)
    bad = QuotaEntity(client_id="quota-client-bad")
    rate, share = QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.REQUEST_PERCENTAGE
    with QuotaClient(kafka.bootstrap) as client:
        wanted = [Setting(pair, rate, 1000.0), Setting(pair, share, 12.5), Setting(bad, share, -1.0)]
        told = [Refusal(bad, 42, "Quota request_percentage must be greater than 0")]
        assert client.alter(wanted, validate_only=True) == told
        assert (pair, rate) not in client.describe()
        assert client.alter(wanted, validate_only=False) == told
        eventually(lambda: client.describe().get((pair, share)) == 12.5)
        assert client.describe()[pair, rate] == 1000.0
        assert client.alter([Setting(pair, rate, None)], validate_only=False) == []
        eventually(lambda: (pair, rate) not in client.describe())
        assert (pair, share) in client.describe()


def test_more_entities_than_one_request_carries_are_all_set(kafka: KafkaCluster) -> None:
    entities = [QuotaEntity(client_id=f"quota-client-many-{at}") for at in range(1100)]
    with QuotaClient(kafka.bootstrap) as client:
        wanted = [Setting(each, QuotaKey.CONSUMER_BYTE_RATE, 5.0) for each in entities]
        assert client.alter(wanted, validate_only=False) == []
        eventually(lambda: {(each.entity, each.key) for each in wanted} <= client.describe().keys())


def test_kafkas_brokers_are_told_from_a_gateway(kafka3: KafkaCluster, gateway3: GatewayProcess) -> None:
    with QuotaClient(kafka3.bootstrap) as client:
        assert client.counting() == Counting(3, True, (11, 1_000))
    with QuotaClient(str(gateway3.bootstrap)) as client:
        assert client.counting() == Counting(3, False, scope="gateway")


def test_nobody_there_is_an_error_that_names_the_address(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(plan_of().to_json())
    config = tmp_path / "client.properties"
    config.write_text("bootstrap_timeout_ms=500\n")
    command = [sys.executable, "-m", "pipeline.cli", "plan", "diff", plan, "--bootstrap", "127.0.0.1:1"]
    ended = subprocess.run(
        [*command, "--client-config", config], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "127.0.0.1:1: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_plan_is_applied_and_taken_back(
    kafka: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = (QuotaEntity(client_id=f"plan-jobs-{each}") for each in (1, 2, 3))
    with QuotaClient(kafka.bootstrap) as client:
        assert client.alter([Setting(one, RATE, 500.0)], validate_only=False) == []
        plan = tmp_path / "plan.json"
        plan.write_text(
            plan_of(
                (one, Action.SET, 1000.0, 500.0), (two, Action.SET, 2000.0, None), (three, Action.KEEP, 7.0, 7.0)
            ).to_json()
        )
        where = ("--bootstrap", kafka.bootstrap)
        assert run("apply", plan, "--validate-only", *where) == Exit.DONE
        assert "2 quotas would be set" in capsys.readouterr().out
        assert not (tmp_path / "plan.revert.json").exists()
        assert run("apply", plan, *where) == Exit.DONE
        ours = {name: value for name, value in client.describe().items() if "plan-jobs" in str(name[0])}
        assert ours == {(one, RATE): 1000.0, (two, RATE): 2000.0}
        assert run("apply", plan, *where) == Exit.NOTHING_TO_DO
        assert "as planned already" in capsys.readouterr().out
        revert = tmp_path / "plan.revert.json"
        assert json.loads(revert.read_text())["bootstrap"] == kafka.bootstrap
        assert run("revert", revert, *where) == Exit.DONE
        ours = {name: value for name, value in client.describe().items() if "plan-jobs" in str(name[0])}
        assert ours == {(one, RATE): 500.0}


def test_a_plan_for_a_team_is_applied_to_a_gateway_with_a_file_of_groups_and_taken_back(
    start_gateway: StartGateway, kafka: KafkaCluster, tmp_path: Path
) -> None:
    (tmp_path / "groups.toml").write_text('[[groups]]\nname = "orders"\nclient_ids = ["orders-*"]\nowner = "Ann"\n')
    tables = f"""
[groups_file]
path = "{tmp_path}/groups.toml"
[quota_admin]
authorize = "anyone"
"""
    gateway = start_gateway(kafka, GatewayOptions(tables=tables))
    team = QuotaEntity(group="orders")
    plan = tmp_path / "plan.json"
    plan.write_text(plan_of((team, Action.SET, 1_000_000.0, None)).to_json())
    where = ("--bootstrap", str(gateway.bootstrap))
    with QuotaClient(str(gateway.bootstrap)) as client:
        assert run("apply", plan, *where) == Exit.DONE
        assert client.describe() == {(team, RATE): 1_000_000.0}
        assert run("revert", tmp_path / "plan.revert.json", *where) == Exit.DONE
        assert client.describe() == {}
