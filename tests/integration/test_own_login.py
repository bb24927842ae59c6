"""The gateway's own login to a real Kafka, by each mechanism, while its secrets, tokens and certificates change.

Discovery and the topics of quotas, of usage and of the fleet all log in; what they do shows that they have.
"""

import itertools
import os
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import ScramMechanism

from testkit.certificates import Authority
from testkit.secure_kafka import PASSWORDS, SecureKafka, unsecured_token
from testkit.tap import Tap
from testkit.token_endpoint import SECRET, TokenEndpoint, answer
from testkit.wire_client import WireClient
from tests.integration.gateway_process import GatewayOptions, GatewayProcess
from tests.integration.sasl_gateway import log_in

pytestmark = pytest.mark.integration

LOGIN: Final = "gateway_upstream_login"
LIFETIME_S: Final = 10
"""The next token is requested after 80 % of it. The rest is the time that a slow machine has.

librdkafka's clients that find an expired token ask again only after ten seconds.
"""
CANARY: Final = "canary-of-token-2b7f"


def new_token() -> str:
    return unsecured_token("gateway", lifetime_s=LIFETIME_S, jti=CANARY)


@contextmanager
def gateway(secure: SecureKafka, tap: Tap, folder: Path, listener: str, upstream: str) -> Iterator[GatewayProcess]:
    """A gateway with all its topics, behind one of the brokers' listeners."""
    name = f"own-{secrets.token_hex(4)}"
    protocol = "PLAINTEXT" if listener == "SSL" else "SASL_PLAINTEXT"
    tables = f"""
[quota_store]
kind = "topic"
topic = "{name}-quotas"
[usage]
kind = "topic"
topic = "{name}-usage"
[fleet]
topic = "{name}-fleet"
[client_quota]
scope = "fleet"
"""
    options = GatewayOptions(
        upstream=f"topology_refresh_ms = 1000\n{upstream}",
        listener=f'security_protocol = "{protocol}"\n',
        tables=tables,
    )
    (folder / "gateway").mkdir()
    running = GatewayProcess(folder / "gateway", secure.addresses(listener).values(), tap, options)
    running.start()
    try:
        yield running
    finally:
        running.stop()


_values: Final = itertools.count(1_000_000)


def set_quota(running: GatewayProcess) -> subprocess.CompletedProcess[str]:
    """Write the topic of quotas, and read it back."""
    return running.command("quotas", "set", "user=bob", f"producer_byte_rate={next(_values)}")


def works(running: GatewayProcess, *, by_password: bool = True) -> None:
    """All connections of the gateway do what they are for."""
    running.eventually(lambda: running.http("/readyz")[0] == 200)
    done = set_quota(running)
    assert done.returncode == 0, done.stderr
    running.eventually(lambda: running.metric("gateway_fleet_connected") == 1)
    delivered = running.metric("gateway_usage_lines_total", result="delivered") or 0
    with WireClient(running.bootstrap) as client:
        if by_password:
            assert log_in(client, "PLAIN", "bob").error_code == 0
        topic = {"name": "nowhere", "partition_data": [{"index": 0, "records": bytes(100)}]}
        client.ask("Produce", 9, acks=1, timeout_ms=1000, topic_data=[topic])
    running.eventually(lambda: (running.metric("gateway_usage_lines_total", result="delivered") or 0) > delivered)


def refreshed(running: GatewayProcess, result: str = "applied") -> float:
    return running.metric(f"{LOGIN}_refreshes_total", upstream="upstream", result=result) or 0


def in_force(running: GatewayProcess) -> bool:
    return running.metric(f"{LOGIN}_last_refresh_successful", upstream="upstream") == 1


def replace(file: Path, text: str) -> None:
    """As Kubernetes does: the file is never half there."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


@pytest.mark.parametrize("listener", ["SASL", "REAUTH"])
def test_tokens_of_an_endpoint_are_renewed_and_its_failure_is_named(
    listener: str, secure_kafka: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("endpoint", "endpoint", hosts=("127.0.0.1",))
    secret = tmp_path / "client-secret"
    secret.write_text(SECRET)
    good = threading.Event()
    good.set()

    def answers() -> list[bytes]:
        if not good.is_set():
            return [answer({"error": "invalid_client", "error_description": SECRET}, "401 No")]
        return [answer({"access_token": new_token(), "token_type": "Bearer", "expires_in": 3600})]

    with TokenEndpoint(pair, answers) as endpoint:
        upstream = f"""security_protocol = "SASL_PLAINTEXT"
