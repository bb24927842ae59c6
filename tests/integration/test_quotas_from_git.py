"""A file of quotas, applied by AlterClientQuotas to a real Kafka, and to a gateway in front of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from embedded_kafka.kafka import KafkaCluster
from gateway.cli.main import main
from quota_client.client import QuotaClient, Setting
from quotas.entities import DEFAULT, QuotaEntity, QuotaKey
from tests.integration.conftest import StartGateway, eventually
from tests.integration.gateway_process import GatewayOptions

pytestmark = pytest.mark.integration

TEXT = """\
scope: [user=git-*, client-id=git-*]
quotas:
- user: git-a
  default-client-id: true
  producer_byte_rate: 1.5MiB
  request_percentage: 33.3%
- client-id: git-b
  controller_mutation_rate: 0.5/s
"""
PAIR = QuotaEntity(user="git-a", client_id=DEFAULT)
STRAY = QuotaEntity(user="git-stray")
OTHERS = QuotaEntity(user="not-git")
RATE = QuotaKey.PRODUCER_BYTE_RATE


@pytest.fixture(params=["kafka", "gateway"])
def server(request: pytest.FixtureRequest, kafka: KafkaCluster, start_gateway: StartGateway) -> Iterator[str]:
    address = kafka.bootstrap
    if request.param == "gateway":
        options = GatewayOptions(tables='[quota_admin]\nauthorize = "anyone"\n')
        address = str(start_gateway(kafka, options).bootstrap)
    yield address
    with QuotaClient(address) as client:
        client.alter([Setting(*name, None) for name in client.describe()], validate_only=False)
        eventually(lambda: not client.describe())


def test_a_file_is_applied_and_drift_is_found(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quotas.yaml"
    file.write_text(TEXT)

    def run(command: str, *options: str) -> int:
        return main(["quotas", command, str(file), "--bootstrap-server", server, "--prune", *options])

    with QuotaClient(server) as client:
        assert client.alter([Setting(OTHERS, RATE, 5.0)], validate_only=False) == []
        assert run("diff") == 2
        assert run("apply", "--yes") == 0
        assert run("diff") == 0
        assert client.describe() == {
            (PAIR, RATE): 1572864.0,
            (PAIR, QuotaKey.REQUEST_PERCENTAGE): 33.3,
            (QuotaEntity(client_id="git-b"), QuotaKey.CONTROLLER_MUTATION_RATE): 0.5,
            (OTHERS, RATE): 5.0,
        }
        client.alter([Setting(STRAY, RATE, 7.0), Setting(PAIR, RATE, 1.0)], validate_only=False)
        eventually(lambda: (STRAY, RATE) in client.describe())
        capsys.readouterr()
        assert run("diff") == 2
        assert capsys.readouterr().out == (
            "~ user=git-a,client-id=<default> producer_byte_rate 1 -> 1536KiB\n"
            "- user=git-stray producer_byte_rate 7\n"
            "2 to change; nothing was changed\n"
        )
        assert run("apply", "--yes") == 0
        assert run("diff") == 0
        assert client.describe()[OTHERS, RATE] == 5.0
