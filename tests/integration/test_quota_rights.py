"""A real Kafka with ACLs decides who may see and change quotas at the gateway (`authorize = "ask_cluster"`).

The gateway's own user has no right there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kafka
import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from kafka.protocol.admin import IncrementalAlterConfigsRequest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from testkit.loopback import own_host
from testkit.secure_kafka import PASSWORDS, SecureKafka
from testkit.tap import Tap
from tests.integration.conftest import eventually
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import own_user
from tests.integration.test_stored_bytes import WITHIN_S, options, parts, samples

pytestmark = pytest.mark.integration

HOST: Final = own_host(77, 3)
RATE: Final = "producer_byte_rate"
NOT_AUTHORISED: Final = 31


@pytest.fixture(scope="module")
def guarded() -> Iterator[SecureKafka]:
    """A broker on which alice may change and see configs of the cluster, and bob only see them."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with SecureKafka(host=HOST, properties=properties) as secure:
        for name, operation in (
            ("alice", AclOperation.ALTER_CONFIGS),
            ("alice", AclOperation.DESCRIBE_CONFIGS),
            ("bob", AclOperation.DESCRIBE_CONFIGS),
        ):
            secure.allow(name, operation, ResourceType.BROKER, "kafka-cluster")
        yield secure


@pytest.fixture(scope="module")
def gateway(guarded: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One that asks the cluster, for all but an admin of its own."""
    options = GatewayOptions(
        upstream=own_user(guarded),
        listener='security_protocol = "SASL_PLAINTEXT"',
        tables='[quota_admin]\nauthorize = "ask_cluster"\nadmins = ["User:gateway"]\n',
    )
    directory = tmp_path_factory.mktemp("rights")
    gateway = GatewayProcess(directory, guarded.addresses("SASL").values(), tap, options)
    gateway.start()
    yield gateway
    gateway.stop()


class Admin(kafka.KafkaAdminClient):  # type: ignore[misc]
    """kafka-python's, with the two calls that it has messages for."""

    def __init__(self, bootstrap: str, user: str) -> None:
        super().__init__(
            bootstrap_servers=bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=user,
            sasl_plain_password=PASSWORDS[user],
        )

    def alter(self, *names: str, value: float) -> list[int]:
        """Set a quota of these users; error codes in the order of the answer."""
        entry = AlterClientQuotasRequest.EntryData
        entries = [
            entry(
                entity=[entry.EntityData(entity_type="user", entity_name=name)],
                ops=[entry.OpData(key=RATE, value=value, remove=False)],
            )
            for name in names
        ]
        answer = self._manager.run(self._send, AlterClientQuotasRequest(entries=entries, validate_only=False))
        return [entry.error_code for entry in answer.entries]

    def describe(self) -> tuple[int, set[str] | None]:
        """Error code, and who has quotas."""
        answer = self._manager.run(self._send, DescribeClientQuotasRequest(components=[], strict=False))
        if answer.entries is None:
            return answer.error_code, None
        return answer.error_code, {part.entity_name for entry in answer.entries for part in entry.entity}

    async def _send(self, request: Any) -> Any:
        return await self._manager.send(request)


def limit(gateway: GatewayProcess, user: str, *brokers: str) -> list[int]:
    """Set a limit of connections on each of these brokers; error codes in the order of the answer."""
    request = IncrementalAlterConfigsRequest
    setting = request.AlterConfigsResource
    admin = Admin(str(gateway.bootstrap), user)
    try:
        resources = [
            setting(
                resource_type=4,
                resource_name=broker,
                configs=[setting.AlterableConfig(name="max.connections", config_operation=0, value=value)],
            )
            for broker, value in zip(brokers, ("901", "902"), strict=False)
        ]
        answer = admin._manager.run(admin._send, request(resources=resources, validate_only=False))
        return [each.error_code for each in answer.responses]
    finally:
        admin.close()


@pytest.mark.parametrize("brokers", [["1"], [""], ["77"], ["1", "1"], ["1", "77"]])
def test_g13_a_request_that_brokers_find_fault_with_first_gives_nobody_the_right(
    gateway: GatewayProcess, brokers: list[str]
) -> None:
    # A broker says INVALID_REQUEST of another broker's id, and of one that stands twice, before it looks at ACLs.
    assert limit(gateway, "bob", *brokers) == [NOT_AUTHORISED] * len(brokers)
    eventually(lambda: limit(gateway, "alice", *brokers) == [0] * len(brokers))


def test_g13_the_clusters_acls_decide_who_changes_and_sees_quotas(gateway: GatewayProcess) -> None:
    admins = {name: Admin(str(gateway.bootstrap), name) for name in ("alice", "bob", "gateway")}
    try:
        # ACLs reach the broker a moment after they were made.
        eventually(lambda: admins["alice"].alter("someone", value=5.0) == [0])
        assert admins["bob"].alter("a", "b", value=9.0) == [NOT_AUTHORISED] * 2
        assert admins["alice"].describe() == (0, {"someone"})
        assert admins["bob"].describe() == (0, {"someone"})
        # An admin of the gateway's, of whom the cluster is not asked: it would say no.
        assert admins["gateway"].alter("other", value=6.0) == [0]
        assert admins["gateway"].describe() == (0, {"someone", "other"})
    finally:
        for admin in admins.values():
            admin.close()
    log = gateway.log_file.read_text()
    changed = [line for line in log.splitlines() if "event=quota_changed" in line]
    assert any("principal=alice" in line and 'entity="user=someone"' in line for line in changed)
    assert any("principal=gateway" in line for line in changed)
    refused = [line for line in log.splitlines() if "event=quota_change_refused" in line]
    assert all("principal=bob" in line and "new=9.0" in line for line in refused[-2:])
    labels = {"api": "alter_client_quotas", "outcome": "refused"}
    assert (gateway.metric("gateway_quota_admin_requests_total", **labels) or 0) >= 1


def test_a_fleet_that_may_not_read_its_topic_says_which_right_is_missing(
    guarded: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    guarded.create_topic("fleet")
    tables = '[client_quota]\nscope = "fleet"\n[fleet]\nmember = "one"\ntopic = "fleet"\n'
    options = GatewayOptions(
        upstream=own_user(guarded), listener='security_protocol = "SASL_PLAINTEXT"', tables=tables
    )
    gateway = GatewayProcess(tmp_path, guarded.addresses("SASL").values(), tap, options)
    gateway.start()
    try:
        gateway.eventually(lambda: "event=fleet_topic_not_followed" in gateway.log_file.read_text())
        assert "DESCRIBE, READ and WRITE" in gateway.log_file.read_text()
    finally:
        gateway.stop()


def test_a_gateway_without_the_right_to_see_stored_bytes_says_so_and_serves(
    guarded: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    directory = tmp_path / "gateway"
    directory.mkdir()
    more = {"upstream": own_user(guarded), "listener": 'security_protocol = "SASL_PLAINTEXT"'}
    gateway = GatewayProcess(directory, guarded.addresses("SASL").values(), tap, options(tmp_path / "usage", **more))
    gateway.start()
    try:
        eventually(lambda: samples(gateway, "failed") == 1, WITHIN_S)
        text = gateway.log_file.read_text()
        assert text.count("stored_bytes_not_sampled") == 1
        assert "the right DESCRIBE on the cluster" in text
        assert gateway.http("/readyz")[0] == 200
    finally:
        gateway.stop()
    assert parts(tmp_path / "usage") == []