[upstream.sasl]
mechanism = "OAUTHBEARER"
token_endpoint = "{endpoint.url}"
token_endpoint_ca = "{authority.certificate}"
client_id = "gateway"
client_secret_file = "{secret}"
"""
        with gateway(secure_kafka, tap, tmp_path, listener, upstream) as running:
            works(running)
            # After the end of the first token all of them still work; on REAUTH sessions have ended meanwhile.
            running.eventually(lambda: refreshed(running) >= 3)
            works(running)
            good.clear()
            running.eventually(lambda: "token endpoint: HTTP status 401 invalid_client" in running.http("/readyz")[1])
            assert refreshed(running, "failed") >= 1
            assert not in_force(running)
            replace(secret, f"{SECRET}-the-second")
            good.set()
            # librdkafka's clients that had no token ask again after ten seconds.
            running.eventually(lambda: set_quota(running).returncode == 0)
            works(running)
            assert in_force(running)


def test_token_of_a_file_is_followed_and_a_bad_file_changes_nothing(
    secure_kafka: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(unsecured_token("gateway", jti=CANARY))
    upstream = f"""security_protocol = "SASL_PLAINTEXT"
sasl = {{ mechanism = "OAUTHBEARER", token_file = "{file}" }}
"""
    with gateway(secure_kafka, tap, tmp_path, "REAUTH", upstream) as running:
        works(running)
        replace(file, f"a\x01auth=Bearer {CANARY}\x01\x01")
        running.eventually(lambda: refreshed(running, "failed") == 1)
        works(running)
        assert not in_force(running)
        replace(file, unsecured_token("gateway", jti=CANARY, n=2))
        running.eventually(lambda: refreshed(running) == 1)
        works(running)
        assert in_force(running)


def test_new_password_takes_effect_without_a_restart_also_where_sessions_end(
    secure_kafka: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORDS["gateway"])
    upstream = f"""security_protocol = "SASL_PLAINTEXT"
sasl = {{ mechanism = "SCRAM-SHA-512", username = "gateway", password_file = "{file}" }}
"""
    other = {"gateway": "canary-of-gateway-second-41aa"}
    with gateway(secure_kafka, tap, tmp_path, "REAUTH", upstream) as running:
        works(running)
        try:
            secure_kafka.set_passwords(other, ScramMechanism.SCRAM_SHA_512)
            running.eventually(lambda: "refuses the login" in running.http("/readyz")[1])
            replace(file, other["gateway"])
            running.eventually(lambda: refreshed(running) == 1)
            works(running)
        finally:
            secure_kafka.set_passwords(PASSWORDS, ScramMechanism.SCRAM_SHA_512)


def kept_back(running: GatewayProcess, clients: str) -> bool:
    """Whether the clients of this kind have read the foreign certificate."""
    return any(
        "not sending any client certificates" in line and f"logger=gateway.{clients}.kafka" in line
        for line in running.log_file.read_text().splitlines()
    )


def test_new_certificate_is_used_by_all_connections_and_files_that_do_not_fit_by_none(
    secure_kafka: SecureKafka, tap: Tap, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"

    def use(pair: tuple[Path, Path]) -> None:
        for new, file in zip(pair, (certificate, key), strict=True):
            replace(file, new.read_text())

    first, second = (secure_kafka.client(f"gateway {n}") for n in (1, 2))
    foreign = Authority(tmp_path, "foreign").issue("foreign", "gateway")
    shutil.copy(first.certificate, certificate)
    shutil.copy(first.key, key)
    upstream = f"""security_protocol = "SSL"
[upstream.tls]
ca = "{secure_kafka.authority.certificate}"
certificate = "{certificate}"
key = "{key}"
"""
    with gateway(secure_kafka, tap, tmp_path, "SSL", upstream) as running:

        def reloads(result: str) -> float:
            return running.metric("gateway_tls_certificate_reloads_total", section="upstream.tls", result=result) or 0

        works(running, by_password=False)
        replace(key, second.key.read_text())
        running.eventually(lambda: reloads("invalid") == 1)
        works(running, by_password=False)
        use((second.certificate, second.key))
        running.eventually(lambda: reloads("applied") >= 1)
        works(running, by_password=False)
        # That clients which live take new files shows with ones that the brokers refuse.
        use((foreign.certificate, foreign.key))
        running.eventually(lambda: running.http("/readyz")[0] == 503)
        # librdkafka keeps back a certificate that none of the broker's authorities has issued, and says so. What a
        # broker then does depends on whether its listener requires one.
        running.eventually(lambda: all(kept_back(running, each) for each in ("fleet", "store", "usage")))
        use((first.certificate, first.key))
        works(running, by_password=False)
