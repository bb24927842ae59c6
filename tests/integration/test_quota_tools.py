"""Stock tools and libraries set, list and remove quotas through the gateway, and what they set takes effect at once.

kafka-python has the messages and no calls; aiokafka can only list; librdkafka, and so confluent-kafka, knows nothing
of client quotas at all.
"""

from collections.abc import Iterator
from typing import Final

import aiokafka.admin
import pytest
from aiokafka.protocol.admin import DescribeClientQuotasRequest as AioDescribe

from embedded_kafka.kafka import KafkaCluster
from embedded_kafka.tools import run_tool
from testkit.wire_client import WireClient
from tests.integration.conftest import StartGateway
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.java_programs import run_java
from tests.integration.quota_sides import QuotaSide

pytestmark = pytest.mark.integration

RATE: Final = "producer_byte_rate"
TOO_MANY: Final = 89


@pytest.fixture(scope="module")
def gateway(start_gateway: StartGateway, kafka: KafkaCluster) -> GatewayProcess:
    """One whose clients may all change quotas, of names that end in a star too."""
    tables = '[quota_admin]\nauthorize = "anyone"\n[client_ids]\nprefixes = true\n'
    return start_gateway(kafka, GatewayOptions(tables=tables))


@pytest.fixture
def side(gateway: GatewayProcess) -> Iterator[QuotaSide]:
    """The gateway's quotas; none are set, before and after."""
    with WireClient(gateway.bootstrap) as client:
        side = QuotaSide(client, "gateway")
        assert side.everything() == {}
        yield side
        side.clear()


def configs(gateway: GatewayProcess, *arguments: str) -> str:
    """What kafka-configs prints."""
    done = run_tool(
        "org.apache.kafka.tools.ConfigCommand", ["--bootstrap-server", str(gateway.bootstrap), *arguments]
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_kafka_configs_sets_lists_and_removes_quotas(gateway: GatewayProcess, side: QuotaSide) -> None:
    pair = ["--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default"]
    said = configs(gateway, *pair, "--alter", "--add-config", f"{RATE}=1024,request_percentage=50")
    assert "Completed updating" in said
    configs(
        gateway,
        "--entity-type",
        "ips",
        "--entity-name",
        "192.0.2.1",
        "--alter",
        "--add-config",
        "connection_creation_rate=9",
    )
    assert side.everything() == {
        (("client-id", None), ("user", "alice")): {RATE: 1024.0, "request_percentage": 50.0},
        (("ip", "192.0.2.1"),): {"connection_creation_rate": 9.0},
    }
    listed = configs(gateway, *pair, "--describe")
    assert "Quota configs for user-principal 'alice', the default client-id are" in listed
    assert f"{RATE}=1024.0" in listed
    assert "connection_creation_rate=9.0" in configs(gateway, "--entity-type", "ips", "--describe")
    configs(gateway, *pair, "--alter", "--delete-config", RATE)
    assert side.everything()[(("client-id", None), ("user", "alice"))] == {"request_percentage": 50.0}


def test_kafka_configs_on_users_reaches_the_brokers_scram_credentials_too(
    gateway: GatewayProcess, side: QuotaSide, kafka: KafkaCluster
) -> None:
    user = ["--entity-type", "users", "--entity-name", "scram-user"]
    configs(gateway, *user, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=4096,password=x]")
    side.alter(({"user": "scram-user"}, {RATE: 2048.0}))
    try:
        listed = configs(gateway, *user, "--describe")
        assert f"{RATE}=2048.0" in listed
        assert "SCRAM credential configs for user-principal 'scram-user' are SCRAM-SHA-256=iterations=4096" in listed
        with WireClient(kafka.brokers[1]) as direct:
            assert (("user", "scram-user"),) not in QuotaSide(direct, "kafka").everything()
            credentials = direct.ask("DescribeUserScramCredentials", 0, users=[{"name": "scram-user"}]).body
            assert [result.error_code for result in credentials.results] == [0]
    finally:
        configs(gateway, *user, "--alter", "--delete-config", "SCRAM-SHA-256")


def test_the_java_admin_sets_lists_validates_and_removes_quotas(gateway: GatewayProcess, side: QuotaSide) -> None:
    done = run_java("ClientQuotas", [str(gateway.bootstrap)])
    assert (done.returncode, done.stderr) == (0, "")
    everything = (
        "{{client-id=null}={request_percentage=12.5}, {ip=192.0.2.7}={connection_creation_rate=7.0}, "
        "{user=java-user}={producer_byte_rate=1000.0}}"
    )
    assert done.stdout.splitlines() == [
        f"set {everything}",
        "refused Quota producer_byte_rate must be greater than 0",
        f"validated {everything}",
        "removed {}",
    ]
    assert side.everything() == {}


async def test_aiokafka_lists_quotas(gateway: GatewayProcess, side: QuotaSide) -> None:
    side.alter(({"user": "aio"}, {RATE: 256.0}))
    admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=str(gateway.bootstrap))
    await admin.start()
    try:
        answer = await admin._send_request(AioDescribe(components=[("user", 0, "aio")], strict=True))
        assert answer.entries == [([("user", "aio")], [(RATE, 256.0)])]
    finally:
        await admin.close()


