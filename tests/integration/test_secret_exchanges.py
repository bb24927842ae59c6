"""Every way in which a secret passes the gateway, at DEBUG, with all that it writes: nothing of it is seen (H15)."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import Any, Final

import pytest

from testkit import wire
from testkit.secrets import CANARY, Outputs, contents, secrets_in
from testkit.secure_kafka import MECHANISMS, PASSWORDS, WRONG_PASSWORD, SecureKafka, unsecured_token
from testkit.tap import Tap
from testkit.wire_client import ConnectionEnded, WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in, own_user

pytestmark = pytest.mark.integration

SEEN: Final = "client-that-may-be-seen"
"""Named by every request: where this is not found, no one has looked."""

_HMAC_BYTES: Final = 64
# CreateDelegationToken v1: no renewers, a minute. Its answer ends in the secret and a throttle time.
_CREATE_TOKEN: Final = wire.framed(pack(">hhih", 38, 1, 99, len(SEEN)) + SEEN.encode() + pack(">iq", 0, 60_000))


@pytest.fixture(scope="module")
def gateway(
    secure_kafka: SecureKafka, tap: Tap, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("secrets")
    tables = f"""
[usage]
kind = "files"
directory = "{folder / "usage"}"
rotate_seconds = 1

[[quotas]]
default_user = true
default_client_id = true
producer_byte_rate = 1000000000
"""
    options = GatewayOptions(
        upstream=own_user(secure_kafka), listener='security_protocol = "SASL_PLAINTEXT"', tables=tables
    )
    gateway = GatewayProcess(folder, secure_kafka.addresses("SASL").values(), tap, options)
    gateway.start()
    yield gateway
    gateway.stop()


def told(gateway: GatewayProcess, secrets: tuple[bytes, ...] = (CANARY.encode(),)) -> list[Any]:
    """Secrets in anything that the gateway has let out so far."""
    outputs = Outputs()
    outputs.look_at_process(gateway.pid, str(gateway.admin))
    found: list[Any] = list(outputs.hits)
    for path in ("/metrics", "/readyz", "/healthz"):
        found += secrets_in(gateway.http(path)[1].encode(), secrets)
    for name, data in contents(gateway.config_file.parent):
        found += [(name, hit) for hit in secrets_in(data, secrets)]
    return found


def connect(gateway: GatewayProcess) -> WireClient:
    return WireClient(gateway.bootstrap, client_id=SEEN, timeout_s=15)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_h15_passwords_and_tokens_of_exchanges_are_not_told(gateway: GatewayProcess, mechanism: str) -> None:
    with connect(gateway) as client:
        assert log_in(client, mechanism, "alice").error_code == 0
        client.ask("Metadata", 12, topics=[])
    with connect(gateway) as client, suppress(ConnectionEnded):
        assert log_in(client, mechanism, "alice", WRONG_PASSWORD).error_code in (0, 58)
    assert told(gateway) == []


def test_h15_canary_in_every_place_of_a_token_is_not_told(gateway: GatewayProcess) -> None:
    for claims in ({"jti": f"{CANARY}claim"}, {"scope": [f"{CANARY}scope"]}, {"sub": f"{CANARY}a\x01"}):
        token = unsecured_token("alice", **claims)
        with connect(gateway) as client, suppress(ConnectionEnded):
            client.ask("SaslHandshake", 1, mechanism="OAUTHBEARER")
            message = f"n,,\x01auth=Bearer {token}{CANARY}signature\x01host={CANARY}host\x01\x01"
            client.ask("SaslAuthenticate", 2, auth_bytes=message.encode())
    assert told(gateway) == []


@pytest.mark.parametrize("cut", [9])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_h15_broken_exchanges_are_not_told(gateway: GatewayProcess, version: int, cut: int) -> None:
    """Frames that end too early, lengths that lie, tokens that are none, other requests in between."""
    secret = f"\0alice\0{CANARY}alice".encode()
    whole = wire.request("SaslAuthenticate", version, correlation_id=2, client_id=SEEN, auth_bytes=secret)
    shake = wire.request("SaslHandshake", 1, correlation_id=1, client_id=SEEN, mechanism="PLAIN")
    shorter = (len(whole) - 4 - cut).to_bytes(4) + whole[4:-cut]
    odd = wire.request("SaslHandshake", 1, correlation_id=1, client_id=SEEN, mechanism=f"{CANARY}mechanism")
    for stream in (
        whole,
        shake + shorter,
        shake + whole.replace(len(secret).to_bytes(4), b"\x7f\xff\xff\xff"),
        shake + whole[:-cut],
        shake + len(secret).to_bytes(4) + secret,
        shake + whole + whole,
        shake + wire.request("SaslAuthenticate", version, correlation_id=2, auth_bytes=secret * 20_000),
        odd + whole,
        shake + wire.request("Metadata", 1, correlation_id=2, client_id=SEEN, topics=[]) + whole,
        secret,
    ):
        with socket.create_connection(gateway.bootstrap, timeout=0.15) as sock, suppress(OSError):
            sock.sendall(stream)
            while sock.recv(65_536):
                pass
    assert told(gateway) == []


def test_h15_secrets_in_requests_to_the_cluster_are_not_told(gateway: GatewayProcess) -> None:
    salted = f"{CANARY}salted-password".encode()
    upsertion = {"name": "dora", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": salted}
    jaas = f'org.example.Login required username="x" password="{CANARY}jaas";'
    configs = [{"name": "listener.name.other.plain.sasl.jaas.config", "config_operation": 0, "value": jaas}]
    resources = [{"resource_type": 4, "resource_name": "1", "configs": configs}]
    with connect(gateway) as client:
        assert log_in(client, "PLAIN", "alice").error_code == 0
        client.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=[upsertion])
        client.ask("IncrementalAlterConfigs", 1, resources=resources, validate_only=True)
        client.send_bytes(_CREATE_TOKEN)
        answer = client.receive_frame()
        assert answer[8:10] == b"\0\0", "no token was made"
        client.ask("DescribeConfigs", 4, resources=[{"resource_type": 4, "resource_name": "1"}])
    assert told(gateway, (CANARY.encode(), answer[-4 - _HMAC_BYTES : -4])) == []


def test_h15_what_may_be_seen_is_seen_so_the_search_reaches_the_outputs(gateway: GatewayProcess) -> None:
    with connect(gateway) as client:
        assert log_in(client, "PLAIN", "alice").error_code == 0
        client.ask("Metadata", 12, topics=[])
        client.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=1_000, topic_data=[])
    folder: Path = gateway.config_file.parent
    gateway.eventually(lambda: any(SEEN.encode() in data for name, data in contents(folder) if "usage" in name), 15)
    assert SEEN in gateway.http("/metrics")[1]
    assert b"listening" in gateway.log_file.read_bytes()
    # A password that is not this suite's own would be found by the same search.
    assert secrets_in(b"x" + PASSWORDS["alice"].encode())
