"""SASL through the gateway, by hand and with Kafka's tools: whom a quota binds, and what a broker makes of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin
import pytest

from embedded_kafka.tools import run_tool
from testkit.secure_kafka import MECHANISMS, PASSWORDS, REAUTH_MS, SecureKafka, unsecured_token
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.conftest import eventually
from tests.integration.gateway_process import GATEWAY_HOST, TAP_HOST, Address, GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_login, own_user, reauth_listener

pytestmark = pytest.mark.integration

FAILED: Final = 58
NOT_AUTHORIZED: Final = 31
SCRAM: Final = [mechanism for mechanism in MECHANISMS if mechanism.startswith("SCRAM")]


@dataclass(frozen=True, slots=True)
class Ways:
    """A gateway with SASL; `reauth` leads to sessions that end."""

    gateway: GatewayProcess
    reauth: Address
    folder: Path

    def configs(self, *arguments: str) -> None:
        """Run kafka-configs as the user `gateway`, who may change quotas."""
        done = self._tool("org.apache.kafka.tools.ConfigCommand", *arguments)
        assert "Completed updating" in done, done

    def set_rate(self, user: str, rate: str) -> None:
        """Let the user produce so many bytes per second, or "none" for no limit; without Java."""
        done = self.gateway.command("quotas", "set", f"user={user}", f"producer_byte_rate={rate}")
        assert done.returncode == 0, done.stderr

    def create_token(self) -> tuple[str, str]:
        """A delegation token of the user `gateway`: its id, and the secret that goes with it."""
        tool = "org.apache.kafka.tools.DelegationTokenCommand"
        said = self._tool(tool, "--create", "--max-life-time-period", "-1")
        token_id, hmac = said.splitlines()[-1].split()[:2]
        eventually(partial(self._knows_token, token_id, hmac))  # a broker hears of it from the controller
        return token_id, hmac

    def _knows_token(self, token_id: str, hmac: str) -> bool:
        with WireClient(self.gateway.bootstrap) as client:
            return log_in(client, "SCRAM-SHA-512", token_id, hmac, tokenauth="true").error_code == 0

    def _tool(self, name: str, *arguments: str) -> str:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        config = self.folder / "client.properties"
        config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={module} required username="gateway" password="{PASSWORDS["gateway"]}";\n'
        )
        where = ["--bootstrap-server", str(self.gateway.bootstrap), "--command-config", str(config)]
        done = run_tool(name, [*where, *arguments])
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="module")
def ways(secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """See `Ways`."""
    folder = tmp_path_factory.mktemp("sasl-by-hand")
    reauth, tables = reauth_listener(secure_kafka)
    listener = 'security_protocol = "SASL_PLAINTEXT"\n[listeners.sasl]\ndelegation_token_principal = "by-token"'
    tables += '[quota_admin]\nadmins = ["User:gateway"]\n'
    options = GatewayOptions(upstream=own_user(secure_kafka), listener=listener, tables=tables)
    gateway = GatewayProcess(folder, secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    # Not in the gateway's own folder, where no password may ever be.
    yield Ways(gateway, reauth, tmp_path_factory.mktemp("sasl-tools"))
    gateway.stop()


def produce(client: WireClient, size: int = 100_000) -> int:
    """Produce so many bytes; returns the throttle time."""
    topic = {"name": "nowhere", "partition_data": [{"index": 0, "records": bytes(size)}]}
    reply = client.ask("Produce", 9, acks=1, timeout_ms=1000, topic_data=[topic])
    return int(reply.body.throttle_time_ms)


def test_h01_quota_set_with_kafka_configs_binds_exactly_that_user(ways: Ways) -> None:
    alice = ["--entity-type", "users", "--entity-name", "alice"]
    ways.configs("--alter", "--add-config", "producer_byte_rate=5000", *alice)
    for mechanism in MECHANISMS:
        with WireClient(ways.gateway.bootstrap, client_id=f"a {mechanism}") as client:
            assert log_in(client, mechanism, "alice").error_code == 0
            # More than the quota of a whole window, so that it does not matter how long the client before it took.
            assert produce(client, 60_000) > 0
        with WireClient(ways.gateway.bootstrap, client_id=f"b {mechanism}") as client:
            assert log_in(client, mechanism, "bob").error_code == 0
            assert produce(client, 60_000) == 0
    ways.configs("--alter", "--delete-config", "producer_byte_rate", *alice)
    with WireClient(ways.gateway.bootstrap) as client:
        log_in(client, "PLAIN", "alice")
        assert produce(client) == 0


def test_name_with_a_comma_and_an_equals_sign_is_that_user(ways: Ways) -> None:
    name = "carol, the 2nd="
    before = ways.gateway.metric("gateway_authentications_total", result="success") or 0
    for mechanism in SCRAM:
        with WireClient(ways.gateway.bootstrap) as client:
            assert log_in(client, mechanism, name).error_code == 0
            forbidden = client.ask("DescribeClientQuotas", 0, components=[], strict=False).body
            assert forbidden.error_code == NOT_AUTHORIZED
    assert ways.gateway.metric("gateway_authentications_total", result="success") == before + len(SCRAM)


def test_rights_follow_the_user_too(ways: Ways) -> None:
    with WireClient(ways.gateway.bootstrap) as client:
        log_in(client, "SCRAM-SHA-256", "gateway")
        assert client.ask("DescribeClientQuotas", 0, components=[], strict=False).body.error_code == 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_h12_real_broker_refuses_to_go_on_as_somebody_else(ways: Ways, mechanism: str) -> None:
    with WireClient(ways.reauth) as client:
        first = log_in(client, mechanism, "alice")
        assert (first.error_code, 0 < first.session_lifetime_ms <= REAUTH_MS) == (0, True)
        assert log_in(client, mechanism, "bob").error_code == FAILED
        with pytest.raises(ConnectionEnded):
            client.ask("Metadata", 4, topics=[], allow_auto_topic_creation=False)


def test_h02_h04_user_is_of_the_token_that_the_broker_took_and_not_of_one_refused_before(ways: Ways) -> None:
    ways.set_rate("alice", "5000")
    with WireClient(ways.gateway.bootstrap) as client:
        client.ask("SaslHandshake", 1, mechanism="OAUTHBEARER")
        refused, taken = (
            client.ask("SaslAuthenticate", 2, auth_bytes=f"n,,\x01auth=Bearer {each}\x01\x01".encode()).body
            for each in (unsecured_token("bob", lifetime_s=-3_600), unsecured_token("alice"))
        )
        assert (refused.error_code, b"invalid_token" in refused.auth_bytes) == (0, True)
        assert (taken.error_code, taken.auth_bytes) == (0, b"")
        assert produce(client) > 0
    ways.set_rate("alice", "none")


def test_h06_delegation_token_counts_for_the_configured_principal(ways: Ways) -> None:
    token_id, hmac = ways.create_token()
    ways.set_rate("by-token", "5000")
    with WireClient(ways.gateway.bootstrap) as client:
        assert log_in(client, "SCRAM-SHA-512", token_id, hmac, tokenauth="true").error_code == 0
        assert produce(client) > 0
    ways.set_rate("by-token", "none")


def test_h13_session_that_ends_during_a_mute_ends_the_connection_and_not_the_client(ways: Ways) -> None:
    ways.set_rate("alice", "10000")
    with WireClient(ways.reauth) as client:
        log_in(client, "PLAIN", "alice")
        # Ten samples of 10,000 pass: what is beyond is the wait.
        muted_ms = produce(client, 100_000 + (REAUTH_MS + 500) * 10)
        assert muted_ms > REAUTH_MS
        with pytest.raises(ConnectionEnded):
            produce(client, 10)
    ways.set_rate("alice", "none")
    with WireClient(ways.reauth) as client:
        assert log_in(client, "PLAIN", "alice").error_code == 0
        produce(client, 10)


# -- the gateway's own login -----------------------------------------------------------------------------------------
def started(
    secure: SecureKafka, tap: Tap, folder: Path, *, to: str = "SASL", ready: bool = True, **options: Any
) -> GatewayProcess:
    """A gateway of its own for one test, before this listener of the brokers."""
    gateway = GatewayProcess(folder, secure.addresses(to).values(), tap, GatewayOptions(**options))
    gateway.start(ready=ready)
    return gateway


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_gateway_finds_the_brokers_and_reads_its_topic_by_its_own_login(
    secure_kafka: SecureKafka, tap: Tap, tmp_path: Path, mechanism: str
) -> None:
    topic = f"own-quotas-{mechanism.lower()}"
    store = f'[quota_store]\nkind = "topic"\ntopic = "{topic}"\nreplication_factor = 1\n'
    gateway = started(secure_kafka, tap, tmp_path, upstream=own_user(secure_kafka, mechanism), tables=store)
    gateway.stop()
    assert "cluster_discovered" in gateway.log_file.read_text()
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": secure_kafka.bootstrap("PLAINTEXT")})
    assert topic in admin.list_topics(timeout=20).topics


def test_gateway_without_a_login_says_so_and_relays(secure_kafka: SecureKafka, tap: Tap, tmp_path: Path) -> None:
    protocol = 'security_protocol = "SASL_PLAINTEXT"'
    gateway = started(secure_kafka, tap, tmp_path, ready=False, upstream=protocol, listener=protocol)
    try:
        why = "wants a login, and has no sasl section\n"
        gateway.eventually(lambda: gateway.http("/readyz")[1].endswith(why))
        assert gateway.http("/readyz")[0] == 503
        with WireClient(gateway.bootstrap) as client:
            assert log_in(client, "PLAIN", "alice").error_code == 0
            told = client.ask("Metadata", 4, topics=[], allow_auto_topic_creation=False).body
            assert [broker.host for broker in told.brokers] == [TAP_HOST]
    finally:
        gateway.stop()
    assert "upstream_login_missing" in gateway.log_file.read_text()


def test_gateway_whose_login_is_refused_says_so(secure_kafka: SecureKafka, tap: Tap, tmp_path: Path) -> None:
    wrong = secure_kafka.folder / "wrong"
    wrong.write_text("canary-of-a-wrong-one")
    sasl = f'sasl = {{ mechanism = "PLAIN", username = "gateway", password_file = "{wrong}" }}'
    gateway = started(
        secure_kafka, tap, tmp_path, ready=False, upstream=f'security_protocol = "SASL_PLAINTEXT"\n{sasl}'
    )
    try:
        gateway.eventually(lambda: "refuses the login" in gateway.http("/readyz")[1])
    finally:
        gateway.stop()
    assert "canary-of-a-wrong-one" not in gateway.log_file.read_text()


def test_all_of_it_over_tls(secure_kafka: SecureKafka, tap: Tap, tmp_path: Path) -> None:
    ca = secure_kafka.authority.certificate
    pair = secure_kafka.authority.issue("gateway", "gateway", hosts=(TAP_HOST, GATEWAY_HOST))
    protocol = 'security_protocol = "SASL_SSL"'
    gateway = started(
        secure_kafka,
        tap,
        tmp_path,
        to="SASL_SSL",
        upstream=f'{protocol}\ntls = {{ ca = "{ca}" }}\n{own_login(secure_kafka)}',
        listener=f'{protocol}\ntls = {{ certificate = "{pair.certificate}", key = "{pair.key}" }}',
    )
    try:
        for mechanism in ("PLAIN", *SCRAM):
            admin = confluent_kafka.admin.AdminClient(
                {
                    "bootstrap.servers": str(gateway.bootstrap),
                    "security.protocol": "SASL_SSL",
                    "ssl.ca.location": str(ca),
                    "sasl.mechanism": mechanism,
                    "sasl.username": "alice",
                    "sasl.password": PASSWORDS["alice"],
                }
            )
            assert list(admin.list_topics(timeout=20).brokers) == [1]
            ended = gateway.metric("gateway_authentications_total", mechanism=mechanism.lower())
            assert ended is not None
    finally:
        gateway.stop()