def create_topics(client: WireClient, name: str, partitions: int) -> tuple[int, int]:
    """Error code and throttle time."""
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    body = client.ask("CreateTopics", 7, topics=[topic], timeout_ms=30_000, validate_only=False).body
    return body.topics[0].error_code, body.throttle_time_ms


def test_a_quota_set_over_the_wire_holds_from_the_next_request_on_and_its_debt_stays(
    gateway: GatewayProcess, side: QuotaSide
) -> None:
    entity = {"client-id": "live-effect"}
    topics = [f"live-effect-{at}" for at in range(6)]

    def create(at: int, partitions: int = 1) -> tuple[int, int]:
        # On a connection of its own each: the one before is muted.
        with WireClient(gateway.bootstrap, client_id="live-effect") as client:
            return create_topics(client, topics[at], partitions)

    try:
        assert create(0, 30) == (0, 0)
        assert side.alter((entity, {"controller_mutation_rate": 1.0}))[0][0] == 0
        code, throttle_ms = create(1, 40)
        assert code == 0, "a full bucket of eleven takes one request, however large"
        assert throttle_ms == 0
        code, throttle_ms = create(2)
        assert code == TOO_MANY
        assert 10_000 < throttle_ms <= 29_000
        side.alter((entity, {"controller_mutation_rate": 10.0}))
        code, raised_ms = create(3)
        assert code == TOO_MANY
        assert raised_ms < throttle_ms / 9, "the debt stays, and is worked off at the new rate"
        side.alter((entity, {"controller_mutation_rate": None}))
        assert create(4) == (0, 0)
        side.alter((entity, {"controller_mutation_rate": 0.1}))
        code, _ = create(5)
        assert code == TOO_MANY, "its samples outlived the quota"
    finally:
        with WireClient(gateway.bootstrap) as client:
            client.ask("DeleteTopics", 6, topics=[{"name": name} for name in topics], timeout_ms=30_000)


def test_a_prefix_is_one_budget_for_all_client_ids_that_begin_so(gateway: GatewayProcess, side: QuotaSide) -> None:
    topics = [f"team-budget-{at}" for at in range(3)]
    assert side.alter(({"client-id": "team-a-*"}, {"controller_mutation_rate": 1.0}))[0][0] == 0
    told = []
    for at, client_id in enumerate(("team-a-1", "team-a-2", "team-b-1")):
        with WireClient(gateway.bootstrap, client_id=client_id) as client:
            told.append(create_topics(client, topics[at], 20 if at == 0 else 1)[0])
    with WireClient(gateway.bootstrap) as client:
        client.ask("DeleteTopics", 6, topics=[{"name": name} for name in topics], timeout_ms=30_000)
    assert told == [0, TOO_MANY, 0]
    series = {"client_id": "team-a-*", "rule": "client"}
    assert gateway.metric("gateway_controller_mutation_limit", **series) == 1.0
